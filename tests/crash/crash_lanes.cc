// A step survives death at any instruction: see tests/crash/README.md.
#include <errno.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tests/crash/proof.h"

namespace ringfeed::crash {
namespace {

// A mistake that is planted in a copy of the code (mistakes/NAME.patch), and where it must be
// found: the scenario and the kind of step. crash_lanes_NAME is this program with the mistake.
struct Mistake {
  const char* name;
  const char* scenario;
  Kind kind;
};
constexpr Mistake kMistakes[] = {
    {"tail_before_record", "pipeline", Kind::kUnpack},
    {"head_past_journal", "pipeline", Kind::kSwap},
    {"one_area", "pipeline", Kind::kSwap},
    {"count_after_commit", "pipeline", Kind::kSwap},
    {"no_carry_out", "pipeline", Kind::kSwap},
    {"list_cleared_first", "pipeline", Kind::kAttach},
    {"copy_entry", "pipeline", Kind::kSwap},
    {"place_taken_at_once", "pipeline", Kind::kSwap},
    {"draws_past_journal", "pipeline", Kind::kSwap},
    {"count_past_journal", "pipeline", Kind::kRow},
    {"word_past_journal", "pipeline", Kind::kRow},
    {"seq_before_batch", "pipeline", Kind::kPublish},
    {"closed_before_tail", "pipeline", Kind::kFinish},
    {"letter_after_commit", "letters", Kind::kLetter},
};

std::string with_commas(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

void print_tallies(const Tallies& tallies) {
  fmt::print("{:8} {:>10} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6}\n", "kind", "stepped", "states",
             "distinct", "at once", "late", "wrong", "wrong");
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const Tally& tally = tallies.kinds[kind];
    if (tally.states == 0) continue;
    fmt::print("{:8} {:>10} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6}\n",
               kind_name(static_cast<Kind>(kind)), with_commas(tally.stepped),
               with_commas(tally.states), with_commas(tally.distinct),
               with_commas(tally.finished[0]), with_commas(tally.finished[1]), tally.wrong[0],
               tally.wrong[1]);
  }
  fmt::print("SIGKILL: {} runs finished, {} wrong\n", tallies.kills, tallies.kills_wrong);
}

// Runs the program with the mistake, which says by itself what it finds. True: it was found.
bool find_mistake(const Mistake& mistake, const Options& options, bool quiet) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").string() + "_" + mistake.name;
  const std::string seed = std::to_string(options.seed);
  const std::string workers = std::to_string(options.workers);
  std::fflush(stdout);
  const pid_t child = ::fork();
  RF_CHECK(child >= 0, errno);
  if (child == 0) {
    ::execl(program.c_str(), program.c_str(), "--planted", mistake.name, "--seed", seed.c_str(),
            "--workers", workers.c_str(), quiet ? "--quiet" : nullptr, nullptr);
    fmt::print(stderr, "{} cannot be started: build the target crash_mistakes\n", program);
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) RF_CHECK(errno == EINTR, errno);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// This program has the mistake: it must be found.
int find(const std::string& name, Options options) {
  const auto* const mistake = std::find_if(std::begin(kMistakes), std::end(kMistakes),
                                           [&](const Mistake& each) { return each.name == name; });
  RF_CHECK(mistake != std::end(kMistakes));
  options.only = kind_name(mistake->kind);
  options.copies_only = true;
  Tallies tallies{};
  for (const Scenario& scenario : scenarios()) {
    if (scenario.name == mistake->scenario) prove(options, scenario, tallies);
  }
  const Tally& tally = tallies.kinds[static_cast<std::size_t>(mistake->kind)];
  const bool found = tally.wrong[0] + tally.wrong[1] != 0;
  fmt::print("mistake {:20} {:9} in {:7} {:>3} of {} wrong at once, {:>3} of {} late\n", name,
             found ? "found" : "NOT FOUND", options.only, tally.wrong[0], tally.finished[0],
             tally.wrong[1], tally.finished[1]);
  return found ? 0 : 1;
}

int run(int argc, char** argv) {
  Options options;
  bool only_mistakes = false;
  std::string only_mistake;
  std::string planted;
  CLI::App app("A step survives death at any instruction.");
  app.add_flag("--full", options.full, "every instruction, every state");
  app.add_option("--seed", options.seed, "of the order of rounds, and of what a bounded run takes");
  app.add_option("--only", options.only, "one kind of step, and no planted mistakes")
      ->check(CLI::IsMember(kind_names()));
  app.add_flag("--mistakes", only_mistakes, "nothing but the planted mistakes");
  app.add_option("--mistake", only_mistake, "nothing but this one, and what is wrong with it")
      ->check(CLI::IsMember([] {
        std::vector<std::string> names;
        for (const Mistake& mistake : kMistakes) names.emplace_back(mistake.name);
        return names;
      }()));
  app.add_option("--workers", options.workers, "processes that finish runs; default: the CPUs");
  app.add_option("--planted", planted, "this program has the mistake")->group("");
  app.add_flag("--quiet", options.quiet)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!planted.empty()) return find(planted, options);

  Tallies tallies{};
  std::uint64_t kinds = 0;
  bool all_kinds = true;
  only_mistakes = only_mistakes || !only_mistake.empty();
  if (!only_mistakes) {
    for (const Scenario& scenario : scenarios()) prove(options, scenario, tallies);
    print_tallies(tallies);
    for (const Tally& tally : tallies.kinds) kinds += tally.finished[0] != 0 ? 1 : 0;
    // A kind that no scenario brings about any more is not a kind that survives.
    all_kinds = kinds == (options.only.empty() ? kKinds : 1);
  }
  std::uint64_t planted_count = 0;
  std::uint64_t found = 0;
  if (options.only.empty() || only_mistakes) {
    for (const Mistake& mistake : kMistakes) {
      if (!only_mistake.empty() && only_mistake != mistake.name) continue;
      ++planted_count;
      found += find_mistake(mistake, options, only_mistake.empty()) ? 1 : 0;
    }
  }
  std::string summary;
  if (!only_mistakes) {
    summary =
        fmt::format("{} deaths in {} of {} kinds of step, {} wrong", with_commas(tallies.deaths()),
                    kinds, options.only.empty() ? kKinds : 1, tallies.wrong());
  }
  if (planted_count != 0) {
    summary += fmt::format("{}{} of {} planted mistakes found", summary.empty() ? "" : "; ", found,
                           planted_count);
  }
  fmt::print("crash: {}\n", summary);
  return tallies.wrong() == 0 && all_kinds && found == planted_count ? 0 : 1;
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
