#include "workers/lc0/lc0_record.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

static_assert(std::endian::native == std::endian::little, "records are read as they lie");

namespace {

std::uint32_t load_u32(const std::byte* at) noexcept {
  std::uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Versions 3 and 4 have no input_format, so what lies behind it lies four bytes further up.
constexpr std::size_t kInputFormatBytes = 4;

bool has_input_format(std::uint32_t version) noexcept { return version >= 5; }

// The game's result as versions 3 to 5 have it.
int old_result(const std::byte* record, std::uint32_t version) noexcept {
  const std::size_t at = v6::kInvarianceInfo + 1;
  return static_cast<std::int8_t>(record[has_input_format(version) ? at : at - kInputFormatBytes]);
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
    case ChunkReason::kUnsupportedInputFormat:
      return "unsupported_input_format";
    case ChunkReason::kMixedRecords:
      return "mixed_records";
    case ChunkReason::kWrongResult:
      return "wrong_result";
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
  check.frame_bytes = frame_bytes_of_version(check.version);
  if (check.frame_bytes == 0) return refused(ChunkReason::kWrongVersion);
  if (chunk.size() % check.frame_bytes != 0) return refused(ChunkReason::kWrongSize);
  const bool formatted = has_input_format(check.version);
  check.input_format = formatted ? load_u32(chunk.data() + v6::kInputFormat)
                                 : std::uint32_t{input_format::kClassical};
  if (!input_format_known(check.input_format)) {
    return refused(ChunkReason::kUnsupportedInputFormat);
  }
  const std::size_t same_bytes = formatted ? 8 : 4;
  for (std::size_t offset = 0; offset < chunk.size(); offset += check.frame_bytes) {
    check.frame_offset = offset;
    const std::byte* record = chunk.data() + offset;
    if (std::memcmp(record, chunk.data(), same_bytes) != 0) {
      return refused(ChunkReason::kMixedRecords);
    }
    if (check.version >= 6) continue;
    const int result = old_result(record, check.version);
    if (result < -1 || result > 1) return refused(ChunkReason::kWrongResult);
  }
  check.frame_offset = 0;
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
          "truncated or damaged; fetch it again",
          check.chunk_bytes, check.version, check.frame_bytes,
          check.chunk_bytes % check.frame_bytes);
    case ChunkReason::kWrongVersion:
      return fmt::format(
          "it begins with {}, which is not a record version (3 to 7): not training data",
          check.version);
    case ChunkReason::kUnsupportedInputFormat:
      return fmt::format(
          "input_format {} is not 1 to 5, 132 or 133: not training data, or from a newer engine",
          check.input_format);
    case ChunkReason::kMixedRecords:
      return fmt::format(
          "the record at byte {} does not have version {} and input_format {} like the first one: "
          "damaged; fetch it again",
          check.frame_offset, check.version, check.input_format);
    case ChunkReason::kWrongResult:
      return fmt::format(
          "the record of version {} at byte {} has a result that is not -1, 0 or 1: damaged; fetch "
          "it again",
          check.version, check.frame_offset);
  }
  return "unknown reason";
}

bool input_format_known(std::uint32_t format) noexcept {
  return (format >= input_format::kClassical && format <= input_format::kCanonicalV2) ||
         format == input_format::kHectopliesArmageddon ||
         format == input_format::kCanonicalV2Armageddon;
}

std::uint32_t upgraded_version(std::uint32_t version) noexcept {
  if (frame_bytes_of_version(version) == 0) return 0;
  return version < 6 ? 6 : version;
}

void upgrade_record(const std::byte* record, std::uint32_t version, std::byte* to) noexcept {
  RF_CHECK(version >= 3 && version <= 5, version);
  const std::size_t bytes = frame_bytes_of_version(version);
  std::memset(to, 0, kV6RecordBytes);
  if (has_input_format(version)) {
    std::memcpy(to, record, bytes);
  } else {
    std::memcpy(to + v6::kInputFormat, &input_format::kClassical, sizeof(std::uint32_t));
    std::memcpy(to + v6::kPolicy, record + v6::kPolicy - kInputFormatBytes,
                bytes - (v6::kPolicy - kInputFormatBytes));
  }
  constexpr std::uint32_t kVersion = 6;
  std::memcpy(to + v6::kVersion, &kVersion, sizeof kVersion);
  to[v6::kInvarianceInfo + 1] = std::byte{0};
  const auto put = [to](std::size_t offset, float value) {
    std::memcpy(to + offset, &value, sizeof value);
  };
  const int result = old_result(record, version);
  put(v6::kResultQ, static_cast<float>(result));
  put(v6::kResultD, result == 0 ? 1.0F : 0.0F);
  for (const std::size_t offset : {v6::kOrigQ, v6::kOrigD, v6::kOrigM}) {
    put(offset, std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace ringfeed::formats
