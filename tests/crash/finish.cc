#include "tests/crash/finish.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ringfeed::crash {
namespace {

constexpr std::size_t kTextBytes = 500;
// Against a lane that never comes back from a step: no run takes a hundredth of it.
constexpr unsigned kSecondsMax = 60;

struct Reply {
  char wrong[kTextBytes];
};

}  // namespace

Finisher::Finisher(const Scenario& scenario, testing::LaneRig& rig, Memory& memory,
                   const Outcome& outcome)
    : scenario_(scenario),
      rig_(rig),
      memory_(memory),
      outcome_(outcome),
      stderr_(::memfd_create("stderr", MFD_CLOEXEC)) {
  RF_CHECK(stderr_, errno);
}

Finisher::~Finisher() {
  requests_.reset();  // it ends when there can be no more
  if (child_ >= 0) ::waitpid(child_, nullptr, 0);
}

void Finisher::start() {
  int requests[2];
  int replies[2];
  RF_CHECK(::pipe2(requests, O_CLOEXEC) == 0 && ::pipe2(replies, O_CLOEXEC) == 0, errno);
  child_ = ::fork();
  RF_CHECK(child_ >= 0, errno);
  if (child_ == 0) {
    ::close(requests[1]);
    ::close(replies[0]);
    ::dup2(stderr_.get(), STDERR_FILENO);
    serve(requests[0], replies[1]);
  }
  ::close(requests[0]);
  ::close(replies[1]);
  requests_ = shm::Fd(requests[1]);
  replies_ = shm::Fd(replies[0]);
}

std::string Finisher::finish(const Survivors& survivors, Way way) {
  if (child_ < 0) start();
  const Request request{survivors, way};
  RF_CHECK(::write(requests_.get(), &request, sizeof request) == sizeof request, errno);
  Reply reply{};
  // Shorter than what a pipe takes and gives whole.
  static_assert(sizeof(Reply) <= PIPE_BUF && sizeof(Request) <= PIPE_BUF);
  const ssize_t got = ::read(replies_.get(), &reply, sizeof reply);
  if (got == sizeof reply) return reply.wrong;
  RF_CHECK(got == 0, got, errno);
  return last_words();
}

void Finisher::serve(int requests, int replies) {
  Request request{};
  while (::read(requests, &request, sizeof request) == sizeof request) {
    ::alarm(kSecondsMax);
    Reply reply{};
    try {
      run(request).copy(reply.wrong, sizeof reply.wrong - 1);
    } catch (const std::exception& error) {
      std::string_view(error.what()).copy(reply.wrong, sizeof reply.wrong - 1);
    }
    RF_CHECK(::write(replies, &reply, sizeof reply) == sizeof reply, errno);
  }
  ::_exit(0);
}

std::string Finisher::last_words() {
  int status = 0;
  RF_CHECK(::waitpid(child_, &status, 0) == child_, errno);
  child_ = -1;
  char words[400] = {};
  const ssize_t got = ::pread(stderr_.get(), words, sizeof words - 1, 0);
  RF_CHECK(::ftruncate(stderr_.get(), 0) == 0 && ::lseek(stderr_.get(), 0, SEEK_SET) == 0, errno);
  std::string text(words, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  text = text.substr(0, text.find('\n'));
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    return fmt::format("a lane did not come back from its step in {} s", kSecondsMax);
  }
  return WIFSIGNALED(status) ? fmt::format("a lane died of signal {}: {}", WTERMSIG(status), text)
                             : fmt::format("a lane ended with status {:#x}: {}", status, text);
}

std::string Finisher::run(const Request& request) {
  const Survivors& survivors = request.survivors;
  memory_.make_private();
  std::uint64_t letters = survivors.letters;
  rig_.on_dead_letter([&](const DeadLetter& letter) {
    for (const Condemned& record : scenario_.condemned) {
      if (letter.key != shm::record_key(0, 0, record.seq)) continue;
      letters |= std::uint64_t{1} << rig_.lanes_of(record.node).front();
    }
  });
  Trainer trainer(rig_, scenario_.hold);
  trainer.expect(&outcome_.batches);
  trainer.set(survivors.trainer);
  for (std::size_t lane = 0; lane < rig_.lane_count(); ++lane) {
    if (request.way == Way::kAtOnce || lane != survivors.dead) rig_.restart(lane);
  }
  if (request.way == Way::kLate) {
    if (!run_in_turn(rig_, trainer, survivors.dead)) return "the others never block";
    rig_.restart(survivors.dead);
  }
  if (!run_in_turn(rig_, trainer, kNobody)) return "the run never ends";
  return compare(trainer, letters);
}

std::string Finisher::compare(const Trainer& trainer, std::uint64_t letters) const {
  if (!trainer.wrong().empty()) return trainer.wrong();
  for (std::size_t lane = 0; lane < rig_.lane_count(); ++lane) {
    if (!rig_.finished(lane)) return rig_.node_of(lane) + " is stuck";
  }
  if (trainer.position().taken != outcome_.batches.size() || !trainer.at_end()) {
    return fmt::format("{} batches came instead of {}", trainer.position().taken,
                       outcome_.batches.size());
  }
  const auto counters = named_counters(rig_);
  for (std::size_t lane = 0; lane < counters.size(); ++lane) {
    for (const auto& [name, wanted] : outcome_.counters[lane]) {
      const auto found = counters[lane].find(name);
      if (found != counters[lane].end() && found->second == wanted) continue;
      return fmt::format("{} counts {} {} instead of {}", rig_.node_of(lane),
                         found == counters[lane].end() ? "no" : std::to_string(found->second), name,
                         wanted);
    }
  }
  if ((letters & outcome_.letters) != outcome_.letters) return "a dead letter is lost";
  return "";
}

}  // namespace ringfeed::crash
