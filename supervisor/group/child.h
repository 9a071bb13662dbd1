// The life of a worker process as a table: state x event -> state and what to do.
//
//                  state
//   event          starting   running    waiting    stopping  replacing
//   ready          running    -          -          -         -
//   finished       done       done       -          gone      done
//   died_again     starting*  starting*  -          gone      starting*
//   died_later     waiting    waiting    -          gone      starting*
//   died_for_good  lost       lost       -          gone      starting*
//   time           -          -          starting*  -         -
//   stop           stopping   stopping   gone       -         stopping
//   replace        -          replacing  -          -         -
//
//   -  nothing changes; in done, gone and lost nothing ever does
//   *  a process is started
//
// `finished` is exit status 0 with all lanes at their end, or after an order to stop. Every other
// end is a death; the restart budget says whether the process is started again at once, later, or
// not.
#pragma once

#include <cstdint>
#include <string_view>

namespace ringfeed::process {

enum class ChildState : std::uint8_t {
  kStarting,   // started, has not said that it is ready
  kRunning,    // runs its lanes
  kWaiting,    // dead, will be started when the backoff is over
  kStopping,   // has been told to end
  kReplacing,  // has been told to end; another process follows
  kDone,       // its lanes have finished
  kGone,       // ended as told
  kLost,       // died once too often
};

enum class ChildEvent : std::uint8_t {
  kReady,
  kFinished,
  kDiedAgain,
  kDiedLater,
  kDiedForGood,
  kTime,
  kStop,
  kReplace,
};

enum class ChildAction : std::uint8_t {
  kNothing,
  kStart,       // a process now
  kStartLater,  // a process after the backoff
  kOrderEnd,    // tell the process to end
  kReportEnd,   // this group is over: done or gone
  kFailFeed,    // the feed cannot go on
};

struct ChildStep {
  ChildState state;
  ChildAction action;
  friend constexpr bool operator==(const ChildStep&, const ChildStep&) = default;
};

[[nodiscard]] ChildStep next_step(ChildState state, ChildEvent event) noexcept;
[[nodiscard]] std::string_view name_of(ChildState state) noexcept;
// Is there a process, or will there be one again?
[[nodiscard]] constexpr bool is_over(ChildState state) noexcept {
  return state == ChildState::kDone || state == ChildState::kGone || state == ChildState::kLost;
}

}  // namespace ringfeed::process
