#include "workers/formats/lc0_record.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace ringfeed::formats {

static_assert(std::endian::native == std::endian::little, "records are read as they lie");

namespace {

std::uint32_t load_u32(const std::byte* at) noexcept {
  std::uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// What is read here. A new version or input format is accepted by this function, packed and
// expanded by its own branch in packed_frame.cc and lc0_tensors.cc, and nowhere else.
ChunkReason accepts(std::uint32_t version, std::uint32_t input_format) noexcept {
  if (version != 6) return ChunkReason::kUnsupportedVersion;
  if (input_format != 1) return ChunkReason::kUnsupportedInputFormat;
  return ChunkReason::kUsable;
}

}  // namespace

std::size_t frame_bytes_of_version(std::uint32_t version) noexcept {
  switch (version) {
    case 3:
      return kV3RecordBytes;
    case 4:
      return kV4RecordBytes;
    case 5:
      return kV5RecordBytes;
    case 6:
      return kV6RecordBytes;
    case 7:
      return kV7RecordBytes;
    default:
      return 0;
  }
}

const char* chunk_reason_name(ChunkReason reason) noexcept {
  switch (reason) {
    case ChunkReason::kUsable:
      return "usable";
    case ChunkReason::kEmpty:
      return "empty";
    case ChunkReason::kWrongSize:
      return "wrong_size";
    case ChunkReason::kWrongVersion:
      return "wrong_version";
    case ChunkReason::kUnsupportedVersion:
      return "unsupported_version";
    case ChunkReason::kUnsupportedInputFormat:
      return "unsupported_input_format";
    case ChunkReason::kMixedRecords:
      return "mixed_records";
  }
  return "unknown";
}

ChunkCheck check_chunk(std::span<const std::byte> chunk) noexcept {
  ChunkCheck check{.chunk_bytes = chunk.size()};
  const auto refused = [&check](ChunkReason reason) {
    check.reason = reason;
    return check;
  };
  if (chunk.empty()) return refused(ChunkReason::kEmpty);
  if (chunk.size() < 8) return refused(ChunkReason::kWrongSize);
  check.version = load_u32(chunk.data());
  // Versions 3 and 4 have no input_format: a policy entry lies there, and their size decides first.
  if (check.version >= 5) check.input_format = load_u32(chunk.data() + v6::kInputFormat);
  check.frame_bytes = frame_bytes_of_version(check.version);
  if (check.frame_bytes == 0) return refused(ChunkReason::kWrongVersion);
  if (chunk.size() % check.frame_bytes != 0) return refused(ChunkReason::kWrongSize);
  const ChunkReason first = accepts(check.version, check.input_format);
  if (first != ChunkReason::kUsable) return refused(first);
  for (std::size_t offset = 0; offset < chunk.size(); offset += check.frame_bytes) {
    if (std::memcmp(chunk.data() + offset, chunk.data(), 8) != 0) {
      check.frame_offset = offset;
      return refused(ChunkReason::kMixedRecords);
    }
  }
  check.frame_count = chunk.size() / check.frame_bytes;
  return refused(ChunkReason::kUsable);
}

std::string chunk_check_text(const ChunkCheck& check) {
  switch (check.reason) {
    case ChunkReason::kUsable:
      return fmt::format("{} records of version {}", check.frame_count, check.version);
    case ChunkReason::kEmpty:
      return "no bytes: the file or member is empty; remove it or fetch it again";
    case ChunkReason::kWrongSize:
      if (check.frame_bytes == 0) {
        return fmt::format("{} bytes are too few for one record; fetch it again",
                           check.chunk_bytes);
      }
      return fmt::format(
          "{} bytes are not a whole number of records of version {} ({} bytes each, {} too many): "
          "cut short or "
          "damaged; fetch it again",
          check.chunk_bytes, check.version, check.frame_bytes,
          check.chunk_bytes % check.frame_bytes);
    case ChunkReason::kWrongVersion:
      return fmt::format(
          "it begins with {}, which is no record version (3 to 7): not training data",
          check.version);
    case ChunkReason::kUnsupportedVersion:
      return fmt::format(
          "records of version {}; only version 6 is read: convert them with the engine's rescorer",
          check.version);
    case ChunkReason::kUnsupportedInputFormat:
      return fmt::format(
          "input_format {}; only 1 (classical 112 planes) is read: leave this run out",
          check.input_format);
    case ChunkReason::kMixedRecords:
      return fmt::format(
          "the record at byte {} is not of version {} and input_format {} as the first one is: "
          "damaged; fetch it again",
          check.frame_offset, check.version, check.input_format);
  }
  return "unknown reason";
}

}  // namespace ringfeed::formats
