// Steps over every store that a lane makes into shared memory, and writes down what it changed.
//
// While an act is stepped, the shared memory is read-only. A store faults; the handler gives the
// page back, sets the processor's trap flag, and lets the instruction go; the trap behind it
// compares the page, and takes it away again. So nothing need be decoded, nothing can be missed,
// and what happens in private memory costs nothing, or, if every instruction is wanted, one trap
// each. It all happens in the stepped process itself: no tracer need be scheduled in between (a
// store costs some 30 us here, and 90 us and eight switches under ptrace).
//
// Linux on x86-64. One stepper in a process.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/crash/memory.h"
#include "tests/support/rig/lane_rig.h"

namespace ringfeed::crash {

// How much it matters when exactly a lane dies there.
enum class Grain : std::uint8_t {
  kWords,    // cursors, commits, claims, counters: what lanes tell each other, or find again
  kJournal,  // the entries of the step under way
  kBulk,     // records, places, rows: bytes that nothing refers to yet
};
inline constexpr std::size_t kGrains = 3;

// The shared memory after one instruction that changed it.
struct State {
  std::uint64_t rip = 0;  // of the instruction; 0: nobody's
  std::uint64_t first_change = 0;
  std::uint64_t change_count = 0;
  std::uint32_t grown = 0;        // a segment that is larger from here on,
  std::uint64_t grown_bytes = 0;  // and its size; 0: none
  std::uint64_t hash = 0;         // of the whole memory
  std::uint64_t letters = 0;      // bit l: lane l has handed over the record that it set aside
  Grain grain = Grain::kWords;
  bool committed = false;  // the lane has committed a step since the act began
};

// States one after the other, each as what has changed.
struct Log {
  std::vector<WordChange> changes;
  std::vector<State> states;

  // Adds what has changed since the image as one state of nobody's, and makes the image the same.
  // False: nothing has.
  bool add_difference(const Memory& memory, Image& image, std::uint64_t letters);
  void add_growth(std::uint32_t segment, std::uint64_t bytes, Image& image, std::uint64_t letters);
};

class Stepper {
 public:
  Stepper(testing::LaneRig& rig, const Memory& memory);
  ~Stepper();
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // Lets the lane do this. `image` is the memory before and, at the end, after; each change of it
  // is added to the log.
  void step(std::size_t lane, const std::function<void()>& act, bool every_instruction,
            Image& image, Log& log);
  // The same; behind so many changes this process is killed, or at the end.
  [[noreturn]] void step_and_die(std::size_t lane, const std::function<void()>& act,
                                 std::uint64_t states);
  // Instructions that were stepped over.
  [[nodiscard]] std::uint64_t instructions() const;
  // Lanes that have handed over the record that they set aside, whether stepped or not.
  [[nodiscard]] std::uint64_t letters() const;
  void keep_letters_in(std::uint64_t* shared);
  // Whose dead letters come now.
  void acting(std::size_t lane);

 private:
  void run(std::size_t lane, const std::function<void()>& act, bool every_instruction);

  testing::LaneRig& rig_;
  const Memory& memory_;
};

}  // namespace ringfeed::crash
