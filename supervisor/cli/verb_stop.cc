// ringfeed stop and clean: how feeds end.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/cli/waiting.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"

namespace ringfeed::cli {
namespace {

// Ends an orphaned feed as `clean` does, and says what was done, on `out`. False: somebody takes it
// over just now.
bool end_orphan(const Orphan& orphan, std::FILE* out) {
  Result<control::FeedLock> lock =
      control::FeedLock::take(control::lock_path(orphan.directory, orphan.feed), orphan.feed);
  if (!lock) {
    fmt::print(stderr, "{}\n", escaped(lock.error().message()));
    return false;
  }
  for (const std::string& done : control::clear_remains(lock->left_behind(), &*lock)) {
    fmt::print(out, "feed {}: {}\n", escaped(orphan.feed), escaped(done));
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
  return fmt::format(
      "all its processes have died; `ringfeed run CONFIG` continues from its {} files", there);
}

int stop(const std::string& directory, const std::string& feed, bool now, bool json) {
  const auto ended = [&] {
    if (json)
      fmt::print("{}\n", json_text({{"feed", feed}, {"asked", now ? "stop" : "drain"}}, -1));
    return kOk;
  };
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) {
    const std::optional<Orphan> orphan = find_orphan(directories, feed);
    if (!orphan) return no_such_feed(directories, feed);
    if (now) return end_orphan(*orphan, json ? stderr : stdout) ? ended() : kFailure;
    fmt::print(stderr, "ringfeed: {}", orphan_text(*orphan));
    return kOrphaned;
  }
  Request request;
  request.mutable_stop()->set_now(now);
  static_cast<void>(answer_of(*client, request));
  fmt::print(stderr, "feed '{}' {}\n", escaped(feed),
             now ? "stops" : "drains: its trainers get the work in progress, then it ends");
  {
    Waiting waiting(directories, feed, "drain");
    client->wait_for_end(-1, [&waiting] { waiting.look(); });
  }
  // It may have been killed on the way.
  const std::optional<Orphan> orphan = find_orphan(directories, feed);
  if (!orphan) return ended();
  fmt::print(stderr, "ringfeed: {}", orphan_text(*orphan));
  return kOrphaned;
}

// What became of one feed's remains.
struct Cleaned {
  bool cleaned = false;                // false: the remains stay
  std::string why = {};                // they stay
  std::string remedy = {};             // what the user can do about it
  std::vector<std::string> done = {};  // what was removed or ended
};

// Nothing: the feed lives, and nothing of its own is touched.
std::optional<Cleaned> clean_feed(const std::string& place, const std::string& feed, bool force) {
  Result<control::FeedLock> lock = control::FeedLock::take(control::lock_path(place, feed), feed);
  if (!lock && lock.error().code() == ErrorCode::kBusy) return std::nullopt;
  if (!lock) return Cleaned{.why = lock.error().message()};
  Cleaned outcome;
  // The directory's other feeds are not this one's business.
  try {
    if (const std::string unseen = lock->lives_unseen(); !unseen.empty()) {
      outcome.why = unseen;
      outcome.remedy = lock->unseen_remedy();
    } else if (const Orphan orphan{feed, place, lock->left_behind()};
               !force && !control::living_workers(orphan.record).empty()) {
      outcome.why =
          fmt::format("orphaned: its supervisor (process {}) is dead, its workers keep running: {}",
                      orphan.record.supervisor.pid, orphan.workers());
      outcome.remedy = fmt::format(
          "`ringfeed run CONFIG` takes it over, `ringfeed stop {} --now` ends it, `ringfeed clean "
          "--force` ends all such feeds",
          feed);
    } else if (const std::string worth = force ? "" : worth_keeping(*lock); !worth.empty()) {
      outcome.why = worth;
      outcome.remedy = "`ringfeed clean --force` removes the remains of all such feeds";
    } else {
      outcome.done = control::clear_remains(lock->left_behind(), &*lock);
      outcome.cleaned = true;
    }
  } catch (const Error& error) {
    outcome.why = error.message();
  }
  if (!outcome.cleaned) return outcome;
  control::remove_unfinished(lock->left_behind());
  if (::unlink(control::socket_path(place, feed).c_str()) == 0) {
    outcome.done.emplace_back("removed its socket");
  }
  lock->keep(false);
  lock->remove();
  return outcome;
}

void say_outcome(const std::string& feed, const Cleaned& outcome) {
  for (const std::string& done : outcome.done) {
    fmt::print("feed {}: {}\n", escaped(feed), escaped(done));
  }
  if (outcome.cleaned) return fmt::print("feed {}: cleaned\n", escaped(feed));
  fmt::print(stderr, "feed {}: {}\n  left as it is{}{}\n", escaped(feed), escaped(outcome.why),
             outcome.remedy.empty() ? "" : "; ", escaped(outcome.remedy));
}

int clean(const std::string& directory, bool force, bool json) {
  const std::vector<std::string> directories = look_in(directory);
  nlohmann::ordered_json out{{"cleaned", nlohmann::ordered_json::array()},
                             {"left", nlohmann::ordered_json::array()}};
  bool found = false;
  for (const std::string& place : directories) {
    for (const std::string& feed : control::feeds_in(place)) {
      const std::optional<Cleaned> outcome = clean_feed(place, feed, force);
      if (!outcome) continue;
      found = true;
      if (!json) {
        say_outcome(feed, *outcome);
      } else if (outcome->cleaned) {
        out["cleaned"].push_back({{"feed", feed}, {"directory", place}, {"done", outcome->done}});
      } else {
        out["left"].push_back({{"feed", feed},
                               {"directory", place},
                               {"why", outcome->why},
                               {"remedy", outcome->remedy}});
      }
    }
  }
  if (json) {
    fmt::print("{}\n", json_text(out, 2));
  } else if (!found) {
    fmt::print(stderr, "nothing to clean in {}\n", places_text(directories));
  }
  return kOk;
}

}  // namespace

void add_stop(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    bool now = false;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_flag("--now", given->now, "do not drain: batches in progress are lost");
  add_json(verb, given->json);
  verb.footer(
      "To drain it, its sources stop and its trainers get what is on its way.\n"
      "A feed without a supervisor cannot drain: --now ends its workers.\n"
      "Example: ringfeed stop lc0");
  add_directory(verb, given->directory);
  verb.callback(
      [=, &result] { result = stop(given->directory, given->feed, given->now, given->json); });
}

void add_clean(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    bool force = false;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  verb.add_flag("--force", given->force,
                "also end feeds that run without a supervisor and could be taken over");
  add_json(verb, given->json);
  verb.footer("Live feeds are not touched.\nExample: ringfeed clean");
  add_directory(verb, given->directory);
  verb.callback([=, &result] { result = clean(given->directory, given->force, given->json); });
}

}  // namespace ringfeed::cli
