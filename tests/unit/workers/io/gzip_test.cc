#include "workers/io/gzip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libdeflate.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "tests/support/rig/lc0_sample.h"
#include "workers/io/deflate_walk.h"

namespace ringfeed::formats {
namespace {

using testing::Bytes;
using ::testing::HasSubstr;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes gzip_of(std::span<const std::byte> data, int level = 6) {
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
      libdeflate_alloc_compressor(level), &libdeflate_free_compressor);
  Bytes out(libdeflate_gzip_compress_bound(compressor.get(), data.size()));
  out.resize(
      libdeflate_gzip_compress(compressor.get(), data.data(), data.size(), out.data(), out.size()));
  return out;
}

// Some kilobytes that compress: words from a small set, so that blocks are dynamic and have
// matches.
Bytes text_of(std::size_t bytes, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  const char* const words[] = {"pawn ", "knight ", "takes ", "e4 ", "castles ", "check "};
  std::string text;
  while (text.size() < bytes) text += words[random() % std::size(words)];
  return bytes_of(std::string_view(text).substr(0, bytes));
}

Bytes noise_of(std::size_t bytes) {
  std::mt19937_64 random(3);
  Bytes noise(bytes);
  for (std::byte& b : noise) b = static_cast<std::byte>(random());
  return noise;
}

Bytes joined(Bytes first, const Bytes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct Inflated {
  GzipOutcome outcome;
  Bytes bytes;
};
// Through the inflater's own buffer; the input lies in memory of exactly its size.
Inflated inflated(const Bytes& input, std::size_t limit = kInflatedBytesMax) {
  GzipInflater inflater(limit);
  const Bytes exact(input.begin(), input.end());
  std::span<const std::byte> out;
  const GzipOutcome outcome = inflater.inflate(exact, &out);
  return {outcome, {out.begin(), out.end()}};
}
GzipStatus status_of(const Bytes& input) { return inflated(input).outcome.status; }

TEST(Gzip, GivesTheRecordsOfRealGames) {
  for (const testing::SampleGame& game : testing::kSampleGames) {
    const Inflated result = inflated(testing::sample_gzip(game));
    EXPECT_TRUE(result.outcome.ok()) << game.name;
    EXPECT_EQ(result.bytes.size(), game.frame_count * kV6RecordBytes) << game.name;
    EXPECT_EQ(result.outcome.inflated_bytes, result.bytes.size());
  }
}

TEST(Gzip, GivesBackDataOfEveryKindAndLevel) {
  for (const int level : {0, 1, 6, 12}) {
    for (const Bytes& data : {Bytes{}, bytes_of("a"), text_of(100'000), noise_of(70'000)}) {
      const Inflated result = inflated(gzip_of(data, level));
      EXPECT_TRUE(result.outcome.ok()) << "level " << level << ", " << data.size() << " bytes";
      EXPECT_EQ(result.bytes, data);
      EXPECT_EQ(result.outcome.trailing_bytes, 0U);
    }
  }
}

TEST(Gzip, JoinsMembers) {
  const Bytes first = text_of(70'000, 1);
  const Bytes second = text_of(90'000, 2);
  const Inflated result = inflated(joined(joined(gzip_of(first), gzip_of({})), gzip_of(second)));
  EXPECT_TRUE(result.outcome.ok());
  EXPECT_EQ(result.outcome.member_count, 3U);
  EXPECT_EQ(result.bytes, joined(first, second));
}

TEST(Gzip, ReadsHeadersWithEveryOptionalField) {
  const Bytes data = text_of(1000);
  const Bytes plain = gzip_of(data);
  // flags: header CRC 2, extra 4, name 8, comment 16
  Bytes header(plain.begin(), plain.begin() + 10);
  header[3] = std::byte{2 | 4 | 8 | 16};
  header = joined(header, {std::byte{3}, std::byte{0}, std::byte{9}, std::byte{0}, std::byte{9}});
  header = joined(header, bytes_of(std::string_view("game.bin\0a comment\0", 19)));
  const std::uint32_t sum = ::libdeflate_crc32(0, header.data(), header.size());
  header = joined(header, {std::byte(sum & 0xFF), std::byte(sum >> 8 & 0xFF)});
  const Bytes full = joined(header, Bytes(plain.begin() + 10, plain.end()));
  EXPECT_EQ(inflated(full).bytes, data);
  Bytes damaged = full;
  damaged[header.size() - 4] ^= std::byte{1};  // in the comment
  EXPECT_EQ(status_of(damaged), GzipStatus::kBadHeader);
  for (std::size_t bytes = 2; bytes < header.size(); ++bytes) {
    EXPECT_EQ(status_of(Bytes(full.begin(), full.begin() + static_cast<std::ptrdiff_t>(bytes))),
              GzipStatus::kTruncated)
        << bytes << " bytes of the header";
  }
}

TEST(Gzip, CountsWhatFollowsTheLastMemberUnlessItIsPadding) {
  const Bytes data = text_of(5000);
  for (const Bytes& tail : {Bytes(), bytes_of("garbage"), Bytes(1, std::byte{0x1F})}) {
    for (const std::size_t zeros : {0U, 512U}) {
      const Inflated result = inflated(joined(joined(gzip_of(data), Bytes(zeros)), tail));
      EXPECT_TRUE(result.outcome.ok());
      EXPECT_EQ(result.bytes, data);
      EXPECT_EQ(result.outcome.trailing_bytes, tail.size());
    }
  }
}

TEST(Gzip, JoinsMembersWithPaddingBetween) {
  const Bytes one = text_of(3000);
  const Bytes two = text_of(100);
  const Inflated result =
      inflated(joined(joined(gzip_of(one), Bytes(100)), joined(gzip_of({}), gzip_of(two))));
  EXPECT_EQ(result.bytes, joined(one, two));
  EXPECT_EQ(result.outcome.member_count, 3U);
}

TEST(GzipBuffer, GrowsWhenTheTrailerPromisedTooLittle) {
  // The last member is small, so the last four bytes speak of 10 bytes where 3,000,000 come out.
  const Bytes data = text_of(3'000'000);
  const Inflated result = inflated(joined(gzip_of(data), gzip_of(text_of(10))));
  EXPECT_TRUE(result.outcome.ok());
  EXPECT_EQ(result.bytes.size(), 3'000'010U);
}

TEST(GzipBuffer, IsNotTakenInByATrailerThatPromisesTooMuch) {
  Bytes lying = gzip_of(text_of(1000));
  std::memset(lying.data() + lying.size() - 4, 0xFF, 4);  // 4 GiB
  GzipInflater inflater;
  std::span<const std::byte> out;
  EXPECT_EQ(inflater.inflate(lying, &out).status, GzipStatus::kBadLength);
  EXPECT_TRUE(out.empty());
  EXPECT_LE(inflater.buffer_bytes(), std::size_t{1} << 20);
}

TEST(GzipBuffer, IsReusedAndGrowsNoMoreOnceItFits) {
  const Bytes large = gzip_of(text_of(500'000));
  const Bytes small = gzip_of(text_of(300));
  GzipInflater inflater;
  std::span<const std::byte> out;
  ASSERT_TRUE(inflater.inflate(large, &out).ok());
  const std::size_t grown = inflater.buffer_bytes();
  const std::byte* const where = out.data();
  for (const Bytes* input : {&small, &large, &small, &large}) {
    ASSERT_TRUE(inflater.inflate(*input, &out).ok());
    EXPECT_EQ(out.data(), where);
    EXPECT_EQ(inflater.buffer_bytes(), grown);
  }
}

TEST(GzipBuffer, StopsAtItsLimit) {
  const Bytes bomb = gzip_of(Bytes(10'000'000));
  const Inflated refused = inflated(bomb, 9'999'999);
  EXPECT_EQ(refused.outcome.status, GzipStatus::kTooLarge);
  EXPECT_TRUE(refused.bytes.empty());
  EXPECT_THAT(gzip_outcome_text(refused.outcome, 9'999'999), HasSubstr("9999999"));
  EXPECT_TRUE(inflated(bomb, 10'000'000).outcome.ok());
}

TEST(GzipInto, FillsTheCallersBytesAndNoneBehindThem) {
  const Bytes data = text_of(10'000);
  const Bytes input = gzip_of(data);
  GzipInflater inflater;
  Bytes room(data.size() + 100, std::byte{0xA5});
  const GzipOutcome outcome = inflater.inflate_into(input, std::span(room).first(data.size()));
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(outcome.inflated_bytes, data.size());
  EXPECT_EQ(Bytes(room.begin(), room.begin() + 10'000), data);
  EXPECT_EQ(Bytes(room.begin() + 10'000, room.end()), Bytes(100, std::byte{0xA5}));
  EXPECT_EQ(inflater.inflate_into(input, std::span(room).first(data.size() - 1)).status,
            GzipStatus::kTooLarge);
  EXPECT_EQ(inflater.inflate_into(input, {}).status, GzipStatus::kTooLarge);
  EXPECT_TRUE(inflater.inflate_into(gzip_of({}), {}).ok()) << "nothing fits into no room";
}

TEST(GzipVerbatim, HandsBackWhatIsNoGzipFile) {
  GzipInflater inflater;
  const Bytes plain = bytes_of("records as they are");
  std::span<const std::byte> out;
  GzipOutcome outcome = inflater.inflate_or_verbatim(plain, &out);
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(out.data(), plain.data());
  EXPECT_EQ(out.size(), plain.size());
  EXPECT_EQ(outcome.member_count, 0U);

  const Bytes data = text_of(100);
  const Bytes packed = gzip_of(data);
  outcome = inflater.inflate_or_verbatim(packed, &out);
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Bytes(out.begin(), out.end()), data);
}

TEST(GzipTrailer, TellsTheLengthWithoutInflating) {
  for (const testing::SampleGame& game : testing::kSampleGames) {
    const Bytes input = testing::sample_gzip(game);
    ASSERT_GE(input.size(), 4U);
    EXPECT_EQ(gzip_uncompressed_bytes(std::span(input).last<4>()),
              game.frame_count * kV6RecordBytes);
  }
}

TEST(GzipDamage, IsNotGzip) {
  EXPECT_EQ(status_of({}), GzipStatus::kNotGzip);
  EXPECT_EQ(status_of(bytes_of("\x1F")), GzipStatus::kNotGzip);
  EXPECT_EQ(status_of(bytes_of("version 6 records")), GzipStatus::kNotGzip);
}

// A download that stopped is told from a disk that lies, wherever it stopped.
TEST(GzipDamage, IsCutShortAtEveryByte) {
  for (const int level : {0, 1, 9}) {
    const Bytes whole = gzip_of(text_of(3000), level);
    for (std::size_t bytes = 2; bytes < whole.size(); ++bytes) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      ASSERT_EQ(status_of(cut), GzipStatus::kTruncated)
          << bytes << " of " << whole.size() << ", level " << level;
    }
  }
}

TEST(GzipDamage, IsCutShortInALaterMember) {
  const Bytes first = gzip_of(text_of(70'000));
  Bytes both = joined(first, gzip_of(text_of(9000, 2)));
  both.resize(both.size() - 100);
  const GzipOutcome outcome = inflated(both).outcome;
  EXPECT_EQ(outcome.status, GzipStatus::kTruncated);
  EXPECT_EQ(outcome.member_count, 1U);
  EXPECT_EQ(outcome.input_offset, first.size());
  EXPECT_THAT(gzip_outcome_text(outcome, 0),
              HasSubstr("member 2 at byte " + std::to_string(first.size())));
}

TEST(GzipDamage, IsABadHeader) {
  Bytes method = gzip_of(text_of(100));
  method[2] = std::byte{7};
  EXPECT_EQ(status_of(method), GzipStatus::kBadHeader);
  Bytes flags = gzip_of(text_of(100));
  flags[3] = std::byte{0x20};
  EXPECT_EQ(status_of(flags), GzipStatus::kBadHeader);
}

TEST(GzipDamage, IsABadChecksumOrLength) {
  const Bytes good = gzip_of(text_of(5000));
  Bytes checksum = good;
  checksum[good.size() - 8] ^= std::byte{1};
  EXPECT_EQ(status_of(checksum), GzipStatus::kBadChecksum);
  Bytes length = good;
  length[good.size() - 4] ^= std::byte{1};
  EXPECT_EQ(status_of(length), GzipStatus::kBadLength);
}

TEST(GzipDamage, IsBadData) {
  Bytes reserved_block = gzip_of(text_of(5000));
  reserved_block[10] |= std::byte{6};  // block type 3, which does not exist
  EXPECT_EQ(status_of(reserved_block), GzipStatus::kBadData);
  Bytes stored = gzip_of(noise_of(500), 0);
  stored[11] ^= std::byte{1};  // a stored block's length against its complement
  EXPECT_EQ(status_of(stored), GzipStatus::kBadData);
}

// Every byte of a member in turn: whatever it hits, the wrong bytes never pass for the right ones.
TEST(GzipDamage, NeverPassesForTheData) {
  const Bytes data = text_of(3000);
  const Bytes good = gzip_of(data);
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= std::byte{0x10};
    const Inflated result = inflated(bad);
    if (result.outcome.ok()) {
      // Time, extra flags and system in the header mean nothing here.
      EXPECT_TRUE(at >= 4 && at < 10) << "byte " << at;
      EXPECT_EQ(result.bytes, data);
    } else {
      EXPECT_TRUE(result.bytes.empty());
    }
  }
}

TEST(GzipDamage, OfOneInputLeavesTheNextAlone) {
  GzipInflater inflater;
  const Bytes data = text_of(20'000);
  const Bytes good = gzip_of(data);
  Bytes bad = good;
  bad.resize(good.size() / 2);
  std::span<const std::byte> out;
  EXPECT_FALSE(inflater.inflate(bad, &out).ok());
  EXPECT_TRUE(inflater.inflate(good, &out).ok());
  EXPECT_EQ(Bytes(out.begin(), out.end()), data);
}

// The walk is the judge of "cut short", so it must agree with the decoder about what is whole.
TEST(DeflateWalk, FinishesWhereTheDecoderDoes) {
  for (const int level : {0, 1, 6, 12}) {
    for (const Bytes& data : {Bytes{}, bytes_of("abc"), text_of(50'000), noise_of(70'000)}) {
      const Bytes member = gzip_of(data, level);
      const auto stream = std::span(member).subspan(10, member.size() - 18);
      EXPECT_EQ(walk_deflate(stream), DeflateEnd::kFinished) << "level " << level;
      if (data.size() < 1000) continue;
      EXPECT_EQ(walk_deflate(stream.first(stream.size() / 2)), DeflateEnd::kRanOut);
    }
  }
}

TEST(DeflateWalk, EndsOnNoise) {
  std::mt19937_64 random(53);
  for (int round = 0; round < 5000; ++round) {
    Bytes noise(random() % 200);
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    const DeflateEnd end = walk_deflate(noise);
    EXPECT_TRUE(end == DeflateEnd::kFinished || end == DeflateEnd::kRanOut ||
                end == DeflateEnd::kInvalid);
  }
}

}  // namespace
}  // namespace ringfeed::formats
