// ringfeed run: from a configuration, and what earlier runs left, to a feed.
#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "proto/snapshot.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/earlier.h"
#include "supervisor/cli/link.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/feed/feed.h"
#include "supervisor/layout/memory.h"
#include "supervisor/metrics/progress.h"
#include "supervisor/os/identity.h"
#include "supervisor/os/locale.h"
#include "supervisor/os/reserve.h"
#include "supervisor/os/service_manager.h"
#include "supervisor/os/signals.h"
#include "supervisor/os/text.h"
#include "supervisor/report/report_file.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed::cli {
namespace {

constexpr std::uint64_t kPatienceMs = 2'000;  // of a person, until progress is shown

struct RunOptions {
  std::string directory = {};  // of the control socket; empty: as the configuration says, else by
                               // the rule of control/place.h
  bool fresh = false;          // does not take over what an earlier run has left, but ends it
  std::optional<std::uint64_t> from_batch = {};  // with which a new feed begins
  std::string resume = {};  // a snapshot to go on from; then the configuration may be left out
  int owner = -1;           // a pidfd: the feed is this process's own, and ends with it
  int link = -1;            // to the program that starts the feed (cli/link.h)
  std::string report = {};  // of the run, to be written at its end
};

std::uint64_t drawn_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    throw Error(ErrorCode::kIo, "the system provides no random number for a seed: set seed");
  }
  return seed;
}

// Of workers that cannot be seen from here, only that they are alive is known, not what they do.
// A fresh start leaves workers of another namespace to end on their own: the record says where they
// are.
void refuse_unseen(const control::FeedLock& lock, const std::string& feed, bool fresh) {
  const std::string unseen = lock.lives_unseen();
  if (unseen.empty()) return;
  if (!lock.is_elsewhere()) {
    throw Error(ErrorCode::kBusy,
                fmt::format("feed '{}' cannot be {} from here: {}: {}", feed,
                            fresh ? "started anew" : "taken over", unseen, lock.unseen_remedy()));
  }
  if (fresh) return;
  throw Error(ErrorCode::kBusy,
              fmt::format("feed '{}' cannot be taken over from here: {}: {}, or start a new one "
                          "with --fresh, which leaves them to end on their own",
                          feed, unseen, lock.unseen_remedy()));
}

// The process whose own the feed is, if there is one. With its death goes what it would have
// removed at the feed's end: the configuration's file, the log and a given parent's socket beside
// that, and the directory, if nothing else is in it. Made before all that writes there, so that it
// goes last.
class Owner {
 public:
  Owner(int pidfd, const std::string& config_file) : pidfd_(pidfd) {
    if (pidfd < 0) return;
    // Any other descriptor might say at once that nobody is there. The stages need not know it.
    const bool other =
        ::syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) != 0 && errno == EBADF;
    if (other || ::fcntl(pidfd, F_SETFD, FD_CLOEXEC) != 0) {
      static_cast<void>(pidfd_.release());
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--owner-fd {}: not a pidfd of a process", pidfd));
    }
    config_file_ = std::filesystem::absolute(config_file);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (!pidfd_ || !process::has_ended(pidfd_.get())) return;
    std::error_code ignored;
    std::filesystem::remove(config_file_, ignored);
    // Objects that the builder of ringfeed.pipeline has stored beside it: NAME.STAGE.….pickle.
    const std::string stem = config_file_.stem().string() + ".";
    std::filesystem::directory_iterator entry(config_file_.parent_path(), ignored);
    for (; entry != std::filesystem::directory_iterator(); entry.increment(ignored)) {
      const std::string name = entry->path().filename().string();
      std::error_code stays;
      // A parent that was starting has its socket under a name of its own: p.NUMBER.
      if ((name.starts_with(stem) && name.ends_with(".pickle")) || name.starts_with("p.")) {
        std::filesystem::remove(entry->path(), stays);
      }
    }
    for (const char* const name : {"supervisor.log", "parent.sock"}) {
      std::filesystem::remove(config_file_.parent_path() / name, ignored);
    }
    std::filesystem::remove(config_file_.parent_path(), ignored);
  }
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }

 private:
  shm::Fd pidfd_;
  std::filesystem::path config_file_;
};

// What --resume names, read into `saved`: an absolute path, or empty. The configuration is the one
// that was saved, if no other is given.
std::string read_resumed(const RunOptions& options, ConfigArguments& arguments,
                         SnapshotManifest& saved) {
  if (options.resume.empty()) return {};
  const std::string snapshot = std::filesystem::absolute(options.resume).lexically_normal();
  snapshot::read_manifest(snapshot, saved).or_throw();
  if (arguments.file.empty()) {
    google::protobuf::TextFormat::PrintToString(saved.config(), &arguments.text);
    arguments.file = snapshot + "/" + snapshot::kManifestFile;
  }
  return snapshot;
}

// From what earlier runs have left to a feed that runs, step by step. Whatever is left stays until
// what replaces it stands, unless --fresh ends it.
class Start {
 public:
  // All of them outlive this. `snapshot`: what to go on from, read into `saved`; may be empty.
  Start(Prepared& prepared, const RunOptions& options, process::ServiceManager& service,
        control::FeedLock& lock, metrics::Talk& talk, std::string snapshot, SnapshotManifest& saved)
      : prepared_(prepared),
        service_(service),
        options_(options),
        lock_(lock),
        talk_(talk),
        left_(lock.left_behind()),
        message_(prepared.configuration.message()),
        feed_(message_.feed()),
        snapshot_(std::move(snapshot)),
        saved_(saved),
        seed_(left_.seed),
        ended_(options.fresh) {}

  // Finds the memory of a feed to take over, or the snapshot to go on from, or neither. False: what
  // is left has another configuration, which is said on standard error.
  [[nodiscard]] bool find_left();
  // Removes what nobody goes on with, and writes down which files will be made.
  void prepare_place();
  void find_memory();
  // Runs the feed to its end; the exit status.
  int run(const std::string& directory, const std::string& config_file, int owner, shm::Fd link);
  // No feed came of it: the record says again what was left.
  void withdraw() {
    if (noted_ && lock_.keeps()) static_cast<void>(lock_.write(left_));
  }

 private:
  void warn(std::string_view event, std::string_view what) const {
    talk_.event(metrics::Level::kWarn, event,
                fmt::format("feed={} what={}", feed_, in_quotes(what)));
  }
  // `asks`: whether all have ended; not any more when workers of this feed keep the lock.
  void clear(bool asks) {
    for (const std::string& done : control::clear_remains(left_, asks ? &lock_ : nullptr)) {
      warn("remains_cleared", done);
    }
  }
  [[nodiscard]] bool find_feed();
  void find_newest_snapshot();
  void go_on_from(const DataLoaderConfig& begun);
  [[nodiscard]] bool fits_snapshot() const;
  void write_report(const std::string& page);

  Prepared& prepared_;
  process::ServiceManager& service_;
  const RunOptions& options_;
  control::FeedLock& lock_;
  metrics::Talk& talk_;
  const control::LockRecord& left_;
  const DataLoaderConfig& message_;
  const std::string& feed_;
  std::string snapshot_;
  SnapshotManifest& saved_;
  std::optional<layout::FoundMemory> found_;
  bool adopts_ = false;
  std::uint64_t seed_;
  bool ended_;          // what was left has come to its end
  bool noted_ = false;  // files are being made, and the record says so
  shm::Storage storage_;
};

bool Start::find_left() {
  if (!options_.fresh) lock_.is_whole().or_throw();
  refuse_unseen(lock_, feed_, options_.fresh);
  if (!options_.fresh && !options_.resume.empty() && anything_lives(left_)) {
    throw Error(ErrorCode::kBusy,
                fmt::format("feed '{}' is running without a supervisor: take it over with "
                            "'ringfeed run' without --resume, or end it by adding --fresh",
                            feed_));
  }
  if (!options_.fresh && options_.resume.empty() && !find_feed()) return false;
  return snapshot_.empty() || fits_snapshot();
}

// What a feed of this name has left: its memory, or at least its newest snapshot.
bool Start::find_feed() {
  const std::string differs = left_unlike(left_, message_);
  if (!differs.empty()) {
    fmt::print(stderr,
               "feed '{}' is running without a supervisor, and its configuration differs:\n{}use "
               "the configuration that it runs with, or end it and start a new feed with --fresh\n",
               feed_, escaped_lines(differs));
    return false;
  }
  Left looked = look_for_feed(left_, prepared_);
  found_ = std::move(looked.memory);
  ended_ = looked.ended;
  if (!found_ && !ended_ && !looked.gone.empty()) warn("feed_gone", looked.gone);
  // Whoever says where to begin does not want to begin elsewhere.
  if (!found_ && !left_.snapshot.empty() && !options_.from_batch) find_newest_snapshot();
  return true;
}

void Start::find_newest_snapshot() {
  const Status readable = snapshot::read_manifest(left_.snapshot, saved_);
  if (!readable) {
    throw Error(
        readable.error().code(),
        fmt::format(
            "all processes of feed '{}' have died, and its newest snapshot cannot be used: {}: put "
            "it back, resume from another one with --resume DIR, or start a new feed with --fresh",
            feed_, readable.error().message()));
  }
  snapshot_ = left_.snapshot;
}

bool Start::fits_snapshot() const {
  const std::string differs = saved_unlike(saved_, message_);
  if (differs.empty()) return true;
  fmt::print(stderr,
             "snapshot {} was taken with another configuration:\n{}use that configuration (it is "
             "in {}), or start a new feed with --fresh\n",
             escaped(snapshot_), escaped_lines(differs), snapshot::kManifestFile);
  return false;
}

void Start::prepare_place() {
  control::remove_unfinished(left_);
  adopts_ = found_.has_value();
  if (options_.fresh || (!adopts_ && snapshot_.empty())) {
    if (options_.fresh || ended_) clear(true);
    lock_.keep(false);
  }
  storage_.directory = message_.storage().directory();
  if (adopts_ || storage_.directory.empty()) return;
  // Written down first: should this process die meanwhile, the next one knows what to remove.
  storage_.mark = layout::draw_file_mark();
  control::LockRecord making = lock_.keeps() ? left_ : control::LockRecord();
  making.making_mark = storage_.mark;
  making.making_directory = storage_.directory;
  lock_.write(making).or_throw();
  noted_ = true;
}

void Start::find_memory() {
  if (!snapshot_.empty()) {
    const std::uint64_t began = process::now_ms();
    metrics::Paces paces;
    const auto looked = [&](std::uint64_t done, std::uint64_t total) {
      std::vector<metrics::Progress> reading(1);
      reading[0] = {"resume", {}, done, total, std::nullopt};
      reading[0].text = fmt::format("read {} of {}", shown_bytes(done), shown_bytes(total));
      const std::uint64_t now = process::now_ms();
      paces.look(reading, now);
      if (now < began + kPatienceMs) return;
      talk_.progress({.kind = "resume",
                      .text = metrics::progress_line(reading[0]),
                      .bar = metrics::progress_bar(reading[0], locale_is_utf8())},
                     now);
    };
    found_ = load_snapshot(snapshot_, saved_, prepared_, storage_, looked).value_or_throw();
    talk_.end_progress();
    seed_ = saved_.seed();
    go_on_from(saved_.config());
    talk_.say(fmt::format("feed {} resumes from the snapshot of {}, with batch {}", feed_,
                          escaped(saved_.taken_at()), saved_.newest_batch() + 1));
  } else if (adopts_) {
    DataLoaderConfig begun;
    if (begun.ParseFromString(left_.config)) go_on_from(begun);
  } else {
    layout::check_memory(prepared_.layout, memory_limits(prepared_)).or_throw();
  }
  talk_.say(fmt::format("feed {} uses\n{}", feed_, layout::memory_table(prepared_.layout)));
}

// What goes on is the feed that was begun, also for stages that have not yet done a step.
void Start::go_on_from(const DataLoaderConfig& begun) {
  prepared_.configuration.message().set_from_batch(begun.from_batch());
  prepared_.layout.first_batch = begun.from_batch();
}

int Start::run(const std::string& directory, const std::string& config_file, int owner,
               shm::Fd link) {
  const std::uint64_t seed = message_.has_seed() ? message_.seed() : found_ ? seed_ : drawn_seed();
  const process::FeedRun feed_run{
      .config = message_,
      .plan = *prepared_.plan,
      .seed = seed,
      .config_file =
          config_file == "-" ? config_file : std::filesystem::absolute(config_file).string(),
      .worker_binary = prepared_.worker_binary,
      .socket = control::socket_path(directory, feed_),
      .recorded_groups = formed_groups(prepared_).SerializeAsString(),
      .recorded_config = message_.SerializeAsString(),
      .dead_letters = control::dead_letter_directory(message_.restart().dead_letters(), feed_,
                                                     control::read_environment()),
      .lineage = lineage_of(prepared_, seed),
      .resumed_from = snapshot_,
      .file_mark = storage_.mark,
      .on_recorded =
          [this] {
            noted_ = false;
            if (!adopts_ && !options_.fresh) clear(false);
          },
      .on_listening =
          [&link] {
            if (link) say_listening(link.get());
            link.reset();
          },
      .owner = owner,
      .service = &service_,
      .report = !options_.report.empty(),
  };
  process::Feed supervisor(feed_run, std::move(prepared_.layout), lock_, talk_, std::move(found_));
  const int status = supervisor.run();
  // Here already: the name is free, also if a disk that hangs holds this process.
  lock_.remove();
  if (!supervisor.report().empty()) write_report(supervisor.report());
  return status;
}

// How the feed ended is said already, and stays so.
void Start::write_report(const std::string& page) {
  const std::string path = std::filesystem::absolute(options_.report).string();
  const Status written = report::write_report(path, page);
  if (written) return talk_.say(fmt::format("report: {}", escaped(path)));
  talk_.event(metrics::Level::kError, "report_failed",
              fmt::format("feed={} what={}", feed_, in_quotes(written.error().message())));
  talk_.say(written.error().message());
}

int run(const ConfigArguments& given, const RunOptions& options) {
  process::ServiceManager service = process::ServiceManager::of_environment();
  if (!options.report.empty()) {
    report::try_report(std::filesystem::absolute(options.report).string()).or_throw();
  }
  process::hold_warnings();
  process::load_unwinder();
  process::load_messages();
  const Owner owner(options.owner, given.file);
  shm::Fd link = take_link(options.link);
  ConfigArguments arguments = given;
  arguments.link = link.get();
  SnapshotManifest saved;
  std::string snapshot = read_resumed(options, arguments, saved);
  std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const DataLoaderConfig& message = prepared->configuration.message();
  const std::string& feed = message.feed();
  // Before the first look: what is left may need as many descriptors as what is made.
  layout::raise_file_limit();

  const std::string directory = control::socket_directory(
      options.directory.empty() ? message.control().directory() : options.directory,
      control::read_environment());
  control::prepare_directory(directory, feed);
  control::FeedLock lock =
      control::FeedLock::take(control::lock_path(directory, feed), feed).value_or_throw();
  metrics::Talk talk({.feed = feed,
                      .level = metrics::level_named(LogConfig::Level_Name(message.log().level())),
                      .json = message.log().format() == LogConfig::JSON,
                      .file = message.log().file(),
                      .rotate_bytes = message.log().rotate_bytes(),
                      .rotate_keep = message.log().rotate_keep()});
  Start start(*prepared, options, service, lock, talk, std::move(snapshot), saved);
  int status = kInvalidConfiguration;
  try {
    if (start.find_left()) {
      start.prepare_place();
      start.find_memory();
      status = start.run(directory, arguments.file, owner.pidfd(), std::move(link));
    }
  } catch (...) {
    start.withdraw();
    lock.remove();
    throw;
  }
  lock.remove();
  return status;
}

}  // namespace

void add_run(CLI::App& verb, int& result) {
  struct Given {
    ConfigArguments config;
    RunOptions options;
    std::string directory;
  };
  const auto given = std::make_shared<Given>();
  CLI::Option* const run_config = add_config(verb, given->config);
  add_directory(verb, given->directory);
  verb.add_flag("--fresh", given->options.fresh,
                "start a new feed, even if a feed of this name could be taken over");
  CLI::Option* const from_batch =
      verb.add_option(
              "--from-batch", given->options.from_batch,
              "start a new feed with batch N (the first is 1) and make none before it; only "
              "for feeds whose batches are planned ahead (translation)")
          ->type_name("N")
          ->check(CLI::PositiveNumber);
  CLI::Option* const resume =
      verb.add_option("--resume", given->options.resume,
                      "resume from this snapshot; CONFIG may then be left out")
          ->type_name("DIR")
          ->excludes(from_batch);
  verb.add_option("--owner-fd", given->options.owner,
                  "for programs: an open pidfd of the process that owns the feed; when that "
                  "process ends, the feed stops, and CONFIG is removed with what "
                  "lies beside it for it")
      ->type_name("FD")
      ->check(CLI::NonNegativeNumber);
  verb.add_option("--link-fd", given->options.link,
                  "for programs: an open socket of packets to the program that starts the feed. "
                  "It may send the plan of CONFIG (what ringfeed-worker --plan prints), which "
                  "saves asking for it, and hears when the feed can be attached to")
      ->type_name("FD")
      ->check(CLI::NonNegativeNumber);
  CLI::Option* const report =
      verb.add_option("--report", given->options.report,
                      "when the feed has ended, write a report of the run to this file: one HTML "
                      "page that needs nothing beside it")
          ->type_name("FILE");
  verb.footer(
      "The first SIGTERM or Ctrl-C drains the feed, the second stops it.\nA feed whose supervisor "
      "was killed is taken over: stages and trainers continue where they are.\nPaths in a "
      "configuration are relative to the directory in which this command is started.\n"
      "Example: ringfeed run lc0.textproto --set stages.pool.chunk_pool_size=20000");
  verb.callback([=, &result] {
    // The variable of a script that is not set, say: nothing begins anew for that.
    if (resume->count() != 0 && given->options.resume.empty()) {
      throw CLI::ValidationError("--resume", "DIR is empty: give the path of a snapshot");
    }
    if (report->count() != 0 && given->options.report.empty()) {
      throw CLI::ValidationError("--report", "FILE is empty: give the path of the report");
    }
    if (given->options.resume.empty() && run_config->count() == 0) {
      throw CLI::RequiredError("CONFIG (or --resume DIR)");
    }
    given->options.directory = given->directory;
    if (const auto from = given->options.from_batch) {
      given->config.overrides.push_back(fmt::format("from_batch={}", *from));
    }
    result = run(given->config, given->options);
  });
}

}  // namespace ringfeed::cli
