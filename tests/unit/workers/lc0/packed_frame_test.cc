#include "workers/lc0/packed_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/support/rig/lc0_sample.h"

namespace ringfeed::formats {
namespace {

using testing::Bytes;

constexpr std::uint32_t kNanBits = 0x7FC01234;
constexpr std::byte kUntouched{0xA5};

void set_policy(Bytes& record, std::size_t move, std::uint32_t bits) {
  std::memcpy(record.data() + v6::kPolicy + 4 * move, &bits, 4);
}

// A record of noise everywhere but in the policy, which is -1 except at `legal`, where it is noise
// too.
Bytes record_with_policy(std::mt19937_64& random, const std::vector<std::size_t>& legal) {
  Bytes record(kV6RecordBytes);
  for (std::byte& b : record) b = static_cast<std::byte>(random());
  for (std::size_t move = 0; move < kPolicyMoves; ++move)
    set_policy(record, move, packed::kIllegalBits);
  for (const std::size_t move : legal)
    set_policy(record, move, static_cast<std::uint32_t>(random()) & 0x3FFFFFFF);
  return record;
}

// Moves [0, count) as policy entries that differ from -1.
std::vector<std::size_t> first_moves(std::size_t count) {
  std::vector<std::size_t> moves(count);
  for (std::size_t i = 0; i < count; ++i) moves[i] = i;
  return moves;
}

// Packs into a buffer that is exactly large enough and checks the bytes behind it.
Bytes packed_of(const Bytes& record, Kernel kernel = best_kernel(), std::uint32_t version = 6) {
  Bytes out(packed_bytes_max + 64, kUntouched);
  const std::size_t bytes =
      pack(record.data(), version, std::span(out).first(packed_bytes_max), kernel);
  EXPECT_GT(bytes, 0U);
  EXPECT_EQ(bytes % packed::kAlignment, 0U);
  EXPECT_TRUE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(bytes), out.end(),
                          [](std::byte b) { return b == kUntouched; }))
      << "wrote behind its frame";
  out.resize(bytes);
  return out;
}

Bytes unpacked(const Bytes& frame) {
  Bytes record(kV7RecordBytes, kUntouched);
  const std::size_t bytes = unpack(frame, record.data());
  EXPECT_GT(bytes, 0U);
  EXPECT_TRUE(std::all_of(record.begin() + static_cast<std::ptrdiff_t>(bytes), record.end(),
                          [](std::byte b) { return b == kUntouched; }))
      << "wrote behind its record";
  record.resize(bytes);
  return record;
}

PackedKind kind_of(const Bytes& frame) { return static_cast<PackedKind>(frame[6]); }

class PackedFrame : public ::testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    if (!kernel_supported(GetParam()))
      GTEST_SKIP() << "this machine has no " << kernel_name(GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(EveryKernel, PackedFrame, ::testing::ValuesIn(kAllKernels),
                         [](const auto& tested) { return std::string(kernel_name(tested.param)); });

TEST_P(PackedFrame, GivesBackEveryRealRecordByteForByte) {
  const Bytes all = testing::all_sample_records();
  ASSERT_EQ(all.size(), 324 * kV6RecordBytes);
  for (std::size_t at = 0; at < all.size(); at += kV6RecordBytes) {
    const Bytes record(all.begin() + static_cast<std::ptrdiff_t>(at),
                       all.begin() + static_cast<std::ptrdiff_t>(at + kV6RecordBytes));
    const Bytes frame = packed_of(record, GetParam());
    ASSERT_EQ(unpacked(frame), record) << "record " << at / kV6RecordBytes;
    ASSERT_LT(frame.size(), 1500U) << "a legal position is not worth more";
  }
}

TEST_P(PackedFrame, GivesBackNoiseByteForByte) {
  std::mt19937_64 random(20240501);
  Bytes record(kV6RecordBytes);
  for (int round = 0; round < 10'000; ++round) {
    for (std::size_t i = 0; i + 8 <= record.size(); i += 8) {
      const std::uint64_t bits = random();
      std::memcpy(record.data() + i, &bits, 8);
    }
    // From all legal to all illegal: so many entries in 1000 are set to -1 on average.
    const auto per_mille = static_cast<unsigned>(round % 1001);
    for (std::size_t move = 0; move < kPolicyMoves; ++move) {
      if (random() % 1000 < per_mille) set_policy(record, move, packed::kIllegalBits);
    }
    ASSERT_EQ(unpacked(packed_of(record, GetParam())), record)
        << "round " << round << " of seed 20240501";
  }
}

TEST_P(PackedFrame, PacksTheSameBytesAsThePortableKernel) {
  std::mt19937_64 random(7);
  for (const std::size_t count : {0U, 1U, 20U, 35U, 218U, 1239U, 1240U}) {
    const Bytes record = record_with_policy(random, first_moves(count));
    EXPECT_EQ(packed_of(record, GetParam()), packed_of(record, Kernel::kPortable))
        << count << " entries";
  }
}

// Each of the 1858 entries alone, so that no vector width loses its last lanes.
TEST_P(PackedFrame, FindsAnEntryWhereverItIs) {
  std::mt19937_64 random(11);
  for (std::size_t move = 0; move < kPolicyMoves; ++move) {
    const Bytes record = record_with_policy(random, {move});
    const Bytes frame = packed_of(record, GetParam());
    ASSERT_EQ(frame.size(), packed_bytes(1));
    ASSERT_EQ(unpacked(frame), record) << "move " << move;
  }
}

// -1.0f is told by its bits: what compares equal or unequal to it as a number is another matter.
TEST_P(PackedFrame, KeepsNansAndNeighboursOfMinusOne) {
  std::mt19937_64 random(13);
  Bytes record = record_with_policy(random, {});
  const std::uint32_t kept[] = {kNanBits,   0xFFC00000, 0xBF7FFFFF, 0xBF800001,
                                0x3F800000, 0x80000000, 0};
  for (std::size_t i = 0; i < std::size(kept); ++i) set_policy(record, 100 * i, kept[i]);
  const Bytes frame = packed_of(record, GetParam());
  EXPECT_EQ(frame.size(), packed_bytes(std::size(kept)));
  EXPECT_EQ(unpacked(frame), record);
}

TEST(PackedFrameSize, TurnsRawWherePackingWouldBeLarger) {
  std::mt19937_64 random(17);
  const Bytes last_packed = packed_of(record_with_policy(random, first_moves(1239)));
  EXPECT_EQ(kind_of(last_packed), PackedKind::kPacked);
  EXPECT_EQ(last_packed.size(), raw_bytes(6));
  for (const std::size_t count : {1240U, 1858U}) {
    const Bytes record = record_with_policy(random, first_moves(count));
    const Bytes frame = packed_of(record);
    EXPECT_EQ(kind_of(frame), PackedKind::kRaw) << count;
    EXPECT_EQ(frame.size(), raw_bytes(6));
    EXPECT_EQ(unpacked(frame), record);
  }
}

TEST(PackedFrameSize, WritesNothingIntoTooLittleRoom) {
  std::mt19937_64 random(19);
  for (const std::size_t count : {0U, 30U, 1858U}) {
    const Bytes record = record_with_policy(random, first_moves(count));
    const std::size_t needed = packed_of(record).size();
    Bytes room(needed - 1, kUntouched);
    EXPECT_EQ(pack(record.data(), 6, room), 0U);
    EXPECT_EQ(room, Bytes(needed - 1, kUntouched));
    EXPECT_EQ(pack(record.data(), 6, {}), 0U);
  }
}

// A frame is a value: rings and checksums may compare it byte by byte, so its padding is always the
// same.
TEST(PackedFrameSize, PadsWithZeros) {
  std::mt19937_64 random(23);
  for (std::size_t count = 0; count < 40; ++count) {
    const Bytes frame = packed_of(record_with_policy(random, first_moves(count)));
    for (std::size_t at = packed::kPolicyValues + 6 * count; at < frame.size(); ++at) {
      EXPECT_EQ(frame[at], std::byte{0})
          << "byte " << at << " of a frame with " << count << " entries";
    }
  }
}

// A record of noise of this version, its policy the filler but for `count` entries.
Bytes record_of_version(std::mt19937_64& random, std::uint32_t version, std::size_t count) {
  Bytes record(frame_bytes_of_version(version));
  for (std::byte& b : record) b = static_cast<std::byte>(random());
  const std::size_t policy = version < 5 ? 4 : 8;
  for (std::size_t move = 0; move < kPolicyMoves; ++move) {
    const std::uint32_t bits =
        move < count ? 0x3F000000 + static_cast<std::uint32_t>(move) : packed::filler_bits(version);
    std::memcpy(record.data() + policy + 4 * move, &bits, 4);
  }
  if (version < 6) record[policy == 4 ? 8275 : 8279] = std::byte{1};
  return record;
}

TEST_P(PackedFrame, GivesBackOlderVersionsAsUpgradedAndVersion7AsItWas) {
  std::mt19937_64 random(3);
  for (const std::uint32_t version : {3U, 4U, 5U, 6U, 7U}) {
    for (const std::size_t count : {0U, 30U, 1200U, 1239U, 1300U, 1858U}) {
      const Bytes record = record_of_version(random, version, count);
      Bytes expected = record;
      if (version < 6) {
        expected.resize(kV6RecordBytes);
        upgrade_record(record.data(), version, expected.data());
      }
      const Bytes frame = packed_of(record, GetParam(), version);
      EXPECT_EQ(unpacked(frame), expected) << version << " with " << count;
      EXPECT_EQ(frame.size(), std::min(packed_bytes(count, version), raw_bytes(version)));
      const auto view = view_packed(frame);
      ASSERT_TRUE(view.has_value());
      EXPECT_EQ(view->origin, version);
      EXPECT_EQ(view->policy_entries, view->kind == PackedKind::kRaw ? kPolicyMoves : count);
    }
  }
}

TEST(PackedFrameView, IgnoresWhatFollowsTheFrame) {
  std::mt19937_64 random(29);
  const Bytes record = record_with_policy(random, {3, 5, 8});
  Bytes frame = packed_of(record);
  const std::size_t frame_bytes = frame.size();
  frame.resize(frame_bytes + 100, kUntouched);
  const auto view = view_packed(frame);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->frame_bytes, frame_bytes);
  EXPECT_EQ(view->policy_entries, 3U);
  EXPECT_EQ(unpacked(frame), record);
}

// What a damaged ring, or a hostile one, may hold. Each case changes a good frame in one place.
struct FrameDamage {
  const char* name;
  void (*apply)(Bytes& frame);
};
std::ostream& operator<<(std::ostream& out, const FrameDamage& damage) {
  return out << damage.name;
}

void put_u16(Bytes& frame, std::size_t at, std::uint16_t value) {
  std::memcpy(frame.data() + at, &value, 2);
}
void put_u32(Bytes& frame, std::size_t at, std::uint32_t value) {
  std::memcpy(frame.data() + at, &value, 4);
}
constexpr std::size_t kIndexOffset = packed::kPolicyValues + 4 * 4;  // of a frame with four entries

constexpr FrameDamage kDamages[] = {
    {"Empty", [](Bytes& frame) { frame.clear(); }},
    {"ShorterThanItsHeader", [](Bytes& frame) { frame.resize(15); }},
    {"CutShort", [](Bytes& frame) { frame.pop_back(); }},
    {"SizeZero", [](Bytes& frame) { put_u32(frame, 0, 0); }},
    {"SizeTooSmallForItsEntries", [](Bytes& frame) { put_u32(frame, 0, 944); }},
    {"SizeTooLargeForItsEntries",
     [](Bytes& frame) {
       frame.resize(4096);
       put_u32(frame, 0, 1024);
     }},
    {"SizeBeyondTheBytes", [](Bytes& frame) { put_u32(frame, 0, 0xFFFFFFF0); }},
    {"MoreEntriesThanMoves",
     [](Bytes& frame) {
       frame.resize(16384);
       put_u32(frame, 0, static_cast<std::uint32_t>(packed_bytes(1859)));
       put_u16(frame, 4, 1859);
     }},
    {"UnknownKind", [](Bytes& frame) { frame[6] = std::byte{2}; }},
    {"UnknownVersion", [](Bytes& frame) { frame[7] = std::byte{2}; }},
    {"LongerVersion", [](Bytes& frame) { frame[7] = std::byte{7}; }},
    {"RawWithEntries",
     [](Bytes& frame) {
       frame.resize(raw_bytes(6));
       put_u32(frame, 0, raw_bytes(6));
       frame[6] = std::byte{1};
     }},
    {"RawOfAnotherSize",
     [](Bytes& frame) {
       frame[6] = std::byte{1};
       put_u16(frame, 4, 0);
     }},
    {"IndexBeyondTheLastMove", [](Bytes& frame) { put_u16(frame, kIndexOffset + 6, 1858); }},
    {"IndexLargest", [](Bytes& frame) { put_u16(frame, kIndexOffset + 6, 0xFFFF); }},
    {"IndexTwice", [](Bytes& frame) { put_u16(frame, kIndexOffset + 2, 10); }},
    {"IndicesDescending", [](Bytes& frame) { put_u16(frame, kIndexOffset, 1000); }},
};

class PackedFrameDamage : public ::testing::TestWithParam<FrameDamage> {};
INSTANTIATE_TEST_SUITE_P(EveryKind, PackedFrameDamage, ::testing::ValuesIn(kDamages),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(PackedFrameDamage, IsRefusedAndNothingIsWritten) {
  std::mt19937_64 random(31);
  Bytes frame = packed_of(record_with_policy(random, {10, 20, 30, 1857}));
  ASSERT_TRUE(view_packed(frame).has_value());
  GetParam().apply(frame);
  // A copy of exactly this size, so that a read behind it is found by the sanitizer.
  const Bytes exact(frame.begin(), frame.end());
  Bytes record(kV6RecordBytes, kUntouched);
  EXPECT_FALSE(view_packed(exact).has_value());
  EXPECT_EQ(unpack(exact, record.data()), 0U);
  EXPECT_EQ(record, Bytes(kV6RecordBytes, kUntouched));
}

TEST(PackedFrameNoise, IsNeverReadBeyondItsEnd) {
  std::mt19937_64 random(37);
  std::mt19937_64 shape(41);
  const Bytes good = packed_of(record_with_policy(random, first_moves(40)));
  Bytes record(kV7RecordBytes);
  std::size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes frame = good;
    frame.resize(shape() % 4 == 0 ? shape() % (good.size() + 1) : good.size());
    for (std::size_t i = shape() % 4; i > 0 && !frame.empty(); --i) {
      // Mostly the header and the indices: elsewhere any byte is a good one.
      const std::size_t at = shape() % 2 == 0 ? shape() % 8 : shape() % frame.size();
      if (at < frame.size()) frame[at] = static_cast<std::byte>(shape());
    }
    const Bytes exact(frame.begin(), frame.end());
    accepted += unpack(exact, record.data()) != 0 ? 1 : 0;
  }
  EXPECT_GT(accepted, 0U);
  EXPECT_LT(accepted, 20'000U);
}

}  // namespace
}  // namespace ringfeed::formats
