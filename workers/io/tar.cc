#include "workers/io/tar.h"

#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

namespace ringfeed::formats {

namespace {

using Block = std::array<char, kTarBlockBytes>;

// Fields of a header block: offset, bytes.
struct Field {
  std::size_t offset;
  std::size_t bytes;
};
constexpr Field kName{0, 100};
constexpr Field kSize{124, 12};
constexpr Field kChecksum{148, 8};
constexpr std::size_t kTypeOffset = 156;
constexpr Field kMagic{257, 6};
constexpr Field kPrefix{345, 155};
constexpr Field kStarPrefix{345, 131};  // star keeps times behind it
constexpr Field kStarMagic{508, 4};
constexpr std::size_t kSparseMoreOffset = 482;  // GNU sparse header: extension blocks follow
constexpr std::size_t kSparseExtensionMoreOffset = 504;  // and in such a block: another one follows

// Payloads of x, g, L and K are read into memory; no path or attribute list comes near this.
constexpr std::uint64_t kExtensionBytesMax = std::uint64_t{1} << 20;
constexpr std::size_t kSearchBlocks = 128;  // read at once while looking for the next header

std::string_view field(const Block& block, Field f) noexcept {
  return {block.data() + f.offset, f.bytes};
}

// A name field ends at its first NUL, or at its end.
std::string_view text_field(const Block& block, Field f) noexcept {
  const std::string_view all = field(block, f);
  return all.substr(0, all.find('\0'));
}

bool is_zero(const Block& block) noexcept {
  return std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; });
}

// Octal digits, after spaces or zeros bytes, ended by a space, a NUL or the end of the field. An
// empty field is 0.
std::optional<std::uint64_t> octal(std::string_view digits) noexcept {
  while (!digits.empty() && (digits.front() == ' ' || digits.front() == '\0'))
    digits.remove_prefix(1);
  std::uint64_t value = 0;  // 12 digits are 36 bits
  for (const char c : digits) {
    if (c == ' ' || c == '\0') break;
    if (c < '0' || c > '7') return std::nullopt;
    value = 8 * value + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

// A number field: octal, or big-endian binary when the first byte has its top bit set. No negative
// sizes, and none that leaves the range of file offsets.
std::optional<std::uint64_t> number(std::string_view bytes) noexcept {
  const auto first = static_cast<unsigned char>(bytes.front());
  if ((first & 0x80U) == 0) return octal(bytes);
  if ((first & 0x40U) != 0) return std::nullopt;
  std::uint64_t value = first & 0x3FU;
  for (const char c : bytes.substr(1)) {
    if (value >> 55 != 0) return std::nullopt;
    value = value << 8 | static_cast<unsigned char>(c);
  }
  return value;
}

// Old writers summed the header's bytes as signed characters; the field itself counts as spaces.
bool checksum_holds(const Block& block) noexcept {
  const std::optional<std::uint64_t> said = octal(field(block, kChecksum));
  if (!said) return false;
  std::int64_t sum_unsigned = 0;
  std::int64_t sum_signed = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool inside = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.bytes;
    const char c = inside ? ' ' : block[i];
    sum_unsigned += static_cast<unsigned char>(c);
    sum_signed += static_cast<signed char>(c);
  }
  const auto sum = static_cast<std::int64_t>(*said);
  return sum == sum_unsigned || sum == sum_signed;
}

// Why a block is no header; nullopt if it is one.
std::optional<std::string> header_fault(const Block& block) {
  if (!checksum_holds(block)) return "the checksum of the header is wrong";
  if (!number(field(block, kSize))) return "the size field of the header is not a number";
  return std::nullopt;
}

std::string name_in_header(const Block& block) {
  const std::string_view name = text_field(block, kName);
  // Only "ustar\0" has a prefix here; GNU ("ustar ") keeps times in the same bytes.
  if (field(block, kMagic) != std::string_view("ustar\0", 6)) return std::string(name);
  const bool star = field(block, kStarMagic) == std::string_view("tar\0", 4);
  const std::string_view prefix = text_field(block, star ? kStarPrefix : kPrefix);
  if (prefix.empty()) return std::string(name);
  return fmt::format("{}/{}", prefix, name);
}

// What pax records say about members: of the next one (x), or of all that follow (g).
struct Attributes {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size_bytes;
  bool sparse = false;
};

// Reads records "length key=value\n" into `attributes`. False at the first that is none; what came
// before counts.
bool read_pax(std::string_view payload, Attributes& attributes) {
  while (!payload.empty()) {
    // Some writers fill the last block's worth with NULs and count them in.
    if (payload.front() == '\0') {
      return payload.find_first_not_of('\0') == std::string_view::npos;
    }
    std::size_t length = 0;
    const auto [after, error] =
        std::from_chars(payload.data(), payload.data() + payload.size(), length);
    const auto digits = static_cast<std::size_t>(after - payload.data());
    if (error != std::errc{} || length < digits + 3 || length > payload.size()) return false;
    if (payload[digits] != ' ' || payload[length - 1] != '\n') return false;
    const std::string_view record = payload.substr(digits + 1, length - digits - 2);
    payload.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos || equals == 0) return false;
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    // An empty value takes an attribute back.
    if (key == "path") {
      attributes.path.reset();
      if (!value.empty()) attributes.path.emplace(value);
    } else if (key == "size") {
      attributes.size_bytes.reset();
      if (value.empty()) continue;
      std::uint64_t bytes = 0;
      const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), bytes);
      if (fault != std::errc{} || end != value.data() + value.size()) return false;
      attributes.size_bytes = bytes;
    } else if (key.starts_with("GNU.sparse.") || key == "SCHILY.realsize") {
      attributes.sparse = true;
    }
  }
  return true;
}

// Bytes of a file by position. read() gives fewer than asked only at the end of the file or after a
// refusal.
struct FdBytes {
  int fd;
  std::uint64_t file_bytes;
  int read_errno = 0;

  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) noexcept {
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) read_errno = errno;
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }
};
struct MemoryBytes {
  std::span<const std::byte> all;
  std::uint64_t file_bytes;
  int read_errno = 0;

  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) const noexcept {
    if (offset >= all.size()) return 0;
    const std::size_t got = std::min(bytes, all.size() - static_cast<std::size_t>(offset));
    std::memcpy(to, all.data() + offset, got);
    return got;
  }
};

template <typename Bytes>
class Indexer {
 public:
  explicit Indexer(Bytes bytes) noexcept : bytes_(bytes) {}

  TarIndex run() {
    std::uint64_t offset = 0;
    while (const std::optional<std::uint64_t> next = step(offset)) offset = *next;
    return std::move(index_);
  }

 private:
  // Handles what begins at `offset`; returns where the next header belongs, or nothing at the
  // archive's end.
  std::optional<std::uint64_t> step(std::uint64_t offset) {
    if (offset >= bytes_.file_bytes) {
      if (extension_offset_) {
        report(*extension_offset_, TarReason::kCutShort,
               "the file ends before the member that this extension header belongs to: fetch it "
               "again");
      }
      return std::nullopt;
    }
    Block block{};
    if (!block_at(offset, block)) {
      // Cut inside the closing zeros: no header began here.
      if (bytes_.read_errno == 0 && is_zero(block)) return std::nullopt;
      return stop_reading(offset);
    }
    if (is_zero(block)) return step_zero(offset);
    if (const std::optional<std::string> fault = header_fault(block)) return search(offset, *fault);
    return step_header(offset, block);
  }

  std::optional<std::uint64_t> step_zero(std::uint64_t offset) {
    Block next;
    const std::uint64_t next_offset = offset + kTarBlockBytes;
    if (!block_at(next_offset, next)) return std::nullopt;
    if (is_zero(next) || header_fault(next)) return std::nullopt;
    report(offset, TarReason::kDamagedHeader, "a single block of zeros where a header belongs");
    return next_offset;
  }

  std::optional<std::uint64_t> step_header(std::uint64_t offset, const Block& block) {
    const char type = block[kTypeOffset];
    const std::uint64_t header_size = *number(field(block, kSize));
    const std::uint64_t after_header = offset + kTarBlockBytes;
    switch (type) {
      case 'x':
      case 'X':
      case 'g':
      case 'L':
      case 'K':
        return step_extension(offset, type, header_size);
      default:
        break;
    }
    const Attributes next = std::exchange(next_, {});
    extension_offset_.reset();
    const std::optional<std::string> long_name = std::exchange(long_name_, std::nullopt);
    std::string name = next.path      ? *next.path
                       : long_name    ? *long_name
                       : global_.path ? *global_.path
                                      : name_in_header(block);
    const bool pax_size = next.size_bytes || global_.size_bytes;
    const std::uint64_t size = next.size_bytes      ? *next.size_bytes
                               : global_.size_bytes ? *global_.size_bytes
                                                    : header_size;
    switch (type) {
      case '0':
      case '\0':
      case '7':                     // contiguous: a file
        if (name.ends_with('/')) {  // v7 has no type for directories
          ++index_.directory_count;
          return after_payload(offset, after_header, size);
        }
        if (next.sparse || global_.sparse) return sparse(offset, after_header, size, name);
        return step_file(offset, after_header, size, std::move(name));
      case '5':
        ++index_.directory_count;  // a size here is a quota, no data follow
        return after_header;
      case '1':
        ++index_.link_count;
        // Only pax lets data follow a hard link; other writers leave the size of the file it is
        // linked to.
        if (size == 0 || (!pax_size && begins_header_or_end(after_header))) return after_header;
        return after_payload(offset, after_header, size);
      case '2':
        ++index_.link_count;
        return after_header;
      case '3':
      case '4':
      case '6':
        ++index_.other_count;
        return after_header;
      case 'S': {
        std::uint64_t data_offset = after_header;
        bool more = block[kSparseMoreOffset] != '\0';
        while (more) {
          Block map;
          if (!block_at(data_offset, map)) return cut_short(offset, name, size, data_offset);
          more = map[kSparseExtensionMoreOffset] != '\0';
          data_offset += kTarBlockBytes;
        }
        return sparse(offset, data_offset, size, name);
      }
      default:
        ++index_.other_count;
        return after_payload(offset, after_header, size);
    }
  }

  std::optional<std::uint64_t> step_file(std::uint64_t offset, std::uint64_t data_offset,
                                         std::uint64_t size, std::string name) {
    if (size > bytes_.file_bytes - data_offset) return cut_short(offset, name, size, data_offset);
    if (name.empty()) {
      report(offset, TarReason::kNameless,
             fmt::format("a member of {} bytes has no name: skipped; pack the tar again", size));
      return end_of(data_offset, size);
    }
    TarMember member{.name = std::move(name), .data_offset = data_offset, .data_bytes = size};
    if (size >= 4) read_with_next_header(data_offset + size - 4, member.last_bytes);
    index_.members.push_back(std::move(member));
    return end_of(data_offset, size);
  }

  std::optional<std::uint64_t> step_extension(std::uint64_t offset, char type, std::uint64_t size) {
    const std::uint64_t data_offset = offset + kTarBlockBytes;
    if (size > bytes_.file_bytes - std::min(bytes_.file_bytes, data_offset)) {
      return cut_short(offset, "the extension header", size, data_offset);
    }
    if (type != 'g') extension_offset_ = offset;
    if (type == 'K') return end_of(data_offset, size);
    if (size > kExtensionBytesMax) {
      report(offset, TarReason::kDamagedExtension,
             fmt::format("an extension header of {} bytes, more than {}: skipped", size,
                         kExtensionBytesMax));
      return end_of(data_offset, size);
    }
    payload_.resize(static_cast<std::size_t>(size));
    if (bytes_.read(data_offset, payload_.data(), payload_.size()) < payload_.size()) {
      return stop_reading(offset);
    }
    if (type == 'L') {
      long_name_ = payload_.substr(0, payload_.find('\0'));
    } else if (!read_pax(payload_, type == 'g' ? global_ : next_)) {
      report(offset, TarReason::kDamagedExtension,
             fmt::format("a pax header of {} bytes with an invalid record", size));
    }
    return end_of(data_offset, size);
  }

  // A member that is passed over. Its payload may end past the file's end: then nothing is lost but
  // the archive's end.
  std::optional<std::uint64_t> after_payload(std::uint64_t offset, std::uint64_t data_offset,
                                             std::uint64_t size) {
    if (size > bytes_.file_bytes - std::min(bytes_.file_bytes, data_offset)) {
      return cut_short(offset, "a skipped member", size, data_offset);
    }
    return end_of(data_offset, size);
  }

  std::optional<std::uint64_t> sparse(std::uint64_t offset, std::uint64_t data_offset,
                                      std::uint64_t size, const std::string& name) {
    report(offset, TarReason::kSparseMember,
           fmt::format("member {} is stored sparse: skipped; pack it without --sparse", name));
    return after_payload(offset, data_offset, size);
  }

  std::optional<std::uint64_t> cut_short(std::uint64_t offset, const std::string& what,
                                         std::uint64_t size, std::uint64_t data_offset) {
    const std::uint64_t there = bytes_.file_bytes - std::min(bytes_.file_bytes, data_offset);
    report(offset, TarReason::kCutShort,
           fmt::format("{} has {} bytes, but the file ends after {} of them: fetch the file again",
                       what, size, there));
    return std::nullopt;
  }

  // A header that cannot be read: refused by the system, or the file is shorter than a block there.
  std::optional<std::uint64_t> stop_reading(std::uint64_t offset) {
    if (bytes_.read_errno != 0) {
      report(offset, TarReason::kUnreadable,
             fmt::format("the system refused to read further: {}",
                         strerrordesc_np(bytes_.read_errno)));
    } else {
      report(offset, TarReason::kCutShort,
             fmt::format("the file of {} bytes ends inside a header: fetch the file again",
                         bytes_.file_bytes));
    }
    return std::nullopt;
  }

  // Looks block by block for the next header. Bytes of a payload pass the checksum by accident
  // about never: they would have to spell their own sum in octal.
  std::optional<std::uint64_t> search(std::uint64_t offset, const std::string& fault) {
    // What an extension said was meant for the header that is lost.
    next_ = {};
    long_name_.reset();
    extension_offset_.reset();
    std::vector<Block> blocks(kSearchBlocks);
    for (std::uint64_t at = offset + kTarBlockBytes; at < bytes_.file_bytes;
         at += kSearchBlocks * kTarBlockBytes) {
      const std::size_t got =
          bytes_.read(at, blocks.front().data(), blocks.size() * kTarBlockBytes);
      for (std::size_t i = 0; i < got / kTarBlockBytes; ++i) {
        if (is_zero(blocks[i]) || header_fault(blocks[i])) continue;
        const std::uint64_t found = at + i * kTarBlockBytes;
        report(offset, TarReason::kDamagedHeader,
               fmt::format("{}; the next header is at byte {}", fault, found));
        return found;
      }
      if (bytes_.read_errno != 0) return stop_reading(at);
    }
    report(offset, TarReason::kDamagedHeader, fmt::format("{}; no header follows", fault));
    return std::nullopt;
  }

  static std::uint64_t end_of(std::uint64_t data_offset, std::uint64_t size) noexcept {
    return data_offset + (size + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes;
  }

  bool begins_header_or_end(std::uint64_t offset) {
    Block block;
    if (!block_at(offset, block)) return true;
    return is_zero(block) || !header_fault(block);
  }

  // The last four bytes of a member and the header after it lie within a kilobyte: one read serves
  // both.
  void read_with_next_header(std::uint64_t offset, std::array<std::byte, 4>& last_bytes) {
    near_offset_ = offset;
    near_bytes_ = bytes_.read(offset, near_.data(), near_.size());
    if (near_bytes_ >= last_bytes.size()) {
      std::memcpy(last_bytes.data(), near_.data(), last_bytes.size());
    }
  }

  bool block_at(std::uint64_t offset, Block& block) {
    const bool near = offset >= near_offset_ && near_bytes_ >= kTarBlockBytes &&
                      offset - near_offset_ <= near_bytes_ - kTarBlockBytes;
    if (near) {
      std::memcpy(block.data(), near_.data() + (offset - near_offset_), block.size());
      return true;
    }
    return bytes_.read(offset, block.data(), block.size()) == block.size();
  }

  void report(std::uint64_t offset, TarReason reason, std::string text) {
    ++index_.problem_count;
    if (index_.problems.size() < kTarProblemsKept) {
      index_.problems.push_back({.offset = offset, .reason = reason, .text = std::move(text)});
    }
  }

  Bytes bytes_;
  TarIndex index_;
  Attributes global_;
  Attributes next_;
  std::optional<std::string> long_name_;
  // The last x, X, L or K header whose member has not come yet.
  std::optional<std::uint64_t> extension_offset_;
  std::string payload_;
  std::array<char, 4 + 2 * kTarBlockBytes> near_;
  std::uint64_t near_offset_ = 0;
  std::size_t near_bytes_ = 0;
};

}  // namespace

const char* tar_reason_name(TarReason reason) noexcept {
  switch (reason) {
    case TarReason::kDamagedHeader:
      return "damaged_header";
    case TarReason::kDamagedExtension:
      return "damaged_extension";
    case TarReason::kCutShort:
      return "cut_short";
    case TarReason::kSparseMember:
      return "sparse_member";
    case TarReason::kNameless:
      return "nameless_member";
    case TarReason::kUnreadable:
      return "unreadable";
  }
  return "unknown";
}

Result<TarIndex> index_tar(int fd) noexcept {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return Error{ErrorCode::kIo, fmt::format("descriptor {}: the size of the tar is unknown: {}",
                                             fd, strerrordesc_np(errno))};
  }
  if (!S_ISREG(status.st_mode)) {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("descriptor {}: a tar is read by position, but this is not a regular file",
                    fd)};
  }
  return Indexer(FdBytes{.fd = fd, .file_bytes = static_cast<std::uint64_t>(status.st_size)}).run();
}

TarIndex index_tar(std::span<const std::byte> tar) noexcept {
  return Indexer(MemoryBytes{.all = tar, .file_bytes = tar.size()}).run();
}

MemberUse member_use(std::string_view member_name) noexcept {
  const std::size_t slash = member_name.rfind('/');
  const std::string_view base =
      slash == std::string_view::npos ? member_name : member_name.substr(slash + 1);
  if (base.empty() || base == "LICENSE" || base.starts_with("._")) return MemberUse::kNotAChunk;
  return base.ends_with(".gz") ? MemberUse::kGzipChunk : MemberUse::kRawChunk;
}

}  // namespace ringfeed::formats
