#include "supervisor/control/waits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"

namespace ringfeed::control {
namespace {

constexpr std::size_t kAwaitedMax = 4;
constexpr std::size_t kAskersMax = 8;
constexpr std::size_t kClientBytes = 64;
constexpr std::size_t kBatchesShown = 4;
constexpr std::uint64_t kLogAgainMs = 60'000;
// One that has gone on and does not ask who waited is forgotten after this time.
constexpr std::uint64_t kForgetMs = 600'000;

std::string shown_time(std::uint64_t ms) {
  const std::uint64_t s = ms / 1000;
  if (s < 120) return fmt::format("{} s", s);
  if (s < 7200) return fmt::format("{} min", s / 60);
  return fmt::format("{} h", s / 3600);
}

std::string shown_held(const std::vector<std::uint64_t>& batches) {
  if (batches.empty()) return "holds no batch";
  const std::size_t shown = std::min(batches.size(), kBatchesShown);
  return fmt::format(
      "holds {} {}{}", batches.size() == 1 ? "batch" : "batches",
      fmt::join(batches.begin(), batches.begin() + static_cast<long>(shown), ", "),
      shown < batches.size() ? fmt::format(" and {} more", batches.size() - shown) : std::string());
}

std::string shown_client(const std::string& client) {
  return escaped(client.substr(0, kClientBytes));
}

}  // namespace

Waits::Waits(const layout::OutputMemory& memory, const ConsumerGroups& groups, FactsOf facts,
             Report report)
    : memory_(memory), groups_(groups), facts_(std::move(facts)), report_(std::move(report)) {}

AwaitedTrainer Waits::describe(const Awaited& awaited, std::uint64_t now_ms) const {
  AwaitedTrainer out;
  const GroupTerms& terms = groups_.terms(awaited.group);
  out.set_group(terms.name);
  if (!awaited.member) {
    const std::uint64_t since_ms = groups_.empty_since_ms(awaited.group);
    if (since_ms != 0) out.set_idle_ms(now_ms - std::min(now_ms, since_ms));
    out.set_text(nobody_text(awaited.group, now_ms));
    return out;
  }
  const MemberPlace place{awaited.group, *awaited.member};
  const auto& [who, client] = facts_(place);
  out.set_member(place.member);
  out.set_pid(static_cast<std::uint32_t>(who.pid));
  const std::string program = process::program_name(who);
  out.set_command(program.empty() ? shown_client(client) : escaped(program));
  const std::vector<std::uint64_t> batches = groups_.held(place);
  out.set_held(static_cast<std::uint32_t>(batches.size()));
  // A member writes this time itself: one that has not come yet is none.
  const std::uint64_t active_ms = groups_.active_ns(place) / 1'000'000;
  const bool known = active_ms != 0 && active_ms <= now_ms;
  if (known) out.set_idle_ms(now_ms - active_ms);
  const char state = process::state_letter(who);
  out.set_text(fmt::format(
      "member {} (process {}: {}) {}{} and {}{}", place.member, who.pid, out.command(),
      state == 't'   ? "is held by a debugger, "
      : state == 'T' ? "is stopped (kill -CONT starts it again), "
                     : "",
      known ? fmt::format("last took or gave back a batch {} ago", shown_time(out.idle_ms()))
            : std::string("has taken no batch yet"),
      shown_held(batches),
      terms.policy == shm::GroupPolicy::kBlock
          ? "; a group with policy=\"skip\" or \"detach\" holds up nobody"
          : ""));
  return out;
}

std::string Waits::nobody_text(std::uint32_t group, std::uint64_t now_ms) const {
  const GroupTerms& terms = groups_.terms(group);
  if (terms.kind == shm::GroupKind::kRanked && groups_.live_members(group) != 0) {
    return fmt::format("of its {} ranks these are missing: {}: start them, or end the others",
                       terms.world, fmt::join(groups_.missing_ranks(group), ", "));
  }
  if (groups_.declared(group)) {
    return "the configuration declares it and it has no trainer: start one, or take the group out "
           "of the configuration";
  }
  const std::uint64_t since_ms = groups_.empty_since_ms(group);
  return fmt::format(
      "it has {}no trainer{}, and leaves the feed in {} if none comes", since_ms == 0 ? "" : "had ",
      since_ms == 0 ? std::string()
                    : fmt::format(" for {}", shown_time(now_ms - std::min(now_ms, since_ms))),
      shown_time(groups_.rejoin_left_ms(group, now_ms) + 999));
}

std::string Waits::name_of(const MemberPlace& place) const {
  const auto& [who, client] = facts_(place);
  return fmt::format("group '{}' member {} (process {}: {})", groups_.terms(place.group).name,
                     place.member, who.pid, shown_client(client));
}

std::string Waits::values_of(const Awaited& awaited) const {
  const std::string& alias = memory_.layout().alias;
  std::string values = alias.empty() ? "" : fmt::format("output={} ", alias);
  values += fmt::format("group={}", log_value(groups_.terms(awaited.group).name));
  if (!awaited.member) return values + " members=0";
  return values + fmt::format(" member={} pid={}", *awaited.member,
                              facts_({awaited.group, *awaited.member}).who.pid);
}

void Waits::ask(const MemberPlace& asker, std::uint64_t waited_ms, std::uint64_t now_ms,
                WaitReply& reply) {
  for (const Awaited& awaited : groups_.awaited()) {
    if (awaited.group == asker.group && awaited.member == asker.member) continue;
    if (static_cast<std::size_t>(reply.awaited_size()) == kAwaitedMax) break;
    AwaitedTrainer& out = *reply.add_awaited();
    out = describe(awaited, now_ms);
    Held& held = held_[awaited];
    if (held.since_ms == 0 || held.over_ms != 0) {
      const std::uint64_t idle_ms = out.has_idle_ms() ? out.idle_ms() : waited_ms;
      held = {};
      held.since_ms = now_ms - std::min({now_ms, waited_ms, idle_ms});
    }
    if (held.askers.size() < kAskersMax) held.askers.insert(name_of(asker));
    if (held.logged_ms != 0 && now_ms < held.logged_ms + kLogAgainMs) continue;
    held.logged_ms = now_ms;
    report_(
        true, "group_holds_up",
        fmt::format("{} for_ms={} idle_ms={} held={} command={}", values_of(awaited),
                    now_ms - held.since_ms, out.idle_ms(), out.held(), in_quotes(out.command())));
  }
}

void Waits::look(std::uint64_t now_ms) {
  if (held_.empty()) return;
  const std::vector<Awaited> awaited = groups_.awaited();
  for (auto at = held_.begin(); at != held_.end();) {
    auto& [who, held] = *at;
    const bool there = who.member ? facts_({who.group, *who.member}).who.pid != 0
                                  : groups_.state(who.group) != shm::GroupState::kUnused;
    if (held.over_ms == 0 && (!there || !std::ranges::binary_search(awaited, who))) {
      held.over_ms = now_ms;
      report_(false, "group_goes_on",
              fmt::format("{} held_up_ms={}", values_of(who), now_ms - held.since_ms));
    }
    const bool over =
        held.over_ms != 0 && (!there || !who.member || now_ms >= held.over_ms + kForgetMs);
    at = over ? held_.erase(at) : std::next(at);
  }
}

void Waits::come_back(const MemberPlace& member, std::uint64_t now_ms, WaitReply& reply) {
  const auto at = held_.find({member.group, member.member});
  if (at == held_.end()) return;
  const Held held = at->second;
  const std::uint64_t until_ms = held.over_ms != 0 ? held.over_ms : now_ms;
  reply.set_held_up_ms(std::max<std::uint64_t>(1, until_ms - held.since_ms));
  reply.set_held_up(fmt::format("{} waited for this trainer (group '{}', member {}) for {}",
                                fmt::join(held.askers, ", "), groups_.terms(member.group).name,
                                member.member, shown_time(until_ms - held.since_ms)));
  if (held.over_ms == 0) {
    report_(false, "group_goes_on",
            fmt::format("{} held_up_ms={}", values_of(at->first), now_ms - held.since_ms));
  }
  held_.erase(at);
}

std::optional<std::string> Waits::text(std::uint64_t now_ms) const {
  std::string text;
  std::optional<std::uint32_t> before;
  for (const Awaited& awaited : groups_.awaited()) {
    if (before != awaited.group) {
      const std::uint64_t behind = groups_.unfinished(awaited.group, false);
      const std::uint32_t members = groups_.live_members(awaited.group);
      text +=
          fmt::format("{}group '{}': {} {} behind, {} attached",
                      text.empty() ? "the feed waits for " : "; for ",
                      groups_.terms(awaited.group).name, behind, behind == 1 ? "batch" : "batches",
                      members == 0   ? "no member"
                      : members == 1 ? "1 member"
                                     : fmt::format("{} members", members));
    }
    text += "; " + describe(awaited, now_ms).text();
    before = awaited.group;
  }
  return text.empty() ? std::optional<std::string>() : text;
}

std::string Waits::idle(std::uint64_t now_ms, std::uint64_t idle_ms_min) const {
  std::string text;
  for (const Awaited& awaited : groups_.awaited()) {
    const AwaitedTrainer found = describe(awaited, now_ms);
    if (found.idle_ms() < idle_ms_min) continue;
    text += fmt::format("; group '{}': {}", found.group(), found.text());
  }
  return text;
}

}  // namespace ringfeed::control
