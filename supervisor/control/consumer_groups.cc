#include "supervisor/control/consumer_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "ringfeed/shm/failpoint.h"

namespace ringfeed::control {
namespace {

using shm::ClaimState;
using shm::GroupPage;
using shm::GroupState;
using shm::MemberState;

// Slots that each producing lane needs beyond what the groups may hold, so that a group with policy
// skip or detach can be made to give way: one being written, one to be given up.
constexpr std::uint32_t kSpareSlotsMin = 2;

std::string_view name_of(shm::GroupKind kind) {
  return kind == shm::GroupKind::kRanked ? "ranked" : "shared";
}
std::string_view name_of(shm::GroupPolicy policy) {
  switch (policy) {
    case shm::GroupPolicy::kBlock:
      return "block";
    case shm::GroupPolicy::kSkip:
      return "skip";
    case shm::GroupPolicy::kDetach:
      return "detach";
  }
  return "?";
}

MemberState member_state(const shm::Member& member) {
  // acquire, pairs with the release of whoever changed it last.
  return static_cast<MemberState>(member.state.load(std::memory_order_acquire));
}
// May a member that lives say that of itself?
bool is_own_word(MemberState state) {
  return state == MemberState::kLive || state == MemberState::kAtEnd || shm::has_left(state);
}
std::uint32_t stall_ms_of(const GroupTerms& terms) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(terms.stall_ms, ~0U));
}

template <typename T>
Status mismatch(const std::string& group, std::string_view what, const T& has, const T& wanted) {
  return Error{
      ErrorCode::kIncompatible,
      fmt::format(
          "consumer group '{}' has {} {}, but {} was requested: leave it out, or use another group",
          group, what, has, wanted)};
}

}  // namespace

ConsumerGroups::ConsumerGroups(const layout::OutputMemory& memory) : memory_(memory) {}

GroupState ConsumerGroups::state(std::uint32_t group) const {
  const GroupState known = groups_[group].state;
  // acquire: a producing lane may have set DRAINING.
  const auto seen =
      static_cast<GroupState>(memory_.group(group).head.state.load(std::memory_order_acquire));
  const bool detached = known == GroupState::kActive && seen == GroupState::kDraining;
  return detached ? seen : known;
}

// Modelled in tests/model/wakeup_feed.pml.
void ConsumerGroups::set_state(std::uint32_t group, GroupState next) {
  groups_[group].state = next;
  // release, both: the head, the words and start were written before. The account first: whoever
  // comes after a death between the two brings the page up to it.
  memory_.account(group).head.state.store(static_cast<std::uint32_t>(next),
                                          std::memory_order_release);
  RF_FAILPOINT("supervisor.group.accounted");
  memory_.group(group).head.state.store(static_cast<std::uint32_t>(next),
                                        std::memory_order_release);
  memory_.ring_producers();
  memory_.ring_group(group);
  memory_.ring_feed();
}

// Of two pages of one group the one that follows the other.
std::optional<std::uint32_t> ConsumerGroups::find(std::string_view name) const {
  std::optional<std::uint32_t> found;
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (state(g) == GroupState::kUnused || groups_[g].terms.name != name) continue;
    if (!found || groups_[g].replaces == found || state(*found) == GroupState::kDraining) found = g;
  }
  return found;
}

// The page that has been free for longest: a producing lane that was slow in closing batches of the
// page's last group has had its time.
std::optional<std::uint32_t> ConsumerGroups::free_page() const {
  std::optional<std::uint32_t> best;
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (state(g) != GroupState::kUnused) continue;
    // One that somebody still writes to, although he has left, comes last; before it those to which
    // somebody could.
    const auto order = [this](std::uint32_t page) {
      const auto& keepers = groups_[page].keepers;
      return std::tuple(groups_[page].barred,
                        std::any_of(keepers.begin(), keepers.end(), process::is_alive),
                        groups_[page].unused_since);
    };
    if (!best || order(g) < order(*best)) best = g;
  }
  return best;
}

bool ConsumerGroups::any_yields() const {
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (state(g) != GroupState::kUnused && groups_[g].terms.policy != shm::GroupPolicy::kBlock) {
      return true;
    }
  }
  return false;
}

// max_hold is what one member may hold, so a group may hold that much for each of them.
Status ConsumerGroups::check_slots(const GroupTerms& terms) const {
  const shm::FeedGeometry& feed = memory_.layout().geometry;
  const std::uint32_t slots = feed.slots / feed.lanes;
  std::uint64_t hold = 0;
  std::string yielding = terms.policy == shm::GroupPolicy::kBlock ? "" : terms.name;
  bool known = false;
  const auto add = [&](const GroupTerms& group, std::uint32_t members) {
    hold +=
        std::min<std::uint64_t>(std::uint64_t{group.max_hold} * std::max(members, 1U), feed.slots);
  };
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (state(g) == GroupState::kUnused) continue;
    const bool this_one = groups_[g].terms.name == terms.name;
    // The group that is there so that batches go on holds nothing.
    if (!this_one && memory_.layout().keep_newest && live_members(g) == 0) continue;
    known = known || this_one;
    add(groups_[g].terms, live_members(g) + (this_one ? 1 : 0));
    if (groups_[g].terms.policy != shm::GroupPolicy::kBlock) yielding = groups_[g].terms.name;
  }
  if (!known) add(terms, 1);
  if (yielding.empty() || slots >= hold + kSpareSlotsMin) return {};
  return Error{
      ErrorCode::kNoMemory,
      fmt::format("a member of consumer group '{}' cannot join: with policy skip or detach "
                  "(group '{}') each producing lane needs {} slots, {} more than the "
                  "members of all groups may hold ({}), and has {}: lower max_hold, or "
                  "raise feed_output.slots to {}",
                  terms.name, yielding, hold + kSpareSlotsMin, kSpareSlotsMin, hold, slots,
                  (hold + kSpareSlotsMin) * feed.lanes)};
}

// All of a head but its state, as the group is now.
void ConsumerGroups::copy_head(std::uint32_t g, GroupPage& page) const {
  const Group& group = groups_[g];
  const GroupTerms& terms = group.terms;
  page.head.kind = static_cast<std::uint32_t>(terms.kind);
  page.head.policy = static_cast<std::uint32_t>(terms.policy);
  page.head.redeliver = terms.redeliver ? 1 : 0;
  page.head.max_hold = terms.max_hold;
  page.head.max_tries = terms.max_tries;
  page.head.world = terms.kind == shm::GroupKind::kRanked ? terms.world : 0;
  page.head.stall_ms = stall_ms_of(terms);
  page.head.rejoin_ms = terms.rejoin_ms;
  page.head.declared = group.declared ? 1 : 0;
  page.head.from_oldest = group.oldest ? 1 : 0;
  page.head.brief = terms.brief ? 1 : 0;
  std::memset(page.head.name, 0, sizeof page.head.name);
  terms.name.copy(page.head.name, sizeof page.head.name - 1);
  // relaxed, both: published by the release of state.
  page.head.start.store(group.start, std::memory_order_relaxed);
  page.head.epoch.store(group.epoch, std::memory_order_relaxed);
}

// A new use of the page.
void ConsumerGroups::write_head(std::uint32_t group, const GroupTerms& terms) {
  Group fresh;
  fresh.terms = terms;
  fresh.unused_since = groups_[group].unused_since;
  fresh.epoch = groups_[group].epoch + 1;
  fresh.keepers = std::move(groups_[group].keepers);
  groups_[group] = std::move(fresh);
  for (GroupPage* page : {&memory_.account(group), &memory_.group(group)}) {
    copy_head(group, *page);
    // relaxed: published by the release of state.
    for (shm::Member& member : page->members) {
      member.state.store(static_cast<std::uint32_t>(MemberState::kFree), std::memory_order_relaxed);
    }
  }
}

void ConsumerGroups::set_declared(std::uint32_t group, bool declared) {
  groups_[group].declared = declared;
  memory_.account(group).head.declared = declared ? 1 : 0;
  memory_.group(group).head.declared = declared ? 1 : 0;
}

void ConsumerGroups::set_start(std::uint32_t group, std::uint64_t start) {
  groups_[group].start = start;
  // relaxed, both: published by the release of state.
  memory_.account(group).head.start.store(start, std::memory_order_relaxed);
  memory_.group(group).head.start.store(start, std::memory_order_relaxed);
}

Status ConsumerGroups::declare(const GroupTerms& wanted) {
  GroupTerms terms = wanted;
  if (terms.max_hold == 0) terms.max_hold = memory_.layout().geometry.slots;
  if (Status slots = check_slots(terms); !slots) return slots;
  const std::optional<std::uint32_t> page = free_page();
  if (!page) {
    return Error{ErrorCode::kBusy,
                 fmt::format("consumer group '{}': at most {} groups are possible", terms.name,
                             shm::kGroupsMax)};
  }
  write_head(*page, terms);
  set_declared(*page, true);
  groups_[*page].reported = GroupState::kActive;
  clear_words(memory_.group(*page));
  clear_words(memory_.account(*page));
  set_start(*page, memory_.feed().layout().first_batch);
  ever_joined_ = true;
  set_state(*page, GroupState::kActive);
  return {};
}

std::vector<ConsumerGroups::KnownMember> ConsumerGroups::adopt() {
  std::vector<KnownMember> members;
  const auto was_barred = [this](std::uint32_t g) {
    const auto& lanes = memory_.layout().producing_lanes;
    return std::any_of(lanes.begin(), lanes.end(), [&](std::uint32_t index) {
      // relaxed: written by the supervisor before this one.
      return (memory_.lane(index).groups_barred.load(std::memory_order_relaxed) >> g & 1) != 0;
    });
  };
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    // What a member may have written is not asked who the group is.
    const GroupPage& page = memory_.account(g);
    Group& group = groups_[g];
    // relaxed: published by the release of state.
    group.epoch = page.head.epoch.load(std::memory_order_relaxed);
    group.barred = was_barred(g);
    for (const shm::Member& member : page.members) {
      if (member_state(member) != MemberState::kFree || member.pid == 0) continue;
      group.keepers.push_back({static_cast<pid_t>(member.pid), member.start_ticks});
    }
    group.keepers.reserve(group.keepers.size() + shm::kMembersMax);
    // acquire: the head was written before.
    group.state = static_cast<GroupState>(page.head.state.load(std::memory_order_acquire));
    if (group.state == GroupState::kUnused) {
      // relaxed: nobody is there to whom it would say more.
      memory_.group(g).head.state.store(static_cast<std::uint32_t>(group.state),
                                        std::memory_order_relaxed);
      continue;
    }
    group.start = page.head.start.load(std::memory_order_relaxed);  // relaxed: as epoch
    group.terms.name.assign(page.head.name, ::strnlen(page.head.name, sizeof page.head.name));
    group.terms.kind = static_cast<shm::GroupKind>(page.head.kind);
    group.terms.world = page.head.world;
    group.terms.policy = static_cast<shm::GroupPolicy>(page.head.policy);
    group.terms.stall_ms = page.head.stall_ms;
    group.terms.redeliver = page.head.redeliver != 0;
    group.terms.max_tries = page.head.max_tries;
    group.terms.max_hold = page.head.max_hold;
    group.terms.rejoin_ms = page.head.rejoin_ms;
    group.terms.brief = page.head.brief != 0;
    group.declared = page.head.declared != 0;
    group.oldest = page.head.from_oldest != 0;
    group.had_member = !group.declared;
    ever_joined_ = ever_joined_ || group.state != GroupState::kJoining;
    for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
      const shm::Member& member = page.members[m];
      if (member_state(member) == MemberState::kFree) continue;
      group.had_member = any_came_ = true;
      group.members[m] = {static_cast<pid_t>(member.pid), member.start_ticks};
      group.at_most_once[m] = member.at_most_once != 0;
      members.push_back({{g, m}, group.members[m]});
    }
    if (memory_.made_anew(g)) settle_words(g);
    if (group.barred) {
      group.damage = "page";
      set_state(g, GroupState::kDraining);
    } else {
      renew_page(g);
    }
    group.reported = state(g);
  }
  // acquire, pairs with the release of begin() and follow().
  const std::uint32_t replacing = memory_.replacing().load(std::memory_order_acquire);
  const std::uint32_t now = (replacing >> 8) - 1;
  const std::uint32_t before = (replacing & 0xff) - 1;
  if (now < shm::kGroupsMax && before < shm::kGroupsMax) {
    groups_[now].replaces = before;
    groups_[now].wanted = groups_[now].start;
    if (state(now) != GroupState::kJoining) follow(now);
  }
  return members;
}

// The page says what the account says: its supervisor may have died between the two. What members
// have written there since is undone; if one of them goes on, his group is barred.
void ConsumerGroups::renew_page(std::uint32_t g) {
  GroupPage& page = memory_.group(g);
  copy_head(g, page);
  for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
    shm::Member& member = page.members[m];
    const shm::Member& known = memory_.account(g).members[m];
    member.pid = known.pid;
    member.start_ticks = known.start_ticks;
    member.rank = known.rank;
    member.at_most_once = known.at_most_once;
    // A member that lives may say more than that at any moment.
    const MemberState is = member_state(member);
    const bool lives = member_state(known) != MemberState::kFree;
    const bool sound = lives ? is_own_word(is) : is == MemberState::kFree;
    if (sound) continue;
    // release: as in enter() and leave().
    member.state.store(static_cast<std::uint32_t>(member_state(known)), std::memory_order_release);
  }
  // A lane may have detached it meanwhile. release: as in set_state().
  if (state(g) == groups_[g].state) {
    page.head.state.store(static_cast<std::uint32_t>(groups_[g].state), std::memory_order_release);
  }
}

// The words were noted a moment before all died: what the group gave back since is not known. A
// batch whose slot was written again since was finished; one that is whole comes, and says that it
// may have been delivered before, unless that may not be.
void ConsumerGroups::settle_words(std::uint32_t g) {
  Group& group = groups_[g];
  const auto& once = group.at_most_once;
  const bool at_most_once = !group.terms.redeliver || group.terms.max_tries == 1 ||
                            std::find(once.begin(), once.end(), true) != once.end();
  const std::uint64_t descriptors = memory_.layout().geometry.descriptors;
  for (const std::uint64_t s : memory_.described()) {
    if (s < group.start) continue;
    std::atomic<std::uint64_t>& word = memory_.group(g).words[s % descriptors];
    // relaxed, all: nobody else has the page yet.
    const shm::Claim claim = shm::decode_claim(word.load(std::memory_order_relaxed));
    if (shm::claim_finished(claim, s)) continue;
    if (!memory_.whole(s)) {
      word.store(shm::encode_claim({.seq = s, .state = ClaimState::kDone}),
                 std::memory_order_relaxed);
    } else if (at_most_once) {
      group.closed += shm::claim_close(word, s) ? 1 : 0;
    } else if (shm::claim_open(claim, s)) {
      const std::uint8_t tries = claim.seq == s ? std::max<std::uint8_t>(claim.tries, 1) : 1;
      word.store(shm::encode_claim({.seq = s, .tries = tries, .state = ClaimState::kAvail}),
                 std::memory_order_relaxed);
    }
  }
}

void ConsumerGroups::note_words() {
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    const GroupState now = groups_[g].state;
    if (groups_[g].barred || (now != GroupState::kActive && now != GroupState::kDraining)) continue;
    const GroupPage& page = memory_.group(g);
    GroupPage& account = memory_.account(g);
    for (std::uint32_t i = 0; i < memory_.layout().geometry.descriptors; ++i) {
      // relaxed, both: whoever reads the account does so after the death of all.
      account.words[i].store(page.words[i].load(std::memory_order_relaxed),
                             std::memory_order_relaxed);
    }
  }
}

Status ConsumerGroups::check_wish(const GroupWish& wish, std::uint32_t group) const {
  const GroupTerms& has = groups_[group].terms;
  if (state(group) == GroupState::kDraining) {
    return Error{ErrorCode::kBusy,
                 fmt::format("consumer group '{}' is being closed and has {} members left: try "
                             "again, or use another group",
                             wish.name, live_members(group))};
  }
  if (wish.kind && *wish.kind != has.kind) {
    return has.kind == shm::GroupKind::kRanked
               ? mismatch(wish.name, "kind", fmt::format("ranked with a world of {}", has.world),
                          fmt::format("{}", name_of(*wish.kind)))
               : mismatch(wish.name, "kind", name_of(has.kind), name_of(*wish.kind));
  }
  if (has.kind == shm::GroupKind::kRanked && wish.world && *wish.world != has.world) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("consumer group '{}' has a world of {}, but {} was requested: give "
                             "world {} and a rank from 0 to {}, or use another group",
                             wish.name, has.world, *wish.world, has.world, has.world - 1)};
  }
  if (wish.policy && *wish.policy != has.policy) {
    return mismatch(wish.name, "policy", name_of(has.policy), name_of(*wish.policy));
  }
  if (wish.max_tries && *wish.max_tries != has.max_tries) {
    return mismatch(wish.name, "max_tries", has.max_tries, *wish.max_tries);
  }
  if (wish.max_hold && *wish.max_hold != has.max_hold) {
    return mismatch(wish.name, "max_hold", has.max_hold, *wish.max_hold);
  }
  return {};
}

// Modelled in tests/model/claims.pml.
Result<std::uint32_t> ConsumerGroups::make(const GroupWish& wish) {
  GroupTerms terms;
  terms.name = wish.name;
  terms.kind = wish.kind.value_or(wish.rank ? shm::GroupKind::kRanked : shm::GroupKind::kShared);
  terms.world = wish.world.value_or(0);
  terms.policy = wish.policy.value_or(terms.policy);
  terms.stall_ms = wish.stall_ms.value_or(terms.stall_ms);
  terms.redeliver = wish.redeliver.value_or(terms.redeliver);
  terms.max_tries = wish.max_tries.value_or(terms.max_tries);
  terms.max_hold = wish.max_hold.value_or(any_yields() || terms.policy != shm::GroupPolicy::kBlock
                                              ? kMaxHoldYielding
                                              : memory_.layout().geometry.slots);
  terms.rejoin_ms = wish.rejoin_ms.value_or(terms.rejoin_ms);
  terms.brief = !wish.rejoin_ms && terms.kind == shm::GroupKind::kShared;
  if (terms.kind == shm::GroupKind::kRanked &&
      (terms.world == 0 || terms.world > shm::kMembersMax)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("consumer group '{}' is ranked with a world of {}: give a world from "
                             "1 to {}",
                             wish.name, terms.world, shm::kMembersMax)};
  }
  if (terms.max_hold == 0 || terms.max_tries == 0 || terms.max_tries > 255) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("consumer group '{}': max_hold {} and max_tries {} were requested: "
                             "both must be at least 1, max_tries at most 255",
                             wish.name, terms.max_hold, terms.max_tries)};
  }
  if (terms.rejoin_ms > kRejoinMsMax || terms.stall_ms > kStallMsMax) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("consumer group '{}': rejoin_ms {} and stall_ms {} were requested: rejoin_ms "
                    "is at most {} (a week), stall_ms at most {} (a day)",
                    wish.name, terms.rejoin_ms, terms.stall_ms, kRejoinMsMax, kStallMsMax)};
  }
  if (Status slots = check_slots(terms); !slots) return slots.error();
  return begin(terms, wish, std::nullopt);
}

// Among those who were members of the page, for each who is one and for one more: who leaves needs
// no memory.
void ConsumerGroups::make_room(std::uint32_t group) {
  std::vector<process::Identity>& keepers = groups_[group].keepers;
  std::erase_if(keepers, [](const process::Identity& who) { return !process::is_alive(who); });
  keepers.reserve(keepers.size() + live_members(group) + 1);
}

// The group's next batch is beyond the wish: a page of its own, from that batch on.
Result<std::uint32_t> ConsumerGroups::put_back(std::uint32_t group, const GroupWish& wish) {
  if (state(group) != GroupState::kActive || any_taken(group)) {
    return Error{ErrorCode::kBusy,
                 fmt::format("consumer group '{}' cannot be put back to batch {}: its members hold "
                             "batches: release them first",
                             wish.name, wish.position)};
  }
  // relaxed: written by supervisors only.
  if (memory_.replacing().load(std::memory_order_relaxed) != 0) {
    return Error{ErrorCode::kBusy, "another group is being put back: try again"};
  }
  return begin(GroupTerms(groups_[group].terms), wish, group);
}

// A new page, which the lanes are asked to respect.
Result<std::uint32_t> ConsumerGroups::begin(const GroupTerms& terms, const GroupWish& wish,
                                            std::optional<std::uint32_t> replaces) {
  // The ranks of a ranked group begin together: with the round of that batch.
  const std::uint64_t round = terms.kind == shm::GroupKind::kRanked ? terms.world : 1;
  const std::uint64_t wanted = wish.position == 0 ? 0 : (wish.position - 1) / round * round + 1;
  if (wanted != 0) {
    std::uint64_t oldest = 1;
    for (const std::uint32_t lane : memory_.layout().producing_lanes) {
      // acquire, pairs with the lane's release: the slots of batches below it are written again.
      oldest = std::max(oldest, memory_.lane(lane).retire.load(std::memory_order_acquire));
    }
    if (wanted < oldest) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("batch {} is no longer held, the oldest one is {}: start the feed "
                               "from an earlier snapshot (ringfeed run --resume DIR), or, if its "
                               "batches are planned ahead, with --from-batch",
                               wish.position, oldest)};
    }
  }
  const std::optional<std::uint32_t> page = free_page();
  if (!page) {
    return Error{ErrorCode::kBusy,
                 fmt::format("consumer group '{}' cannot join: the feed has {} groups, which is "
                             "the maximum: use one of them, or let one leave",
                             wish.name, shm::kGroupsMax)};
  }
  make_room(*page);
  write_head(*page, terms);
  Group& group = groups_[*page];
  group.wanted = wanted;
  group.replaces = replaces;
  if (replaces) {
    // relaxed: published by the state; read by the next supervisor.
    memory_.replacing().store((*page + 1) << 8 | (*replaces + 1), std::memory_order_relaxed);
  }
  set_start(*page, wanted);
  RF_FAILPOINT("supervisor.group.begun");
  join(*page, wish.oldest);
  group.reported = GroupState::kJoining;
  return *page;
}

// The group goes on on this page: the one before it ends.
void ConsumerGroups::follow(std::uint32_t group) {
  const std::optional<std::uint32_t> before = std::exchange(groups_[group].replaces, {});
  if (before && state(*before) == GroupState::kActive &&
      groups_[*before].terms.name == groups_[group].terms.name) {
    set_declared(group, groups_[*before].declared);
    set_declared(*before, false);
    RF_FAILPOINT("supervisor.group.following");
    set_state(*before, GroupState::kDraining);
  }
  RF_FAILPOINT("supervisor.group.followed");
  // release: the old page drains before this is forgotten.
  memory_.replacing().store(0, std::memory_order_release);
}

void ConsumerGroups::join(std::uint32_t group, bool oldest) {
  groups_[group].oldest = oldest;
  memory_.account(group).head.from_oldest = oldest ? 1 : 0;
  memory_.group(group).head.from_oldest = oldest ? 1 : 0;
  bar(group, false);
  set_state(group, GroupState::kJoining);
}

Result<MemberPlace> ConsumerGroups::enter(const GroupWish& wish, const process::Identity& who,
                                          std::uint64_t now_ms) {
  if (wish.name.empty() || wish.name.size() >= sizeof(shm::GroupHead::name)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("'{}' cannot be the name of a consumer group: give 1 to {} characters",
                             wish.name, sizeof(shm::GroupHead::name) - 1)};
  }
  move_on(now_ms);  // what changes here is told by the next call
  MemberPlace place;
  const std::optional<std::uint32_t> existing = find(wish.name);
  if (existing) {
    if (Status fits = check_wish(wish, *existing); !fits) return fits.error();
  }
  const bool ranked =
      existing ? groups_[*existing].terms.kind == shm::GroupKind::kRanked
               : wish.kind.value_or(wish.rank ? shm::GroupKind::kRanked
                                              : shm::GroupKind::kShared) == shm::GroupKind::kRanked;
  const std::uint32_t world = existing ? groups_[*existing].terms.world : wish.world.value_or(0);
  if (ranked && (!wish.rank || *wish.rank >= world)) {
    return Error{
        ErrorCode::kInvalidArgument,
        wish.rank ? fmt::format("rank {} of consumer group '{}', whose world is {}: give a "
                                "rank from 0 to {}",
                                *wish.rank, wish.name, world, world - std::min(world, 1U))
                  : fmt::format("consumer group '{}' is ranked with a world of {}: give world {} "
                                "and a rank from 0 to {}, or use another group",
                                wish.name, world, world, world - std::min(world, 1U))};
  }
  if (existing && wish.position != 0 &&
      next_batch(*existing, ranked ? wish.rank : std::nullopt) > wish.position &&
      state(*existing) != GroupState::kJoining) {
    Result<std::uint32_t> made = put_back(*existing, wish);
    if (!made) return made.error();
    place.group = *made;
  } else if (existing) {
    if (Status slots = check_slots(groups_[*existing].terms); !slots) return slots.error();
    make_room(*existing);
    place.group = *existing;
  } else {
    Result<std::uint32_t> made = make(wish);
    if (!made) return made.error();
    place.group = *made;
  }
  std::array<process::Identity, shm::kMembersMax>& members = groups_[place.group].members;
  if (ranked) {
    place.member = *wish.rank;
    if (members[place.member].pid != 0) {
      return Error{ErrorCode::kBusy,
                   fmt::format("rank {} of consumer group '{}' is taken by process {}",
                               place.member, wish.name, members[place.member].pid)};
    }
  } else {
    while (place.member < shm::kMembersMax && members[place.member].pid != 0) ++place.member;
    if (place.member == shm::kMembersMax) {
      return Error{ErrorCode::kBusy, fmt::format("consumer group '{}' has {} members, which is the "
                                                 "maximum: let one leave, or use another group",
                                                 wish.name, shm::kMembersMax)};
    }
  }
  // From here on nothing is refused: a group that was made for a member who does not come would be
  // waited for, and nobody would see to its end.
  Group& group = groups_[place.group];
  members[place.member] = who;
  group.made_for_newest = place.group != existing;
  const bool at_most_once = !wish.redeliver.value_or(group.terms.redeliver);
  group.at_most_once[place.member] = at_most_once;
  for (GroupPage* page : {&memory_.account(place.group), &memory_.group(place.group)}) {
    shm::Member& member = page->members[place.member];
    member.pid = static_cast<std::uint32_t>(who.pid);
    member.start_ticks = who.start_ticks;
    RF_FAILPOINT("supervisor.member.entering");
    member.rank = ranked ? place.member : 0;
    member.at_most_once = at_most_once ? 1 : 0;
    // relaxed, all: published by the release of state.
    member.taken.store(0, std::memory_order_relaxed);
    member.done.store(0, std::memory_order_relaxed);
    member.waited_ns.store(0, std::memory_order_relaxed);
    member.last_ns.store(0, std::memory_order_relaxed);
    member.state.store(static_cast<std::uint32_t>(MemberState::kLive), std::memory_order_release);
  }
  group.had_member = any_came_ = true;
  RF_FAILPOINT("supervisor.member.entered");
  return place;
}

// Whoever held it is dead, or nobody is there who could: true if this call changed the word.
bool ConsumerGroups::give_back(std::uint32_t group, std::atomic<std::uint64_t>& word,
                               std::uint32_t member) {
  // max_tries counts deliveries, the word counts those that came to nothing.
  if (!shm::claim_recover(word, static_cast<std::uint8_t>(member),
                          !groups_[group].at_most_once[member],
                          groups_[group].terms.max_tries - 1)) {
    return false;
  }
  // relaxed: a count for people.
  const shm::Claim now = shm::decode_claim(word.load(std::memory_order_relaxed));
  if (now.state == ClaimState::kSkipped) ++groups_[group].closed;
  return true;
}

std::uint64_t ConsumerGroups::lost(std::uint32_t group) const {
  std::uint64_t count = groups_[group].closed;
  for (const std::uint32_t index : memory_.layout().producing_lanes) {
    // relaxed: a count for people.
    count += memory_.lane(index).answers[group].skipped.load(std::memory_order_relaxed);
  }
  return count;
}

// Modelled in tests/model: claims.pml and wakeup_feed.pml.
std::uint32_t ConsumerGroups::leave(const MemberPlace& place, std::uint64_t now_ms,
                                    Leaving how) noexcept {
  GroupPage& page = memory_.group(place.group);
  Group& group = groups_[place.group];
  std::uint32_t returned = 0;
  for (std::uint32_t i = 0; i < memory_.layout().geometry.descriptors; ++i) {
    returned += give_back(place.group, page.words[i], place.member) ? 1 : 0;
  }
  if (group.members[place.member].pid != 0) {
    std::erase(group.keepers, group.members[place.member]);
    group.keepers.push_back(group.members[place.member]);  // make_room() was called before
  }
  group.members[place.member] = {};
  RF_FAILPOINT("supervisor.member.given_back");
  // Who it was stays there, for the next supervisor: he may live and have the page.
  for (GroupPage* free : {&memory_.account(place.group), &page}) {
    shm::Member& member = free->members[place.member];
    // release: only now may the place be given to somebody else; the words were given back before.
    member.state.store(static_cast<std::uint32_t>(MemberState::kFree), std::memory_order_release);
  }
  RF_FAILPOINT("supervisor.member.freed");
  group.left_done = how == Leaving::kDone;
  if (live_members(place.group) == 0) group.empty_since_ms = now_ms;
  memory_.ring_group(place.group);
  memory_.ring_producers();
  memory_.ring_feed();
  return returned;
}

std::optional<ConsumerGroups::Leaving> ConsumerGroups::left(const MemberPlace& place) const {
  const MemberState is = member_state(memory_.group(place.group).members[place.member]);
  if (!shm::has_left(is)) return std::nullopt;
  return is == MemberState::kLeft ? Leaving::kDone : Leaving::kFailed;
}

void ConsumerGroups::take_back(const MemberPlace& place, std::uint64_t now_ms) noexcept {
  leave(place, now_ms);
  Group& group = groups_[place.group];
  if (!std::exchange(group.made_for_newest, false) || group.state != GroupState::kJoining) return;
  if (group.replaces) {
    group.replaces.reset();
    // release: the page before has been the group's all the time.
    memory_.replacing().store(0, std::memory_order_release);
  }
  set_state(place.group, GroupState::kDraining);
}

void ConsumerGroups::close(std::uint32_t group) {
  if (groups_[group].declared || state(group) != GroupState::kActive) return;
  set_state(group, GroupState::kDraining);
}

// Only when every lane has answered: one that was stopped while it closed a word of the page's last
// group would else close a batch of this one.
void ConsumerGroups::clear_words(GroupPage& page) {
  // relaxed, all: published by the release of state.
  for (std::atomic<std::uint64_t>& word : page.words) word.store(0, std::memory_order_relaxed);
  // The hint of the page's last group may lie beyond the start of this one.
  page.low.store(0, std::memory_order_relaxed);
  page.waits.sum_ns.store(0, std::memory_order_relaxed);
  for (std::atomic<std::uint64_t>& count : page.waits.counts) {
    count.store(0, std::memory_order_relaxed);
  }
}

// All producing lanes respect the group in this epoch: its first batch can be fixed. Modelled in
// tests/model/claims.pml.
bool ConsumerGroups::try_admit(std::uint32_t group) {
  GroupPage& page = memory_.group(group);
  const auto epoch = static_cast<std::uint32_t>(groups_[group].epoch);
  std::uint64_t from = 1;
  for (const std::uint32_t index : memory_.layout().producing_lanes) {
    const shm::LanePage& lane = memory_.lane(index);
    if (memory_.lane_finished(index)) {
      // relaxed: ordered by the acquire in lane_finished; a finished lane reuses nothing any more.
      from = std::max(from, lane.retire.load(std::memory_order_relaxed));
      continue;
    }
    const shm::AdmissionAnswer& answer = lane.answers[group];
    // acquire, pairs with the lane's release of epoch: its `from` is stored.
    if (answer.epoch.load(std::memory_order_acquire) != epoch) return false;
    from = std::max(from, answer.from.load(std::memory_order_relaxed));
  }
  clear_words(page);
  clear_words(memory_.account(group));
  RF_FAILPOINT("supervisor.group.cleared");
  const std::uint64_t wanted = groups_[group].wanted;
  std::uint64_t start = groups_[group].oldest ? from : std::max(from, memory_.newest_batch() + 1);
  // What was held when it was asked for may have been given up since: then the group stays where
  // it was, and the member sees that.
  if (wanted != 0) {
    start = std::max(from, wanted);
    if (from > wanted && groups_[group].replaces) start = next_batch(*groups_[group].replaces);
  }
  set_start(group, start);
  RF_FAILPOINT("supervisor.group.admitting");
  ever_joined_ = true;
  if (live_members(group) == 0) groups_[group].empty_since_ms = 0;
  set_state(group, GroupState::kActive);
  if (groups_[group].replaces) follow(group);
  return true;
}

bool ConsumerGroups::any_taken(std::uint32_t group) const {
  const GroupPage& page = memory_.group(group);
  return std::any_of(page.words, page.words + memory_.layout().geometry.descriptors,
                     [](const std::atomic<std::uint64_t>& word) {
                       // acquire, pairs with the release of claim_finish.
                       return shm::decode_claim(word.load(std::memory_order_acquire)).state ==
                              ClaimState::kTaken;
                     });
}

// What stands in the page of a group that no lane, and no member who keeps to the rules, can have
// written; empty: nothing. Not everything wrong can be told from what is right: the rest spoils the
// group, and nobody else, because what concerns others is not read from the page.
std::string_view ConsumerGroups::damage(std::uint32_t g) const {
  const Group& group = groups_[g];
  const GroupTerms& terms = group.terms;
  const GroupPage& page = memory_.group(g);
  // acquire: a producing lane may have set DRAINING.
  const auto seen = static_cast<GroupState>(page.head.state.load(std::memory_order_acquire));
  if (seen != group.state &&
      !(group.state == GroupState::kActive && seen == GroupState::kDraining &&
        terms.policy != shm::GroupPolicy::kBlock)) {
    return "state";
  }
  const bool same_terms =
      page.head.kind == static_cast<std::uint32_t>(terms.kind) &&
      page.head.policy == static_cast<std::uint32_t>(terms.policy) &&
      page.head.redeliver == (terms.redeliver ? 1 : 0) && page.head.max_hold == terms.max_hold &&
      page.head.max_tries == terms.max_tries &&
      page.head.world == (terms.kind == shm::GroupKind::kRanked ? terms.world : 0) &&
      page.head.stall_ms == stall_ms_of(terms) && page.head.rejoin_ms == terms.rejoin_ms &&
      page.head.declared == (group.declared ? 1 : 0) &&
      page.head.from_oldest == (group.oldest ? 1 : 0) && page.head.brief == (terms.brief ? 1 : 0) &&
      terms.name ==
          std::string_view(page.head.name, ::strnlen(page.head.name, sizeof page.head.name));
  if (!same_terms) return "terms";
  // relaxed, both: stored by this process, or the supervisor before it.
  if (page.head.epoch.load(std::memory_order_relaxed) != group.epoch) return "epoch";
  if (page.head.start.load(std::memory_order_relaxed) != group.start) return "start";
  for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
    const shm::Member& member = page.members[m];
    const process::Identity& who = group.members[m];
    const MemberState is = member_state(member);
    const bool sound = who.pid == 0
                           ? is == MemberState::kFree
                           : is_own_word(is) && member.pid == static_cast<std::uint32_t>(who.pid) &&
                                 member.start_ticks == who.start_ticks &&
                                 member.at_most_once == (group.at_most_once[m] ? 1 : 0);
    if (!sound) return "members";
  }
  // Until the group is admitted its words are those of the page's last group.
  if (group.state == GroupState::kJoining) return {};
  // relaxed: a hint, and checked as such.
  std::uint64_t claimed = page.low.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < memory_.layout().geometry.descriptors; ++i) {
    // acquire: what was published when the word was written is seen below.
    const shm::Claim claim = shm::decode_claim(page.words[i].load(std::memory_order_acquire));
    if (claim.state > ClaimState::kSkipped || claim.member >= shm::kMembersMax) return "words";
    claimed = std::max(claimed, claim.seq);
  }
  // A batch can be claimed a moment before its lane has counted it, so there is some room.
  const bool sound = claimed <= memory_.newest_batch() + memory_.layout().geometry.descriptors;
  return sound ? std::string_view() : "words";
}

void ConsumerGroups::bar(std::uint32_t group, bool barred) {
  groups_[group].barred = barred;
  for (const std::uint32_t index : memory_.layout().producing_lanes) {
    std::atomic<std::uint32_t>& bars = memory_.lane(index).groups_barred;
    // relaxed: only this process writes it.
    const std::uint32_t others = bars.load(std::memory_order_relaxed) & ~(1U << group);
    // release, pairs with the lane's acquire: the page of a group that is no longer barred has been
    // written anew.
    bars.store(others | (barred ? 1U << group : 0), std::memory_order_release);
  }
}

// Makes the page say again what it has to, and finds out whether somebody spoils it.
void ConsumerGroups::look_at_page(std::uint32_t g) {
  Group& group = groups_[g];
  GroupPage& page = memory_.group(g);
  if (group.state == GroupState::kUnused || group.barred) {
    // relaxed: compared, and set right as long as somebody goes on writing.
    if (page.head.state.load(std::memory_order_relaxed) ==
        static_cast<std::uint32_t>(group.state)) {
      return;
    }
    // One who was a member may still have the page.
    if (!group.barred) bar(g, true);
    return set_state(g, group.state);
  }
  group.damage = damage(g);
  if (!group.damage.empty()) {
    bar(g, true);
    return set_state(g, GroupState::kDraining);
  }
  group.state = state(g);  // a lane may have detached it
  if (group.state != GroupState::kActive) return;
  for (std::uint32_t i = 0; i < memory_.layout().geometry.descriptors; ++i) {
    // acquire, pairs with the member's claim.
    const shm::Claim claim = shm::decode_claim(page.words[i].load(std::memory_order_acquire));
    // Nobody is there who could hold it: it was written by one who had no right to.
    if (claim.state == ClaimState::kTaken && claim.member < shm::kMembersMax &&
        group.members[claim.member].pid == 0) {
      give_back(g, page.words[i], claim.member);
    }
  }
}

std::uint64_t ConsumerGroups::rejoin_left_ms(std::uint32_t g, std::uint64_t now_ms) const {
  const Group& group = groups_[g];
  const std::uint64_t most = group.terms.brief && group.left_done
                                 ? std::min(kBriefMs, group.terms.rejoin_ms)
                                 : group.terms.rejoin_ms;
  const std::uint64_t empty_ms = now_ms - std::min(now_ms, group.empty_since_ms);
  return most - std::min(most, empty_ms);
}

std::vector<ConsumerGroups::Change> ConsumerGroups::advance(std::uint64_t now_ms) {
  move_on(now_ms);
  return std::exchange(untold_, {});
}

// Modelled in tests/model/claims.pml.
void ConsumerGroups::move_on(std::uint64_t now_ms) {
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    Group& group = groups_[g];
    look_at_page(g);
    if (state(g) == GroupState::kJoining) try_admit(g);
    if (state(g) == GroupState::kActive && !group.declared && group.had_member &&
        live_members(g) == 0) {
      if (group.empty_since_ms == 0) group.empty_since_ms = now_ms;
      if (rejoin_over(g, now_ms)) set_state(g, GroupState::kDraining);
    }
    // Every claim was a member's and went back with him: what is left in the words is nobody's.
    if (state(g) == GroupState::kDraining && live_members(g) == 0) {
      // An output that keeps the newest is never without a group: it would stand still.
      if (group.declared && (group.barred || memory_.layout().keep_newest)) {
        write_head(g, GroupTerms(group.terms));
        set_declared(g, true);
        join(g, true);
      } else {
        group.unused_since = ++uses_;
        RF_FAILPOINT("supervisor.group.leaving");
        set_state(g, GroupState::kUnused);
      }
    }
    if (const GroupState now = state(g); now != group.reported) {
      untold_.push_back({g, now, group.terms.name, group.damage});
      group.reported = now;
    }
  }
}

bool ConsumerGroups::in_motion() const {
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    const GroupState now = state(g);
    if (now == GroupState::kJoining) return true;
    if (now == GroupState::kDraining && live_members(g) == 0) return true;
  }
  return false;
}

std::uint32_t ConsumerGroups::live_members(std::uint32_t group) const {
  const auto& members = groups_[group].members;
  return static_cast<std::uint32_t>(
      std::count_if(members.begin(), members.end(), [](const auto& who) { return who.pid != 0; }));
}

std::uint32_t ConsumerGroups::live_members() const {
  std::uint32_t members = 0;
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (state(g) != GroupState::kUnused) members += live_members(g);
  }
  return members;
}

std::uint64_t ConsumerGroups::unfinished(std::uint32_t group, bool at_end_counts) const {
  if (groups_[group].barred) return 0;
  const GroupPage& page = memory_.group(group);
  const std::uint64_t descriptors = memory_.layout().geometry.descriptors;
  std::uint64_t count = 0;
  for (const std::uint64_t s : memory_.described()) {
    if (shm::group_finished(page, s, descriptors)) continue;
    const shm::Claim claim =
        // acquire, pairs with the member's claim.
        shm::decode_claim(page.words[s % descriptors].load(std::memory_order_acquire));
    if (at_end_counts && claim.seq == s && claim.state == ClaimState::kTaken &&
        claim.member < shm::kMembersMax &&
        member_state(page.members[claim.member]) == MemberState::kAtEnd) {
      continue;
    }
    ++count;
  }
  return count;
}

std::uint64_t ConsumerGroups::next_batch(std::uint32_t group,
                                         std::optional<std::uint32_t> rank) const {
  const std::uint64_t descriptors = memory_.layout().geometry.descriptors;
  const std::uint64_t world = rank ? std::max(groups_[group].terms.world, 1U) : 1;
  const auto is_own = [&](std::uint64_t s) { return !rank || (s - 1) % world == *rank; };
  for (const std::uint64_t s : memory_.described()) {
    if (is_own(s) && !shm::group_finished(memory_.group(group), s, descriptors)) return s;
  }
  std::uint64_t s = memory_.newest_batch() + 1;
  while (!is_own(s)) ++s;
  return s;
}

std::uint64_t ConsumerGroups::next_batch_in(const shm::GroupPage& page) const {
  for (const std::uint64_t s : memory_.described()) {
    if (!shm::group_finished(page, s, memory_.layout().geometry.descriptors)) return s;
  }
  return memory_.newest_batch() + 1;
}

// Calls `what` with the newest batch of each slot, newest first.
template <typename What>
void ConsumerGroups::each_slot(const What& what) const {
  std::set<std::uint32_t> seen;
  const layout::OutputMemory::Described described = memory_.described();
  for (std::size_t i = described.count; i-- != 0;) {
    const std::uint64_t s = described.batches[i];
    if (seen.insert(memory_.descriptor(s).slot).second) what(s);
  }
}

std::uint32_t ConsumerGroups::slots_used() const {
  std::uint32_t used = 0;
  each_slot([&](std::uint64_t s) {
    bool needed = !ever_joined_;
    for (std::uint32_t g = 0; g < shm::kGroupsMax && !needed; ++g) needed = needs(g, s);
    used += needed ? 1 : 0;
  });
  return used;
}

bool ConsumerGroups::needs(std::uint32_t group, std::uint64_t batch) const {
  const GroupState now = state(group);
  return (now == GroupState::kActive || now == GroupState::kDraining) && !groups_[group].barred &&
         !shm::group_finished(memory_.group(group), batch, memory_.layout().geometry.descriptors);
}

std::vector<std::uint64_t> ConsumerGroups::stuck_on() const {
  const shm::FeedGeometry& feed = memory_.layout().geometry;
  struct LaneSlots {
    std::uint32_t needed = 0;
    std::uint64_t oldest = 0;  // batch in them
  };
  std::vector<LaneSlots> lanes(feed.lanes);
  each_slot([&](std::uint64_t s) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (!needs(g, s)) continue;
      LaneSlots& lane = lanes[(s - 1) % feed.lanes];
      ++lane.needed;
      lane.oldest = s;
      break;
    }
  });
  std::vector<std::uint64_t> stuck;
  for (std::uint32_t lane = 0; lane < feed.lanes; ++lane) {
    if (lanes[lane].needed < feed.slots / feed.lanes ||
        memory_.lane_finished(memory_.layout().producing_lanes[lane])) {
      continue;
    }
    stuck.push_back(lanes[lane].oldest);
  }
  return stuck;
}

std::vector<std::uint32_t> ConsumerGroups::holding_up() const {
  std::set<std::uint32_t> groups;
  for (const std::uint64_t s : stuck_on()) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (needs(g, s)) groups.insert(g);
    }
  }
  return {groups.begin(), groups.end()};
}

std::vector<Awaited> ConsumerGroups::awaited() const {
  std::set<Awaited> found;
  for (const std::uint64_t s : stuck_on()) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (!needs(g, s)) continue;
      const Group& group = groups_[g];
      const auto lives = [&](std::uint32_t m) { return group.members[m].pid != 0; };
      // relaxed: for people.
      const shm::Claim claim =
          shm::decode_claim(memory_.group(g).words[s % memory_.layout().geometry.descriptors].load(
              std::memory_order_relaxed));
      if (claim.seq == s && claim.state == ClaimState::kTaken && claim.member < shm::kMembersMax &&
          lives(claim.member)) {
        found.insert({g, claim.member});
      } else if (group.terms.kind == shm::GroupKind::kRanked) {
        const auto rank = static_cast<std::uint32_t>((s - 1) % std::max(group.terms.world, 1U));
        found.insert({g, lives(rank) ? std::optional(rank) : std::nullopt});
      } else if (live_members(g) == 0) {
        found.insert({g, std::nullopt});
      } else {
        for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
          if (lives(m)) found.insert({g, m});
        }
      }
    }
  }
  return {found.begin(), found.end()};
}

std::vector<std::uint64_t> ConsumerGroups::held(const MemberPlace& place) const {
  std::vector<std::uint64_t> batches;
  const std::uint64_t newest = memory_.newest_batch();
  for (std::uint32_t i = 0; i < memory_.layout().geometry.descriptors; ++i) {
    // relaxed: for people.
    const shm::Claim claim =
        shm::decode_claim(memory_.group(place.group).words[i].load(std::memory_order_relaxed));
    if (claim.state == ClaimState::kTaken && claim.member == place.member && claim.seq <= newest) {
      batches.push_back(claim.seq);
    }
  }
  std::ranges::sort(batches);
  return batches;
}

std::uint64_t ConsumerGroups::active_ns(const MemberPlace& place) const {
  // relaxed: for people.
  return memory_.group(place.group).members[place.member].last_ns.load(std::memory_order_relaxed);
}

std::vector<std::uint32_t> ConsumerGroups::missing_ranks(std::uint32_t group) const {
  std::vector<std::uint32_t> missing;
  if (groups_[group].terms.kind != shm::GroupKind::kRanked) return missing;
  for (std::uint32_t rank = 0; rank < groups_[group].terms.world; ++rank) {
    if (groups_[group].members[rank].pid == 0) missing.push_back(rank);
  }
  return missing;
}

}  // namespace ringfeed::control
