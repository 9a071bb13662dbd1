// What the feeds of some directories say of themselves: asked when somebody wants to know, not more
// often than once a second, and once for all who ask.
//
// A supervisor that does not answer holds nobody up: it is given kAnswerMs, and its feed is then
// one that does not answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace ringfeed {
class MetricsReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::web {

struct Look {
  std::string feed;
  std::int64_t pid = 0;  // of its supervisor, as the kernel says it; 0: it does not
  std::shared_ptr<const StatusReply> status;    // null: see `error`
  std::shared_ptr<const StatusReply> before;    // an earlier one, for rates; may be null
  std::shared_ptr<const MetricsReply> metrics;  // null: see `error`
  std::string error;
  // Of a feed without a supervisor: "ORPHANED": its workers go on; "FAILED"; "DEAD": all its
  // processes have died. "": it has one.
  std::string ended = {};
};
using LooksAtAll = std::shared_ptr<const std::vector<Look>>;  // by name

class Looks {
 public:
  static constexpr std::uint64_t kFreshMs = 900;
  static constexpr std::uint64_t kAnswerMs = 2'000;

  static constexpr std::size_t kFeedsMax = 64;  // of one page

  Looks(boost::asio::io_context& loop, std::vector<std::string> directories,
        std::size_t feeds_max = kFeedsMax);
  ~Looks();
  Looks(const Looks&) = delete;
  Looks& operator=(const Looks&) = delete;

  // Calls back with what is known, which is no older than kFreshMs: at once, or when all have
  // answered. Null: there was no memory to ask them.
  void ask(std::function<void(const LooksAtAll&)> then);

 private:
  class Feed;
  class Round;
  struct State;
  std::shared_ptr<State> state_;
};

// The feeds of a directory that have a supervisor, all of them, asked this once. It takes no longer
// than Looks::kAnswerMs.
[[nodiscard]] std::vector<Look> look_once(const std::string& directory);

}  // namespace ringfeed::web
