#include "supervisor/feed/scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"

namespace ringfeed::process {
namespace {

// Whoever asks waits so long for what an earlier change has left.
constexpr std::uint64_t kPatienceMs = 10'000;

}  // namespace

Scaling::Scaling(EventLoop& loop, const layout::FeedMemory& memory, const DataLoaderConfig& config,
                 const Answers& answers, Hooks hooks)
    : loop_(loop), memory_(memory), config_(config), answers_(answers), hooks_(std::move(hooks)) {}

std::string Scaling::stage_name(std::uint32_t stage) const {
  return config_.stages(static_cast<int>(stage)).name();
}

bool Scaling::take(control::ConnectionId connection, const Request& request, Reply& reply,
                   const Moment& moment) {
  const ScaleRequest& asked = request.scale();
  const auto refuse = [&](Reply::ErrorCode code, std::string text) {
    reply.set_error(code);
    reply.set_text(std::move(text));
    return true;
  };
  std::vector<std::string> names;
  for (const StageConfig& stage : config_.stages()) names.push_back(stage.name());
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
  if (moment.ending) {
    return refuse(Reply::FEED_ENDING, fmt::format("feed '{}' is ending", config_.feed()));
  }
  if (moment.takes_snapshot || under_way()) {
    return refuse(Reply::INTERNAL,
                  fmt::format("feed '{}' is {}: try again", config_.feed(),
                              moment.takes_snapshot ? "taking a snapshot" : "being scaled"));
  }
  const std::uint32_t lanes = memory_.node_lanes(node).now;
  if (lanes == asked.lanes()) {
    reply.mutable_scale()->set_before(lanes);
    reply.mutable_scale()->set_lanes(lanes);
    return true;
  }
  scale(node, asked.lanes(), kPatienceMs);
  asker_ = Asker{connection, request.id()};
  return false;
}

void Scaling::scale(std::uint32_t node, std::uint32_t lanes, std::uint64_t patience_ms) {
  ScaleTask::Hooks hooks;
  hooks.park = hooks_.park;
  hooks.done = [this](const Result<ScaleTask::Facts>& result) { done(result); };
  task_ = std::make_unique<ScaleTask>(loop_, memory_, node, lanes, patience_ms, std::move(hooks));
}

void Scaling::done(const Result<ScaleTask::Facts>& result) noexcept {
  // It is over, whatever can be said about it.
  const std::unique_ptr<ScaleTask> task = std::move(task_);
  const auto asker = std::exchange(asker_, {});
  const std::uint32_t node = task->node();
  if (asker) answers_.or_refuse(*asker, [&] { answer(*asker, node, result); });
  try {
    report(node, result, asker.has_value());
  } catch (const std::exception& error) {
    hooks_.survive(error);
  }
}

void Scaling::answer(const Asker& asker, std::uint32_t node,
                     const Result<ScaleTask::Facts>& result) const {
  Reply reply;
  reply.set_id(asker.request);
  if (result) {
    reply.mutable_scale()->set_before(result->before);
    reply.mutable_scale()->set_lanes(result->now);
    reply.mutable_scale()->set_pause_us(result->pause_us);
  } else {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(fmt::format("stage '{}': {}", stage_name(memory_.layout().nodes[node].stage),
                               result.error().message()));
  }
  answers_.send(asker.connection, reply);
}

void Scaling::report(std::uint32_t node, const Result<ScaleTask::Facts>& result, bool asked) {
  const std::string stage = stage_name(memory_.layout().nodes[node].stage);
  if (result) {
    hooks_.event(metrics::Level::kInfo, "stage_scaled",
                 fmt::format("stage={} lanes={} before={} from_unit={} pause_us={}", stage,
                             result->now, result->before, result->from, result->pause_us));
  } else if (result.error().code() == ErrorCode::kBusy && !asked) {
    due_.push_back(node);  // later
  } else {
    hooks_.event(metrics::Level::kWarn, "stage_not_scaled",
                 fmt::format("stage={} reason={}", stage, in_quotes(result.error().message())));
  }
}

void Scaling::give_up(const std::string& why) {
  if (under_way()) done(Error(ErrorCode::kClosed, why));
}

void Scaling::note_taken_over() {
  for (std::uint32_t node = 0; node < memory_.layout().nodes.size(); ++node) due_.push_back(node);
}

void Scaling::follow_configuration() {
  while (!due_.empty()) {
    const std::uint32_t node = due_.back();
    due_.pop_back();
    const layout::NodeLayout& laid_out = memory_.layout().nodes[node];
    if (memory_.node_lanes(node).now == laid_out.lanes) continue;
    std::uint32_t found = 0;
    const std::string wrong = cannot_scale(memory_, laid_out.stage, laid_out.lanes, found);
    if (wrong.empty()) return scale(node, laid_out.lanes, 0);
    hooks_.event(metrics::Level::kWarn, "stage_not_scaled",
                 fmt::format("stage={} reason={}", stage_name(laid_out.stage), in_quotes(wrong)));
  }
}

}  // namespace ringfeed::process
