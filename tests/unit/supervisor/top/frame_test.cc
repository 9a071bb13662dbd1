#include "supervisor/top/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <string>

#include "tests/unit/supervisor/top/messages.h"

namespace ringfeed::top {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What is shown of the feeds that were told of.
class Frames : public ::testing::Test {
 protected:
  Frames() { std::setlocale(LC_CTYPE, "C.UTF-8"); }
  ~Frames() override { std::setlocale(LC_CTYPE, "C"); }

  void show(const Told& told) {
    picture_ = picture_of(told.status, nullptr, told.metrics);
    story_.set_past(past_rates(picture_, told.metrics));
    story_.add(picture_, 100'000, 0);
    view_.feed = told.status.feed();
    now_.feeds = {{.name = view_.feed,
                   .presence = Heard::Presence::kAnswers,
                   .picture = &picture_,
                   .story = &story_}};
    now_.ms = 100'000;
  }

  // The frame as text, of which each line fits.
  std::string text(Size size, bool utf8 = true) {
    const Frame drawn = frame(now_, view_, size, utf8);
    EXPECT_LE(drawn.lines.size(), size.rows);
    std::string all;
    for (const Line& line : drawn.lines) {
      EXPECT_LE(line.width(), size.columns) << line.text();
      all += line.text() + "\n";
    }
    return all;
  }

  Picture picture_;
  Story story_;
  Now now_;
  View view_;
};

TEST_F(Frames, SayWhoWaitsForWhomAtEverySize) {
  show(feed_told());
  for (const Size size :
       {Size{24, 80}, Size{60, 200}, Size{10, 40}, Size{11, 41}, Size{500, 999}}) {
    const std::string all = text(size);
    EXPECT_THAT(all, HasSubstr("TRAINERS WAIT for stage 'pool'"));
    EXPECT_THAT(all, HasSubstr("▲ pool"));
    for (const char* const stage : {"source", "batches"}) EXPECT_THAT(all, HasSubstr(stage));
  }
}

TEST_F(Frames, HaveEverythingEssentialAt80By24) {
  show(feed_told());
  const std::string all = text({24, 80});
  for (const char* const part :
       {"lc0", "running for 61 min", "12.3 batches/s", "0/6 slots", "1 trainer", "9.1 GiB",
        "0 deaths", "last minute", "Another lane would", "ringfeed scale lc0 pool 3", "64/64",
        "train ", "train.py", "what has happened", "q quit"}) {
    EXPECT_THAT(all, HasSubstr(part));
  }
}

TEST_F(Frames, UseALargeScreen) {
  show(feed_told());
  const std::string all = text({60, 200});
  for (const char* const part : {"kind_of_pool", "supervisor 99", "→ batches", "the last minute",
                                 "slots full", "stage pool", "pool.1"}) {
    EXPECT_THAT(all, HasSubstr(part));
  }
}

TEST_F(Frames, OfEverySizeFit) {
  show(feed_told(3, "lc0", 40));
  for (const Page page : {Page::kFeed, Page::kFeeds, Page::kStage, Page::kWhy, Page::kHelp}) {
    view_.page = page;
    for (const char* const stage : {"", "pool"}) {
      view_.stage = stage;
      for (std::size_t rows = 1; rows < 70; rows += 3) {
        for (std::size_t columns = 1; columns < 230; columns += 7) {
          static_cast<void>(text({rows, columns}));
          static_cast<void>(text({rows, columns}, false));
        }
      }
    }
  }
}

TEST_F(Frames, SayThatATerminalIsTooSmall) {
  show(feed_told());
  EXPECT_THAT(text({5, 20}), HasSubstr("40 x 10"));
  EXPECT_THAT(text({1, 5}), HasSubstr("ring"));
}

TEST_F(Frames, SayThatNobodyIsThere) {
  show(feed_told(0));
  EXPECT_THAT(text({24, 80}), HasSubstr("no trainer is attached"));
  EXPECT_THAT(text({24, 80}), Not(HasSubstr("TRAINERS WAIT")));
}

TEST_F(Frames, SayThatBatchesWait) {
  Told told = feed_told();
  told.metrics.mutable_bottlenecks(0)->set_kind(BottleneckProto::TRAINERS);
  show(told);
  EXPECT_THAT(text({24, 80}), HasSubstr("trainers do not wait"));
  EXPECT_THAT(text({24, 80}), Not(HasSubstr("▲")));
}

TEST_F(Frames, SayWhatIsWrongAndKeepWhatIsKnown) {
  show(feed_told());
  now_.feeds[0].presence = Heard::Presence::kSilent;
  now_.feeds[0].trouble = "its supervisor has not answered within 2 s";
  now_.feeds[0].age_ms = 5'000;
  const std::string all = text({24, 80});
  EXPECT_THAT(all, HasSubstr("does not answer · as it was 5 s ago"));
  EXPECT_THAT(all, HasSubstr("has not answered within 2 s"));
  EXPECT_THAT(all, HasSubstr("▲ pool"));
}

TEST_F(Frames, ShowDetailsOfTheChosenStage) {
  show(feed_told(1, "lc0", 3));
  view_.stage = "pool";
  const std::string all = text({24, 80});
  for (const char* const part : {"stage pool", "kind_of_pool", "pool.0", "pool.2", "4711"}) {
    EXPECT_THAT(all, HasSubstr(part));
  }
}

TEST_F(Frames, ScrollThroughFortyLanes) {
  show(feed_told(1, "lc0", 40));
  view_.page = Page::kStage;
  view_.stage = "pool";
  EXPECT_THAT(text({24, 80}), Not(HasSubstr("pool.39")));
  view_.scroll = frame(now_, view_, {24, 80}, true).scroll_max;
  EXPECT_GT(view_.scroll, 20u);
  EXPECT_THAT(text({24, 80}), HasSubstr("pool.39"));
}

TEST_F(Frames, AreAsciiWhereTheTerminalIs) {
  Told told = feed_told();
  told.status.mutable_groups(0)->set_name("größe");
  told.status.mutable_trainers(0)->set_group("größe");
  show(told);
  for (const Page page : {Page::kFeed, Page::kFeeds, Page::kStage, Page::kWhy, Page::kHelp}) {
    view_.page = page;
    const std::string all = text({24, 80}, false);
    for (const char c : all) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << all;
  }
  view_.page = Page::kFeed;
  EXPECT_THAT(text({24, 80}, false), HasSubstr("gr??e"));
}

// A client names itself and its group as it likes.
TEST_F(Frames, LetNoNameIntoTheTerminal) {
  Told told = feed_told();
  told.status.mutable_trainers(0)->set_client("\x1b[2Jevil\nline");
  told.status.add_problems("bad \x1b]0;title\x07");
  told.status.mutable_stages(1)->set_name("pool\x1b[31m");
  show(told);
  for (const Size size : {Size{24, 80}, Size{60, 200}}) {
    const std::string all = text(size);
    EXPECT_THAT(all, Not(HasSubstr("\x1b")));
    EXPECT_THAT(all, Not(HasSubstr("\x07")));
    EXPECT_THAT(all, HasSubstr("\\x1b"));
  }
}

TEST_F(Frames, CutWideCharactersByTheirWidth) {
  Told told = feed_told();
  const std::string name(
      "訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者訓練者");
  told.status.mutable_groups(0)->set_name(name);
  told.status.mutable_trainers(0)->set_group(name);
  show(told);
  for (std::size_t columns = 40; columns < 100; ++columns) static_cast<void>(text({24, columns}));
  EXPECT_THAT(text({24, 80}), HasSubstr("訓練者訓"));
}

TEST_F(Frames, ListManyFeeds) {
  show(feed_told());
  const FeedNow one = now_.feeds[0];
  for (int i = 10; i < 60; ++i) {
    now_.feeds.push_back(one);
    now_.feeds.back().name = "feed" + std::to_string(i);
  }
  view_.page = Page::kFeeds;
  view_.feed = "feed59";
  const std::string all = text({24, 80});
  EXPECT_THAT(all, HasSubstr("feed59"));
  EXPECT_THAT(all, Not(HasSubstr("lc0")));
}

TEST_F(Frames, ArePrintedWhole) {
  Told told = feed_told();
  for (int i = 0; i < 100; ++i) told.status.add_problems("problem " + std::to_string(i));
  show(told);
  std::string all;
  for (const Line& line : printout(now_, view_, 80, true)) {
    EXPECT_LE(line.width(), 80u);
    all += line.text() + "\n";
  }
  EXPECT_THAT(all, HasSubstr("▲ pool"));
  EXPECT_THAT(all, HasSubstr("train.py"));
}

}  // namespace
}  // namespace ringfeed::top
