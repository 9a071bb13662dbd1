// What can be typed.
#include "supervisor/cli/verbs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/config/names.h"

namespace ringfeed::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit status: 0 ok, 1 failure, 2 usage, 3 invalid configuration, 4 no such feed, 5 the feed "
    "goes on without a supervisor, 6 a replayed record was not taken.";

CLI::Option* add_config(CLI::App& verb, ConfigArguments& arguments) {
  CLI::Option* const file = verb.add_option(
      "CONFIG", arguments.file, "configuration: .textproto, .json or .binpb; - is standard input");
  verb.add_option("--set", arguments.overrides,
                  "path=value, applied after the file; may be given several times")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  return file;
}

void add_directory(CLI::App& verb, std::string& directory) {
  verb.add_option("--socket-dir", directory,
                  "directory of the control socket; default: $RINGFEED_SOCKET_DIR, else "
                  "$XDG_RUNTIME_DIR/ringfeed, then /run/ringfeed")
      ->type_name("DIR");
}

std::string version_text() {
  return fmt::format("ringfeed {}, ABI {}.{}, layout {:#018x}", RINGFEED_VERSION, shm::kAbiMajor,
                     shm::kAbiMinor, shm::kLayoutHash);
}

// CLI11 would call a misspelt verb an argument too many. "" if the first word is a verb, or an
// option.
std::string verb_mistake(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || *argv[1] == '\0' || *argv[1] == '-') return {};
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  if (std::find(verbs.begin(), verbs.end(), argv[1]) != verbs.end()) return {};
  return fmt::format("there is no verb '{}'{}", escaped(argv[1]),
                     config::did_you_mean(argv[1], verbs, "there are"));
}

// Of a program that was started with a standard stream closed: else the next file that it opens, a
// segment say, would have that number, and get what is said.
void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDWR));
  }
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

// In a frame of its own, as it takes a good deal of stack.
[[gnu::noinline]] int run_verb_of(int argc, char** argv) {
  CLI::App app{"ringfeed feeds training data to the processes that train.", "ringfeed"};
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.footer(kExitCodes);
  int result = kOk;

  ConfigArguments config;
  CLI::App* run_verb = app.add_subcommand("run", "Start a feed and serve it until it ends");
  CLI::Option* const run_config = add_config(*run_verb, config);
  RunOptions options;
  std::string directory;
  add_directory(*run_verb, directory);
  run_verb->add_flag("--fresh", options.fresh,
                     "start anew, also where a feed of this name could be taken over");
  CLI::Option* const resume =
      run_verb
          ->add_option("--resume", options.resume,
                       "go on from this snapshot; CONFIG may be left out then")
          ->type_name("DIR");
  run_verb
      ->add_option("--owner-fd", options.owner,
                   "for programs: an open pidfd. The feed is that process's own: it stops when the "
                   "process has ended, and CONFIG goes with it")
      ->type_name("FD")
      ->check(CLI::NonNegativeNumber);
  run_verb->footer(
      "The first SIGTERM or Ctrl-C drains the feed, the second stops it.\n"
      "A feed whose supervisor was killed is taken over: stages and trainers go on where they "
      "are.\n"
      "Relative paths in a configuration count from the directory in which this is started.\n"
      "Example: ringfeed run lc0.textproto --set stages.pool.chunk_pool_size=20000");
  run_verb->callback([&] {
    // The variable of a script that is not set, say: nothing begins anew for that.
    if (resume->count() != 0 && options.resume.empty()) {
      throw CLI::ValidationError("--resume", "DIR is empty: give the path of a snapshot");
    }
    if (options.resume.empty() && run_config->count() == 0) {
      throw CLI::RequiredError("CONFIG (or --resume DIR)");
    }
    options.directory = directory;
    result = run(config, options);
  });

  CLI::App* check_verb =
      app.add_subcommand("check", "Say what is wrong with a configuration, or what it would make");
  add_config(*check_verb, config)->required();
  bool part = false;
  check_verb->add_flag("--part", part,
                       "for programs: CONFIG is a part whose other stages follow, and is printed "
                       "in text format");
  check_verb->footer("Example: ringfeed check lc0.textproto");
  check_verb->callback([&] { result = part ? check_part(config) : check(config); });

  std::string feed;
  bool json = false;
  CLI::App* status_verb =
      app.add_subcommand("status", "Show a feed: stages, lanes, rings, rates, trainers");
  status_verb->add_option("FEED", feed, "name of the feed; all that run if left out");
  status_verb->add_flag("--json", json, "for programs: one JSON object a feed");
  status_verb->footer("Example: ringfeed status lc0 --json");
  add_directory(*status_verb, directory);
  status_verb->callback([&] { result = status(directory, feed, json); });

  CLI::App* metrics_verb =
      app.add_subcommand("metrics", "Show numbers: totals, and rates over 1, 10 and 60 seconds");
  metrics_verb->add_option("FEED", feed, "name of the feed")->required();
  metrics_verb->add_flag(
      "--json", json, "for programs: MetricsReply of proto/metrics.proto, as protobuf writes it");
  metrics_verb->footer("Example: ringfeed metrics lc0 --json");
  add_directory(*metrics_verb, directory);
  metrics_verb->callback([&] { result = metrics(directory, feed, json); });

  CLI::App* why_verb = app.add_subcommand(
      "why", "Say who limits a feed: a stage, the trainers, the files or the machine");
  why_verb->add_option("FEED", feed, "name of the feed")->required();
  why_verb->add_flag("--json", json, "for programs: BottleneckProto of proto/metrics.proto");
  why_verb->footer("From the last 10 seconds, or what there is.\nExample: ringfeed why lc0");
  add_directory(*why_verb, directory);
  why_verb->callback([&] { result = why(directory, feed, json); });

  bool now = false;
  CLI::App* stop_verb = app.add_subcommand("stop", "End a feed and wait until it has ended");
  stop_verb->add_option("FEED", feed, "name of the feed")->required();
  stop_verb->add_flag("--now", now, "do not drain: batches on their way are lost");
  stop_verb->footer(
      "A feed without a supervisor cannot drain: --now ends its workers.\n"
      "Example: ringfeed stop lc0");
  add_directory(*stop_verb, directory);
  stop_verb->callback([&] { result = stop(directory, feed, now); });

  std::string group;
  std::string binary;
  CLI::App* restart_verb = app.add_subcommand(
      "restart", "Replace a stage group by a fresh process, between two of its steps");
  restart_verb->add_option("FEED", feed, "name of the feed")->required();
  restart_verb->add_option("GROUP", group, "name of the stage group, see ringfeed status")
      ->required();
  restart_verb
      ->add_option(
          "--binary", binary,
          "another ringfeed-worker, for this group from now on; refused if it lays out the "
          "stages' memory in another way")
      ->type_name("PATH")
      ->check(CLI::ExistingFile);
  restart_verb->footer("Nothing is lost or repeated.\nExample: ringfeed restart lc0 sampler");
  add_directory(*restart_verb, directory);
  restart_verb->callback([&] { result = restart(directory, feed, group, binary); });

  std::string stage;
  std::uint32_t lanes = 0;
  CLI::App* scale_verb =
      app.add_subcommand("scale", "Give a stage more or fewer lanes, between two of its steps");
  scale_verb->add_option("FEED", feed, "name of the feed")->required();
  scale_verb->add_option("STAGE", stage, "name of the stage, see ringfeed status")->required();
  scale_verb->add_option("LANES", lanes, "1 to max_threads of the stage")->required();
  scale_verb->footer(
      "Nothing is lost or repeated, and the order of the batches stays as it is.\n"
      "The next `ringfeed run` that takes the feed over goes by its configuration again.\n"
      "Example: ringfeed scale lc0 unpacker 4");
  add_directory(*scale_verb, directory);
  scale_verb->callback([&] { result = scale(directory, feed, stage, lanes); });

  std::string message;
  CLI::App* control_verb = app.add_subcommand(
      "control", "Send a message to the stages of a feed, and show their answers");
  control_verb->add_option("FEED", feed, "name of the feed")->required();
  control_verb
      ->add_option("MESSAGE", message,
                   "a StageControlRequest of proto/control.proto, in text format")
      ->required();
  control_verb->add_option("--stage", stage, "only this stage; otherwise all that understand it");
  control_verb->add_flag("--json", json, "for programs: one JSON object");
  control_verb->footer(
      "The message takes effect between two steps of the stage, exactly once. A stage that cannot "
      "do it says why in its answer (error), and the exit status is 1.\n"
      "Examples: ringfeed control lc0 'chunk_pool_request {}'\n"
      "          ringfeed control lc0 'chunk_pool_request { reset_chunk_anchor: true }'\n"
      "          ringfeed control lc0 'chunk_pool_request { set_chunk_anchor: \"games-0017.tar\" "
      "}'");
  add_directory(*control_verb, directory);
  control_verb->callback([&] { result = control_stages(directory, feed, stage, message, json); });

  std::string target;
  CLI::App* snapshot_verb =
      app.add_subcommand("snapshot", "Save a running feed, so that it can go on from there");
  snapshot_verb->add_option("FEED", feed, "name of the feed")->required();
  snapshot_verb
      ->add_option("DIR", target, "directory to be made; a snapshot that is there is replaced")
      ->required();
  snapshot_verb->add_flag("--json", json, "for programs: one JSON object");
  snapshot_verb->footer(
      "The feed stands still for a moment only. Later: ringfeed run --resume DIR\n"
      "Example: ringfeed snapshot lc0 /data/checkpoints/lc0-feed");
  add_directory(*snapshot_verb, directory);
  snapshot_verb->callback([&] { result = take_snapshot(directory, feed, target, json); });

  CLI::App* clean_verb = app.add_subcommand(
      "clean", "Remove what killed feeds have left: sockets, lock files, segment files, workers");
  bool force = false;
  clean_verb->add_flag("--force", force,
                       "also end feeds that go on without a supervisor and could be taken over");
  clean_verb->footer("Live feeds are not touched.\nExample: ringfeed clean");
  add_directory(*clean_verb, directory);
  clean_verb->callback([&] { result = clean(directory, force); });

  std::string letters_directory;
  CLI::App* letters_verb = app.add_subcommand(
      "dead-letters",
      "List the records that were set aside because they killed their stage, or try one again");
  letters_verb->add_option("FEED", feed, "name of the feed; may be left out with --replay");
  letters_verb
      ->add_option("--directory", letters_directory,
                   "where they are kept; default: $XDG_STATE_HOME/ringfeed/FEED/dead-letters")
      ->type_name("DIR");
  letters_verb->add_flag("--json", json,
                         "for programs: one JSON object a record, all that is known");
  ReplayOptions replay;
  CLI::Option* const replays =
      letters_verb
          ->add_option("--replay", replay.file,
                       "give this record to its stage once more, alone, in a process of its own "
                       "and with memory of its own: no feed is touched")
          ->type_name("FILE");
  letters_verb->add_option("--binary", replay.binary, "the ringfeed-worker to replay with")
      ->type_name("PATH")
      ->check(CLI::ExistingFile)
      ->needs(replays);
  letters_verb
      ->add_option("--config", replay.config,
                   "a configuration in place of the one that was kept with the record")
      ->type_name("CONFIG")
      ->check(CLI::ExistingFile)
      ->needs(replays);
  letters_verb
      ->add_option("--timeout", replay.timeout_s,
                   "seconds after which the stage is given up; default: restart.stall_ms of the "
                   "configuration, else 10")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e6))
      ->needs(replays);
  letters_verb
      ->add_flag("--wait", replay.wait,
                 "stop before the record, for a debugger, until Enter is pressed; no time limit "
                 "unless --timeout is given")
      ->needs(replays);
  letters_verb->footer(
      "A replay ends with 0 if the stage took the record, with 6 if it died, hung or left it.\n"
      "Examples: ringfeed dead-letters lc0\n"
      "          ringfeed dead-letters --replay .../unpacker-input-0.0-17.record");
  letters_verb->callback([&] {
    if (replays->count() != 0) {
      result = replay_letter(feed, letters_directory, replay, json);
      return;
    }
    if (feed.empty()) throw CLI::RequiredError("FEED (or --replay FILE)");
    result = dead_letters(feed, letters_directory, json);
  });

  InspectOptions look;
  std::uint64_t record = 0;
  CLI::App* inspect_verb =
      app.add_subcommand("inspect", "Say what a file is, and show the records in it");
  inspect_verb
      ->add_option("PATH", look.path,
                   "a .gz of one game, a tar of games, records as they are, an index of a tar, a "
                   "token file (PREFIX, PREFIX.idx or PREFIX.bin), a snapshot, a dead letter, a "
                   "configuration")
      ->required();
  CLI::Option* const record_option =
      inspect_verb
          ->add_option("--record", record, "this record of the game, or sentence, counted from 0")
          ->type_name("N")
          ->check(CLI::NonNegativeNumber);
  inspect_verb
      ->add_option("--chunk", look.chunk, "this game of a tar: its name, or its index, from 0")
      ->type_name("NAME_OR_INDEX");
  inspect_verb
      ->add_flag("--all", look.all,
                 "all records of the game; of a tar, all members in the list; all sentences")
      ->excludes(record_option);
  inspect_verb
      ->add_option("--dictionary", look.dictionary,
                   "symbols of a token file's ids; default: dict.LANG.txt beside it")
      ->type_name("FILE");
  inspect_verb->add_option("--top", look.top, "so many moves of the policy; default 8")
      ->type_name("K")
      ->check(CLI::Range(0, 1858));
  inspect_verb->add_flag("--json", look.json, "for programs: one JSON object");
  inspect_verb->footer(
      "What is damaged is said on standard error; the exit status is 1 then, and for a file that "
      "is none of these.\n"
      "Examples: ringfeed inspect training.123.gz --record 40 --top 5\n"
      "          ringfeed inspect games-0017.tar --chunk 3 --all\n"
      "          ringfeed inspect data_bin/train.eng_Latn-tur_Latn.eng_Latn");
  inspect_verb->callback([&] {
    if (record_option->count() != 0) look.record = record;
    result = inspect(look);
  });

  ImportOptions import_options;
  CLI::App* import_verb = app.add_subcommand(
      "import-lc0", "Turn the data loader of a lczero-training configuration into one of ours");
  import_verb
      ->add_option("FILE", import_options.file,
                   "a RootConfig with a data_loader, or a DataLoaderConfig: .textproto, .json or "
                   ".binpb; - is standard input")
      ->required();
  import_verb
      ->add_option("--add", import_options.added,
                   "add the stages of this one, but not its outputs; may be given several times")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  import_verb->add_option("-o,--out", import_options.out, "file to write; default: standard output")
      ->type_name("OUT");
  import_verb->footer(
      "What has no equivalent is said on standard error, and in comments where it was.\n"
      "Example: ringfeed import-lc0 train.textproto -o lc0.textproto");
  import_verb->callback([&] { result = import_lc0(import_options); });

  CLI::App* version_verb = app.add_subcommand("version", "Show the version and the ABI");
  version_verb->footer("Example: ringfeed version");
  version_verb->callback([] { fmt::print("{}\n", version_text()); });

  if (const std::string mistake = verb_mistake(app, argc, argv); !mistake.empty()) {
    fmt::print(stderr, "ringfeed: {}\nRun with --help for more information.\n", mistake);
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream wrong;
    const int code = app.exit(error, out, wrong);
    fmt::print("{}", out.str());
    fmt::print(stderr, "{}", escaped_lines(wrong.str()));
    return code == 0 ? kOk : kUsage;
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

int main_with(int argc, char** argv) {
  open_standard_streams();
  return have_stack() ? run_verb_of(argc, argv) : kFailure;
}

}  // namespace ringfeed::cli
