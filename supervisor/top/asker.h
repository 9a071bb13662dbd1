// Asks supervisors what their feeds do, and never waits: whoever has the loop answers keys
// meanwhile.
//
// A feed is asked over a connection that stays; a supervisor that was replaced is asked anew. One
// that does not answer within kAnswerMs has its feed called silent until it does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "supervisor/os/event_loop.h"

namespace ringfeed {
class MetricsReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::top {

// What is known of a feed.
struct Heard {
  enum class Presence {
    kAsked,     // nothing is known yet
    kAnswers,   // its supervisor has answered the last question
    kSilent,    // there is one that does not answer, or cannot be reached
    kOrphaned,  // its supervisor is dead, its workers go on
    kGone,      // there is no such feed (any more)
  };
  std::string feed = {};
  Presence presence = Presence::kAsked;
  std::string trouble = {};                               // of all but kAnswers: one sentence
  std::shared_ptr<const StatusReply> status = nullptr;    // the last one; null: none yet
  std::shared_ptr<const StatusReply> before = nullptr;    // an earlier one of that supervisor
  std::shared_ptr<const MetricsReply> metrics = nullptr;  // beside `status`
  std::uint64_t answered_ms = 0;                          // when that came (process::now_ms)
};

class Asker {
 public:
  static constexpr std::uint64_t kAnswerMs = 2'000;
  static constexpr std::size_t kFeedsMax = 256;

  // `heard` is called with every feed that has answered, or has not in time.
  Asker(process::EventLoop& loop, std::vector<std::string> directories,
        std::function<void(const Heard&)> heard);
  ~Asker();
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  // Which feeds are there: names of files alone, nobody is asked. Those that have ended since are
  // forgotten, but for `kept`.
  void find(const std::string& kept);
  // Asks this feed, unless a question to it is under way.
  void ask(const std::string& feed);
  // Everything known, by name. A feed is in it once find() has seen it or ask() has named it.
  [[nodiscard]] const Heard* of(const std::string& feed) const;
  [[nodiscard]] std::vector<const Heard*> all() const;

 private:
  class Link;
  std::vector<std::string> directories_;
  process::EventLoop& loop_;
  std::function<void(const Heard&)> heard_;
  std::map<std::string, std::unique_ptr<Link>> links_;
};

}  // namespace ringfeed::top
