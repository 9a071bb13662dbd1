// The report of a run: one HTML file that needs nothing beside it, no script and no host, and that
// a person would send to a colleague.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/report/account.h"

namespace ringfeed {
class CounterStatus;
class MetricsReply;
class PipelinePlan;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::report {

enum class End { kEnded, kDrained, kStopped, kFailed };

// The machine that it ran on.
struct Machine {
  std::string host;
  std::string system;     // "Linux 6.1.0 x86_64"
  std::string processor;  // "" : not known
  double cores = 0;       // that the feed might use
  std::uint64_t memory_bytes = 0;
};
[[nodiscard]] Machine this_machine(double cores);

struct Facts {
  const Account& account;
  const StatusReply& status;    // at the end
  const MetricsReply& metrics;  // totals
  const PipelinePlan& plan;
  End end = End::kEnded;
  std::string reason = {};
  std::int64_t feed_began_s = 0;  // seconds since 1970: when its memory was made
  std::int64_t ended_s = 0;
  double seconds = 0;              // of this supervisor
  bool adopted = false;            // an earlier one began the feed
  std::string resumed_from = {};   // a snapshot
  std::string configuration = {};  // as text
  std::string memory = {};         // a table, as text
  std::string feed_id = {};
  std::string worker = {};  // path
  std::string version = {};
  std::string abi = {};
  Machine machine = {};
};

[[nodiscard]] std::string page(const Facts& facts);

// Counters that tell of data that was left out, and are not 0.
struct Loss {
  int stage = 0;
  const CounterStatus* counter = nullptr;
};
[[nodiscard]] std::vector<Loss> losses(const Facts& facts);

// Parts of it.
[[nodiscard]] std::string headline(const Facts& facts);
[[nodiscard]] std::string limits_part(const Facts& facts);
[[nodiscard]] std::string delivered_part(const Facts& facts);
[[nodiscard]] std::string epochs_part(const Facts& facts);
[[nodiscard]] std::string sources_part(const Facts& facts);
[[nodiscard]] std::string skips_part(const Facts& facts);
[[nodiscard]] std::string stages_part(const Facts& facts);
[[nodiscard]] std::string timeline_part(const Facts& facts);

}  // namespace ringfeed::report
