// ringfeed stop and clean: how feeds end.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"

namespace ringfeed::cli {
namespace {

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
  return fmt::format(
      "all its processes have died; `ringfeed run CONFIG` continues from its {} files", there);
}

// Why the remains of a feed are not cleared.
void say_left(const std::string& feed, const Error& error) {
  fmt::print(stderr, "feed {}: {}\n  left as it is\n", escaped(feed), escaped(error.message()));
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
             now ? "stops" : "drains: its trainers get the work in progress, then it ends");
  client->wait_for_end();
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
        // A live supervisor: nothing of its own is touched.
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
                   "feed {}: {}\n  left as it is; `ringfeed clean --force` removes the remains of "
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

}  // namespace

void add_stop(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    bool now = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_flag("--now", given->now, "do not drain: batches in progress are lost");
  verb.footer(
      "A feed without a supervisor cannot drain: --now ends its workers.\n"
      "Example: ringfeed stop lc0");
  add_directory(verb, given->directory);
  verb.callback([=, &result] { result = stop(given->directory, given->feed, given->now); });
}

void add_clean(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    bool force = false;
  };
  const auto given = std::make_shared<Given>();
  verb.add_flag("--force", given->force,
                "also end feeds that run without a supervisor and could be taken over");
  verb.footer("Live feeds are not touched.\nExample: ringfeed clean");
  add_directory(verb, given->directory);
  verb.callback([=, &result] { result = clean(given->directory, given->force); });
}

}  // namespace ringfeed::cli
