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
#include <deque>
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
constexpr Field kSparseRealSize{483, 12};
constexpr std::size_t kSparseMapOffset = 386;  // pairs of numbers of 12 bytes: where, bytes
constexpr std::size_t kSparseMapPairs = 4;
constexpr std::size_t kSparseExtensionMoreOffset = 504;  // and in such a block: another one follows
constexpr std::size_t kSparseExtensionPairs = 21;
// Pieces of a sparse member; a file that has been written at random places has some thousands.
constexpr std::size_t kSparsePiecesMax = std::size_t{1} << 20;

// Payloads of x, g, L and K are read into memory; no path or attribute list comes near this.
constexpr std::uint64_t kExtensionBytesMax = std::uint64_t{1} << 20;
constexpr std::size_t kSearchBlocks = 128;  // read at once while looking for the next header
// Nothing is that long: sums of what headers claim stay numbers.
constexpr std::uint64_t kTarBytesMax = std::uint64_t{1} << 62;

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

std::optional<std::uint64_t> decimal(std::string_view digits) noexcept {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// What pax records say about members: of the next one (x), or of all that follow (g).
struct Attributes {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size_bytes;
  // Of a sparse one: how its map is written (GNU.sparse.major; 0: in the records), its own name and
  // size, and the map of version 0, numbers that are offsets and lengths in turn.
  bool sparse = false;
  std::uint64_t sparse_major = 0;
  std::optional<std::string> sparse_name;
  std::optional<std::uint64_t> sparse_bytes;
  std::vector<std::uint64_t> sparse_map;
  bool sparse_damaged = false;
};

void read_sparse(std::string_view key, std::string_view value, Attributes& attributes) {
  attributes.sparse = true;
  const auto take = [&](std::string_view digits) {
    const std::optional<std::uint64_t> number = decimal(digits);
    if (!number || attributes.sparse_map.size() >= 2 * kSparsePiecesMax) {
      attributes.sparse_damaged = true;
      return std::uint64_t{0};
    }
    return *number;
  };
  if (key == "name") {
    attributes.sparse_name.emplace(value);
  } else if (key == "major") {
    attributes.sparse_major = take(value);
  } else if (key == "size" || key == "realsize") {
    attributes.sparse_bytes = take(value);
  } else if (key == "offset" || key == "numbytes") {
    attributes.sparse_map.push_back(take(value));
  } else if (key == "map") {
    while (!value.empty() && !attributes.sparse_damaged) {
      const std::size_t comma = std::min(value.find(','), value.size());
      attributes.sparse_map.push_back(take(value.substr(0, comma)));
      value.remove_prefix(std::min(comma + 1, value.size()));
    }
  }
}

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
    constexpr std::string_view kSparse = "GNU.sparse.";
    // An empty value takes an attribute back.
    if (key == "path") {
      attributes.path.reset();
      if (!value.empty()) attributes.path.emplace(value);
    } else if (key == "size") {
      attributes.size_bytes.reset();
      if (value.empty()) continue;
      attributes.size_bytes = decimal(value);
      if (!attributes.size_bytes) return false;
    } else if (key.starts_with(kSparse)) {
      read_sparse(key.substr(kSparse.size()), value, attributes);
    } else if (key == "SCHILY.realsize") {
      // star's own kind, whose map is written as in no other.
      attributes.sparse = attributes.sparse_damaged = true;
    }
  }
  return true;
}

}  // namespace

// Bytes of a tar by position. read() gives fewer than asked only at the end of the file or after a
// refusal, which `refusal` says. Reads go forward, but for the last 64 KiB.
class TarBytes {
 public:
  TarBytes() = default;
  TarBytes(const TarBytes&) = delete;
  TarBytes& operator=(const TarBytes&) = delete;
  virtual ~TarBytes() = default;
  virtual std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) noexcept = 0;

  // ~0: not known before the end has been met.
  std::uint64_t file_bytes = ~std::uint64_t{0};
  std::optional<Error> refusal = {};
};

namespace {

class FdBytes final : public TarBytes {
 public:
  FdBytes(int fd, std::uint64_t bytes) : fd_(fd) { file_bytes = bytes; }

  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) noexcept override {
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::pread(fd_, to + done, bytes - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refusal = Error{ErrorCode::kIo, strerrordesc_np(errno)};
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  int fd_;
};

class MemoryBytes final : public TarBytes {
 public:
  explicit MemoryBytes(std::span<const std::byte> all) : all_(all) { file_bytes = all.size(); }

  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) noexcept override {
    if (offset >= all_.size()) return 0;
    const std::size_t got = std::min(bytes, all_.size() - static_cast<std::size_t>(offset));
    std::memcpy(to, all_.data() + offset, got);
    return got;
  }

 private:
  std::span<const std::byte> all_;
};

// Keeps what it read last, for those that look ahead.
class StreamBytes final : public TarBytes {
 public:
  explicit StreamBytes(std::unique_ptr<ByteStream> stream)
      : stream_(std::move(stream)), window_(2 * kPieceBytes) {}

  [[nodiscard]] const ByteStream& stream() const noexcept { return *stream_; }

  std::size_t read(std::uint64_t offset, char* to, std::size_t bytes) noexcept override {
    RF_CHECK(offset >= begin_, offset, begin_);
    std::size_t done = 0;
    while (done < bytes) {
      const std::uint64_t skipped = offset + done - begin_;
      if (skipped >= have_) {
        if (!advance()) break;
        continue;
      }
      const std::size_t some = std::min<std::uint64_t>(bytes - done, have_ - skipped);
      std::memcpy(to + done, window_.data() + skipped, some);
      done += some;
    }
    return done;
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

  // The window moves on by a piece. False: there is nothing more.
  bool advance() noexcept {
    if (over_) return false;
    if (have_ == window_.size()) {
      std::memcpy(window_.data(), window_.data() + kPieceBytes, kPieceBytes);
      begin_ += kPieceBytes;
      have_ -= kPieceBytes;
    }
    const std::size_t before = have_;
    while (have_ < window_.size()) {
      const Result<std::size_t> got =
          stream_->read(std::as_writable_bytes(std::span(window_).subspan(have_)));
      if (!got) refusal = got.error();
      over_ = !got || *got == 0;
      if (over_) break;
      have_ += *got;
    }
    if (over_ && !refusal) file_bytes = begin_ + have_;
    return have_ != before;
  }

  std::unique_ptr<ByteStream> stream_;
  std::vector<char> window_;
  std::uint64_t begin_ = 0;  // of the window, in the tar
  std::size_t have_ = 0;     // bytes in it
  bool over_ = false;
};

}  // namespace

// Goes from header to header.
class TarSteps {
 public:
  // `last_bytes`: of members they are wanted.
  TarSteps(TarBytes& bytes, bool last_bytes) noexcept : bytes_(bytes), last_bytes_(last_bytes) {}

  // Nothing: the end, or a refusal of the bytes.
  std::optional<TarEntry> next() {
    while (found_.empty()) {
      if (!at_) return std::nullopt;
      at_ = step(*at_);
    }
    TarEntry entry = std::move(found_.front());
    found_.pop_front();
    return entry;
  }

 private:
  // Handles what begins at `offset`; returns where the next header belongs, or nothing at the
  // file's end.
  std::optional<std::uint64_t> step(std::uint64_t offset) {
    Block block{};
    const std::size_t got =
        offset < bytes_.file_bytes ? bytes_.read(offset, block.data(), block.size()) : 0;
    if (bytes_.refusal) return std::nullopt;
    if (got == 0) {
      end(offset);
      return std::nullopt;
    }
    // Cut inside the closing zeros: no header began here.
    if (got < block.size() && is_zero(block)) return std::nullopt;
    if (got < block.size()) return stop_reading(offset);
    if (is_zero(block)) return step_zero(offset);
    if (const std::optional<std::string> fault = header_fault(block)) {
      return search(offset, *fault, block);
    }
    return step_header(offset, block);
  }

  // The file ends where a header would begin, or before.
  void end(std::uint64_t offset) {
    if (extension_offset_) {
      report(*extension_offset_, TarReason::kCutShort,
             "the file ends before the member that this extension header belongs to: fetch it "
             "again");
    }
    // Of a packed file it is not known before.
    if (offset > bytes_.file_bytes && last_end_ > bytes_.file_bytes) {
      static_cast<void>(cut_short(last_offset_, last_name_, last_bytes_of_, last_data_offset_));
    }
  }

  // Zeros end an archive; another one may follow.
  std::optional<std::uint64_t> step_zero(std::uint64_t offset) {
    std::vector<Block> blocks(kSearchBlocks);
    for (std::uint64_t at = offset + kTarBlockBytes;; at += kSearchBlocks * kTarBlockBytes) {
      blocks.assign(kSearchBlocks, Block{});
      const std::size_t got =
          bytes_.read(at, blocks.front().data(), kSearchBlocks * kTarBlockBytes);
      if (bytes_.refusal) return std::nullopt;
      const auto behind = std::ranges::find_if(blocks, [](const Block& b) { return !is_zero(b); });
      if (behind != blocks.end()) {
        const auto i = static_cast<std::size_t>(behind - blocks.begin());
        return step_behind_zeros(offset, at + i * kTarBlockBytes, *behind,
                                 (i + 1) * kTarBlockBytes <= got);
      }
      if (got < kSearchBlocks * kTarBlockBytes) return std::nullopt;
    }
  }

  std::optional<std::uint64_t> step_behind_zeros(std::uint64_t zeros, std::uint64_t offset,
                                                 const Block& block, bool whole) {
    const bool lone = offset == zeros + kTarBlockBytes;
    const bool header = whole && !header_fault(block);
    const std::optional<std::uint64_t> next = header  ? offset
                                              : whole ? find_header(offset + kTarBlockBytes)
                                                      : std::nullopt;
    if (bytes_.refusal) return std::nullopt;
    if (!lone && next) {
      ++archive_;
      global_ = {};
    }
    if (lone && header) {
      report(zeros, TarReason::kDamagedHeader, "a single block of zeros where a header belongs");
    } else if (!header && next) {
      report(lone ? zeros : offset, TarReason::kDamagedHeader,
             fmt::format("no header behind zeros; the next one is at byte {}", *next));
    } else if (!next) {
      report(offset, TarReason::kTrailing,
             "the archive has ended, and what lies behind it is none");
    }
    return next;
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
          put(TarEntry::Kind::kDirectory, offset, std::move(name));
          return after_payload(offset, after_header, size);
        }
        if (next.sparse || global_.sparse) {
          return step_sparse(offset, after_header, size, std::move(name),
                             next.sparse ? next : global_);
        }
        return step_file(offset, after_header, size, std::move(name));
      case '5':
        put(TarEntry::Kind::kDirectory, offset, std::move(name));
        return after_header;  // a size here is a quota, no data follow
      case '1':
        put(TarEntry::Kind::kLink, offset, std::move(name));
        // Only pax lets data follow a hard link; other writers leave the size of the file it is
        // linked to.
        if (size == 0 || (!pax_size && begins_header_or_end(after_header))) return after_header;
        return after_payload(offset, after_header, size);
      case '2':
        put(TarEntry::Kind::kLink, offset, std::move(name));
        return after_header;
      case '3':
      case '4':
      case '6':
        put(TarEntry::Kind::kOther, offset, std::move(name));
        return after_header;
      case 'S':
        return step_old_sparse(offset, block, size, std::move(name));
      default:
        put(TarEntry::Kind::kOther, offset, std::move(name));
        return after_payload(offset, after_header, size);
    }
  }

  std::optional<std::uint64_t> step_file(std::uint64_t offset, std::uint64_t data_offset,
                                         std::uint64_t size, std::string name) {
    if (is_beyond(data_offset, size)) return cut_short(offset, name, size, data_offset);
    if (name.empty()) {
      report(offset, TarReason::kNameless,
             fmt::format("a member of {} bytes has no name: skipped; pack the tar again", size));
      return after_payload(offset, data_offset, size);
    }
    TarMember member{.name = std::move(name), .data_offset = data_offset, .data_bytes = size};
    if (last_bytes_ && size >= 4) read_with_next_header(data_offset + size - 4, member.last_bytes);
    return put_member(offset, std::move(member), data_offset, size);
  }

  // A member whose data take these bytes of the file.
  std::optional<std::uint64_t> put_member(std::uint64_t offset, TarMember member,
                                          std::uint64_t data_offset, std::uint64_t stored) {
    last_offset_ = offset;
    last_name_ = member.name;
    last_data_offset_ = data_offset;
    last_bytes_of_ = stored;
    last_end_ = data_offset + stored;
    found_.push_back({.kind = TarEntry::Kind::kMember,
                      .offset = offset,
                      .archive = archive_,
                      .member = std::move(member)});
    return end_of(data_offset, stored);
  }

  // Pairs of numbers, where and how many, as the pieces of a member of `size` bytes of which
  // `stored` lie at `data_offset`. Empty: they cannot be that.
  static std::vector<TarPiece> pieces_of(std::span<const std::uint64_t> map, std::uint64_t size,
                                         std::uint64_t data_offset, std::uint64_t stored) {
    std::vector<TarPiece> pieces;
    std::uint64_t at = 0;
    std::uint64_t taken = 0;
    if (map.size() % 2 != 0) return {};
    for (std::size_t i = 0; i < map.size(); i += 2) {
      const std::uint64_t begin = map[i];
      const std::uint64_t bytes = map[i + 1];
      if (begin < at || begin > size || bytes > size - begin || bytes > stored - taken) return {};
      pieces.push_back({.at = begin, .data_offset = data_offset + taken, .bytes = bytes});
      at = begin + bytes;
      taken += bytes;
    }
    if (taken != stored) return {};
    // One that is a hole altogether has a piece without bytes.
    if (pieces.empty()) pieces.push_back({.at = 0, .data_offset = data_offset, .bytes = 0});
    return pieces;
  }

  std::optional<std::uint64_t> put_sparse(std::uint64_t offset, std::uint64_t data_offset,
                                          std::uint64_t stored, std::string name,
                                          std::uint64_t size, std::vector<TarPiece> pieces) {
    if (is_beyond(data_offset, stored)) return cut_short(offset, name, stored, data_offset);
    if (pieces.empty() || name.empty()) {
      report(offset, TarReason::kSparseMember,
             fmt::format("member {} is stored sparse, and where its holes are cannot be read: "
                         "skipped; pack it without --sparse",
                         name),
             name);
      return after_payload(offset, data_offset, stored);
    }
    TarMember member{.name = std::move(name), .data_offset = data_offset, .data_bytes = size};
    member.pieces = std::move(pieces);
    return put_member(offset, std::move(member), data_offset, stored);
  }

  // As pax has it: the map in the records, or before the data, in lines of decimal digits.
  std::optional<std::uint64_t> step_sparse(std::uint64_t offset, std::uint64_t data_offset,
                                           std::uint64_t stored, std::string name,
                                           Attributes attributes) {
    std::vector<std::uint64_t> map = std::move(attributes.sparse_map);
    bool right = !attributes.sparse_damaged && attributes.sparse_bytes;
    std::uint64_t map_bytes = 0;
    if (right && attributes.sparse_major == 1) {
      right = read_sparse_map(data_offset, stored, map, map_bytes);
      if (bytes_.refusal) return std::nullopt;
    } else if (attributes.sparse_major > 1) {
      right = false;
    }
    std::vector<TarPiece> pieces;
    if (right) {
      pieces =
          pieces_of(map, *attributes.sparse_bytes, data_offset + map_bytes, stored - map_bytes);
    }
    return put_sparse(offset, data_offset, stored, attributes.sparse_name.value_or(std::move(name)),
                      attributes.sparse_bytes.value_or(0), std::move(pieces));
  }

  bool read_sparse_map(std::uint64_t data_offset, std::uint64_t stored,
                       std::vector<std::uint64_t>& map, std::uint64_t& map_bytes) {
    map.clear();
    std::optional<std::uint64_t> count;
    std::string digits;
    while (!count || map.size() < 2 * *count) {
      Block block;
      if (map_bytes + block.size() > stored ||
          bytes_.read(data_offset + map_bytes, block.data(), block.size()) < block.size()) {
        return false;
      }
      map_bytes += block.size();
      for (const char c : block) {
        if (count && map.size() == 2 * *count) break;
        if (c != '\n') {
          digits += c;
          if (digits.size() > 20) return false;
          continue;
        }
        const std::optional<std::uint64_t> number = decimal(digits);
        digits.clear();
        if (!number || (!count && *number > kSparsePiecesMax)) return false;
        if (count) {
          map.push_back(*number);
        } else {
          count = number;
        }
      }
    }
    return true;
  }

  // As GNU's own format has it: the map in the header, and in blocks behind it.
  std::optional<std::uint64_t> step_old_sparse(std::uint64_t offset, const Block& block,
                                               std::uint64_t stored, std::string name) {
    std::vector<std::uint64_t> map;
    const auto read_pairs = [&map](const Block& from, std::size_t at, std::size_t pairs) {
      for (std::size_t i = 0; i < 2 * pairs; ++i) {
        const std::string_view digits = field(from, {at + 12 * i, 12});
        const std::optional<std::uint64_t> value = number(digits);
        // A pair of NULs is none.
        if (digits.front() == '\0' || !value) return;
        map.push_back(*value);
      }
    };
    const std::optional<std::uint64_t> size = number(field(block, kSparseRealSize));
    read_pairs(block, kSparseMapOffset, kSparseMapPairs);
    std::uint64_t data_offset = offset + kTarBlockBytes;
    bool more = block[kSparseMoreOffset] != '\0';
    while (more) {
      Block extension;
      if (!block_at(data_offset, extension)) {
        if (bytes_.refusal) return std::nullopt;
        return cut_short(offset, name, stored, data_offset);
      }
      if (map.size() < 2 * kSparsePiecesMax) read_pairs(extension, 0, kSparseExtensionPairs);
      more = extension[kSparseExtensionMoreOffset] != '\0';
      data_offset += kTarBlockBytes;
    }
    return put_sparse(offset, data_offset, stored, std::move(name), size.value_or(0),
                      size ? pieces_of(map, *size, data_offset, stored) : std::vector<TarPiece>());
  }

  std::optional<std::uint64_t> step_extension(std::uint64_t offset, char type, std::uint64_t size) {
    const std::uint64_t data_offset = offset + kTarBlockBytes;
    if (is_beyond(data_offset, size)) {
      return cut_short(offset, {}, size, data_offset);
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
      if (bytes_.refusal) return std::nullopt;
      return cut_short(offset, {}, size, data_offset);
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
    if (is_beyond(data_offset, size)) return cut_short(offset, {}, size, data_offset);
    return end_of(data_offset, size);
  }

  [[nodiscard]] bool is_beyond(std::uint64_t data_offset, std::uint64_t size) const noexcept {
    const std::uint64_t end = std::min(bytes_.file_bytes, kTarBytesMax);
    return size > end - std::min(end, data_offset);
  }

  std::optional<std::uint64_t> cut_short(std::uint64_t offset, const std::string& name,
                                         std::uint64_t size, std::uint64_t data_offset) {
    const bool known = bytes_.file_bytes != ~std::uint64_t{0};
    const std::uint64_t there = bytes_.file_bytes - std::min(bytes_.file_bytes, data_offset);
    report(offset, TarReason::kCutShort,
           fmt::format("{} has {} bytes, but the file ends {}: fetch the file again",
                       name.empty() ? "what is no member" : name, size,
                       known ? fmt::format("after {} of them", there) : "before"),
           name);
    return std::nullopt;
  }

  // The file is shorter than a block there.
  std::optional<std::uint64_t> stop_reading(std::uint64_t offset) {
    report(offset, TarReason::kCutShort,
           fmt::format("the file of {} bytes ends inside a header: fetch the file again",
                       bytes_.file_bytes));
    return std::nullopt;
  }

  // Looks block by block for the next header. Bytes of a payload pass the checksum by accident
  // about never: they would have to spell their own sum in octal.
  std::optional<std::uint64_t> search(std::uint64_t offset, const std::string& fault,
                                      const Block& block) {
    // What an extension said was meant for the header that is lost.
    next_ = {};
    long_name_.reset();
    extension_offset_.reset();
    const std::optional<std::uint64_t> found = find_header(offset + kTarBlockBytes);
    if (bytes_.refusal) return std::nullopt;
    report(offset, TarReason::kDamagedHeader,
           found ? fmt::format("{}; the next header is at byte {}", fault, *found)
                 : fmt::format("{}; no header follows", fault),
           hint(block));
    const std::optional<std::uint64_t> size = number(field(block, kSize));
    found_.back().problem.alone =
        found && size && *size < kTarBytesMax && *found == end_of(offset + kTarBlockBytes, *size);
    // It looks like the end of the archive.
    if (found && zeros_before_ >= 2) {
      ++archive_;
      global_ = {};
    }
    return found;
  }

  std::optional<std::uint64_t> find_header(std::uint64_t offset) {
    std::vector<Block> blocks(kSearchBlocks);
    zeros_before_ = 0;
    for (std::uint64_t at = offset;; at += kSearchBlocks * kTarBlockBytes) {
      const std::size_t got =
          bytes_.read(at, blocks.front().data(), blocks.size() * kTarBlockBytes);
      for (std::size_t i = 0; i < got / kTarBlockBytes; ++i) {
        if (is_zero(blocks[i])) {
          ++zeros_before_;
          continue;
        }
        if (!header_fault(blocks[i])) return at + i * kTarBlockBytes;
        zeros_before_ = 0;
      }
      if (got < blocks.size() * kTarBlockBytes) return std::nullopt;
    }
  }

  // The name in a damaged header, if it looks like one.
  static std::string hint(const Block& block) {
    std::string name = name_in_header(block);
    const bool plain = std::ranges::all_of(
        name, [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '\x7f'; });
    return plain ? name : std::string();
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

  void put(TarEntry::Kind kind, std::uint64_t offset, std::string name) {
    found_.push_back(
        {.kind = kind, .offset = offset, .archive = archive_, .member = {.name = std::move(name)}});
  }

  void report(std::uint64_t offset, TarReason reason, std::string text, std::string name = {}) {
    found_.push_back({.kind = TarEntry::Kind::kProblem,
                      .offset = offset,
                      .archive = archive_,
                      .problem = {.offset = offset,
                                  .reason = reason,
                                  .text = std::move(text),
                                  .name = std::move(name)}});
  }

  TarBytes& bytes_;
  bool last_bytes_;
  std::optional<std::uint64_t> at_ = 0;  // where the next header belongs
  std::deque<TarEntry> found_;
  std::uint32_t archive_ = 0;
  std::uint64_t zeros_before_ = 0;  // blocks, where find_header() has found one
  // Of the member that came last.
  std::uint64_t last_offset_ = 0;
  std::string last_name_;
  std::uint64_t last_data_offset_ = 0;
  std::uint64_t last_bytes_of_ = 0;
  std::uint64_t last_end_ = 0;
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

namespace {

TarIndex index_of(TarBytes& bytes) {
  TarIndex index;
  const auto report = [&index](TarProblem problem) {
    ++index.problem_count;
    if (index.problems.size() < kTarProblemsKept) index.problems.push_back(std::move(problem));
  };
  TarSteps steps(bytes, true);
  std::uint64_t end = 0;
  while (std::optional<TarEntry> entry = steps.next()) {
    end = entry->offset;
    switch (entry->kind) {
      case TarEntry::Kind::kMember:
        if (entry->member.pieces.empty()) {
          index.members.push_back(std::move(entry->member));
          break;
        }
        report({.offset = entry->offset,
                .reason = TarReason::kSparseMember,
                .text = fmt::format("member {} is stored sparse: skipped; pack it without --sparse",
                                    entry->member.name)});
        break;
      case TarEntry::Kind::kProblem:
        report(std::move(entry->problem));
        break;
      case TarEntry::Kind::kDirectory:
        ++index.directory_count;
        break;
      case TarEntry::Kind::kLink:
        ++index.link_count;
        break;
      case TarEntry::Kind::kOther:
        ++index.other_count;
        break;
    }
  }
  if (bytes.refusal) {
    report(
        {.offset = end,
         .reason = TarReason::kUnreadable,
         .text = fmt::format("the system refused to read further: {}", bytes.refusal->message())});
  }
  return index;
}

}  // namespace

TarWalk::TarWalk(int fd, std::uint64_t file_bytes)
    : bytes_(std::make_unique<FdBytes>(fd, file_bytes)),
      steps_(std::make_unique<TarSteps>(*bytes_, false)) {}
TarWalk::TarWalk(std::unique_ptr<ByteStream> stream)
    : bytes_(std::make_unique<StreamBytes>(std::move(stream))),
      steps_(std::make_unique<TarSteps>(*bytes_, false)) {}
TarWalk::~TarWalk() = default;

Result<std::optional<TarEntry>> TarWalk::next() {
  std::optional<TarEntry> entry = steps_->next();
  if (!entry && bytes_->refusal) return *bytes_->refusal;
  return entry;
}

Status TarWalk::read(const TarMember& member, std::vector<std::byte>& content) {
  // What a header claims takes no memory before it is there.
  constexpr std::uint64_t kGrowth = std::uint64_t{16} << 20;
  content.clear();
  const auto take = [&](std::uint64_t offset, std::uint64_t bytes) -> Status {
    while (bytes != 0) {
      const std::uint64_t some = std::min(bytes, kGrowth);
      const std::size_t before = content.size();
      content.resize(before + some);
      const std::size_t got =
          bytes_->read(offset, reinterpret_cast<char*>(content.data()) + before, some);
      if (bytes_->refusal) return *bytes_->refusal;
      if (got < some) {
        return Error{ErrorCode::kNotFound,
                     fmt::format("it ends in the middle of member '{}'", member.name)};
      }
      offset += some;
      bytes -= some;
    }
    return {};
  };
  if (member.pieces.empty()) return take(member.data_offset, member.data_bytes);
  for (const TarPiece& piece : member.pieces) {
    content.resize(piece.at);
    if (Status got = take(piece.data_offset, piece.bytes); !got) return got;
  }
  content.resize(member.data_bytes);
  return {};
}

const ByteStream* TarWalk::stream() const noexcept {
  const auto* const unpacked = dynamic_cast<const StreamBytes*>(bytes_.get());
  return unpacked == nullptr ? nullptr : &unpacked->stream();
}

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
    case TarReason::kTrailing:
      return "trailing";
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
  FdBytes bytes(fd, static_cast<std::uint64_t>(status.st_size));
  return index_of(bytes);
}

TarIndex index_tar(std::span<const std::byte> tar) noexcept {
  MemoryBytes bytes(tar);
  return index_of(bytes);
}

MemberUse member_use(std::string_view member_name) noexcept {
  const std::size_t slash = member_name.rfind('/');
  const std::string_view base =
      slash == std::string_view::npos ? member_name : member_name.substr(slash + 1);
  if (base.empty() || base == "LICENSE" || base.starts_with("._")) return MemberUse::kNotAChunk;
  return base.ends_with(".gz") ? MemberUse::kGzipChunk : MemberUse::kRawChunk;
}

}  // namespace ringfeed::formats
