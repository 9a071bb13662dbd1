// The lanes of a rig in a traced child: they make their rounds there, and each state that their
// shared memory goes through is written down.
//
// The child is a fork of the process that built the rig, so that both see the segments at the same
// addresses: the child with the lanes that live, the tracer to look and to copy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/crash/memory.h"
#include "tests/crash/tracee.h"
#include "tests/support/lane_rig.h"

namespace ringfeed::crash {

// How much it matters when exactly a lane dies there.
enum class Grain : std::uint8_t {
  kWords,    // cursors, commits, claims, counters: what lanes tell each other, or find again
  kJournal,  // the entries of the step under way
  kBulk,     // records, places, rows: bytes that nothing refers to yet
};

// The shared memory after one instruction that changed it.
struct State {
  std::uint64_t rip = 0;  // of the instruction; 0: the room that an arena had just been given
  std::uint64_t first_change = 0;
  std::uint64_t change_count = 0;
  std::uint64_t arena_bytes = 0;  // the lane's arena from here on; 0: as before
  std::uint64_t hash = 0;         // of the whole memory
  std::uint64_t letters = 0;      // bit l: lane l has handed over the record that it set aside
  Grain grain = Grain::kWords;
  bool committed = false;  // the lane has committed a step since the act began
};

// States one after the other, each as what has changed.
struct Log {
  std::vector<WordChange> changes;
  std::vector<State> states;
};

class TracedLanes {
 public:
  // Forks. The rig's lanes in this process must not be used any more.
  TracedLanes(testing::LaneRig& rig, const Memory& memory);
  ~TracedLanes();

  enum class Act : std::uint32_t {
    kRound,   // of the lane
    kAttach,  // a new incarnation of the lane
  };
  // Lets the lane act. `image` is the memory before and, at the end, after; each change of it
  // becomes a state in the log. True: something moved.
  bool step(Act act, std::size_t lane, bool every_instruction, Image& image, Log& log);
  // The same, but the child is killed when it has made `stores` stores that changed something.
  // False: it never made so many.
  bool step_and_kill(Act act, std::size_t lane, std::uint64_t stores, Image& image, Log& log);
  // At full speed; the image is made the memory afterwards.
  bool run(Act act, std::size_t lane);

  [[nodiscard]] std::uint64_t instructions() const { return tracee_->instructions(); }
  [[nodiscard]] std::uint64_t letters() const;

 private:
  struct Mailbox;
  void body();
  void protect(int protection);
  bool step_to(Act act, std::size_t lane, bool every_instruction, std::uint64_t stores,
               Image& image, Log& log);
  void note(std::size_t lane, const Tracee::Store& store, Image& image, Log& log) const;

  testing::LaneRig& rig_;
  const Memory& memory_;
  Mailbox* mailbox_;
  bool protecting_ = false;          // in the child
  std::uint64_t commit_before_ = 0;  // of the lane, when the act began
  std::unique_ptr<Tracee> tracee_;
};

}  // namespace ringfeed::crash
