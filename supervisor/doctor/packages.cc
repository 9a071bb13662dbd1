#include "supervisor/doctor/packages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "ringfeed/shm/result.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

// A directory of the user's own, as a shell writes it.
constexpr const char* kEnvironment = "~/.local/share/ringfeed/venv";

// Does the system keep the packages of this interpreter (PEP 668)? Not those of an environment.
bool is_managed(const std::string& python) {
  constexpr const char* kQuestion = R"(
import os, sys, sysconfig
mark = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
print("managed" if sys.prefix == sys.base_prefix and os.path.exists(mark) else "free")
)";
  return answer_of(python, kQuestion, kQuestionMs).find("managed") != std::string::npos;
}

std::string or_python3(const std::string& python) { return python.empty() ? "python3" : python; }

std::string this_version() { return "ringfeed==" RINGFEED_VERSION; }

std::string pip_install(const std::string& python, const std::string& options,
                        const std::string& requirement) {
  return fmt::format("{} -m pip install {}{}{}", shell_word(python), options,
                     options.empty() ? "" : " ", shell_word(requirement));
}

// Into the directory of packages that has this program. The environment around it has an
// interpreter; without one (pip --user, --target, or into the system's own) pip is told the
// directory, which no system keeps.
Remedy install_beside(const std::string& program, const std::string& options,
                      const std::string& requirement) {
  // PREFIX/lib/python3.11/site-packages/ringfeed/bin/ringfeed
  const std::filesystem::path packages =
      std::filesystem::path(program).parent_path().parent_path().parent_path();
  const std::string own =
      (packages.parent_path().parent_path().parent_path() / "bin/python3").string();
  if (::access(own.c_str(), X_OK) == 0 && !is_managed(own)) {
    return {pip_install(own, options, requirement), ""};
  }
  const std::string place =
      fmt::format("--upgrade --no-deps --target {}", shell_word(packages.string()));
  return {pip_install(or_python3(interpreter()), place, requirement), ""};
}

}  // namespace

std::string own_directory() {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) return {};
  const std::string path(self, static_cast<std::size_t>(length));
  return path.substr(0, path.rfind('/') + 1);
}

std::string interpreter() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string named = variable("RINGFEED_PYTHON"); !named.empty()) return named;
  if (const std::string home = variable("VIRTUAL_ENV"); !home.empty()) {
    const std::string place = home + "/bin/python";
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  std::string path = variable("PATH");
  if (path.empty()) path = "/usr/local/bin:/usr/bin:/bin";
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string place = path.substr(at, end - at) + "/python3";
    if (end != at && ::access(place.c_str(), X_OK) == 0) return place;
    at = end + 1;
  }
  return {};
}

std::string answer_of(const std::string& python, const std::string& program, int limit_ms) {
  constexpr std::size_t kBytesMax = 1 << 20;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const shm::Fd from(ends[0]);
  shm::Fd to(ends[1]);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(to.get(), STDOUT_FILENO);
    const char* const words[] = {python.c_str(), "-c", program.c_str(), nullptr};
    ::execv(words[0], const_cast<char* const*>(words));
    ::_exit(127);
  }
  to.reset();
  if (pid < 0) return {};
  std::string said;
  char bytes[4096];
  const std::uint64_t begun_ms = process::now_ms();
  for (;;) {
    const auto left_ms = static_cast<std::int64_t>(begun_ms) + limit_ms -
                         static_cast<std::int64_t>(process::now_ms());
    pollfd end{.fd = from.get(), .events = POLLIN, .revents = 0};
    const int ready =
        ::poll(&end, 1, limit_ms < 0 ? -1 : static_cast<int>(std::max<std::int64_t>(0, left_ms)));
    if (ready < 0 && errno == EINTR) continue;
    const ssize_t got = ready > 0 ? ::read(from.get(), bytes, sizeof bytes) : -1;
    if (got == 0) break;
    if (got < 0 || said.size() > kBytesMax) {
      said.clear();
      break;
    }
    said.append(bytes, static_cast<std::size_t>(got));
  }
  // It may go on after it has closed its end, or was given up.
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return said;
}

Remedy install_for(const std::string& python, const std::string& requirement,
                   const std::string& options) {
  if (!is_managed(python)) return {pip_install(python, options, requirement), ""};
  return {fmt::format(
              "{0} -m venv {1} && {1}/bin/pip install {2} && export RINGFEED_PYTHON={1}/bin/python",
              shell_word(python), kEnvironment, this_version()),
          "the system keeps the packages of this interpreter, so this makes an environment of your "
          "own (Debian needs python3-venv for it); the variable lasts as long as the shell"};
}

Remedy reinstall() {
  const std::string self = own_directory() + "ringfeed";
  if (process::is_of_package(self)) {
    return install_beside(self, "--force-reinstall --no-deps", this_version());
  }
  if (self == "/usr/bin/ringfeed") {
    return {.advice =
                "install Debian's package of ringfeed again: " +
                as_root("apt-get install --reinstall ./ringfeed_" RINGFEED_VERSION "_amd64.deb")};
  }
  return {.advice = "build ringfeed and install it again, all programs together"};
}

}  // namespace ringfeed::doctor
