#include "supervisor/top/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/supervisor/top/messages.h"

namespace ringfeed::top {
namespace {

using ::testing::ElementsAre;

class Keys : public ::testing::Test {
 protected:
  Keys() {
    const Told told = feed_told();
    picture_ = picture_of(told.status, nullptr, told.metrics);
    for (const char* const name : {"a", "b", "c"}) {
      now_.feeds.push_back({.name = name, .picture = &picture_});
    }
    view_.feed = "a";
  }
  bool type(Key key) { return press(key, now_, view_, 100, 20); }
  std::vector<std::string> order() const {
    std::vector<std::string> names;
    for (const StageRow* const stage : sorted(picture_, view_)) names.push_back(stage->name);
    return names;
  }

  Picture picture_;
  Now now_;
  View view_;
};

TEST_F(Keys, OnlyQuitLeaves) {
  for (int key = 0; key < static_cast<int>(Key::kQuit); ++key) {
    EXPECT_TRUE(type(static_cast<Key>(key)));
  }
  EXPECT_FALSE(type(Key::kQuit));
}

TEST_F(Keys, ArrowsChooseAStageAndStopAtTheEnds) {
  type(Key::kDown);
  EXPECT_EQ(view_.stage, "source");
  for (int i = 0; i < 5; ++i) type(Key::kDown);
  EXPECT_EQ(view_.stage, "batches");
  type(Key::kUp);
  EXPECT_EQ(view_.stage, "pool");
  type(Key::kEnter);
  EXPECT_EQ(view_.page, Page::kStage);
  type(Key::kBack);
  EXPECT_EQ(view_.page, Page::kFeed);
  type(Key::kBack);
  EXPECT_EQ(view_.stage, "");
}

TEST_F(Keys, LeadRoundTheFeeds) {
  type(Key::kDown);
  type(Key::kNextFeed);
  EXPECT_EQ(view_.feed, "b");
  EXPECT_EQ(view_.stage, "");
  type(Key::kLastFeed);
  type(Key::kLastFeed);
  EXPECT_EQ(view_.feed, "c");
  type(Key::kNextFeed);
  EXPECT_EQ(view_.feed, "a");
}

TEST_F(Keys, SortByAColumn) {
  EXPECT_THAT(order(), ElementsAre("source", "pool", "batches"));
  view_.sort = Sort::kBusy;
  EXPECT_THAT(order(), ElementsAre("pool", "batches", "source"));
  type(Key::kReverse);
  EXPECT_THAT(order(), ElementsAre("source", "batches", "pool"));
  view_ = {.feed = "a", .sort = Sort::kQueue};
  EXPECT_THAT(order(), ElementsAre("source", "pool", "batches"));
  view_.sort = Sort::kName;
  EXPECT_THAT(order(), ElementsAre("batches", "pool", "source"));
  view_.sort = Sort::kPipeline;
  type(Key::kSortLast);
  EXPECT_EQ(view_.sort, kLastSort);
  type(Key::kSortNext);
  EXPECT_EQ(view_.sort, Sort::kPipeline);
}

TEST_F(Keys, ScrollWithinThePage) {
  type(Key::kHelp);
  EXPECT_EQ(view_.page, Page::kHelp);
  type(Key::kPageDown);
  EXPECT_EQ(view_.scroll, 20u);
  type(Key::kEnd);
  EXPECT_EQ(view_.scroll, 100u);
  type(Key::kHome);
  type(Key::kUp);
  EXPECT_EQ(view_.scroll, 0u);
  type(Key::kHelp);
  EXPECT_EQ(view_.page, Page::kFeed);
}

// A feed that is chosen and ends while the list is shown is no longer in it.
TEST_F(Keys, BearThatTheChosenIsGone) {
  view_ = {.page = Page::kFeeds, .feed = "gone"};
  type(Key::kEnter);
  EXPECT_EQ(view_.page, Page::kFeeds);
  type(Key::kDown);
  EXPECT_EQ(view_.feed, "a");
  now_.feeds.clear();
  for (int key = 0; key < static_cast<int>(Key::kQuit); ++key) type(static_cast<Key>(key));
}

}  // namespace
}  // namespace ringfeed::top
