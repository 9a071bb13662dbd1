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

void fall_asleep(LaneRig& rig, std::size_t lane, bool asleep) {
  // The lane's own word; it does this itself where it really sleeps.
  const_cast<shm::LanePage&>(rig.page(lane)).waiting.store(asleep ? 1 : 0);
}

bool make_round(LaneRig& rig, std::size_t lane) {
  const LaneRuntime::Round round = rig.lane(lane).round();
  return round == LaneRuntime::Round::kWorked || round == LaneRuntime::Round::kFinished;
}

}  // namespace

Trace trace(const Scenario& scenario, LaneRig& rig, const Memory& memory, const Outcome& outcome,
            std::uint64_t seed, bool every_instruction) {
  Trace trace;
  trace.base = memory.copy();
  Image image = trace.base;
  Stepper stepper(rig, memory);
  Trainer trainer(rig, scenario.hold);
  trainer.expect(&outcome.batches);
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::size_t> anyone(0, rig.lane_count());
  // Changes that no stepped lane has made are nobody's deaths.
  const auto note_others = [&] {
    Round round{.first_state = trace.log.states.size()};
    if (!trace.log.add_difference(memory, image, stepper.letters())) return;
    round.state_count = trace.log.states.size() - round.first_state;
    trace.rounds.push_back(round);
  };
  const auto step = [&](std::size_t lane) {
    fall_asleep(rig, lane, false);
    note_others();
    bool moved = false;
    const auto act = [&] { moved = make_round(rig, lane); };
    if (scenario.wanted && !scenario.wanted(rig, lane)) {
      stepper.acting(lane);
      act();
    } else {
      const Facts before(rig, memory, lane);
      const std::uint64_t instructions = stepper.instructions();
      Round round{.stepped = true,
                  .act = trace.acts.size(),
                  .lane = lane,
                  .first_state = trace.log.states.size(),
                  .trainer = trainer.position()};
      stepper.step(lane, act, every_instruction, image, trace.log);
      const Facts after(rig, memory, lane);
      round.kind = kind_of(rig.node_of(lane), before, after);
      round.state_count = trace.log.states.size() - round.first_state;
      round.instructions = stepper.instructions() - instructions;
      trace.rounds.push_back(round);
    }
    fall_asleep(rig, lane, !moved);
    return moved;
  };

  // Whoever has had a turn to no avail has none until somebody else moves.
  std::vector<char> waits(rig.lane_count() + 1, 0);
  while (!rig.all_finished() || !trainer.at_end()) {
    RF_CHECK(std::find(waits.begin(), waits.end(), 0) != waits.end(), seed);
    const std::size_t next = anyone(random);
    if (waits[next] != 0) continue;
    bool moved = false;
    if (next == rig.lane_count()) {
      moved = trainer.act();
    } else if (!rig.finished(next)) {
      moved = step(next);
    }
    note_others();
    trace.acts.push_back(next);
    if (moved) {
      std::fill(waits.begin(), waits.end(), 0);
    } else {
      waits[next] = 1;
    }
  }
  if (!trainer.wrong().empty()) throw Error(ErrorCode::kIo, trainer.wrong());
  return trace;
}

void die(const Scenario& scenario, const Trace& trace, const Round& round, std::uint64_t states,
         LaneRig& rig, const Memory& memory, std::uint64_t* letters) {
  Stepper stepper(rig, memory);
  stepper.keep_letters_in(letters);
  Trainer trainer(rig, scenario.hold);
  for (std::uint64_t i = 0; i < round.act; ++i) {
    const std::size_t next = trace.acts[i];
    if (next == rig.lane_count()) {
      (void)trainer.act();
    } else if (!rig.finished(next)) {
      fall_asleep(rig, next, false);
      stepper.acting(next);
      fall_asleep(rig, next, !make_round(rig, next));
    }
  }
  fall_asleep(rig, round.lane, false);
  stepper.step_and_die(
      round.lane, [&] { (void)make_round(rig, round.lane); }, states);
}

}  // namespace ringfeed::crash
