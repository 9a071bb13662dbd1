#include "supervisor/feed/trial.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "proto/worker.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/packet.h"

namespace ringfeed::process {
namespace {

// Rings are looked at this often while a sample is wanted: nobody rings here.
constexpr int kLookMs = 2;
constexpr int kPauseMs = 200;
// When nothing comes for so long, it is said; then after twice the time, and so on.
constexpr std::uint64_t kSilenceMs = 10'000;
// After Ctrl-C, for what the viewer still has to do and to say.
constexpr std::uint64_t kInterruptMs = 3'000;
// What the viewer sends (trial.py).
constexpr std::string_view kAt = "at ";
constexpr std::string_view kDone = "done";
constexpr int kInterruptedStatus = 130;

volatile sig_atomic_t interrupts = 0;

// Ctrl-C goes to the viewer too, which decides. It ends a poll() here.
class CountInterrupts {
 public:
  CountInterrupts() {
    interrupts = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupts = interrupts + 1; };
    ::sigaction(SIGINT, &action, &before_);
  }
  ~CountInterrupts() { ::sigaction(SIGINT, &before_, nullptr); }
  CountInterrupts(const CountInterrupts&) = delete;
  CountInterrupts& operator=(const CountInterrupts&) = delete;

 private:
  struct sigaction before_ {};
};

// "lines: 20 samples, 3 skipped_json".
std::string counted(const FeedPart& part) {
  std::string text;
  for (const std::string& stage : part.stages()) {
    text += fmt::format("\n  {}: ", stage);
    const FeedPart::Counters counters = part.counters(stage);
    if (counters.empty()) text += "nothing counted";
    for (std::size_t i = 0; i < counters.size(); ++i) {
      text += fmt::format("{}{}={}", i == 0 ? "" : ", ", counters[i].first, counters[i].second);
    }
  }
  return text;
}

}  // namespace

Viewer::Viewer(const std::string& program, const std::vector<std::string>& words,
               const layout::SetupFacts& facts, const std::string& stage) {
  Foreground started = spawn_foreground(program, words);
  process_ = std::move(started.process);
  records_ = std::move(started.records);
  WorkerSetup setup;
  setup.set_config(facts.config_bytes);
  setup.set_seed(facts.seed);
  setup.set_supervisor_pid(facts.supervisor_pid);
  setup.add_lanes()->set_stage(stage);
  ToWorker packet;
  packet.mutable_setup()->set_descriptor_count(1);
  const shm::Fd body =
      control::bytes_as_fd(setup.SerializeAsString(), "ringfeed-setup").value_or_throw();
  const std::array<int, 1> fds{body.get()};
  const Status sent = control::send_packet(process_.socket.get(), packet.SerializeAsString(), fds);
  if (sent) return;
  kill();
  throw Error(sent.error());
}

Viewer::~Viewer() { kill(); }

void Viewer::kill() {
  if (ended_ || !process_.pidfd) return;
  ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
  ending_ = reap(process_.pidfd);
  ended_ = true;
}

void Viewer::give(std::span<const std::byte> bytes, const shm::RecordInfo& info) {
  RF_CHECK(wants(), pending_.size());
  const std::array<std::uint64_t, 3> head{bytes.size(), info.tag[0], info.tag[1]};
  const auto raw = std::as_bytes(std::span(head));
  pending_.assign(raw.begin(), raw.end());
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  written_ = 0;
  write();
}

void Viewer::close() {
  closing_ = true;
  if (pending_.empty()) records_.reset();
}

void Viewer::write() {
  while (records_ && written_ < pending_.size()) {
    const ssize_t n =
        ::write(records_.get(), pending_.data() + written_, pending_.size() - written_);
    if (n > 0) {
      written_ += static_cast<std::size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      records_.reset();  // it has ended, or wants no more
    }
  }
  pending_.clear();
  if (closing_) records_.reset();
}

void Viewer::add_watched(std::vector<pollfd>& to) const {
  if (ended_) return;
  to.push_back({process_.pidfd.get(), POLLIN, 0});
  if (process_.socket) to.push_back({process_.socket.get(), POLLIN, 0});
  if (records_ && !pending_.empty()) to.push_back({records_.get(), POLLOUT, 0});
}

void Viewer::attend() {
  if (ended_) return;
  if (!pending_.empty()) write();
  pollfd over{process_.pidfd.get(), POLLIN, 0};
  const bool ended = ::poll(&over, 1, 0) == 1;
  // What it said before its end.
  while (process_.socket) {
    const Result<control::Packet> packet = control::receive_packet(process_.socket.get());
    if (!packet || packet->end) {
      process_.socket.reset();
    } else if (packet->empty) {
      break;
    } else if (packet->bytes.starts_with(kAt)) {
      at_ = packet->bytes.substr(kAt.size());
    } else if (packet->bytes == kDone) {
      done_ = true;
    }
  }
  if (!ended) return;
  ending_ = reap(process_.pidfd);
  ended_ = true;
}

namespace {

class Trial {
 public:
  Trial(FeedPart* upstream, Viewer& viewer, std::uint64_t samples_max, bool patient)
      : upstream_(upstream), viewer_(viewer), samples_max_(samples_max), patient_(patient) {}

  TrialReport run() {
    const CountInterrupts counting;
    if (upstream_ == nullptr) viewer_.close();
    last_ms_ = now_ms();
    while (!viewer_.ended()) {
      if (upstream_ != nullptr) pass_on();
      viewer_.attend();
      if (!viewer_.ended()) wait();
    }
    describe();
    return report_;
  }

 private:
  void pass_on() {
    upstream_->attend();
    while (!over_ && viewer_.wants()) {
      const std::optional<FeedPart::Record> record = upstream_->take();
      if (record) {
        viewer_.give(record->bytes, record->info);
        last_ms_ = now_ms();
        over_ = ++report_.given == samples_max_;
      } else if (upstream_->finished()) {
        over_ = report_.ended = true;
      } else if (!upstream_->failure().empty()) {
        over_ = true;
      } else {
        return say_silence();
      }
    }
    if (!over_ || closed_) return;
    // What the viewer does now may take a person's time.
    closed_ = true;
    viewer_.close();
    counted_ = counted(*upstream_);
    upstream_->end();
  }

  void say_silence() {
    if (now_ms() < last_ms_ + silence_ms_) return;
    fmt::print(stderr, "no sample came for {} s; until now{}\n", silence_ms_ / 1000,
               escaped_lines(counted(*upstream_)));
    silence_ms_ *= 2;
  }

  void wait() {
    if (interrupts != 0 && interrupted_ms_ == 0) interrupted_ms_ = now_ms();
    if (interrupted_ms_ != 0 && !patient_ && now_ms() >= interrupted_ms_ + kInterruptMs) {
      // It does not hear: a call that never comes back to Python.
      return viewer_.kill();
    }
    std::vector<pollfd> fds;
    viewer_.add_watched(fds);
    if (upstream_ != nullptr && !closed_) upstream_->add_watched(fds);
    const bool looking = upstream_ != nullptr && !over_ && viewer_.wants();
    // Interrupted by Ctrl-C: that is looked at in the next round.
    static_cast<void>(::poll(fds.data(), fds.size(), looking ? kLookMs : kPauseMs));
  }

  void describe() {
    const Ending& ending = viewer_.ending();
    report_.status = ending.exited ? ending.status : 1;
    if (upstream_ != nullptr && counted_.empty()) counted_ = counted(*upstream_);
    const bool heard = viewer_.done() && ending.exited;
    if (heard && ending.status == kInterruptedStatus) {
      report_.outcome = TrialOutcome::kInterrupted;
    } else if (interrupts != 0 && !heard) {
      report_.outcome = TrialOutcome::kInterrupted;
      report_.text = viewer_.at().empty() ? "" : "it was still busy with " + viewer_.at();
    } else if (!heard) {
      report_.outcome = TrialOutcome::kDied;
      report_.text =
          fmt::format("the stage's process ended with {}{}", ending.text(),
                      viewer_.at().empty() ? " before the first sample" : " on " + viewer_.at());
    } else if (upstream_ != nullptr && !upstream_->failure().empty()) {
      report_.outcome = TrialOutcome::kUpstream;
      report_.text = upstream_->failure() + ": a stage before this one; try that one";
    } else if (upstream_ != nullptr && report_.given == 0 && closed_) {
      report_.outcome = TrialOutcome::kNothing;
      report_.text = "no sample came from the stages before:" + counted_;
    }
  }

  FeedPart* upstream_;
  Viewer& viewer_;
  std::uint64_t samples_max_;
  bool patient_;
  TrialReport report_;
  bool over_ = false;    // nothing more is given
  bool closed_ = false;  // and the viewer knows
  std::uint64_t last_ms_ = 0;
  std::uint64_t silence_ms_ = kSilenceMs;
  std::uint64_t interrupted_ms_ = 0;
  std::string counted_;
};

}  // namespace

TrialReport run_trial(FeedPart* upstream, Viewer& viewer, std::uint64_t samples_max, bool patient) {
  return Trial(upstream, viewer, samples_max, patient).run();
}

}  // namespace ringfeed::process
