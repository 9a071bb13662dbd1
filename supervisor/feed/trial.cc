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
#include <cstdlib>
#include <cstring>

#include "proto/worker.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/packet.h"

namespace ringfeed::process {
namespace {

// Rings are looked at this often while a sample is wanted: nobody rings here.
constexpr int kTrialLookMs = 2;
constexpr int kPauseMs = 200;
constexpr int kTurns = 1000;
// When nothing comes for so long, it is said; then after twice the time, and so on.
constexpr std::uint64_t kSilenceMs = 10'000;
// For what the viewer still has to do and to say, after Ctrl-C and after its end.
constexpr std::uint64_t kLastMs = 3'000;
// What the viewer sends (trial.py).
constexpr std::string_view kAt = "at ";
constexpr std::string_view kDone = "done ";  // and its exit status
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

// A line for each stage: "lines: samples=20, skipped_json=3".
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

void Viewer::give(std::span<const std::byte> bytes, const shm::RecordInfo& info, bool out) {
  RF_CHECK(wants(), pending_.size());
  const std::array<std::uint64_t, 4> head{bytes.size(), info.tag[0], info.tag[1], out ? 1U : 0U};
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
    } else if (packet->bytes.starts_with(kDone)) {
      done_ = std::atoi(packet->bytes.c_str() + kDone.size());
    }
  }
  if (!ended) return;
  ending_ = reap(process_.pidfd);
  ended_ = true;
}

namespace {

class Trial {
 public:
  Trial(const TrialParts& parts, Viewer& viewer) : parts_(parts), viewer_(viewer) {}

  TrialReport run() {
    const CountInterrupts counting;
    if (parts_.upstream == nullptr && parts_.stage == nullptr) close();
    last_ms_ = now_ms();
    while (!viewer_.ended()) {
      if (parts_.upstream != nullptr) parts_.upstream->attend();
      if (parts_.stage != nullptr) parts_.stage->attend();
      // A bounded number of times, so that the viewer is heard in between.
      for (int turn = 0; turn < kTurns && !closed_ && viewer_.wants() && pass_on(); ++turn) {
      }
      viewer_.attend();
      if (!viewer_.ended()) wait();
    }
    describe();
    return report_;
  }

 private:
  // One record. False: there is nothing to be done now.
  bool pass_on() {
    if (parts_.stage != nullptr && take_out()) return true;
    if (!given_all_ && give_in()) return true;
    if (closed_ || now_ms() < last_ms_ + silence_ms_) return false;
    fmt::print(stderr, "nothing came for {} s; until now{}\n", silence_ms_ / 1000,
               escaped_lines(counted_now()));
    silence_ms_ *= 2;
    return false;
  }

  // What comes out of the stage is shown.
  bool take_out() {
    const std::optional<FeedPart::Record> record = parts_.stage->take();
    if (record) {
      viewer_.give(record->bytes, record->info, true);
      last_ms_ = now_ms();
      if (++report_.out == parts_.samples_max && parts_.limits_out) close();
      return true;
    }
    if (parts_.stage->finished() || !parts_.stage->failure().empty()) close();
    return false;
  }

  // The next one for the stage, which is shown when it goes in.
  bool give_in() {
    if (parts_.upstream == nullptr) return false;
    if (!next_) next_ = next_for_stage();
    if (next_) {
      if (parts_.stage != nullptr && !parts_.stage->give(next_->ring, next_->bytes, next_->info)) {
        return false;
      }
      if (!parts_.limits_out) viewer_.give(next_->bytes, next_->info);
      ++report_.given;
      next_.reset();
      last_ms_ = now_ms();
      if (!parts_.limits_out && report_.given == parts_.samples_max) given_all();
      return true;
    }
    if (parts_.upstream->finished()) {
      report_.ended = true;
    } else if (parts_.upstream->failure().empty()) {
      return false;
    }
    given_all();
    return false;
  }
  // Others may read from the stages before as well: nobody is there for them.
  std::optional<FeedPart::Record> next_for_stage() {
    const layout::FeedLayout& layout = parts_.upstream->layout();
    for (;;) {
      std::optional<FeedPart::Record> record = parts_.upstream->take();
      if (!record) return record;
      const std::uint32_t to = layout.rings[record->ring].to_lane;
      if (layout.lanes[to].stage_name == parts_.name) return record;
    }
  }

  void given_all() {
    given_all_ = true;
    before_ = counted(*parts_.upstream);
    parts_.upstream->end();
    if (parts_.stage == nullptr) return close();
    parts_.stage->close_inputs();
  }
  // What the viewer does from now on may take a person's time.
  void close() {
    closed_ = true;
    if (parts_.upstream != nullptr && !given_all_) {
      before_ = counted(*parts_.upstream);
      parts_.upstream->end();
    }
    given_all_ = true;
    viewer_.close();
  }

  std::string counted_now() const {
    std::string text =
        given_all_ || parts_.upstream == nullptr ? before_ : counted(*parts_.upstream);
    if (parts_.stage != nullptr) text += counted(*parts_.stage);
    return text;
  }

  void wait() {
    const bool asked = interrupts != 0 && !parts_.patient;
    if (ending_ms_ == 0 && (asked || viewer_.done())) ending_ms_ = now_ms();
    if (ending_ms_ != 0 && now_ms() >= ending_ms_ + kLastMs) {
      // A thread that does not end.
      if (viewer_.done()) return viewer_.kill();
      // A call that never comes back to Python; or somebody is at a breakpoint.
      if (interrupts > heard_interrupts_ && heard_interrupts_ != 0) return viewer_.kill();
      if (heard_interrupts_ == 0) {
        heard_interrupts_ = interrupts;  // first: the next one may come while this is read
        fmt::print(stderr, "it goes on; Ctrl-C again kills it\n");
      }
    }
    std::vector<pollfd> fds;
    viewer_.add_watched(fds);
    if (parts_.upstream != nullptr && !given_all_) parts_.upstream->add_watched(fds);
    if (parts_.stage != nullptr && !closed_) parts_.stage->add_watched(fds);
    const bool looking = !closed_ && viewer_.wants();
    // Interrupted by Ctrl-C: that is looked at in the next round.
    static_cast<void>(::poll(fds.data(), fds.size(), looking ? kTrialLookMs : kPauseMs));
  }

  void describe() {
    const Ending& ending = viewer_.ending();
    const bool heard = viewer_.done().has_value();
    report_.status = viewer_.done().value_or(1);
    const auto failure = [](const FeedPart* part) {
      return part == nullptr ? std::string() : part->failure();
    };
    if (heard && report_.status == kInterruptedStatus) {
      report_.outcome = TrialOutcome::kInterrupted;
    } else if (interrupts != 0 && !heard) {
      report_.outcome = TrialOutcome::kInterrupted;
      if (!viewer_.at().empty()) report_.text = "it was still busy with " + viewer_.at();
    } else if (!heard) {
      report_.outcome = TrialOutcome::kDied;
      report_.text =
          fmt::format("the process of stage '{}' ended with {}{}", parts_.name, ending.text(),
                      viewer_.at().empty() ? " before the first sample" : " on " + viewer_.at());
    } else if (const std::string own = failure(parts_.stage); !own.empty()) {
      report_.outcome = TrialOutcome::kDied;
      report_.text = own;
    } else if (const std::string before = failure(parts_.upstream); !before.empty()) {
      report_.outcome = TrialOutcome::kUpstream;
      report_.text = before + "; try a stage before this one";
    } else if (closed_ && (parts_.limits_out ? report_.out : report_.given) == 0 &&
               (parts_.upstream != nullptr || parts_.stage != nullptr)) {
      report_.outcome = TrialOutcome::kNothing;
      report_.text = "no sample came; counted was" + counted_now();
    }
  }

  const TrialParts& parts_;
  Viewer& viewer_;
  TrialReport report_;
  std::optional<FeedPart::Record> next_;  // for the stage
  bool given_all_ = false;
  bool closed_ = false;  // and the viewer gets nothing more
  std::uint64_t last_ms_ = 0;
  std::uint64_t silence_ms_ = kSilenceMs;
  std::uint64_t ending_ms_ = 0;        // since when it is to end
  sig_atomic_t heard_interrupts_ = 0;  // when it was said that it does not
  std::string before_;                 // what the stages before had counted when they were ended
};

}  // namespace

TrialReport run_trial(const TrialParts& parts, Viewer& viewer) {
  return Trial(parts, viewer).run();
}

}  // namespace ringfeed::process
