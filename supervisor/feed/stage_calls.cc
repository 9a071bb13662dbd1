#include "supervisor/feed/stage_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"

namespace ringfeed::process {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Stages answer between two steps; a step that takes longer than this is stuck.
constexpr std::uint64_t kCallMs = 10'000;
constexpr std::size_t kCallsMax = 16;        // ControlBox::kAnswers
constexpr std::size_t kPastAnswersMax = 64;  // of a stage group

// The parts of a StageControlRequest, by their numbers alone.
struct Parts {
  bool readable = false;
  bool any_unknown = false;
  std::vector<const FieldDescriptor*> known;
};

Parts parts_of(const std::string& request) {
  Parts parts;
  UnknownFieldSet fields;
  parts.readable = fields.ParseFromString(request);
  std::set<int> seen;
  for (int i = 0; parts.readable && i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* const part =
        field.type() != UnknownField::TYPE_LENGTH_DELIMITED
            ? nullptr
            : StageControlRequest::descriptor()->FindFieldByNumber(field.number());
    if (part == nullptr) {
      parts.any_unknown = true;
    } else if (seen.insert(field.number()).second) {
      parts.known.push_back(part);
    }
  }
  std::ranges::sort(parts.known, {}, &FieldDescriptor::number);
  return parts;
}

// Why nobody in the feed will answer the message; "" if somebody may. What is not known here may be
// for a stage of another version.
std::string message_for_nobody(const StageControlCall& asked, const std::string& feed,
                               const PipelinePlan& plan) {
  if (asked.request().empty()) return "the message is empty: give a request for a stage";
  const Parts parts = parts_of(asked.request());
  if (!parts.readable) {
    return fmt::format("the message is not a StageControlRequest: {} bytes that cannot be read",
                       asked.request().size());
  }
  if (parts.any_unknown) return {};
  std::vector<std::string> names;
  for (const FieldDescriptor* const part : parts.known) {
    for (const StagePlan& stage : plan.stages()) {
      const bool is_asked = !asked.has_stage() || stage.name() == asked.stage();
      if (is_asked && std::ranges::count(stage.answers(), part->name()) != 0) return {};
    }
    names.push_back(part->name());
  }
  return asked.has_stage()
             ? fmt::format("stage '{}' does not answer {}", asked.stage(), fmt::join(names, " or "))
             : fmt::format("no stage of feed '{}' answers {}", feed, fmt::join(names, " or "));
}

// What is wrong with a message that no stage has answered; "": nothing, it has no answer.
std::string why_unanswered(const std::string& request, const std::string& feed) {
  if (!StageControlRequest().ParseFromString(request)) {
    return fmt::format("the message is not a StageControlRequest: {} bytes that cannot be read",
                       request.size());
  }
  if (!parts_of(request).any_unknown) return {};
  return fmt::format(
      "the message has fields that ringfeed {} does not know, and no stage of feed '{}' has "
      "answered it",
      RINGFEED_VERSION, feed);
}

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

StageCalls::StageCalls(EventLoop& loop, const DataLoaderConfig& config, const PipelinePlan& plan,
                       const layout::FeedLayout& layout, const Workers& workers,
                       const Answers& answers, Heard on_answer)
    : loop_(loop),
      config_(config),
      plan_(plan),
      layout_(layout),
      workers_(workers),
      answers_(answers),
      on_answer_(std::move(on_answer)),
      next_call_(random_number()) {}

// The stage groups with lanes that it is for.
std::set<std::size_t> StageCalls::groups_of(const StageControlCall& asked) const {
  std::set<std::size_t> groups;
  for (std::size_t g = 0; g < workers_.size(); ++g) {
    const std::vector<std::uint32_t>& lanes = layout_.groups[g].lanes;
    const bool has = std::any_of(lanes.begin(), lanes.end(), [&](std::uint32_t lane) {
      return layout_.lanes[lane].stage_name == asked.stage();
    });
    if (has || !asked.has_stage()) groups.insert(g);
  }
  return groups;
}

bool StageCalls::take(control::ConnectionId connection, const Request& request, Reply& reply) {
  const auto refuse = [&](Reply::ErrorCode code, const std::string& text) {
    reply.set_error(code);
    reply.set_text(text);
    return true;
  };
  // A stage remembers its last answers, and so many may have to be asked for again.
  if (calls_.size() >= kCallsMax) {
    return refuse(
        Reply::INTERNAL,
        fmt::format("{} messages to stages are already waiting for answers: try again later",
                    calls_.size()));
  }
  const StageControlCall& asked = request.stage_control();
  std::set<std::size_t> groups = groups_of(asked);
  if (groups.empty()) {
    std::vector<std::string> names;
    for (const StageConfig& stage : config_.stages()) names.push_back(stage.name());
    return refuse(Reply::BAD_REQUEST,
                  fmt::format("feed '{}' has no stage '{}': the stages are {}", config_.feed(),
                              asked.stage(), fmt::join(names, ", ")));
  }
  if (const std::string why = message_for_nobody(asked, config_.feed(), plan_); !why.empty()) {
    return refuse(Reply::BAD_REQUEST, why);
  }
  const std::uint64_t id = next_call_++;
  try {
    begin(id, connection, request, std::move(groups));
  } catch (const std::exception&) {
    if (const auto call = calls_.find(id); call != calls_.end()) {
      loop_.cancel(call->second.timer);
      calls_.erase(call);
    }
    throw;
  }
  return false;
}

void StageCalls::begin(std::uint64_t id, control::ConnectionId connection, const Request& request,
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
  call.timer = loop_.after(kCallMs, [this, id] { give_up(id); });
  for (const std::size_t g : groups) {
    if (calls_.contains(id)) send(id, g);
  }
}

// To a process that is not ready the message goes once it is.
void StageCalls::send(std::uint64_t id, std::size_t group) {
  ToWorker message;
  message.set_id(id);
  *message.mutable_stage_control() = *calls_.at(id).asked;
  // Lanes that have finished answer nothing.
  if (workers_[group]->state() == ChildState::kDone) return on_answer(id, group, {});
  if (workers_[group]->ready()) static_cast<void>(workers_[group]->send(message));
}

void StageCalls::ask_again(std::size_t group) {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, call] : calls_) {
    if (call.awaited.contains(group)) ids.push_back(id);
  }
  // An answer may end a call, and with it its entry.
  for (const std::uint64_t id : ids) {
    if (calls_.contains(id)) send(id, group);
  }
}

// One more process has answered the call. One that died in between may have done so twice.
void StageCalls::on_answer(std::uint64_t id, std::size_t group, const StageControlReply& answer) {
  const auto at = calls_.find(id);
  if (at == calls_.end() || at->second.awaited.erase(group) == 0) return;
  Call& call = at->second;
  const Asker asker{call.connection, call.reply->id()};
  bool whole = false;
  answers_.or_refuse(asker, [&] {
    on_answer_(answer);
    add_answers(group, *call.asked, answer, *call.reply->mutable_stage_control());
    whole = true;
  });
  if (whole && !call.awaited.empty()) return;
  if (whole) answers_.or_refuse(asker, [&] { end(id); });
  loop_.cancel(call.timer);
  calls_.erase(at);
}

// Everybody has answered.
void StageCalls::end(std::uint64_t id) {
  Call& call = calls_.at(id);
  if (call.reply->stage_control().answers_size() == 0) {
    const std::string why = why_unanswered(call.asked->request(), config_.feed());
    if (!why.empty()) {
      call.reply->set_error(Reply::BAD_REQUEST);
      call.reply->set_text(why);
    }
  }
  answers_.send(call.connection, *call.reply);
}

// Adds a stage group's answer, and in place of lanes that have finished meanwhile what they said to
// the same message.
void StageCalls::add_answers(std::size_t group, const StageControlCall& asked,
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

void StageCalls::give_up(std::uint64_t id) {
  Call& call = calls_.at(id);
  std::string who;
  for (const std::size_t group : call.awaited) {
    who += (who.empty() ? "" : ", ") + layout_.groups[group].name;
  }
  call.reply->set_error(Reply::INTERNAL);
  call.reply->set_text(
      fmt::format("stage group {} has not answered within {} ms: see ringfeed "
                  "status, and ask again with the same key",
                  who, kCallMs));
  answers_.send(call.connection, *call.reply);
  calls_.erase(id);
}

}  // namespace ringfeed::process
