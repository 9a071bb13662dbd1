#include "supervisor/top/asker.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "proto/control.pb.h"
#include "supervisor/control/place.h"
#include "supervisor/control/questions.h"
#include "supervisor/control/silent_feed.h"
#include "supervisor/os/packet.h"

namespace ringfeed::top {
namespace {

using Presence = Heard::Presence;

}  // namespace

// One feed.
class Asker::Link {
 public:
  Link(Asker& asker, std::string feed) : asker_(asker) { heard_.feed = std::move(feed); }
  ~Link() { close(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void ask() {
    if (timer_ != 0) return;
    fresh_ = false;
    begin();
  }
  [[nodiscard]] const Heard& heard() const { return heard_; }

 private:
  void begin() {
    answers_ = {};
    if (!link_ && !connect()) return;
    if (!control::ask_both(link_.get())) return fail("its supervisor takes no questions");
    timer_ = asker_.loop_.after(kAnswerMs, [this] {
      timer_ = 0;
      fresh_ = true;  // a new connection would not be answered either
      fail(fmt::format("its supervisor has not answered within {} s", kAnswerMs / 1000));
    });
  }

  bool connect() {
    fresh_ = true;
    for (const std::string& directory : asker_.directories_) {
      std::optional<Result<shm::Fd>> link =
          control::connected_to(control::socket_path(directory, heard_.feed));
      if (!link) continue;
      if (!*link) {
        say(Presence::kSilent, link->error().message());
        return false;
      }
      link_ = std::move(**link);
      asker_.loop_.watch(link_.get(), [this] { read(); });
      return true;
    }
    nobody_listens();
    return false;
  }

  // Its supervisor is dead, or it has ended.
  void nobody_listens() {
    for (const std::string& directory : asker_.directories_) {
      const std::optional<control::SilentFeed> silent =
          control::find_silent(directory, heard_.feed);
      if (!silent || silent->state == "FAILED" || silent->state == "DEAD") continue;
      return say(silent->state == "ORPHANED" ? Presence::kOrphaned : Presence::kSilent,
                 silent->reason);
    }
    const bool known = heard_.status != nullptr;
    const bool over = known && (heard_.status->state() == StatusReply::ENDED ||
                                heard_.status->state() == StatusReply::FAILED);
    say(Presence::kGone, over && !heard_.status->reason().empty()
                             ? fmt::format("the feed has ended: {}", heard_.status->reason())
                             : std::string(known ? "the feed has ended" : "no such feed runs"));
  }

  void read() {
    while (link_) {
      Result<control::Packet> packet = control::receive_packet(link_.get());
      if (packet && packet->empty) return;
      if (!packet || packet->end) {
        if (timer_ == 0) return close();  // between two questions: the next one finds out
        return fail("its supervisor has closed the connection");
      }
      if (timer_ == 0) continue;
      if (std::optional<std::string> refusal = answers_.take(packet->bytes)) {
        fresh_ = true;
        return fail(std::move(*refusal));
      }
      if (answers_.both()) return take();
    }
  }

  void take() {
    const std::shared_ptr<const StatusReply> last = std::exchange(heard_.status, answers_.status);
    const bool same = last && last->supervisor_pid() == heard_.status->supervisor_pid() &&
                      last->uptime_ms() < heard_.status->uptime_ms();
    heard_.before = same ? last : nullptr;
    heard_.metrics = answers_.metrics;
    heard_.answered_ms = process::now_ms();
    asker_.loop_.cancel(std::exchange(timer_, 0));
    say(Presence::kAnswers, {});
  }

  void fail(std::string why) {
    asker_.loop_.cancel(std::exchange(timer_, 0));
    close();
    // The other end of an old connection may be a supervisor that has a successor.
    if (!fresh_) return begin();
    say(Presence::kSilent, std::move(why));
  }

  void close() {
    if (timer_ != 0) asker_.loop_.cancel(std::exchange(timer_, 0));
    if (link_) asker_.loop_.unwatch(link_.get());
    link_ = shm::Fd();
  }

  void say(Presence presence, std::string trouble) {
    heard_.presence = presence;
    heard_.trouble = std::move(trouble);
    asker_.heard_(heard_);
  }

  Asker& asker_;
  shm::Fd link_;
  process::EventLoop::TimerId timer_ = 0;  // of a question that is under way; 0: none is
  bool fresh_ = false;                     // the connection was made for this question
  control::Answers answers_;
  Heard heard_;
};

Asker::Asker(process::EventLoop& loop, std::vector<std::string> directories,
             std::function<void(const Heard&)> heard)
    : directories_(std::move(directories)), loop_(loop), heard_(std::move(heard)) {}

Asker::~Asker() = default;

void Asker::find(const std::string& kept) {
  std::erase_if(links_, [&](const auto& one) {
    return one.first != kept && one.second->heard().presence == Presence::kGone;
  });
  for (const std::string& directory : directories_) {
    for (const std::string& feed : control::feeds_in(directory)) {
      if (links_.size() >= kFeedsMax) return;
      if (!links_.contains(feed)) links_.emplace(feed, std::make_unique<Link>(*this, feed));
    }
  }
}

void Asker::ask(const std::string& feed) {
  std::unique_ptr<Link>& link = links_[feed];
  if (!link) link = std::make_unique<Link>(*this, feed);
  link->ask();
}

const Heard* Asker::of(const std::string& feed) const {
  const auto found = links_.find(feed);
  return found == links_.end() ? nullptr : &found->second->heard();
}

std::vector<const Heard*> Asker::all() const {
  std::vector<const Heard*> found;
  for (const auto& [name, link] : links_) found.push_back(&link->heard());
  return found;
}

}  // namespace ringfeed::top
