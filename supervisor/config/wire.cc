#include "supervisor/config/wire.h"

#include <cstring>
#include <limits>

namespace ringfeed::config {

std::optional<WireField> WireReader::next() {
  if (at_end() || damaged_) return std::nullopt;
  begin_ = next_;
  WireField field;
  field.offset = begin_;
  const std::uint64_t key = varint();
  if (key > std::numeric_limits<std::uint32_t>::max() || key >> 3 == 0) damaged_ = true;
  field.number = static_cast<int>(key >> 3 & 0x1FFFFFFF);
  field.type = static_cast<WireType>(key & 7);
  switch (field.type) {
    case WireType::kVarint:
      field.value = varint();
      break;
    case WireType::kFixed64:
      field.value = fixed(8);
      break;
    case WireType::kFixed32:
      field.value = fixed(4);
      break;
    case WireType::kLength:
      field.bytes = take(varint());
      break;
    default:  // groups, which nothing here has
      damaged_ = true;
  }
  if (damaged_) return std::nullopt;
  return field;
}

std::uint64_t WireReader::varint() {
  constexpr unsigned kLastShift = 63;
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift <= kLastShift; shift += 7) {
    const std::string_view byte = take(1);
    if (damaged_) return 0;
    const auto bits = static_cast<std::uint8_t>(byte[0]);
    if (shift == kLastShift && bits > 1) break;
    value |= static_cast<std::uint64_t>(bits & 0x7F) << shift;
    if (bits < 0x80) return value;
  }
  damaged_ = true;
  return 0;
}

std::string_view WireReader::take(std::uint64_t count) {
  if (damaged_ || count > all_.size() - next_) {
    damaged_ = true;
    return {};
  }
  const std::string_view taken = all_.substr(next_, static_cast<std::size_t>(count));
  next_ += taken.size();
  return taken;
}

std::uint64_t WireReader::fixed(std::size_t bytes) {
  const std::string_view taken = take(bytes);
  std::uint64_t value = 0;
  // little-endian, as the machine is. Nothing was taken where bytes lack.
  if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
  return value;
}

}  // namespace ringfeed::config
