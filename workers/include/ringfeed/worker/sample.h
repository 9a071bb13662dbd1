// A sample: an ordered set of named fields, each an array, bytes or text. The record type
// `samples`, for data of any kind.
//
// Nothing is parsed to look a field up. Little-endian, at most 4 GiB:
//   offset   size   field
//        0      4   bytes        of the whole sample, a multiple of 16
//        4      2   field_count  n, at most 256
//        6      2   version      1
//        8      8   zero
//       16   48 n   the fields, in their order, each:
//                     0    4   name_at     from the start of the sample
//                     4    2   name_bytes  1 to 255; UTF-8
//                     6    1   dtype       SampleDtype
//                     7    1   dims        0 to 8; 0 is a number, bytes or text
//                     8    4   data_at     a multiple of 16
//                    12    4   data_bytes  of an array: its product of shape and size of dtype
//                    16   32   shape       u32[8], row-major; zero behind `dims`
//   behind that     names, then data
//
// A stage passes on what it does not know. Where a sample came from is in the tags of its record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/result.h"

namespace ringfeed {

// The numbers are part of the layout.
enum class SampleDtype : std::uint8_t {
  kBytes = 0,
  kText = 1,  // UTF-8
  kBool = 2,
  kInt8 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUint8 = 7,
  kUint16 = 8,
  kUint32 = 9,
  kUint64 = 10,
  kFloat16 = 11,
  kBfloat16 = 12,
  kFloat32 = 13,
  kFloat64 = 14,
  kComplex64 = 15,
  kComplex128 = 16,
};

struct SampleDtypeFacts {
  std::string_view name;  // as NumPy has it; "bytes", "text"
  std::uint32_t bytes;    // of an element
};
inline constexpr std::array<SampleDtypeFacts, 17> kSampleDtypes = {{{"bytes", 1},
                                                                    {"text", 1},
                                                                    {"bool", 1},
                                                                    {"int8", 1},
                                                                    {"int16", 2},
                                                                    {"int32", 4},
                                                                    {"int64", 8},
                                                                    {"uint8", 1},
                                                                    {"uint16", 2},
                                                                    {"uint32", 4},
                                                                    {"uint64", 8},
                                                                    {"float16", 2},
                                                                    {"bfloat16", 2},
                                                                    {"float32", 4},
                                                                    {"float64", 8},
                                                                    {"complex64", 8},
                                                                    {"complex128", 16}}};

[[nodiscard]] constexpr std::string_view dtype_name(SampleDtype dtype) noexcept {
  return kSampleDtypes[static_cast<std::size_t>(dtype)].name;
}
[[nodiscard]] constexpr std::uint32_t dtype_bytes(SampleDtype dtype) noexcept {
  return kSampleDtypes[static_cast<std::size_t>(dtype)].bytes;
}
[[nodiscard]] constexpr bool is_array(SampleDtype dtype) noexcept {
  return dtype != SampleDtype::kBytes && dtype != SampleDtype::kText;
}
[[nodiscard]] constexpr std::optional<SampleDtype> dtype_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kSampleDtypes.size(); ++i) {
    if (kSampleDtypes[i].name == name) return static_cast<SampleDtype>(i);
  }
  return std::nullopt;
}

namespace sample {
inline constexpr std::size_t kAlignment = 16;
inline constexpr std::size_t kHeadBytes = 16;
inline constexpr std::size_t kFieldBytes = 48;
inline constexpr std::size_t kFieldsMax = 256;
inline constexpr std::size_t kNameBytesMax = 255;
inline constexpr std::size_t kDimsMax = 8;
inline constexpr std::uint16_t kVersion = 1;

struct Head {
  std::uint32_t bytes;
  std::uint16_t field_count;
  std::uint16_t version;
  std::uint64_t zero;
};
static_assert(sizeof(Head) == kHeadBytes);
struct Entry {
  std::uint32_t name_at;
  std::uint16_t name_bytes;
  std::uint8_t dtype;
  std::uint8_t dims;
  std::uint32_t data_at;
  std::uint32_t data_bytes;
  std::uint32_t shape[kDimsMax];
};
static_assert(sizeof(Entry) == kFieldBytes);
}  // namespace sample

// A field of a sample, or of one that is to be written. Views of its bytes.
struct SampleField {
  std::string_view name;
  SampleDtype dtype = SampleDtype::kBytes;
  std::span<const std::uint32_t> shape = {};  // empty: a number, bytes or text
  std::span<const std::byte> data = {};
};

// Bytes of the data that an array of this shape has; nothing beyond the layout's 4 GiB.
[[nodiscard]] inline std::optional<std::uint64_t> array_bytes(
    SampleDtype dtype, std::span<const std::uint32_t> shape) noexcept {
  constexpr std::uint64_t kMax = 0xffffffff;
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const std::uint32_t size : shape) {
    // Any size is 0: so is the whole, whatever the others are.
    if (size == 0) return 0;
  }
  for (const std::uint32_t size : shape) {
    bytes *= size;
    if (bytes > kMax) return std::nullopt;
  }
  return bytes;
}

// A sample to read. What contradicts itself is refused as a whole, and nothing outside of it is
// ever read.
class SampleView {
 public:
  [[nodiscard]] static std::optional<SampleView> open(std::span<const std::byte> bytes) noexcept {
    using namespace sample;
    Head head{};
    if (bytes.size() < kHeadBytes) return std::nullopt;
    std::memcpy(&head, bytes.data(), sizeof head);
    const std::size_t table = kHeadBytes + head.field_count * kFieldBytes;
    if (head.version != kVersion || head.field_count > kFieldsMax || head.bytes > bytes.size() ||
        head.bytes < table || head.bytes % kAlignment != 0) {
      return std::nullopt;
    }
    const SampleView view(bytes.first(head.bytes), head.field_count);
    for (std::size_t i = 0; i < view.size(); ++i) {
      if (!view.is_sound(view.entry(i), table)) return std::nullopt;
    }
    return view;
  }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

  // RF_CHECK: there is such a field.
  [[nodiscard]] SampleField operator[](std::size_t index) const noexcept {
    RF_CHECK(index < count_, index, count_);
    const sample::Entry& at = entry(index);
    return {.name = {reinterpret_cast<const char*>(bytes_.data()) + at.name_at, at.name_bytes},
            .dtype = static_cast<SampleDtype>(at.dtype),
            .shape = {at.shape, at.dims},
            .data = bytes_.subspan(at.data_at, at.data_bytes)};
  }
  // The first of this name.
  [[nodiscard]] std::optional<SampleField> find(std::string_view name) const noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      const sample::Entry& at = entry(i);
      if (at.name_bytes == name.size() &&
          std::memcmp(bytes_.data() + at.name_at, name.data(), name.size()) == 0) {
        return (*this)[i];
      }
    }
    return std::nullopt;
  }

 private:
  SampleView(std::span<const std::byte> bytes, std::size_t count) noexcept
      : bytes_(bytes), count_(count) {}

  // Records lie at multiples of 16 or more, so that entries may be read where they are.
  [[nodiscard]] const sample::Entry& entry(std::size_t index) const noexcept {
    return reinterpret_cast<const sample::Entry*>(bytes_.data() + sample::kHeadBytes)[index];
  }
  [[nodiscard]] bool is_sound(const sample::Entry& at, std::size_t table) const noexcept {
    using namespace sample;
    const auto inside = [&](std::uint64_t from, std::uint64_t bytes) {
      return from >= table && from <= bytes_.size() && bytes <= bytes_.size() - from;
    };
    if (at.dtype >= kSampleDtypes.size() || at.dims > kDimsMax || at.name_bytes == 0 ||
        at.name_bytes > kNameBytesMax || at.data_at % kAlignment != 0 ||
        !inside(at.name_at, at.name_bytes) || !inside(at.data_at, at.data_bytes)) {
      return false;
    }
    const auto dtype = static_cast<SampleDtype>(at.dtype);
    if (!is_array(dtype)) return at.dims == 0;
    if (at.dims == 0) return at.data_bytes == dtype_bytes(dtype);
    return array_bytes(dtype, {at.shape, at.dims}) == at.data_bytes;
  }

  std::span<const std::byte> bytes_;
  std::size_t count_;
};

// What a sample of these fields takes; nothing: the layout cannot hold it (too many fields, a name
// that is none, 4 GiB and more).
[[nodiscard]] inline std::optional<std::uint64_t> sample_bytes(
    std::span<const SampleField> fields) noexcept {
  using namespace sample;
  if (fields.size() > kFieldsMax) return std::nullopt;
  std::uint64_t names = 0;
  std::uint64_t data = 0;
  for (const SampleField& field : fields) {
    if (field.name.empty() || field.name.size() > kNameBytesMax || field.shape.size() > kDimsMax ||
        field.data.size() > 0xffffffff) {
      return std::nullopt;
    }
    names += field.name.size();
    data += shm::align_up(field.data.size(), kAlignment);
  }
  const std::uint64_t head = kHeadBytes + fields.size() * kFieldBytes + names;
  const std::uint64_t bytes = shm::align_up(head, kAlignment) + data;
  return bytes > 0xffffffff ? std::nullopt : std::optional(bytes);
}

// Writes a sample of these fields, sample_bytes() long, to a place aligned to 16. RF_CHECK: there
// is room, and each array has the bytes of its shape.
inline void write_sample(std::span<std::byte> room, std::span<const SampleField> fields) noexcept {
  using namespace sample;
  const std::optional<std::uint64_t> bytes = sample_bytes(fields);
  RF_CHECK(bytes && *bytes <= room.size(), room.size(), fields.size());
  const Head head{.bytes = static_cast<std::uint32_t>(*bytes),
                  .field_count = static_cast<std::uint16_t>(fields.size()),
                  .version = kVersion,
                  .zero = 0};
  std::memcpy(room.data(), &head, sizeof head);
  std::uint64_t name_at = kHeadBytes + fields.size() * kFieldBytes;
  std::uint64_t data_at = name_at;
  for (const SampleField& field : fields) data_at += field.name.size();
  // No byte of a record is left as it was: what comes out depends on what went in alone.
  const std::uint64_t names_end = data_at;
  data_at = shm::align_up(data_at, kAlignment);
  std::memset(room.data() + names_end, 0, data_at - names_end);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const SampleField& field = fields[i];
    RF_CHECK(!is_array(field.dtype) || array_bytes(field.dtype, field.shape) == field.data.size(),
             i, field.data.size());
    Entry entry{};
    entry.name_at = static_cast<std::uint32_t>(name_at);
    entry.name_bytes = static_cast<std::uint16_t>(field.name.size());
    entry.dtype = static_cast<std::uint8_t>(field.dtype);
    entry.dims = static_cast<std::uint8_t>(field.shape.size());
    entry.data_at = static_cast<std::uint32_t>(data_at);
    entry.data_bytes = static_cast<std::uint32_t>(field.data.size());
    for (std::size_t d = 0; d < field.shape.size(); ++d) entry.shape[d] = field.shape[d];
    std::memcpy(room.data() + kHeadBytes + i * kFieldBytes, &entry, sizeof entry);
    std::memcpy(room.data() + name_at, field.name.data(), field.name.size());
    name_at += field.name.size();
    if (!field.data.empty()) {
      std::memcpy(room.data() + data_at, field.data.data(), field.data.size());
    }
    const std::uint64_t end = data_at + field.data.size();
    data_at = shm::align_up(end, kAlignment);
    std::memset(room.data() + end, 0, data_at - end);
  }
}

}  // namespace ringfeed
