#include "supervisor/group/warm_parent.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string_view>
#include <vector>

#include "proto/worker.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/os/packet.h"

namespace ringfeed::process {
namespace {

constexpr std::uint64_t kPauseMsMin = 1'000;
constexpr std::uint64_t kPauseMsMax = 60'000;
constexpr std::string_view kCannotFork = "cannot fork ";  // a sentence follows
constexpr std::string_view kPid = "pid ";

// Field 4 of /proc/PID/stat; the name before it may hold anything.
pid_t parent_of(pid_t pid) {
  std::string stat;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), stat);
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > stat.size()) return 0;
  return static_cast<pid_t>(std::atoi(stat.c_str() + name_end + 4));
}

}  // namespace

WarmParent::WarmParent(EventLoop& loop, std::string stage, std::string binary, std::string setup,
                       Hooks hooks)
    : loop_(loop),
      stage_(std::move(stage)),
      binary_(std::move(binary)),
      setup_(std::move(setup)),
      hooks_(std::move(hooks)) {}

WarmParent::~WarmParent() {
  if (process_.pidfd) end("");
}

void WarmParent::look_after() {
  if (process_.pidfd || never_ || now_ms() < next_ms_) return;
  try {
    start();
  } catch (const std::exception& error) {
    // Nobody waits for it: it is tried again.
    next_ms_ = now_ms() + kPauseMsMax;
    if (process_.pidfd) end(error.what());
  }
}

void WarmParent::start() {
  ready_ = false;
  started_ms_ = now_ms();
  process_ = spawn_worker(binary_, -1, "--warm-fd");
  RF_FAILPOINT("supervisor.warm.spawned");
  loop_.watch(process_.pidfd.get(), [this] {
    if (has_ended(process_.pidfd.get())) end("it ended");
  });
  loop_.watch(process_.socket.get(), [this] { on_packet(); });
  loop_.watch(process_.log.get(), [this] { read_log(); });
  ToWorker packet;
  packet.mutable_setup()->set_descriptor_count(1);
  const shm::Fd body = control::bytes_as_fd(setup_, "ringfeed-setup").value_or_throw();
  const std::array<int, 1> fds{body.get()};
  const Status sent = control::send_packet(process_.socket.get(), packet.SerializeAsString(), fds);
  if (!sent) throw Error(sent.error());
}

void WarmParent::on_packet() {
  const Result<control::Packet> packet = control::receive_packet(process_.socket.get());
  if (!packet || packet->end) return loop_.unwatch(process_.socket.get());
  if (packet->bytes == kParentReady && !ready_) {
    ready_ = true;
    hooks_.on_event("info", "parent_ready",
                    fmt::format("stage={} pid={} after_ms={}", stage_, process_.identity.pid,
                                now_ms() - started_ms_));
  } else if (packet->bytes.starts_with(kCannotFork)) {
    never_ = true;
    hooks_.on_event("info", "parent_not_wanted",
                    fmt::format("stage={} reason={}", stage_,
                                in_quotes(packet->bytes.substr(kCannotFork.size()))));
    end("");
  }
}

void WarmParent::read_log() {
  if (!tail_.read(process_.log.get(), hooks_.on_line)) loop_.unwatch(process_.log.get());
}

// Kills and forgets it. `why`: for the log; empty if it was to end.
void WarmParent::end(std::string_view why) {
  read_log();
  tail_.finish(hooks_.on_line);
  // With what its code has started; what it has forked leads groups of its own.
  ::kill(-process_.identity.pid, SIGKILL);
  ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
  const Ending ending = reap(process_.pidfd);
  loop_.unwatch(process_.pidfd.get());
  loop_.unwatch(process_.socket.get());
  loop_.unwatch(process_.log.get());
  process_ = {};
  ready_ = false;
  if (why.empty()) return;
  // One that has lived for long begins anew.
  deaths_ = now_ms() - started_ms_ > kPauseMsMax ? 1 : deaths_ + 1;
  const std::uint64_t pause_ms =
      std::min(kPauseMsMax, kPauseMsMin << std::min<std::uint32_t>(deaths_ - 1, 6));
  next_ms_ = now_ms() + pause_ms;
  hooks_.on_event("warn", "parent_died",
                  fmt::format("stage={} reason={} end={} again_in_ms={}", stage_, in_quotes(why),
                              in_quotes(ending.text()), pause_ms));
}

std::optional<Spawned> WarmParent::spawn(int lock) {
  if (!ready_) return std::nullopt;
  WorkerLinks links = make_worker_links();
  std::vector<int> fds{links.their_socket.get(), links.their_log.get()};
  if (lock >= 0) fds.push_back(lock);
  const int socket = process_.socket.get();
  if (!control::send_packet(socket, kForkOrder, fds)) {
    end("it takes no orders");
    return std::nullopt;
  }
  RF_FAILPOINT("supervisor.warm.asked");
  pollfd answer{socket, POLLIN, 0};
  if (::poll(&answer, 1, kForkMsMax) != 1) {
    end("it does not answer");
    return std::nullopt;
  }
  const Result<control::Packet> packet = control::receive_packet(socket);
  const std::string_view said = packet ? std::string_view(packet->bytes) : std::string_view();
  pid_t pid = 0;
  if (said.starts_with(kPid)) {
    std::from_chars(said.data() + kPid.size(), said.data() + said.size(), pid);
  }
  Spawned spawned;
  if (pid > 0) spawned.pidfd = open_pidfd(pid);
  // Users' code runs in it: it is not believed that this is a child.
  if (!spawned.pidfd || parent_of(pid) != ::getpid()) {
    end(said.empty() ? "it did not fork" : std::string(said));
    return std::nullopt;
  }
  spawned.identity = {pid, start_ticks(pid).value_or(0)};
  spawned.socket = std::move(links.socket);
  spawned.log = std::move(links.log);
  return spawned;
}

}  // namespace ringfeed::process
