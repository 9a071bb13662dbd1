// ringfeed status, stop and clean: verbs about feeds that run, or have run.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/verbs.h"
#include "supervisor/control/client.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/metrics/show.h"

namespace ringfeed::cli {
namespace {

// Between the two looks from which rates are made: long enough for a few batches.
constexpr std::chrono::milliseconds kRateInterval{500};
// The end of a step is waited for, then a start.
constexpr int kRestartMs = 60 * 1000;
// What an earlier change has left is worked off first.
constexpr int kScaleMs = 60 * 1000;
// More than the supervisor gives the stages.
constexpr int kControlMs = 20 * 1000;
// Disks may be slow, and a feed large; whoever is impatient may interrupt it.
constexpr int kSnapshotMs = 24 * 3600 * 1000;

// Keeps the first thing that is wrong with a text.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(std::string& text) : text_(text) {}
  void AddError(int line, int column, const std::string& what) override {
    if (text_.empty()) text_ = fmt::format("{}:{}: {}", line + 1, column + 1, what);
  }

 private:
  std::string& text_;
};

std::vector<std::string> look_in(const std::string& directory) {
  return control::search_directories(directory, control::read_environment());
}

std::string places_text(const std::vector<std::string>& directories) {
  return escaped(fmt::format("{}", fmt::join(directories, " or ")));
}

// For programs. Names of files need not be UTF-8.
std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// A feed whose workers go on without a supervisor.
struct Orphan {
  std::string feed;
  std::string directory;
  control::LockRecord record;

  // "mix (4711), out (4712)"
  [[nodiscard]] std::string workers() const {
    std::vector<std::string> shown;
    for (const auto& [group, worker] : control::living_workers(record)) {
      shown.push_back(fmt::format("{} ({})", escaped(group), worker.pid));
    }
    return fmt::format("{}", fmt::join(shown, ", "));
  }
};

// `says`: which records cannot be read.
std::optional<Orphan> find_orphan(const std::vector<std::string>& directories,
                                  const std::string& feed, bool says = false) {
  for (const std::string& place : directories) {
    Result<std::optional<control::LockRecord>> record =
        control::find_orphan(control::lock_path(place, feed));
    if (!record && says) {
      fmt::print(stderr, "feed {}: {}\n", escaped(feed), escaped(record.error().message()));
    } else if (record && *record) {
      return Orphan{feed, place, std::move(**record)};
    }
  }
  return std::nullopt;
}

std::vector<Orphan> find_orphans(const std::vector<std::string>& directories) {
  std::vector<Orphan> orphans;
  for (const std::string& place : directories) {
    for (const std::string& feed : control::feeds_in(place)) {
      if (std::optional<Orphan> orphan = find_orphan({place}, feed, true)) {
        orphans.push_back(std::move(*orphan));
      }
    }
  }
  return orphans;
}

std::string orphan_text(const Orphan& orphan) {
  return fmt::format(
      "feed {}: orphaned: its supervisor (process {}) is dead, its workers go on: {}\n"
      "  `ringfeed run CONFIG` takes it over, `ringfeed stop {} --now` ends it\n",
      escaped(orphan.feed), orphan.record.supervisor.pid, orphan.workers(), escaped(orphan.feed));
}

std::string orphan_json(const Orphan& orphan) {
  nlohmann::ordered_json out;
  out["feed"] = orphan.feed;
  out["state"] = "ORPHANED";
  out["reason"] = fmt::format("process {}, its supervisor, is dead", orphan.record.supervisor.pid);
  nlohmann::ordered_json& workers = out["workers"] = nlohmann::ordered_json::array();
  for (const auto& [group, worker] : control::living_workers(orphan.record)) {
    workers.push_back({{"group", group}, {"pid", worker.pid}});
  }
  return json_text(out, 2) + "\n";
}

int no_such_feed(const std::vector<std::string>& directories, const std::string& feed) {
  std::vector<std::string> there = control::ControlClient::live_feeds(directories);
  for (const Orphan& orphan : find_orphans(directories)) {
    there.push_back(orphan.feed + " (without a supervisor)");
  }
  fmt::print(stderr, "no feed '{}' runs in {}; {}\n", escaped(feed), places_text(directories),
             there.empty()
                 ? "none runs there"
                 : fmt::format("running: {}", escaped(fmt::format("{}", fmt::join(there, ", ")))));
  return kNoSuchFeed;
}

// Ends an orphaned feed as `clean` does. False: somebody takes it over just now.
bool end_orphan(const Orphan& orphan) {
  Result<control::FeedLock> lock =
      control::FeedLock::take(control::lock_path(orphan.directory, orphan.feed), orphan.feed);
  if (!lock) {
    fmt::print(stderr, "{}\n", escaped(lock.error().message()));
    return false;
  }
  for (const std::string& done : control::clear_remains(lock->left_behind(), &*lock)) {
    fmt::print("feed {}: {}\n", escaped(orphan.feed), escaped(done));
  }
  ::unlink(control::socket_path(orphan.directory, orphan.feed).c_str());
  lock->keep(false);
  lock->remove();
  return true;
}

// Why a dead feed is not to be cleared without being told to; "": it is not worth keeping.
std::string worth_keeping(const control::FeedLock& lock) {
  if (!lock.is_whole()) return lock.is_whole().error().message();
  const control::LockRecord& left = lock.left_behind();
  if (left.over || control::was_another_boot(left)) return {};
  const auto there = std::count_if(left.files.begin(), left.files.end(), [](const auto& file) {
    return ::access(file.c_str(), F_OK) == 0;
  });
  if (there == 0) return {};
  return fmt::format("all its processes have died; `ringfeed run CONFIG` goes on from its {} files",
                     there);
}

// Why the remains of a feed are not cleared.
void say_left(const std::string& feed, const Error& error) {
  fmt::print(stderr, "feed {}: {}\n  left as it is\n", escaped(feed), escaped(error.message()));
}

StatusReply ask_status(control::ControlClient& client, std::uint64_t id) {
  Request request;
  request.set_id(id);
  request.mutable_status();
  Reply reply = client.call(request);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  return reply.status();
}

}  // namespace

int status(const std::string& directory, const std::string& feed, bool json) {
  const std::vector<std::string> directories = look_in(directory);
  std::vector<std::string> feeds{feed};
  std::vector<Orphan> orphans;
  if (feed.empty()) {
    feeds = control::ControlClient::live_feeds(directories);
    orphans = find_orphans(directories);
    if (feeds.empty() && orphans.empty()) {
      fmt::print(stderr, "no feed runs in {}\n", places_text(directories));
      return kNoSuchFeed;
    }
  }
  for (const std::string& name : feeds) {
    std::optional<control::ControlClient> client =
        control::ControlClient::connect(directories, name);
    if (!client) {
      std::optional<Orphan> orphan = find_orphan(directories, name);
      if (!orphan) return no_such_feed(directories, name);
      orphans.push_back(std::move(*orphan));
      continue;
    }
    const StatusReply before = ask_status(*client, 1);
    std::this_thread::sleep_for(kRateInterval);
    const StatusReply now = ask_status(*client, 2);
    fmt::print("{}", json ? ringfeed::metrics::status_json(now, &before)
                          : ringfeed::metrics::show_status(now, &before));
  }
  for (const Orphan& orphan : orphans) {
    fmt::print("{}", json ? orphan_json(orphan) : orphan_text(orphan));
  }
  return orphans.empty() ? kOk : kOrphaned;
}

namespace {

// Asks the feed. The exit status of the program: not kOk if nobody answers.
int ask_metrics(const std::string& directory, const std::string& feed, MetricsReply& metrics) {
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) {
    const std::optional<Orphan> orphan = find_orphan(directories, feed);
    if (!orphan) return no_such_feed(directories, feed);
    fmt::print(stderr, "{}", orphan_text(*orphan));
    return kOrphaned;
  }
  Request request;
  request.set_id(1);
  request.mutable_metrics();
  const Reply reply = client->call(request);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  metrics = reply.metrics();
  return kOk;
}

}  // namespace

int metrics(const std::string& directory, const std::string& feed, bool json) {
  MetricsReply reply;
  if (const int status = ask_metrics(directory, feed, reply); status != kOk) return status;
  fmt::print("{}", json ? ringfeed::metrics::protobuf_json(reply)
                        : ringfeed::metrics::show_metrics(reply));
  return kOk;
}

int why(const std::string& directory, const std::string& feed, bool json) {
  MetricsReply reply;
  if (const int status = ask_metrics(directory, feed, reply); status != kOk) return status;
  if (!json) {
    fmt::print("{}", ringfeed::metrics::show_bottlenecks(reply));
    return kOk;
  }
  MetricsReply only;
  only.set_feed(reply.feed());
  *only.mutable_bottlenecks() = reply.bottlenecks();
  fmt::print("{}", ringfeed::metrics::protobuf_json(only));
  return kOk;
}

int stop(const std::string& directory, const std::string& feed, bool now) {
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) {
    const std::optional<Orphan> orphan = find_orphan(directories, feed);
    if (!orphan) return no_such_feed(directories, feed);
    if (now) return end_orphan(*orphan) ? kOk : kFailure;
    fmt::print(stderr, "{}", orphan_text(*orphan));
    return kOrphaned;
  }
  Request request;
  request.set_id(1);
  request.mutable_stop()->set_now(now);
  const Reply reply = client->call(request);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  fmt::print(stderr, "feed '{}' {}\n", escaped(feed),
             now ? "stops" : "drains: its trainers get what is on its way, then it ends");
  client->wait_for_end();
  return kOk;
}

int restart(const std::string& directory, const std::string& feed, const std::string& group,
            const std::string& binary) {
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) return no_such_feed(directories, feed);
  Request request;
  request.set_id(1);
  request.mutable_restart()->set_group(group);
  if (!binary.empty()) {
    request.mutable_restart()->set_binary(std::filesystem::canonical(binary).string());
  }
  const Reply reply = client->call(request, kRestartMs);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  fmt::print("stage group '{}' is run by process {}\n", escaped(group), reply.restart().pid());
  return kOk;
}

int scale(const std::string& directory, const std::string& feed, const std::string& stage,
          std::uint32_t lanes) {
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) return no_such_feed(directories, feed);
  Request request;
  request.set_id(1);
  request.mutable_scale()->set_stage(stage);
  request.mutable_scale()->set_lanes(lanes);
  const Reply reply = client->call(request, kScaleMs);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, escaped(reply.text()));
  const ScaleReply& done = reply.scale();
  const std::string count = fmt::format("{} lane{}", done.lanes(), done.lanes() == 1 ? "" : "s");
  if (done.before() == done.lanes()) {
    fmt::print("stage '{}' has {} already\n", escaped(stage), count);
  } else {
    fmt::print("stage '{}' has {}, before {}; the feed stood still for {:.1f} ms\n", escaped(stage),
               count, done.before(), static_cast<double>(done.pause_us()) / 1000);
  }
  return kOk;
}

namespace {

// Whether a stage says in its answer that it has not done what it was asked.
bool refuses(const StageControlResponse& response) {
  std::vector<const google::protobuf::FieldDescriptor*> kinds;
  response.GetReflection()->ListFields(response, &kinds);
  return std::any_of(kinds.begin(), kinds.end(), [&](const auto* kind) {
    if (kind->is_repeated() ||
        kind->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      return false;
    }
    const google::protobuf::Message& own = response.GetReflection()->GetMessage(response, kind);
    const auto* const error = own.GetDescriptor()->FindFieldByName("error");
    return error != nullptr && !error->is_repeated() && own.GetReflection()->HasField(own, error);
  });
}

}  // namespace

int control_stages(const std::string& directory, const std::string& feed, const std::string& stage,
                   const std::string& message, bool json) {
  Request request;
  request.set_id(1);
  StageControlCall& call = *request.mutable_stage_control();
  std::string wrong;
  FirstError errors(wrong);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (!parser.ParseFromString(message, call.mutable_request())) {
    fmt::print(stderr, "ringfeed control: the message is no StageControlRequest: {}\n",
               escaped(wrong));
    return kUsage;
  }
  if (!stage.empty()) call.set_stage(stage);
  std::random_device device;
  call.set_key((std::uint64_t{device()} << 32 | device()) | 1);

  // A supervisor that dies meanwhile is followed by the next one, which is asked the same.
  const std::vector<std::string> directories = look_in(directory);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  Reply reply;
  for (bool asked = false;;) {
    std::optional<control::ControlClient> client =
        control::ControlClient::connect(directories, feed);
    if (!client && !asked) return no_such_feed(directories, feed);
    try {
      if (client) {
        asked = true;
        reply = client->call(request, kControlMs);
        break;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kClosed) throw;
    }
    if (std::chrono::steady_clock::now() > end) {
      throw Error(ErrorCode::kClosed,
                  fmt::format("feed '{}' has lost its supervisor, and no other one has taken it "
                              "over: whether the message took effect is not known",
                              feed));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  const auto& given = reply.stage_control().answers();
  const bool refused =
      std::any_of(given.begin(), given.end(),
                  [](const StageControlAnswer& answer) { return refuses(answer.response()); });
  const int result = refused ? kFailure : kOk;
  if (json) {
    nlohmann::json answers = nlohmann::json::object();
    for (const StageControlAnswer& answer : given) {
      std::string text;
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = true;
      static_cast<void>(
          google::protobuf::util::MessageToJsonString(answer.response(), &text, options));
      answers[answer.stage()] = nlohmann::json::parse(text);
    }
    fmt::print("{}\n", answers.dump());
    return result;
  }
  for (const StageControlAnswer& answer : given) {
    fmt::print("{}: {}\n", escaped(answer.stage()), answer.response().ShortDebugString());
  }
  if (given.empty()) fmt::print("no stage has answered\n");
  return result;
}

int take_snapshot(const std::string& directory, const std::string& feed, const std::string& target,
                  bool json) {
  if (target.empty()) {
    fmt::print(
        stderr,
        "ringfeed snapshot: DIR is empty: give the path of a directory that is to be made\n");
    return kUsage;
  }
  std::error_code failed;
  const std::string place = std::filesystem::absolute(target, failed).lexically_normal().string();
  if (failed) {
    throw Error(ErrorCode::kIo, fmt::format("{} is no place for a snapshot: the current directory "
                                            "cannot be found out: {}: give an absolute path",
                                            in_quotes(target), failed.message()));
  }
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) return no_such_feed(directories, feed);
  Request request;
  request.set_id(1);
  request.mutable_snapshot()->set_directory(place);
  const Reply reply = client->call(request, kSnapshotMs);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, escaped(reply.text()));
  const SnapshotReply& taken = reply.snapshot();
  if (json) {
    fmt::print(
        "{{\"directory\": {}, \"bytes\": {}, \"newest_batch\": {}, \"pause_us\": {}, "
        "\"total_ms\": {}}}\n",
        json_text(taken.directory(), -1), taken.bytes(), taken.newest_batch(), taken.pause_us(),
        taken.total_ms());
  } else {
    fmt::print(
        "{}: {:.1f} MiB, up to batch {}; the lanes stood still for {:.1f} ms, it took {} ms\n",
        escaped(taken.directory()), static_cast<double>(taken.bytes()) / (1 << 20),
        taken.newest_batch(), static_cast<double>(taken.pause_us()) / 1000, taken.total_ms());
  }
  return kOk;
}

int clean(const std::string& directory, bool force) {
  const std::vector<std::string> directories = look_in(directory);
  int cleaned = 0;
  int left = 0;
  for (const std::string& place : directories) {
    for (const std::string& feed : control::feeds_in(place)) {
      Result<control::FeedLock> lock =
          control::FeedLock::take(control::lock_path(place, feed), feed);
      if (!lock) {
        // A live supervisor: nothing of his is touched.
        if (lock.error().code() != ErrorCode::kBusy) {
          fmt::print(stderr, "{}\n", escaped(lock.error().message()));
        }
        continue;
      }
      // The directory's other feeds are not this one's business.
      try {
        if (const std::string unseen = lock->lives_unseen(); !unseen.empty()) {
          throw Error(ErrorCode::kBusy, fmt::format("{}: {}", unseen, lock->unseen_remedy()));
        }
      } catch (const Error& error) {
        say_left(feed, error);
        ++left;
        continue;
      }
      if (!force && !control::living_workers(lock->left_behind()).empty()) {
        fmt::print(stderr, "{}  left as it is; `ringfeed clean --force` ends all such feeds\n",
                   orphan_text({feed, place, lock->left_behind()}));
        ++left;
        continue;
      }
      if (const std::string why = force ? "" : worth_keeping(*lock); !why.empty()) {
        fmt::print(stderr,
                   "feed {}: {}\n  left as it is; `ringfeed clean --force` removes what is left of "
                   "all such feeds\n",
                   escaped(feed), escaped(why));
        ++left;
        continue;
      }
      try {
        for (const std::string& done : control::clear_remains(lock->left_behind(), &*lock)) {
          fmt::print("feed {}: {}\n", escaped(feed), escaped(done));
        }
      } catch (const Error& error) {
        say_left(feed, error);
        ++left;
        continue;
      }
      control::remove_unfinished(lock->left_behind());
      if (::unlink(control::socket_path(place, feed).c_str()) == 0) {
        fmt::print("feed {}: removed its socket\n", escaped(feed));
      }
      lock->keep(false);
      lock->remove();
      fmt::print("feed {}: cleaned\n", escaped(feed));
      ++cleaned;
    }
  }
  if (cleaned == 0 && left == 0) {
    fmt::print(stderr, "nothing to clean in {}\n", places_text(directories));
  }
  return kOk;
}

}  // namespace ringfeed::cli
