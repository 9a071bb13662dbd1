// ringfeed run and ringfeed check.
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
#include "supervisor/cli/verb.h"
#include "supervisor/config/explain.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/feed/feed.h"
#include "supervisor/layout/memory.h"
#include "supervisor/os/identity.h"
#include "supervisor/os/reserve.h"
#include "supervisor/os/signals.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed::cli {
namespace {

struct RunOptions {
  std::string directory = {};  // of the control socket; empty: as the configuration says, else by
                               // the rule of control/place.h
  bool fresh = false;          // does not take over what an earlier run has left, but ends it
  std::string resume = {};     // a snapshot to go on from; then the configuration may be left out
  int owner = -1;              // a pidfd: the feed is this process's own, and ends with it
};

std::uint64_t drawn_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    throw Error(ErrorCode::kIo, "the system gives no random number for a seed: set seed");
  }
  return seed;
}

// What workers do that cannot be seen from here cannot be known, only that they live. A new
// beginning leaves those of another namespace to end by themselves, as its record says where they
// are.
void refuse_unseen(const control::FeedLock& lock, const std::string& feed, bool fresh) {
  const std::string unseen = lock.lives_unseen();
  if (unseen.empty()) return;
  if (!lock.is_elsewhere()) {
    throw Error(ErrorCode::kBusy,
                fmt::format("feed '{}' cannot be {} from here: {}: {}", feed,
                            fresh ? "begun anew" : "taken over", unseen, lock.unseen_remedy()));
  }
  if (fresh) return;
  throw Error(ErrorCode::kBusy,
              fmt::format("feed '{}' cannot be taken over from here: {}: {}, or begin anew with "
                          "--fresh, which leaves them to end by themselves",
                          feed, unseen, lock.unseen_remedy()));
}

// The process whose own the feed is, if there is one. With its death goes what it would have
// removed at the feed's end: the configuration's file, the log beside that, and the directory, if
// nothing else is in it. Made before all that writes there, so that it goes last.
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
                  fmt::format("--owner-fd {}: this is no pidfd of a process", pidfd));
    }
    config_file_ = std::filesystem::absolute(config_file);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (!pidfd_ || !process::has_ended(pidfd_.get())) return;
    std::error_code ignored;
    std::filesystem::remove(config_file_, ignored);
    std::filesystem::remove(config_file_.parent_path() / "supervisor.log", ignored);
    std::filesystem::remove(config_file_.parent_path(), ignored);
  }
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }

 private:
  shm::Fd pidfd_;
  std::filesystem::path config_file_;
};

int check(const ConfigArguments& arguments) {
  const std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const std::vector<config::MemoryPart> parts = layout::memory_parts(prepared->layout);
  fmt::print("{}", config::explain(prepared->configuration.message(), *prepared->plan,
                                   prepared->wiring, prepared->groups, parts));
  layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
  return kOk;
}

int check_part(const ConfigArguments& arguments) {
  config::Configuration part = config::read_config(arguments.file, arguments.overrides);
  if (const std::vector<config::Problem> problems = config::check_part(part); !problems.empty()) {
    fmt::print(stderr, "{}", config::problem_report(problems));
    return kInvalidConfiguration;
  }
  part.message().clear_feed();
  std::string text;
  google::protobuf::TextFormat::PrintToString(part.message(), &text);
  fmt::print("{}", text);
  return kOk;
}

int run(const ConfigArguments& given, const RunOptions& options) {
  process::hold_warnings();
  process::load_unwinder();
  process::load_messages();
  const Owner owner(options.owner, given.file);
  ConfigArguments arguments = given;
  SnapshotManifest saved;
  std::string snapshot;  // where to go on from
  if (!options.resume.empty()) {
    snapshot = std::filesystem::absolute(options.resume).lexically_normal().string();
    snapshot::read_manifest(snapshot, saved).or_throw();
    if (arguments.file.empty()) {
      google::protobuf::TextFormat::PrintToString(saved.config(), &arguments.text);
      arguments.file = snapshot + "/" + snapshot::kManifestFile;
    }
  }
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
  metrics::Talk talk(metrics::level_named(LogConfig::Level_Name(message.log().level())),
                     message.log().file());
  const auto warn = [&](std::string_view event, std::string_view what) {
    talk.event(metrics::Level::kWarn, event, fmt::format("feed={} what={}", feed, in_quotes(what)));
  };
  const control::LockRecord& left = lock.left_behind();
  // `asks`: whether all have ended; not any more when workers of this feed keep the lock.
  const auto clear = [&](bool asks) {
    for (const std::string& done : control::clear_remains(left, asks ? &lock : nullptr)) {
      warn("remains_cleared", done);
    }
  };
  int status = kFailure;
  bool noted = false;  // files are being made, and the record says so
  try {
    // From here on whatever is left stays until what replaces it stands, unless --fresh ends it.
    std::optional<layout::FoundMemory> found;
    std::uint64_t seed = left.seed;
    bool ended = options.fresh;
    if (!options.fresh) lock.is_whole().or_throw();
    refuse_unseen(lock, feed, options.fresh);
    if (!options.fresh) {
      if (!options.resume.empty() && anything_lives(left)) {
        throw Error(ErrorCode::kBusy,
                    fmt::format("feed '{}' goes on without a supervisor: take it over with "
                                "'ringfeed run' without --resume, or end it with --fresh as well",
                                feed));
      }
      if (options.resume.empty()) {
        const std::string differs = left_unlike(left, message);
        if (!differs.empty()) {
          fmt::print(stderr,
                     "feed '{}' goes on without a supervisor, and its configuration is another "
                     "one:\n{}give it the configuration that it has, or end it and start anew with "
                     "--fresh\n",
                     feed, escaped_lines(differs));
          lock.remove();
          return kInvalidConfiguration;
        }
        Left looked = look_for_feed(left, *prepared);
        found = std::move(looked.memory);
        ended = looked.ended;
        if (!found && !ended && !looked.gone.empty()) warn("feed_gone", looked.gone);
        if (!found && !left.snapshot.empty()) {
          const Status readable = snapshot::read_manifest(left.snapshot, saved);
          if (!readable) {
            throw Error(readable.error().code(),
                        fmt::format("feed '{}' has died with all its processes, and its newest "
                                    "snapshot cannot be used: {}: put it back, go on from another "
                                    "one with --resume DIR, or start anew with --fresh",
                                    feed, readable.error().message()));
          }
          snapshot = left.snapshot;
        }
      }
    }
    if (!snapshot.empty()) {
      const std::string differs = saved_unlike(saved, message);
      if (!differs.empty()) {
        fmt::print(
            stderr,
            "snapshot {} was taken with another configuration:\n{}give it that one (it is in "
            "{}), or start anew with --fresh\n",
            escaped(snapshot), escaped_lines(differs), snapshot::kManifestFile);
        lock.remove();
        return kInvalidConfiguration;
      }
    }
    control::remove_unfinished(left);
    const bool adopts = found.has_value();
    if (options.fresh || (!adopts && snapshot.empty())) {
      if (options.fresh || ended) clear(true);
      lock.keep(false);
    }
    shm::Storage storage{message.storage().directory()};
    if (!adopts && !storage.directory.empty()) {
      // Written down first: should this process die meanwhile, the next one knows what to remove.
      storage.mark = layout::draw_file_mark();
      control::LockRecord making = lock.keeps() ? left : control::LockRecord();
      making.making_mark = storage.mark;
      making.making_directory = storage.directory;
      lock.write(making).or_throw();
      noted = true;
    }
    if (!snapshot.empty()) {
      found = load_snapshot(snapshot, saved, *prepared, storage).value_or_throw();
      seed = saved.seed();
      talk.say(fmt::format("feed {} goes on from the snapshot of {}, with batch {}", feed,
                           escaped(saved.taken_at()), saved.newest_batch() + 1));
    } else if (!adopts) {
      layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
    }
    talk.say(fmt::format("feed {} takes\n{}", feed, layout::memory_table(prepared->layout)));
    const process::FeedRun feed_run{
        .config = message,
        .plan = *prepared->plan,
        .seed = message.has_seed() ? message.seed()
                : found            ? seed
                                   : drawn_seed(),
        .config_file = arguments.file == "-" ? arguments.file
                                             : std::filesystem::absolute(arguments.file).string(),
        .worker_binary = prepared->worker_binary,
        .socket = control::socket_path(directory, feed),
        .recorded_groups = formed_groups(*prepared).SerializeAsString(),
        .recorded_config = message.SerializeAsString(),
        .dead_letters = control::dead_letter_directory(message.restart().dead_letters(), feed,
                                                       control::read_environment()),
        .resumed_from = snapshot,
        .file_mark = storage.mark,
        .on_recorded =
            [&] {
              noted = false;
              if (!adopts && !options.fresh) clear(false);
            },
        .owner = owner.pidfd(),
    };
    process::Feed supervisor(feed_run, std::move(prepared->layout), lock, talk, std::move(found));
    status = supervisor.run();
    lock.keep(false);
    // Here already: the name is free, also if a disk that hangs holds this process.
    lock.remove();
  } catch (...) {
    if (noted && lock.keeps()) static_cast<void>(lock.write(left));
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
                "start anew, also where a feed of this name could be taken over");
  CLI::Option* const resume =
      verb.add_option("--resume", given->options.resume,
                      "go on from this snapshot; CONFIG may be left out then")
          ->type_name("DIR");
  verb.add_option("--owner-fd", given->options.owner,
                  "for programs: an open pidfd. The feed is that process's own: it stops when the "
                  "process has ended, and CONFIG goes with it")
      ->type_name("FD")
      ->check(CLI::NonNegativeNumber);
  verb.footer(
      "The first SIGTERM or Ctrl-C drains the feed, the second stops it.\n"
      "A feed whose supervisor was killed is taken over: stages and trainers go on where they "
      "are.\n"
      "Relative paths in a configuration count from the directory in which this is started.\n"
      "Example: ringfeed run lc0.textproto --set stages.pool.chunk_pool_size=20000");
  verb.callback([=, &result] {
    // The variable of a script that is not set, say: nothing begins anew for that.
    if (resume->count() != 0 && given->options.resume.empty()) {
      throw CLI::ValidationError("--resume", "DIR is empty: give the path of a snapshot");
    }
    if (given->options.resume.empty() && run_config->count() == 0) {
      throw CLI::RequiredError("CONFIG (or --resume DIR)");
    }
    given->options.directory = given->directory;
    result = run(given->config, given->options);
  });
}

void add_check(CLI::App& verb, int& result) {
  struct Given {
    ConfigArguments config;
    bool part = false;
  };
  const auto given = std::make_shared<Given>();
  add_config(verb, given->config)->required();
  verb.add_flag("--part", given->part,
                "for programs: CONFIG is a part whose other stages follow, and is printed "
                "in text format");
  verb.footer("Example: ringfeed check lc0.textproto");
  verb.callback(
      [=, &result] { result = given->part ? check_part(given->config) : check(given->config); });
}

}  // namespace ringfeed::cli
