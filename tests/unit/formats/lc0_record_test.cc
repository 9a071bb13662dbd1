#include "workers/formats/lc0_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/lc0_sample.h"

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

TEST(ChunkCheck, RefusesByNameTheVersionsThatAreNotReadHere) {
  for (const std::uint32_t version : {3U, 4U, 5U, 7U}) {
    const ChunkCheck check = check_chunk(chunk_of(version, 1, 3, frame_bytes_of_version(version)));
    EXPECT_EQ(check.reason, ChunkReason::kUnsupportedVersion) << version;
    EXPECT_THAT(chunk_check_text(check), HasSubstr("version " + std::to_string(version)));
  }
}

// 2089 records of 8308 bytes have the length of whole records of version 6: a reader that goes by
// length alone takes them.
TEST(ChunkCheck, GoesByTheVersionWhereTheLengthFitsAnother) {
  const Bytes chunk = chunk_of(5, 1, 2089, kV5RecordBytes);
  ASSERT_EQ(chunk.size() % kV6RecordBytes, 0U);
  EXPECT_EQ(check_chunk(chunk).reason, ChunkReason::kUnsupportedVersion);
}

TEST(ChunkCheck, RefusesOtherInputFormats) {
  for (const std::uint32_t format : {0U, 2U, 3U, 4U, 5U, 132U, 133U, 99U}) {
    EXPECT_EQ(check_chunk(chunk_of(6, format, 2, kV6RecordBytes)).reason,
              ChunkReason::kUnsupportedInputFormat)
        << format;
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
