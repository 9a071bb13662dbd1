// What clients ask over the control socket.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/message_differencer.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <set>
#include <string_view>
#include <utility>

#include "proto/batch.pb.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "proto/snapshot.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/feed/feed.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/layout/memory.h"
#include "supervisor/metrics/status.h"
#include "supervisor/os/hex.h"

namespace ringfeed::process {
namespace {

// Stages answer between two steps; a step that takes longer than this is stuck.
constexpr std::uint64_t kCallMs = 10'000;
constexpr std::size_t kCallsMax = 16;        // ControlBox::kAnswers
constexpr std::size_t kPastAnswersMax = 64;  // of a stage group
// A program that is to take over says what it needs at once, or is not what it should be.
constexpr int kPlanMs = 5'000;
// Programs that may be asked for a plan at a time.
constexpr int kPlansMax = 4;

// Which kind of stage answers which part of a StageControlRequest.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kAnsweredBy{
    {{"chunk_pool_request", "shuffling_chunk_pool"}, {"epoch_planner_request", "epoch_planner"}}};

bool is_kind(const StageConfig& stage, std::string_view kind) {
  const auto* const field = StageConfig::descriptor()->FindFieldByName(std::string(kind));
  return field != nullptr && stage.GetReflection()->HasField(stage, field);
}

bool has_unknown_parts(const StageControlRequest& request) {
  return !request.GetReflection()->GetUnknownFields(request).empty();
}

// Why nobody in the feed will answer the message; "" if somebody may. What is not known here may be
// for a stage of another version.
std::string message_for_nobody(const StageControlCall& asked, const DataLoaderConfig& feed) {
  const StageControlRequest& request = asked.request();
  if (request.ByteSizeLong() == 0) return "the message is empty: give a request of some stage";
  if (has_unknown_parts(request)) return {};
  std::vector<const google::protobuf::FieldDescriptor*> parts;
  request.GetReflection()->ListFields(request, &parts);
  std::vector<std::string> kinds;
  std::vector<std::string> names;
  for (const auto* part : parts) {
    const auto* const known = std::ranges::find(
        kAnsweredBy, part->name(), [](const auto& entry) { return std::string(entry.first); });
    if (known == kAnsweredBy.end()) return {};
    for (const StageConfig& stage : feed.stages()) {
      const bool is_asked = !asked.has_stage() || stage.name() == asked.stage();
      if (is_asked && is_kind(stage, known->second)) return {};
    }
    names.push_back(part->name());
    kinds.emplace_back(known->second);
  }
  return fmt::format("{} is for a stage of kind {}, which {} not", fmt::join(names, ", "),
                     fmt::join(kinds, " or "),
                     asked.has_stage() ? fmt::format("stage '{}' is", asked.stage())
                                       : fmt::format("feed '{}' has", feed.feed()));
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

void Feed::tell_trainers() {
  if (!server_) return;
  Reply reply;
  reply.set_id(0);
  reply.mutable_event()->set_state(static_cast<StatusReply::State>(shown_state()));
  reply.mutable_event()->set_reason(reason_);
  for (const std::unique_ptr<Output>& output : outputs_) {
    for (const control::ConnectionId connection : output->trainers.connections()) {
      server_->send(connection, reply);
    }
  }
}

void Feed::on_worker_rejoin(control::ConnectionId connection, const Request& request,
                            Reply& reply) {
  const shm::FeedId& id = memory_.identity().feed_id;
  std::optional<WorkerLinks> links;
  if (request.worker_rejoin().feed_id() ==
      std::string_view(reinterpret_cast<const char*>(id.data()), id.size())) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      if (worker->name() != request.worker_rejoin().group()) continue;
      links = worker->relink(server_->peer(connection).pid);
    }
  }
  if (!links) {
    reply.set_error(Reply::NO_SUCH_GROUP);
    reply.set_text(fmt::format("process {} runs no lanes of feed '{}'",
                               server_->peer(connection).pid, run_.config.feed()));
    server_->send(connection, reply);
    return;
  }
  reply.mutable_worker_rejoin()->set_supervisor_pid(static_cast<std::uint32_t>(::getpid()));
  server_->send(connection, reply,
                std::vector<int>{links->their_socket.get(), links->their_log.get()});
}

const BatchSchema& Feed::schema_of(const Output& output) const {
  return run_.plan.stages(static_cast<int>(output.memory.layout().stage)).batch();
}

void Feed::on_attach(control::ConnectionId connection, const AttachRequest& request, Reply& reply,
                     std::vector<int>& fds) {
  const auto refuse = [&](std::string text) {
    reply.set_error(Reply::BAD_REQUEST);
    reply.set_text(std::move(text));
  };
  std::vector<std::string> aliases;
  Output* wanted = request.has_output() ? nullptr : outputs_.front().get();
  bool attached = false;
  for (const std::unique_ptr<Output>& output : outputs_) {
    aliases.push_back(fmt::format("'{}'", output->memory.layout().alias));
    attached = attached || output->trainers.has(connection);
    if (request.has_output() && output->memory.layout().alias == request.output()) {
      wanted = output.get();
    }
  }
  if (attached) {
    return refuse("this connection is attached already: detach first, or open another one");
  }
  if (wanted == nullptr) {
    return refuse(fmt::format("feed '{}' has no output '{}'; it has {}", run_.config.feed(),
                              request.output(), fmt::join(aliases, ", ")));
  }
  wanted->trainers.attach(*server_, connection, request, reply, fds);
}

// Whatever goes wrong on the way to an answer is the answer. The feed has nothing to do with it.
void Feed::answer(control::ConnectionId connection, const Request& request) {
  or_refuse(connection, request.id(), [&] { on_request(connection, request); });
}

void Feed::refuse_for(control::ConnectionId connection, std::uint64_t request,
                      const std::exception& error) noexcept {
  if (!server_) return;
  try {
    try {
      const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      Reply reply;
      reply.set_id(request);
      reply.set_error(Reply::INTERNAL);
      reply.set_text(fmt::format("feed '{}' cannot do that now: {}", run_.config.feed(),
                                 no_memory ? "the supervisor has no memory for it" : error.what()));
      server_->send(connection, reply);
    } catch (const std::bad_alloc&) {
      // Not even for that. Whoever waits hears the end of the connection, and not nothing.
      server_->close(connection);
    }
  } catch (const std::exception&) {
    // Nor for the log.
  }
}

void Feed::answer_attach(control::ConnectionId connection, const Request& request, Reply& reply) {
  const auto take_back = [&] {
    for (const std::unique_ptr<Output>& output : outputs_) output->trainers.take_back(connection);
  };
  std::vector<int> fds;
  // A connection that had attached before keeps what it has.
  const bool attached_before =
      std::any_of(outputs_.begin(), outputs_.end(),
                  [&](const auto& output) { return output->trainers.has(connection); });
  on_attach(connection, request.attach(), reply, fds);
  bool told = false;
  try {
    told = server_->send(connection, reply, fds);
  } catch (...) {
    if (!attached_before) take_back();
    throw;
  }
  if (!told && !attached_before) take_back();
  // Lanes are asked only after the answer is on its way.
  advance_groups();
}

void Feed::on_request(control::ConnectionId connection, const Request& request) {
  Reply reply;
  reply.set_id(request.id());
  switch (request.body_case()) {
    case Request::kAttach:
      if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
        reply.set_error(Reply::FEED_ENDING);
        reply.set_text(phase_ == Phase::kFailing
                           ? reason_
                           : fmt::format("feed '{}' is being stopped", run_.config.feed()));
        break;
      }
      return answer_attach(connection, request, reply);
    case Request::kDetach: {
      const auto of = std::find_if(outputs_.begin(), outputs_.end(), [&](const auto& output) {
        return output->trainers.has(connection);
      });
      (of == outputs_.end() ? outputs_.front() : *of)
          ->trainers.detach(connection, request.detach(), reply);
      break;
    }
    case Request::kRejoin: {
      const std::uint32_t output = request.rejoin().output();
      if (output < outputs_.size()) {
        outputs_[output]->trainers.rejoin(*server_, connection, request.rejoin(), reply);
      } else {
        reply.set_error(Reply::NO_SUCH_GROUP);
        reply.set_text(fmt::format("feed '{}' has no output {}", run_.config.feed(), output));
      }
      break;
    }
    case Request::kWorkerRejoin:
      return on_worker_rejoin(connection, request, reply);
    case Request::kStatus:
      fill_status(*reply.mutable_status());
      break;
    case Request::kStop:
      reply.mutable_stop();
      break;
    case Request::kStageControl:
      return on_stage_control(connection, request);
    case Request::kRestart:
      on_restart(connection, request, reply);
      if (!reply.has_error()) return;
      break;
    case Request::kSnapshot:
      on_snapshot(connection, request, reply);
      if (!reply.has_error()) return;
      break;
    case Request::kScale:
      on_scale(connection, request, reply);
      if (!reply.has_error()) return;
      break;
    case Request::kMetrics:
      on_metrics(request, reply);
      break;
    case Request::BODY_NOT_SET:
      reply.set_error(Reply::BAD_REQUEST);
      reply.set_text(
          "a request without a body that this version knows: use the same ringfeed "
          "version as the feed");
      break;
  }
  server_->send(connection, reply);
  // Lanes are asked and trainers are told only after the answer is on its way.
  if (request.has_detach()) advance_groups();
  if (request.has_stop()) {
    const std::string why =
        fmt::format("stopped by a request of process {}", server_->peer(connection).pid);
    order_end(request.stop().now() || draining_, why);
  }
}

// Why this program cannot take over the lanes of the group as they are; empty: it can.
std::string Feed::other_plan(std::uint32_t group, const std::string& binary,
                             const PipelinePlan& now) const {
  if (now.abi() != run_.plan.abi() || now.stages_size() != run_.plan.stages_size()) {
    return fmt::format(
        "{} is for shared memory of ABI {}, the feed has {}: build it with this "
        "version of ringfeed",
        binary, now.abi(), run_.plan.abi());
  }
  std::set<std::uint32_t> stages;
  for (const std::uint32_t lane : memory_.layout().groups[group].lanes) {
    stages.insert(memory_.layout().lanes[lane].stage);
  }
  for (const std::uint32_t stage : stages) {
    StagePlan then = run_.plan.stages(static_cast<int>(stage));
    StagePlan wanted = now.stages(static_cast<int>(stage));
    // With nodes they are warnings.
    if (wanted.problems_size() != 0 && wanted.nodes_size() == 0) {
      return fmt::format("{} cannot run stage '{}' as it is configured: {}", binary, then.name(),
                         wanted.problems(0).text());
    }
    for (const NodePlan& node : wanted.nodes()) {
      if (!node.cannot_run()) continue;
      return fmt::format("{} cannot run stage '{}', a {}: give the program {} that belongs to it",
                         binary, then.name(), then.kind(), node.program());
    }
    for (StagePlan* plan : {&then, &wanted}) {
      plan->clear_problems();
      for (NodePlan& node : *plan->mutable_nodes()) {
        node.clear_weight();
        node.clear_cannot_run();
      }
    }
    std::string differences;
    google::protobuf::util::MessageDifferencer differencer;
    differencer.ReportDifferencesToString(&differences);
    if (!differencer.Compare(then, wanted)) {
      return fmt::format(
          "{} lays out the memory of stage '{}' in another way, so it cannot take it "
          "over: start the feed anew with it, or go on with the program before\n{}",
          binary, then.name(), differences);
    }
  }
  return {};
}

void Feed::on_restart(control::ConnectionId connection, const Request& request, Reply& reply) {
  const std::string& group = request.restart().group();
  const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const auto& w) { return w->name() == group; });
  if (worker == workers_.end()) {
    std::vector<std::string> names;
    for (const auto& w : workers_) names.push_back(w->name());
    reply.set_error(Reply::NO_SUCH_GROUP);
    reply.set_text(fmt::format("there is no stage group '{}': the groups are {}", group,
                               fmt::join(names, ", ")));
    return;
  }
  const std::string& binary = request.restart().binary();
  const auto g = static_cast<std::uint32_t>(worker - workers_.begin());
  if (binary.empty()) return replace_worker(connection, g, binary, reply);
  if (plans_asked_ == kPlansMax) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(
        fmt::format("{} programs are asked for their plans just now: try again", plans_asked_));
    return;
  }
  ask_plan(loop_, binary, run_.config, kPlanMs,
           [this, connection, id = request.id(), g, binary](const Result<PipelinePlan>& plan) {
             --plans_asked_;
             or_refuse(connection, id, [&] { on_plan(connection, id, g, binary, plan); });
           });
  ++plans_asked_;
}

void Feed::on_plan(control::ConnectionId connection, std::uint64_t request, std::uint32_t group,
                   const std::string& binary, const Result<PipelinePlan>& plan) {
  Reply reply;
  reply.set_id(request);
  const std::string wrong = plan ? other_plan(group, binary, *plan) : plan.error().message();
  if (wrong.empty()) {
    replace_worker(connection, group, binary, reply);
    if (!reply.has_error()) return;
  } else {
    const bool starved = !plan && plan.error().code() == ErrorCode::kNoMemory;
    reply.set_error(starved ? Reply::INTERNAL : Reply::INCOMPATIBLE);
    reply.set_text(wrong);
  }
  server_->send(connection, reply);
}

// The reply is for a refusal alone: else the answer comes when the new worker is there.
void Feed::replace_worker(control::ConnectionId connection, std::uint32_t group,
                          const std::string& binary, Reply& reply) {
  GroupProcess& worker = *workers_[group];
  const auto waiting = restarts_.emplace(worker.name(), std::pair(connection, reply.id()));
  if (worker.replace(binary)) return;
  restarts_.erase(waiting);
  reply.set_error(Reply::INTERNAL);
  reply.set_text(fmt::format("stage group '{}' is {} and cannot be replaced now", worker.name(),
                             name_of(worker.state())));
}

void Feed::on_snapshot(control::ConnectionId connection, const Request& request, Reply& reply) {
  const auto refuse = [&](std::string text) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(std::move(text));
  };
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    return refuse(fmt::format("feed '{}' is being stopped", run_.config.feed()));
  }
  if (snapshot_ || scale_) {
    return refuse(fmt::format("feed '{}' is {} just now: try again", run_.config.feed(),
                              takes_snapshot() ? "taking a snapshot"
                              : snapshot_      ? "giving up the snapshot before"
                                               : "being scaled"));
  }
  SnapshotTask::Hooks hooks;
  hooks.park = [this](std::uint64_t ticket) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->park(ticket);
  };
  hooks.describe = [this](SnapshotManifest& manifest, const auto& copied) {
    describe_snapshot(manifest, copied);
  };
  hooks.done = [this](const Result<SnapshotTask::Facts>& result) { snapshot_done(result); };
  hooks.ended = [this] { snapshot_.reset(); };
  snapshot_asker_ = {connection, request.id()};
  snapshot_ = std::make_unique<SnapshotTask>(loop_, memory_, request.snapshot().directory(),
                                             std::move(hooks));
}

void Feed::describe_snapshot(SnapshotManifest& manifest,
                             const std::vector<std::vector<std::byte>>& copied) const {
  const shm::FeedIdentity& identity = memory_.identity();
  manifest.set_feed(run_.config.feed());
  manifest.set_feed_id(control::to_hex(
      {reinterpret_cast<const char*>(identity.feed_id.data()), identity.feed_id.size()}));
  manifest.set_config_hash(identity.config_hash);
  manifest.set_seed(run_.seed);
  manifest.set_taken_at(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  for (const std::unique_ptr<Output>& output : outputs_) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (output->groups.state(g) == shm::GroupState::kUnused) continue;
      SnapshotGroup& group = *manifest.add_groups();
      group.set_name(output->groups.terms(g).name);
      const layout::OutputLayout& layout = output->memory.layout();
      if (!layout.alias.empty()) group.set_output(layout.alias);
      // As in the copy: trainers go on.
      const auto& page = *reinterpret_cast<const shm::GroupPage*>(
          copied[layout.group_segments[g]].data() + shm::kPageBytes);
      group.set_next_batch(output->groups.next_batch_in(page));
    }
  }
  manifest.mutable_stage_groups()->ParseFromString(run_.recorded_groups);
  manifest.mutable_config()->ParseFromString(run_.recorded_config);
}

void Feed::snapshot_done(const Result<SnapshotTask::Facts>& result) {
  or_refuse(snapshot_asker_.first, snapshot_asker_.second, [&] { tell_of_snapshot(result); });
}

void Feed::tell_of_snapshot(const Result<SnapshotTask::Facts>& result) {
  Reply reply;
  reply.set_id(snapshot_asker_.second);
  if (result) {
    newest_snapshot_ = result->directory;
    record_workers();
    SnapshotReply& out = *reply.mutable_snapshot();
    out.set_directory(result->directory);
    out.set_bytes(result->bytes);
    out.set_newest_batch(result->newest_batch);
    out.set_pause_us(result->pause_us);
    out.set_total_ms(result->total_ms);
    event(metrics::Level::kInfo, "snapshot_taken",
          fmt::format("directory={} bytes={} newest_batch={} pause_us={} total_ms={}",
                      log_value(result->directory), result->bytes, result->newest_batch,
                      result->pause_us, result->total_ms));
  } else {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(result.error().message());
    event(metrics::Level::kWarn, "snapshot_failed",
          "reason=" + in_quotes(result.error().message()));
  }
  server_->send(snapshot_asker_.first, reply);
}

bool Feed::takes_snapshot() const { return snapshot_ && !snapshot_->over(); }

void Feed::give_up_snapshot(const std::string& why) {
  if (!takes_snapshot()) return;
  snapshot_->give_up();
  snapshot_done(Error(ErrorCode::kClosed, fmt::format("the snapshot was given up: {}", why)));
}

void Feed::on_stage_control(control::ConnectionId connection, const Request& request) {
  const auto refuse = [&](Reply::ErrorCode code, const std::string& text) {
    Reply reply;
    reply.set_id(request.id());
    reply.set_error(code);
    reply.set_text(text);
    server_->send(connection, reply);
  };
  // A stage remembers its last answers, and so many may have to be asked for again.
  if (calls_.size() >= kCallsMax) {
    return refuse(Reply::INTERNAL, fmt::format("{} messages to stages wait for their answers: try "
                                               "again later",
                                               calls_.size()));
  }
  const StageControlCall& asked = request.stage_control();
  std::set<std::size_t> groups;
  for (std::size_t g = 0; g < workers_.size(); ++g) {
    const std::vector<std::uint32_t>& lanes = memory_.layout().groups[g].lanes;
    const bool has = std::any_of(lanes.begin(), lanes.end(), [&](std::uint32_t lane) {
      return memory_.layout().lanes[lane].stage_name == asked.stage();
    });
    if (has || !asked.has_stage()) groups.insert(g);
  }
  if (groups.empty()) {
    return refuse(Reply::BAD_REQUEST,
                  fmt::format("feed '{}' has no stage '{}'", run_.config.feed(), asked.stage()));
  }
  if (const std::string why = message_for_nobody(asked, run_.config); !why.empty()) {
    return refuse(Reply::BAD_REQUEST, why);
  }
  const std::uint64_t id = next_call_++;
  try {
    begin_call(id, connection, request, std::move(groups));
  } catch (const std::exception&) {
    if (const auto call = calls_.find(id); call != calls_.end()) {
      loop_.cancel(call->second.timer);
      calls_.erase(call);
    }
    throw;
  }
}

void Feed::begin_call(std::uint64_t id, control::ConnectionId connection, const Request& request,
                      std::set<std::size_t> groups) {
  const StageControlCall& asked = request.stage_control();
  Call& call = calls_[id];
  call.connection = connection;
  call.awaited = groups;
  call.asked = std::make_unique<StageControlCall>(asked);
  if (asked.key() == 0) call.asked->set_key(random_number() | 1);
  call.reply = std::make_unique<Reply>();
  call.reply->set_id(request.id());
  call.reply->mutable_stage_control();
  call.timer = loop_.after(kCallMs, [this, id] { give_up_call(id); });
  for (const std::size_t g : groups) {
    if (calls_.contains(id)) send_call(id, g);
  }
}

// To a process that is not ready the message goes once it is.
void Feed::send_call(std::uint64_t id, std::size_t group) {
  ToWorker message;
  message.set_id(id);
  *message.mutable_stage_control() = *calls_.at(id).asked;
  // Lanes that have finished answer nothing.
  if (workers_[group]->state() == ChildState::kDone) return on_stage_answer(id, group, {});
  if (workers_[group]->ready()) static_cast<void>(workers_[group]->send(message));
}

// What the process before may not have answered, and what one that has come to its end will not.
void Feed::ask_again(std::size_t group) {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, call] : calls_) {
    if (call.awaited.contains(group)) ids.push_back(id);
  }
  // An answer may end a call, and with it its entry.
  for (const std::uint64_t id : ids) {
    if (calls_.contains(id)) send_call(id, group);
  }
}

std::uint64_t Feed::random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// One more process has answered the call. One that died in between may have done so twice.
void Feed::on_stage_answer(std::uint64_t id, std::size_t group, const StageControlReply& answer) {
  const auto at = calls_.find(id);
  if (at == calls_.end() || at->second.awaited.erase(group) == 0) return;
  Call& call = at->second;
  const std::pair asker(call.connection, call.reply->id());
  bool whole = false;
  or_refuse(asker.first, asker.second, [&] {
    note_anchors(answer);
    add_answers(group, *call.asked, answer, *call.reply->mutable_stage_control());
    whole = true;
  });
  if (whole && !call.awaited.empty()) return;
  if (whole) or_refuse(asker.first, asker.second, [&] { end_call(id); });
  loop_.cancel(call.timer);
  calls_.erase(at);
}

// Everybody has answered.
void Feed::end_call(std::uint64_t id) {
  Call& call = calls_.at(id);
  if (call.reply->stage_control().answers_size() == 0 && has_unknown_parts(call.asked->request())) {
    call.reply->set_error(Reply::BAD_REQUEST);
    call.reply->set_text(
        fmt::format("the message has fields that ringfeed {} does not know, and no stage of feed "
                    "'{}' has answered it",
                    RINGFEED_VERSION, run_.config.feed()));
  }
  server_->send(call.connection, *call.reply);
}

// Adds a stage group's answer, and in place of lanes that have finished meanwhile what they said to
// the same message.
void Feed::add_answers(std::size_t group, const StageControlCall& asked,
                       const StageControlReply& answer, StageControlReply& reply) {
  reply.MergeFrom(answer);
  std::deque<PastAnswer>& past = past_answers_[group];
  for (const StageControlAnswer& now : answer.answers()) {
    const bool known = std::ranges::any_of(past, [&](const PastAnswer& one) {
      return one.key == asked.key() && one.answer->stage() == now.stage();
    });
    if (known) continue;
    if (past.size() == kPastAnswersMax) past.pop_front();
    past.push_back({asked.key(), std::make_unique<StageControlAnswer>(now)});
  }
  for (const PastAnswer& one : past) {
    const bool answers = std::ranges::any_of(answer.answers(), [&](const StageControlAnswer& now) {
      return now.stage() == one.answer->stage();
    });
    const bool is_asked = !asked.has_stage() || asked.stage() == one.answer->stage();
    if (one.key == asked.key() && is_asked && !answers) *reply.add_answers() = *one.answer;
  }
}

void Feed::give_up_call(std::uint64_t id) {
  Call& call = calls_.at(id);
  std::string who;
  for (const std::size_t group : call.awaited) {
    who += (who.empty() ? "" : ", ") + memory_.layout().groups[group].name;
  }
  call.reply->set_error(Reply::INTERNAL);
  call.reply->set_text(
      fmt::format("stage group {} has not answered within {} ms: see ringfeed "
                  "status, and ask again with the same key",
                  who, kCallMs));
  server_->send(call.connection, *call.reply);
  calls_.erase(id);
}

}  // namespace ringfeed::process
