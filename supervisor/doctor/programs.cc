// The programs that run stages, and the Python that stages in Python run in.
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/abi.h"
#include "supervisor/doctor/apart.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/doctor/packages.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

// Of two programs: both together take less than a look may, by default.
constexpr int kPlanMs = 4'000;

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
    if (error.code() == ErrorCode::kTimeout) return not_known(error.message());
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

// What needs the library of which the next function asks.
constexpr const char* kReadsTables = R"(
stages { name: "rows" parquet_source { directory: "/" columns: "any" } }
)";

// The library that a worker loads when a file needs it.
void look_at_arrow(Findings& findings) {
  DataLoaderConfig config;
  google::protobuf::TextFormat::ParseFromString(kReadsTables, &config);
  PipelinePlan plan;
  try {
    plan = process::ask_plan(process::find_worker_binary(), config, kPlanMs);
  } catch (const Error&) {
    return;  // look_at_worker() has said so
  }
  if (plan.stages_size() != 1) return;
  if (plan.stages(0).problems_size() == 0) {
    findings.push_back(fine("Parquet, Arrow and CSV files can be read"));
    return;
  }
  Remedy remedy = reinstall();
  // It is left out of a build without Arrow.
  const bool built =
      !process::is_of_package(own_directory() + "ringfeed") && own_directory() != "/usr/bin/";
  if (built) remedy = {.advice = "pip install pyarrow, then build and install ringfeed again"};
  findings.push_back(better(plan.stages(0).problems(0).text(),
                            "stages that read Parquet, Arrow or CSV files cannot run", remedy));
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
  const std::string said = answer_of(python, kQuestions, -1);
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
  Remedy remedy = install_for(python, "ringfeed==" RINGFEED_VERSION);
  remedy.advice += remedy.advice.empty() ? "" : "; ";
  remedy.advice += "or name the interpreter that has it: export RINGFEED_PYTHON=/path/to/python";
  return better(fmt::format("{} cannot import ringfeed: {}", python, why), kNoStages,
                std::move(remedy));
}

Finding other_version(const std::string& what, const std::string& version, Remedy remedy) {
  return wrong(fmt::format("{} is version {}, and this is {}", what, version, RINGFEED_VERSION),
               "a trainer or a stage in Python may not understand this supervisor: attaching is "
               "refused where the memory's layout differs",
               std::move(remedy));
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
  look_at_arrow(findings);
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
    findings.push_back(better(fmt::format("{} cannot import NumPy: {}", python, why), kNoStages,
                              install_for(python, "numpy>=2.1")));
    return findings;
  }
  if (const std::string why = said("no ringfeed"); !why.empty()) {
    findings.push_back(lacks_package(python, why));
    return findings;
  }
  if (said("ringfeed") != RINGFEED_VERSION) {
    findings.push_back(other_version(fmt::format("the package {}", said("place")), said("ringfeed"),
                                     install_for(python, "ringfeed==" RINGFEED_VERSION)));
  } else if (const std::string version = said("library");
             !version.empty() && version != RINGFEED_VERSION) {
    findings.push_back(other_version(
        "libringfeed.so of the package", version,
        install_for(python, "ringfeed==" RINGFEED_VERSION, "--force-reinstall --no-deps")));
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
