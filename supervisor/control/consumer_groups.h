// Consumer groups of an output and their members, as the supervisor keeps them in the group pages.
//
// Life of a group (GroupState, stored here with release):
//   UNUSED -> JOINING   enter(): head written first, epoch + 1; lanes are rung
//   JOINING -> ACTIVE   advance(): every producing lane has answered this epoch, or is finished;
//                       words and low cleared, start = max(from) for the oldest, newest + 1 for the
//                       newest
//   UNUSED -> ACTIVE    declare(): before any worker starts; start = 1
//   ACTIVE -> DRAINING  advance(): no member for rejoin_ms (kBriefMs if that is GroupTerms::brief
//                       and the last one left of itself); close(); or a lane (policy detach)
//   DRAINING -> UNUSED  advance(): no word is TAKEN and no member lives
// A group that is put back to an earlier batch (GroupWish::position) is admitted anew, on another
// page, while the old page still holds its batches; with the new page's ACTIVE the old one drains.
// So no word ever goes back.
//
// Nothing here waits: advance() looks and moves on what can be moved. A death of the supervisor
// leaves a group in one of these states, and each can be taken up from the account.
//
// A member is freed only with proof of its death, or at its own wish; its claims go back first.
//
// Members may write to their group's page, so nothing that concerns anybody else is read back from
// it: state, terms, members and start are kept here and in the account (feed.h), which is there for
// the next supervisor; the page is a copy for others. advance() compares the two. A group whose
// page says what nobody who keeps to the rules can have written is barred: lanes no longer respect
// it, its members find it DRAINING, and when they are gone it is UNUSED, or, if it was declared,
// made anew.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "supervisor/layout/feed_memory.h"
#include "supervisor/os/identity.h"

namespace ringfeed::control {

// What one member may hold, unless asked for otherwise, when a group of the feed gives way (skip,
// detach): only then is there room for the others whatever a member keeps.
inline constexpr std::uint32_t kMaxHoldYielding = 2;
// What a trainer may ask for: a week for one that comes back, a day for one that stalls.
inline constexpr std::uint64_t kRejoinMsMax = 7 * 86'400'000ULL;
inline constexpr std::uint64_t kStallMsMax = 86'400'000;
// How long a group waits whose last member has left and not died, if nobody has said how long.
inline constexpr std::uint64_t kBriefMs = 5'000;
// Of trainers that name none.
inline constexpr const char* kDefaultGroup = "default";

struct GroupTerms {
  std::string name;
  shm::GroupKind kind = shm::GroupKind::kShared;
  std::uint32_t world = 0;  // of a ranked group
  shm::GroupPolicy policy = shm::GroupPolicy::kBlock;
  std::uint64_t stall_ms = 10'000;
  bool redeliver = true;        // what a member holds that dies and has not said
  std::uint32_t max_tries = 3;  // deliveries of one batch
  std::uint32_t max_hold = 0;   // of one member; 0: as many as there are slots
  std::uint64_t rejoin_ms = 60'000;
  bool brief = false;  // nobody has asked for rejoin_ms: see kBriefMs
};

// A member that must take or give back a batch before a producing lane can write another one.
struct Awaited {
  std::uint32_t group = 0;
  std::optional<std::uint32_t> member = {};  // nullopt: the group has no member who could
  friend auto operator<=>(const Awaited&, const Awaited&) = default;
};

// What a trainer asks for: what is absent agrees with whatever the group has, or is the default of
// a new one.
struct GroupWish {
  std::string name;
  std::optional<shm::GroupKind> kind = {};
  std::optional<std::uint32_t> rank = {};
  std::optional<std::uint32_t> world = {};
  bool oldest = false;
  std::optional<shm::GroupPolicy> policy = {};
  std::optional<std::uint64_t> stall_ms = {};
  std::optional<bool> redeliver = {};  // what this member holds when it dies
  std::optional<std::uint32_t> max_tries = {};
  std::optional<std::uint32_t> max_hold = {};
  std::optional<std::uint64_t> rejoin_ms = {};
  std::uint64_t position = 0;  // the member's next batch; 0: wherever the group is
};

struct MemberPlace {
  std::uint32_t group = 0;
  std::uint32_t member = 0;
  friend auto operator<=>(const MemberPlace&, const MemberPlace&) = default;
};

class ConsumerGroups {
 public:
  explicit ConsumerGroups(const layout::OutputMemory& memory);

  // Makes a group that exists from the start. Errors: kNoMemory (slots), kBusy (16 groups).
  [[nodiscard]] Status declare(const GroupTerms& terms);

  // Takes up what an earlier supervisor has left in its account, and brings the pages up to it.
  // Members are given as they were; whoever finds one dead calls leave().
  struct KnownMember {
    MemberPlace place;
    process::Identity who;
  };
  std::vector<KnownMember> adopt();

  // The place of a new member in the group of that name, which is made if there is none.
  // Errors: kInvalidArgument (rank, world, a position that is not held any more), kIncompatible
  // (the group is of another kind, world or policy), kBusy (full, rank taken, group being closed),
  // kNoMemory (too few slots).
  [[nodiscard]] Result<MemberPlace> enter(const GroupWish& wish, const process::Identity& who,
                                          std::uint64_t now_ms);
  // The member is dead (proved), or leaves: gives back what it holds and frees its place. Returns
  // how many batches went back. May be called again after a death in the middle.
  enum class Leaving { kDone, kFailed };  // nobody is to come in its place; somebody may
  std::uint32_t leave(const MemberPlace& place, std::uint64_t now_ms,
                      Leaving how = Leaving::kFailed) noexcept;
  // Has the member said in its page that it leaves, and how?
  [[nodiscard]] std::optional<Leaving> left(const MemberPlace& place) const;
  // The member that has just entered never came, for it could not be told: as if it had not
  // entered. A group that was made for it goes at once, one that was put back for it stays where it
  // was.
  void take_back(const MemberPlace& place, std::uint64_t now_ms) noexcept;
  // Does not wait rejoin_ms for anybody; declared groups stay.
  void close(std::uint32_t group);

  struct Change {
    std::uint32_t group;
    shm::GroupState state;  // entered now
    std::string name;
    std::string_view damage = {};  // what was wrong with its page, if that is why it leaves
  };
  // Moves on what can be moved on; returns what has changed.
  std::vector<Change> advance(std::uint64_t now_ms);
  // Must advance() be called soon (some milliseconds), although nothing happens?
  [[nodiscard]] bool in_motion() const;

  // Notes in the account what the groups have finished, for a feed in files: their pages are none,
  // and die with all processes.
  void note_words();

  // True once any group has been ACTIVE.
  [[nodiscard]] bool ever_joined() const { return ever_joined_; }
  // A member, of whatever group, whether or not it is still there.
  [[nodiscard]] bool any_came() const { return any_came_; }
  [[nodiscard]] std::uint32_t live_members() const;
  [[nodiscard]] std::uint32_t live_members(std::uint32_t group) const;
  [[nodiscard]] shm::GroupState state(std::uint32_t group) const;
  [[nodiscard]] bool declared(std::uint32_t group) const { return groups_[group].declared; }
  [[nodiscard]] const GroupTerms& terms(std::uint32_t group) const { return groups_[group].terms; }
  [[nodiscard]] bool lives(const MemberPlace& place) const {
    return groups_[place.group].members[place.member].pid != 0;
  }
  // Has a member ever been there, since the group was made?
  [[nodiscard]] bool had_member(std::uint32_t group) const { return groups_[group].had_member; }
  // Without members: how much longer the group waits for one; 0: no longer. Declared groups wait
  // for ever.
  [[nodiscard]] std::uint64_t rejoin_left_ms(std::uint32_t group, std::uint64_t now_ms) const;
  [[nodiscard]] bool rejoin_over(std::uint32_t group, std::uint64_t now_ms) const {
    return live_members(group) == 0 && rejoin_left_ms(group, now_ms) == 0;
  }
  // Since when the group has no member; 0: not known.
  [[nodiscard]] std::uint64_t empty_since_ms(std::uint32_t group) const {
    return groups_[group].empty_since_ms;
  }
  // Number of the admission, as its members know it.
  [[nodiscard]] std::uint64_t epoch(std::uint32_t group) const { return groups_[group].epoch; }
  [[nodiscard]] std::uint64_t start(std::uint32_t group) const { return groups_[group].start; }
  // Batches that the group has lost since it was made: skipped, or closed instead of delivered
  // again.
  [[nodiscard]] std::uint64_t lost(std::uint32_t group) const;

  // Published batches that the group has not finished. With `at_end_counts`, those held by a member
  // that has seen the end of the feed count as finished: what it holds has been worked on.
  [[nodiscard]] std::uint64_t unfinished(std::uint32_t group, bool at_end_counts) const;
  // Lowest batch that the group has not finished; newest + 1 if there is none. With a rank: of
  // those that it takes.
  [[nodiscard]] std::uint64_t next_batch(std::uint32_t group,
                                         std::optional<std::uint32_t> rank = {}) const;
  // The same for a copy of a group's page.
  [[nodiscard]] std::uint64_t next_batch_in(const shm::GroupPage& page) const;
  // Slots whose batch some group still needs.
  [[nodiscard]] std::uint32_t slots_used() const;
  // The groups for whose sake a producing lane has no slot to write into; empty: each has one.
  [[nodiscard]] std::vector<std::uint32_t> holding_up() const;
  // The members for whose sake; as their page says, which they may write.
  [[nodiscard]] std::vector<Awaited> awaited() const;
  // Batches that the member holds, as its page says.
  [[nodiscard]] std::vector<std::uint64_t> held(const MemberPlace& place) const;
  // CLOCK_MONOTONIC of its last claim or release, as its page says; 0: none yet.
  [[nodiscard]] std::uint64_t active_ns(const MemberPlace& place) const;
  // Ranks of a ranked group that no live member has; empty for a shared one.
  [[nodiscard]] std::vector<std::uint32_t> missing_ranks(std::uint32_t group) const;

 private:
  template <typename What>
  void each_slot(const What& what) const;
  struct Group {
    GroupTerms terms;
    bool declared = false;
    bool had_member = false;
    bool oldest = false;                         // from there on
    std::uint64_t wanted = 0;                    // from this batch on, if it is held; 0: as above
    std::optional<std::uint32_t> replaces = {};  // the page of the same group before
    std::uint64_t empty_since_ms = 0;
    bool left_done = false;          // the last member has left, and not died
    std::uint64_t unused_since = 0;  // order in which pages became free
    shm::GroupState reported = shm::GroupState::kUnused;
    shm::GroupState state = shm::GroupState::kUnused;
    std::uint64_t epoch = 0;
    std::uint64_t start = 0;
    std::array<process::Identity, shm::kMembersMax> members = {};  // pid 0: none
    std::array<bool, shm::kMembersMax> at_most_once = {};          // by member
    std::uint64_t closed = 0;  // batches of the dead that nobody gets
    bool barred = false;
    bool made_for_newest = false;  // for the member that entered last, and there was none before
    std::string_view damage = {};
    // Who was a member of this page, and could still write to it if he lives.
    std::vector<process::Identity> keepers = {};
  };

  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
  // For each producing lane that has no slot to write into: the oldest batch in its slots.
  [[nodiscard]] std::vector<std::uint64_t> stuck_on() const;
  // Has the group still to finish this published batch?
  [[nodiscard]] bool needs(std::uint32_t group, std::uint64_t batch) const;
  [[nodiscard]] std::optional<std::uint32_t> free_page() const;
  // With one member more in the group of these terms.
  [[nodiscard]] Status check_slots(const GroupTerms& terms) const;
  [[nodiscard]] Status check_wish(const GroupWish& wish, std::uint32_t group) const;
  [[nodiscard]] Result<std::uint32_t> make(const GroupWish& wish);
  [[nodiscard]] Result<std::uint32_t> put_back(std::uint32_t group, const GroupWish& wish);
  [[nodiscard]] Result<std::uint32_t> begin(const GroupTerms& terms, const GroupWish& wish,
                                            std::optional<std::uint32_t> replaces);
  void make_room(std::uint32_t group);
  void follow(std::uint32_t group);
  // advance(), but for telling.
  void move_on(std::uint64_t now_ms);
  void copy_head(std::uint32_t group, shm::GroupPage& page) const;
  void write_head(std::uint32_t group, const GroupTerms& terms);
  void set_declared(std::uint32_t group, bool declared);
  void set_start(std::uint32_t group, std::uint64_t start);
  void renew_page(std::uint32_t group);
  void settle_words(std::uint32_t group);
  void set_state(std::uint32_t group, shm::GroupState state);
  [[nodiscard]] bool any_yields() const;
  static void clear_words(shm::GroupPage& page);
  bool try_admit(std::uint32_t group);
  [[nodiscard]] bool any_taken(std::uint32_t group) const;
  void join(std::uint32_t group, bool oldest);
  [[nodiscard]] std::string_view damage(std::uint32_t group) const;
  void look_at_page(std::uint32_t group);
  void bar(std::uint32_t group, bool barred);
  bool give_back(std::uint32_t group, std::atomic<std::uint64_t>& word, std::uint32_t member);

  layout::OutputMemory memory_;
  std::array<Group, shm::kGroupsMax> groups_;
  std::vector<Change> untold_;
  bool ever_joined_ = false;
  bool any_came_ = false;
  std::uint64_t uses_ = 0;
};

}  // namespace ringfeed::control
