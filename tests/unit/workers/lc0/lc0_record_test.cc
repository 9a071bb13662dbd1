#include "workers/lc0/lc0_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/rig/lc0_sample.h"

namespace ringfeed::formats {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;

Bytes chunk_of(std::uint32_t version, std::uint32_t input_format, std::size_t frames,
               std::size_t frame_bytes) {
  Bytes chunk(frames * frame_bytes);
  for (std::size_t i = 0; i < frames; ++i) {
    std::memcpy(chunk.data() + i * frame_bytes, &version, 4);
    std::memcpy(chunk.data() + i * frame_bytes + 4, &input_format, 4);
  }
  return chunk;
}

TEST(RecordSizes, AreThoseOfEachVersion) {
  EXPECT_EQ(frame_bytes_of_version(3), 8276U);
  EXPECT_EQ(frame_bytes_of_version(4), 8292U);
  EXPECT_EQ(frame_bytes_of_version(5), 8308U);
  EXPECT_EQ(frame_bytes_of_version(6), 8356U);
  EXPECT_EQ(frame_bytes_of_version(7), 8396U);
  for (const std::uint32_t version : {0U, 1U, 2U, 8U, 70U, 170U, 0xFFFFFFFFU}) {
    EXPECT_EQ(frame_bytes_of_version(version), 0U) << version;
  }
}

TEST(ChunkCheck, CountsTheFramesOfRealGames) {
  for (const testing::SampleGame& game : testing::kSampleGames) {
    const ChunkCheck check = check_chunk(testing::sample_records(game));
    EXPECT_TRUE(check.usable()) << game.name << ": " << chunk_check_text(check);
    EXPECT_EQ(check.frame_count, game.frame_count) << game.name;
    EXPECT_EQ(check.frame_bytes, kV6RecordBytes);
    EXPECT_EQ(check.input_format, 1U);
  }
}

TEST(ChunkCheck, AcceptsOneFrame) {
  EXPECT_EQ(check_chunk(chunk_of(6, 1, 1, kV6RecordBytes)).frame_count, 1U);
}

TEST(ChunkCheck, RefusesAnEmptyChunk) { EXPECT_EQ(check_chunk({}).reason, ChunkReason::kEmpty); }

TEST(ChunkCheck, RefusesEveryLengthThatIsNotWholeRecords) {
  Bytes chunk = chunk_of(6, 1, 2, kV6RecordBytes);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{7}, std::size_t{8},
                                  kV6RecordBytes - 1, kV6RecordBytes + 1, 2 * kV6RecordBytes - 1}) {
    const ChunkCheck check = check_chunk(std::span(chunk).first(bytes));
    EXPECT_EQ(check.reason, ChunkReason::kWrongSize) << bytes;
    EXPECT_EQ(check.frame_count, 0U);
    EXPECT_THAT(chunk_check_text(check), HasSubstr(std::to_string(bytes)));
  }
}

TEST(ChunkCheck, RefusesBytesThatNameNoVersion) {
  for (const std::uint32_t version : {0U, 1U, 8U, 70U, 0x8B1FU}) {
    EXPECT_EQ(check_chunk(chunk_of(version, 1, 1, kV6RecordBytes)).reason,
              ChunkReason::kWrongVersion)
        << version;
  }
}

TEST(ChunkCheck, AcceptsEveryVersionByItsFirstBytesAndItsSize) {
  for (const std::uint32_t version : {3U, 4U, 5U, 6U, 7U}) {
    const ChunkCheck check = check_chunk(chunk_of(version, 1, 3, frame_bytes_of_version(version)));
    EXPECT_TRUE(check.usable()) << chunk_check_text(check);
    EXPECT_EQ(check.version, version);
    EXPECT_EQ(check.frame_count, 3U);
    EXPECT_EQ(check.input_format, 1U);
  }
}

// 2089 records of 8308 bytes have the length of whole records of version 6: a reader that goes by
// length alone takes them for these.
TEST(ChunkCheck, GoesByTheVersionWhereTheLengthFitsAnother) {
  const Bytes chunk = chunk_of(5, 1, 2089, kV5RecordBytes);
  ASSERT_EQ(chunk.size() % kV6RecordBytes, 0U);
  EXPECT_EQ(check_chunk(chunk).frame_count, 2089U);
}

TEST(ChunkCheck, KnowsTheInputFormats) {
  for (const std::uint32_t format : {1U, 2U, 3U, 4U, 5U, 132U, 133U}) {
    EXPECT_TRUE(check_chunk(chunk_of(6, format, 2, kV6RecordBytes)).usable()) << format;
  }
  for (const std::uint32_t format : {0U, 6U, 99U, 131U, 134U, 0xFFFFFFFFU}) {
    const ChunkCheck check = check_chunk(chunk_of(6, format, 2, kV6RecordBytes));
    EXPECT_EQ(check.reason, ChunkReason::kUnsupportedInputFormat) << format;
    EXPECT_THAT(chunk_check_text(check), HasSubstr(std::to_string(format)));
  }
  // Versions 3 and 4 have none: what lies there is the first policy entry.
  EXPECT_EQ(check_chunk(chunk_of(4, 99, 2, kV4RecordBytes)).input_format, 1U);
}

// The result of versions 3 to 5 as an int8.
void put_result(Bytes& chunk, std::uint32_t version, std::size_t record, int result) {
  chunk[record * frame_bytes_of_version(version) + (version == 5 ? 8279 : 8275)] =
      static_cast<std::byte>(result);
}

TEST(ChunkCheck, RefusesAnOldResultThatIsNone) {
  for (const std::uint32_t version : {3U, 4U, 5U}) {
    Bytes chunk = chunk_of(version, 1, 3, frame_bytes_of_version(version));
    for (const int result : {-1, 0, 1}) {
      put_result(chunk, version, 2, result);
      EXPECT_TRUE(check_chunk(chunk).usable()) << version << " " << result;
    }
    put_result(chunk, version, 2, 2);
    const ChunkCheck check = check_chunk(chunk);
    EXPECT_EQ(check.reason, ChunkReason::kWrongResult) << version;
    EXPECT_EQ(check.frame_offset, 2 * frame_bytes_of_version(version));
    EXPECT_THAT(chunk_check_text(check), HasSubstr("not -1, 0 or 1"));
  }
}

template <typename T>
T at(const Bytes& record, std::size_t offset) {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof value);
  return value;
}

// Every byte of an old record is told from every other, and found where version 6 has it.
TEST(UpgradeRecord, PutsEveryFieldWhereVersion6HasIt) {
  for (const std::uint32_t version : {3U, 4U, 5U}) {
    Bytes old(frame_bytes_of_version(version));
    for (std::size_t i = 4; i < old.size(); ++i) old[i] = static_cast<std::byte>(i * 7 + i / 256);
    std::memcpy(old.data(), &version, 4);
    const std::size_t shift = version == 5 ? 0 : 4;  // the missing input_format
    if (version == 5) old[4] = std::byte{3};
    for (const int result : {-1, 0, 1}) {
      put_result(old, version, 0, result);
      Bytes record(kV6RecordBytes, std::byte{0xA5});
      upgrade_record(old.data(), version, record.data());
      EXPECT_EQ(at<std::uint32_t>(record, v6::kVersion), 6U);
      EXPECT_EQ(at<std::uint32_t>(record, v6::kInputFormat),
                version == 5 ? at<std::uint32_t>(old, 4) : 1U);
      const std::size_t same_end = version == 3 ? 8280 : version == 4 ? 8296 : 8308;
      for (std::size_t i = v6::kPolicy; i < same_end; ++i) {
        if (i == v6::kInvarianceInfo + 1) continue;
        ASSERT_EQ(record[i], old[i - shift]) << "version " << version << ", byte " << i;
      }
      EXPECT_EQ(record[v6::kInvarianceInfo + 1], std::byte{0});
      EXPECT_EQ(at<float>(record, v6::kResultQ), static_cast<float>(result));
      EXPECT_EQ(at<float>(record, v6::kResultD), result == 0 ? 1.0F : 0.0F);
      for (const std::size_t offset : {v6::kOrigQ, v6::kOrigD, v6::kOrigM}) {
        EXPECT_EQ(at<std::uint32_t>(record, offset), 0x7FC00000U);
      }
      for (std::size_t i = same_end; i < kV6RecordBytes; ++i) {
        const bool set =
            (i >= v6::kResultQ && i < v6::kPlayedQ) || (i >= v6::kOrigQ && i < v6::kVisits);
        if (set) continue;
        ASSERT_EQ(record[i], std::byte{0}) << "version " << version << ", byte " << i;
      }
    }
  }
}

TEST(ChunkCheck, RefusesALaterRecordOfAnotherKind) {
  for (const std::size_t changed : {std::size_t{0}, std::size_t{4}}) {
    Bytes chunk = chunk_of(6, 1, 3, kV6RecordBytes);
    chunk[2 * kV6RecordBytes + changed] = std::byte{7};
    const ChunkCheck check = check_chunk(chunk);
    EXPECT_EQ(check.reason, ChunkReason::kMixedRecords);
    EXPECT_EQ(check.frame_offset, 2 * kV6RecordBytes);
  }
}

}  // namespace
}  // namespace ringfeed::formats
