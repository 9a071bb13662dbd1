#include "supervisor/group/restart_budget.h"

#include <algorithm>

namespace ringfeed::process {

RestartBudget::Verdict RestartBudget::on_death(std::uint64_t now_ms, std::uint64_t life_ms,
                                               bool worked) {
  while (!deaths_.empty() && now_ms - deaths_.front() >= limits_.within_ms) deaths_.pop_front();
  deaths_.push_back(now_ms);
  quick_deaths_ = life_ms < kQuickLifeMs && !worked ? quick_deaths_ + 1 : 0;
  Verdict verdict;
  verdict.deaths = static_cast<std::uint32_t>(deaths_.size());
  verdict.give_up = deaths_.size() > limits_.max_restarts;
  if (!verdict.give_up && quick_deaths_ > 1) {
    verdict.delay_ms = limits_.backoff_ms_min;
    for (std::uint32_t i = 2; i < quick_deaths_ && verdict.delay_ms < limits_.backoff_ms_max; ++i) {
      verdict.delay_ms *= 2;
    }
    verdict.delay_ms = std::min(verdict.delay_ms, limits_.backoff_ms_max);
  }
  return verdict;
}

void RestartBudget::forgive(std::uint32_t deaths) {
  quick_deaths_ = 0;
  for (; deaths > 0 && !deaths_.empty(); --deaths) deaths_.pop_back();
}

}  // namespace ringfeed::process
