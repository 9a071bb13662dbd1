#include "tests/crash/proof.h"

#include <dlfcn.h>
#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <unordered_set>

#include "tests/crash/trace.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed::crash {
namespace {

using testing::LaneRig;

// Of how many states one is taken in a bounded run, by grain: all words, some of what nothing
// refers to yet.
constexpr std::array<std::uint64_t, 3> kEvery = {1, 6, 60};
// Of how many states behind a commit one is a beginning for a new incarnation that dies as well.
constexpr std::uint64_t kAgainEvery = 40;
constexpr std::uint64_t kAgainStateEvery = 3;
// Of how many states that are finished one is died for real.
constexpr std::uint64_t kKillEvery = 40;
constexpr std::uint64_t kKillEveryFull = 100;
constexpr std::size_t kPage = 4096;

// One state to be finished; `again`: it is the beginning of a new incarnation that dies.
struct Point {
  std::uint64_t round = 0;
  std::uint64_t state = 0;
  bool again = false;
};

// What one worker reports, in memory shared with it.
struct Report {
  static constexpr std::size_t kFailuresMax = 8;
  struct Failure {
    Point point;
    std::uint64_t again_state;
    std::uint64_t rip;
    Way way;
    char text[400];
  };
  Tallies tallies;
  std::uint64_t failure_count;
  Failure failures[kFailuresMax];
};

bool wants(const Options& options, Kind kind) {
  return options.only.empty() || options.only == kind_name(kind);
}

// Takes one of every so many, beginning at a place that the seed decides.
class Sieve {
 public:
  Sieve(std::uint64_t every, std::uint64_t seed) : every_(every), count_(seed % every) {}
  bool take() { return count_++ % every_ == 0; }

 private:
  std::uint64_t every_;
  std::uint64_t count_;
};

// The states that are finished: each distinct one once; in a bounded run fewer of those that differ
// only in what nothing refers to.
std::vector<Point> choose(const Options& options, const Trace& trace, Tallies& tallies) {
  std::vector<Point> points;
  std::unordered_set<std::uint64_t> seen;
  std::vector<Sieve> sieves;
  for (const std::uint64_t every : kEvery) {
    sieves.emplace_back(options.full ? 1 : every, options.seed);
  }
  Sieve again(options.full ? 1 : kAgainEvery, options.seed);
  for (std::uint64_t r = 0; r < trace.rounds.size(); ++r) {
    const Round& round = trace.rounds[r];
    if (!round.stepped) continue;
    Tally& tally = tallies.kinds[static_cast<std::size_t>(round.kind)];
    tally.stepped += round.instructions;
    tally.states += round.state_count;
    for (std::uint64_t s = round.first_state; s < round.first_state + round.state_count; ++s) {
      const State& state = trace.log.states[s];
      if (!seen.insert(state.hash).second) continue;
      ++tally.distinct;
      if (sieves[static_cast<std::size_t>(state.grain)].take() && wants(options, round.kind)) {
        points.push_back({r, s, false});
      }
      if (state.committed && again.take() && wants(options, Kind::kAttach)) {
        points.push_back({r, s, true});
      }
    }
  }
  return points;
}

// Walks through a trace, with a memory of its own, and finishes states.
class Worker {
 public:
  Worker(const Options& options, const Scenario& scenario, LaneRig& rig, Memory& memory,
         const Outcome& outcome, const Trace& trace, Report& report)
      : rig_(rig),
        memory_(memory),
        trace_(trace),
        report_(report),
        finisher_(scenario, rig, memory, outcome),
        image_(trace.base),
        again_(options.full ? 1 : kAgainStateEvery, options.seed) {
    memory_.separate();
    // It is what it was at the end of the trace: back to the beginning.
    for (std::uint32_t i = 0; i < image_.segments.size(); ++i) {
      memory_.resize(i, image_.segments[i].size());
      std::memcpy(memory.segments()[i].data, image_.segments[i].data(), image_.segments[i].size());
    }
  }

  void finish(const Point& point) {
    for (; walked_ <= point.state; ++walked_) apply(trace_.log, trace_.log.states[walked_]);
    const Round& round = trace_.rounds[point.round];
    const State& state = trace_.log.states[point.state];
    const Survivors survivors{
        .dead = round.lane, .trainer = round.trainer, .letters = state.letters};
    if (point.again) {
      die_again(point, survivors);
    } else {
      finish(point, 0, state.rip, survivors, round.kind);
    }
  }

 private:
  void apply(const Log& log, const State& state) {
    if (state.grown_bytes != 0) {
      Memory::grow(image_, state.grown, state.grown_bytes);
      memory_.resize(state.grown, state.grown_bytes);
    }
    for (std::uint64_t c = 0; c < state.change_count; ++c) {
      const WordChange& change = log.changes[state.first_change + c];
      memory_.apply(image_, change);
      memory_.store(change.segment, change.offset, change.after);
    }
  }

  void take_back(const Log& log) {
    for (auto change = log.changes.rbegin(); change != log.changes.rend(); ++change) {
      memory_.apply(image_, {change->segment, change->offset, change->after, change->before});
      memory_.store(change->segment, change->offset, change->before);
    }
  }

  void finish(const Point& point, std::uint64_t again_state, std::uint64_t rip,
              const Survivors& survivors, Kind kind) {
    Tally& tally = report_.tallies.kinds[static_cast<std::size_t>(kind)];
    for (const Way way : {Way::kAtOnce, Way::kLate}) {
      const std::string wrong = finisher_.finish(survivors, way);
      // What the finished run has added to an arena goes.
      for (std::uint32_t i = 0; i < image_.segments.size(); ++i) {
        memory_.resize(i, image_.segments[i].size());
      }
      ++tally.finished[static_cast<std::size_t>(way)];
      if (wrong.empty()) continue;
      ++tally.wrong[static_cast<std::size_t>(way)];
      if (report_.failure_count >= Report::kFailuresMax) continue;
      Report::Failure& failure = report_.failures[report_.failure_count++];
      failure.point = point;
      failure.again_state = again_state;
      failure.rip = rip;
      failure.way = way;
      std::strncpy(failure.text, wrong.c_str(), sizeof failure.text - 1);
    }
  }

  // The lane comes back, and its new incarnation dies while it is attached.
  void die_again(const Point& point, const Survivors& survivors) {
    Tally& tally = report_.tallies.kinds[static_cast<std::size_t>(Kind::kAttach)];
    Log log;
    {
      Stepper stepper(rig_, memory_);
      stepper.step(
          survivors.dead, [&] { rig_.restart(survivors.dead); }, false, image_, log);
      tally.stepped += stepper.instructions();
    }
    take_back(log);
    tally.states += log.states.size();
    for (std::uint64_t s = 0; s < log.states.size(); ++s) {
      apply(log, log.states[s]);
      // What follows the carry-out is the same wherever the lane died before.
      if (!seen_.insert(log.states[s].hash).second) continue;
      ++tally.distinct;
      if (again_.take()) finish(point, s, log.states[s].rip, survivors, Kind::kAttach);
    }
    take_back(log);
  }

  LaneRig& rig_;
  Memory& memory_;
  const Trace& trace_;
  Report& report_;
  Finisher finisher_;
  Image image_;
  Sieve again_;
  std::unordered_set<std::uint64_t> seen_;  // of new incarnations
  std::uint64_t walked_ = 0;                // states that the memory has gone through
};

// Where in the code the instruction is, as far as debug information tells.
std::string place(std::uint64_t rip) {
  Dl_info info{};
  if (rip == 0 || ::dladdr(reinterpret_cast<void*>(rip), &info) == 0) return "";
  const std::uint64_t offset = rip - reinterpret_cast<std::uint64_t>(info.dli_fbase);
  const std::string command =
      fmt::format("addr2line -Cfips -e '{}' {:#x} 2>/dev/null", info.dli_fname, offset);
  std::string found;
  if (FILE* const pipe = ::popen(command.c_str(), "r"); pipe != nullptr) {
    char line[1000] = {};
    // From the inside out: the first that is not the library's.
    while (std::fgets(line, sizeof line, pipe) != nullptr) {
      std::string_view text(line);
      text = text.substr(0, text.find('\n'));
      if (found.empty() && text.find("std::") == std::string_view::npos) found = text;
    }
    ::pclose(pipe);
  }
  constexpr std::string_view kInlined = " (inlined by) ";
  if (found.starts_with(kInlined)) found.erase(0, kInlined.size());
  return fmt::format(" [{:#x}: {}]", offset, found);
}

void say(const Scenario& scenario, const LaneRig& rig, const Trace& trace,
         const Report::Failure& failure) {
  const Round& round = trace.rounds[failure.point.round];
  fmt::print("wrong: {}, {} of {}, round {}, state {} of {}{}, finished {}: {}{}\n", scenario.name,
             failure.point.again ? "attach after a death in a " + std::string(kind_name(round.kind))
                                 : kind_name(round.kind),
             rig.node_of(round.lane), failure.point.round, failure.point.state - round.first_state,
             round.state_count,
             failure.point.again ? fmt::format(", then state {}", failure.again_state) : "",
             failure.way == Way::kAtOnce ? "at once" : "late", failure.text, place(failure.rip));
}

// Lets processes finish all points, and adds up what they report.
void finish_all(const Options& options, const Scenario& scenario, LaneRig& rig, Memory& memory,
                const Outcome& outcome, const Trace& trace, const std::vector<Point>& points,
                Tallies& tallies) {
  const std::size_t workers =
      options.workers != 0 ? options.workers : std::max(1U, std::thread::hardware_concurrency());
  void* const shared = ::mmap(nullptr, workers * sizeof(Report), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RF_CHECK(shared != MAP_FAILED, errno);
  auto* const reports = static_cast<Report*>(shared);
  std::vector<pid_t> children;
  std::fflush(stdout);
  for (std::size_t w = 0; w < workers; ++w) {
    children.push_back(::fork());
    RF_CHECK(children.back() >= 0, errno);
    if (children.back() == 0) {
      Worker worker(options, scenario, rig, memory, outcome, trace, reports[w]);
      for (std::size_t p = 0; p < points.size(); ++p) {
        // New incarnations of one round have much in common.
        const std::size_t share = points[p].again ? points[p].round : p;
        if (share % workers == w) worker.finish(points[p]);
      }
      ::_exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) RF_CHECK(errno == EINTR, errno);
    if (status != 0) throw Error(ErrorCode::kIo, fmt::format("a worker ended with {:#x}", status));
  }
  for (std::size_t w = 0; w < workers; ++w) {
    tallies.add(reports[w].tallies);
    for (std::size_t f = 0; f < reports[w].failure_count && !options.quiet; ++f) {
      say(scenario, rig, trace, reports[w].failures[f]);
    }
  }
  ::munmap(shared, workers * sizeof(Report));
}

// The same deaths for real: a process makes the run again up to the same round, and is killed
// behind as many changes of the memory.
void kill_some(const Options& options, const Scenario& scenario, const std::string& directory,
               const Outcome& outcome, const Trace& trace, const std::vector<Point>& points,
               Tallies& tallies) {
  Sieve sieve(options.full ? kKillEveryFull : kKillEvery, options.seed);
  void* const shared =
      ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RF_CHECK(shared != MAP_FAILED, errno);
  auto* const letters = static_cast<std::uint64_t*>(shared);
  for (const Point& point : points) {
    if (point.again || !sieve.take()) continue;
    const Round& round = trace.rounds[point.round];
    const std::uint64_t states = point.state - round.first_state + 1;
    LaneRig rig(scenario.feed_text);
    build(scenario, directory, rig);
    Memory memory(rig);
    *letters = 0;
    const pid_t child = ::fork();
    RF_CHECK(child >= 0, errno);
    if (child == 0) die(scenario, trace, round, states, rig, memory, letters);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) RF_CHECK(errno == EINTR, errno);
    RF_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, status);
    Finisher finisher(scenario, rig, memory, outcome);
    const Survivors survivors{.dead = round.lane, .trainer = round.trainer, .letters = *letters};
    for (const Way way : {Way::kAtOnce, Way::kLate}) {
      const std::string wrong = finisher.finish(survivors, way);
      ++tallies.kills;
      if (wrong.empty()) continue;
      ++tallies.kills_wrong;
      fmt::print("wrong: {}, {} of {} killed in round {} behind {} states, finished {}: {}\n",
                 scenario.name, kind_name(round.kind), rig.node_of(round.lane), point.round, states,
                 way == Way::kAtOnce ? "at once" : "late", wrong);
    }
  }
  ::munmap(shared, kPage);
}

}  // namespace

void Tally::add(const Tally& other) {
  stepped += other.stepped;
  states += other.states;
  distinct += other.distinct;
  for (std::size_t way = 0; way < kWays; ++way) {
    finished[way] += other.finished[way];
    wrong[way] += other.wrong[way];
  }
}

void Tallies::add(const Tallies& other) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) kinds[kind].add(other.kinds[kind]);
  kills += other.kills;
  kills_wrong += other.kills_wrong;
}

std::uint64_t Tallies::deaths() const {
  std::uint64_t sum = kills;
  for (const Tally& tally : kinds) sum += tally.finished[0] + tally.finished[1];
  return sum;
}

std::uint64_t Tallies::wrong() const {
  std::uint64_t sum = kills_wrong;
  for (const Tally& tally : kinds) sum += tally.wrong[0] + tally.wrong[1];
  return sum;
}

void prove(const Options& options, const Scenario& scenario, Tallies& tallies) {
  const testing::TempDir directory;
  scenario.write(directory.path());
  const Outcome outcome = undisturbed(scenario, directory.path());
  LaneRig rig(scenario.feed_text);
  build(scenario, directory.path(), rig);
  Memory memory(rig);
  const Trace traced = trace(scenario, rig, memory, outcome, options.seed, options.full);
  const std::vector<Point> points = choose(options, traced, tallies);
  finish_all(options, scenario, rig, memory, outcome, traced, points, tallies);
  if (options.copies_only) return;
  kill_some(options, scenario, directory.path(), outcome, traced, points, tallies);
}

}  // namespace ringfeed::crash
