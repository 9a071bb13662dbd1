#include "supervisor/metrics/log_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
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

namespace ringfeed::metrics {
namespace {

constexpr std::size_t kColumnsOtherwise = 80;
constexpr std::string_view kClearLine = "\r\x1b[K";

std::size_t columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kColumnsOtherwise;
}

// What does not fit loses its first notes: the later stages are those that are waited for.
std::string fitted(std::string text, std::size_t room) {
  constexpr std::string_view kBetween = " | ";
  const std::size_t first = text.find(": ") + 2;
  for (std::size_t cut = 0; text.size() > room && (cut = text.find(kBetween)) != text.npos;) {
    text.erase(first, cut + kBetween.size() - first);
  }
  return text.substr(0, room);
}

std::uint64_t lines_in(std::string_view text) {
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

// Never waits for anybody; what is written to it later may. Errors: kIo, the reason alone.
Result<shm::Fd> open_log(const std::string& file) {
  // Not blocking: a FIFO would be opened when somebody reads it.
  shm::Fd fd(::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                    0644));
  if (!fd && errno == ENXIO) {
    return Error{ErrorCode::kIo,
                 "it is a FIFO that nobody reads (start its reader first), or a "
                 "socket"};
  }
  // The description is this process's own, so nobody else is told to wait.
  if (!fd || ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK) != 0) {
    return Error{ErrorCode::kIo, std::strerror(errno)};
  }
  return fd;
}

}  // namespace

struct LogWriter::State {
  std::mutex mutex;
  std::condition_variable wake;     // there is something to do
  std::condition_variable written;  // something was done
  // Under the mutex.
  struct Item {
    std::string text;
    bool reopens = false;
  };
  std::deque<Item> queue;
  std::size_t queue_bytes = 0;
  std::uint64_t pushed = 0;  // items, since the beginning
  std::uint64_t done = 0;
  std::uint64_t lost = 0;  // lines that no line has told of
  std::string lost_why;
  std::string reopen_failed;
  std::string progress;
  bool progress_changed = false;
  bool late = false;  // somebody has waited in vain: nobody waits until the queue is empty
  bool ending = false;
  bool runs = false;  // there is a thread
  // Of the thread alone, once there is one.
  std::string file;  // empty: standard error
  shm::Fd own;
  int fd = STDERR_FILENO;
  bool terminal = false;
  bool drawn = false;      // the line of progress is on the screen
  bool line_open = false;  // a write ended within a line
  LossLine loss_line;

  void run();
  void write_waiting(std::unique_lock<std::mutex>& lock);
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
    while (!queue.empty() && !queue.front().reopens) {
      out += queue.front().text;
      queue.pop_front();
      ++items;
    }
    queue_bytes = 0;
    progress_changed = false;
    std::string line = terminal && !progress.empty() ? fitted(progress, columns() - 1) : "";
    std::string before;
    if (drawn) before = kClearLine;
    if (line_open && !drawn) before += '\n';  // of a line that was cut short
    drawn = !line.empty();
    bool fine = true;
    if (lost != 0 && loss_line) {
      const std::uint64_t told = lost;
      const std::string text = before + loss_line(told, lost_why);
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
      lose(lines_in(queue.front().text), "no memory");
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
      queue.pop_front();
      lock.unlock();
      Result<shm::Fd> fresh = open_log(file);
      lock.lock();
      try {
        reopen_failed =
            fresh ? std::string()
                  : fmt::format("log file {} cannot be reopened: {}: the previous one stays in use",
                                file, fresh.error().message());
      } catch (const std::exception&) {
        reopen_failed = "no memory";
      }
      if (fresh) {
        own = std::move(*fresh);
        fd = own.get();
        line_open = false;
      }
      ++done;
      written.notify_all();
      continue;
    }
    write_waiting(lock);
  }
}

LogWriter::LogWriter(LossLine loss_line) : state_(std::make_shared<State>()) {
  state_->terminal = ::isatty(STDERR_FILENO) == 1;
  state_->loss_line = std::move(loss_line);
}

LogWriter::LogWriter(const std::string& file, LossLine loss_line)
    : state_(std::make_shared<State>()) {
  Result<shm::Fd> opened = open_log(file);
  if (!opened) {
    throw Error(ErrorCode::kIo,
                fmt::format("log file {} cannot be opened: {}: set log.file to a file of yours",
                            escaped(file), opened.error().message()));
  }
  state_->own = std::move(*opened);
  state_->file = file;
  state_->fd = state_->own.get();
  state_->loss_line = std::move(loss_line);
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
  if (state_->queue_bytes + text.size() > kQueueBytes) {
    state_->lose(lines_in(text), "nobody reads them");
    return;
  }
  const std::size_t bytes = text.size();
  state_->queue.push_back({std::move(text), false});
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
  if (state_->file.empty()) return;
  start();
  state_->queue.push_back({{}, true});
  ++state_->pushed;
  state_->wake.notify_one();
}

std::string LogWriter::problem() const {
  const std::lock_guard lock(state_->mutex);
  const std::string where =
      state_->file.empty() ? std::string("standard error") : "log file " + state_->file;
  std::string text = state_->reopen_failed;
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
