// What objects in Python raise: counted by type, told once for each type.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

class ObjectErrors {
 public:
  // `stops`: an exception ends the feed. `faults`: what else the stage counts and says in the same
  // way, by names of its own; it declares their counters.
  ObjectErrors(const StageContext& context, bool stops,
               std::span<const std::string_view> faults = {});

  // Counts with the step, and says the traceback of the first of a type, a line of the log for each
  // of its lines. Does not return if exceptions end the feed.
  void count(Step& step, std::string_view error, std::string_view traceback,
             const std::uint64_t (&tag)[2]) noexcept;
  // Ends the feed, if exceptions do. `what`: is to blame.
  void stop(std::string_view error, std::string_view traceback, const std::uint64_t (&tag)[2],
            std::string_view what) const noexcept;
  // Says it, however often that has been said.
  void tell(std::string_view error, std::string_view traceback,
            const std::uint64_t (&tag)[2]) const noexcept;
  // For StageType::counters.
  static void declare(std::vector<CounterSpec>& counters);

 private:
  StageContext context_;
  bool stops_;
  std::vector<std::string> names_;
  std::vector<SkipReason> known_;  // by names_
  SkipReason other_;
  std::set<std::string, std::less<>> told_;
};

}  // namespace ringfeed
