// What objects in Python raise: counted by type, told once for each type.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

class ObjectErrors {
 public:
  // `stops`: an exception ends the feed.
  ObjectErrors(const StageContext& context, bool stops);

  // Counts with the step, and says the traceback of the first of a type, a line of the log for each
  // of its lines. Does not return if exceptions end the feed.
  void count(Step& step, std::string_view error, std::string_view traceback,
             const std::uint64_t (&tag)[2]) noexcept;
  // Says it, however often that has been said.
  void tell(std::string_view error, std::string_view traceback,
            const std::uint64_t (&tag)[2]) const noexcept;
  // For StageType::counters.
  static void declare(std::vector<CounterSpec>& counters);

 private:
  StageContext context_;
  bool stops_;
  std::vector<SkipReason> known_;
  SkipReason other_;
  std::set<std::string, std::less<>> told_;
};

}  // namespace ringfeed
