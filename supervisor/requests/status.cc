// What a feed is doing, asked for.
#include "supervisor/metrics/status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "supervisor/feed/feed.h"
#include "supervisor/layout/memory.h"

namespace ringfeed::process {

int Feed::shown_state() const {
  switch (phase_) {
    case Phase::kStarting:
      return StatusReply::STARTING;
    case Phase::kRunning:
      return memory_.batches_published() == 0 ? StatusReply::WARMING : StatusReply::RUNNING;
    case Phase::kDraining:
    case Phase::kStopping:
      return StatusReply::DRAINING;
    case Phase::kLingering:
      return StatusReply::ENDED;
    case Phase::kFailing:
      return StatusReply::FAILED;
  }
  return StatusReply::STARTING;
}

void Feed::fill_status(StatusReply& status) const {
  status.set_feed(run_.config.feed());
  status.set_state(static_cast<StatusReply::State>(shown_state()));
  // Stages that warm up say what they do themselves, see `progress`.
  const std::string waits = waiting_text();
  status.set_reason(reason_.empty() || (phase_ == Phase::kLingering && !waits.empty()) ? waits
                    : waits.empty()                                                    ? reason_
                                    : fmt::format("{}; {}", reason_, waits));
  status.set_uptime_ms(now_ms() - started_ms_);
  status.set_supervisor_pid(static_cast<std::uint32_t>(::getpid()));
  status.set_version(RINGFEED_VERSION);
  status.set_seed(run_.seed);
  status.set_memory_bytes(layout::memory_sum(memory_.layout()));
  status.set_config_file(run_.config_file);
  status.set_socket(run_.socket);
  for (const std::string& problem : problems()) status.add_problems(problem);
  for (const std::string& note : metrics::progress_notes(memory_)) status.add_progress(note);
  std::vector<metrics::GroupFacts> facts;
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    facts.push_back({worker->identity().pid, worker->restarts()});
  }
  metrics::fill_stages(memory_, run_.plan, facts, status);
  metrics::fill_rings(memory_, status);
  for (const std::unique_ptr<Output>& output : outputs_) {
    metrics::fill_output(output->memory, output->groups, schema_of(*output), status);
    metrics::fill_trainers(output->memory, output->groups, output->trainers, status);
  }
}

bool Feed::on_status(control::ConnectionId, const Request&, Reply& reply) {
  fill_status(*reply.mutable_status());
  return true;
}

}  // namespace ringfeed::process
