#include "supervisor/feed/restarts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/fields.h"
#include "supervisor/group/plan_question.h"

namespace ringfeed::process {
namespace {

using google::protobuf::util::MessageDifferencer;

// A program that is to take over says what it needs at once, or is not what it should be.
constexpr int kPlanMs = 5'000;
// Programs that may be asked for a plan at a time.
constexpr int kPlansMax = 4;

// What a stage keeps in shared memory, without what it tells others.
StagePlan memory_of(StagePlan plan) {
  plan.clear_answers();
  for (PortPlan& port : *plan.mutable_inputs()) port.clear_facts();
  for (PortPlan& port : *plan.mutable_outputs()) port.clear_facts();
  return plan;
}

}  // namespace

Restarts::Restarts(EventLoop& loop, const DataLoaderConfig& config, const PipelinePlan& plan,
                   const layout::FeedLayout& layout, const Workers& workers, const Answers& answers)
    : loop_(loop),
      config_(config),
      plan_(plan),
      layout_(layout),
      workers_(workers),
      answers_(answers) {}

// Why this program cannot take over the lanes of the group as they are; empty: it can.
std::string Restarts::other_plan(std::uint32_t group, const std::string& binary,
                                 const PipelinePlan& now) const {
  if (now.abi() != plan_.abi() || now.stages_size() != plan_.stages_size()) {
    return fmt::format(
        "{} uses shared memory with ABI {}, but the feed has {}: build it with this version of "
        "ringfeed",
        binary, now.abi(), plan_.abi());
  }
  std::set<std::uint32_t> stages;
  for (const std::uint32_t lane : layout_.groups[group].lanes) {
    stages.insert(layout_.lanes[lane].stage);
  }
  for (const std::uint32_t stage : stages) {
    StagePlan then = plan_.stages(static_cast<int>(stage));
    StagePlan wanted = now.stages(static_cast<int>(stage));
    // With nodes they are warnings.
    if (wanted.problems_size() != 0 && wanted.nodes_size() == 0) {
      return fmt::format("{} cannot run stage '{}' as it is configured: {}", binary, then.name(),
                         wanted.problems(0).text());
    }
    for (const NodePlan& node : wanted.nodes()) {
      if (!node.cannot_run()) continue;
      return fmt::format("{} cannot run stage '{}', a {}: give the program {}, which can", binary,
                         then.name(), config::shown_kind(then), node.program());
    }
    for (StagePlan* plan : {&then, &wanted}) {
      plan->clear_problems();
      for (NodePlan& node : *plan->mutable_nodes()) {
        node.clear_weight();
        node.clear_cannot_run();
      }
    }
    std::string differences;
    MessageDifferencer differencer;
    differencer.ReportDifferencesToString(&differences);
    if (!differencer.Compare(then, wanted)) {
      if (MessageDifferencer::Equals(memory_of(then), memory_of(wanted))) {
        return fmt::format(
            "in {} stage '{}' declares other facts or wishes, or answers other messages, than in "
            "the feed's program: start a new feed with this program, or keep the previous "
            "program\n{}",
            binary, then.name(), differences);
      }
      return fmt::format(
          "{} lays out the memory of stage '{}' differently, so it cannot take it over: start a "
          "new feed with this program, or keep the previous program\n{}",
          binary, then.name(), differences);
    }
  }
  return {};
}

bool Restarts::take(control::ConnectionId connection, const Request& request, Reply& reply) {
  const std::string& group = request.restart().group();
  const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const auto& w) { return w->name() == group; });
  if (worker == workers_.end()) {
    std::vector<std::string> names;
    for (const auto& w : workers_) names.push_back(w->name());
    reply.set_error(Reply::NO_SUCH_GROUP);
    reply.set_text(fmt::format("there is no stage group '{}': the groups are {}", group,
                               fmt::join(names, ", ")));
    return true;
  }
  const std::string& binary = request.restart().binary();
  const auto g = static_cast<std::uint32_t>(worker - workers_.begin());
  if (binary.empty()) {
    replace(connection, g, binary, reply);
    return reply.has_error();
  }
  if (!layout_.groups[g].parent_socket.empty()) {
    reply.set_error(Reply::INCOMPATIBLE);
    reply.set_text(
        fmt::format("the processes of stage group '{}' are forked by the warm parent at "
                    "{}, so they have no program of their own: restart it without one",
                    group, layout_.groups[g].parent_socket));
    return true;
  }
  if (plans_asked_ == kPlansMax) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(fmt::format("{} programs are already being asked for their plans: try again",
                               plans_asked_));
    return true;
  }
  ask_plan(
      loop_, binary, config_, kPlanMs,
      [this, asker = Asker{connection, request.id()}, g, binary](const Result<PipelinePlan>& plan) {
        --plans_asked_;
        answers_.or_refuse(asker, [&] { on_plan(asker, g, binary, plan); });
      });
  ++plans_asked_;
  return false;
}

void Restarts::on_plan(const Asker& asker, std::uint32_t group, const std::string& binary,
                       const Result<PipelinePlan>& plan) {
  Reply reply;
  reply.set_id(asker.request);
  const std::string wrong = plan ? other_plan(group, binary, *plan) : plan.error().message();
  if (wrong.empty()) {
    replace(asker.connection, group, binary, reply);
    if (!reply.has_error()) return;
  } else {
    const bool starved = !plan && plan.error().code() == ErrorCode::kNoMemory;
    reply.set_error(starved ? Reply::INTERNAL : Reply::INCOMPATIBLE);
    reply.set_text(wrong);
  }
  answers_.send(asker.connection, reply);
}

// The reply is for a refusal alone: else the answer comes when the new worker is there.
void Restarts::replace(control::ConnectionId connection, std::uint32_t group,
                       const std::string& binary, Reply& reply) {
  GroupProcess& worker = *workers_[group];
  const auto waiting = waiting_.emplace(worker.name(), Asker{connection, reply.id()});
  bool replaced = false;
  try {
    replaced = worker.replace(binary);
  } catch (...) {
    waiting_.erase(waiting);  // whoever catches this answers
    throw;
  }
  if (replaced) return;
  waiting_.erase(waiting);
  reply.set_error(Reply::INTERNAL);
  reply.set_text(fmt::format("stage group '{}' is {} and cannot be replaced now", worker.name(),
                             name_of(worker.state())));
}

// What it throws ends nothing: the worker's message is met again, and so are those that wait.
void Restarts::ready(const std::string& group, pid_t pid) {
  const auto [first, last] = waiting_.equal_range(group);
  for (auto waiting = first; waiting != last; ++waiting) {
    Reply reply;
    reply.set_id(waiting->second.request);
    reply.mutable_restart()->set_pid(static_cast<std::uint32_t>(pid));
    answers_.send(waiting->second.connection, reply);
  }
  waiting_.erase(first, last);
}

// Throws nothing: a process ends once, and whoever still waited would be answered by the start of
// the previous program.
void Restarts::refused(const std::string& group, const std::string& reason) noexcept {
  for (auto at = waiting_.find(group); at != waiting_.end(); at = waiting_.find(group)) {
    const Asker asker = at->second;
    waiting_.erase(at);
    answers_.or_refuse(asker, [&] {
      Reply reply;
      reply.set_id(asker.request);
      reply.set_error(Reply::INTERNAL);
      reply.set_text(reason);
      answers_.send(asker.connection, reply);
    });
  }
}

}  // namespace ringfeed::process
