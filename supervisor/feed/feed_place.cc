// The feed's place in its directory, which may vanish, be covered, full or read-only while the feed
// runs: it goes on, and what it has there is made again when that can be done.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <filesystem>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/control/place.h"
#include "supervisor/feed/feed.h"

namespace ringfeed::process {
namespace {

// Looked at this often: two names in a directory.
constexpr std::uint64_t kPlaceMs = 500;

}  // namespace

void Feed::keep_place() {
  const Status there = restore_place();
  note_problem("place", there ? std::string()
                              : fmt::format("new trainers cannot find the feed at {}: {}",
                                            run_.socket, there.error().message()));
  if (record_due_) record_workers();
  loop_.after(kPlaceMs, [this] { keep_place(); });
}

// Who takes over this feed is decided by the lock on its memory, so that two supervisors that have
// both found their name free, in two directories of it, never run the same one.
Status Feed::restore_place() {
  if (lock_.in_place() && server_->in_place()) return {};
  const std::string& feed = run_.config.feed();
  try {
    control::prepare_directory(std::filesystem::path(run_.socket).parent_path().string(), feed);
  } catch (const Error& error) {
    return error;
  }
  if (!lock_.in_place()) {
    const shm::FeedId& id = memory_.identity().feed_id;
    const std::string feed_id(reinterpret_cast<const char*>(id.data()), id.size());
    if (const Status taken = lock_.take_again(feed, feed_id); !taken) return taken;
  }
  if (const Status listens = server_->listen_again(); !listens) return listens;
  event(metrics::Level::kWarn, "place_restored", "socket=" + log_value(run_.socket));
  record_workers();
  return {};
}

void Feed::keep_web() {
  if (!run_.config.has_http()) return;
  if (web_ == nullptr) {
    WebProcess::Hooks hooks;
    hooks.on_line = [this](std::string_view line) {
      talk_.line({.process = "ringfeed-web"}, line);
    };
    hooks.on_event = [this](std::string_view level, std::string_view name,
                            const std::string& values) {
      event(metrics::level_named(level), name, values);
    };
    hooks.on_problem = [this](const std::string& text) { note_problem("http", text); };
    web_ = std::make_unique<WebProcess>(loop_, run_.config.http(),
                                        std::filesystem::path(run_.socket).parent_path().string(),
                                        std::move(hooks));
  }
  web_->look_after();
}

// Said when it begins, at powers of two, and when it is over.
void Feed::note_problem(const std::string& what, const std::string& text) {
  const auto known = problems_.find(what);
  if (text.empty()) {
    if (known == problems_.end()) return;
    event(metrics::Level::kInfo, "problem_over",
          fmt::format("of={} times={}", what, known->second.times));
    problems_.erase(known);
    return;
  }
  Problem& problem = problems_[what];
  problem.text = text;
  if (!std::has_single_bit(++problem.times)) return;
  event(metrics::Level::kWarn, "problem",
        fmt::format("of={} times={} what={}", what, problem.times, in_quotes(text)));
}

std::vector<std::string> Feed::problems() const {
  std::vector<std::string> found = talk_.problems();
  for (const auto& [what, problem] : problems_) found.push_back(problem.text);
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    const std::string starved = worker->starvation();
    if (!starved.empty()) found.push_back(starved);
    const std::string late = worker->late_start();
    if (!late.empty()) found.push_back(late);
  }
  for (const std::unique_ptr<GivenParent>& parent : given_parents_) {
    std::vector<std::string> groups;
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      const layout::GroupPlan& group = memory_.layout().groups[worker->group()];
      if (worker->awaits_parent() && group.parent_socket == parent->path()) {
        groups.push_back(worker->name());
      }
    }
    if (groups.empty()) continue;
    found.push_back(fmt::format("stage group {} waits for the warm parent at {}: {}",
                                fmt::join(groups, ", "), parent->path(),
                                parent->why().empty() ? "it is being asked" : parent->why()));
  }
  return found;
}

}  // namespace ringfeed::process
