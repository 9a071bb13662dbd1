// How often a stage group may die, and how soon it is started again.
//
// The first restart is immediate. If a life was shorter than kQuickLifeMs and did no step, the next
// restart waits: backoff_ms_min, then twice as long each time, up to backoff_ms_max. More than
// max_restarts deaths within `within_ms` end the feed. Deaths that a record explains do not count;
// that record is set aside.
#pragma once

#include <cstdint>
#include <deque>

namespace ringfeed::process {

// A process that has lived this long did not die of its start.
inline constexpr std::uint64_t kQuickLifeMs = 1000;

struct RestartLimits {
  std::uint32_t max_restarts = 10;
  std::uint64_t within_ms = 60'000;
  std::uint64_t backoff_ms_min = 10;
  std::uint64_t backoff_ms_max = 5'000;
};

class RestartBudget {
 public:
  explicit RestartBudget(const RestartLimits& limits) : limits_(limits) {}

  struct Verdict {
    bool give_up = false;
    std::uint64_t delay_ms = 0;
    std::uint32_t deaths = 0;  // within the period, including this one
  };
  // The process died at `now_ms`, `life_ms` after its start; `worked`: it did a step.
  Verdict on_death(std::uint64_t now_ms, std::uint64_t life_ms, bool worked);
  // The last `deaths` are explained and no longer count.
  void forgive(std::uint32_t deaths);

 private:
  RestartLimits limits_;
  std::deque<std::uint64_t> deaths_;  // times within the period
  std::uint32_t quick_deaths_ = 0;    // in a row
};

}  // namespace ringfeed::process
