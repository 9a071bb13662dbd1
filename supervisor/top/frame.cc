#include "supervisor/top/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "supervisor/top/parts.h"

namespace ringfeed::top {
namespace {

// From so many columns on, what is below the pipeline stands side by side.
constexpr std::size_t kWide = 140;
constexpr std::size_t kGap = 3;

void append(Lines& to, Lines more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// At most so many lines of a table, of which the last says how many are not seen.
Lines shortened(Lines lines, std::size_t rows, const Paper& paper) {
  if (lines.size() <= rows) return lines;
  const std::size_t hidden = lines.size() - rows + 1;
  lines.resize(rows);
  if (rows > 1) {
    lines.back() = Line(fmt::format("   {} more", hidden), Tone::kDim);
    lines.back().cut(paper.columns, paper.utf8);
  }
  return lines;
}

const StageRow* stage_of(const FeedNow& feed, const std::string& name) {
  if (feed.picture == nullptr) return nullptr;
  const auto found = std::ranges::find(feed.picture->stages, name, &StageRow::name);
  return found == feed.picture->stages.end() ? nullptr : &*found;
}

// The one whose details are worth most where none was chosen.
const StageRow* interesting(const FeedNow& feed, const View& view) {
  if (const StageRow* const chosen = stage_of(feed, view.stage)) return chosen;
  const auto found = std::ranges::find(feed.picture->stages, true, &StageRow::limits);
  if (found != feed.picture->stages.end()) return &*found;
  return feed.picture->stages.empty() ? nullptr : &feed.picture->stages.back();
}

Lines above(const Now& now, const FeedNow& feed, Size size, const Paper& paper) {
  Lines lines{header(now, feed, paper)};
  const bool low = size.rows < 16;
  if (feed.picture != nullptr && size.rows >= 12) lines.push_back(figures(*feed.picture, paper));
  if (size.rows >= 18) {
    if (Line curve = minute(feed, now, paper); !curve.pieces.empty()) lines.push_back(curve);
  }
  append(lines, troubles(feed, paper, size.rows < 30 ? (low ? 1 : 3) : 10));
  if (feed.picture == nullptr) return lines;
  const std::size_t outputs = std::max<std::size_t>(1, feed.picture->outputs.size());
  const std::size_t sentence = low ? 1 : size.rows < 30 ? (outputs > 1 ? 1 : 3) : 8;
  append(lines, verdicts(*feed.picture, paper, sentence));
  return lines;
}

// Trainers first, then events, in so many rows.
Lines trainers_and_events(const FeedNow& feed, std::size_t rows, const Paper& paper) {
  Lines who = trainers(*feed.picture, paper);
  Lines what = events(feed, paper);
  // Events have a third, and more if trainers leave it.
  const std::size_t third = std::min(what.size(), std::max<std::size_t>(2, rows / 3));
  const std::size_t for_who = rows > third + 1 ? rows - third - 1 : rows;
  Lines lines = shortened(std::move(who), for_who, paper);
  if (rows >= lines.size() + 3) {
    lines.emplace_back();
    const std::size_t left = rows - lines.size();
    if (what.size() > left) what.resize(left);  // older events are of no interest
    append(lines, std::move(what));
  }
  return lines;
}

Lines side_by_side(const Lines& left, const Lines& right, std::size_t left_width,
                   const Paper& paper) {
  Lines lines;
  for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    Line& line = lines.emplace_back();
    if (i < left.size()) line.add(left[i]);
    line.cut(left_width, paper.utf8).fill(left_width + kGap);
    if (i < right.size()) line.add(right[i]);
  }
  return lines;
}

Lines below(const Now& now, const FeedNow& feed, const View& view, std::size_t rows,
            const Paper& paper) {
  const bool chosen = stage_of(feed, view.stage) != nullptr;
  if (paper.columns >= kWide) {
    const std::size_t half = (paper.columns - kGap) / 2;
    Lines right;
    if (rows >= 20) {
      append(right, curves(feed, now, paper.of(half), rows >= 36 ? 4 : 2));
      right.emplace_back();
    }
    if (const StageRow* const stage = interesting(feed, view)) {
      append(right, stage_details(*stage, paper.of(half)));
    }
    right = shortened(std::move(right), rows, paper);
    return side_by_side(trainers_and_events(feed, rows, paper.of(half)), right, half, paper);
  }
  Lines lines;
  if (chosen) {
    lines = shortened(stage_details(*stage_of(feed, view.stage), paper), rows, paper);
    if (rows < lines.size() + 6) return lines;
    lines.emplace_back();
  }
  const std::size_t left = rows - lines.size();
  const std::size_t for_curves = left >= 30 && !chosen ? 13 : 0;
  append(lines, trainers_and_events(feed, left - for_curves, paper));
  if (for_curves != 0) {
    lines.emplace_back();
    append(lines, curves(feed, now, paper, 3));
  }
  return lines;
}

Lines feed_page(const Now& now, const FeedNow& feed, const View& view, Size size,
                const Paper& paper) {
  Lines lines = above(now, feed, size, paper);
  if (feed.picture == nullptr) return lines;
  if (size.rows >= 20) lines.emplace_back();
  const std::size_t left = size.rows - std::min(size.rows, lines.size());
  if (left < 2) return lines;
  // What is below has a third of a screen of the usual size.
  const std::size_t wanted = feed.picture->stages.size();
  const std::size_t for_below = size.rows >= 20 ? std::min<std::size_t>(8, left / 2) : 0;
  const std::size_t for_stages =
      std::min(wanted, std::max<std::size_t>(1, left - 1 - std::min(for_below, left - 2)));
  append(lines, stages(*feed.picture, view, paper, for_stages));
  const std::size_t rest = size.rows - std::min(size.rows, lines.size());
  if (rest < 3) return lines;
  lines.emplace_back();
  append(lines, below(now, feed, view, rest - 1, paper));
  return lines;
}

// What is longer than the screen scrolls below its title.
void put_scrolled(Line title, const Lines& lines, const View& view, std::size_t rows, Frame& out) {
  out.lines.push_back(std::move(title));
  const std::size_t room = rows > 1 ? rows - 1 : 1;
  out.scroll_max = lines.size() > room ? lines.size() - room : 0;
  const std::size_t first = std::min(view.scroll, out.scroll_max);
  for (std::size_t i = first; i < std::min(lines.size(), first + room); ++i) {
    out.lines.push_back(lines[i]);
  }
}

void put_page(const Now& now, const FeedNow& feed, const View& view, Size size, const Paper& paper,
              Frame& out) {
  const StageRow* const stage = stage_of(feed, view.stage);
  if (view.page == Page::kWhy && feed.picture != nullptr) {
    put_scrolled(header(now, feed, paper), whole_why(*feed.picture, paper), view, size.rows, out);
  } else if (view.page == Page::kStage && stage != nullptr) {
    put_scrolled(header(now, feed, paper), stage_details(*stage, paper), view, size.rows, out);
  } else {
    out.lines = feed_page(now, feed, view, size, paper);
  }
}

Frame too_small(Size size, bool utf8) {
  Frame out;
  const std::string text = fmt::format("ringfeed top needs {} x {}, this is {} x {}",
                                       kLeast.columns, kLeast.rows, size.columns, size.rows);
  for (const std::string& line : wrapped(text, size.columns)) {
    if (out.lines.size() < size.rows) out.lines.push_back(Line(cut(line, size.columns, utf8)));
  }
  return out;
}

}  // namespace

Frame frame(const Now& now, const View& view, Size size, bool utf8) {
  if (size.rows < kLeast.rows || size.columns < kLeast.columns) return too_small(size, utf8);
  const Paper paper{size.columns, utf8};
  const Size inner{size.rows - 1, size.columns};  // the last line is that of the keys
  Frame out;
  const FeedNow* const feed = now.of(view.feed);
  if (view.page == Page::kHelp) {
    put_scrolled(Line(" ringfeed top: keys and columns", Tone::kBold), help(paper), view,
                 inner.rows, out);
  } else if (view.page == Page::kFeeds || feed == nullptr) {
    out.lines.push_back(Line(" feeds of this machine", Tone::kBold));
    if (now.feeds.empty()) out.lines.push_back(Line("   none runs; looking for one", Tone::kDim));
    Lines list = now.feeds.empty() ? Lines{} : feeds(now, view, paper);
    // The chosen one is seen.
    if (list.size() + 1 > inner.rows && feed != nullptr) {
      const auto place = static_cast<std::size_t>(feed - now.feeds.data());
      const std::size_t room = inner.rows - 2;
      const std::size_t first =
          std::min(place - std::min(place, room / 2), now.feeds.size() - room);
      list.erase(list.begin() + 1, list.begin() + 1 + static_cast<long>(first));
    }
    append(out.lines, std::move(list));
  } else {
    put_page(now, *feed, view, inner, paper, out);
  }
  out.lines.resize(inner.rows);
  for (Line& line : out.lines) line.cut(size.columns, utf8);
  if (now.note.empty()) {
    out.lines.push_back(keys(view, now, paper));
  } else {
    out.lines.push_back(Line(" " + paper.clean(now.note), Tone::kBad).cut(size.columns, utf8));
  }
  return out;
}

Lines printout(const Now& now, const View& view, std::size_t columns, bool utf8) {
  constexpr std::size_t kNoEnd = 100'000;
  const Paper paper{std::max<std::size_t>(columns, kLeast.columns), utf8};
  const FeedNow* const feed = now.of(view.feed);
  if (feed == nullptr) return {};
  Lines lines = above(now, *feed, {kNoEnd, paper.columns}, paper);
  if (feed->picture == nullptr) return lines;
  lines.emplace_back();
  append(lines, stages(*feed->picture, view, paper, kNoEnd));
  lines.emplace_back();
  append(lines, trainers(*feed->picture, paper));
  if (feed->picture->skips.empty()) return lines;
  lines.emplace_back();
  append(lines, events(*feed, paper));
  return lines;
}

}  // namespace ringfeed::top
