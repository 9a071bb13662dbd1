// What a feed is doing, asked for.
#include "supervisor/metrics/status.h"

#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "supervisor/feed/feed.h"
#include "supervisor/layout/memory.h"

namespace ringfeed::process {
namespace {

// "SIGKILL"; "": it ended by itself.
std::string signal_label(std::size_t number) {
  if (number == 0) return {};
  const char* const name =
      number == GroupProcess::kUnknownSignal ? nullptr : ::sigabbrev_np(static_cast<int>(number));
  return name == nullptr ? "unknown" : fmt::format("SIG{}", name);
}

void fill_restarts(const GroupProcess& worker, StatusReply& status) {
  const GroupProcess::SignalCounts& counts = worker.restarts_by_signal();
  for (std::size_t signal = 0; signal < counts.size(); ++signal) {
    // The one of a restart that was asked for is there from the beginning, so that a first death
    // is an increase for whoever compares two looks.
    if (counts[signal] == 0 && signal != 0) continue;
    RestartStatus& restart = *status.add_restarts();
    restart.set_group(worker.name());
    restart.set_signal(signal_label(signal));
    restart.set_count(counts[signal]);
  }
}

void fill_memory(const layout::FeedLayout& layout, StatusReply& status) {
  status.set_memory_bytes(layout::memory_sum(layout));
  for (const config::MemoryPart& part : layout::memory_parts(layout)) {
    MemoryStatus& memory = *status.add_memory();
    memory.set_name(part.part);
    memory.set_bytes(part.bytes);
  }
}

}  // namespace

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
  fill_memory(memory_.layout(), status);
  if (run_.config.storage().has_memory_budget_bytes()) {
    status.set_memory_budget_bytes(run_.config.storage().memory_budget_bytes());
  }
  status.set_config_file(run_.config_file);
  status.set_socket(run_.socket);
  if (web_ != nullptr && !web_->address().empty()) status.set_http(web_->address());
  for (const std::string& problem : problems()) status.add_problems(problem);
  for (const std::string& note : metrics::progress_notes(memory_)) status.add_progress(note);
  for (const metrics::Progress& progress : under_way_) {
    if (progress.total != 0 && progress.over()) continue;
    ProgressStatus& out = *status.add_under_way();
    out.set_name(progress.name);
    out.set_text(progress.text);
    if (progress.total != 0) out.set_done(progress.done);
    if (progress.total != 0) out.set_total(progress.total);
    if (progress.left_ms) out.set_left_ms(*progress.left_ms);
  }
  std::vector<metrics::GroupFacts> facts;
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    facts.push_back({worker->identity().pid, worker->restarts()});
    fill_restarts(*worker, status);
  }
  metrics::fill_stages(memory_, run_.plan, facts, status);
  metrics::fill_rings(memory_, status);
  for (const std::unique_ptr<Output>& output : outputs_) {
    metrics::fill_output(output->memory, output->groups, schema_of(*output), status);
    metrics::fill_trainers(output->memory, output->groups, output->trainers, status);
  }
}

bool Feed::on_origin(control::ConnectionId, const Request&, Reply& reply) {
  OriginReply& out = *reply.mutable_origin();
  out.set_config(run_.config.SerializeAsString());
  out.set_worker(run_.worker_binary);
  for (const layout::OutputLayout& output : memory_.layout().outputs) {
    OutputOrigin& origin = *out.add_outputs();
    if (!output.alias.empty()) origin.set_alias(output.alias);
    origin.set_stage(run_.config.stages(static_cast<int>(output.stage)).name());
  }
  return true;
}

bool Feed::on_status(control::ConnectionId, const Request&, Reply& reply) {
  look_at_progress();
  fill_status(*reply.mutable_status());
  return true;
}

}  // namespace ringfeed::process
