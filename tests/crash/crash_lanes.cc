// A step survives death at any instruction: the proof by exhaustion.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <unordered_set>

#include "tests/crash/finish.h"
#include "tests/crash/trace.h"
#include "tests/unit/stages/stage_data.h"

namespace ringfeed::crash {
namespace {

using testing::LaneRig;

struct Options {
  bool full = false;
  std::uint64_t seed = 1;
  std::string only;
  unsigned workers = 0;
};

// What one kind of step has come to.
struct Tally {
  std::uint64_t instructions = 0;
  std::uint64_t states = 0;    // changes of the shared memory
  std::uint64_t distinct = 0;  // of them
  std::uint64_t finished[kWays] = {};
  std::uint64_t wrong[kWays] = {};

  void add(const Tally& other) {
    instructions += other.instructions;
    states += other.states;
    distinct += other.distinct;
    for (std::size_t way = 0; way < kWays; ++way) {
      finished[way] += other.finished[way];
      wrong[way] += other.wrong[way];
    }
  }
};
using Tallies = std::array<Tally, kKinds>;

// What one worker reports, in memory shared with it.
struct Report {
  static constexpr std::size_t kFailuresMax = 16;
  struct Failure {
    std::uint64_t state;
    Way way;
    char text[500];
  };
  Tallies tallies;
  std::uint64_t failure_count;
  Failure failures[kFailuresMax];
};

// One state to be finished.
struct Point {
  std::uint64_t round;
  std::uint64_t state;
};

// The states that are finished: each distinct one once; in a bounded run only every so many of
// those that differ in what nothing refers to.
std::vector<Point> choose(const Options& options, const Trace& trace, Tallies& tallies) {
  std::vector<Point> points;
  std::unordered_set<std::uint64_t> seen;
  std::array<std::uint64_t, 3> every = {1, 4, 40};
  if (options.full) every = {1, 1, 1};
  std::array<std::uint64_t, 3> count = {options.seed, options.seed, options.seed};
  for (std::uint64_t r = 0; r < trace.rounds.size(); ++r) {
    const Round& round = trace.rounds[r];
    if (!round.stepped) continue;
    Tally& tally = tallies[static_cast<std::size_t>(round.kind)];
    tally.instructions += round.instructions;
    for (std::uint64_t s = round.first_state; s < round.first_state + round.state_count; ++s) {
      const State& state = trace.log.states[s];
      ++tally.states;
      if (!seen.insert(state.hash).second) continue;
      ++tally.distinct;
      const auto grain = static_cast<std::size_t>(state.grain);
      if (count[grain]++ % every[grain] != 0) continue;
      if (!options.only.empty() && options.only != kind_name(round.kind)) continue;
      points.push_back({r, s});
    }
  }
  return points;
}

// Walks through the trace and finishes every so many of the points.
void work(const Scenario& scenario, LaneRig& rig, Memory& memory, const Outcome& outcome,
          const Trace& trace, const std::vector<Point>& points, std::size_t first,
          std::size_t every, Report& report) {
  memory.separate();
  // The memory is what it was after the run: back to its beginning.
  for (std::uint32_t i = 0; i < memory.segments().size(); ++i) {
    memory.resize(i, trace.base.segments[i].size());
    std::memcpy(memory.segments()[i].data, trace.base.segments[i].data(),
                trace.base.segments[i].size());
  }
  Finisher finisher(scenario, rig, memory, outcome);
  std::uint64_t applied = 0;
  for (std::size_t p = first; p < points.size(); p += every) {
    const Round& round = trace.rounds[points[p].round];
    const std::uint32_t arena = memory.arena_of(round.lane);
    for (; applied <= points[p].state; ++applied) {
      const State& state = trace.log.states[applied];
      if (state.arena_bytes != 0) memory.resize(arena, state.arena_bytes);
      for (std::uint64_t c = 0; c < state.change_count; ++c) {
        const WordChange& change = trace.log.changes[state.first_change + c];
        memory.store(change.segment, change.offset, change.after);
      }
    }
    const State& state = trace.log.states[points[p].state];
    Tally& tally = report.tallies[static_cast<std::size_t>(round.kind)];
    for (const Way way : {Way::kAtOnce, Way::kLate}) {
      const std::string wrong = finisher.finish(
          {.dead = round.lane, .trainer = round.trainer, .letters = state.letters}, way);
      ++tally.finished[static_cast<std::size_t>(way)];
      if (wrong.empty()) continue;
      ++tally.wrong[static_cast<std::size_t>(way)];
      if (report.failure_count >= Report::kFailuresMax) continue;
      Report::Failure& failure = report.failures[report.failure_count++];
      failure.state = p;
      failure.way = way;
      std::strncpy(failure.text, wrong.c_str(), sizeof failure.text - 1);
    }
  }
}

void run_scenario(const Options& options, const Scenario& scenario, Tallies& tallies) {
  const testing::TempDir directory;
  scenario.write(directory.path());
  const Outcome outcome = undisturbed(scenario, directory.path());
  LaneRig rig(scenario.feed_text);
  build(scenario, directory.path(), rig);
  Memory memory(rig);
  const Trace traced = trace(scenario, rig, memory, outcome, options.seed, options.full);
  const std::vector<Point> points = choose(options, traced, tallies);
  fmt::print(stderr, "{}: {} rounds, {} states, {} to finish\n", scenario.name,
             traced.rounds.size(), traced.log.states.size(), points.size());

  const std::size_t workers =
      options.workers != 0 ? options.workers : std::max(1U, std::thread::hardware_concurrency());
  void* const shared = ::mmap(nullptr, workers * sizeof(Report), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RF_CHECK(shared != MAP_FAILED, errno);
  auto* const reports = static_cast<Report*>(shared);
  std::vector<pid_t> children;
  for (std::size_t w = 0; w < workers; ++w) {
    children.push_back(::fork());
    RF_CHECK(children.back() >= 0, errno);
    if (children.back() == 0) {
      work(scenario, rig, memory, outcome, traced, points, w, workers, reports[w]);
      ::_exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) RF_CHECK(errno == EINTR, errno);
    RF_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
  }
  for (std::size_t w = 0; w < workers; ++w) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) tallies[kind].add(reports[w].tallies[kind]);
    for (std::size_t f = 0; f < reports[w].failure_count; ++f) {
      const Report::Failure& failure = reports[w].failures[f];
      const Point& point = points[failure.state];
      const Round& round = traced.rounds[point.round];
      fmt::print("{} {} round {} ({} of lane {}) state {} of {} {}: {}\n", scenario.name,
                 kind_name(round.kind), point.round, rig.node_of(round.lane), round.lane,
                 point.state - round.first_state, round.state_count,
                 failure.way == Way::kAtOnce ? "at once" : "late", failure.text);
    }
  }
  ::munmap(shared, workers * sizeof(Report));
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("A step survives death at any instruction.");
  app.add_flag("--full", options.full, "every instruction, every state");
  app.add_option("--seed", options.seed, "of the order of rounds, and of what a bounded run takes");
  app.add_option("--only", options.only, "one kind of step");
  app.add_option("--workers", options.workers, "processes that finish runs; default: the CPUs");
  CLI11_PARSE(app, argc, argv);
  Tallies tallies{};
  for (const Scenario& scenario : scenarios()) run_scenario(options, scenario, tallies);
  std::uint64_t deaths = 0;
  std::uint64_t wrong = 0;
  std::uint64_t kinds = 0;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const Tally& tally = tallies[kind];
    if (tally.states == 0) continue;
    fmt::print(
        "{:8} {:8} instructions, {:6} states, {:6} distinct, {:6} + {:6} finished, {} + {} wrong\n",
        kind_name(static_cast<Kind>(kind)), tally.instructions, tally.states, tally.distinct,
        tally.finished[0], tally.finished[1], tally.wrong[0], tally.wrong[1]);
    deaths += tally.finished[0] + tally.finished[1];
    wrong += tally.wrong[0] + tally.wrong[1];
    ++kinds;
  }
  fmt::print("crash: {} deaths in {} kinds of step, {} wrong\n", deaths, kinds, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ringfeed::crash

int main(int argc, char** argv) {
  try {
    return ringfeed::crash::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "crash_lanes: {}\n", error.what());
    return 2;
  }
}
