#include "supervisor/config/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringfeed::config {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("pool", "pool"), 0U);
  EXPECT_EQ(edit_distance("pool", "pol"), 1U);
  EXPECT_EQ(edit_distance("pol", "pool"), 1U);
  EXPECT_EQ(edit_distance("pool", "poal"), 1U);
  EXPECT_EQ(edit_distance("nmae", "name"), 1U);
  EXPECT_EQ(edit_distance("", "pool"), 4U);
  EXPECT_EQ(edit_distance("pool", ""), 4U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(EditDistance, DoesNotCountCase) { EXPECT_EQ(edit_distance("Pool", "pOOL"), 0U); }

TEST(NearestName, FindsWhatWasProbablyMeant) {
  const std::vector<std::string> names{"threads", "queue_capacity", "queue_bytes", "input"};
  EXPECT_EQ(nearest_name("thread", names), "threads");
  EXPECT_EQ(nearest_name("queue_byts", names), "queue_bytes");
  EXPECT_EQ(nearest_name("queueCapacity", names), "queue_capacity");
  EXPECT_EQ(nearest_name("inptu", names), "input");
}

TEST(NearestName, TakesTheStartOfALongerName) {
  const std::vector<std::string> names{"chunk_source_loader", "chunk_unpacker"};
  EXPECT_EQ(nearest_name("chunk_unpack", names), "chunk_unpacker");
}

TEST(NearestName, SaysNothingWhereNothingIsNear) {
  const std::vector<std::string> names{"threads", "input", "x"};
  EXPECT_EQ(nearest_name("compression", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("y", names), "") << "one letter is one edit away from every other";
  EXPECT_EQ(nearest_name(std::string(100'000, 'a'), names), "");
}

TEST(DidYouMean, ListsTheCandidatesWhereNoneIsNear) {
  const std::vector<std::string> names{"pool", "loader"};
  EXPECT_EQ(did_you_mean("pol", names, "there are"), "; did you mean 'pool'?");
  EXPECT_EQ(did_you_mean("mixer", names, "there are"), "; there are pool, loader");
  EXPECT_EQ(did_you_mean("mixer", {}, "there are"), "");
  const std::vector<std::string> verbs{"stop", "status"};
  EXPECT_EQ(did_you_mean("top", verbs, "there are"), "; there are stop, status")
      << "a short word is near many others";
  EXPECT_EQ(did_you_mean("stpo", verbs, "there are"), "; did you mean 'stop'?");
}

TEST(Names, StagesHaveNoDot) {
  EXPECT_TRUE(valid_stage_name("pool-2_b"));
  EXPECT_FALSE(valid_stage_name("pool.2"));
  EXPECT_TRUE(valid_feed_name("lc0.run-1"));
}

TEST(Names, AreOneToSixtyFourOfTheAllowedCharacters) {
  EXPECT_FALSE(valid_feed_name(""));
  EXPECT_TRUE(valid_feed_name(std::string(64, 'a')));
  EXPECT_FALSE(valid_feed_name(std::string(65, 'a')));
  for (const char* bad : {"a b", "a/b", "ä", "a\n", "a+b"})
    EXPECT_FALSE(valid_feed_name(bad)) << bad;
}

TEST(Names, AreNoOptionsAndNoDirectories) {
  for (const char* bad : {"..", ".", ".hidden", "-", "-rf", "--now", "--", "../x"}) {
    EXPECT_FALSE(valid_feed_name(bad)) << bad;
    EXPECT_FALSE(valid_stage_name(bad)) << bad;
  }
  for (const char* good : {"a..b", "a.", "a-", "_", "0"})
    EXPECT_TRUE(valid_feed_name(good)) << good;
}

}  // namespace
}  // namespace ringfeed::config
