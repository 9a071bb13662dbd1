#include "workers/runtime/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <system_error>
#include <thread>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/kinds.pb.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/large_pages.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/starvation.h"
#include "workers/runtime/calls.h"
#include "workers/runtime/fault.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/lane_builder.h"
#include "workers/runtime/log.h"
#include "workers/runtime/segments.h"
#include "workers/runtime/setup.h"

namespace ringfeed {
namespace {

// A worker without a supervisor looks for the next one this often.
constexpr int kLookForSupervisorMs = 100;
// Arenas that have grown are looked for this often.
constexpr int kGatherEveryMs = 1000;

using Places = std::vector<std::pair<std::byte*, int>>;  // mapped memory, and its descriptor

// Gives the memory large pages, one at a time, until the lanes are done; arenas as they grow. A
// later incarnation finds them, and is told where they are. One at a time and with the priority of
// all others: a process that is killed is dead when its last thread is, and one that has to wait
// for its turn, with much to do in the kernel, made that seconds on a busy machine.
void gather_pages(int done_fd, const Places& places) {
  ::pthread_setname_np(::pthread_self(), "large pages");
  std::vector<std::uint64_t> done(places.size(), 0);
  pollfd lanes{done_fd, POLLIN, 0};
  for (int pause_ms = 0; ::poll(&lanes, 1, pause_ms) <= 0;) {
    pause_ms = kGatherEveryMs;
    for (std::size_t i = 0; i < places.size(); ++i) {
      struct stat info {};
      ::fstat(places[i].second, &info);
      const std::uint64_t whole =
          static_cast<std::uint64_t>(info.st_size) / shm::kLargePageBytes * shm::kLargePageBytes;
      if (done[i] >= whole) continue;
      shm::gather_pages(places[i].first + done[i], shm::kLargePageBytes);
      done[i] += shm::kLargePageBytes;
      pause_ms = 0;
      break;
    }
  }
}

bool is_same_file(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

void send_message(int socket, const FromWorker& message) {
  const std::string bytes = message.SerializeAsString();
  ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void say_finished(int socket) {
  FromWorker finished;
  finished.mutable_finished();
  send_message(socket, finished);
}

void say_ready(int socket) {
  FromWorker ready;
  ready.mutable_ready()->set_pid(static_cast<std::uint32_t>(::getpid()));
  ready.mutable_ready()->set_worker_version(RINGFEED_VERSION);
  send_message(socket, ready);
}

// Tells the supervisor why, and ends at once.
[[noreturn]] void give_up(int setup_fd, const Error& error) {
  FromWorker message;
  WorkerFailure& failure = *message.mutable_failure();
  failure.set_text(error.message());
  failure.set_starved(error.code() == ErrorCode::kNoMemory);
  failure.set_permanent(error.code() == ErrorCode::kConfiguration ||
                        error.code() == ErrorCode::kIncompatible);
  send_message(setup_fd, message);
  std::fprintf(stderr, "ringfeed-worker: %s\n", error.message().c_str());
  std::fflush(nullptr);
  ::_exit(1);
}

// Where one is refused others may run already: the process ends as it stands, which is a death like
// any other to them.
template <typename Run>
std::thread start_thread(int setup_fd, const std::string& name, Run&& run) {
  try {
    if (RF_FAILPOINT_ERROR("runtime.worker.thread")) {
      throw std::system_error(EAGAIN, std::generic_category());
    }
    return std::thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    give_up(setup_fd,
            Error(ErrorCode::kNoMemory,
                  fmt::format("the system provides no thread for {}: {}: raise the process limit "
                              "(ulimit -u, or pids.max of the control group)",
                              name, error.code().message())));
  }
}

// The lanes of this worker, with all that they stand on. Their threads run them; the main one waits
// for their end, and for the end of the supervisor. A process whose lanes have all finished stays
// until it is killed: batches may still wait for trainers, and if the supervisor dies, memory
// without a name lives on only with a process that holds it.
class Worker {
 public:
  Worker(const WorkerSetup& setup, std::vector<shm::Fd> descriptors, const Registry& registry,
         int setup_fd);
  int run(FirstLane first);

 private:
  void take_lock();
  [[nodiscard]] Places places() const;
  [[nodiscard]] bool all_finished() const;
  [[nodiscard]] shm::Fd find_supervisor(bool* refused) const;
  void run_lane(std::size_t i);
  void start_threads(FirstLane first);
  void watch();
  [[noreturn]] void fail(std::string_view text) const;
  // What the watching thread waits for. True: the process is to end.
  [[nodiscard]] bool on_lanes_over();
  [[nodiscard]] bool look_for_supervisor();
  void hear_supervisor();

  const WorkerSetup& setup_;
  const int setup_fd_;
  DataLoaderConfig config_;
  Segments segments_;
  const Registry& registry_;
  std::optional<PipelineLinks> links_;  // of config_
  std::vector<std::unique_ptr<shm::Arena>> arenas_;
  std::vector<const LaneSetup*> lane_setups_;  // of lanes_, one for one
  std::vector<std::unique_ptr<LaneRuntime>> lanes_;
  std::vector<shm::LanePage*> pages_;  // theirs
  LaneOrders orders_;

  int done_[2] = {-1, -1};  // a pipe: readable when the last lane is over
  std::atomic<std::uint32_t> running_{0};
  Places gathered_;
  std::vector<std::thread> threads_;
  std::thread gatherer_;

  pollfd watched_[2] = {};  // the pipe; the supervisor, unless it is looked for
  int timeout_ms_ = -1;     // >= 0: it is looked for, this often
  shm::Fd link_;            // to a later supervisor than the one that started this process
  int alone_ms_ = 0;
  bool idle_ = false;  // all lanes have finished
};

Worker::Worker(const WorkerSetup& setup, std::vector<shm::Fd> descriptors, const Registry& registry,
               int setup_fd)
    : setup_(setup),
      setup_fd_(setup_fd),
      segments_(setup, std::move(descriptors)),
      registry_(registry) {
  if (!config_.ParseFromString(setup.config()))
    throw Error(ErrorCode::kIo, "the setup's configuration is damaged");
  take_lock();
  links_.emplace(config_, registry_);
  LaneBuilder builder(setup_, config_, segments_, registry_, *links_,
                      [this](std::string_view text) { fail(text); });
  for (const LaneSetup& lane : setup_.lanes()) {
    BuiltLane built = builder.build(lane);
    arenas_.push_back(std::move(built.arena));
    pages_.push_back(built.page);
    lane_setups_.push_back(&lane);
    lanes_.push_back(std::move(built.runtime));
  }
}

// Held as long as the process lives; the kernel drops it exactly with the process, and forks do not
// inherit it. In a segment that no trainer gets: whoever has a descriptor of a file, if only for
// reading, can lock it. Modelled in tests/model/journal.pml: with it, a lane has one live
// incarnation.
void Worker::take_lock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = setup_.group_index() + 1;
  lock.l_len = 1;
  if (::fcntl(segments_.fd(segments_.of_kind(shm::SegmentKind::kLocks)), F_SETLK, &lock) != 0) {
    if (errno != EAGAIN && errno != EACCES) {
      throw Error(system_code(errno), fmt::format("stage group {}: its lanes cannot be locked: {}",
                                                  setup_.group(), std::strerror(errno)));
    }
    throw Error(ErrorCode::kBusy,
                fmt::format("stage group {}: another live process runs its lanes", setup_.group()));
  }
  RF_FAILPOINT("runtime.worker.locked");
}

Places Worker::places() const {
  Places found = segments_.all();
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    const int fd = segments_.fd(setup_.lanes(static_cast<int>(i)).arena_segment());
    found.emplace_back(arenas_[i]->segment().data, fd);
  }
  return found;
}

bool Worker::all_finished() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->finished(); });
}

// The next supervisor of the feed, if there is one now: its end of a new setup socket. The log goes
// to it from then on. `refused`: one that serves another feed of this name, or has others for these
// lanes. It will never know this process: one whose supervisor died between starting it and writing
// that down is in no record.
shm::Fd Worker::find_supervisor(bool* refused) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (setup_.socket().empty() || setup_.socket().size() >= sizeof address.sun_path) return {};
  setup_.socket().copy(address.sun_path, sizeof address.sun_path - 1);
  const shm::Fd control(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // A supervisor that is stopped does not keep this thread: the lanes' end is awaited here too.
  const timeval patience{1, 0};
  ::setsockopt(control.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(control.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (::connect(control.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return {};
  }
  Request request;
  request.set_id(1);
  request.mutable_worker_rejoin()->set_feed_id(setup_.feed_id());
  request.mutable_worker_rejoin()->set_group(setup_.group());
  const std::string bytes = request.SerializeAsString();
  if (::send(control.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return {};
  std::vector<shm::Fd> descriptors;
  Reply reply;
  try {
    if (!reply.ParseFromString(receive_packet(control.get(), descriptors))) return {};
  } catch (const Error&) {
    return {};  // it did not answer in time, or has died as well
  }
  *refused = reply.error() == Reply::NO_SUCH_GROUP;
  if (!reply.has_worker_rejoin() || descriptors.size() != 2) return {};
  RF_FAILPOINT("runtime.worker.rejoined");
  // Standard output may be somebody else's: that of the trainer whose process this is a fork of.
  if (is_same_file(STDOUT_FILENO, log_descriptor())) {
    ::dup2(descriptors[1].get(), STDOUT_FILENO);
  }
  ::dup2(descriptors[1].get(), log_descriptor());
  return std::move(descriptors[0]);
}

void Worker::run_lane(std::size_t i) {
  LaneRuntime& lane = *lanes_[i];
  // The main thread's name is the process's.
  if (::gettid() != ::getpid()) {
    ::pthread_setname_np(::pthread_self(), lane.name().substr(0, 15).c_str());
  }
  const FaultWatch watch(*pages_[i]);
  lane.run(orders_);
  // acq_rel: the last one out sees the others' ends.
  if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const char byte = 1;
    (void)!::write(done_[1], &byte, 1);
  }
}

void Worker::start_threads(FirstLane first) {
  if (::pipe2(done_, O_CLOEXEC) != 0) {
    throw Error(system_code(errno), fmt::format("no pipe for the lanes: {}", std::strerror(errno)));
  }
  running_ = static_cast<std::uint32_t>(lanes_.size());
  gathered_ = places();
  threads_.reserve(lanes_.size());
  for (std::size_t i = first == FirstLane::kCallersThread ? 1 : 0; i < lanes_.size(); ++i) {
    threads_.push_back(
        start_thread(setup_fd_, "lane " + lanes_[i]->name(), [this, i] { run_lane(i); }));
  }
  gatherer_ = start_thread(setup_fd_, "large pages", [this] { gather_pages(done_[0], gathered_); });
}

// No supervisor that came later may know less than the one that started this process.
void Worker::fail(std::string_view text) const {
  give_up(link_ ? link_.get() : setup_fd_, Error(ErrorCode::kConfiguration, std::string(text)));
}

bool Worker::on_lanes_over() {
  for (std::thread& thread : threads_) thread.join();
  gatherer_.join();
  // relaxed: this thread stored it.
  if (!all_finished() || orders_.leave.load(std::memory_order_relaxed)) return true;
  idle_ = true;
  watched_[0] = {-1, 0, 0};
  RF_FAILPOINT("runtime.worker.idle");
  if (watched_[1].fd >= 0) say_finished(watched_[1].fd);
  return false;
}

bool Worker::look_for_supervisor() {
  bool refused = false;
  if (shm::Fd found = find_supervisor(&refused)) {
    link_ = std::move(found);
    watched_[1] = {link_.get(), POLLIN, 0};
    timeout_ms_ = -1;
    // relaxed, as below; the new one has said what it desires before it answered.
    orders_.alone.store(false, std::memory_order_relaxed);
    spdlog::info("supervisor_found group={} after_ms={}", setup_.group(), alone_ms_);
    if (idle_) say_finished(link_.get());
    return false;
  }
  alone_ms_ += timeout_ms_;
  const int orphan_ms = static_cast<int>(config_.shutdown().orphan_timeout_s()) * 1000;
  if (alone_ms_ < orphan_ms && !refused) return false;
  spdlog::warn("{} group={} after_ms={}", refused ? "replaced" : "orphaned", setup_.group(),
               alone_ms_);
  if (idle_) return true;
  // relaxed: read between two steps.
  orders_.leave.store(true, std::memory_order_relaxed);
  timeout_ms_ = -1;
  watched_[1].fd = -1;
  return false;
}

void Worker::hear_supervisor() {
  std::string packet(64 * 1024, '\0');
  const ssize_t got = ::recv(watched_[1].fd, packet.data(), packet.size(), MSG_DONTWAIT);
  if (got > 0) {
    packet.resize(static_cast<std::size_t>(got));
    pass_on_call(watched_[1].fd, packet, lane_setups_, lanes_);
  }
  if (got != 0) return;
  const int orphan_ms = static_cast<int>(config_.shutdown().orphan_timeout_s()) * 1000;
  spdlog::warn("supervisor_gone group={} stays_ms={}", setup_.group(), orphan_ms);
  timeout_ms_ = std::min(kLookForSupervisorMs, orphan_ms);  // the data path does not need it
  // relaxed: a parked lane looks at it every kSleepMsMax.
  orders_.alone.store(true, std::memory_order_relaxed);
  alone_ms_ = 0;
}

void Worker::watch() {
  watched_[0] = {done_[0], POLLIN, 0};
  watched_[1] = {setup_fd_, POLLIN, 0};
  for (bool over = false; !over;) {
    const int events = ::poll(watched_, timeout_ms_ < 0 ? 2 : 1, timeout_ms_);
    if (events < 0 && errno == EINTR) continue;
    if (watched_[0].revents != 0) {
      over = on_lanes_over();
    } else if (events == 0) {
      over = look_for_supervisor();
    } else if ((watched_[1].revents & (POLLIN | POLLHUP)) != 0) {
      hear_supervisor();
    }
  }
}

int Worker::run(FirstLane first) {
  RF_FAILPOINT("runtime.worker.ready");
  start_threads(first);
  say_ready(setup_fd_);
  if (first == FirstLane::kCallersThread) {
    std::thread watcher = start_thread(setup_fd_, "supervisor", [this] { watch(); });
    run_lane(0);
    watcher.join();
  } else {
    watch();
  }
  RF_FAILPOINT("runtime.worker.ending");
  ::close(done_[0]);
  ::close(done_[1]);
  return 0;
}

// Whatever is sent to all processes of a terminal, a job or a container: the supervisor decides
// what it means. A worker ends when it is told to, of SIGKILL, and of its own faults.
void ignore_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM,
                           SIGVTALRM, SIGXCPU, SIGXFSZ, SIGPWR, SIGIO, SIGSTKFLT}) {
    ::signal(signal, SIG_IGN);
  }
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) ::signal(signal, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Nobody takes over from this supervisor, and a lane that hangs would not hear that it is gone.
void end_with(std::uint32_t supervisor) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have been gone before that.
  if (static_cast<std::uint32_t>(::getppid()) != supervisor) ::_exit(1);
}

}  // namespace

int run_worker(int setup_fd, const Registry& registry, FirstLane first, int log_fd) {
  ignore_signals();
  lead_log(log_fd);
  ::fcntl(setup_fd, F_SETFD, FD_CLOEXEC);
  watch_for_faults();
  std::vector<shm::Fd> descriptors;
  const WorkerSetup setup = receive_setup(setup_fd, descriptors);
  if (setup.ends_with_supervisor()) end_with(setup.supervisor_pid());
  RF_FAILPOINT("runtime.worker.set_up");
  DataLoaderConfig config;
  config.ParseFromString(setup.config());
  if (setup.has_log_level()) config.mutable_log()->set_level(setup.log_level());
  start_log(setup.group(), config.log());
  ::prctl(PR_SET_NAME, ("rf-" + setup.group()).substr(0, 15).c_str());
  try {
    Worker worker(setup, std::move(descriptors), registry, setup_fd);
    return worker.run(first);
  } catch (const Error& error) {
    give_up(setup_fd, error);
  }
}

int print_plan(const Registry& registry) {
  DataLoaderConfig config;
  if (!config.ParseFromIstream(&std::cin)) {
    throw Error(ErrorCode::kInvalidArgument, "standard input is not a serialized DataLoaderConfig");
  }
  plan_pipeline(config, registry).SerializeToOstream(&std::cout);
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

int print_looks(const Registry& registry) {
  DataLoaderConfig config;
  if (!config.ParseFromIstream(&std::cin)) {
    throw Error(ErrorCode::kInvalidArgument, "standard input is not a serialized DataLoaderConfig");
  }
  look_at_data(config, registry).SerializeToOstream(&std::cout);
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

int print_kinds(const Registry& registry) {
  list_kinds(registry).SerializeToOstream(&std::cout);
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

}  // namespace ringfeed
