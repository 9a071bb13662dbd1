// The specification of workers/kit/numpy_random.h; tests/data/chess/rng_vectors.json was
// drawn by CPython and NumPy.
#include "workers/kit/numpy_random.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

namespace ringfeed {
namespace {

using Json = nlohmann::json;

Json vectors() {
  return Json::parse(std::ifstream(RINGFEED_SOURCE_DIR "/tests/data/chess/rng_vectors.json"));
}

template <typename Stream>
std::vector<int> shuffled(Stream& stream) {
  std::vector<int> items(10);
  std::iota(items.begin(), items.end(), 0);
  stream.shuffle(std::span(items));
  return items;
}

TEST(PythonRandom, DrawsWhatPythonDraws) {
  const Json all = vectors();
  ASSERT_EQ(all.size(), 6U);
  for (const Json& vector : all) {
    const Json& expected = vector["python"];
    const auto seed = vector["seed"].get<std::uint64_t>();
    PythonRandom random(seed);
    for (const double value : expected["random"]) EXPECT_EQ(random.uniform(), value) << seed;
    for (const Json& bits : expected["getrandbits32"]) EXPECT_EQ(random.bits(32), bits) << seed;
    EXPECT_EQ(shuffled(random), expected["shuffle"].get<std::vector<int>>()) << seed;
    constexpr std::uint32_t kChoices[] = {1, 2, 3, 7, 8, 9, 100};
    for (std::size_t i = 0; i < std::size(kChoices); ++i) {
      EXPECT_EQ(random.below(kChoices[i]), expected["choice"][i]) << seed;
    }
    for (std::uint32_t n = 1; n <= 5; ++n) {
      EXPECT_EQ(1 + random.below(n), expected["randint"][n - 1]) << seed;
    }
  }
}

TEST(NumpyRandom, DrawsWhatNumpyDraws) {
  for (const Json& vector : vectors()) {
    const Json& expected = vector["numpy_legacy"];
    NumpyRandom random(vector["seed"].get<std::uint32_t>());
    EXPECT_EQ(shuffled(random), expected["shuffle"].get<std::vector<int>>());
    for (const double value : expected["gumbel"]) EXPECT_DOUBLE_EQ(random.gumbel(), value);
    for (const double value : expected["random_sample"]) EXPECT_EQ(random.uniform(), value);
  }
}

// Seeds of two words, and beyond the words that are made at once.
TEST(PythonRandom, GoesOn) {
  PythonRandom random(std::uint64_t{1} << 40);
  EXPECT_EQ(random.bits(32), 445128065U);
  EXPECT_EQ(random.bits(32), 1517081360U);
  for (int i = 2; i < 4999; ++i) (void)random.bits(32);
  EXPECT_EQ(random.bits(32), 3452097755U);
  EXPECT_EQ(PythonRandom((std::uint64_t{1} << 40) + (std::uint64_t{1} << 32)).bits(32), 506701397U);
}

}  // namespace
}  // namespace ringfeed
