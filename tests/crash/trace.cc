#include "tests/crash/trace.h"

#include <algorithm>

namespace ringfeed::crash {
namespace {

using testing::LaneRig;

// What tells one kind of round from another.
struct Facts {
  std::map<std::string, std::uint64_t> counters;
  std::uint64_t commit = 0;
  std::uint64_t arena_bytes = 0;
  bool finished = false;

  Facts(LaneRig& rig, const Memory& memory, std::size_t lane)
      : counters(named_counters(rig)[lane]),
        commit(rig.page(lane).commit.load()),
        arena_bytes(memory.bytes(memory.arena_of(lane))),
        finished(rig.finished(lane)) {}
  [[nodiscard]] std::uint64_t count(const std::string& name) const {
    const auto found = counters.find(name);
    return found == counters.end() ? 0 : found->second;
  }
};

Kind kind_of(const std::string& node, const Facts& before, const Facts& after) {
  if (after.finished) return Kind::kFinish;
  if (after.commit == before.commit) return Kind::kWait;
  if (after.arena_bytes != before.arena_bytes) return Kind::kGrow;
  if (after.count("dead_letters") != before.count("dead_letters")) return Kind::kLetter;
  const auto more = [&](const char* name) { return after.count(name) > before.count(name); };
  if (node == "provider") return Kind::kFind;
  if (node == "loader") return Kind::kIndex;
  if (node == "pool") return more("draws") ? Kind::kDraw : Kind::kCollect;
  if (node == "pool.read") return Kind::kRead;
  if (node == "unpacker") return Kind::kUnpack;
  if (node == "tensors") return more("batches") ? Kind::kPublish : Kind::kRow;
  if (more("frames_held")) return Kind::kFill;
  return after.count("frames_held") < before.count("frames_held") ? Kind::kDrain : Kind::kSwap;
}

}  // namespace

Trace trace(const Scenario& scenario, LaneRig& rig, const Memory& memory, const Outcome& outcome,
            std::uint64_t seed, bool every_instruction) {
  Trace trace;
  trace.base = memory.copy();
  Image image = trace.base;
  TracedLanes lanes(rig, memory);
  Trainer trainer(rig, scenario.hold);
  trainer.expect(&outcome.batches);
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::size_t> any_lane(0, rig.lane_count());
  // Changes that no stepped lane has made become one state.
  const auto note_others = [&] {
    Round round{.first_state = trace.log.states.size(), .state_count = 1};
    State state{.first_change = trace.log.changes.size(), .letters = lanes.letters()};
    memory.compare(image, trace.log.changes);
    state.change_count = trace.log.changes.size() - state.first_change;
    state.hash = image.hash;
    if (state.change_count == 0) return;
    trace.log.states.push_back(state);
    trace.rounds.push_back(round);
  };

  // Whoever has had a round to no avail waits until somebody else moves.
  std::vector<char> waits(rig.lane_count() + 1, 0);
  while (!rig.all_finished() || !trainer.at_end()) {
    RF_CHECK(std::find(waits.begin(), waits.end(), 0) != waits.end(), seed);
    const std::size_t lane = any_lane(random);
    if (waits[lane] != 0) continue;
    bool moved = false;
    if (lane == rig.lane_count()) {
      moved = trainer.act();
      note_others();
    } else if (!rig.finished(lane)) {
      const Facts before(rig, memory, lane);
      const std::uint64_t instructions = lanes.instructions();
      Round round{.stepped = true, .lane = lane, .first_state = trace.log.states.size()};
      round.trainer = trainer.position();
      moved = lanes.step(TracedLanes::Act::kRound, lane, every_instruction, image, trace.log);
      const Facts after(rig, memory, lane);
      round.kind = kind_of(rig.node_of(lane), before, after);
      round.state_count = trace.log.states.size() - round.first_state;
      round.instructions = lanes.instructions() - instructions;
      trace.rounds.push_back(round);
      note_others();
    }
    if (moved) std::fill(waits.begin(), waits.end(), 0);
    if (!moved) waits[lane] = 1;
  }
  if (!trainer.wrong().empty()) throw Error(ErrorCode::kIo, trainer.wrong());
  return trace;
}

}  // namespace ringfeed::crash
