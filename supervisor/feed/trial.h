// Shows what a stage makes of samples, in the foreground: `ringfeed try`, and
// `ringfeed dead-letters --replay FILE --pdb`.
//
// What stands before the stage runs as in a feed, in workers (feed_part.h). The stage itself runs
// in a program that has the terminal, so that it can print, ask and be debugged. It gets each
// sample over a pipe when it asks for one, and says what it does
// (pyclient/ringfeed/worker/trial.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/ring.h"
#include "supervisor/feed/feed_part.h"
#include "supervisor/group/spawn.h"
#include "supervisor/layout/worker_setup.h"

namespace ringfeed::process {

// A program in the foreground, which is given samples.
class Viewer {
 public:
  // Throws Error as spawn_foreground() does.
  Viewer(const std::string& program, const std::vector<std::string>& words,
         const layout::SetupFacts& facts, const std::string& stage);
  ~Viewer();  // kills it
  Viewer(const Viewer&) = delete;
  Viewer& operator=(const Viewer&) = delete;

  // Has it taken all that it was given?
  [[nodiscard]] bool wants() const { return records_ && pending_.empty(); }
  // RF_CHECK: it wants one. `out`: it came out of the stage, and is to be shown.
  void give(std::span<const std::byte> bytes, const shm::RecordInfo& info, bool out = false);
  // There are no more.
  void close();

  void add_watched(std::vector<pollfd>& to) const;
  // Writes what it takes, and hears what it says, without waiting.
  void attend();
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const Ending& ending() const { return ending_; }
  // The exit status with which it has come to its end by itself, rather than in the middle of a
  // sample; nothing: it has not. Threads of the stage may keep it alive.
  [[nodiscard]] std::optional<int> done() const { return done_; }
  // The sample that it was at, as it named it; "": none.
  [[nodiscard]] const std::string& at() const { return at_; }
  void kill();

 private:
  void write();

  Spawned process_;
  shm::Fd records_;
  std::vector<std::byte> pending_;
  std::size_t written_ = 0;
  bool closing_ = false;
  bool ended_ = false;
  std::optional<int> done_;
  std::string at_;
  Ending ending_;
};

enum class TrialOutcome : std::uint8_t {
  kShown,        // the viewer has come to its end: its exit status says whether all was well
  kDied,         // the stage died on a sample
  kNothing,      // no sample came
  kUpstream,     // a process before the stage has died
  kInterrupted,  // by Ctrl-C
};

struct TrialReport {
  TrialOutcome outcome = TrialOutcome::kShown;
  std::uint64_t given = 0;  // records that went in
  std::uint64_t out = 0;    // that came out; 0 if the viewer runs the stage
  bool ended = false;       // what stands before the stage had no more
  int status = 0;           // of the viewer
  std::string text;         // what is to be said about it
};

struct TrialParts {
  FeedPart* upstream = nullptr;  // what stands before the stage; null: nothing does
  FeedPart* stage = nullptr;     // null: the viewer runs it
  std::string name = {};         // of the stage
  std::uint64_t samples_max = 1;
  // Of those that come out, and they alone are shown: of a stage that takes no samples, and of one
  // that decides which of several inputs it takes from.
  bool limits_out = false;
  bool patient = false;  // Ctrl-C is the viewer's affair, however long it takes
};

// Passes samples on until the viewer ends. Throws Error (kIo).
[[nodiscard]] TrialReport run_trial(const TrialParts& parts, Viewer& viewer);

}  // namespace ringfeed::process
