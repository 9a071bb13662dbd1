// The specification of ringfeed/shm/crc32c.h.
#include "ringfeed/shm/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "ringfeed/shm/abi.h"

namespace ringfeed::shm {
namespace {

TEST(Crc32c, GivesThePublishedValues) {
  // RFC 3720, B.4.
  std::vector<std::uint8_t> bytes(32, 0);
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), 0x8a9136aaU);
  bytes.assign(32, 0xff);
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), 0x62a8ab43U);
  for (std::uint8_t i = 0; i < 32; ++i) bytes[i] = i;
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), 0x46dd794eU);
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(crc32c(kDigits.data(), kDigits.size()), 0xe3069283U);
  EXPECT_EQ(crc32c(nullptr, 0), 0U);
}

TEST(Crc32c, IsTheSameInEveryWayForEveryLengthAndPlace) {
  std::mt19937 random(1);
  std::vector<std::uint8_t> bytes(64 * 1024);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  // 12,288 bytes are what the quick one takes at once.
  for (const std::size_t count :
       {0UL, 1UL, 7UL, 8UL, 9UL, 63UL, 4096UL, 12'287UL, 12'288UL, 12'289UL, 24'576UL, 40'001UL}) {
    for (const std::size_t at : {0UL, 1UL, 5UL}) {
      const std::uint32_t expected = crc32c_small(bytes.data() + at, count);
      EXPECT_EQ(crc32c(bytes.data() + at, count), expected) << count << " at " << at;
      EXPECT_EQ(crc32c_portable(bytes.data() + at, count), expected) << count << " at " << at;
    }
  }
}

TEST(Crc32c, EveryBitCounts) {
  std::vector<std::uint8_t> bytes(12'288 + 100, 0x5a);
  const std::uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += 37) {
    bytes[at] ^= static_cast<std::uint8_t>(1U << at % 8);
    EXPECT_NE(crc32c(bytes.data(), bytes.size()), whole) << at;
    bytes[at] ^= static_cast<std::uint8_t>(1U << at % 8);
  }
}

}  // namespace
}  // namespace ringfeed::shm
