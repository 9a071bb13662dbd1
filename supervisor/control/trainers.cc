#include "supervisor/control/trainers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "proto/batch.pb.h"
#include "proto/control.pb.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/starvation.h"

namespace ringfeed::control {
namespace {

using process::now_ms;

GroupWish wish_of(const AttachRequest& request) {
  GroupWish wish;
  wish.name = request.has_group() ? request.group() : kDefaultGroup;
  if (request.has_kind()) {
    wish.kind = request.kind() == ConsumerGroupConfig::RANKED ? shm::GroupKind::kRanked
                                                              : shm::GroupKind::kShared;
  }
  if (request.has_rank()) wish.rank = request.rank();
  if (request.has_world()) wish.world = request.world();
  wish.oldest = request.start() == AttachRequest::OLDEST;
  if (request.has_policy()) wish.policy = static_cast<shm::GroupPolicy>(request.policy());
  if (request.has_stall_ms()) wish.stall_ms = request.stall_ms();
  if (request.has_redeliver()) wish.redeliver = request.redeliver();
  if (request.has_max_tries()) wish.max_tries = request.max_tries();
  if (request.has_max_hold()) wish.max_hold = request.max_hold();
  if (request.has_rejoin_ms()) wish.rejoin_ms = request.rejoin_ms();
  wish.position = request.position();
  return wish;
}

Reply::ErrorCode reply_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return Reply::BAD_REQUEST;
    case ErrorCode::kIncompatible:
      return Reply::GROUP_MISMATCH;
    case ErrorCode::kBusy:
      return Reply::FULL;
    case ErrorCode::kNoMemory:
      return Reply::NOT_ENOUGH_SLOTS;
    default:
      return Reply::INTERNAL;
  }
}

void refuse(Reply& reply, Reply::ErrorCode code, std::string text) {
  reply.set_error(code);
  reply.set_text(std::move(text));
}

}  // namespace

Trainers::Trainers(process::EventLoop& loop, const layout::OutputMemory& memory,
                   ConsumerGroups& groups, const BatchSchema& schema, Report report)
    : loop_(loop), memory_(memory), groups_(groups), schema_(schema), report_(std::move(report)) {}

Trainers::~Trainers() {
  for (const auto& [place, trainer] : places_) loop_.unwatch(trainer.pidfd.get());
}

Trainers::Places::iterator Trainers::find(ConnectionId connection) {
  return std::find_if(places_.begin(), places_.end(),
                      [&](const auto& entry) { return entry.second.connection == connection; });
}

std::string Trainers::shown(const MemberPlace& place, pid_t pid) const {
  const std::string& alias = memory_.layout().alias;
  return fmt::format("{}{}group={} member={} pid={}",
                     alias.empty() ? "" : "output=", alias.empty() ? "" : alias + " ",
                     log_value(groups_.terms(place.group).name), place.member, pid);
}

void Trainers::attach(ControlServer& server, ConnectionId connection, const AttachRequest& request,
                      Reply& reply, std::vector<int>& fds) {
  const layout::FeedLayout& layout = memory_.feed().layout();
  const layout::OutputLayout& output = memory_.layout();
  if (request.abi_major() != shm::kAbiMajor || request.layout_hash() != shm::kLayoutHash) {
    return refuse(reply, Reply::INCOMPATIBLE,
                  fmt::format("feed '{}' has ABI {}.{} with layout {:#018x}, this client has {}.{} "
                              "with {:#018x}: use the same ringfeed version for both",
                              layout.feed, shm::kAbiMajor, shm::kAbiMinor, shm::kLayoutHash,
                              request.abi_major(), request.abi_minor(), request.layout_hash()));
  }
  if (request.observe()) {
    fill(*reply.mutable_attach());
    fds = memory_.observer_fds();
    report_("observer_joined",
            fmt::format("{}pid={} client={}",
                        output.alias.empty() ? "" : "output=" + output.alias + " ",
                        server.peer(connection).pid, log_value(request.client())));
    return;
  }
  Trainer trainer;
  trainer.connection = connection;
  trainer.client = request.client();
  trainer.who.pid = server.peer(connection).pid;
  trainer.pidfd = server.peer_pidfd(connection);
  const int error = trainer.pidfd ? 0 : errno;
  const std::optional<std::uint64_t> ticks = process::start_ticks(trainer.who.pid);
  // A process of another pid namespace has a pidfd, but no number here, so no start time either.
  if (trainer.who.pid > 0 && (is_starvation(error) || (trainer.pidfd && !ticks &&
                                                       !process::has_ended(trainer.pidfd.get())))) {
    return refuse(reply, Reply::FULL,
                  fmt::format("feed '{}' cannot watch your process now: its supervisor has no "
                              "descriptors left: raise its limit of open files, or let other "
                              "trainers leave; try again later",
                              layout.feed));
  }
  if (trainer.who.pid <= 0 || !trainer.pidfd || !ticks) {
    return refuse(reply, Reply::PERMISSION,
                  fmt::format("feed '{}' cannot watch your process (it is in a pid namespace that "
                              "the feed does not see): share the pid namespace with the feed",
                              layout.feed));
  }
  trainer.who.start_ticks = *ticks;
  // The process that connected is the one that is watched: whoever was forked since must connect by
  // himself. Inside a container it knows itself by another number.
  if (request.has_pid() && static_cast<pid_t>(request.pid()) != trainer.who.pid &&
      static_cast<pid_t>(request.pid()) != process::pid_in_own_namespace(trainer.who.pid)) {
    return refuse(reply, Reply::BAD_REQUEST,
                  fmt::format("process {} made this connection and process {} uses it: attach in "
                              "the process that trains",
                              trainer.who.pid, request.pid()));
  }
  GroupWish wish = wish_of(request);
  if (output.keep_newest) {
    if (wish.policy.value_or(shm::GroupPolicy::kSkip) != shm::GroupPolicy::kSkip) {
      return refuse(reply, Reply::BAD_REQUEST,
                    fmt::format("output '{}' of feed '{}' keeps the newest batches and waits for "
                                "nobody: leave out the policy, or use SKIP",
                                output.alias, layout.feed));
    }
    wish.policy = shm::GroupPolicy::kSkip;
  }
  bury_dead(wish.name);
  Result<MemberPlace> place = groups_.enter(wish, trainer.who, now_ms());
  if (!place) {
    return refuse(reply, reply_code(place.error().code()), place.error().message());
  }
  const MemberPlace at = *place;
  const int pidfd = trainer.pidfd.get();
  try {
    fill(*reply.mutable_attach());
    fill(at, *reply.mutable_attach());
    fds = memory_.trainer_fds(at.group);
    places_.insert_or_assign(at, std::move(trainer));
    loop_.watch(pidfd, [this, at] { ended(at); });
    report_("trainer_joined", fmt::format("{} client={}", shown(at, places_.at(at).who.pid),
                                          log_value(request.client())));
  } catch (const std::exception& met) {
    loop_.unwatch(pidfd);
    places_.erase(at);
    groups_.take_back(at, now_ms());
    fds.clear();
    reply.clear_attach();
    const auto* const starved = dynamic_cast<const Error*>(&met);
    if (starved == nullptr) throw;
    refuse(reply, Reply::FULL, starved->message());
  }
}

void Trainers::fill(AttachReply& out) const {
  const layout::FeedLayout& layout = memory_.feed().layout();
  const layout::OutputLayout& output = memory_.layout();
  out.set_abi_major(shm::kAbiMajor);
  out.set_abi_minor(shm::kAbiMinor);
  out.set_layout_hash(shm::kLayoutHash);
  const shm::FeedId& id = memory_.feed().identity().feed_id;
  out.set_feed_id(id.data(), id.size());
  out.set_feed(layout.feed);
  out.set_lanes(output.geometry.lanes);
  out.set_slots(output.geometry.slots);
  out.set_descriptors(output.geometry.descriptors);
  out.set_slot_bytes(output.slot_bytes);
  out.set_slot_stride(output.geometry.slot_bytes);
  out.set_rows_max(output.rows_max);
  out.set_control_bytes(segment_bytes(0));
  out.set_feed_control_bytes(segment_bytes(output.feed_control_segment));
  out.set_payload_bytes(segment_bytes(output.payload_segment));
  out.set_supervisor_pid(memory_.feed().state().supervisor_pid.load(std::memory_order_relaxed));
  *out.mutable_tensors() = schema_.tensors();
  out.set_output(output.index);
  if (!output.alias.empty()) out.set_output_alias(output.alias);
}

void Trainers::fill(const MemberPlace& at, AttachReply& out) const {
  const GroupTerms& terms = groups_.terms(at.group);
  out.set_group_index(at.group);
  out.set_member_index(at.member);
  out.set_group_bytes(segment_bytes(memory_.layout().group_segments[at.group]));
  out.set_kind(terms.kind == shm::GroupKind::kRanked ? ConsumerGroupConfig::RANKED
                                                     : ConsumerGroupConfig::SHARED);
  out.set_world(terms.world);
  out.set_policy(static_cast<ConsumerGroupConfig::Policy>(terms.policy));
  out.set_max_hold(terms.max_hold);
}

std::uint64_t Trainers::segment_bytes(std::uint32_t segment) const {
  return shm::align_up(memory_.feed().layout().segments[segment].spec.bytes, shm::kPageBytes);
}

void Trainers::take_back(ConnectionId connection) noexcept {
  const auto at = find(connection);
  if (at == places_.end()) return;
  const MemberPlace place = at->first;
  loop_.unwatch(at->second.pidfd.get());
  const pid_t pid = at->second.who.pid;
  places_.erase(at);
  groups_.take_back(place, now_ms());
  say("trainer_not_told", [&] { return shown(place, pid); });
}

void Trainers::adopt() {
  for (const ConsumerGroups::KnownMember& known : groups_.adopt()) {
    Trainer trainer;
    trainer.who = known.who;
    trainer.client = process::executable_name(known.who.pid);
    if (known.who.pid > 0) trainer.pidfd = process::open_living(known.who).value_or_throw();
    const std::string values = shown(known.place, known.who.pid);
    if (!trainer.pidfd) {
      const std::string_view how = end_of(known.place);
      const std::uint32_t returned =
          groups_.leave(known.place, now_ms(),
                        groups_.left(known.place).value_or(ConsumerGroups::Leaving::kFailed));
      report_(how, fmt::format("{} batches_returned={}", values, returned));
      continue;
    }
    const int pidfd = trainer.pidfd.get();
    places_.insert_or_assign(known.place, std::move(trainer));
    loop_.watch(pidfd, [this, at = known.place] { ended(at); });
    report_("trainer_adopted", values);
  }
}

void Trainers::rejoin(ControlServer& server, ConnectionId connection, const RejoinRequest& request,
                      Reply& reply) {
  const shm::FeedId& id = memory_.feed().identity().feed_id;
  const MemberPlace place{request.group_index(), request.member_index()};
  const auto at = places_.find(place);
  const bool same_feed =
      request.feed_id() == std::string_view(reinterpret_cast<const char*>(id.data()), id.size());
  if (!same_feed || at == places_.end() || at->second.who.pid != server.peer(connection).pid ||
      groups_.epoch(place.group) != request.epoch()) {
    return refuse(reply, Reply::NO_SUCH_GROUP,
                  fmt::format("feed '{}' no longer knows this member: attach again",
                              memory_.feed().layout().feed));
  }
  at->second.connection = connection;
  report_("trainer_rejoined", shown(place, at->second.who.pid));
  reply.mutable_rejoin()->set_supervisor_pid(
      memory_.feed().state().supervisor_pid.load(std::memory_order_relaxed));  // relaxed: a number
}

// What has happened has happened, also if there is no memory to say so.
template <typename Values>
void Trainers::say(std::string_view event, const Values& values) noexcept {
  try {
    report_(event, values());
  } catch (const std::exception&) {
  }
}

// Nothing of it can be refused: a member that is gone, and whose process lives, would hold up its
// group, and with it the feed.
void Trainers::remove(Places::iterator at, std::string_view event,
                      ConsumerGroups::Leaving how) noexcept {
  const MemberPlace place = at->first;
  const pid_t pid = at->second.who.pid;
  loop_.unwatch(at->second.pidfd.get());
  places_.erase(at);
  const std::uint32_t returned = groups_.leave(place, now_ms(), how);
  say(event, [&] { return fmt::format("{} batches_returned={}", shown(place, pid), returned); });
}

void Trainers::bury(Places::iterator at) noexcept {
  if (at->second.ends_well) return remove(at, "trainer_left", ConsumerGroups::Leaving::kDone);
  remove(at, end_of(at->first), groups_.left(at->first).value_or(ConsumerGroups::Leaving::kFailed));
}

// A trainer that leaves while arrays of a batch still live (an exception ended its loop, and the
// traceback holds them) says so in its page alone; the batch goes back when the process has ended.
std::string_view Trainers::end_of(const MemberPlace& place) const {
  // relaxed: the process is gone, and its end was seen through the kernel.
  const auto last = static_cast<shm::MemberState>(
      memory_.group(place.group).members[place.member].state.load(std::memory_order_relaxed));
  return last == shm::MemberState::kAtEnd || shm::has_left(last) ? "trainer_left" : "trainer_died";
}

// Its last words may lie in its socket: what is ready in this round is read first.
void Trainers::ended(const MemberPlace& place) {
  const auto at = places_.find(place);
  if (at == places_.end() || std::exchange(at->second.end_seen, true)) return died(place);
  loop_.after(0, [this, place] { died(place); });
}

void Trainers::died(const MemberPlace& place) {
  const auto at = places_.find(place);
  if (at != places_.end() && process::has_ended(at->second.pidfd.get())) {
    bury(at);
  }
}

// Whoever comes after one that has died finds its rank free, and first of all what it held, also if
// the loop has not come to that death yet.
void Trainers::bury_dead(const std::string& group) {
  std::vector<MemberPlace> members;
  for (const auto& [place, trainer] : places_) {
    if (groups_.terms(place.group).name == group) members.push_back(place);
  }
  for (const MemberPlace& place : members) died(place);
}

void Trainers::detach(ConnectionId connection, const DetachRequest& request, Reply& reply) {
  const auto at = find(connection);
  if (at == places_.end()) {
    return refuse(reply, Reply::BAD_REQUEST, "this connection is not attached");
  }
  const std::uint32_t group = at->first.group;
  if (request.at_exit()) {
    at->second.ends_well = true;
    reply.mutable_detach();
    return;
  }
  remove(at, "trainer_left",
         request.failed() ? ConsumerGroups::Leaving::kFailed : ConsumerGroups::Leaving::kDone);
  if (request.close_group() && groups_.live_members(group) == 0) groups_.close(group);
  reply.mutable_detach();
}

void Trainers::connection_closed(ConnectionId connection) {
  const auto at = find(connection);
  if (at == places_.end()) return;
  at->second.connection = 0;
  // A hint, no proof: the pidfd decides.
  if (process::has_ended(at->second.pidfd.get())) bury(at);
}

void Trainers::look_for_left() noexcept {
  for (auto next = places_.begin(); next != places_.end();) {
    const auto at = next++;
    if (at->second.connection != 0) continue;  // it says so itself
    if (const auto how = groups_.left(at->first)) remove(at, "trainer_left", *how);
  }
}

TrainerFacts Trainers::facts(const MemberPlace& place) const {
  const auto at = places_.find(place);
  return at == places_.end() ? TrainerFacts() : TrainerFacts{at->second.who, at->second.client};
}

std::optional<MemberPlace> Trainers::place(ConnectionId connection) {
  const auto at = find(connection);
  return at == places_.end() ? std::nullopt : std::optional(at->first);
}

std::vector<ConnectionId> Trainers::connections() const {
  std::vector<ConnectionId> ids;
  for (const auto& [place, trainer] : places_) {
    if (trainer.connection != 0) ids.push_back(trainer.connection);
  }
  return ids;
}

}  // namespace ringfeed::control
