// For which trainers an output waits, in words: for those who wait, for `ringfeed status` and the
// log, and for the trainer itself when it goes on.
//
// Whoever has waited for a batch for some seconds asks (WaitRequest). The first to ask, and each
// minute somebody who does, writes a line to the log; so does the end of the wait. The trainer that
// was waited for asks when it comes back, and hears how long it held the others up.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/control/consumer_groups.h"

namespace ringfeed {
class AwaitedTrainer;
class WaitReply;
}  // namespace ringfeed

namespace ringfeed::control {

// Who a member is; process 0: nobody is there.
struct TrainerFacts {
  process::Identity who;
  std::string client;
};

class Waits {
 public:
  using FactsOf = std::function<TrainerFacts(const MemberPlace&)>;
  // What happens, for the log: "group_holds_up", "group=b member=0 pid=7 …"; with it whether that
  // is a trouble or the end of one.
  using Report =
      std::function<void(bool trouble, std::string_view event, const std::string& values)>;

  Waits(const layout::OutputMemory& memory, const ConsumerGroups& groups, FactsOf facts,
        Report report);

  // A member has waited so long for a batch: for whom? It is not told of itself.
  void ask(const MemberPlace& asker, std::uint64_t waited_ms, std::uint64_t now_ms,
           WaitReply& reply);
  // A member comes back after a pause: who has waited for it?
  void come_back(const MemberPlace& member, std::uint64_t now_ms, WaitReply& reply);
  // To be called from time to time: notes who goes on.
  void look(std::uint64_t now_ms);

  // "the feed waits for group 'eval': 2 batches behind, 1 member attached: member 0 (process 7: …)
  // …"; nullopt: for none.
  [[nodiscard]] std::optional<std::string> text(std::uint64_t now_ms) const;
  // Those of them that have done nothing for so long: "; group 'eval': member 0 …" for each.
  [[nodiscard]] std::string idle(std::uint64_t now_ms, std::uint64_t idle_ms_min) const;

 private:
  struct Held {
    std::uint64_t since_ms = 0;
    std::uint64_t logged_ms = 0;
    std::uint64_t over_ms = 0;     // it has gone on; 0: not yet
    std::set<std::string> askers;  // at most kAskersMax of them
  };
  [[nodiscard]] AwaitedTrainer describe(const Awaited& awaited, std::uint64_t now_ms) const;
  [[nodiscard]] std::string nobody_text(std::uint32_t group, std::uint64_t now_ms) const;
  [[nodiscard]] std::string name_of(const MemberPlace& place) const;
  [[nodiscard]] std::string values_of(const Awaited& awaited) const;

  layout::OutputMemory memory_;
  const ConsumerGroups& groups_;
  FactsOf facts_;
  Report report_;
  std::map<Awaited, Held> held_;  // those that somebody has asked about, until they have been told
};

}  // namespace ringfeed::control
