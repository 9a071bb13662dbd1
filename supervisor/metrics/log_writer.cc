#include "supervisor/metrics/log_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/metrics/log_file.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/journal.h"
#include "supervisor/os/locale.h"
#include "supervisor/os/text.h"

namespace ringfeed::metrics {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

std::uint64_t lines_in(std::string_view text) {
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

struct LogWriter::State {
  std::mutex mutex;
  std::condition_variable wake;     // there is something to do
  std::condition_variable written;  // something was done
  // Under the mutex.
  struct Item {
    std::string text;
    std::uint64_t lines = 0;
    bool reopens = false;
  };
  std::deque<Item> queue;
  std::size_t queue_bytes = 0;
  std::uint64_t pushed = 0;  // items, since the beginning
  std::uint64_t done = 0;
  std::uint64_t lost = 0;  // lines that no line has told of
  std::string lost_why;
  std::string reopen_failed;
  std::string rotate_failed;
  std::uint64_t rotate_failures = 0;  // in a row
  std::string progress;
  bool progress_changed = false;
  bool late = false;  // somebody has waited in vain: nobody waits until the queue is empty
  bool ending = false;
  bool runs = false;  // there is a thread
  // Of the thread alone, once there is one.
  LogFile file;  // without a path: standard error, or the journal
  std::uint64_t rotate_bytes = 0;
  std::uint32_t rotate_keep = 1;
  std::uint64_t rotate_after_ms = 0;  // not sooner, after a failure
  process::Journal journal;
  int fd = STDERR_FILENO;
  bool terminal = false;
  bool drawn = false;      // the line of progress is on the screen
  bool line_open = false;  // a write ended within a line
  OwnLine own_line;

  void run();
  void reopen_now(std::unique_lock<std::mutex>& lock);
  void rotate_now(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::uint64_t bytes_now(std::unique_lock<std::mutex>& lock) const;
  [[nodiscard]] std::uint64_t room(std::unique_lock<std::mutex>& lock) const;
  [[nodiscard]] std::string loss_text() const {
    return own_line("log_lines_lost", fmt::format("lines={} reason={}", lost, in_quotes(lost_why)));
  }
  void write_waiting(std::unique_lock<std::mutex>& lock);
  void send_waiting(std::unique_lock<std::mutex>& lock);
  bool write_all(std::string_view text, std::unique_lock<std::mutex>& lock);
  void lose(std::uint64_t lines, const std::string& why) {
    lost += lines;
    lost_why = why;
  }
};

// False: the system has refused it, and what was left of it is counted as lost.
bool LogWriter::State::write_all(std::string_view text, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      line_open = text[static_cast<std::size_t>(n) - 1] != '\n';
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      // Somebody else has made it non-blocking.
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (n < 0 && errno != EINTR) {
      error = errno;
    }
  }
  lock.lock();
  if (error == 0) return true;
  lose(lines_in(text), std::strerror(error));
  return false;
}

// One write for all lines that wait, up to the next reopening. Lines that there is no memory for
// are lost and counted.
void LogWriter::State::write_waiting(std::unique_lock<std::mutex>& lock) {
  std::string out;
  std::uint64_t items = 0;
  try {
    const std::uint64_t most = room(lock);
    while (!queue.empty() && !queue.front().reopens &&
           (items == 0 || out.size() + queue.front().text.size() <= most)) {
      out += queue.front().text;
      queue_bytes -= queue.front().text.size();
      queue.pop_front();
      ++items;
    }
    progress_changed = false;
    std::string line;
    if (terminal) line = shown_cut(progress, columns_of(STDERR_FILENO) - 1);
    std::string before;
    if (drawn) before = kClearLine;
    if (line_open && !drawn) before += '\n';  // of a line that was cut short
    drawn = !line.empty();
    bool fine = true;
    if (lost != 0 && own_line) {
      const std::uint64_t told = lost;
      const std::string text = before + loss_text();
      fine = write_all(text, lock);
      if (fine) {
        before.clear();
        lost -= told;
      } else {
        lost -= std::min<std::uint64_t>(lost, 1);  // that line is none of them
      }
    }
    if (fine) {
      static_cast<void>(write_all(before + out + line, lock));
    } else {
      lose(lines_in(out), lost_why);
    }
  } catch (const std::exception&) {
    if (items == 0 && !queue.empty()) {
      lose(queue.front().lines, "no memory");
      queue_bytes -= queue.front().text.size();
      queue.pop_front();
      ++items;
    } else {
      lose(lines_in(out), "no memory");
    }
  }
  done += items;
  if (queue.empty()) late = false;
  written.notify_all();
}

// One entry at a time: a journal takes no more.
void LogWriter::State::send_waiting(std::unique_lock<std::mutex>& lock) {
  const auto send = [&](const std::string& entry) {
    lock.unlock();
    const Status sent = journal.send(entry);
    lock.lock();
    return sent;
  };
  progress_changed = false;
  if (queue.empty()) return;
  try {
    if (const std::uint64_t told = lost; told != 0 && own_line && send(loss_text())) lost -= told;
    if (const Status sent = send(queue.front().text); !sent) {
      lose(queue.front().lines, sent.error().message());
    }
  } catch (const std::exception&) {
    lose(queue.front().lines, "no memory");
  }
  queue_bytes -= queue.front().text.size();
  queue.pop_front();
  ++done;
  if (queue.empty()) late = false;
  written.notify_all();
}

void LogWriter::State::reopen_now(std::unique_lock<std::mutex>& lock) {
  queue.pop_front();
  lock.unlock();
  const Status opened = file.reopen();
  lock.lock();
  try {
    reopen_failed = opened ? std::string()
                           : fmt::format(
                                 "log file {} cannot be reopened: {}: the previous one "
                                 "stays in use",
                                 escaped(file.path()), opened.error().message());
  } catch (const std::exception&) {
    reopen_failed = "no memory";
  }
  if (opened) {
    fd = file.fd();
    line_open = false;
  }
  ++done;
  written.notify_all();
}

// In the file. A file system may take its time to say so; nobody waits for it.
std::uint64_t LogWriter::State::bytes_now(std::unique_lock<std::mutex>& lock) const {
  lock.unlock();
  const std::uint64_t has = file.bytes();
  lock.lock();
  return has;
}

// Bytes that may be written before the file is renamed.
std::uint64_t LogWriter::State::room(std::unique_lock<std::mutex>& lock) const {
  if (rotate_bytes == 0) return ~std::uint64_t{0};
  const std::uint64_t has = bytes_now(lock);
  return has < rotate_bytes ? rotate_bytes - has : 0;
}

// If the next line does not fit any more. A line that is larger than a file gets one of its own.
void LogWriter::State::rotate_now(std::unique_lock<std::mutex>& lock) {
  if (queue.empty() || rotate_bytes == 0) return;
  const std::uint64_t has = bytes_now(lock);
  if (queue.empty()) return;
  if (has == 0 || has + queue.front().text.size() <= rotate_bytes) return;
  if (process::now_ms() < rotate_after_ms) return;
  lock.unlock();
  const Status rotated = file.rotate(rotate_keep);
  lock.lock();
  fd = file.fd();
  if (rotated) {
    line_open = false;
    rotate_failures = 0;
    rotate_failed.clear();
    return;
  }
  rotate_after_ms = process::now_ms() + kRotateAgainMs;
  ++rotate_failures;
  try {
    rotate_failed = fmt::format("log file {} cannot be rotated ({} {}): {}: lines go on to it",
                                escaped(file.path()), rotate_failures,
                                rotate_failures == 1 ? "try" : "tries", rotated.error().message());
    if (!own_line || !std::has_single_bit(rotate_failures)) return;
    std::string text = own_line(
        "log_rotation_failed",
        fmt::format("count={} reason={}", rotate_failures, in_quotes(rotated.error().message())));
    static_cast<void>(write_all(text, lock));
  } catch (const std::exception&) {  // no memory to say so; it is counted
  }
}

void LogWriter::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    wake.wait(lock, [this] { return !queue.empty() || progress_changed || ending; });
    if (ending && queue.empty()) {
      if (drawn) static_cast<void>(write_all(kClearLine, lock));
      written.notify_all();
      runs = false;
      return;
    }
    if (!queue.empty() && queue.front().reopens) {
      reopen_now(lock);
    } else if (!journal.path().empty()) {
      send_waiting(lock);
    } else {
      rotate_now(lock);
      write_waiting(lock);
    }
  }
}

LogWriter::LogWriter(Target target, OwnLine own_line) : state_(std::make_shared<State>()) {
  state_->own_line = std::move(own_line);
  state_->rotate_bytes = target.rotate_bytes;
  state_->rotate_keep = std::max(target.rotate_keep, 1U);
  if (!target.journal.empty()) {
    state_->journal = process::Journal(std::move(target.journal));
    return;
  }
  if (target.file.empty()) {
    state_->rotate_bytes = 0;
    state_->terminal = ::isatty(STDERR_FILENO) == 1 && !terminal_is_dumb();
    return;
  }
  Result<LogFile> opened = LogFile::open(target.file);
  if (!opened) {
    throw Error(ErrorCode::kIo,
                fmt::format("log file {} cannot be opened: {}: set log.file to a file of yours",
                            escaped(target.file), opened.error().message()));
  }
  state_->file = std::move(*opened);
  state_->fd = state_->file.fd();
}

LogWriter::~LogWriter() {
  std::unique_lock lock(state_->mutex);
  start();
  state_->ending = true;
  state_->progress.clear();
  state_->wake.notify_one();
  state_->written.wait_for(lock, std::chrono::milliseconds(kFlushMs),
                           [this] { return !state_->runs; });
}

// Under the mutex. A system that has no thread to give is asked again with the next line.
void LogWriter::start() {
  if (state_->runs) return;
  // Signals are for the event loop: this thread has none.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread([state = state_] {
      ::pthread_setname_np(::pthread_self(), "log");
      state->run();
    }).detach();
    state_->runs = true;
  } catch (const std::exception&) {  // no thread, or no memory for one
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LogWriter::write(std::string text, bool patient) {
  std::unique_lock lock(state_->mutex);
  start();
  const std::uint64_t lines = state_->journal.path().empty() ? lines_in(text) : 1;
  if (state_->queue_bytes + text.size() > kQueueBytes) {
    state_->lose(lines, "nobody reads them");
    return;
  }
  const std::size_t bytes = text.size();
  state_->queue.push_back({std::move(text), lines, false});
  state_->queue_bytes += bytes;
  const std::uint64_t own = ++state_->pushed;
  state_->wake.notify_one();
  if (!patient || state_->late || !state_->runs) return;
  state_->late = !state_->written.wait_for(lock, std::chrono::milliseconds(kPatienceMs),
                                           [&] { return state_->done >= own; });
}

void LogWriter::set_progress(std::string text) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->terminal || state_->progress == text) return;
  start();
  state_->progress = std::move(text);
  state_->progress_changed = true;
  state_->wake.notify_one();
}

bool LogWriter::is_terminal() const { return state_->terminal; }

void LogWriter::reopen() {
  std::unique_lock lock(state_->mutex);
  if (state_->file.path().empty()) return;
  start();
  state_->queue.push_back({{}, 0, true});
  ++state_->pushed;
  state_->wake.notify_one();
}

std::string LogWriter::problem() const {
  const std::lock_guard lock(state_->mutex);
  const std::string where = !state_->journal.path().empty() ? std::string("the journal")
                            : state_->file.path().empty()
                                ? std::string("standard error")
                                : "log file " + escaped(state_->file.path());
  std::string text = state_->reopen_failed;
  if (!state_->rotate_failed.empty()) text += (text.empty() ? "" : "; ") + state_->rotate_failed;
  if (state_->lost != 0) {
    text += fmt::format("{}{} accepts no lines: {} were lost ({})", text.empty() ? "" : "; ", where,
                        state_->lost, state_->lost_why);
  } else if (state_->late) {
    text += fmt::format("{}{} accepts no lines: {} bytes are waiting", text.empty() ? "" : "; ",
                        where, state_->queue_bytes);
  }
  return text;
}

}  // namespace ringfeed::metrics
