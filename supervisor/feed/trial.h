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
  // RF_CHECK: it wants one.
  void give(std::span<const std::byte> bytes, const shm::RecordInfo& info);
  // There are no more.
  void close();

  void add_watched(std::vector<pollfd>& to) const;
  // Writes what it takes, and hears what it says, without waiting.
  void attend();
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const Ending& ending() const { return ending_; }
  // Did it come to its end by itself, rather than in the middle of a sample?
  [[nodiscard]] bool done() const { return done_; }
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
  bool done_ = false;
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
  std::uint64_t given = 0;  // samples
  bool ended = false;       // what stands before the stage had no more
  int status = 0;           // of the viewer
  std::string text;         // what is to be said about it
};

// Gives samples to the viewer until it ends, `samples_max` at most. `upstream`: null, if the stage
// is a source, which needs none. `patient`: Ctrl-C is the viewer's, however long it takes.
// Throws Error (kIo).
[[nodiscard]] TrialReport run_trial(FeedPart* upstream, Viewer& viewer, std::uint64_t samples_max,
                                    bool patient);

}  // namespace ringfeed::process
