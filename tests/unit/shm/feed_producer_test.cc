// The specification of ringfeed/shm/feed_producer.h and of the feed that feed.h lays out.
#include "ringfeed/shm/feed_producer.h"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ringfeed/shm/crc32c.h"
#include "tests/unit/shm/rig.h"

namespace ringfeed::shm {
namespace {

using testing::arena_word_ref;
using ::testing::ElementsAre;
using testing::LaneMemory;
using testing::SharedMemory;

constexpr std::size_t kOpenSlotWord = 3;

FeedGeometry geometry_of(std::uint32_t lanes, std::uint32_t slots, std::uint32_t descriptors) {
  return {.lanes = lanes, .slots = slots, .descriptors = descriptors, .slot_bytes = kPageBytes};
}

// What survives every process of a feed.
struct FeedMemory {
  explicit FeedMemory(FeedGeometry feed_geometry)
      : geometry(feed_geometry),
        control(feed_control_bytes(geometry.lanes, geometry.descriptors)),
        payload(payload_bytes(geometry)),
        group_pages(kGroupsMax * sizeof(GroupPage)),
        lanes(geometry.lanes) {}

  [[nodiscard]] GroupPage& group(std::size_t g) const {
    return group_pages.at<GroupPage>(g * sizeof(GroupPage));
  }
  [[nodiscard]] const Descriptor& descriptor(std::uint64_t s) const {
    return control.at<Descriptor>(descriptors_offset(geometry.lanes) +
                                  s % geometry.descriptors * sizeof(Descriptor));
  }
  [[nodiscard]] const ProducerLine& line(std::uint32_t lane) const {
    return control.at<ProducerLine>(kProducerLinesOffset + lane * sizeof(ProducerLine));
  }
  [[nodiscard]] bool published(std::uint64_t s) const { return descriptor(s).seq.load() == s; }
  [[nodiscard]] std::uint32_t bell() const {
    return control.at<Bell>(kFeedBellOffset).rings.load();
  }

  FeedGeometry geometry;
  SharedMemory control;
  SharedMemory payload;
  SharedMemory group_pages;
  std::vector<LaneMemory> lanes;
};

// One incarnation of a producing lane. Batch s is the number s in the slot's first eight bytes.
class Lane {
 public:
  explicit Lane(const FeedMemory& memory, std::uint32_t lane = 0)
      : segments_(kFeedControlSegment + 1),
        journal(memory.lanes[lane].page(), memory.lanes[lane].area(0), memory.lanes[lane].area(1),
                testing::kTestJournalEntries, fill(memory, lane)),
        feed(parts(memory, lane), memory.geometry, lane) {
    journal.recover();
  }

  // One batch, in one step; its number, or nothing if no slot was free.
  std::optional<std::uint64_t> publish() {
    const std::optional<std::span<std::byte>> slot = feed.open(journal);
    if (!slot) {
      journal.commit();
      return std::nullopt;
    }
    const std::uint64_t s = feed.next_batch(journal);
    std::memcpy(slot->data(), &s, 8);
    feed.publish(journal, {.bytes = 8, .rows = 1});
    journal.commit();
    feed.announce();
    return s;
  }
  // As many batches as can be published now.
  std::vector<std::uint64_t> publish_all(std::size_t at_most = 1000) {
    std::vector<std::uint64_t> batches;
    while (batches.size() < at_most) {
      const std::optional<std::uint64_t> s = publish();
      if (!s) break;
      batches.push_back(*s);
    }
    return batches;
  }

 private:
  std::span<const WritableSegment> fill(const FeedMemory& memory, std::uint32_t lane) {
    segments_[kArenaSegment] = memory.lanes[lane].arena();
    segments_[kFeedControlSegment] = {memory.control.data(), memory.control.bytes()};
    return segments_;
  }
  static FeedProducer::Memory parts(const FeedMemory& memory, std::uint32_t lane) {
    FeedProducer::Memory parts;
    parts.feed_control = memory.control.data();
    parts.payload = memory.payload.data();
    for (std::size_t g = 0; g < kGroupsMax; ++g) parts.groups[g] = &memory.group(g);
    parts.page = &memory.lanes[lane].page();
    parts.open_slot = arena_word_ref(kOpenSlotWord);
    return parts;
  }
  std::vector<WritableSegment> segments_;

 public:
  Journal journal;
  FeedProducer feed;
};

// The supervisor's part: admission and leaving.
struct Join {
  GroupPolicy policy = GroupPolicy::kBlock;
  std::uint32_t stall_ms = 0;
};
void set_state(const FeedMemory& memory, std::size_t g, GroupState state) {
  memory.group(g).head.state = static_cast<std::uint32_t>(state);
}
void begin_join(const FeedMemory& memory, std::size_t g, const Join& join = {}) {
  GroupPage& group = memory.group(g);
  for (auto& word : group.words) word = 0;
  group.head.policy = static_cast<std::uint32_t>(join.policy);
  group.head.stall_ms = join.stall_ms;
  group.head.epoch.fetch_add(1);
  set_state(memory, g, GroupState::kJoining);
}
bool answered(const FeedMemory& memory, std::size_t g) {
  for (const LaneMemory& lane : memory.lanes) {
    if (lane.page().answers[g].epoch.load() != memory.group(g).head.epoch.load()) return false;
  }
  return true;
}
// At the oldest batch that every lane answers for.
void finish_join(const FeedMemory& memory, std::size_t g) {
  std::uint64_t start = 1;
  for (const LaneMemory& lane : memory.lanes) {
    start = std::max(start, lane.page().answers[g].from.load());
  }
  memory.group(g).head.start = start;
  set_state(memory, g, GroupState::kActive);
}
void join(const FeedMemory& memory, std::vector<Lane*> lanes, std::size_t g,
          const Join& with = {}) {
  begin_join(memory, g, with);
  for (Lane* lane : lanes) lane->feed.attend_groups();
  ASSERT_TRUE(answered(memory, g));
  finish_join(memory, g);
}
GroupState state_of(const FeedMemory& memory, std::size_t g) {
  return static_cast<GroupState>(memory.group(g).head.state.load());
}

// A feed of one lane, and group 0 that has joined before its first batch.
struct Attended {
  Attended(std::uint32_t slots, std::uint32_t descriptors, const Join& with = {})
      : memory(geometry_of(1, slots, descriptors)), lane(memory) {
    join(memory, {&lane}, 0, with);
  }
  const FeedMemory memory;
  Lane lane;
};

// A member's part.
bool take(const FeedMemory& memory, std::size_t g, std::uint64_t s, std::uint8_t member = 1) {
  if (!memory.published(s) || s < memory.group(g).head.start.load()) return false;
  std::atomic<std::uint64_t>& word = memory.group(g).words[s % memory.geometry.descriptors];
  return claim_take(word, word.load(), s, member);
}
bool finish(const FeedMemory& memory, std::size_t g, std::uint64_t s, std::uint8_t member = 1) {
  return claim_finish(memory.group(g).words[s % memory.geometry.descriptors], s, member);
}
bool skipped(const FeedMemory& memory, std::size_t g, std::uint64_t s) {
  const Claim claim = decode_claim(memory.group(g).words[s % memory.geometry.descriptors].load());
  return claim.seq == s && claim.state == ClaimState::kSkipped;
}
// The number that stands in the slot of batch s.
std::uint64_t content(const FeedMemory& memory, std::uint64_t s) {
  std::uint64_t value = 0;
  std::memcpy(&value, memory.payload.data() + memory.descriptor(s).offset, 8);
  return value;
}
void use(const FeedMemory& memory, std::size_t g, std::uint64_t s) {
  ASSERT_TRUE(take(memory, g, s)) << s;
  ASSERT_EQ(content(memory, s), s);
  ASSERT_TRUE(finish(memory, g, s)) << s;
}
void use_all(const FeedMemory& memory, std::size_t g, std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t s = first; s <= last; ++s) ASSERT_NO_FATAL_FAILURE(use(memory, g, s));
}
// The lane's next batch is number s, and the group uses it.
void publish_and_use(const FeedMemory& memory, Lane& lane, std::size_t g, std::uint64_t s) {
  ASSERT_EQ(lane.publish(), s);
  use(memory, g, s);
}

// ---- publishing ---------------------------------------------------------------------------------

TEST(FeedPublish, ABatchIsThereWithItsStepAndNotBefore) {
  const FeedMemory memory(geometry_of(1, 2, 8));
  Lane lane(memory);
  const auto slot = lane.feed.open(lane.journal);
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->size(), kPageBytes);
  EXPECT_EQ(lane.feed.next_batch(lane.journal), 1U);
  lane.feed.publish(
      lane.journal,
      {.bytes = 100, .rows = 7, .layout_id = 3, .token = {11, 12}, .ragged = {21, 22, 23}});
  EXPECT_FALSE(memory.published(1));
  EXPECT_EQ(memory.line(0).newest.load(), 0U);
  lane.journal.commit();
  ASSERT_TRUE(memory.published(1));
  EXPECT_EQ(memory.line(0).newest.load(), 1U);
  const Descriptor& batch = memory.descriptor(1);
  EXPECT_EQ(batch.slot, 0U);
  EXPECT_EQ(memory.payload.data() + batch.offset, slot->data());
  EXPECT_EQ(batch.bytes, 100U);
  EXPECT_EQ(batch.rows, 7U);
  EXPECT_EQ(batch.layout_id, 3U);
  EXPECT_EQ(batch.crc32c, 0U);
  EXPECT_THAT(batch.token, ElementsAre(11, 12));
  EXPECT_THAT(batch.ragged, ElementsAre(21, 22, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_NE(batch.published_ns, 0U);
}

TEST(FeedPublish, AnOpenSlotStaysOpenOverStepsAndIncarnations) {
  const FeedMemory memory(geometry_of(1, 4, 8));
  std::byte* where = nullptr;
  {
    Lane lane(memory);
    where = lane.feed.open(lane.journal)->data();
    lane.journal.commit();
    EXPECT_EQ(lane.feed.open(lane.journal)->data(), where);
  }
  Lane next_life(memory);
  EXPECT_TRUE(next_life.feed.has_room(next_life.journal));
  EXPECT_EQ(next_life.feed.open(next_life.journal)->data(), where);
  EXPECT_EQ(next_life.publish(), 1U);
  EXPECT_NE(next_life.feed.open(next_life.journal)->data(), where);
}

TEST(FeedPublish, AnOpenSlotThatWasNotCommittedIsFreeAgain) {
  const FeedMemory memory(geometry_of(1, 1, 8));
  for (int life = 0; life < 3; ++life) {
    Lane lane(memory);
    ASSERT_TRUE(lane.feed.open(lane.journal));
  }
  EXPECT_EQ(memory.lanes[0].arena_word(kOpenSlotWord), 0U);
}

TEST(FeedPublish, RingsTheTrainersBellOncePerPublishingStep) {
  const FeedMemory memory(geometry_of(1, 3, 8));
  Lane lane(memory);
  lane.feed.announce();
  EXPECT_EQ(memory.bell(), 0U) << "there is nothing to tell";
  lane.publish();
  EXPECT_EQ(memory.bell(), 1U);
  lane.feed.announce();
  EXPECT_EQ(memory.bell(), 1U);
  lane.feed.close(lane.journal);
  lane.journal.commit();
  lane.feed.announce();
  EXPECT_EQ(memory.bell(), 2U);
}

TEST(FeedPublish, ClosingIsPartOfTheStep) {
  const FeedMemory memory(geometry_of(1, 3, 8));
  Lane lane(memory);
  lane.feed.close(lane.journal);
  EXPECT_EQ(memory.line(0).closed.load(), 0U);
  lane.journal.commit();
  EXPECT_EQ(memory.line(0).closed.load(), 1U);
}

TEST(FeedPublishDeathTest, WithoutAnOpenSlotIsRefused) {
  const FeedMemory memory(geometry_of(1, 3, 8));
  Lane lane(memory);
  EXPECT_DEATH(lane.feed.publish(lane.journal, {}), "open != 0");
}

TEST(FeedPublishDeathTest, AGeometryThatCannotWorkIsRefused) {
  for (const FeedGeometry& geometry :
       {geometry_of(2, 3, 8), geometry_of(2, 4, 7), geometry_of(2, 0, 8), geometry_of(1, 9, 8),
        geometry_of(1, 4, kDescriptorsMax + 1)}) {
    const FeedMemory memory(geometry);
    EXPECT_DEATH(Lane{memory}, "check failed")
        << geometry.lanes << " " << geometry.slots << " " << geometry.descriptors;
  }
}

TEST(FeedPublish, SumsUpABatchWhereTheFeedAsksForIt) {
  for (const bool checksum : {false, true}) {
    FeedGeometry geometry = geometry_of(1, 2, 8);
    geometry.checksum = checksum;
    const FeedMemory memory(geometry);
    Lane lane(memory);
    ASSERT_EQ(lane.publish(), 1U);
    const std::uint64_t s = 1;
    EXPECT_EQ(memory.descriptor(1).crc32c, checksum ? crc32c(&s, 8) : 0U);
    EXPECT_EQ(memory.descriptor(1).rows, 1U);
  }
}

// ---- slots --------------------------------------------------------------------------------------

TEST(FeedSlots, TheFirstBatchesWaitForTheFirstTrainer) {
  const FeedMemory memory(geometry_of(1, 3, 8));
  Lane lane(memory);
  EXPECT_THAT(lane.publish_all(), ElementsAre(1, 2, 3));
  EXPECT_FALSE(lane.feed.has_room(lane.journal));
  join(memory, {&lane}, 0);
  EXPECT_EQ(memory.group(0).head.start.load(), 1U) << "none was lost";
  EXPECT_EQ(lane.publish(), std::nullopt);
  use_all(memory, 0, 1, 3);
  EXPECT_TRUE(lane.feed.has_room(lane.journal));
  EXPECT_THAT(lane.publish_all(), ElementsAre(4, 5, 6));
}

TEST(FeedSlots, ComeBackInAnyOrder) {
  auto [memory, lane] = Attended(4, 64);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2, 3, 4));
  use(memory, 0, 3);
  EXPECT_THAT(lane.publish_all(), ElementsAre(5));
  EXPECT_EQ(memory.descriptor(5).slot, memory.descriptor(3).slot);
  use(memory, 0, 1);
  use(memory, 0, 5);
  EXPECT_THAT(lane.publish_all(), ElementsAre(6, 7));
  for (const std::uint64_t s : {2, 4, 6, 7}) EXPECT_EQ(content(memory, s), s);
}

TEST(FeedSlots, OneThatIsHeldIsNeverReused) {
  auto [memory, lane] = Attended(3, 256);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2, 3));
  ASSERT_TRUE(take(memory, 0, 2));
  use(memory, 0, 1);
  use(memory, 0, 3);
  for (std::uint64_t s = 4; s <= 200; ++s) {
    ASSERT_EQ(lane.publish(), s);
    use(memory, 0, s);
    ASSERT_EQ(content(memory, 2), 2U);
  }
  ASSERT_TRUE(finish(memory, 0, 2));
}

// Every group counts, and each on its own.
TEST(FeedSlots, WaitForTheLastOfAllGroups) {
  auto [memory, lane] = Attended(2, 8);
  join(memory, {&lane}, 5);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  use(memory, 0, 1);
  use(memory, 5, 2);
  EXPECT_THAT(lane.publish_all(), ElementsAre());
  use(memory, 5, 1);
  EXPECT_THAT(lane.publish_all(), ElementsAre(3));
}

// Batch s takes the descriptor of s - D: one batch held so long stops the feed, whatever is free.
TEST(FeedSlots, ADescriptorIsReusedOnlyWhenItsBatchIsFinished) {
  auto [memory, lane] = Attended(4, 8);
  ASSERT_EQ(lane.publish(), 1U);
  ASSERT_TRUE(take(memory, 0, 1));
  for (std::uint64_t s = 2; s <= 8; ++s)
    ASSERT_NO_FATAL_FAILURE(publish_and_use(memory, lane, 0, s));
  EXPECT_EQ(lane.publish(), std::nullopt) << "batch 9 would take the descriptor of 1";
  EXPECT_FALSE(lane.feed.has_room(lane.journal));
  EXPECT_TRUE(memory.published(1));
  ASSERT_TRUE(finish(memory, 0, 1));
  EXPECT_EQ(lane.publish(), 9U);
  EXPECT_FALSE(memory.published(1));
  EXPECT_TRUE(memory.published(9));
}

TEST(FeedSlots, GoRoundManyTimes) {
  auto [memory, lane] = Attended(3, 4);
  for (std::uint64_t s = 1; s <= 1000; ++s)
    ASSERT_NO_FATAL_FAILURE(publish_and_use(memory, lane, 0, s));
}

// Two lanes: odd batches and odd slots are one's, even ones the other's, each at its own pace.
TEST(FeedLanes, WriteTheirOwnBatchesIntoTheirOwnSlots) {
  const FeedMemory memory(geometry_of(2, 4, 8));
  Lane first(memory, 0);
  Lane second(memory, 1);
  join(memory, {&first, &second}, 0);
  EXPECT_THAT(second.publish_all(), ElementsAre(2, 4));
  EXPECT_THAT(first.publish_all(), ElementsAre(1, 3));
  for (std::uint64_t s = 1; s <= 4; ++s) {
    EXPECT_EQ(memory.descriptor(s).slot % 2, (s - 1) % 2);
    use(memory, 0, s);
  }
  EXPECT_THAT(first.publish_all(), ElementsAre(5, 7));
  EXPECT_THAT(second.publish_all(), ElementsAre(6, 8));
  EXPECT_EQ(memory.line(0).newest.load(), 7U);
  EXPECT_EQ(memory.line(1).newest.load(), 8U);
}

// ---- policies -----------------------------------------------------------------------------------

TEST(FeedPolicy, BlockWaitsForTheSlowest) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(lane.publish(), std::nullopt);
  EXPECT_EQ(memory.group(0).words[1].load(), 0U) << "nothing was taken from the group";
}

TEST(FeedPolicy, SkipGivesUpTheOldestThatNobodyHolds) {
  auto [memory, lane] = Attended(3, 8, {.policy = GroupPolicy::kSkip});
  ASSERT_THAT(lane.publish_all(3), ElementsAre(1, 2, 3));
  ASSERT_TRUE(take(memory, 0, 1));
  EXPECT_TRUE(lane.feed.has_room(lane.journal));
  EXPECT_FALSE(skipped(memory, 0, 2)) << "looking takes nothing away";
  EXPECT_EQ(lane.publish(), 4U);
  EXPECT_TRUE(skipped(memory, 0, 2));
  EXPECT_FALSE(skipped(memory, 0, 3));
  EXPECT_EQ(content(memory, 1), 1U) << "held";
  EXPECT_FALSE(take(memory, 0, 2)) << "it is gone";
  use(memory, 0, 3);
}

TEST(FeedPolicy, SkipGoesOnAsLongAsThereAreDescriptors) {
  auto [memory, lane] = Attended(3, 256, {.policy = GroupPolicy::kSkip});
  ASSERT_EQ(lane.publish(), 1U);
  ASSERT_TRUE(take(memory, 0, 1));
  for (std::uint64_t s = 2; s <= 256; ++s) ASSERT_EQ(lane.publish(), s);
  EXPECT_EQ(content(memory, 1), 1U);
  EXPECT_EQ(state_of(memory, 0), GroupState::kActive);
}

// Then the group leaves, and the feed goes on for ever, in the other slots.
TEST(FeedPolicy, WhoHoldsABatchWhileAllDescriptorsGoRoundLeavesAndKeepsIt) {
  for (const GroupPolicy policy : {GroupPolicy::kSkip, GroupPolicy::kDetach}) {
    auto [memory, lane] = Attended(3, 16, {.policy = policy, .stall_ms = 0});
    join(memory, {&lane}, 1);
    ASSERT_EQ(lane.publish(), 1U);
    ASSERT_TRUE(take(memory, 0, 1));
    ASSERT_TRUE(take(memory, 1, 1) && finish(memory, 1, 1));
    for (std::uint64_t s = 2; s <= 100; ++s) {
      std::optional<std::uint64_t> published;
      for (int i = 0; i < 1'000'000 && !published; ++i) published = lane.publish();
      ASSERT_EQ(published, s);
      ASSERT_TRUE(take(memory, 1, s) && finish(memory, 1, s));
      ASSERT_NE(memory.descriptor(s).slot, 0U) << "the slot is still in its hands";
    }
    EXPECT_EQ(state_of(memory, 0), GroupState::kDraining);
    // Its successor knows the same.
    Lane next(memory);
    for (std::uint64_t s = 101; s <= 120; ++s) {
      ASSERT_EQ(next.publish(), s);
      ASSERT_TRUE(take(memory, 1, s) && finish(memory, 1, s));
      ASSERT_NE(memory.descriptor(s).slot, 0U);
    }
    // The supervisor has seen the last member go.
    set_state(memory, 0, GroupState::kUnused);
    bool reused = false;
    for (std::uint64_t s = 121; s <= 126; ++s) {
      ASSERT_EQ(next.publish(), s);
      ASSERT_TRUE(take(memory, 1, s) && finish(memory, 1, s));
      reused = reused || memory.descriptor(s).slot == 0;
    }
    EXPECT_TRUE(reused);
  }
}

TEST(FeedPolicy, ABlockingGroupKeepsItsDescriptors) {
  auto [memory, lane] = Attended(3, 16);
  ASSERT_EQ(lane.publish(), 1U);
  ASSERT_TRUE(take(memory, 0, 1));
  for (std::uint64_t s = 2; s <= 16; ++s)
    ASSERT_NO_FATAL_FAILURE(publish_and_use(memory, lane, 0, s));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(lane.publish(), std::nullopt);
  ASSERT_TRUE(finish(memory, 0, 1));
  EXPECT_EQ(lane.publish(), 17U);
}

TEST(FeedPolicy, SkipStopsWhenEverySlotIsHeld) {
  auto [memory, lane] = Attended(2, 8, {.policy = GroupPolicy::kSkip});
  ASSERT_THAT(lane.publish_all(2), ElementsAre(1, 2));
  ASSERT_TRUE(take(memory, 0, 1));
  ASSERT_TRUE(take(memory, 0, 2));
  EXPECT_EQ(lane.publish(), std::nullopt);
}

// A batch is worth something as long as giving it up would free nothing.
TEST(FeedPolicy, SkipGivesNothingUpWhileAnotherGroupNeedsTheSlots) {
  auto [memory, lane] = Attended(3, 8, {.policy = GroupPolicy::kSkip});
  join(memory, {&lane}, 1, {.policy = GroupPolicy::kBlock});
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2, 3));
  for (std::uint64_t s = 1; s <= 3; ++s) EXPECT_FALSE(skipped(memory, 0, s)) << s;
  use(memory, 1, 2);
  EXPECT_EQ(lane.publish(), 4U);
  EXPECT_TRUE(skipped(memory, 0, 2)) << "this one was in the way";
  EXPECT_FALSE(skipped(memory, 0, 1));
  EXPECT_FALSE(skipped(memory, 0, 3));
}

// open() finds the slots held; before the lane has read its bells, one comes back. The lane has to
// see it, or sleeps although nobody will ring again.
TEST(FeedPolicy, TheSleepersLookSeesWhatOpenWouldMakeFree) {
  auto [memory, lane] = Attended(2, 8, {.policy = GroupPolicy::kSkip});
  join(memory, {&lane}, 1, {.policy = GroupPolicy::kBlock});
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  EXPECT_FALSE(lane.feed.has_room(lane.journal));
  use(memory, 1, 1);
  EXPECT_TRUE(lane.feed.has_room(lane.journal));
  EXPECT_FALSE(skipped(memory, 0, 1)) << "looking takes nothing away";
  EXPECT_EQ(lane.publish(), 3U);
}

TEST(FeedPolicy, DetachLetsAStalledGroupGo) {
  auto [memory, lane] = Attended(2, 8, {.policy = GroupPolicy::kDetach, .stall_ms = 0});
  ASSERT_THAT(lane.publish_all(2), ElementsAre(1, 2));
  ASSERT_TRUE(take(memory, 0, 1));
  // Any wait is too long for this group; the loop only lets the clock move.
  while (state_of(memory, 0) == GroupState::kActive) ASSERT_EQ(lane.publish(), std::nullopt);
  EXPECT_EQ(state_of(memory, 0), GroupState::kDraining);
  EXPECT_EQ(lane.publish(), 3U);
  EXPECT_TRUE(skipped(memory, 0, 2));
  EXPECT_EQ(content(memory, 1), 1U) << "what a live member holds stays";
}

// Long after the descriptors have come round, and with another group that takes everything.
TEST(FeedPolicy, DetachLetsAGroupGoThatStallsLate) {
  auto [memory, lane] = Attended(4, 8, {.policy = GroupPolicy::kDetach, .stall_ms = 0});
  join(memory, {&lane}, 1);
  for (std::uint64_t s = 1; s <= 30; ++s) {
    ASSERT_EQ(lane.publish(), s);
    for (const std::uint32_t group : {0U, 1U}) {
      if (group == 0 && s > 26) continue;  // it stalls
      ASSERT_TRUE(take(memory, group, s));
      ASSERT_TRUE(finish(memory, group, s));
    }
  }
  std::optional<std::uint64_t> next;
  for (int i = 0; i < 1'000'000 && !next; ++i) next = lane.publish();
  EXPECT_EQ(next, 31U);
  EXPECT_EQ(state_of(memory, 0), GroupState::kDraining);
}

TEST(FeedPolicy, DetachIsPatientUntilStallMsIsOver) {
  auto [memory, lane] = Attended(2, 8, {.policy = GroupPolicy::kDetach, .stall_ms = 3'600'000});
  ASSERT_THAT(lane.publish_all(2), ElementsAre(1, 2));
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(lane.publish(), std::nullopt);
  EXPECT_EQ(state_of(memory, 0), GroupState::kActive);
}

// ---- admission and leaving ----------------------------------------------------------------------

TEST(FeedAdmission, AnAnswerSaysFromWhichBatchOnNothingIsReused) {
  auto [memory, lane] = Attended(3, 8);
  for (std::uint64_t s = 1; s <= 10; ++s)
    ASSERT_NO_FATAL_FAILURE(publish_and_use(memory, lane, 0, s));
  begin_join(memory, 1);
  EXPECT_FALSE(answered(memory, 1));
  lane.feed.attend_groups();
  ASSERT_TRUE(answered(memory, 1));
  const std::uint64_t from = memory.lanes[0].page().answers[1].from.load();
  EXPECT_EQ(from, memory.lanes[0].page().retire.load());
  EXPECT_LE(from, 10U) << "at least the newest batch is still there";
  for (std::uint64_t s = from; s <= 10; ++s) EXPECT_EQ(content(memory, s), s) << s;
}

TEST(FeedAdmission, ALaneRespectsAGroupFromItsAnswerOn) {
  auto [memory, lane] = Attended(3, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2, 3));
  use_all(memory, 0, 1, 3);
  begin_join(memory, 1);
  lane.feed.attend_groups();
  // Everything is finished for group 0; the joining group may still want all of it.
  EXPECT_EQ(lane.publish(), std::nullopt);
  finish_join(memory, 1);
  EXPECT_EQ(lane.publish(), std::nullopt);
  use_all(memory, 1, 1, 3);
  EXPECT_EQ(lane.publish(), 4U);
}

TEST(FeedAdmission, ALaneAnswersBeforeItReusesAnything) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  use(memory, 0, 1);
  begin_join(memory, 1);
  EXPECT_EQ(lane.publish(), std::nullopt) << "the answer came first, and holds batch 1";
  EXPECT_TRUE(answered(memory, 1));
  EXPECT_EQ(memory.lanes[0].page().answers[1].from.load(), 1U);
}

// A group that begins to join when the lane has had its turn rings before the lane reads its bells.
TEST(FeedAdmission, TheSleepersLookAnswers) {
  const FeedMemory memory(geometry_of(1, 2, 8));
  Lane lane(memory);
  begin_join(memory, 0);
  EXPECT_TRUE(lane.feed.has_room(lane.journal)) << "the first batches are for this group";
  EXPECT_TRUE(answered(memory, 0));
}

TEST(FeedAdmission, AGroupThatStartsLaterDoesNotHoldWhatWasBefore) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  begin_join(memory, 1);
  lane.feed.attend_groups();
  memory.group(1).head.start = 3;  // at the newest
  set_state(memory, 1, GroupState::kActive);
  use(memory, 0, 1);
  EXPECT_EQ(lane.publish(), 3U);
  use(memory, 1, 3);
  EXPECT_FALSE(take(memory, 1, 2));
}

TEST(FeedAdmission, TheNextIncarnationStandsByTheAnswer) {
  const FeedMemory memory(geometry_of(1, 2, 8));
  {
    Lane lane(memory);
    join(memory, {&lane}, 0);
    ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
    begin_join(memory, 1);
    lane.feed.attend_groups();
  }
  use(memory, 0, 1);
  use(memory, 0, 2);
  Lane next_life(memory);
  EXPECT_EQ(next_life.publish(), std::nullopt);
  EXPECT_EQ(memory.lanes[0].page().answers[1].from.load(), 1U);
}

TEST(FeedAdmission, APageUsedAgainIsAnsweredAgain) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  use(memory, 0, 1);
  use(memory, 0, 2);
  ASSERT_THAT(lane.publish_all(), ElementsAre(3, 4));
  set_state(memory, 0, GroupState::kUnused);
  begin_join(memory, 0);
  EXPECT_FALSE(answered(memory, 0));
  lane.feed.attend_groups();
  EXPECT_TRUE(answered(memory, 0));
  EXPECT_EQ(memory.lanes[0].page().answers[0].from.load(), 3U);
}

TEST(FeedLeaving, ADrainingGroupsUntakenBatchesAreClosed) {
  auto [memory, lane] = Attended(3, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2, 3));
  ASSERT_TRUE(take(memory, 0, 2));
  set_state(memory, 0, GroupState::kDraining);
  lane.feed.attend_groups();
  EXPECT_TRUE(skipped(memory, 0, 1));
  EXPECT_FALSE(skipped(memory, 0, 2));
  EXPECT_TRUE(skipped(memory, 0, 3));
  EXPECT_EQ(lane.publish(), 4U);
  EXPECT_TRUE(finish(memory, 0, 2)) << "the member may still give it back";
}

// Nobody waits for the answer of a finished lane, so one that is started again must keep its hands
// off: when it comes to close a batch, the page may be another group's.
TEST(FeedLeaving, AFinishedLaneTouchesNoGroup) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(1), ElementsAre(1));
  lane.feed.close(lane.journal);
  lane.journal.commit();
  set_state(memory, 0, GroupState::kDraining);
  begin_join(memory, 1);
  Lane next_life(memory);
  next_life.feed.attend_groups();
  EXPECT_FALSE(skipped(memory, 0, 1));
  EXPECT_FALSE(answered(memory, 1));
}

TEST(FeedLeaving, TheSleepersLookClosesWhatIsLeft) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  EXPECT_FALSE(lane.feed.has_room(lane.journal));
  set_state(memory, 0, GroupState::kDraining);
  EXPECT_TRUE(lane.feed.has_room(lane.journal));
  EXPECT_TRUE(skipped(memory, 0, 1));
}

TEST(FeedLeaving, WithoutGroupsTheFeedWaitsForTheNextOne) {
  auto [memory, lane] = Attended(2, 8);
  ASSERT_THAT(lane.publish_all(), ElementsAre(1, 2));
  use(memory, 0, 1);
  set_state(memory, 0, GroupState::kUnused);
  EXPECT_EQ(lane.publish(), std::nullopt);
  EXPECT_TRUE(memory.published(1) && memory.published(2));
  join(memory, {&lane}, 1);
  use(memory, 1, 1);
  EXPECT_EQ(lane.publish(), 3U);
}

TEST(FeedGroups, TheirBellsAreThoseOfTheGroupsThatExist) {
  const FeedMemory memory(geometry_of(1, 2, 8));
  Lane lane(memory);
  std::array<BellWord, kGroupsMax> words{};
  EXPECT_EQ(lane.feed.group_bells(words), 0U);
  join(memory, {&lane}, 2);
  begin_join(memory, 7);
  ASSERT_EQ(lane.feed.group_bells(words), 2U);
  EXPECT_EQ(words[0].word, &memory.group(2).bell);
  EXPECT_EQ(words[1].word, &memory.group(7).bell);
}

// A trainer can write all over its group's page: its own group suffers, nobody else, and the feed
// stays whole.
TEST(FeedGroups, RandomBytesInAGroupPageHarmOnlyThatGroup) {
  testing::Draws draws(42);
  auto [memory, lane] = Attended(3, 8);
  join(memory, {&lane}, 1, {.policy = GroupPolicy::kSkip});
  std::uint64_t next = 1;
  int published = 0;
  for (int round = 0; round < 2000; ++round) {
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(&memory.group(1));
    for (int i = 0; i < 20; ++i) words[draws.below(512)] = draws.below(~std::uint64_t{0});
    if (const std::optional<std::uint64_t> s = lane.publish()) {
      ASSERT_EQ(*s, next++);
      use(memory, 0, *s);
      ++published;
    }
  }
  EXPECT_GT(published, 0);
  set_state(memory, 1, GroupState::kUnused);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(lane.publish(), next);
    use(memory, 0, next++);
  }
}

// ---- a lane that dies between any two calls -----------------------------------------------------

// Random publishing, taking, finishing, joining and leaving by two lanes, three groups and two
// members each; lanes die at random between any two calls. Whatever happened: batches come in
// order, a slot that is held keeps its batch, and each active group can have every batch from its
// start on.
TEST(FeedRestarts, LoseNothingRepeatNothingAndOverwriteNothing) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::Draws draws(seed);
    const FeedMemory memory(geometry_of(2, 8, 16));
    std::array<std::unique_ptr<Lane>, 2> lanes;
    for (std::uint32_t l = 0; l < 2; ++l) lanes[l] = std::make_unique<Lane>(memory, l);
    struct Group {
      std::uint64_t next_expected = 0;       // lowest batch not yet taken
      std::vector<std::uint64_t> held = {};  // taken, not finished
      bool active = false;
    };
    std::array<Group, 3> groups;
    std::array<std::uint64_t, 2> next = {1, 2};
    std::uint64_t finished_total = 0;
    std::uint64_t deaths = 0;
    for (int operation = 0; operation < 60'000; ++operation) {
      const auto l = static_cast<std::uint32_t>(draws.below(2));
      const std::size_t g = draws.below(3);
      Lane& lane = *lanes[l];
      Group& group = groups[g];
      switch (draws.below(10)) {
        case 0:
        case 1:  // publish, calling one by one; a death may come after each
          for (int call = 0; call < 4; ++call) {
            if (draws.below(8) == 0) {
              lanes[l] = std::make_unique<Lane>(memory, l);
              ++deaths;
              break;
            }
            if (call == 0) {
              const auto slot = lane.feed.open(lane.journal);
              if (!slot) break;
              const std::uint64_t s = lane.feed.next_batch(lane.journal);
              ASSERT_EQ(s, next[l]);
              std::memcpy(slot->data(), &s, 8);
              if (draws.below(2) == 0) lane.journal.commit();
            }
            if (call == 1) lane.feed.publish(lane.journal, {.bytes = 8});
            if (call == 2) {
              lane.journal.commit();
              next[l] += 2;
            }
            if (call == 3) lane.feed.announce();
          }
          break;
        case 2:
        case 3:
        case 4: {  // take the lowest
          if (!group.active || group.held.size() == 3) break;
          const std::uint64_t s = group.next_expected;
          ASSERT_LE(memory.descriptor(s).seq.load(), s) << "overwritten before it was taken";
          if (!memory.published(s)) break;
          ASSERT_TRUE(take(memory, g, s)) << s;
          ASSERT_EQ(content(memory, s), s);
          group.held.push_back(s);
          ++group.next_expected;
          break;
        }
        case 5:
        case 6:
        case 7: {  // give one back, any
          if (group.held.empty()) break;
          const std::size_t which = draws.below(group.held.size());
          ASSERT_EQ(content(memory, group.held[which]), group.held[which]) << "overwritten";
          ASSERT_TRUE(finish(memory, g, group.held[which]));
          group.held.erase(group.held.begin() + static_cast<std::ptrdiff_t>(which));
          ++finished_total;
          break;
        }
        case 8:
          if (draws.below(20) != 0) break;
          if (!group.active) {
            begin_join(memory, g);
            for (const auto& each : lanes) each->feed.attend_groups();
            ASSERT_TRUE(answered(memory, g));
            finish_join(memory, g);
            group.next_expected = memory.group(g).head.start.load();
            group.active = true;
          } else if (g != 0 && group.held.empty()) {
            set_state(memory, g, GroupState::kUnused);
            group.active = false;
          }
          break;
        default:
          if (draws.below(4) != 0) break;
          lanes[l] = std::make_unique<Lane>(memory, l);
          ++deaths;
      }
      for (const Group& each : groups) {
        for (const std::uint64_t s : each.held) ASSERT_EQ(content(memory, s), s) << operation;
      }
    }
    EXPECT_GT(finished_total, 1000U) << "the test has not tested";
    EXPECT_GT(deaths, 500U) << "the test has not tested";
  }
}

}  // namespace
}  // namespace ringfeed::shm
