// The proof: a scenario traced once, its states finished in both ways, some of its deaths died for
// real, and new incarnations killed in their turn.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/crash/finish.h"
#include "tests/crash/scenario.h"

namespace ringfeed::crash {

struct Options {
  bool full = false;  // every instruction, every state
  std::uint64_t seed = 1;
  std::string only;  // a kind; empty: all
  unsigned workers = 0;
  bool copies_only = false;  // no real deaths
  bool quiet = false;        // does not say what was wrong
};

// What one kind of step has come to.
struct Tally {
  std::uint64_t stepped = 0;   // instructions
  std::uint64_t states = 0;    // changes of the shared memory
  std::uint64_t distinct = 0;  // of them
  std::uint64_t finished[kWays] = {};
  std::uint64_t wrong[kWays] = {};

  void add(const Tally& other);
};

struct Tallies {
  std::array<Tally, kKinds> kinds;
  std::uint64_t kills = 0;  // real ones
  std::uint64_t kills_wrong = 0;

  void add(const Tallies& other);
  [[nodiscard]] std::uint64_t deaths() const;
  [[nodiscard]] std::uint64_t wrong() const;
};

// Adds to the tallies; says what was wrong on standard output.
void prove(const Options& options, const Scenario& scenario, Tallies& tallies);

}  // namespace ringfeed::crash
