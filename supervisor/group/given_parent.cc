#include "supervisor/group/given_parent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>
#include <vector>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/os/packet.h"

namespace ringfeed::process {
namespace {

// Endings that nobody has asked for are those of processes that were never heard of here.
constexpr std::size_t kEndingsMax = 1024;
// What it says goes to the log and to status.
constexpr std::size_t kTextBytesMax = 500;
constexpr std::string_view kError = "error ";
constexpr std::string_view kEnded = "ended ";
constexpr std::string_view kHere = "here";
constexpr std::string_view kLater = "later";
constexpr std::string_view kOver = "over";
constexpr std::string_view kWork = "work ";
constexpr std::string_view kNotReady = "it has not said yet that it is ready";
constexpr std::string_view kNextOne =
    "it has ended, and all that it had forked; the next one comes";

// Now, as /proc says when a process began.
std::uint64_t boot_ticks() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const auto hertz = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return static_cast<std::uint64_t>(now.tv_sec) * hertz +
         static_cast<std::uint64_t>(now.tv_nsec) * hertz / 1'000'000'000;
}

// "PID STATUS"
std::optional<std::pair<pid_t, int>> read_ending(std::string_view text) {
  std::pair<pid_t, int> ending;
  const char* const end = text.data() + text.size();
  const auto pid = std::from_chars(text.data(), end, ending.first);
  if (pid.ec != std::errc() || pid.ptr == end || *pid.ptr != ' ') return std::nullopt;
  const auto status = std::from_chars(pid.ptr + 1, end, ending.second);
  if (status.ec != std::errc() || status.ptr != end || ending.first <= 0) return std::nullopt;
  return ending;
}

// What wait() says, of somebody else's child.
Ending told(int status) {
  Ending ending{.known = false, .told = true};
  ending.exited = WIFEXITED(status);
  if (ending.exited) {
    ending.status = WEXITSTATUS(status);
  } else {
    ending.signal = WTERMSIG(status);
  }
  return ending;
}

}  // namespace

GivenParent::GivenParent(EventLoop& loop, std::string path, Hooks hooks)
    : loop_(loop),
      path_(std::move(path)),
      hooks_(std::move(hooks)),
      why_("it has not been connected to yet"),
      since_ms_(now_ms()) {}

GivenParent::~GivenParent() {
  if (rest_) loop_.cancel(*rest_);
  if (timer_) loop_.cancel(*timer_);
  if (link_) loop_.unwatch(link_.get());
}

GivenParent::File GivenParent::file() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino,
          std::int64_t{info.st_ctim.tv_sec} * 1'000'000'000 + info.st_ctim.tv_nsec};
}

void GivenParent::look_after() {
  if (ready_ || over_ || timer_) return;
  // One that was connected to and is not ready may have been replaced since.
  if (link_) file() != file_ ? leave("another one is in its place") : note(std::string(kNotReady));
  if (!link_ && (now_ms() >= paused_until_ms_ || file() != file_)) connect();
  look_later();
}

void GivenParent::look_later() {
  if (ready_ || timer_) return;
  // One that is connected to says by itself that it is ready.
  const bool soon = !link_ && now_ms() < since_ms_ + kSoonForMs;
  const std::uint64_t pause_ms = soon ? kSoonMs : kLaterMs;
  timer_ = loop_.after(pause_ms, [this] {
    timer_.reset();
    look_after();
  });
}

void GivenParent::connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) return note("its path is too long for a socket");
  path_.copy(address.sun_path, path_.size());
  shm::Fd link(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!link) return note(fmt::format("no socket for it: {}", std::strerror(errno)));
  const File file = this->file();
  if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return note(errno == ENOENT         ? "nothing is there yet"
                : errno == ECONNREFUSED ? "nobody listens there"
                                        : std::strerror(errno));
  }
  file_ = file;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(link.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return note(fmt::format("the system does not say whose it is: {}", std::strerror(errno)));
  }
  if (peer.uid != ::geteuid()) {
    give_pause();
    return note(fmt::format("it belongs to user {}, and this is user {}", peer.uid, ::geteuid()));
  }
  loop_.watch(link.get(), [this] { on_packets(); });
  link_ = std::move(link);
  peer_ = peer.pid;
  why_ = kNotReady;
}

// A packet of it; nothing: there is none, or it has gone.
std::optional<std::string> GivenParent::take_packet() {
  if (!link_) return std::nullopt;
  Result<control::Packet> packet = control::receive_packet(link_.get());
  if (packet && packet->empty) return std::nullopt;
  if (!packet || packet->end) {
    leave(packet ? "it has closed the connection" : "it says what cannot be read");
    return std::nullopt;
  }
  return std::move(packet->bytes);
}

void GivenParent::on_packets() {
  while (const std::optional<std::string> said = take_packet()) take(*said);
  // Behind one that has ended in order the next one is waited for where it listened.
  if (link_ || !std::exchange(over_, false)) return;
  if (timer_) loop_.cancel(*std::exchange(timer_, std::nullopt));
  look_after();
}

void GivenParent::take(const std::string& said) {
  if (said == kParentReady && !over_) {
    if (!std::exchange(ready_, true)) {
      why_.clear();
      logged_.clear();
      hooks_.on_event(
          "info", "parent_ready",
          fmt::format("path={} pid={} after_ms={}", log_value(path_), peer_, now_ms() - since_ms_));
    }
    // Not here: who is called gives orders, and this may be the wait for what came of one.
    loop_.after(0, [ready = hooks_.on_ready] { ready(true); });
  } else if (said.starts_with(kWork)) {
    loop_.after(0, [work = hooks_.on_work, group = said.substr(kWork.size())] { work(group); });
  } else if (said.starts_with(kEnded)) {
    const auto ending = read_ending(std::string_view(said).substr(kEnded.size()));
    if (!ending) return;
    if (endings_.size() >= kEndingsMax) endings_.clear();
    endings_.insert_or_assign(ending->first, told(ending->second));
    loop_.after(0, [ended = hooks_.on_ended, pid = ending->first] { ended(pid); });
  } else if (said == kOver) {
    ready_ = false;  // first: who is called orders nothing of this parent any more
    over_ = true;
    since_ms_ = now_ms();
    note(std::string(kNextOne));
    hooks_.on_over();
  }
}

// It is not connected any more, nor ended: it is none of this process's.
void GivenParent::leave(std::string_view why) {
  if (link_) loop_.unwatch(link_.get());
  link_.reset();
  if (std::exchange(ready_, false)) since_ms_ = now_ms();
  if (over_) return;
  note(std::string(why));
  look_later();
}

// The next one that is there is tried at once, if it is another one.
void GivenParent::give_pause() {
  pause_ms_ = std::clamp(2 * pause_ms_, kPauseMsMin, kPauseMsMax);
  paused_until_ms_ = now_ms() + pause_ms_;
}

// Said in the log when it is another reason than before.
void GivenParent::note(std::string why) {
  why_ = std::move(why);
  if (why_ == logged_) return;
  logged_ = why_;
  hooks_.on_event(
      "info", "parent_awaited",
      fmt::format("path={} what={}", log_value(path_),
                  in_quotes(fmt::format("waits for the warm parent at {}: {}", path_, why_))));
}

Result<Spawned> GivenParent::refused(std::string why) {
  note(std::move(why));
  return Error(ErrorCode::kBusy, why_);
}

std::optional<Ending> GivenParent::ending_of(pid_t pid) const {
  const auto found = endings_.find(pid);
  if (found == endings_.end()) return std::nullopt;
  return found->second;
}

void GivenParent::rest(int rounds) {
  rest_ = loop_.after(kRestMs, [this, rounds] {
    if (rounds > 1) return rest(rounds - 1);
    rest_.reset();
    // Whoever was refused tries again by himself, later and later.
    if (ready_ && why_.empty()) hooks_.on_ready(false);
  });
}

Result<Spawned> GivenParent::spawn(std::string_view group, int lock) {
  spares_ = false;
  if (!ready_) return Error(ErrorCode::kBusy, why_);
  if (rest_) return Error(ErrorCode::kBusy, "it has just forked another one");
  rest(kRestRounds);
  WorkerLinks links = make_worker_links();
  const int on = 1;
  if (::setsockopt(links.socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return Error(system_code(errno), fmt::format("the system does not say who speaks on a socket: "
                                                 "{}",
                                                 std::strerror(errno)));
  }
  std::vector<int> fds{links.their_socket.get(), links.their_log.get()};
  if (lock >= 0) fds.push_back(lock);
  const std::uint64_t ordered_ticks = boot_ticks();
  const Status sent =
      control::send_packet(link_.get(), fmt::format("{} {}", kForkOrder, group), fds);
  if (!sent && sent.error().code() == ErrorCode::kNoMemory) return sent.error();
  if (!sent) {
    give_pause();
    leave("it takes no orders");
    return Error(ErrorCode::kBusy, why_);
  }
  // Who dies now, of all that have the other ends, is seen.
  links.their_socket.reset();
  links.their_log.reset();
  return await_child(std::move(links), ordered_ticks);
}

Result<Spawned> GivenParent::await_child(WorkerLinks links, std::uint64_t ordered_ticks) {
  const std::uint64_t until_ms = now_ms() + kForkMsMax;
  control::Packet first;
  for (bool spoken = false; !spoken;) {
    const std::uint64_t now = now_ms();
    std::array<pollfd, 2> ready{{{links.socket.get(), POLLIN, 0}, {link_.get(), POLLIN, 0}}};
    const int events =
        ::poll(ready.data(), ready.size(), static_cast<int>(until_ms - std::min(until_ms, now)));
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) {
      links = {};  // first: a process that comes yet is to find nobody
      give_pause();
      leave("it does not answer");
      return Error(ErrorCode::kBusy, why_);
    }
    if (ready[1].revents != 0) {
      const std::optional<std::string> said = take_packet();
      if (!link_) return Error(ErrorCode::kBusy, why_);
      if (said && said->starts_with(kError)) {
        return refused(said->substr(kError.size(), kTextBytesMax));
      }
      if (said == kLater) {
        spares_ = true;
        return Error(ErrorCode::kBusy, "it has no work");
      }
      if (said) take(*said);
      if (!ready_) return Error(ErrorCode::kBusy, why_);
      continue;
    }
    Result<control::Packet> packet = control::receive_packet(links.socket.get());
    if (packet && packet->empty) continue;
    if (!packet || packet->end) return refused("a process that it forked ended before it spoke");
    first = std::move(*packet);
    spoken = true;
  }
  const int off = 0;
  ::setsockopt(links.socket.get(), SOL_SOCKET, SO_PASSCRED, &off, sizeof off);
  const pid_t pid = first.sender_pid;
  const auto not_a_new_one = [&]() -> Result<Spawned> {
    give_pause();
    leave(fmt::format("process {} of user {} has answered in place of a new one", pid,
                      first.sender_uid));
    return Error(ErrorCode::kBusy, why_);
  };
  // 0: it is in a pid namespace that cannot be seen from here.
  if (first.bytes != kHere || pid <= 0 || first.sender_uid != ::getuid()) return not_a_new_one();
  Spawned spawned;
  // The pidfd first, then the look at when it began: both are about the same process.
  spawned.pidfd = open_pidfd(pid);
  if (!spawned.pidfd && errno != ESRCH) {
    return Error(system_code(errno),
                 fmt::format("process {} cannot be watched: {}", pid, std::strerror(errno)));
  }
  const std::optional<std::uint64_t> ticks = start_ticks(pid);
  if (!spawned.pidfd || !ticks) return refused("a process that it forked ended at once");
  if (*ticks < ordered_ticks) return not_a_new_one();
  spawned.identity = {pid, *ticks};
  why_.clear();
  logged_.clear();
  pause_ms_ = paused_until_ms_ = 0;
  endings_.erase(pid);  // of another one that had the number before
  spawned.socket = std::move(links.socket);
  spawned.log = std::move(links.log);
  return spawned;
}

}  // namespace ringfeed::process
