// The fields of a serialized message one after the other, as they lie there: numbers, wire types
// and values, before any schema is asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ringfeed::config {

enum class WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

struct WireField {
  int number = 0;
  WireType type = WireType::kVarint;
  std::uint64_t value = 0;  // of a number, as it lies there
  std::string_view bytes;   // of kLength
  std::size_t offset = 0;   // where it begins, in bytes from the start of the message
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : all_(bytes) {}

  // nullopt at the end, and where the bytes are no message: then damaged().
  std::optional<WireField> next();
  // One number without a field's key: an element of a packed list.
  std::uint64_t varint();

  [[nodiscard]] bool damaged() const { return damaged_; }
  [[nodiscard]] bool at_end() const { return next_ >= all_.size(); }
  // Where the next field begins; after damage, where the field begins that is none.
  [[nodiscard]] std::size_t offset() const { return damaged_ ? begin_ : next_; }

 private:
  std::string_view take(std::uint64_t count);
  std::uint64_t fixed(std::size_t bytes);

  std::string_view all_;
  std::size_t next_ = 0;
  std::size_t begin_ = 0;  // of the field that was read last
  bool damaged_ = false;
};

}  // namespace ringfeed::config
