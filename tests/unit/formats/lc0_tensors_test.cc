#include "workers/formats/lc0_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/support/lc0_sample.h"
#include "tests/support/sha256.h"
#include "workers/formats/packed_frame.h"

namespace ringfeed::formats {
namespace {

using testing::Bytes;

constexpr std::uint32_t kUntouchedBits = 0xDEADBEEF;

// Tensors of some rows, 64-byte aligned, every float a mark; one row more than asked stands behind
// each.
class Batch {
 public:
  explicit Batch(std::size_t rows)
      : rows_(rows),
        planes_(allocate(kPlanesRowFloats)),
        policy_(allocate(kPolicyRowFloats)),
        values_(allocate(kValuesRowFloats)) {}
  ~Batch() {
    std::free(planes_);
    std::free(policy_);
    std::free(values_);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  [[nodiscard]] Lc0Tensors tensors() const {
    return {.planes = planes_, .policy = policy_, .values = values_};
  }
  [[nodiscard]] std::span<const std::byte> planes(std::size_t rows) const {
    return bytes(planes_, rows * kPlanesRowFloats);
  }
  [[nodiscard]] std::span<const std::byte> policy(std::size_t rows) const {
    return bytes(policy_, rows * kPolicyRowFloats);
  }
  [[nodiscard]] std::span<const std::byte> values(std::size_t rows) const {
    return bytes(values_, rows * kValuesRowFloats);
  }
  [[nodiscard]] std::span<const float> planes_row(std::size_t row) const {
    return {planes_ + row * kPlanesRowFloats, kPlanesRowFloats};
  }
  [[nodiscard]] std::span<const float> policy_row(std::size_t row) const {
    return {policy_ + row * kPolicyRowFloats, kPolicyRowFloats};
  }
  [[nodiscard]] std::span<const float> values_row(std::size_t row) const {
    return {values_ + row * kValuesRowFloats, kValuesRowFloats};
  }
  [[nodiscard]] bool untouched(std::size_t row) const {
    const auto marked = [](std::span<const float> floats) {
      for (const float f : floats) {
        if (std::bit_cast<std::uint32_t>(f) != kUntouchedBits) return false;
      }
      return true;
    };
    return marked(planes_row(row)) && marked(policy_row(row)) && marked(values_row(row));
  }

 private:
  static std::span<const std::byte> bytes(const float* at, std::size_t floats) {
    return std::as_bytes(std::span(at, floats));
  }
  [[nodiscard]] float* allocate(std::size_t row_floats) const {
    const std::size_t bytes = ((rows_ + 1) * row_floats * 4 + 63) / 64 * 64;
    auto* at = static_cast<float*>(std::aligned_alloc(64, bytes));
    std::fill_n(at, bytes / 4, std::bit_cast<float>(kUntouchedBits));
    return at;
  }
  std::size_t rows_;
  float* planes_;
  float* policy_;
  float* values_;
};

Bytes packed_of(std::span<const std::byte> record) {
  Bytes frame(packed_bytes_max);
  frame.resize(pack(record.data(), frame));
  return frame;
}

// Writes all records of a chunk into the batch, in order.
void write_all(Lc0TensorWriter& writer, const Bytes& records, const Batch& batch) {
  for (std::size_t row = 0; row < records.size() / kV6RecordBytes; ++row) {
    const Bytes frame = packed_of(std::span(records).subspan(row * kV6RecordBytes, kV6RecordBytes));
    ASSERT_EQ(writer.write_row(frame, batch.tensors(), row), RowStatus::kWritten) << "row " << row;
  }
  store_fence();
}

template <typename T>
void put(Bytes& record, std::size_t offset, T value) {
  std::memcpy(record.data() + offset, &value, sizeof value);
}

// A record of input_format 1, otherwise empty: no piece, no legal move.
Bytes blank_record() {
  Bytes record(kV6RecordBytes);
  put<std::uint32_t>(record, v6::kVersion, 6);
  put<std::uint32_t>(record, v6::kInputFormat, 1);
  for (std::size_t move = 0; move < kPolicyMoves; ++move)
    put(record, v6::kPolicy + 4 * move, -1.0F);
  return record;
}

class Lc0TensorsOf : public ::testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    if (!kernel_supported(GetParam()))
      GTEST_SKIP() << "this machine has no " << kernel_name(GetParam());
    writer_.emplace(GetParam());
  }
  // The record as row 0 of a batch of one.
  void write(const Bytes& record) {
    ASSERT_EQ(writer_->write_row(packed_of(record), batch_.tensors(), 0), RowStatus::kWritten);
    store_fence();
  }
  [[nodiscard]] float plane(std::size_t plane, std::size_t square) const {
    return batch_.planes_row(0)[64 * plane + square];
  }
  std::optional<Lc0TensorWriter> writer_;
  Batch batch_{1};
};
INSTANTIATE_TEST_SUITE_P(EveryKernel, Lc0TensorsOf, ::testing::ValuesIn(kAllKernels),
                         [](const auto& tested) { return std::string(kernel_name(tested.param)); });

// The digests are of arrays that an independent decoder made: see tests/data/README.md.
TEST_P(Lc0TensorsOf, OfARealGameHaveThePublishedDigests) {
  const testing::SampleGame& game = testing::kSampleGames[3];
  ASSERT_STREQ(game.name, "lc0-data-sample/training.1387357298.gz");
  const Bytes records = testing::sample_records(game);
  ASSERT_EQ(records.size(), 133 * kV6RecordBytes);
  const Batch batch(133);
  write_all(*writer_, records, batch);
  EXPECT_EQ(testing::sha256(batch.planes(133)),
            "aab7e3bed1f637b781c3b257dc92a030119409bc952a73a7b58ca13a19066e98");
  EXPECT_EQ(testing::sha256(batch.policy(133)),
            "d13e6fd21a8d2947b7dd2e381da30a8b08bb837fad0dd85f3866dd885388568b");
  EXPECT_EQ(testing::sha256(batch.values(133)),
            "9afdc3df3a3af8b1c7347a8ba30c27eed6d636b7ff2d14d47593d228e8344f2c");
  // The moves-left target stands in the third column of the first values row.
  std::vector<float> plies_left(133);
  for (std::size_t row = 0; row < 133; ++row) plies_left[row] = batch.values_row(row)[2];
  EXPECT_EQ(testing::sha256(std::as_bytes(std::span(plies_left))),
            "c33351fe67a297fe5a36aaf1037e3599a16ab80c4284481caabe64176e1dfcd4");
  EXPECT_TRUE(batch.untouched(133)) << "wrote behind the last row";
}

// Rank 1 is the lowest byte of a plane, file a the highest bit of a byte:
//   bits 0x0000000000000010 = d1 = square 3        bits 0x0100000000000000 = h8 = square 63
TEST_P(Lc0TensorsOf, PutEachBitOfAPlaneOnItsSquare) {
  for (std::size_t square = 0; square < 64; ++square) {
    Bytes record = blank_record();
    put<std::uint64_t>(record, v6::kPlanes + 8 * 103, std::uint64_t{1} << (square ^ 7));
    ASSERT_NO_FATAL_FAILURE(write(record));
    for (std::size_t other = 0; other < 64; ++other) {
      ASSERT_EQ(plane(103, other), other == square ? 1.0F : 0.0F) << "bit of square " << square;
    }
  }
}

TEST_P(Lc0TensorsOf, ExpandNoiseLikeAPlainLoop) {
  std::mt19937_64 random(43);
  for (int round = 0; round < 50; ++round) {
    Bytes record = blank_record();
    for (std::size_t p = 0; p < kBitPlanes; ++p)
      put<std::uint64_t>(record, v6::kPlanes + 8 * p, random());
    ASSERT_NO_FATAL_FAILURE(write(record));
    for (std::size_t p = 0; p < kBitPlanes; ++p) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, record.data() + v6::kPlanes + 8 * p, 8);
      for (std::size_t square = 0; square < 64; ++square) {
        ASSERT_EQ(plane(p, square), static_cast<float>(bits >> (square ^ 7) & 1)) << "plane " << p;
      }
    }
  }
}

TEST_P(Lc0TensorsOf, FillThePlanesOfOneValue) {
  Bytes record = blank_record();
  put<std::uint8_t>(record, v6::kCastlingUsOoo, 1);
  put<std::uint8_t>(record, v6::kCastlingUsOo, 0);
  put<std::uint8_t>(record, v6::kCastlingThemOoo, 3);
  put<std::uint8_t>(record, v6::kCastlingThemOo, 255);
  put<std::uint8_t>(record, v6::kSideToMove, 1);
  put<std::uint8_t>(record, v6::kRule50, 50);
  ASSERT_NO_FATAL_FAILURE(write(record));
  const float expected[] = {1.0F, 0.0F, 3.0F, 255.0F, 1.0F, 50.0F / 99.0F, 0.0F, 1.0F};
  for (std::size_t p = 0; p < 8; ++p) {
    for (std::size_t square = 0; square < 64; ++square) {
      ASSERT_EQ(plane(104 + p, square), expected[p])
          << "plane " << 104 + p << ", square " << square;
    }
  }
}

TEST_P(Lc0TensorsOf, OrderTheValuesByRowAndColumn) {
  Bytes record = blank_record();
  const std::size_t offsets[] = {v6::kResultQ, v6::kResultD, v6::kPliesLeft, v6::kBestQ,
                                 v6::kBestD,   v6::kBestM,   v6::kPlayedQ,   v6::kPlayedD,
                                 v6::kPlayedM, v6::kOrigQ,   v6::kOrigD,     v6::kOrigM,
                                 v6::kRootQ,   v6::kRootD,   v6::kRootM,     v6::kQSt};
  for (std::size_t i = 0; i < std::size(offsets); ++i)
    put(record, offsets[i], static_cast<float>(i) + 0.5F);
  ASSERT_NO_FATAL_FAILURE(write(record));
  for (std::size_t i = 0; i < std::size(offsets); ++i) {
    EXPECT_EQ(batch_.values_row(0)[i], static_cast<float>(i) + 0.5F) << i;
  }
  EXPECT_EQ(std::bit_cast<std::uint32_t>(batch_.values_row(0)[16]), 0U)
      << "d_st: version 6 has none";
  EXPECT_EQ(std::bit_cast<std::uint32_t>(batch_.values_row(0)[17]), 0x7FC00000U);
}

// A network value that was not in the engine's cache is NaN; its payload is nobody's business here.
TEST_P(Lc0TensorsOf, KeepTheBitsOfNans) {
  Bytes record = blank_record();
  put<std::uint32_t>(record, v6::kOrigQ,
                     0x7F800001);  // a signalling NaN: arithmetic would quiet it
  put<std::uint32_t>(record, v6::kPolicy + 4 * 1857, 0xFFFFFFFF);
  ASSERT_NO_FATAL_FAILURE(write(record));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(batch_.values_row(0)[9]), 0x7F800001U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(batch_.policy_row(0)[1857]), 0xFFFFFFFFU);
}

// Eight rows have all the alignments that 7432 bytes a row can give.
TEST_P(Lc0TensorsOf, CopyThePolicyBitForBitAtEveryAlignment) {
  std::mt19937_64 random(47);
  const Batch batch(16);
  std::vector<Bytes> records;
  for (std::size_t row = 0; row < 16; ++row) {
    Bytes record = blank_record();
    // The last two rows are noise from end to end, which travels raw.
    const std::size_t entries = row >= 14 ? kPolicyMoves : 5 * row;
    for (std::size_t i = 0; i < entries; ++i) {
      const std::size_t move = row >= 14 ? i : random() % kPolicyMoves;
      put(record, v6::kPolicy + 4 * move, static_cast<std::uint32_t>(random()));
    }
    records.push_back(record);
  }
  // Rows in any order, and twice: a row depends on nothing that was written before.
  for (const std::size_t row : {7, 3, 14, 0, 15, 12, 1, 2, 13, 5, 4, 6, 8, 9, 11, 10, 14, 3, 0}) {
    ASSERT_EQ(writer_->write_row(packed_of(records[row]), batch.tensors(), row),
              RowStatus::kWritten);
  }
  store_fence();
  for (std::size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(
        std::memcmp(batch.policy_row(row).data(), records[row].data() + v6::kPolicy, kPolicyBytes),
        0)
        << "row " << row;
  }
  EXPECT_TRUE(batch.untouched(16));
}

TEST_P(Lc0TensorsOf, LeaveNeighbouringRowsAlone) {
  for (std::size_t row = 1; row < 9; ++row) {
    const Batch batch(9);
    ASSERT_EQ(writer_->write_row(packed_of(blank_record()), batch.tensors(), row),
              RowStatus::kWritten);
    store_fence();
    for (std::size_t other = 0; other < 9; ++other) EXPECT_EQ(batch.untouched(other), other != row);
  }
}

TEST_P(Lc0TensorsOf, RefuseWhatTheyCannotExpandAndWriteNothing) {
  Bytes v7 = blank_record();
  put<std::uint32_t>(v7, v6::kVersion, 7);
  EXPECT_EQ(writer_->write_row(packed_of(v7), batch_.tensors(), 0), RowStatus::kUnsupportedVersion);
  for (const std::uint32_t format : {0U, 2U, 3U, 4U, 5U, 132U, 133U}) {
    Bytes other = blank_record();
    put(other, v6::kInputFormat, format);
    EXPECT_EQ(writer_->write_row(packed_of(other), batch_.tensors(), 0),
              RowStatus::kUnsupportedInputFormat)
        << format;
  }
  Bytes damaged = packed_of(blank_record());
  damaged[6] = std::byte{9};
  EXPECT_EQ(writer_->write_row(damaged, batch_.tensors(), 0), RowStatus::kDamagedFrame);
  EXPECT_EQ(writer_->write_row({}, batch_.tensors(), 0), RowStatus::kDamagedFrame);
  store_fence();
  EXPECT_TRUE(batch_.untouched(0));
}

TEST_P(Lc0TensorsOf, AreTheSameBitsFromEveryKernel) {
  const Bytes records = testing::all_sample_records();
  const std::size_t rows = records.size() / kV6RecordBytes;
  ASSERT_EQ(rows, 324U);
  const Batch ours(rows);
  const Batch portable(rows);
  Lc0TensorWriter portable_writer(Kernel::kPortable);
  write_all(*writer_, records, ours);
  write_all(portable_writer, records, portable);
  EXPECT_EQ(
      std::memcmp(ours.planes(rows).data(), portable.planes(rows).data(), ours.planes(rows).size()),
      0);
  EXPECT_EQ(
      std::memcmp(ours.policy(rows).data(), portable.policy(rows).data(), ours.policy(rows).size()),
      0);
  EXPECT_EQ(
      std::memcmp(ours.values(rows).data(), portable.values(rows).data(), ours.values(rows).size()),
      0);
}

}  // namespace
}  // namespace ringfeed::formats
