// The programs that run stages, and the Python that stages in Python run in.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/result.h"
#include "supervisor/doctor/apart.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/spawn.h"

namespace ringfeed::doctor {
namespace {

constexpr int kPlanMs = 8'000;

std::string own_directory() {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) return {};
  const std::string path(self, static_cast<std::size_t>(length));
  return path.substr(0, path.rfind('/') + 1);
}

// As ringfeed-worker-python chooses it; "": there is none.
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

Remedy reinstall() {
  const std::string python = interpreter();
  return {fmt::format("{} -m pip install --force-reinstall ringfeed=={}",
                      shell_word(python.empty() ? "python3" : python), RINGFEED_VERSION),
          "or build and install it again, all programs together"};
}

Finding not_executable(const std::string& program, const std::string& cost) {
  return wrong(fmt::format("{} may not be run by this user", program), cost,
               {fmt::format("chmod a+x {}", shell_word(program)), ""});
}

// A program beside this one that answers as the same version does; nullopt: it does.
std::optional<Finding> look_at_version(const std::string& program, const std::string& cost) {
  PipelinePlan plan;
  try {
    plan = process::ask_plan(program, DataLoaderConfig(), kPlanMs);
  } catch (const Error& error) {
    const std::string words = last_words();
    return wrong(
        fmt::format("{} does not work: {}", program, words.empty() ? error.message() : words), cost,
        reinstall());
  }
  if (plan.worker_version() == RINGFEED_VERSION && plan.abi() == shm::kAbiMajor) return {};
  return wrong(fmt::format("{} is version {} (ABI {}), and this is {} (ABI {})", program,
                           plan.worker_version().empty() ? "?" : plan.worker_version(), plan.abi(),
                           RINGFEED_VERSION, shm::kAbiMajor),
               cost, reinstall());
}

void look_at_worker(Findings& findings) {
  constexpr const char* kCost = "no feed can start: this program runs its stages";
  const std::string beside = own_directory() + "ringfeed-worker";
  if (::access(beside.c_str(), F_OK) == 0 && ::access(beside.c_str(), X_OK) != 0) {
    findings.push_back(not_executable(beside, kCost));
    return;
  }
  std::string worker;
  try {
    worker = process::find_worker_binary();
  } catch (const Error& error) {
    findings.push_back(wrong(error.message(), kCost, reinstall()));
    return;
  }
  if (const auto finding = look_at_version(worker, kCost)) {
    findings.push_back(*finding);
  } else {
    findings.push_back(fine(fmt::format("{} is of this version", worker)));
  }
}

void look_at_parquet(Findings& findings) {
  constexpr const char* kCost = "stages that read Parquet files cannot run";
  const std::string program = own_directory() + "ringfeed-worker-parquet";
  const std::string python = interpreter();
  const std::string install =
      process::arrow_command(program, shell_word(python.empty() ? "python3" : python) + " -m pip");
  if (::access(program.c_str(), F_OK) != 0) {
    findings.push_back(better(fmt::format("there is no {}", program), kCost,
                              {.advice = fmt::format("{}, then build and install ringfeed again, "
                                                     "which then finds it",
                                                     install)}));
  } else if (::access(program.c_str(), X_OK) != 0) {
    findings.push_back(not_executable(program, kCost));
  } else if (!process::libraries_found(program)) {
    findings.push_back(better(
        fmt::format("{} lacks Arrow's libraries, or finds those of another version", program),
        kCost, {.mend = install}));
  } else if (const auto finding = look_at_version(program, kCost)) {
    findings.push_back(*finding);
  } else {
    findings.push_back(fine(fmt::format("{} is of this version, and finds Arrow", program)));
  }
}

// Starts it in this process group, and reads all that it says. "": it cannot be started.
std::string output_of(const std::vector<std::string>& words) {
  constexpr std::size_t kBytesMax = 1 << 20;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const shm::Fd from(ends[0]);
  shm::Fd to(ends[1]);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(to.get(), STDOUT_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
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

// What an interpreter is asked; it says a name and a value a line, with a tab between them.
constexpr const char* kQuestions = R"(
import sys
def say(name, value):
    print(name, str(value).replace("\n", " "), sep="\t", flush=True)
say("version", "%d.%d.%d" % sys.version_info[:3])
say("can", sys.version_info >= (3, 10))
def ask(name, what):
    try:
        say(name, what())
    except BaseException as error:
        say("no " + name, "%s: %s" % (type(error).__name__, error))
def version_of(name):
    return __import__(name).__version__
def library():
    from ringfeed._core import native
    return native._library.rf_version().decode()
def module():
    from ringfeed.worker import module
    module.load()
    return "loaded"
ask("numpy", lambda: version_of("numpy"))
ask("ringfeed", lambda: version_of("ringfeed"))
ask("place", lambda: sys.modules["ringfeed"].__file__)
ask("library", library)
ask("module", module)
)";

using Answers = std::map<std::string, std::string>;
Answers ask(const std::string& python) {
  Answers answers;
  const std::string said = output_of({python, "-c", kQuestions});
  for (std::size_t at = 0; at < said.size();) {
    const std::size_t end = std::min(said.find('\n', at), said.size());
    const std::string line = said.substr(at, end - at);
    const std::size_t tab = line.find('\t');
    if (tab != line.npos) answers[line.substr(0, tab)] = line.substr(tab + 1);
    at = end + 1;
  }
  return answers;
}

constexpr const char* kNoStages = "stages in Python cannot run, nor trainers with this interpreter";

Finding lacks_package(const std::string& python, const std::string& why) {
  return better(
      fmt::format("{} cannot import ringfeed: {}", python, why), kNoStages,
      {fmt::format("{} -m pip install ringfeed=={}", shell_word(python), RINGFEED_VERSION),
       "or name the interpreter that has it: export RINGFEED_PYTHON=/path/to/python"});
}

Finding other_version(const std::string& what, const std::string& version) {
  return wrong(fmt::format("{} is version {}, and this is {}", what, version, RINGFEED_VERSION),
               "a trainer or a stage in Python may not understand this supervisor: attaching is "
               "refused where the memory's layout differs",
               reinstall());
}

// The module beside this program's directory, as ringfeed-worker-python names it.
void name_module() {
  std::string place = own_directory();
  if (place.size() < 2) return;
  place.pop_back();
  place.resize(place.rfind('/'));
  for (const char* const name : {"/lib/ringfeed/_worker.abi3.so", "/lib/_worker.abi3.so"}) {
    if (::access((place + name).c_str(), R_OK) != 0) continue;
    ::setenv("RINGFEED_WORKER_MODULE", (place + name).c_str(), 1);
    return;
  }
}

}  // namespace

Findings look_at_workers() {
  Findings findings;
  look_at_worker(findings);
  look_at_parquet(findings);
  const std::string python = own_directory() + "ringfeed-worker-python";
  constexpr const char* kCost = "stages in Python cannot run";
  if (::access(python.c_str(), F_OK) != 0) {
    findings.push_back(better(fmt::format("there is no {}", python), kCost, reinstall()));
  } else if (::access(python.c_str(), X_OK) != 0) {
    findings.push_back(not_executable(python, kCost));
  }
  return findings;
}

Findings look_at_python() {
  const std::string python = interpreter();
  const Remedy name{.advice =
                        "install Python 3.10 or newer, or name one: export "
                        "RINGFEED_PYTHON=/path/to/python"};
  if (python.empty()) return {better("there is no python3 in PATH", kNoStages, name)};
  if (::access(python.c_str(), X_OK) != 0) {
    return {
        wrong(fmt::format("the interpreter {} cannot be started: {}", python, std::strerror(errno)),
              kNoStages, {"unset RINGFEED_PYTHON", "then python3 of PATH is taken"})};
  }
  name_module();
  const Answers answers = ask(python);
  const auto said = [&](const std::string& what) {
    const auto found = answers.find(what);
    return found == answers.end() ? std::string() : found->second;
  };
  if (said("version").empty()) {
    const std::string words = last_words();
    return {wrong(
        fmt::format("{} is no Python that works{}{}", python, words.empty() ? "" : ": ", words),
        kNoStages, name)};
  }
  if (said("can") != "True") {
    return {better(fmt::format("{} is Python {}, and 3.10 is needed", python, said("version")),
                   kNoStages, name)};
  }
  Findings findings;
  if (const std::string why = said("no numpy"); !why.empty()) {
    findings.push_back(
        better(fmt::format("{} cannot import NumPy: {}", python, why), kNoStages,
               {fmt::format("{} -m pip install 'numpy>=2.1'", shell_word(python)), ""}));
    return findings;
  }
  if (const std::string why = said("no ringfeed"); !why.empty()) {
    findings.push_back(lacks_package(python, why));
    return findings;
  }
  if (said("ringfeed") != RINGFEED_VERSION) {
    findings.push_back(
        other_version(fmt::format("the package {}", said("place")), said("ringfeed")));
  } else if (const std::string version = said("library");
             !version.empty() && version != RINGFEED_VERSION) {
    findings.push_back(other_version("libringfeed.so of the package", version));
  } else if (const std::string why = said("no module"); !why.empty()) {
    findings.push_back(better(fmt::format("{} cannot load the module of stages: {}", python, why),
                              "stages in Python cannot run", reinstall()));
  } else {
    findings.push_back(fine(fmt::format("{} is Python {} with ringfeed {} and NumPy {}", python,
                                        said("version"), said("ringfeed"), said("numpy"))));
  }
  return findings;
}

}  // namespace ringfeed::doctor
