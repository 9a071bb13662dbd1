#include "supervisor/top/view.h"

#include <algorithm>

namespace ringfeed::top {
namespace {

double queue_fill(const StageRow& stage) {
  double most = 0;
  for (const QueueRow& queue : stage.queues) {
    if (queue.inside || queue.capacity == 0) continue;
    most = std::max(most, static_cast<double>(queue.fill) / static_cast<double>(queue.capacity));
  }
  return most;
}

// What a stage is sorted by; larger comes first.
double weight(const StageRow& stage, Sort sort) {
  const Shares shares = stage.shares.value_or(Shares{-1, -1, -1});
  switch (sort) {
    case Sort::kLanes:
      return stage.lanes;
    case Sort::kDeaths:
      return stage.deaths;
    case Sort::kRate:
      return stage.out_per_s.value_or(-1);
    case Sort::kBusy:
      return shares.busy;
    case Sort::kStarved:
      return shares.starved;
    case Sort::kBlocked:
      return shares.blocked;
    case Sort::kQueue:
      return queue_fill(stage);
    case Sort::kPipeline:
    case Sort::kName:
      break;
  }
  return 0;
}

// The element `by` places behind the chosen one, of a list that has an end at both ends; from
// nowhere, the first or the last.
std::size_t moved(std::size_t count, std::size_t chosen, long by) {
  if (chosen >= count) return by > 0 ? 0 : count - 1;
  const long place = static_cast<long>(chosen) + by;
  return static_cast<std::size_t>(std::clamp(place, 0L, static_cast<long>(count) - 1));
}

void choose_stage(const Now& now, View& view, long by) {
  const FeedNow* const feed = now.of(view.feed);
  if (feed == nullptr || feed->picture == nullptr) return;
  const std::vector<const StageRow*> stages = sorted(*feed->picture, view);
  if (stages.empty()) return;
  const auto chosen = std::find_if(stages.begin(), stages.end(),
                                   [&](const StageRow* one) { return one->name == view.stage; });
  const auto place = static_cast<std::size_t>(chosen - stages.begin());
  view.stage = stages[moved(stages.size(), place, by)]->name;
}

// `around`: behind the last comes the first.
void choose_feed(const Now& now, View& view, long by, bool around) {
  const std::size_t count = now.feeds.size();
  if (count == 0) return;
  const FeedNow* const chosen = now.of(view.feed);
  const std::size_t place =
      chosen == nullptr ? count : static_cast<std::size_t>(chosen - now.feeds.data());
  std::size_t next = moved(count, place, by);
  if (around && next == place) next = by > 0 ? 0 : count - 1;
  if (now.feeds[next].name != view.feed) view.stage.clear();
  view.feed = now.feeds[next].name;
}

void scroll(View& view, std::size_t scroll_max, long by) {
  const long place = static_cast<long>(std::min(view.scroll, scroll_max)) + by;
  view.scroll = static_cast<std::size_t>(std::clamp(place, 0L, static_cast<long>(scroll_max)));
}

void go(View& view, Page page) {
  view.page = page;
  view.scroll = 0;
}

void move(const Now& now, View& view, std::size_t scroll_max, long by) {
  if (view.page == Page::kFeed) return choose_stage(now, view, by);
  if (view.page == Page::kFeeds) return choose_feed(now, view, by, false);
  scroll(view, scroll_max, by);
}

void go_back(View& view) {
  if (view.page == Page::kFeed) {
    view.stage.clear();
  } else if (view.page != Page::kFeeds) {
    go(view, Page::kFeed);
  }
}

void enter(const Now& now, View& view) {
  if (view.page == Page::kFeeds) {
    if (now.of(view.feed) != nullptr) go(view, Page::kFeed);
  } else if (view.page == Page::kFeed && view.stage.empty()) {
    choose_stage(now, view, 1);
  } else if (view.page == Page::kFeed) {
    go(view, Page::kStage);
  }
}

void sort_by(View& view, int by) {
  if (view.page != Page::kFeed) return;
  const int count = static_cast<int>(kLastSort) + 1;
  view.sort = static_cast<Sort>((static_cast<int>(view.sort) + by + count) % count);
}

// The same key again leads back.
void toggle(View& view, Page page) { go(view, view.page == page ? Page::kFeed : page); }

}  // namespace

const FeedNow* Now::of(const std::string& feed) const {
  const auto found = std::find_if(feeds.begin(), feeds.end(),
                                  [&](const FeedNow& one) { return one.name == feed; });
  return found == feeds.end() ? nullptr : &*found;
}

std::vector<const StageRow*> sorted(const Picture& picture, const View& view) {
  std::vector<const StageRow*> stages;
  for (const StageRow& stage : picture.stages) stages.push_back(&stage);
  if (view.sort == Sort::kName) {
    std::ranges::stable_sort(stages, {}, [](const StageRow* one) { return one->name; });
  } else if (view.sort != Sort::kPipeline) {
    std::ranges::stable_sort(stages, std::greater<>(),
                             [&](const StageRow* one) { return weight(*one, view.sort); });
  }
  if (view.reversed) std::ranges::reverse(stages);
  return stages;
}

bool press(Key key, const Now& now, View& view, std::size_t scroll_max, std::size_t page_rows) {
  const long rows = std::max(1L, static_cast<long>(page_rows));
  constexpr long kFar = 1'000'000;
  switch (key) {
    case Key::kNone:
      break;
    case Key::kUp:
      move(now, view, scroll_max, -1);
      break;
    case Key::kDown:
      move(now, view, scroll_max, 1);
      break;
    case Key::kPageUp:
      move(now, view, scroll_max, -rows);
      break;
    case Key::kPageDown:
      move(now, view, scroll_max, rows);
      break;
    case Key::kHome:
      move(now, view, scroll_max, -kFar);
      break;
    case Key::kEnd:
      move(now, view, scroll_max, kFar);
      break;
    case Key::kEnter:
      enter(now, view);
      break;
    case Key::kBack:
      go_back(view);
      break;
    case Key::kNextFeed:
      choose_feed(now, view, 1, true);
      break;
    case Key::kLastFeed:
      choose_feed(now, view, -1, true);
      break;
    case Key::kFeeds:
      toggle(view, Page::kFeeds);
      break;
    case Key::kSortNext:
      sort_by(view, 1);
      break;
    case Key::kSortLast:
      sort_by(view, -1);
      break;
    case Key::kReverse:
      if (view.page == Page::kFeed) view.reversed = !view.reversed;
      break;
    case Key::kWhy:
      toggle(view, Page::kWhy);
      break;
    case Key::kHelp:
      toggle(view, Page::kHelp);
      break;
    case Key::kQuit:
      return false;
  }
  return true;
}

}  // namespace ringfeed::top
