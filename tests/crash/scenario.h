// What is traced: small pipelines of the real Lc0 stages over a handful of positions, with rings of
// a few records, so that they wrap, fill and empty all the time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/crash/trainer.h"
#include "tests/support/rig/lane_rig.h"

namespace ringfeed::crash {

// What a lane did in a round, as far as its death there is concerned.
enum class Kind : std::uint8_t {
  kFind,     // the provider outputs a file
  kIndex,    // the loader outputs a source
  kCollect,  // the pool's window takes a source
  kGrow,     // an arena grows, or a bank in it moves
  kDraw,     // the window draws a chunk
  kRead,     // a reading lane outputs a chunk
  kUnpack,   // frames of a chunk
  kFill,     // frames go into the reservoir
  kSwap,     // frames take the places of others
  kDrain,    // the reservoir empties
  kRow,      // rows of a batch
  kPublish,  // a batch
  kFinish,   // the end of a lane
  kLetter,   // a condemned record is set aside
  kWait,     // nothing to take, or no room
  kAttach,   // a new incarnation carries out what was committed
};
inline constexpr std::size_t kKinds = 16;
const char* kind_name(Kind kind);
std::vector<std::string> kind_names();

struct Condemned {
  std::string node;
  std::uint64_t seq;  // of the record on the first ring of its first input
};

struct Scenario {
  std::string name;
  std::string feed_text;
  // Writes the files, and describes the stages that read them.
  std::function<void(const std::string& directory)> write;
  std::function<void(testing::LaneRig& rig, const std::string& directory)> describe;
  std::uint64_t hold = 1;                 // batches that the trainer keeps
  std::vector<Condemned> condemned = {};  // keys differ
  // Is the lane's next round stepped? Without it all are.
  std::function<bool(const testing::LaneRig& rig, std::size_t lane)> wanted = {};
};

std::vector<Scenario> scenarios();

// A rig of the scenario, with its records condemned.
void build(const Scenario& scenario, const std::string& directory, testing::LaneRig& rig);

// Everything that a run must have come to.
struct Outcome {
  std::vector<testing::RigBatch> batches;
  std::vector<std::map<std::string, std::uint64_t>> counters;  // by lane
  std::uint64_t letters = 0;                                   // bit l: of lane l
};
std::vector<std::map<std::string, std::uint64_t>> named_counters(const testing::LaneRig& rig);
// Runs all lanes and the trainer in turn until nothing moves any more, `without` that lane. False:
// it never came to an end.
bool run_in_turn(testing::LaneRig& rig, Trainer& trainer, std::size_t without);
inline constexpr std::size_t kNobody = ~std::size_t{0};
// The run in which nobody dies.
Outcome undisturbed(const Scenario& scenario, const std::string& directory);

}  // namespace ringfeed::crash
