// What can be typed: the table of all verbs.
#include "supervisor/cli/verbs.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/complete.h"
#include "supervisor/cli/help.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/cli/words.h"
#include "supervisor/config/names.h"

namespace ringfeed::cli {
namespace {

std::string exit_statuses() {
  std::string text;
  for (const ExitStatus& one : kExitStatuses) {
    text += fmt::format("{}{} {}", text.empty() ? "Exit status: " : ", ", one.status, one.text);
  }
  return text + ".";
}

std::string version_text() {
  return fmt::format("ringfeed {}, ABI {}.{}, layout {:#018x}", RINGFEED_VERSION, shm::kAbiMajor,
                     shm::kAbiMinor, shm::kLayoutHash);
}

struct Verb {
  const char* name;
  const char* summary;
  AddVerb add;
};
constexpr Verb kVerbs[] = {
    {"init", "Write a configuration for the data in a directory", add_init},
    {"run", "Start a feed and serve it until it ends", add_run},
    {"check", "Check a configuration: show its mistakes, or the feed it would make", add_check},
    {"try", "Show what a stage makes of the first samples, without a feed", add_try},
    {"ps", "List the feeds of this machine, a line each", add_ps},
    {"status", "Show a feed: stages, lanes, rings, rates, trainers", add_status},
    {"metrics", "Show metrics: totals, and rates over 1, 10 and 60 seconds", add_metrics},
    {"why", "Show what limits a feed: a stage, trainers, files or the machine", add_why},
    {"doctor", "Look at this machine for what is in a feed's way", add_doctor},
    {"graph", "Draw stages, queues and processes of a feed or a configuration", add_graph},
    {"top", "Show feeds in a terminal, and what limits them, once a second", add_top},
    {"peek", "Show the newest batch of a feed without taking it", add_peek},
    {"web", "Show the feeds of this machine in a browser, and to Prometheus", add_web},
    {"stop", "End a feed and wait until it has ended", add_stop},
    {"restart", "Replace the process of a stage group, between two of its steps", add_restart},
    {"scale", "Give a stage more or fewer lanes, between two of its steps", add_scale},
    {"control", "Send a message to the stages of a feed, and show their answers", add_control},
    {"snapshot", "Save a running feed, so that it can resume from there", add_snapshot},
    {"log", "Show or change the level of a feed's log while it runs", add_log},
    {"clean", "Remove what killed feeds left behind: sockets, files, workers", add_clean},
    {"dead-letters", "List records that killed their stage, or try one again", add_dead_letters},
    {"stages", "List the kinds of stages, or describe one", add_stages},
    {"inspect", "Identify a file, and show the records in it", add_inspect},
    {"import-lc0", "Convert the data loader of an lczero-training configuration", add_import_lc0},
    {"completion", "Print a script that completes words in a shell", add_completion},
    {"manual", "Show a manual page, or write all of them to a directory", add_manual},
    {"version", "Show the version and the ABI", add_version},
};

// CLI11 would call a misspelt verb an argument too many. "" if the first word is a verb, or an
// option.
std::string verb_mistake(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || *argv[1] == '\0' || *argv[1] == '-') return {};
  std::vector<std::string> verbs;
  for (const CLI::App* verb : verbs_of(app)) verbs.push_back(verb->get_name());
  if (std::find(verbs.begin(), verbs.end(), argv[1]) != verbs.end()) return {};
  return fmt::format("there is no verb '{}'{}", escaped(argv[1]),
                     config::did_you_mean(argv[1], verbs, "there are"));
}

// The first word that begins like an option and is none of the verb's: what might be meant. "":
// there is none.
std::string option_mistake(const CLI::App& app, int argc, char** argv) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& verb = chosen.empty() ? app : *chosen.front();
  std::vector<std::string> known;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    const std::string name(word.substr(0, word.find('=')));
    if (word == "--") break;
    if (!word.starts_with("--") || std::ranges::count(known, name) != 0) continue;
    return fmt::format("there is no option '{}'{}", escaped(name),
                       config::did_you_mean(name, known, "there are"));
  }
  return {};
}

// What is wrong with the line, and where to read more.
int usage_error(const CLI::App& app, std::string_view mistake) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  fmt::print(stderr, "ringfeed: {}\n`ringfeed {}--help` says what it takes\n", mistake,
             chosen.empty() ? "" : chosen.front()->get_name() + " ");
  return kUsage;
}

// A shell's `ulimit -s` may leave less stack than a start takes, and a fault says nothing. The
// limit counts when the stack grows, so a higher one is in force at once, here and in stages.
// False: the hard one is too low as well, which has been said.
bool have_stack() {
  constexpr rlim_t kLeastBytes = 256 << 10;
  constexpr rlim_t kWantedBytes = 8 << 20;  // the system's usual one
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastBytes) return true;
  limit.rlim_cur = std::min(kWantedBytes, limit.rlim_max);
  if (limit.rlim_cur < kLeastBytes || ::setrlimit(RLIMIT_STACK, &limit) != 0) {
    constexpr std::string_view kText =
        "ringfeed: the stack is limited to less than 256 KiB: raise the limit (ulimit -s 8192)\n";
    static_cast<void>(!::write(STDERR_FILENO, kText.data(), kText.size()));
    return false;
  }
  // Threads get what the limit was when the program was loaded.
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, limit.rlim_cur);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
  return true;
}

// Nobody may read it, and the program is to end nevertheless.
void say_error(std::string_view text) {
  constexpr int kPatienceMs = 2'000;
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, kPatienceMs) <= 0) return;
  std::string line = "ringfeed: " + escaped_lines(text);
  if (line.back() != '\n') line += '\n';
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

// Whoever reads it must not take a part for all of it.
int result_if_written(int result) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || errno == EPIPE) return result;  // a reader that has left has had enough
  say_error(fmt::format("standard output cannot be written to: {}",
                        errno == 0 ? "some of it is missing" : std::strerror(errno)));
  return result == kOk ? kFailure : result;
}

// In a frame of its own, as it takes a good deal of stack.
[[gnu::noinline]] int run_verb_of(int argc, char** argv) {
  int result = kOk;
  const std::unique_ptr<CLI::App> program = make_program(result);
  CLI::App& app = *program;
  if (argc > 1 && argv[1] == kCompleteVerb) {
    return complete(app, std::vector<std::string>(argv + 2, argv + argc));
  }
  if (const std::string mistake = verb_mistake(app, argc, argv); !mistake.empty()) {
    return usage_error(app, mistake);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const std::string mistake = option_mistake(app, argc, argv);
    return usage_error(app, mistake.empty() ? escaped(error.what()) : mistake);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return usage_error(app, escaped(error.what()));
    std::ostringstream out;
    app.exit(error, out, out);  // --help, --version
    fmt::print("{}", out.str());
    return kOk;
  } catch (const std::filesystem::filesystem_error& error) {
    say_error(fmt::format("{}{}{}", escaped(error.path1().string()),
                          error.path1().empty() ? "the current directory: " : ": ",
                          error.code().message()));
    return kFailure;
  } catch (const std::exception& error) {
    say_error(error.what());
    return kFailure;
  }
  return result;
}

}  // namespace

std::unique_ptr<CLI::App> make_program(int& result) {
  auto program = std::make_unique<CLI::App>(
      "ringfeed feeds training data to the processes that train.", "ringfeed");
  program->formatter(std::make_shared<HelpFormatter>());
  program->require_subcommand(1);
  program->set_help_flag("-h,--help", "print this help and exit");
  program->set_version_flag("--version", version_text(), "print the version and exit");
  program->footer(exit_statuses());
  for (const Verb& verb : kVerbs) {
    verb.add(*program->add_subcommand(verb.name, verb.summary), result);
  }
  return program;
}

CLI::Option* add_config(CLI::App& verb, ConfigArguments& arguments) {
  CLI::Option* const file = verb.add_option(
      "CONFIG", arguments.file, "configuration: .textproto, .json or .binpb; - is standard input");
  verb.add_option("--set", arguments.overrides,
                  "path=value, applied after the file; may be given several times")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  // Behind all of --set, wherever it stands.
  add_worker(verb, arguments.worker);
  return file;
}

void add_worker(CLI::App& verb, std::string& worker) {
  verb.add_option(
          "--worker", worker,
          "program of a plug-in, which has stages of its own; as `worker` in the configuration")
      ->type_name("PATH");
}

CLI::Option* add_feed(CLI::App& verb, std::string& feed) {
  return verb.add_option("FEED", feed, "name of the feed")->required();
}

void add_directory(CLI::App& verb, std::string& directory) {
  verb.add_option("--socket-dir", directory,
                  "directory of the control socket; default: $RINGFEED_SOCKET_DIR, else "
                  "$XDG_RUNTIME_DIR/ringfeed, then /run/ringfeed")
      ->type_name("DIR");
}

void add_json(CLI::App& verb, bool& json) {
  verb.add_flag("--json", json, "print one JSON object");
}

void add_version(CLI::App& verb, int&) {
  const auto json = std::make_shared<bool>(false);
  add_json(verb, *json);
  verb.footer("Example: ringfeed version");
  verb.callback([json] {
    if (!*json) return fmt::print("{}\n", version_text());
    fmt::print("{}\n", json_text({{"version", RINGFEED_VERSION},
                                  {"json_version", ringfeed::metrics::kJsonVersion},
                                  {"abi", fmt::format("{}.{}", shm::kAbiMajor, shm::kAbiMinor)},
                                  {"layout", fmt::format("{:#018x}", shm::kLayoutHash)}}));
  });
}

int main_with(int argc, char** argv) {
  shm::open_standard_streams();
  ::signal(SIGCHLD, SIG_DFL);  // ignored, as a caller may leave it, children end without a status
  return have_stack() ? result_if_written(run_verb_of(argc, argv)) : kFailure;
}

}  // namespace ringfeed::cli
