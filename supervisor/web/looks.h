// What the feeds of some directories say of themselves: asked when somebody wants to know, not more
// often than once a second, and once for all who ask.
//
// A supervisor that does not answer holds nobody up: it is given kAnswerMs, and its feed is then
// one that does not answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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
  std::shared_ptr<const StatusReply> status;    // null: see `error`
  std::shared_ptr<const StatusReply> before;    // an earlier one, for rates; may be null
  std::shared_ptr<const MetricsReply> metrics;  // null: see `error`
  std::string error;
  bool orphaned = false;  // its workers go on without a supervisor
};
using LooksAtAll = std::shared_ptr<const std::vector<Look>>;  // by name

class Looks {
 public:
  static constexpr std::uint64_t kFreshMs = 900;
  static constexpr std::uint64_t kAnswerMs = 2'000;

  Looks(boost::asio::io_context& loop, std::vector<std::string> directories);
  ~Looks();
  Looks(const Looks&) = delete;
  Looks& operator=(const Looks&) = delete;

  // Calls back with what is known, which is no older than kFreshMs: at once, or when all have
  // answered.
  void ask(std::function<void(const LooksAtAll&)> then);

 private:
  class Feed;
  class Round;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ringfeed::web
