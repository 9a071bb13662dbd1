// The parts of the page of a feed, each as lines of a given width.
#pragma once

#include <cstddef>
#include <vector>

#include "supervisor/top/text.h"
#include "supervisor/top/view.h"

namespace ringfeed::top {

// How a part is drawn.
struct Paper {
  std::size_t columns = 80;
  bool utf8 = true;

  [[nodiscard]] Paper of(std::size_t width) const { return {width, utf8}; }
  [[nodiscard]] std::string clean(std::string_view text) const { return top::clean(text, utf8); }
  // Between words of a line.
  [[nodiscard]] const char* dot() const { return utf8 ? " · " : ", "; }
  [[nodiscard]] const char* arrow() const { return utf8 ? "→" : ">"; }
  [[nodiscard]] const char* mark() const { return utf8 ? "▲" : "!"; }
};

// ---- above: who waits for whom
[[nodiscard]] Line header(const Now& now, const FeedNow& feed, const Paper& paper);
[[nodiscard]] Line figures(const Picture& picture, const Paper& paper);
[[nodiscard]] Line minute(const FeedNow& feed, const Now& now, const Paper& paper);
// `lines_max`: of each sentence of `why`.
[[nodiscard]] Lines verdicts(const Picture& picture, const Paper& paper, std::size_t lines_max);
[[nodiscard]] Lines troubles(const FeedNow& feed, const Paper& paper, std::size_t lines_max);

// ---- the pipeline
// The titles and a line for each stage; of more stages than `rows_max` those around the chosen one.
[[nodiscard]] Lines stages(const Picture& picture, const View& view, const Paper& paper,
                           std::size_t rows_max);
// Lanes, queues and counters of one.
[[nodiscard]] Lines stage_details(const StageRow& stage, const Paper& paper);

// ---- below
[[nodiscard]] Lines trainers(const Picture& picture, const Paper& paper);
[[nodiscard]] Lines events(const FeedNow& feed, const Paper& paper);
// Curves of the last minute, `rows` high each.
[[nodiscard]] Lines curves(const FeedNow& feed, const Now& now, const Paper& paper,
                           std::size_t rows);

// ---- other pages
[[nodiscard]] Lines feeds(const Now& now, const View& view, const Paper& paper);
[[nodiscard]] Lines whole_why(const Picture& picture, const Paper& paper);
[[nodiscard]] Lines help(const Paper& paper);
[[nodiscard]] Line keys(const View& view, const Now& now, const Paper& paper);

}  // namespace ringfeed::top
