#include "supervisor/doctor/apart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "ringfeed/shm/segment.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed::doctor {
namespace {

constexpr std::size_t kAnswerBytesMax = 1 << 20;
constexpr std::size_t kWordsBytesMax = 64 << 10;

// Bytes are kept as they are: names of files need not be UTF-8.
std::vector<std::uint8_t> packed(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& one : findings) {
    list.push_back(
        {static_cast<int>(one.severity), one.what, one.cost, one.mend, one.advice, one.check});
  }
  return nlohmann::json::to_cbor(list);
}

// nullopt: not what packed() has made.
std::optional<Findings> unpacked(const std::string& bytes) {
  const nlohmann::json list = nlohmann::json::from_cbor(bytes, true, false);
  if (!list.is_array()) return std::nullopt;
  Findings findings;
  for (const nlohmann::json& one : list) {
    if (!one.is_array() || one.size() != 6 || !one[0].is_number_integer()) return std::nullopt;
    for (std::size_t i = 1; i < one.size(); ++i) {
      if (!one[i].is_string()) return std::nullopt;
    }
    const int severity = std::clamp(one[0].get<int>(), 0, static_cast<int>(Severity::kWrong));
    findings.push_back({one[5], static_cast<Severity>(severity), one[1], one[2], one[3], one[4]});
  }
  return findings;
}

Findings look_safely(const Check& check) noexcept try {
  return check.look();
} catch (const std::exception& error) {
  try {
    return {not_known(error.what())};
  } catch (const std::exception&) {
    return {};
  }
}

[[noreturn]] void answer(const Check& check, int to) {
  // Where whoever has started this process answers: not held open by one that hangs.
  static int above = -1;
  if (above >= 0) ::close(above);
  above = to;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGINT, SIG_DFL);
  ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int words = ::memfd_create("ringfeed doctor", MFD_CLOEXEC);
  ::dup2(nowhere, STDIN_FILENO);
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(words >= 0 ? words : nowhere, STDERR_FILENO);
  const std::vector<std::uint8_t> bytes = packed(look_safely(check));
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t wrote = ::write(to, bytes.data() + at, bytes.size() - at);
    if (wrote <= 0 && errno != EINTR) ::_exit(1);
    if (wrote > 0) at += static_cast<std::size_t>(wrote);
  }
  ::_exit(0);
}

struct Running {
  pid_t pid = 0;
  shm::Fd from;
  std::string answer = {};
  std::optional<Findings> findings = {};
};

void begin(const Check& check, Running& running) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    const std::string why = std::strerror(errno);
    running.findings = check.asks_kernel ? look_safely(check)
                                         : Findings{not_known("no pipe is to be had: " + why)};
    return;
  }
  running.from = shm::Fd(ends[0]);
  const shm::Fd to(ends[1]);
  running.pid = ::fork();
  if (running.pid == 0) answer(check, to.get());
  if (running.pid > 0) {
    ::setpgid(running.pid, running.pid);  // whoever is first
    return;
  }
  const std::string why = std::strerror(errno);
  running.pid = 0;
  running.from.reset();
  running.findings = check.asks_kernel
                         ? look_safely(check)
                         : Findings{not_known("no process can be started to look: " + why)};
}

void finish(Running& running) {
  running.from.reset();
  int status = 0;
  while (::waitpid(running.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) running.findings = unpacked(running.answer);
  if (running.findings) return;
  running.findings = {not_known(WIFSIGNALED(status)
                                    ? fmt::format("the look ended with signal {} ({})",
                                                  WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                                    : std::string("the look ended without an answer"))};
}

// Those that a process has started, and they in turn. Workers lead process groups of their own.
void add_descendants(pid_t pid, std::vector<pid_t>& found) {
  constexpr std::size_t kDescendantsMax = 1000;
  const std::string file = fmt::format("/proc/{0}/task/{0}/children", pid);
  for (const std::string& word : words_in(text_of(file).value_or(""))) {
    const std::optional<std::uint64_t> child = limit_in(word);
    if (!child || *child <= 1 || found.size() >= kDescendantsMax) continue;
    found.push_back(static_cast<pid_t>(*child));
    add_descendants(found.back(), found);
  }
}

// One that waits for a disk cannot be killed, and is left to the system.
void give_up(Running& running, int limit_ms) {
  ::kill(running.pid, SIGSTOP);  // it starts no more
  std::vector<pid_t> started;
  add_descendants(running.pid, started);
  for (const pid_t pid : started) ::kill(pid, SIGKILL);
  ::kill(-running.pid, SIGKILL);
  running.from.reset();
  ::waitpid(running.pid, nullptr, WNOHANG);
  running.findings = {
      not_known(fmt::format("the look has not ended within {:.3g} s: something that it reads "
                            "hangs (a file system that is away?)",
                            limit_ms / 1000.0))};
}

void read_more(Running& running) {
  char bytes[16 << 10];
  const ssize_t got = ::read(running.from.get(), bytes, sizeof bytes);
  if (got < 0 && errno == EINTR) return;
  if (got > 0 && running.answer.size() < kAnswerBytesMax) {
    running.answer.append(bytes, static_cast<std::size_t>(got));
    return;
  }
  if (got > 0) ::kill(-running.pid, SIGKILL);
  finish(running);
}

void await(std::vector<Running>& all, int limit_ms) {
  const std::uint64_t until = process::now_ms() + static_cast<std::uint64_t>(limit_ms);
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<Running*> whose;
    for (Running& one : all) {
      if (one.findings) continue;
      waits.push_back({one.from.get(), POLLIN, 0});
      whose.push_back(&one);
    }
    if (waits.empty()) return;
    const std::uint64_t now = process::now_ms();
    if (now >= until) {
      for (Running* one : whose) give_up(*one, limit_ms);
      return;
    }
    if (::poll(waits.data(), waits.size(), static_cast<int>(until - now)) < 0) continue;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents != 0) read_more(*whose[i]);
    }
  }
}

}  // namespace

Findings look_apart(const std::vector<Check>& checks, int limit_ms) {
  std::vector<Running> all(checks.size());
  for (std::size_t i = 0; i < checks.size(); ++i) begin(checks[i], all[i]);
  await(all, limit_ms);
  Findings findings;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    for (Finding& one : *all[i].findings) {
      if (one.check.empty()) one.check = checks[i].name;
      findings.push_back(std::move(one));
    }
  }
  return findings;
}

std::string last_words() {
  std::string text(kWordsBytesMax, '\0');
  const off_t end = ::lseek(STDERR_FILENO, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, end - static_cast<off_t>(kWordsBytesMax));
  const ssize_t got = ::pread(STDERR_FILENO, text.data(), text.size(), from);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!text.empty() && std::strchr("\n\r \t", text.back()) != nullptr) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace ringfeed::doctor
