#include "supervisor/feed/scale_task.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/failpoint.h"

namespace ringfeed::process {
namespace {

// For what an earlier change has left to be worked off.
constexpr std::uint64_t kBetweenLooksMs = 50;

using layout::FeedLayout;
using layout::FeedMemory;
using layout::LanePlan;
using layout::NodeLayout;

// Where the ports of a lane are.
class Positions {
 public:
  Positions(const FeedMemory& memory, const LanePlan& lane) {
    const ssize_t got = ::pread(memory.fd(lane.arena_segment), words_.data(), sizeof words_,
                                static_cast<off_t>(shm::kRuntimeWordsOffset));
    if (got != static_cast<ssize_t>(sizeof words_)) {
      throw Error(ErrorCode::kIo, fmt::format("the arena of lane {} cannot be read: {}",
                                              lane.name(), std::strerror(errno)));
    }
  }
  [[nodiscard]] std::uint64_t input(std::size_t port) const {
    return position(shm::kInputWords, port);
  }
  [[nodiscard]] std::uint64_t output(std::size_t port) const {
    return position(shm::kOutputWords, port);
  }

 private:
  [[nodiscard]] std::uint64_t position(std::uint64_t offset, std::size_t port) const {
    const std::uint64_t stored = words_[offset / sizeof(std::uint64_t) + port];
    return stored == 0 ? 0 : stored - 1;
  }
  std::array<std::uint64_t, (shm::kOutputWords / 8) + shm::kPortsMax> words_{};
};

std::vector<const LanePlan*> lanes_of(const FeedLayout& layout, std::uint32_t node) {
  const NodeLayout& laid_out = layout.nodes[node];
  std::vector<const LanePlan*> lanes;
  for (std::uint32_t i = 0; i < laid_out.lanes_max; ++i) {
    lanes.push_back(&layout.lanes[laid_out.first_lane + i]);
  }
  return lanes;
}

bool is_ordered(const FeedLayout& layout, const std::vector<std::uint32_t>& rings) {
  return layout.ordered && layout.rings[rings.front()].geometry.overflow == shm::Overflow::kBlock;
}

// Where units are shared in rotation: how far the lanes at both ends of the node's edges are.
struct Reached {
  std::uint64_t first = shm::kNoUnit;  // that somebody has not done
  std::uint64_t from = 0;              // that nobody has begun, and none after it
};
Reached reached(const FeedMemory& memory, std::uint32_t node) {
  const FeedLayout& layout = memory.layout();
  Reached all;
  const auto add = [&](std::uint32_t of, const LanePlan& lane, std::uint64_t position,
                       std::uint64_t block) {
    // A lane that has no unit now may have had one that is beyond all others'.
    all.from = std::max(all.from, position);
    const std::uint64_t unit = memory.node_lanes(of).next(lane.number, position, block);
    if (unit == shm::kNoUnit) return;
    all.first = std::min(all.first, unit);
    all.from = std::max(all.from, unit + 1);  // it may have been begun
  };
  for (std::uint32_t other = 0; other < layout.nodes.size(); ++other) {
    for (const LanePlan* lane : lanes_of(layout, other)) {
      const Positions positions(memory, *lane);
      for (std::size_t i = 0; i < lane->inputs.size(); ++i) {
        const layout::InputPlan& input = lane->inputs[i];
        if ((other != node && input.from_node != node) || !is_ordered(layout, input.rings)) {
          continue;
        }
        add(other, *lane, positions.input(i), std::max<std::uint64_t>(1, input.block));
      }
      for (std::size_t i = 0; i < lane->outputs.size(); ++i) {
        const layout::OutputPlan& output = lane->outputs[i];
        if (output.feed || (other != node && output.to_node != node) ||
            !is_ordered(layout, output.rings)) {
          continue;
        }
        add(other, *lane, positions.output(i), 1);
      }
    }
  }
  return all;
}

bool has_ended(const FeedMemory& memory, std::uint32_t node) {
  const std::vector<const LanePlan*> lanes = lanes_of(memory.layout(), node);
  return std::any_of(lanes.begin(), lanes.end(),
                     [&](const LanePlan* lane) { return memory.lane_finished(lane->index); });
}

}  // namespace

ScaleTask::ScaleTask(EventLoop& loop, const FeedMemory& memory, std::uint32_t node,
                     std::uint32_t lanes, std::uint64_t patience_ms, Hooks hooks)
    : loop_(loop),
      memory_(memory),
      node_(node),
      lanes_(lanes),
      patience_ms_(patience_ms),
      hooks_(std::move(hooks)),
      parking_(loop, memory, hooks_.park),
      began_ms_(now_ms()) {
  timer_ = loop_.after(0, [this] { look(); });
}

ScaleTask::~ScaleTask() {
  if (timer_) loop_.cancel(*timer_);
}

// Without stopping anybody: units are only ever done, so who is beyond `from` stays there.
void ScaleTask::look() {
  timer_.reset();
  guarded([this] {
    if (reached(memory_, node_).first < memory_.node_lanes(node_).from) return wait();
    parking_.begin([this](const std::optional<Error>& error) {
      guarded([this, &error] {
        if (error) throw Error(*error);
        RF_FAILPOINT("supervisor.scale.parked");
        decide();
      });
    });
  });
}

// Whatever goes wrong is the answer, and the lanes go on.
void ScaleTask::guarded(const std::function<void()>& part) {
  std::optional<Error> error;
  try {
    return part();
  } catch (const Error& met) {
    error = met;
  } catch (const std::exception&) {
    error.emplace(ErrorCode::kNoMemory, "no memory");
  }
  finish(std::move(*error));
}

void ScaleTask::wait() {
  if (now_ms() - began_ms_ >= patience_ms_) {
    return finish(Error(ErrorCode::kBusy,
                        fmt::format("after {} s the lanes still have work from before the last "
                                    "change: try again when trainers have taken more batches",
                                    patience_ms_ / 1000)));
  }
  parking_.end();
  timer_ = loop_.after(kBetweenLooksMs, [this] { look(); });
}

void ScaleTask::decide() {
  if (has_ended(memory_, node_)) {
    return finish(Error(ErrorCode::kClosed, "its input has ended: nothing more will come"));
  }
  const shm::NodeLanes lanes = memory_.node_lanes(node_);
  const Reached now = reached(memory_, node_);
  if (now.first < lanes.from) return wait();
  Facts facts;
  facts.before = lanes.now;
  facts.now = lanes_;
  facts.from = now.from;
  memory_.set_node_lanes(node_, shm::changed(lanes, facts.from, lanes_));
  RF_FAILPOINT("supervisor.scale.stored");
  facts.pause_us = parking_.end();
  finish(facts);
}

// By value: what is told needs no memory then.
void ScaleTask::finish(Result<Facts> result) {
  parking_.end();
  // A copy: done() may destroy this object and its hooks.
  const auto done = hooks_.done;
  done(result);
}

std::string cannot_scale(const FeedMemory& memory, std::uint32_t stage, std::uint32_t lanes,
                         std::uint32_t& node) {
  const FeedLayout& layout = memory.layout();
  const auto found = std::find_if(
      layout.nodes.begin(), layout.nodes.end(),
      [&](const NodeLayout& candidate) { return candidate.stage == stage && candidate.scales; });
  if (found == layout.nodes.end()) {
    return "the state of its lanes depends on their number: set threads in the configuration, and "
           "start a new feed with --fresh";
  }
  node = static_cast<std::uint32_t>(found - layout.nodes.begin());
  if (lanes == 0 || lanes > found->lanes_max) {
    return fmt::format(
        "1 to {} lanes are possible: memory for them is reserved at the start; for more, set "
        "max_threads of the stage and start the feed again",
        found->lanes_max);
  }
  for (const LanePlan* lane : lanes_of(layout, node)) {
    for (const layout::InputPlan& input : lane->inputs) {
      if (layout.ordered && !is_ordered(layout, input.rings)) {
        return "its input may drop records, so its lanes are not at the same unit: set threads in "
               "the configuration, and start a new feed with --fresh";
      }
    }
  }
  return {};
}

}  // namespace ringfeed::process
