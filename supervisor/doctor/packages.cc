#include "supervisor/doctor/packages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <vector>

#include "ringfeed/shm/result.h"
#include "supervisor/group/spawn.h"
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
  return answer_of(python, kQuestion).find("managed") != std::string::npos;
}

std::string or_python3(const std::string& python) { return python.empty() ? "python3" : python; }

std::string this_version() { return "ringfeed==" RINGFEED_VERSION; }

// An environment of its own, and what is installed there.
Remedy make_environment(const std::string& python, const std::string& requirement) {
  return {
      fmt::format("{} -m venv {} && {}/bin/pip install {} && export RINGFEED_PYTHON={}/bin/python",
                  shell_word(python), kEnvironment, kEnvironment, shell_word(requirement),
                  kEnvironment),
      "the system keeps the packages of this interpreter, so this makes an environment of your "
      "own (Debian needs python3-venv for it); the variable lasts as long as the shell"};
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

std::string answer_of(const std::string& python, const std::string& program) {
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
  std::string said;
  char bytes[4096];
  for (;;) {
    const ssize_t got = pid < 0 ? 0 : ::read(from.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || said.size() > kBytesMax) break;
    said.append(bytes, static_cast<std::size_t>(got));
  }
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  return said;
}

Remedy install_for(const std::string& python, const std::string& requirement,
                   const std::string& options) {
  if (is_managed(python)) return make_environment(python, this_version());
  return {
      fmt::format("{} -m pip install {}{}", shell_word(python), options, shell_word(requirement)),
      ""};
}

Remedy reinstall() {
  const std::string self = own_directory() + "ringfeed";
  const std::string python = or_python3(interpreter());
  if (process::is_of_package(self)) {
    if (is_managed(python)) return make_environment(python, this_version());
    return install_for(python, this_version(), "--force-reinstall --no-deps ");
  }
  if (self == "/usr/bin/ringfeed") {
    return {.advice =
                "install Debian's package of ringfeed again: sudo apt-get install --reinstall "
                "./ringfeed_" RINGFEED_VERSION "_amd64.deb"};
  }
  return {.advice = "build ringfeed and install it again, all programs together"};
}

Remedy install_arrow(const std::string& program) {
  const std::string python = or_python3(interpreter());
  const std::string command = process::arrow_command(program, shell_word(python) + " -m pip");
  // Into a directory of the programs' own: no interpreter's packages change.
  if (command.find(" --target ") != std::string::npos || !is_managed(python)) return {command, ""};
  return make_environment(python, "ringfeed[parquet]==" RINGFEED_VERSION);
}

}  // namespace ringfeed::doctor
