#include "workers/io/zip.h"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <libdeflate.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

namespace ringfeed::formats {
namespace {

constexpr std::uint32_t kEndMagic = 0x06054b50;
constexpr std::uint32_t kEnd64Magic = 0x06064b50;
constexpr std::uint32_t kLocator64Magic = 0x07064b50;
constexpr std::uint32_t kEntryMagic = 0x02014b50;
constexpr std::uint32_t kMemberMagic = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22;  // and a comment
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kLocator64Bytes = 20;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kZipHeadBytes = 30;
constexpr std::uint64_t kCommentBytesMax = 0xffff;
constexpr std::uint16_t kZip64Extra = 1;
constexpr std::uint64_t kZipInputBytes = std::uint64_t{64} << 10;
// Deflate packs no better, so that no directory claims more than there can be.
constexpr std::uint64_t kDeflateRatioMax = 1032;

Error zip_damaged(std::string text) { return {ErrorCode::kDamaged, std::move(text)}; }

// Little-endian numbers. The caller knows that they are inside.
template <typename T>
T number_at(std::span<const std::byte> bytes, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Bytes of the file at an offset; fewer: it ends there.
Result<std::size_t> read_zip_at(int fd, std::uint64_t at, std::span<std::byte> out) {
  std::size_t have = 0;
  while (have < out.size()) {
    const ssize_t got =
        ::pread(fd, out.data() + have, out.size() - have, static_cast<off_t>(at + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  return have;
}
Result<std::vector<std::byte>> read_zip_bytes(int fd, std::uint64_t at, std::uint64_t bytes) {
  std::vector<std::byte> all(bytes);
  const Result<std::size_t> got = read_zip_at(fd, at, all);
  if (!got) return got.error();
  if (*got != bytes) return zip_damaged("it became shorter while it was read");
  return all;
}

struct Directory {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t trailing_bytes = 0;
};

// The record at the end of the file says where the directory is. Something may follow it; where its
// own comment reaches to the end, nothing does.
Result<Directory> find_directory(int fd, std::uint64_t file_bytes) {
  const std::uint64_t tail_bytes = std::min(file_bytes, kEndBytes + kCommentBytesMax);
  const Result<std::vector<std::byte>> tail =
      read_zip_bytes(fd, file_bytes - tail_bytes, tail_bytes);
  if (!tail) return tail.error();
  std::optional<std::uint64_t> found;
  std::uint64_t trailing = 0;
  for (std::uint64_t at = tail_bytes; at >= kEndBytes && (!found || trailing != 0); --at) {
    const std::uint64_t begin = at - kEndBytes;
    const std::uint64_t comment = number_at<std::uint16_t>(*tail, begin + 20);
    const std::uint64_t end_at = file_bytes - tail_bytes + begin;
    const std::uint64_t directory_end = std::uint64_t{number_at<std::uint32_t>(*tail, begin + 16)} +
                                        number_at<std::uint32_t>(*tail, begin + 12);
    // A comment may look like one.
    const bool is_end = number_at<std::uint32_t>(*tail, begin) == kEndMagic &&
                        (comment == tail_bytes - at || directory_end <= end_at);
    if (!is_end || comment > tail_bytes - at || (found && comment != tail_bytes - at)) continue;
    found = begin;
    trailing = tail_bytes - at - comment;
  }
  if (!found) {
    return zip_damaged(
        "it has no directory at its end: it is no zip file, was cut short or is still being "
        "written");
  }
  const std::uint64_t end_at = file_bytes - tail_bytes + *found;
  Directory directory{.at = number_at<std::uint32_t>(*tail, *found + 16),
                      .bytes = number_at<std::uint32_t>(*tail, *found + 12),
                      .entries = number_at<std::uint16_t>(*tail, *found + 10)};
  std::uint64_t behind = end_at;
  const bool large =
      directory.at == 0xffffffff || directory.bytes == 0xffffffff || directory.entries == 0xffff;
  if (large && end_at >= kLocator64Bytes) {
    const Result<std::vector<std::byte>> locator =
        read_zip_bytes(fd, end_at - kLocator64Bytes, kLocator64Bytes);
    if (!locator) return locator.error();
    if (number_at<std::uint32_t>(*locator, 0) == kLocator64Magic) {
      const auto at = number_at<std::uint64_t>(*locator, 8);
      if (at > end_at || end_at - at < kEnd64Bytes) {
        return zip_damaged("its zip64 directory lies outside of it");
      }
      const Result<std::vector<std::byte>> end = read_zip_bytes(fd, at, kEnd64Bytes);
      if (!end) return end.error();
      if (number_at<std::uint32_t>(*end, 0) != kEnd64Magic) {
        return zip_damaged("its zip64 directory is not where it says");
      }
      directory = {.at = number_at<std::uint64_t>(*end, 48),
                   .bytes = number_at<std::uint64_t>(*end, 40),
                   .entries = number_at<std::uint64_t>(*end, 32)};
      behind = at;
    }
  }
  if (directory.at > behind || directory.bytes > behind - directory.at) {
    return zip_damaged("its directory lies outside of it");
  }
  if (directory.bytes > kZipDirectoryBytesMax) {
    return zip_damaged(fmt::format("its directory has {} bytes, at most {} are read",
                                   directory.bytes, kZipDirectoryBytesMax));
  }
  directory.trailing_bytes = trailing;
  return directory;
}

// Takes the numbers that did not fit out of an entry's extra field. False: they are not there.
bool widen(std::span<const std::byte> extra, std::span<std::uint64_t* const> numbers) {
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const std::size_t bytes = number_at<std::uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return false;
    if (id == kZip64Extra) {
      std::span<const std::byte> own = extra.subspan(4, bytes);
      for (std::uint64_t* const number : numbers) {
        if (*number != 0xffffffff) continue;
        if (own.size() < 8) return false;
        *number = number_at<std::uint64_t>(own, 0);
        own = own.subspan(8);
      }
      return true;
    }
    extra = extra.subspan(4 + bytes);
  }
  return std::ranges::all_of(numbers, [](const std::uint64_t* n) { return *n != 0xffffffff; });
}

// Finds the data behind the member's own head.
Status find_data(int fd, std::uint64_t head_at, std::uint64_t end, ZipMember& member) {
  const auto refuse = [&](std::string text) {
    member.unreadable = std::move(text);
    return Status();
  };
  const std::uint64_t head_bytes = kZipHeadBytes + member.name.size();
  if (head_at > end || end - head_at < head_bytes) return refuse("it lies outside of the file");
  const Result<std::vector<std::byte>> head = read_zip_bytes(fd, head_at, head_bytes);
  if (!head) return head.error();
  if (number_at<std::uint32_t>(*head, 0) != kMemberMagic ||
      number_at<std::uint16_t>(*head, 26) != member.name.size() ||
      std::memcmp(head->data() + kZipHeadBytes, member.name.data(), member.name.size()) != 0) {
    return refuse("its head is not where the directory says");
  }
  member.data_at = head_at + head_bytes + number_at<std::uint16_t>(*head, 28);
  if (member.data_at > end || member.packed_bytes > end - member.data_at) {
    return refuse("it lies outside of the file");
  }
  return {};
}

}  // namespace

Result<std::vector<ZipMember>> read_zip_directory(int fd, std::uint64_t* trailing_bytes) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  const Result<Directory> directory = find_directory(fd, static_cast<std::uint64_t>(file.st_size));
  if (!directory) return directory.error();
  const Result<std::vector<std::byte>> bytes = read_zip_bytes(fd, directory->at, directory->bytes);
  if (!bytes) return bytes.error();
  std::vector<ZipMember> members;
  std::span<const std::byte> rest(*bytes);
  for (std::uint64_t i = 0; i < directory->entries; ++i) {
    const bool whole = rest.size() >= kEntryBytes;
    if (!whole || number_at<std::uint32_t>(rest, 0) != kEntryMagic) {
      return zip_damaged(fmt::format("entry {} of its directory is damaged", i));
    }
    const std::size_t name_bytes = number_at<std::uint16_t>(rest, 28);
    const std::size_t extra_bytes = number_at<std::uint16_t>(rest, 30);
    const std::size_t entry_bytes =
        kEntryBytes + name_bytes + extra_bytes + number_at<std::uint16_t>(rest, 32);
    if (entry_bytes > rest.size()) {
      return zip_damaged(fmt::format("entry {} of its directory is damaged", i));
    }
    const auto flags = number_at<std::uint16_t>(rest, 8);
    const auto method = number_at<std::uint16_t>(rest, 10);
    std::uint64_t head_at = number_at<std::uint32_t>(rest, 42);
    ZipMember member{.name = {reinterpret_cast<const char*>(rest.data()) + kEntryBytes, name_bytes},
                     .packed_bytes = number_at<std::uint32_t>(rest, 20),
                     .bytes = number_at<std::uint32_t>(rest, 24),
                     .crc = number_at<std::uint32_t>(rest, 16),
                     .deflated = method == 8};
    const std::array<std::uint64_t*, 3> numbers{&member.bytes, &member.packed_bytes, &head_at};
    if (!widen(rest.subspan(kEntryBytes + name_bytes, extra_bytes), numbers)) {
      member.unreadable = "its entry in the directory is damaged";
    } else if ((flags & 1) != 0) {
      member.unreadable = "it is encrypted";
    } else if (method != 0 && method != 8) {
      member.unreadable =
          fmt::format("it is packed by method {}; stored and deflated members are read", method);
    } else if (method == 0 ? member.bytes != member.packed_bytes
                           : member.bytes / kDeflateRatioMax > member.packed_bytes) {
      member.unreadable =
          fmt::format("it cannot have {} bytes in {}", member.bytes, member.packed_bytes);
    } else if (Status found = find_data(fd, head_at, directory->at, member); !found) {
      return found.error();
    }
    members.push_back(std::move(member));
    rest = rest.subspan(entry_bytes);
  }
  if (rest.size() >= kEntryBytes && number_at<std::uint32_t>(rest, 0) == kEntryMagic) {
    return zip_damaged(
        fmt::format("its directory has more than the {} entries that it says", directory->entries));
  }
  if (trailing_bytes != nullptr) *trailing_bytes = directory->trailing_bytes;
  return members;
}

class ZipReader::Inflate {
 public:
  Inflate() {
    ::isal_inflate_init(&state);
    state.crc_flag = ISAL_DEFLATE;
  }
  inflate_state state{};
  std::array<std::byte, kZipInputBytes> input;
};

ZipReader::ZipReader(int fd, const ZipMember& member) : fd_(fd), member_(member) {
  RF_CHECK(member.unreadable.empty(), member.name.size());
  if (member.deflated) inflate_ = std::make_unique<Inflate>();
}

ZipReader::~ZipReader() = default;

// 0: the end.
Result<std::size_t> ZipReader::some(std::span<std::byte> out) {
  const std::uint64_t packed_left = member_.packed_bytes - at_;
  const auto cut = [] { return zip_damaged("the file became shorter while it was read"); };
  if (inflate_ == nullptr) {
    const std::size_t wanted = std::min<std::uint64_t>(out.size(), packed_left);
    const Result<std::size_t> got = read_zip_at(fd_, member_.data_at + at_, out.first(wanted));
    if (!got) return got.error();
    if (*got != wanted) return cut();
    at_ += wanted;
    return wanted;
  }
  inflate_state& state = inflate_->state;
  for (;;) {
    if (state.block_state == ISAL_BLOCK_FINISH) return std::size_t{0};
    if (state.avail_in == 0 && at_ < member_.packed_bytes) {
      const std::size_t wanted = std::min(member_.packed_bytes - at_, kZipInputBytes);
      const std::span<std::byte> input = std::span(inflate_->input).first(wanted);
      const Result<std::size_t> got = read_zip_at(fd_, member_.data_at + at_, input);
      if (!got) return got.error();
      if (*got != wanted) return cut();
      at_ += wanted;
      state.next_in = reinterpret_cast<std::uint8_t*>(inflate_->input.data());
      state.avail_in = static_cast<std::uint32_t>(wanted);
    }
    const std::uint32_t had = state.avail_in;
    const auto room = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), 1U << 30));
    state.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    state.avail_out = room;
    const int status = ::isal_inflate(&state);
    const std::size_t given = room - state.avail_out;
    if (status < 0) return zip_damaged(fmt::format("it is no valid deflate data ({})", status));
    if (given != 0) return given;
    if (had == 0 && at_ == member_.packed_bytes && state.block_state != ISAL_BLOCK_FINISH) {
      return zip_damaged("it ends in the middle of its packed data");
    }
  }
}

Status ZipReader::read(std::span<std::byte> out) {
  while (!out.empty()) {
    const Result<std::size_t> got = some(out);
    if (!got) return got.error();
    if (*got == 0 || *got > member_.bytes - given_) {
      return zip_damaged(fmt::format("it has {} {} bytes, the directory says {}",
                                     *got == 0 ? "only" : "more than",
                                     *got == 0 ? given_ : member_.bytes, member_.bytes));
    }
    crc_ = ::libdeflate_crc32(crc_, out.data(), *got);
    given_ += *got;
    out = out.subspan(*got);
  }
  return {};
}

Result<bool> ZipReader::finish(std::uint64_t bytes_max) {
  std::vector<std::byte> rest(kZipInputBytes);
  while (given_ < member_.bytes && bytes_max != 0) {
    const std::uint64_t wanted =
        std::min({std::uint64_t{rest.size()}, member_.bytes - given_, bytes_max});
    if (Status got = read(std::span(rest).first(wanted)); !got) return got.error();
    bytes_max -= wanted;
  }
  if (given_ < member_.bytes) return false;
  const Result<std::size_t> more = some(rest);
  if (!more) return more.error();
  if (*more != 0) {
    return zip_damaged(
        fmt::format("it has more than the {} bytes that the directory says", member_.bytes));
  }
  if (crc_ != member_.crc) return zip_damaged("its bytes have another checksum than was written");
  return true;
}

}  // namespace ringfeed::formats
