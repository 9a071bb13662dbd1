// A file of token ids with its index, PREFIX.bin and PREFIX.idx, mapped and read where it lies.
//
// Kinds: memory-mapped ("MMIDIDX"), of fairseq or of Megatron, whose index has the places of
// documents behind it; legacy ("TNTIDX"), whose ids are stored one higher. What is trusted is only
// what open() has compared with the files' lengths; where a sentence lies is checked whenever it is
// asked for. A file that is cut off while it is mapped kills who reads behind its new end (SIGBUS):
// new data belong into new files.
//
// Layouts, little-endian, nothing aligned. PREFIX.bin is the sentences' ids and nothing else;
// PREFIX.idx, of N sentences and D places of documents:
//
//   kMapped, kMegatron                        kLegacy
//   offset   size  content                    offset  size   content
//        0      9  "MMIDIDX", 0, 0                 0  8      "TNTIDX", 0, 0
//        9      8  version: 1                      8  8      version: 1
//       17      1  code                           16  8      code
//       18      8  N                              24  8      bytes of an id
//      (26      8  D, kMegatron only)             32  8      N
//   then     4*N   tokens of each sentence        40  8      S, entries of the sizes
//            8*N   its byte in PREFIX.bin         48  8*N+8  which size is the sentence's
//           (8*D   kMegatron only)                    8*N+8  its first id's number in PREFIX.bin
//                                                     8*S    sizes in tokens
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

// How token ids are stored: the codes of the index.
enum class TokenCode : std::uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8,
  kUint32 = 9,
  kUint64 = 10,
};
[[nodiscard]] constexpr std::uint32_t token_bytes(TokenCode code) noexcept {
  switch (code) {
    case TokenCode::kUint8:
    case TokenCode::kInt8:
      return 1;
    case TokenCode::kInt16:
    case TokenCode::kUint16:
      return 2;
    case TokenCode::kInt32:
    case TokenCode::kUint32:
      return 4;
    case TokenCode::kInt64:
    case TokenCode::kUint64:
      return 8;
  }
  return 1;
}
[[nodiscard]] const char* token_code_name(TokenCode code) noexcept;  // "uint16"

// Where a sentence lies.
struct SentenceBytes {
  const std::byte* data = nullptr;
  std::uint32_t tokens = 0;
};

class TokenFile {
 public:
  enum class Kind : std::uint8_t { kMapped, kMegatron, kLegacy };

  TokenFile() = default;
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;
  ~TokenFile();

  // Errors (text: which file, at which offset, what is wrong, what to do): kIo: cannot be opened or
  // mapped; kDamaged: no such file, or it contradicts itself.
  static Result<TokenFile> open(const std::string& prefix);

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] TokenCode code() const noexcept { return code_; }
  [[nodiscard]] std::uint64_t sentences() const noexcept { return sentences_; }
  // Of kMegatron; else 0.
  [[nodiscard]] std::uint64_t documents() const noexcept { return documents_; }
  // Of PREFIX.bin.
  [[nodiscard]] std::uint64_t data_bytes() const noexcept { return data_.bytes; }

  // Tokens of sentences first, first + 1, ..., `</s>` included, as the index says; a negative one
  // counts as 0. RF_CHECK: they are in the file.
  void sizes(std::uint64_t first, std::span<std::uint32_t> out) const noexcept;
  // nullopt: it lies outside of PREFIX.bin, or has a negative length. RF_CHECK: index <
  // sentences().
  [[nodiscard]] std::optional<SentenceBytes> sentence(std::uint64_t index) const noexcept;
  // Brings what sentence() will look at into the cache.
  void fetch(std::uint64_t index) const noexcept;

  // Asks the system to read the files into memory, and waits until it has.
  void warm_up() const noexcept;

 private:
  // A file as it is mapped; no bytes: nothing is.
  struct Map {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  static Result<Map> map(const std::string& path);
  Status read_mapped_header(const std::string& path);
  Status read_legacy_header(const std::string& path);
  Status take_code(const std::string& path, std::uint64_t offset, std::uint64_t code);
  template <typename T>
  static T load(const std::byte* at) noexcept {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  // Tokens of a sentence as the index says; negative: it says nonsense.
  [[nodiscard]] std::int64_t size_of(std::uint64_t index) const noexcept {
    if (kind_ != Kind::kLegacy) return load<std::int32_t>(sizes_ + 4 * index);
    const auto place = load<std::uint64_t>(size_places_ + 8 * index);
    return place < size_entries_ ? load<std::int64_t>(sizes_ + 8 * place) : -1;
  }
  void swap(TokenFile& other) noexcept;

  Map index_;
  Map data_;
  Kind kind_ = Kind::kMapped;
  TokenCode code_ = TokenCode::kUint16;
  std::uint32_t token_bytes_ = 2;
  std::uint64_t sentences_ = 0;
  std::uint64_t documents_ = 0;
  std::uint64_t size_entries_ = 0;          // kLegacy; else 0
  const std::byte* size_places_ = nullptr;  // kLegacy: which size is a sentence's
  const std::byte* sizes_ = nullptr;        // i32; kLegacy: i64
  const std::byte* data_places_ = nullptr;  // i64, bytes; kLegacy: ids
};

// Sentence to token ids, whatever the code and the kind. out.size() == sentence.tokens. An id that
// is no value of Token is cut to its bits. For std::int64_t and std::int32_t.
template <typename Token>
void read_tokens(const TokenFile& file, SentenceBytes sentence, std::span<Token> out) noexcept;

// Called for every sentence of every batch: to be seen by whoever calls them.

inline std::optional<SentenceBytes> TokenFile::sentence(std::uint64_t index) const noexcept {
  RF_CHECK(index < sentences_, index, sentences_);
  const std::int64_t size = size_of(index);
  const auto place = load<std::int64_t>(data_places_ + 8 * index);
  if (size < 0 || size > std::numeric_limits<std::uint32_t>::max() || place < 0) {
    return std::nullopt;
  }
  auto begin = static_cast<std::uint64_t>(place);
  if (kind_ == Kind::kLegacy) {
    // In ids first, so that no product overflows.
    if (begin > data_.bytes / token_bytes_) return std::nullopt;
    begin *= token_bytes_;
  }
  if (begin > data_.bytes) return std::nullopt;
  const std::uint64_t bytes = static_cast<std::uint64_t>(size) * token_bytes_;
  if (bytes > data_.bytes - begin) return std::nullopt;
  return SentenceBytes{data_.data + begin, static_cast<std::uint32_t>(size)};
}

inline void TokenFile::fetch(std::uint64_t index) const noexcept {
  if (index >= sentences_) return;
  if (kind_ == Kind::kLegacy) {
    __builtin_prefetch(size_places_ + 8 * index);
  } else {
    __builtin_prefetch(sizes_ + 4 * index);
  }
  __builtin_prefetch(data_places_ + 8 * index);
}

}  // namespace ringfeed::formats
