// How far something is that takes its time, and how long it will still take: for the log, the
// terminal, `status`, and whoever waits for an answer.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringfeed {
class ProgressStatus;
}

namespace ringfeed::metrics {

struct Progress {
  std::string name;  // the stage, or "snapshot", "drain"
  std::string text;  // "window: 812 of 100000 chunks"
  std::uint64_t done = 0;
  std::uint64_t total = 0;  // 0: no end is known
  std::optional<std::uint64_t> left_ms = {};

  [[nodiscard]] bool over() const { return done >= total; }
};

// What becomes of the work that is looked at now and then: its pace of the last half minute says
// how long it will still take.
class Pace {
 public:
  // nullopt: not known, as for a second after the first look, or while nothing moves. A number that
  // has gone back begins anew.
  std::optional<std::uint64_t> left_ms(std::uint64_t done, std::uint64_t total,
                                       std::uint64_t now_ms);

 private:
  std::deque<std::pair<std::uint64_t, std::uint64_t>> marks_;  // when, and how much was done
};

// Several that are under way at the same time, by their names.
class Paces {
 public:
  // Fills in what is left of each. One that is absent is forgotten.
  void look(std::vector<Progress>& all, std::uint64_t now_ms);

 private:
  std::map<std::string, Pace> paces_;
};

// The one that will take longest, if it can be said, or that has the smallest share done; nullptr:
// nothing has an end that is known.
[[nodiscard]] const Progress* longest(const std::vector<Progress>& all);

// As a supervisor has told it.
[[nodiscard]] Progress progress_of(const ProgressStatus& told);

// "about 14 s left"; "": not known.
[[nodiscard]] std::string left_text(const Progress& progress);
// "pool: window: 812 of 100000 chunks, about 14 s left"
[[nodiscard]] std::string progress_line(const Progress& progress);
// "[██████░░░░] 62 %"; "#" and "." where there is no UTF-8. "": no end is known.
[[nodiscard]] std::string progress_bar(const Progress& progress, bool utf8);

}  // namespace ringfeed::metrics
