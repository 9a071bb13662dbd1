#include "tests/crash/finish.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ringfeed::crash {
namespace {

constexpr std::size_t kTextBytes = 4096;
// Against a lane that never comes back from a step: no run takes a hundredth of it.
constexpr unsigned kSecondsMax = 60;

}  // namespace

Finisher::Finisher(const Scenario& scenario, testing::LaneRig& rig, Memory& memory,
                   const Outcome& outcome)
    : scenario_(scenario), rig_(rig), memory_(memory), outcome_(outcome) {
  void* const shared =
      ::mmap(nullptr, kTextBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RF_CHECK(shared != MAP_FAILED, errno);
  text_ = static_cast<char*>(shared);
  stderr_fd_ = ::memfd_create("stderr", MFD_CLOEXEC);
  RF_CHECK(stderr_fd_ >= 0, errno);
}

Finisher::~Finisher() {
  ::munmap(text_, kTextBytes);
  ::close(stderr_fd_);
}

std::string Finisher::finish(const Survivors& survivors, Way way) {
  const pid_t child = ::fork();
  RF_CHECK(child >= 0, errno);
  if (child == 0) {
    ::alarm(kSecondsMax);
    ::dup2(stderr_fd_, STDERR_FILENO);
    std::string wrong;
    try {
      wrong = run(survivors, way);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    wrong.resize(std::min(wrong.size(), kTextBytes - 1));
    std::memcpy(text_, wrong.c_str(), wrong.size() + 1);
    ::_exit(wrong.empty() ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) RF_CHECK(errno == EINTR, errno);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) return text_;
  return last_words(status);
}

std::string Finisher::last_words(int status) const {
  char words[400] = {};
  const ssize_t got = ::pread(stderr_fd_, words, sizeof words - 1, 0);
  RF_CHECK(::ftruncate(stderr_fd_, 0) == 0 && ::lseek(stderr_fd_, 0, SEEK_SET) == 0, errno);
  std::string text(words, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  text = text.substr(0, text.find('\n'));
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    return fmt::format("a lane did not come back from its step in {} s", kSecondsMax);
  }
  return WIFSIGNALED(status) ? fmt::format("a lane died of signal {}: {}", WTERMSIG(status), text)
                             : fmt::format("a lane ended with status {:#x}: {}", status, text);
}

std::string Finisher::run(const Survivors& survivors, Way way) {
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
    if (way == Way::kAtOnce || lane != survivors.dead) rig_.restart(lane);
  }
  if (way == Way::kLate) {
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
