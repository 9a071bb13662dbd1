// The specification of workers/io/row_batch.h.
#include "workers/io/row_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

namespace ringfeed::formats {
namespace {

constexpr std::string_view kPath = "/data/part-7.parquet";
constexpr RowBatchHead kHead{.first_row = 1000,
                             .rows = 3,
                             .columns = 5,
                             .file = 7,
                             .epoch = 2,
                             .path_bytes = static_cast<std::uint32_t>(kPath.size()),
                             .reserved = 0};

// Three rows: a text with a gap, an integer with a gap, a number, nothing, no column.
std::vector<std::byte> three_rows() {
  const std::uint64_t bytes = RowBatchWriter::head_bytes(kHead.columns, kPath.size()) +
                              RowBatchWriter::column_bytes(ColumnKind::kText, true, 3, 5) +
                              RowBatchWriter::column_bytes(ColumnKind::kInteger, true, 3, 0) +
                              RowBatchWriter::column_bytes(ColumnKind::kNumber, false, 3, 0);
  std::vector<std::byte> record(bytes, std::byte{0xee});
  RowBatchWriter writer(record, kHead, kPath);
  const RowBatchWriter::Column text = writer.add(ColumnKind::kText, true, 5);
  const std::array<std::uint32_t, 4> offsets = {0, 2, 2, 5};
  std::copy(offsets.begin(), offsets.end(), text.offsets.begin());
  std::memcpy(text.text, "abcde", 5);
  text.given[0] = text.given[2] = 1;
  text.given[1] = 0;
  const RowBatchWriter::Column integer = writer.add(ColumnKind::kInteger, true, 0);
  integer.integers[0] = -5;
  integer.integers[1] = 0;
  integer.integers[2] = std::numeric_limits<std::int64_t>::max();
  integer.given[0] = integer.given[2] = 1;
  integer.given[1] = 0;
  const RowBatchWriter::Column number = writer.add(ColumnKind::kNumber, false, 0);
  number.numbers[0] = 0.25;
  number.numbers[1] = std::numeric_limits<double>::quiet_NaN();
  number.numbers[2] = -1;
  static_cast<void>(writer.add(ColumnKind::kMissing, false, 0));
  static_cast<void>(writer.add(ColumnKind::kAbsent, false, 0));
  EXPECT_EQ(writer.bytes(), bytes);
  return record;
}

TEST(RowBatch, GivesWhatWasWritten) {
  const std::vector<std::byte> record = three_rows();
  RowBatch batch;
  ASSERT_TRUE(batch.read(record));
  EXPECT_EQ(batch.rows(), 3U);
  EXPECT_EQ(batch.head().first_row, 1000U);
  EXPECT_EQ(batch.head().file, 7U);
  EXPECT_EQ(batch.head().epoch, 2U);
  EXPECT_EQ(batch.path(), kPath);
  EXPECT_EQ(batch.text(0, 0), "ab");
  EXPECT_EQ(batch.text(0, 1), std::nullopt);
  EXPECT_EQ(batch.text(0, 2), "cde");
  EXPECT_EQ(batch.integer(1, 0), -5);
  EXPECT_EQ(batch.integer(1, 1), std::nullopt);
  EXPECT_EQ(batch.integer(1, 2), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(batch.number(1, 0), -5);
  EXPECT_TRUE(std::isnan(batch.number(1, 1)));
  EXPECT_EQ(batch.number(2, 0), 0.25);
  EXPECT_TRUE(std::isnan(batch.number(2, 1)));
  EXPECT_EQ(batch.number(2, 2), -1);
  EXPECT_EQ(batch.kind(3), ColumnKind::kMissing);
  EXPECT_EQ(batch.kind(4), ColumnKind::kAbsent);
  EXPECT_EQ(batch.kind(5), ColumnKind::kAbsent);
}

TEST(RowBatch, OfAnotherKindIsNoValue) {
  const std::vector<std::byte> record = three_rows();
  RowBatch batch;
  ASSERT_TRUE(batch.read(record));
  EXPECT_EQ(batch.text(1, 0), std::nullopt);
  EXPECT_EQ(batch.text(3, 0), std::nullopt);
  EXPECT_EQ(batch.text(9, 0), std::nullopt);
  EXPECT_EQ(batch.integer(0, 0), std::nullopt);
  EXPECT_EQ(batch.integer(2, 0), std::nullopt);
  EXPECT_TRUE(std::isnan(batch.number(0, 0)));
  EXPECT_TRUE(std::isnan(batch.number(4, 0)));
}

TEST(RowBatch, IsTheSameBytesWhateverWasThereBefore) {
  EXPECT_EQ(three_rows(), three_rows());
  std::vector<std::byte> again(three_rows().size(), std::byte{0x11});
  RowBatchWriter writer(again,
                        {.first_row = 0,
                         .rows = 0,
                         .columns = 1,
                         .file = 0,
                         .epoch = 0,
                         .path_bytes = 1,
                         .reserved = 0},
                        "p");
  static_cast<void>(writer.add(ColumnKind::kText, true, 0));
  RowBatch batch;
  ASSERT_TRUE(batch.read(std::span(again).first(writer.bytes())));
  EXPECT_EQ(batch.rows(), 0U);
  EXPECT_EQ(batch.path(), "p");
}

TEST(RowBatch, ThatEndsTooEarlyIsNone) {
  const std::vector<std::byte> record = three_rows();
  for (std::size_t bytes = 0; bytes < record.size(); ++bytes) {
    // A copy of its own, so that a sanitizer sees what is read behind its end.
    const std::unique_ptr<std::byte[]> part(new std::byte[bytes]);
    std::copy_n(record.begin(), bytes, part.get());
    RowBatch batch;
    EXPECT_FALSE(batch.read({part.get(), bytes})) << bytes;
  }
}

TEST(RowBatch, IsNeverReadOutsideOfItsRecord) {
  const std::vector<std::byte> record = three_rows();
  std::mt19937_64 random(1);
  std::uint64_t taken = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::size_t bytes = record.size() - (round % 3 == 0 ? random() % 16 : 0);
    const std::unique_ptr<std::byte[]> made(new std::byte[bytes]);
    std::copy_n(record.begin(), bytes, made.get());
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      made[random() % bytes] =
          random() % 2 == 0 ? std::byte{0xff} : static_cast<std::byte>(random() % 256);
    }
    RowBatch batch;
    if (!batch.read({made.get(), bytes})) continue;
    ++taken;
    std::uint64_t sum = batch.path().size();
    for (const char c : batch.path()) sum += static_cast<unsigned char>(c);
    for (std::uint32_t column = 0; column < std::min(batch.head().columns, 8U); ++column) {
      for (std::uint32_t row = 0; row < std::min(batch.rows(), 100U); ++row) {
        for (const char c : batch.text(column, row).value_or("")) {
          sum += static_cast<unsigned char>(c);
        }
        sum += static_cast<std::uint64_t>(batch.integer(column, row).value_or(0));
        sum += std::isnan(batch.number(column, row)) ? 1 : 0;
      }
    }
    volatile std::uint64_t kept = sum;
    static_cast<void>(kept);
  }
  EXPECT_GT(taken, 1000U);
}

}  // namespace
}  // namespace ringfeed::formats
