#include "workers/lc0/lc0_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "ringfeed/shm/result.h"
#include "tests/support/rig/lc0_sample.h"
#include "tests/support/rig/sha256.h"
#include "workers/lc0/packed_frame.h"

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

Bytes packed_record(std::span<const std::byte> record) {
  Bytes frame(packed_bytes_max);
  std::uint32_t version = 0;
  std::memcpy(&version, record.data(), sizeof version);
  frame.resize(pack(record.data(), version, frame));
  return frame;
}

// Writes all records of a chunk into the batch, in order.
void write_all(Lc0TensorWriter& writer, const Bytes& records, const Batch& batch) {
  for (std::size_t row = 0; row < records.size() / kV6RecordBytes; ++row) {
    const Bytes frame =
        packed_record(std::span(records).subspan(row * kV6RecordBytes, kV6RecordBytes));
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
    writer_.emplace(Lc0Options{}, GetParam());
  }
  // The record as row 0 of a batch of one.
  void write(const Bytes& record) {
    ASSERT_EQ(writer_->write_row(packed_record(record), batch_.tensors(), 0), RowStatus::kWritten);
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
    ASSERT_EQ(writer_->write_row(packed_record(records[row]), batch.tensors(), row),
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
    ASSERT_EQ(writer_->write_row(packed_record(blank_record()), batch.tensors(), row),
              RowStatus::kWritten);
    store_fence();
    for (std::size_t other = 0; other < 9; ++other) EXPECT_EQ(batch.untouched(other), other != row);
  }
}

TEST_P(Lc0TensorsOf, RefuseWhatTheyCannotExpandAndWriteNothing) {
  for (const std::uint32_t format : {0U, 6U, 131U, 134U, 0xFFFFFFFFU}) {
    Bytes other = blank_record();
    put(other, v6::kInputFormat, format);
    EXPECT_EQ(writer_->write_row(packed_record(other), batch_.tensors(), 0),
              RowStatus::kUnsupportedInputFormat)
        << format;
  }
  Bytes damaged = packed_record(blank_record());
  damaged[6] = std::byte{9};
  EXPECT_EQ(writer_->write_row(damaged, batch_.tensors(), 0), RowStatus::kDamagedFrame);
  Bytes contradiction = packed_record(blank_record());
  put<std::uint32_t>(contradiction, packed::kHead + v6::kVersion, 7);
  EXPECT_EQ(writer_->write_row(contradiction, batch_.tensors(), 0), RowStatus::kDamagedFrame);
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
  Lc0TensorWriter portable_writer({}, Kernel::kPortable);
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

// ---- other input formats

struct FormatCase {
  std::uint32_t format;
  bool castling_bits;  // 104 and 105 by the rooks' files
  bool en_passant;     // 108 by a file, not by the side to move
  float plies;         // that make 1 in 109
  bool armageddon;
};
constexpr FormatCase kFormats[] = {{1, false, false, 99, false}, {2, true, false, 99, false},
                                   {3, true, true, 99, false},   {4, true, true, 100, false},
                                   {5, true, true, 100, false},  {132, true, true, 100, true},
                                   {133, true, true, 100, true}};

// Castling bytes with several bits each are no chess, but tell all of them apart.
TEST_P(Lc0TensorsOf, MakeTheLastPlanesAsTheirInputFormatSays) {
  for (const FormatCase& tested : kFormats) {
    for (const std::uint8_t invariance :
         {std::uint8_t{127}, std::uint8_t{128}, std::uint8_t{160}}) {
      Bytes record = blank_record();
      put(record, v6::kInputFormat, tested.format);
      const std::uint8_t castling[] = {0b00000001, 0b10000010, 0b00000100, 0b11000000};
      std::memcpy(record.data() + v6::kCastlingUsOoo, castling, sizeof castling);
      put<std::uint8_t>(record, v6::kSideToMove, 0b00010000);
      put<std::uint8_t>(record, v6::kRule50, 37);
      put(record, v6::kInvarianceInfo, invariance);
      ASSERT_NO_FATAL_FAILURE(write(record));
      for (std::size_t square = 0; square < 64; ++square) {
        const std::size_t rank = square / 8;
        const std::size_t file = square % 8;
        const auto bit = [file](std::uint8_t byte) { return static_cast<float>(byte >> file & 1); };
        float expected[8] = {1, 130, 4, 192, 16, 37.0F / tested.plies, 0, 1};
        if (tested.castling_bits) {
          expected[0] = rank == 0 ? bit(castling[0]) : rank == 7 ? bit(castling[2]) : 0;
          expected[1] = rank == 0 ? bit(castling[1]) : rank == 7 ? bit(castling[3]) : 0;
          expected[2] = expected[3] = 0;
        }
        if (tested.en_passant) expected[4] = rank == 7 ? bit(16) : 0;
        if (tested.armageddon) expected[6] = invariance >= 128 ? 1 : 0;
        for (std::size_t p = 0; p < 8; ++p) {
          ASSERT_EQ(plane(104 + p, square), expected[p])
              << "format " << tested.format << ", plane " << 104 + p << ", square " << square;
        }
      }
    }
  }
}

// What a net sees that was trained on them as if they were of format 1.
TEST_P(Lc0TensorsOf, MakeTheLastPlanesOfEveryFormatAsOfTheFirstWhenAsked) {
  Batch batch(1);
  for (const FormatCase& tested : kFormats) {
    Bytes record = blank_record();
    put(record, v6::kInputFormat, tested.format);
    const std::uint8_t castling[] = {0b00000001, 0b10000010, 0b00000100, 0b11000000};
    std::memcpy(record.data() + v6::kCastlingUsOoo, castling, sizeof castling);
    put<std::uint8_t>(record, v6::kSideToMove, 0b10000000);
    put<std::uint8_t>(record, v6::kRule50, 37);
    put<std::uint8_t>(record, v6::kInvarianceInfo, 160);
    Lc0TensorWriter classical({.classical_planes = true}, GetParam());
    ASSERT_NO_FATAL_FAILURE(write_all(classical, record, batch));
    const float expected[8] = {1, 130, 4, 192, 128, 37.0F / 99, 0, 1};
    for (std::size_t i = 0; i < 8 * 64; ++i) {
      ASSERT_EQ(batch.planes_row(0)[104 * 64 + i], expected[i / 64])
          << "format " << tested.format << ", plane " << 104 + i / 64;
    }
  }
}

// ---- other types and layouts

// Tensors as any options lay them out, one row more than asked behind each.
class AnyBatch {
 public:
  AnyBatch(const Lc0Options& options, std::size_t rows) : fields_(lc0_fields(options)) {
    for (const Lc0Field& field : fields_) {
      const std::size_t bytes = ((rows + 1) * field.row_bytes + 63) / 64 * 64;
      memory_.push_back(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
      std::memset(memory_.back(), 0xA5, bytes);
      tensors_.*field.place = memory_.back();
    }
  }
  ~AnyBatch() {
    for (std::byte* memory : memory_) std::free(memory);
  }
  AnyBatch(const AnyBatch&) = delete;
  AnyBatch& operator=(const AnyBatch&) = delete;

  [[nodiscard]] const Lc0Tensors& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<Lc0Field>& fields() const { return fields_; }
  // Element `at` of a row.
  template <typename T>
  [[nodiscard]] T get(const char* name, std::size_t row, std::size_t at = 0) const {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (std::string_view(fields_[i].name) != name) continue;
      T value;
      RF_CHECK((at + 1) * sizeof value <= fields_[i].row_bytes, at, fields_[i].row_bytes);
      std::memcpy(&value, memory_[i] + row * fields_[i].row_bytes + at * sizeof value,
                  sizeof value);
      return value;
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  [[nodiscard]] bool untouched(std::size_t row) const {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      for (std::size_t at = 0; at < fields_[i].row_bytes; ++at) {
        if (memory_[i][row * fields_[i].row_bytes + at] != std::byte{0xA5}) return false;
      }
    }
    return true;
  }

 private:
  std::vector<Lc0Field> fields_;
  std::vector<std::byte*> memory_;
  Lc0Tensors tensors_;
};

// Records of many kinds: real ones, every input format and version, noise in planes and bytes.
std::vector<Bytes> many_frames() {
  std::vector<Bytes> frames;
  const Bytes real = testing::all_sample_records();
  for (std::size_t i = 0; i < 40; ++i) {
    frames.push_back(
        packed_record(std::span(real).subspan(i * 8 * kV6RecordBytes, kV6RecordBytes)));
  }
  std::mt19937_64 random(53);
  for (const std::uint32_t version : {3U, 4U, 5U, 6U, 7U}) {
    for (const FormatCase& tested : kFormats) {
      if (version < 5 && tested.format != 1) continue;
      Bytes record(frame_bytes_of_version(version));
      const std::size_t shift = version < 5 ? 4 : 0;
      for (std::size_t i = v6::kPlanes - shift; i < record.size(); ++i) {
        record[i] = static_cast<std::byte>(random());
      }
      put(record, v6::kVersion, version);
      if (version >= 5) put(record, v6::kInputFormat, tested.format);
      for (std::size_t move = 0; move < kPolicyMoves; ++move) {
        const bool listed = random() % 60 == 0;
        const float filler = version == 3 ? 0.0F : -1.0F;
        put(record, v6::kPolicy - shift + 4 * move,
            listed ? static_cast<float>(random() % 1000) / 3000.0F : filler);
      }
      if (version < 6) put<std::uint8_t>(record, v6::kInvarianceInfo + 1 - shift, 1);
      frames.push_back(packed_record(record));
    }
  }
  return frames;
}

float half_value(std::uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? std::nanf("") : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(fraction), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}
float bfloat_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// The nearest 16-bit number, found by looking at all of them: ties to even.
TEST(Float16Bits, AreTheNearestOfAll) {
  std::mt19937_64 random(59);
  std::vector<float> values = {0.0F,     -0.0F,    1.0F,       -1.0F,    65504.0F,  65519.9F,
                               65520.0F, 1e30F,    5.96e-8F,   2.98e-8F, 2.981e-8F, 6.1e-5F,
                               0.1F,     1.0F / 3, 37.0F / 99, INFINITY, -INFINITY};
  for (int i = 0; i < 400; ++i) {
    values.push_back(
        std::ldexp(static_cast<float>(random() % 100000), -static_cast<int>(random() % 40)));
    // Halfway between two neighbours.
    const auto low = static_cast<std::uint16_t>(random() % 0x7bff);
    values.push_back(static_cast<float>(
        (static_cast<double>(half_value(low)) + static_cast<double>(half_value(low + 1))) / 2));
  }
  for (const float value : values) {
    const std::uint16_t bits = float16_bits(value);
    EXPECT_EQ(std::signbit(half_value(bits)), std::signbit(value)) << value;
    if (std::isinf(value) || std::abs(value) >= 65520.0F) {
      EXPECT_TRUE(std::isinf(half_value(bits))) << value;
      continue;
    }
    const double off = std::abs(static_cast<double>(half_value(bits)) - value);
    for (const std::uint16_t other :
         {static_cast<std::uint16_t>(bits + 1), static_cast<std::uint16_t>(bits - 1)}) {
      if ((bits & 0x7fff) == 0 && other != 1) continue;
      const double other_off = std::abs(static_cast<double>(half_value(other)) - value);
      EXPECT_TRUE(off < other_off || (off == other_off && bits % 2 == 0) || std::isnan(other_off))
          << value << " became " << bits;
    }
  }
  EXPECT_TRUE(std::isnan(half_value(float16_bits(std::nanf("")))));
  EXPECT_EQ(bfloat16_bits(1.0F), 0x3F80);
  EXPECT_EQ(bfloat16_bits(std::bit_cast<float>(0x3F808000U)), 0x3F80) << "a tie, to even";
  EXPECT_EQ(bfloat16_bits(std::bit_cast<float>(0x3F818000U)), 0x3F82) << "a tie, to even";
  EXPECT_EQ(bfloat16_bits(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_TRUE(std::isnan(bfloat_value(bfloat16_bits(std::bit_cast<float>(0x7F800001U)))));
}

TEST_P(Lc0TensorsOf, AreTheSamePlanesInEveryType) {
  const std::vector<Bytes> frames = many_frames();
  const Batch plain(frames.size());
  for (std::size_t row = 0; row < frames.size(); ++row) {
    ASSERT_EQ(writer_->write_row(frames[row], plain.tensors(), row), RowStatus::kWritten) << row;
  }
  for (const PlanesType type :
       {PlanesType::kFloat16, PlanesType::kBfloat16, PlanesType::kUint8, PlanesType::kBits}) {
    const Lc0Options options{.planes = type};
    Lc0TensorWriter writer(options, GetParam());
    const AnyBatch batch(options, frames.size());
    // Backwards: a row depends on nothing that was written before.
    for (std::size_t row = frames.size(); row-- > 0;) {
      ASSERT_EQ(writer.write_row(frames[row], batch.tensors(), row), RowStatus::kWritten);
    }
    store_fence();
    for (std::size_t row = 0; row < frames.size(); ++row) {
      const auto view = view_packed(frames[row]);
      for (std::size_t i = 0; i < kPlanesRowFloats; ++i) {
        const float expected = plain.planes_row(row)[i];
        const std::size_t p = i / 64;
        switch (type) {
          case PlanesType::kFloat16:
            ASSERT_EQ(batch.get<std::uint16_t>("planes", row, i), float16_bits(expected)) << i;
            break;
          case PlanesType::kBfloat16:
            ASSERT_EQ(batch.get<std::uint16_t>("planes", row, i), bfloat16_bits(expected)) << i;
            break;
          case PlanesType::kUint8:
            ASSERT_EQ(batch.get<std::uint8_t>("planes", row, i),
                      p == 109 ? std::to_integer<std::uint8_t>(view->tail[5])
                               : static_cast<std::uint8_t>(expected))
                << p;
            break;
          default: {
            const auto bits = batch.get<std::uint64_t>("planes", row, p);
            if (p == 109) {
              ASSERT_EQ(bits, std::bit_cast<std::uint32_t>(expected));
            } else {
              ASSERT_EQ(bits >> (i % 64 ^ 7) & 1, expected != 0 ? 1U : 0U) << p;
            }
          }
        }
      }
    }
    EXPECT_TRUE(batch.untouched(frames.size()));
  }
}

TEST_P(Lc0TensorsOf, AreTheSamePolicyInEveryType) {
  const std::vector<Bytes> frames = many_frames();
  const Batch plain(frames.size());
  const Lc0Options half_options{.policy = PolicyType::kFloat16};
  const Lc0Options sparse_options{.policy = PolicyType::kSparse, .policy_entries_max = 77};
  Lc0TensorWriter half_writer(half_options, GetParam());
  Lc0TensorWriter sparse_writer(sparse_options, GetParam());
  const AnyBatch half(half_options, frames.size());
  const AnyBatch sparse(sparse_options, frames.size());
  for (std::size_t row = 0; row < frames.size(); ++row) {
    ASSERT_EQ(writer_->write_row(frames[row], plain.tensors(), row), RowStatus::kWritten);
    ASSERT_EQ(half_writer.write_row(frames[row], half.tensors(), row), RowStatus::kWritten);
    ASSERT_EQ(sparse_writer.write_row(frames[row], sparse.tensors(), row), RowStatus::kWritten);
  }
  store_fence();
  for (std::size_t row = 0; row < frames.size(); ++row) {
    std::vector<float> dense(kPolicyMoves + 1, sparse.get<float>("policy_filler", row));
    const auto entries = static_cast<std::size_t>(sparse.get<std::int32_t>("policy_lengths", row));
    ASSERT_LE(entries, 77U);
    for (std::size_t i = 0; i < 77; ++i) {
      const auto move =
          static_cast<std::size_t>(sparse.get<std::int16_t>("policy_indices", row, i));
      ASSERT_EQ(move == kPolicyMoves, i >= entries);
      dense[move] = sparse.get<float>("policy_values", row, i);
    }
    EXPECT_EQ(dense.back(), dense[kPolicyMoves]);
    for (std::size_t move = 0; move < kPolicyMoves; ++move) {
      const float expected = plain.policy_row(row)[move];
      ASSERT_EQ(dense[move], expected) << "row " << row << ", move " << move;
      ASSERT_EQ(half.get<std::uint16_t>("policy", row, move), float16_bits(expected));
    }
  }
  EXPECT_TRUE(half.untouched(frames.size()));
  EXPECT_TRUE(sparse.untouched(frames.size()));
}

TEST_P(Lc0TensorsOf, RefuseMoreMovesThanTheSparsePolicyTakes) {
  const Lc0Options options{.policy = PolicyType::kSparse, .policy_entries_max = 2};
  Lc0TensorWriter writer(options, GetParam());
  const AnyBatch batch(options, 1);
  Bytes record = blank_record();
  put(record, v6::kPolicy, 0.25F);
  put(record, v6::kPolicy + 4 * 1857, 0.75F);
  ASSERT_EQ(writer.write_row(packed_record(record), batch.tensors(), 0), RowStatus::kWritten);
  put(record, v6::kPolicy + 4 * 7, 0.0F);
  const AnyBatch other(options, 1);
  EXPECT_EQ(writer.write_row(packed_record(record), other.tensors(), 0), RowStatus::kTooManyMoves);
  for (std::size_t move = 0; move < kPolicyMoves; ++move) put(record, v6::kPolicy + 4 * move, 0.0F);
  EXPECT_EQ(writer.write_row(packed_record(record), other.tensors(), 0), RowStatus::kTooManyMoves);
  EXPECT_TRUE(other.untouched(0));
}

TEST_P(Lc0TensorsOf, HaveTheShortTermValuesOfVersion7) {
  Bytes record = blank_record();
  record.resize(kV7RecordBytes);
  put<std::uint32_t>(record, v6::kVersion, 7);
  put(record, v6::kQSt, 0.5F);
  put(record, v6::kDSt, 0.25F);
  ASSERT_NO_FATAL_FAILURE(write(record));
  EXPECT_EQ(batch_.values_row(0)[15], 0.5F);
  EXPECT_EQ(batch_.values_row(0)[16], 0.25F);
}

// Which of the 18 values a version knows: rows result, best, played, orig, root, st.
TEST_P(Lc0TensorsOf, SayWhatTheyDoNotKnowAsTheyAreTold) {
  const char* const known[] = {
      "qd-"
      "---"
      "---"
      "---"
      "---"
      "---",  // version 3
      "qd-"
      "qd-"
      "---"
      "---"
      "qd-"
      "---",  // 4
      "qdm"
      "qdm"
      "---"
      "---"
      "qdm"
      "---",  // 5
      "qdm"
      "qdm"
      "qdm"
      "qdm"
      "qdm"
      "---",  // 6
      "qdm"
      "qdm"
      "qdm"
      "qdm"
      "qdm"
      "qd-"};  // 7
  for (const std::uint32_t version : {3U, 4U, 5U, 6U, 7U}) {
    Bytes record(frame_bytes_of_version(version));
    const std::size_t shift = version < 5 ? 4 : 0;
    for (std::size_t i = v6::kRootQ - shift; i + 4 <= record.size(); i += 4) put(record, i, 0.5F);
    put(record, v6::kVersion, version);
    if (version >= 5) put<std::uint32_t>(record, v6::kInputFormat, 1);
    const Bytes frame = packed_record(record);
    for (const UnknownValues policy : {UnknownValues::kNan, UnknownValues::kZero}) {
      Lc0TensorWriter writer({.unknown = policy}, GetParam());
      ASSERT_EQ(writer.write_row(frame, batch_.tensors(), 0), RowStatus::kWritten);
      for (std::size_t i = 0; i < kValuesRowFloats; ++i) {
        const float value = batch_.values_row(0)[i];
        if (known[version - 3][i] == '-') {
          EXPECT_EQ(std::isnan(value), policy == UnknownValues::kNan) << version << " " << i;
          EXPECT_TRUE(std::isnan(value) || value == 0.0F) << version << " " << i;
        } else {
          EXPECT_FALSE(std::isnan(value)) << version << " " << i;
        }
      }
    }
  }
  // What a rescorer has counted in an old game is known.
  for (const std::uint32_t version : {3U, 4U}) {
    Bytes old(frame_bytes_of_version(version));
    put(old, v6::kVersion, version);
    const Bytes packed = packed_record(old);
    const PackedFrameView view = *view_packed(packed);
    Bytes tail(view.tail, view.tail + packed::kTailBytes);
    put(tail, v6::kPliesLeft - v6::kCastlingUsOoo, 7.0F);
    std::vector<std::uint32_t> policy(view.policy_entries);
    if (!policy.empty()) std::memcpy(policy.data(), view.policy_values, 4 * policy.size());
    Bytes filled(packed_bytes_max);
    ASSERT_NE(repack(view, version, tail.data(), policy, filled), 0U);
    Lc0TensorWriter writer({.unknown = UnknownValues::kNan}, GetParam());
    ASSERT_EQ(writer.write_row(filled, batch_.tensors(), 0), RowStatus::kWritten);
    EXPECT_EQ(batch_.values_row(0)[2], 7.0F) << version;
    EXPECT_TRUE(std::isnan(batch_.values_row(0)[5])) << version;
  }
  // A network value that was not in the cache is not known either.
  Bytes record = blank_record();
  put(record, v6::kOrigD, std::nanf(""));
  put(record, v6::kVisits, 1U);
  Lc0TensorWriter zero({.unknown = UnknownValues::kZero}, GetParam());
  ASSERT_EQ(zero.write_row(packed_record(record), batch_.tensors(), 0), RowStatus::kWritten);
  EXPECT_EQ(batch_.values_row(0)[10], 0.0F);
}

TEST_P(Lc0TensorsOf, GiveFiveArraysWithSharesOfWinDrawAndLoss) {
  const Lc0Options options{.layout = Lc0Layout::kFive};
  Lc0TensorWriter writer(options, GetParam());
  const AnyBatch batch(options, 1);
  std::vector<std::string> names;
  for (const Lc0Field& field : batch.fields()) names.emplace_back(field.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("planes", "probabilities", "winner", "best_q", "plies_left"));
  struct Case {
    float q, d, win, draw, loss;
  };
  for (const Case& tested : {Case{1, 0, 1, 0, 0}, Case{-1, 0, 0, 0, 1}, Case{0, 1, 0, 1, 0},
                             Case{0.25F, 0.5F, 0.375F, 0.5F, 0.125F}, Case{1.5F, 0, 1, 0, 0},
                             Case{-0.75F, 0.5F, 0, 0.25F, 0.75F}, Case{0, -0.5F, 0.5F, 0, 0.5F}}) {
    Bytes record = blank_record();
    put(record, v6::kResultQ, tested.q);
    put(record, v6::kResultD, tested.d);
    put(record, v6::kBestQ, -tested.q);
    put(record, v6::kBestD, tested.d);
    put(record, v6::kPliesLeft, 17.0F);
    ASSERT_EQ(writer.write_row(packed_record(record), batch.tensors(), 0), RowStatus::kWritten);
    const float shares[] = {tested.win, tested.draw, tested.loss};
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(batch.get<float>("winner", 0, i), shares[i]) << tested.q << " " << tested.d;
      EXPECT_EQ(batch.get<float>("best_q", 0, i), shares[2 - i]) << tested.q << " " << tested.d;
    }
    EXPECT_EQ(batch.get<float>("plies_left", 0), 17.0F);
  }
  EXPECT_TRUE(batch.untouched(1));
  // What version 3 does not know has no shares.
  Bytes old(kV3RecordBytes);
  put<std::uint32_t>(old, v6::kVersion, 3);
  for (const UnknownValues policy : {UnknownValues::kNan, UnknownValues::kZero}) {
    Lc0TensorWriter unknown({.layout = Lc0Layout::kFive, .unknown = policy}, GetParam());
    ASSERT_EQ(unknown.write_row(packed_record(old), batch.tensors(), 0), RowStatus::kWritten);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto share = batch.get<float>("best_q", 0, i);
      EXPECT_TRUE(policy == UnknownValues::kNan ? std::isnan(share) : share == 0) << share;
    }
    EXPECT_EQ(batch.get<float>("winner", 0, 1), 1.0F) << "a draw";
  }
}

}  // namespace
}  // namespace ringfeed::formats
