#include "supervisor/group/child.h"

#include <array>
#include <cstddef>

namespace ringfeed::process {
namespace {

using enum ChildState;
using enum ChildAction;

constexpr std::size_t kStates = 8;
constexpr std::size_t kEvents = 8;

constexpr ChildStep stay(ChildState state) { return {state, kNothing}; }

// Rows in the order of ChildState, columns in that of ChildEvent.
constexpr std::array<std::array<ChildStep, kEvents>, kStates> kTable{{
    {{{kRunning, kNothing},
      {kDone, kReportEnd},
      {kStarting, kStart},
      {kWaiting, kStartLater},
      {kLost, kFailFeed},
      stay(kStarting),
      {kStopping, kOrderEnd},
      stay(kStarting)}},
    {{stay(kRunning),
      {kDone, kReportEnd},
      {kStarting, kStart},
      {kWaiting, kStartLater},
      {kLost, kFailFeed},
      stay(kRunning),
      {kStopping, kOrderEnd},
      {kReplacing, kOrderEnd}}},
    {{stay(kWaiting),
      stay(kWaiting),
      stay(kWaiting),
      stay(kWaiting),
      stay(kWaiting),
      {kStarting, kStart},
      {kGone, kReportEnd},
      stay(kWaiting)}},
    {{stay(kStopping),
      {kGone, kReportEnd},
      {kGone, kReportEnd},
      {kGone, kReportEnd},
      {kGone, kReportEnd},
      stay(kStopping),
      stay(kStopping),
      stay(kStopping)}},
    {{stay(kReplacing),
      {kDone, kReportEnd},
      {kStarting, kStart},
      {kStarting, kStart},
      {kStarting, kStart},
      stay(kReplacing),
      {kStopping, kOrderEnd},
      stay(kReplacing)}},
    {{stay(kDone), stay(kDone), stay(kDone), stay(kDone), stay(kDone), stay(kDone), stay(kDone),
      stay(kDone)}},
    {{stay(kGone), stay(kGone), stay(kGone), stay(kGone), stay(kGone), stay(kGone), stay(kGone),
      stay(kGone)}},
    {{stay(kLost), stay(kLost), stay(kLost), stay(kLost), stay(kLost), stay(kLost), stay(kLost),
      stay(kLost)}},
}};

}  // namespace

ChildStep next_step(ChildState state, ChildEvent event) noexcept {
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

std::string_view name_of(ChildState state) noexcept {
  constexpr std::array<std::string_view, kStates> kNames{
      "starting", "running", "waiting", "stopping", "replacing", "done", "gone", "lost"};
  return kNames[static_cast<std::size_t>(state)];
}

}  // namespace ringfeed::process
