// Lines for a descriptor that may not take them: a pipe that nobody reads, a terminal that is held
// with Ctrl-S, a full disk. A thread of its own writes; nobody who logs waits for it.
//
// What waits is bounded (kQueueBytes): beyond it, and where the system refuses a write, lines are
// lost and counted, and the first write that succeeds again begins with a line that says so.
//
// A file is renamed when it has reached a size (log_file.h), between two lines. What cannot be
// renamed is said in a line and in problem(), and tried again; lines go on to the old file.
//
// The descriptor may be shared with others (a terminal, a collector), so it is never made
// non-blocking: that would be so for them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ringfeed/shm/segment.h"

namespace ringfeed::metrics {

class LogWriter {
 public:
  static constexpr std::size_t kQueueBytes = 1 << 20;
  // An order to write waits this long for the thread, unless lines wait already: what is logged in
  // good times is there when the call returns.
  static constexpr std::uint64_t kPatienceMs = 100;
  // At the end.
  static constexpr std::uint64_t kFlushMs = 2'000;

  // After a failure a file is renamed again no sooner than after this.
  static constexpr std::uint64_t kRotateAgainMs = 1'000;

  // Makes a line that the log writes by itself: log_lines_lost, log_rotation_failed.
  using OwnLine = std::function<std::string(std::string_view event, const std::string& values)>;

  struct Target {
    std::string file = {};  // empty: standard error
    std::uint64_t rotate_bytes = 0;
    std::uint32_t rotate_keep = 1;
    std::string journal = {};  // path of its socket; then `text` is an entry, and not lines
  };

  // Standard error stays open; on a terminal a line of progress stays below the others. A file is
  // appended to; a FIFO must be read by somebody. Throws Error (kIo) if it cannot be opened, at
  // once.
  LogWriter(Target target, OwnLine own_line);
  // Waits for at most kFlushMs.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // `text`: whole lines. `patient`: returns when it is written, or after kPatienceMs.
  void write(std::string text, bool patient);
  // The last line of a terminal from now on; empty: none. Elsewhere nothing happens.
  void set_progress(std::string text);
  [[nodiscard]] bool is_terminal() const;
  // The file of this name from now on, for what is written after this; the one before stays if it
  // cannot be opened. Nothing for standard error.
  void reopen();

  // What is wrong, in a sentence; empty: nothing.
  [[nodiscard]] std::string problem() const;

 private:
  struct State;
  void start();
  std::shared_ptr<State> state_;  // the thread's too, which may never come back from a write
};

}  // namespace ringfeed::metrics
