// What somebody looks at, and what keys do to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/top/asker.h"
#include "supervisor/top/picture.h"
#include "supervisor/top/story.h"

namespace ringfeed::top {

enum class Page { kFeed, kFeeds, kStage, kWhy, kHelp };
enum class Sort { kPipeline, kName, kLanes, kDeaths, kRate, kBusy, kStarved, kBlocked, kQueue };
inline constexpr Sort kLastSort = Sort::kQueue;

struct View {
  Page page = Page::kFeed;
  std::string feed = {};   // that is shown, or chosen in the list
  std::string stage = {};  // that is chosen; "": none
  Sort sort = Sort::kPipeline;
  bool reversed = false;
  std::size_t scroll = 0;  // lines, of a page that is longer than the screen
};

// A feed as it is now.
struct FeedNow {
  std::string name;
  Heard::Presence presence = Heard::Presence::kAsked;
  std::string trouble = {};
  const Picture* picture = nullptr;  // null: it has not answered yet
  const Story* story = nullptr;      // null: nobody has looked at it yet
  std::uint64_t age_ms = 0;          // of the picture
};

struct Now {
  std::vector<FeedNow> feeds = {};  // by name
  std::uint64_t ms = 0;             // CLOCK_MONOTONIC
  std::int64_t time_s = 0;          // CLOCK_REALTIME
  std::string note = {};            // what went wrong here, for the last line

  [[nodiscard]] const FeedNow* of(const std::string& feed) const;
};

// The stages as they are sorted.
[[nodiscard]] std::vector<const StageRow*> sorted(const Picture& picture, const View& view);

enum class Key {
  kNone,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kEnter,
  kBack,      // Escape, Backspace
  kNextFeed,  // Tab, n
  kLastFeed,  // Shift-Tab, p
  kFeeds,     // f
  kSortNext,  // >, s
  kSortLast,  // <
  kReverse,   // r
  kWhy,       // w
  kHelp,      // ?, h
  kQuit,      // q
};

// False: somebody wants to leave. `scroll_max`: of the page as it was last drawn; `page_rows`: how
// far a page goes.
[[nodiscard]] bool press(Key key, const Now& now, View& view, std::size_t scroll_max,
                         std::size_t page_rows);

}  // namespace ringfeed::top
