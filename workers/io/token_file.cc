#include "workers/io/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "ringfeed/shm/segment.h"

namespace ringfeed::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

using std::string_view_literals::operator""sv;

constexpr std::string_view kMappedMagic = "MMIDIDX\0\0"sv;
constexpr std::string_view kLegacyMagic = "TNTIDX\0\0"sv;
constexpr std::string_view kHuffmanMagic = "HUFFIDX\0"sv;
constexpr std::uint64_t kMappedHead = 26;
constexpr std::uint64_t kMegatronHead = 34;
constexpr std::uint64_t kMappedEntry = 4 + 8;
constexpr std::uint64_t kLegacyHead = 48;
constexpr std::uint64_t kVersion = 1;
// At once, so that what has been read of a large file is given to others in between.
constexpr std::uint64_t kWarmUpBytes = std::uint64_t{64} << 20;

template <typename T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

Error damaged(std::string text) { return {ErrorCode::kDamaged, std::move(text)}; }

bool is_code(std::uint64_t code) noexcept {
  return (code >= 1 && code <= 5) || (code >= 8 && code <= 10);
}

// Bytes as they would be written: "4d 4d 49".
std::string hex(const std::byte* bytes, std::uint64_t count) {
  std::string text;
  for (std::uint64_t i = 0; i < count; ++i) {
    text += fmt::format("{}{:02x}", i == 0 ? "" : " ", std::to_integer<unsigned>(bytes[i]));
  }
  return text;
}

template <typename Stored, typename Token>
void convert(const std::byte* __restrict from, Token* __restrict to, std::size_t count,
             bool minus_one) noexcept {
  using Bits = std::make_unsigned_t<Token>;
  const Bits less = minus_one ? 1 : 0;
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = static_cast<Token>(static_cast<Bits>(load<Stored>(from + i * sizeof(Stored))) - less);
  }
}

}  // namespace

const char* token_code_name(TokenCode code) noexcept {
  switch (code) {
    case TokenCode::kUint8:
      return "uint8";
    case TokenCode::kInt8:
      return "int8";
    case TokenCode::kInt16:
      return "int16";
    case TokenCode::kInt32:
      return "int32";
    case TokenCode::kInt64:
      return "int64";
    case TokenCode::kUint16:
      return "uint16";
    case TokenCode::kUint32:
      return "uint32";
    case TokenCode::kUint64:
      return "uint64";
  }
  return "unknown";
}

TokenFile::TokenFile(TokenFile&& other) noexcept { swap(other); }

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  TokenFile taken(std::move(other));
  swap(taken);
  return *this;
}

TokenFile::~TokenFile() {
  for (const Map& map : {index_, data_}) {
    if (map.data != nullptr) ::munmap(const_cast<std::byte*>(map.data), map.bytes);
  }
}

void TokenFile::swap(TokenFile& other) noexcept {
  std::swap(index_, other.index_);
  std::swap(data_, other.data_);
  std::swap(kind_, other.kind_);
  std::swap(code_, other.code_);
  std::swap(token_bytes_, other.token_bytes_);
  std::swap(sentences_, other.sentences_);
  std::swap(documents_, other.documents_);
  std::swap(size_entries_, other.size_entries_);
  std::swap(size_places_, other.size_places_);
  std::swap(sizes_, other.sizes_);
  std::swap(data_places_, other.data_places_);
}

// ---- opening

Result<TokenFile::Map> TokenFile::map(const std::string& path) {
  // Not blocking: a pipe that nobody writes to is not waited for.
  const shm::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return damaged(fmt::format(
          "{}: there is no such file; a token file is a pair PREFIX.bin and PREFIX.idx", path));
    }
    return Error(ErrorCode::kIo, fmt::format("{}: cannot be opened: {}; check who may read it",
                                             path, std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return Error(ErrorCode::kIo,
                 fmt::format("{}: cannot be examined: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return damaged(fmt::format(
        "{}: it is not a regular file, and only those can be mapped; put a file there", path));
  }
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes == 0) return Map{};
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return Error(ErrorCode::kIo,
                 fmt::format("{}: its {} bytes cannot be mapped: {}; see ulimit -v and the number "
                             "of mappings (vm.max_map_count)",
                             path, bytes, std::strerror(errno)));
  }
  return Map{static_cast<const std::byte*>(memory), bytes};
}

Status TokenFile::take_code(const std::string& path, std::uint64_t offset, std::uint64_t code) {
  if (!is_code(code)) {
    return damaged(
        fmt::format("{}: offset {}: the code of the token type is {}{}; 1 to 5 and 8 to 10 are "
                    "supported: binarize the text again",
                    path, offset, code, code == 6 || code == 7 ? ", floating-point numbers" : ""));
  }
  code_ = static_cast<TokenCode>(code);
  token_bytes_ = token_bytes(code_);
  return {};
}

Status TokenFile::read_mapped_header(const std::string& path) {
  const std::uint64_t bytes = index_.bytes;
  if (bytes < kMappedHead) {
    return damaged(
        fmt::format("{}: offset {}: it ends within its header of {} bytes: it has been truncated; "
                    "copy it again",
                    path, bytes, kMappedHead));
  }
  if (index_.data[8] != std::byte{0}) {
    return damaged(
        fmt::format("{}: offset 8: the byte after \"MMIDIDX\" and a zero is {}, but must be zero: "
                    "it is damaged; copy it again",
                    path, std::to_integer<unsigned>(index_.data[8])));
  }
  const auto version = load<std::uint64_t>(index_.data + 9);
  if (version != kVersion) {
    return damaged(
        fmt::format("{}: offset 9: it has version {}, but only version {} is supported: binarize "
                    "the text again",
                    path, version, kVersion));
  }
  const Status code = take_code(path, 17, load<std::uint8_t>(index_.data + 17));
  if (!code) return code;
  const auto count = load<std::uint64_t>(index_.data + 18);
  // By division, so that nothing overflows whatever the file says.
  if ((bytes - kMappedHead) / kMappedEntry == count && (bytes - kMappedHead) % kMappedEntry == 0) {
    kind_ = Kind::kMapped;
    sizes_ = index_.data + kMappedHead;
  } else if (bytes >= kMegatronHead && count <= (bytes - kMegatronHead) / kMappedEntry &&
             (bytes - kMegatronHead - count * kMappedEntry) % 8 == 0 &&
             (bytes - kMegatronHead - count * kMappedEntry) / 8 ==
                 load<std::uint64_t>(index_.data + kMappedHead)) {
    kind_ = Kind::kMegatron;
    documents_ = load<std::uint64_t>(index_.data + kMappedHead);
    sizes_ = index_.data + kMegatronHead;
  } else {
    return damaged(fmt::format(
        "{}: offset 18: it claims {} sentences, which take {} + {} for each, but the file has {} "
        "bytes: it has been truncated or is still being written; copy it again",
        path, count, kMappedHead, kMappedEntry, bytes));
  }
  sentences_ = count;
  data_places_ = sizes_ + 4 * count;
  return {};
}

Status TokenFile::read_legacy_header(const std::string& path) {
  const std::uint64_t bytes = index_.bytes;
  if (bytes < kLegacyHead) {
    return damaged(
        fmt::format("{}: offset {}: it ends within its header of {} bytes: it has been truncated; "
                    "copy it again",
                    path, bytes, kLegacyHead));
  }
  const auto version = load<std::uint64_t>(index_.data + 8);
  if (version != kVersion) {
    return damaged(
        fmt::format("{}: offset 8: it has version {}, but only version {} is supported: binarize "
                    "the text again",
                    path, version, kVersion));
  }
  const Status code = take_code(path, 16, load<std::uint64_t>(index_.data + 16));
  if (!code) return code;
  const auto id_bytes = load<std::uint64_t>(index_.data + 24);
  if (id_bytes != token_bytes_) {
    return damaged(
        fmt::format("{}: offset 24: it claims that an id takes {} bytes, but one of type {} takes "
                    "{}: it is damaged; binarize the text again",
                    path, id_bytes, token_code_name(code_), token_bytes_));
  }
  const auto count = load<std::uint64_t>(index_.data + 32);
  const auto size_entries = load<std::uint64_t>(index_.data + 40);
  const std::uint64_t entries = (bytes - kLegacyHead) / 8;
  if ((bytes - kLegacyHead) % 8 != 0 || count >= entries || entries - count < 2 ||
      entries - count - 2 < count || entries - count - 2 - count != size_entries) {
    return damaged(
        fmt::format("{}: offset 32: it claims {} sentences and {} sizes, which take {} + 16 for "
                    "each sentence + 8 for each size, but the file has {} bytes: it has been "
                    "truncated or is still being written; copy it again",
                    path, count, size_entries, kLegacyHead + 16, bytes));
  }
  kind_ = Kind::kLegacy;
  sentences_ = count;
  size_entries_ = size_entries;
  size_places_ = index_.data + kLegacyHead;
  data_places_ = size_places_ + 8 * (count + 1);
  sizes_ = data_places_ + 8 * (count + 1);
  return {};
}

Result<TokenFile> TokenFile::open(const std::string& prefix) {
  const std::string path = prefix + ".idx";
  struct stat info {};
  if (::stat(prefix.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    return damaged(fmt::format(
        "{}: a file without .bin or .idx is raw text, which is not supported: binarize it "
        "(fairseq-preprocess without --dataset-impl raw), or move it away from {}",
        prefix, path));
  }
  TokenFile file;
  Result<Map> index = map(path);
  if (!index) return index.error();
  file.index_ = *index;
  const std::string_view head(
      reinterpret_cast<const char*>(file.index_.data),
      static_cast<std::size_t>(std::min<std::uint64_t>(file.index_.bytes, kHuffmanMagic.size())));
  Status status;
  if (head == kMappedMagic.substr(0, 8)) {
    status = file.read_mapped_header(path);
  } else if (head == kLegacyMagic) {
    status = file.read_legacy_header(path);
  } else if (head == kHuffmanMagic) {
    status =
        damaged(fmt::format("{}: offset 0: it is Huffman-coded (HUFFIDX), which is not supported: "
                            "binarize the text again with --dataset-impl mmap",
                            path));
  } else {
    status =
        damaged(fmt::format("{}: offset 0: it is not the index of a token file: it {}; MMIDIDX and "
                            "TNTIDX are supported: copy it again, or binarize the text again",
                            path,
                            head.empty() ? std::string("is empty")
                                         : "begins with " + hex(file.index_.data, head.size())));
  }
  if (!status) return status.error();

  const std::string data_path = prefix + ".bin";
  // Of nothing there may be nothing: writers leave an empty file, copies of empty files get lost.
  if (file.sentences_ == 0 && ::stat(data_path.c_str(), &info) != 0 && errno == ENOENT) return file;
  Result<Map> data = map(data_path);
  if (!data) return data.error();
  file.data_ = *data;
  return file;
}

// ---- looking

void TokenFile::sizes(std::uint64_t first, std::span<std::uint32_t> out) const noexcept {
  RF_CHECK(first <= sentences_ && out.size() <= sentences_ - first, first, out.size(), sentences_);
  if (kind_ == Kind::kLegacy) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::uint32_t>(std::clamp<std::int64_t>(
          size_of(first + i), 0, std::numeric_limits<std::uint32_t>::max()));
    }
    return;
  }
  const std::byte* __restrict from = sizes_ + 4 * first;
  std::uint32_t* __restrict to = out.data();
  for (std::size_t i = 0; i < out.size(); ++i) {
    to[i] = static_cast<std::uint32_t>(std::max(load<std::int32_t>(from + 4 * i), 0));
  }
}

void TokenFile::warm_up() const noexcept {
  for (const Map& map : {index_, data_}) {
    for (std::uint64_t at = 0; at < map.bytes; at += kWarmUpBytes) {
      // It fails where the file has become shorter, and where the kernel is older than 5.14: then
      // the file is read later, when it is needed.
      if (::madvise(const_cast<std::byte*>(map.data) + at, std::min(kWarmUpBytes, map.bytes - at),
                    MADV_POPULATE_READ) != 0) {
        ::madvise(const_cast<std::byte*>(map.data), map.bytes, MADV_WILLNEED);
        break;
      }
    }
  }
}

template <typename Token>
void read_tokens(const TokenFile& file, SentenceBytes sentence, std::span<Token> out) noexcept {
  RF_CHECK(out.size() == sentence.tokens, out.size(), sentence.tokens);
  const bool minus_one = file.kind() == TokenFile::Kind::kLegacy;
  const std::byte* const from = sentence.data;
  Token* const to = out.data();
  const std::size_t count = out.size();
  switch (file.code()) {
    case TokenCode::kUint8:
      return convert<std::uint8_t>(from, to, count, minus_one);
    case TokenCode::kInt8:
      return convert<std::int8_t>(from, to, count, minus_one);
    case TokenCode::kInt16:
      return convert<std::int16_t>(from, to, count, minus_one);
    case TokenCode::kInt32:
      return convert<std::int32_t>(from, to, count, minus_one);
    case TokenCode::kInt64:
      return convert<std::int64_t>(from, to, count, minus_one);
    case TokenCode::kUint16:
      return convert<std::uint16_t>(from, to, count, minus_one);
    case TokenCode::kUint32:
      return convert<std::uint32_t>(from, to, count, minus_one);
    case TokenCode::kUint64:
      return convert<std::uint64_t>(from, to, count, minus_one);
  }
}

template void read_tokens<std::int64_t>(const TokenFile&, SentenceBytes,
                                        std::span<std::int64_t>) noexcept;
template void read_tokens<std::int32_t>(const TokenFile&, SentenceBytes,
                                        std::span<std::int32_t>) noexcept;

}  // namespace ringfeed::formats
