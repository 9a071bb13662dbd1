// Stages that get more or fewer lanes while the feed runs: because somebody asks for it, or because
// the feed was taken over with a configuration that says another number.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/feed/feed.h"

namespace ringfeed::process {
namespace {

// Whoever asks waits so long for what an earlier change has left.
constexpr std::uint64_t kPatienceMs = 10'000;

}  // namespace

std::string Feed::stage_name(std::uint32_t stage) const {
  return run_.config.stages(static_cast<int>(stage)).name();
}

bool Feed::on_scale(control::ConnectionId connection, const Request& request, Reply& reply) {
  const ScaleRequest& asked = request.scale();
  const auto refuse = [&](Reply::ErrorCode code, std::string text) {
    reply.set_error(code);
    reply.set_text(std::move(text));
    return true;
  };
  std::vector<std::string> names;
  for (const StageConfig& stage : run_.config.stages()) names.push_back(stage.name());
  const auto stage = std::find(names.begin(), names.end(), asked.stage());
  if (stage == names.end()) {
    return refuse(Reply::BAD_REQUEST, fmt::format("there is no stage '{}': the stages are {}",
                                                  asked.stage(), fmt::join(names, ", ")));
  }
  std::uint32_t node = 0;
  const std::string wrong =
      cannot_scale(memory_, static_cast<std::uint32_t>(stage - names.begin()), asked.lanes(), node);
  if (!wrong.empty()) {
    return refuse(Reply::BAD_REQUEST, fmt::format("stage '{}': {}", asked.stage(), wrong));
  }
  if (phase_ != Phase::kStarting && phase_ != Phase::kRunning) {
    return refuse(Reply::FEED_ENDING, fmt::format("feed '{}' is ending", run_.config.feed()));
  }
  if (takes_snapshot() || scale_) {
    return refuse(Reply::INTERNAL,
                  fmt::format("feed '{}' is {}: try again", run_.config.feed(),
                              takes_snapshot() ? "taking a snapshot" : "being scaled"));
  }
  const std::uint32_t lanes = memory_.node_lanes(node).now;
  if (lanes == asked.lanes()) {
    reply.mutable_scale()->set_before(lanes);
    reply.mutable_scale()->set_lanes(lanes);
    return true;
  }
  scale(node, asked.lanes(), kPatienceMs);
  scale_asker_ = {connection, request.id()};
  return false;
}

void Feed::scale(std::uint32_t node, std::uint32_t lanes, std::uint64_t patience_ms) {
  ScaleTask::Hooks hooks;
  hooks.park = [this](std::uint64_t ticket) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->park(ticket);
  };
  hooks.done = [this](const Result<ScaleTask::Facts>& result) { scale_done(result); };
  scale_ = std::make_unique<ScaleTask>(loop_, memory_, node, lanes, patience_ms, std::move(hooks));
}

void Feed::scale_done(const Result<ScaleTask::Facts>& result) noexcept {
  // It is over, whatever can be said about it.
  const std::unique_ptr<ScaleTask> task = std::move(scale_);
  const auto asker = std::exchange(scale_asker_, {});
  const std::uint32_t node = task->node();
  if (asker) {
    or_refuse(asker->first, asker->second, [&] {
      Reply reply;
      reply.set_id(asker->second);
      if (result) {
        reply.mutable_scale()->set_before(result->before);
        reply.mutable_scale()->set_lanes(result->now);
        reply.mutable_scale()->set_pause_us(result->pause_us);
      } else {
        reply.set_error(Reply::INTERNAL);
        reply.set_text(fmt::format("stage '{}': {}", stage_name(memory_.layout().nodes[node].stage),
                                   result.error().message()));
      }
      server_->send(asker->first, reply);
    });
  }
  try {
    report_scale(node, result, asker.has_value());
  } catch (const std::exception& error) {
    survive(error);
  }
}

void Feed::report_scale(std::uint32_t node, const Result<ScaleTask::Facts>& result, bool asked) {
  const std::string stage = stage_name(memory_.layout().nodes[node].stage);
  if (result) {
    event(metrics::Level::kInfo, "stage_scaled",
          fmt::format("stage={} lanes={} before={} from_unit={} pause_us={}", stage, result->now,
                      result->before, result->from, result->pause_us));
  } else if (result.error().code() == ErrorCode::kBusy && !asked) {
    to_scale_.push_back(node);  // later
  } else {
    event(metrics::Level::kWarn, "stage_not_scaled",
          fmt::format("stage={} reason={}", stage, in_quotes(result.error().message())));
  }
}

void Feed::give_up_scale(const std::string& why) {
  if (scale_) scale_done(Error(ErrorCode::kClosed, why));
}

// What was taken over has the lanes that it had; the configuration says how many there should be.
void Feed::follow_configuration() {
  if (phase_ != Phase::kRunning || takes_snapshot() || scale_) return;
  while (!to_scale_.empty()) {
    const std::uint32_t node = to_scale_.back();
    to_scale_.pop_back();
    const layout::NodeLayout& laid_out = memory_.layout().nodes[node];
    if (memory_.node_lanes(node).now == laid_out.lanes) continue;
    std::uint32_t found = 0;
    const std::string wrong = cannot_scale(memory_, laid_out.stage, laid_out.lanes, found);
    if (wrong.empty()) return scale(node, laid_out.lanes, 0);
    event(metrics::Level::kWarn, "stage_not_scaled",
          fmt::format("stage={} reason={}", stage_name(laid_out.stage), in_quotes(wrong)));
  }
}

}  // namespace ringfeed::process
