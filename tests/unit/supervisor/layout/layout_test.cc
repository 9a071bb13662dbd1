// Specification of supervisor/layout: numbering of lanes and rings, sizes of segments, what a
// worker is told, what is refused for want of memory.
#include "ringfeed/shm/layout.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "proto/worker.pb.h"
#include "ringfeed/shm/arena.h"
#include "supervisor/layout/memory.h"
#include "supervisor/layout/worker_setup.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::layout {
namespace {

using test::laid_out;
using test::planned_feed;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> lane_names(const FeedLayout& layout) {
  std::vector<std::string> names;
  for (const LanePlan& lane : layout.lanes) names.push_back(lane.name());
  return names;
}

const RingPlan& ring_between(const FeedLayout& layout, std::uint32_t from, std::uint32_t to) {
  for (const RingPlan& ring : layout.rings) {
    if (ring.from_lane == from && ring.to_lane == to) return ring;
  }
  throw std::out_of_range("no such ring");
}

//        0          1          2           3            4        5
//   source.0 -> mix.0 -> mix.read.0, mix.read.1 -> pack.0, pack.1
//                 ^------ feedback ------|
TEST(FeedLayout, LanesAreNumberedByStageNodeAndNumber) {
  const FeedLayout layout = laid_out({.packers = 2});
  EXPECT_THAT(lane_names(layout),
              ElementsAre("source.0", "mix.0", "mix.read.0", "mix.read.1", "pack.0", "pack.1"));
  for (std::uint32_t i = 0; i < layout.lanes.size(); ++i) EXPECT_EQ(layout.lanes[i].index, i);
  EXPECT_THAT(layout.outputs[0].producing_lanes, ElementsAre(4, 5));
  EXPECT_THAT(layout.groups[0].lanes, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(layout.groups[1].lanes, ElementsAre(4, 5));
}

// Threads of an interpreter would stand in each other's way.
TEST(FeedLayout, ALaneCanHaveAProcessOfItsOwn) {
  test::PlannedFeed feed = planned_feed({.packers = 2});
  NodePlan& pack = *feed.plan.mutable_stages(2)->mutable_nodes(0);
  pack.set_process_per_lane(true);
  pack.set_program("ringfeed-worker-python");
  FeedLayout layout = lay_out(feed.config, feed.plan, feed.wiring, feed.groups);
  ASSERT_EQ(layout.groups.size(), 3U) << "the configured one has no lane left";
  EXPECT_EQ(layout.groups[0].name, "front");
  EXPECT_EQ(layout.groups[1].name, "pack.0");
  EXPECT_THAT(layout.groups[1].lanes, ElementsAre(4));
  EXPECT_THAT(layout.groups[2].lanes, ElementsAre(5));
  EXPECT_EQ(layout.groups[2].program, "ringfeed-worker-python");
  for (std::uint32_t g = 0; g < 3; ++g) {
    for (const std::uint32_t lane : layout.groups[g].lanes) EXPECT_EQ(layout.lanes[lane].group, g);
  }

  // The rest of its stage stays where it was.
  pack.set_process_per_lane(false);
  feed.plan.mutable_stages(1)->mutable_nodes(1)->set_process_per_lane(true);
  layout = lay_out(feed.config, feed.plan, feed.wiring, feed.groups);
  ASSERT_EQ(layout.groups.size(), 4U);
  EXPECT_THAT(layout.groups[0].lanes, ElementsAre(0, 1));
  EXPECT_THAT(layout.groups[1].lanes, ElementsAre(4, 5));
  EXPECT_EQ(layout.groups[2].name, "mix.read.0");
  EXPECT_EQ(layout.groups[3].name, "mix.read.1");
}

TEST(FeedLayout, AParentIsGivenOnlyToLanesWithProcessesOfTheirOwn) {
  test::PlannedFeed feed = planned_feed({});
  NodePlan& node = *feed.plan.mutable_stages(2)->mutable_nodes(0);
  node.set_parent_socket("/run/parent.sock");
  try {
    static_cast<void>(lay_out(feed.config, feed.plan, feed.wiring, feed.groups));
    FAIL() << "was laid out";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIncompatible);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("/run/parent.sock"));
  }
  node.set_process_per_lane(true);
  const FeedLayout layout = lay_out(feed.config, feed.plan, feed.wiring, feed.groups);
  EXPECT_EQ(layout.groups[0].parent_socket, "");
  EXPECT_EQ(layout.groups[1].parent_socket, "/run/parent.sock");
}

// Neither program has both stages.
TEST(FeedLayout, AGroupWithAPluginsStageTakesNoOtherProgram) {
  test::PlannedFeed feed = planned_feed({});
  const auto refusal = [&feed] {
    try {
      static_cast<void>(lay_out(feed.config, feed.plan, feed.wiring, feed.groups));
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  feed.plan.mutable_stages(1)->mutable_nodes(0)->set_no_other_program(true);
  EXPECT_EQ(refusal(), "");
  NodePlan& source = *feed.plan.mutable_stages(0)->mutable_nodes(0);
  source.set_program("ringfeed-worker-python");
  const std::string both =
      "stage group 'front' has stage 'source', which ringfeed-worker-python runs, and stage 'mix' "
      "of a plug-in, which only the plug-in can run: put them into different groups";
  EXPECT_EQ(refusal(), both);
  // In whichever order they come.
  source.clear_program();
  source.set_no_other_program(true);
  feed.plan.mutable_stages(1)->mutable_nodes(0)->clear_no_other_program();
  feed.plan.mutable_stages(1)->mutable_nodes(0)->set_program("ringfeed-worker-python");
  EXPECT_THAT(refusal(), HasSubstr("has stage 'mix', which ringfeed-worker-python runs, and stage "
                                   "'source' of a plug-in"));
}

TEST(FeedLayout, EveryProducingLaneHasARingToEveryConsumingLane) {
  const FeedLayout layout = laid_out({.packers = 3});
  // source>mix 1, orders 2, feedback 2, mix.read>pack 2 x 3.
  EXPECT_EQ(layout.rings.size(), 1U + 2U + 2U + 6U);
  for (const std::uint32_t from : {2U, 3U}) {
    for (const std::uint32_t to : {4U, 5U, 6U}) {
      EXPECT_NO_THROW(static_cast<void>(ring_between(layout, from, to))) << from << ">" << to;
    }
  }
}

TEST(FeedLayout, BothEndsNameTheSameRingsInTheOrderOfThePeers) {
  const FeedLayout layout = laid_out({.packers = 2});
  for (std::uint32_t consumer = 4; consumer < 6; ++consumer) {
    const InputPlan& input = layout.lanes[consumer].inputs.at(0);
    ASSERT_EQ(input.rings.size(), 2U);
    for (std::uint32_t p = 0; p < 2; ++p) {
      const RingPlan& ring = layout.rings[input.rings[p]];
      EXPECT_EQ(ring.from_lane, 2 + p);
      EXPECT_EQ(ring.to_lane, consumer);
      const OutputPlan& output = layout.lanes[2 + p].outputs.at(0);
      EXPECT_EQ(output.rings.at(consumer - 4), input.rings[p]);
      EXPECT_EQ(output.block, 7U) << "the consumer's block";
    }
  }
}

TEST(OnlyLane, KeepsWhatItTouchesAndShrinksTheRest) {
  const FeedLayout whole = laid_out({.packers = 2});
  const std::uint32_t read = 2;  // mix.read.0
  const FeedLayout alone = only_lane(whole, read);
  ASSERT_EQ(alone.groups.size(), 1U);
  EXPECT_THAT(alone.groups[0].lanes, ElementsAre(read));
  EXPECT_EQ(lane_names(alone), lane_names(whole)) << "its neighbours' pages are where they were";
  std::set<std::uint32_t> kept{0, whole.lanes[read].arena_segment, whole.lanes[read].heads_segment};
  for (const RingPlan& ring : whole.rings) {
    if (ring.from_lane != read && ring.to_lane != read) continue;
    kept.insert(ring.segment);
    kept.insert(ring.heads_segment);
  }
  for (const SegmentPlan& segment : alone.segments) {
    EXPECT_EQ(segment.spec.bytes,
              kept.contains(segment.id) ? whole.segments[segment.id].spec.bytes : shm::kPageBytes)
        << segment.spec.name;
  }
  EXPECT_LT(memory_sum(alone), memory_sum(whole));
}

TEST(OnlyLanes, KeepTheirGroupsAndTheRingsBetweenThem) {
  const FeedLayout whole = laid_out({.packers = 2});
  const FeedLayout part = only_lanes(whole, std::vector<std::uint32_t>{0, 1});
  EXPECT_EQ(lane_names(part), lane_names(whole));
  std::set<std::uint32_t> running;
  for (std::uint32_t g = 0; g < part.groups.size(); ++g) {
    EXPECT_THAT(part.groups[g].lanes, ::testing::Not(::testing::IsEmpty()));
    for (const std::uint32_t lane : part.groups[g].lanes) {
      running.insert(lane);
      EXPECT_EQ(part.lanes[lane].group, g);
      EXPECT_EQ(part.groups[g].name, whole.groups[whole.lanes[lane].group].name);
    }
  }
  EXPECT_THAT(running, ElementsAre(0, 1));
  for (std::uint32_t r = 0; r < whole.rings.size(); ++r) {
    const bool touched = whole.rings[r].from_lane < 2 || whole.rings[r].to_lane < 2;
    const std::uint32_t segment = whole.rings[r].segment;
    EXPECT_EQ(part.segments[segment].spec.bytes,
              touched ? whole.segments[segment].spec.bytes : shm::kPageBytes);
  }
}

TEST(OnlyLane, ThatWritesBatchesHasASlotForEachLane) {
  const FeedLayout alone = only_lane(laid_out({.packers = 2, .slots = 8}), 5);
  EXPECT_EQ(alone.outputs[0].geometry.slots, 2U);
  EXPECT_EQ(alone.segments[alone.outputs[0].payload_segment].spec.bytes,
            shm::payload_bytes(alone.outputs[0].geometry));
  EXPECT_EQ(alone.segments[alone.outputs[0].feed_control_segment].spec.geometry[1], 2U);
}

// mix.0 reads `input` (1 ring) and `feedback` (2 rings): lines 0, 1, 2.
TEST(FeedLayout, HeadLinesAreNumberedOverAllInputsOfALane) {
  const FeedLayout layout = laid_out();
  const LanePlan& mix = layout.lanes[1];
  std::vector<std::uint32_t> lines;
  for (const InputPlan& input : mix.inputs) {
    for (const std::uint32_t ring : input.rings) {
      EXPECT_EQ(layout.rings[ring].heads_segment, mix.heads_segment);
      lines.push_back(layout.rings[ring].head_index);
    }
  }
  EXPECT_THAT(lines, ElementsAre(0, 1, 2));
  EXPECT_GE(layout.segments[mix.heads_segment].spec.bytes,
            shm::kHeadLinesOffset + 3 * sizeof(shm::HeadLine));
}

TEST(FeedLayout, RingSegmentsSayWhatTheirPortWasConfiguredWith) {
  const FeedLayout layout = laid_out();
  const RingPlan& orders = ring_between(layout, 1, 2);
  EXPECT_EQ(orders.geometry.capacity_bytes, 8192U) << "5000 bytes, rounded up to pages";
  EXPECT_EQ(orders.geometry.records_max, 64U);
  EXPECT_EQ(orders.geometry.overflow, shm::Overflow::kDropNew);
  const shm::SegmentSpec& spec = layout.segments[orders.segment].spec;
  EXPECT_EQ(spec.bytes, 4096U + 8192U);
  EXPECT_EQ(spec.geometry[0], 64U);
  EXPECT_EQ(spec.geometry[1], static_cast<std::uint32_t>(shm::Overflow::kDropNew));
}

TEST(FeedLayout, OnlyArenasWithAHigherBoundMayGrow) {
  const FeedLayout layout = laid_out();
  const SegmentPlan& mix = layout.segments[layout.lanes[1].arena_segment];
  EXPECT_TRUE(mix.spec.growable);
  EXPECT_EQ(mix.spec.bytes, shm::arena_bytes(100'000));
  EXPECT_EQ(mix.bytes_max, shm::arena_bytes(10'000'000));
  EXPECT_EQ(mix.spec.geometry[0], shm::kJournalEntries);
  const SegmentPlan& source = layout.segments[layout.lanes[0].arena_segment];
  EXPECT_FALSE(source.spec.growable);
  EXPECT_EQ(source.bytes_max, 0U);
}

TEST(FeedLayout, SlotsAreSharedOutEvenlyAndStartOnPages) {
  const FeedLayout layout = laid_out({.packers = 3, .slots = 7, .slot_bytes = 5000});
  EXPECT_EQ(layout.outputs[0].geometry.slots, 9U) << "the next multiple of three";
  EXPECT_EQ(layout.outputs[0].geometry.descriptors, 255U);
  EXPECT_EQ(layout.outputs[0].geometry.slot_bytes, 8192U);
  EXPECT_EQ(layout.outputs[0].slot_bytes, 5000U);
  const auto& geometry = layout.segments[layout.outputs[0].feed_control_segment].spec.geometry;
  EXPECT_THAT(std::vector<std::uint32_t>(geometry.begin(), geometry.begin() + 6),
              ElementsAre(3, 9, 255, 8192, 0, 1));
  EXPECT_EQ(layout.segments[layout.outputs[0].payload_segment].spec.bytes, 4096U + 9U * 8192U);
}

TEST(FeedLayout, MoreSlotsThanDescriptorsAreNotPossible) {
  const FeedLayout layout = laid_out({.packers = 3, .slots = 256});
  EXPECT_EQ(layout.outputs[0].geometry.slots, 255U);
}

TEST(FeedLayout, AStageTakesItsGroupToTheProgramThatItNeeds) {
  test::PlannedFeed feed = planned_feed();
  feed.plan.mutable_stages(1)->mutable_nodes(1)->set_program("another-worker");
  const FeedLayout layout = lay_out(feed.config, feed.plan, feed.wiring, feed.groups);
  EXPECT_EQ(layout.groups[0].program, "another-worker");
  EXPECT_EQ(layout.groups[1].program, "");
  EXPECT_EQ(only_lane(layout, 1).groups[0].program, "another-worker");
  feed.plan.mutable_stages(0)->mutable_nodes(0)->set_program("a-third");
  try {
    static_cast<void>(lay_out(feed.config, feed.plan, feed.wiring, feed.groups));
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), AllOf(HasSubstr("another-worker"), HasSubstr("a-third")));
  }
}

TEST(FeedLayout, RefusesAnInputThatNobodyWrites) {
  test::PlannedFeed feed = planned_feed();
  feed.plan.mutable_stages(1)->mutable_nodes(1)->mutable_inputs(0)->set_from(".nowhere");
  try {
    static_cast<void>(lay_out(feed.config, feed.plan, feed.wiring, feed.groups));
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIncompatible);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("orders"), HasSubstr("mix")));
  }
}

TEST(FeedLayout, RefusesAStageWithoutBatches) {
  test::PlannedFeed feed = planned_feed();
  feed.plan.mutable_stages(2)->mutable_batch()->set_slot_bytes(0);
  EXPECT_THROW(static_cast<void>(lay_out(feed.config, feed.plan, feed.wiring, feed.groups)), Error);
}

TEST(Memory, PartsAddUpToTheSum) {
  const FeedLayout layout = laid_out({.packers = 2});
  std::uint64_t sum = 0;
  for (const config::MemoryPart& part : memory_parts(layout)) sum += part.bytes;
  EXPECT_EQ(sum, memory_sum(layout));
  std::uint64_t segments = 0;
  for (const SegmentPlan& segment : layout.segments) {
    segments += shm::align_up(segment.spec.bytes, 4096);
  }
  EXPECT_EQ(sum, segments);
}

TEST(Memory, WhatFitsIsNotRefused) {
  const FeedLayout layout = laid_out();
  const std::uint64_t sum = memory_sum(layout);
  EXPECT_TRUE(check_memory(layout, {.available_bytes = sum, .place = "this machine"}).ok());
  EXPECT_TRUE(
      check_memory(layout, {.available_bytes = sum, .place = "x", .budget_bytes = sum}).ok());
}

TEST(Memory, ARefusalSaysWhatIsNeededWhatThereIsAndWhatToChange) {
  const FeedLayout layout = laid_out({.slots = 8, .slot_bytes = 64 << 20});
  const Status status =
      check_memory(layout, {.available_bytes = 1 << 20, .place = "directory /dev/shm"});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(status.error().message(),
              AllOf(HasSubstr("feed 'test'"), HasSubstr(std::to_string(memory_sum(layout))),
                    HasSubstr("directory /dev/shm has 1.0 MiB (1048576 bytes) free"),
                    HasSubstr("lower feed_output.slots, or batch_size of stage 'pack'"),
                    HasSubstr("batches, 8 slots"), HasSubstr("in total")));
}

TEST(Memory, AddressesThatAProcessMayNotHaveAreRefusedBeforeAnythingStarts) {
  FeedLayout layout = laid_out();
  for (SegmentPlan& segment : layout.segments) segment.bytes_max = 0;
  const std::uint64_t sum = memory_sum(layout);
  const auto check = [&](std::uint64_t addresses) {
    return check_memory(
        layout, {.available_bytes = ~0ULL, .place = "this machine", .address_bytes = addresses});
  };
  EXPECT_TRUE(check(sum).ok());
  EXPECT_THAT(check(sum - 1).error().message(), HasSubstr("the supervisor maps"));
  const std::uint32_t lane = layout.groups.at(0).lanes.at(0);
  layout.segments[layout.lanes[lane].arena_segment].bytes_max = std::uint64_t{64} << 30;
  const Status refused = check(std::uint64_t{8} << 30);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("stage group '" + layout.groups[0].name + "' maps 64.0 GiB"),
                    HasSubstr("8.0 GiB"), HasSubstr("ulimit -v, RLIMIT_AS")));
  EXPECT_TRUE(check(std::uint64_t{70} << 30).ok());
}

// What grows with its data has no size that could be too large: it gets a share of what there is.
TEST(Memory, ArenasWithoutABoundFitIntoAnyAddressSpace) {
  FeedLayout layout = laid_out();
  for (SegmentPlan& segment : layout.segments) segment.bytes_max = 0;
  for (const std::uint32_t lane : layout.groups.at(0).lanes) {
    layout.segments[layout.lanes[lane].arena_segment].bytes_max = shm::kOpenEndedBytes;
  }
  for (const std::uint64_t addresses : {2 * memory_sum(layout), std::uint64_t{8} << 30, 0UL}) {
    EXPECT_TRUE(
        check_memory(
            layout, {.available_bytes = ~0ULL, .place = "this machine", .address_bytes = addresses})
            .ok())
        << addresses;
  }
}

TEST(Memory, ABudgetIsRefusedByItsOwnName) {
  const FeedLayout layout = laid_out();
  const Status status = check_memory(
      layout, {.available_bytes = ~0ULL, .place = "this machine", .budget_bytes = 4096});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(),
              AllOf(HasSubstr("storage.memory_budget_bytes allows 4.0 KiB"),
                    HasSubstr("raise the budget")));
}

TEST(FeedMemory, SegmentsAreReadyAndOfThisFeed) {
  const auto memory = test::feed_memory();
  for (const SegmentPlan& plan : memory->layout().segments) {
    const shm::Mapping mapping =
        shm::map_segment(memory->fd(plan.id), false, 0, 4096).value_or_throw();
    const shm::FeedIdentity& identity = memory->identity();
    const Status status = shm::check_header(
        *reinterpret_cast<const shm::SegmentHeader*>(mapping.data()), plan.spec.kind, &identity,
        shm::align_up(plan.spec.bytes, 4096), plan.spec.name);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
  }
}

TEST(FeedMemory, TrainersCannotWriteAnythingButTheirGroup) {
  const auto memory = test::feed_memory();
  const std::vector<int> fds = memory->output().trainer_fds(3);
  ASSERT_EQ(fds.size(), 4U);
  EXPECT_FALSE(shm::map_segment(fds[0], true).ok()) << "control";
  EXPECT_FALSE(shm::map_segment(fds[1], true).ok()) << "feed control";
  EXPECT_TRUE(shm::map_segment(fds[2], true).ok()) << "group";
  EXPECT_FALSE(shm::map_segment(fds[3], true).ok()) << "payload";
  for (const int fd : fds) EXPECT_TRUE(shm::map_segment(fd, false).ok());
}

TEST(FeedMemory, WhatMembersMayWriteIsSealedWhateverItLiesBeside) {
  const std::string directory = ::testing::TempDir() + "rf_seals_" + std::to_string(::getpid());
  std::filesystem::create_directory(directory);
  for (const std::string& place : {std::string(), directory}) {
    const FeedMemory memory(laid_out(), shm::Storage{place}, {});
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      const int page = memory.output().trainer_fds(g)[2];
      EXPECT_EQ(::fcntl(page, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
      EXPECT_NE(::ftruncate(page, 0), 0);
      EXPECT_NE(::fcntl(page, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    }
  }
  std::filesystem::remove_all(directory);
}

// Whoever opens the file of a lease for writing waits for its holder, for 45 s.
TEST(FeedMemory, TrainersGetNoLeases) {
  const auto memory = test::feed_memory();
  for (const int fd : memory->output().trainer_fds(0)) {
    for (const int kind : {F_RDLCK, F_WRLCK}) {
      EXPECT_NE(::fcntl(fd, F_SETLEASE, kind), 0);
      EXPECT_EQ(errno, EAGAIN);
    }
  }
}

TEST(FeedMemory, TrainersNeverGetWhatLocksStandOn) {
  const auto memory = test::feed_memory();
  struct stat locks {};
  ASSERT_EQ(::fstat(memory->fd(memory->layout().locks_segment), &locks), 0);
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    for (const int fd : memory->output().trainer_fds(g)) {
      struct stat given {};
      ASSERT_EQ(::fstat(fd, &given), 0);
      EXPECT_NE(given.st_ino, locks.st_ino);
    }
  }
}

TEST(FeedMemory, TooLittleRoomLeavesNoFiles) {
  const std::string directory = ::testing::TempDir() + "rf_layout_" + std::to_string(::getpid());
  std::filesystem::create_directory(directory);
  FeedLayout layout = laid_out();
  layout.segments.back().spec.bytes = 1ULL << 60;
  EXPECT_THROW(FeedMemory(layout, shm::Storage{directory}, {}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

TEST(FeedMemory, FilesGoWithTheFeed) {
  const std::string directory = ::testing::TempDir() + "rf_files_" + std::to_string(::getpid());
  std::filesystem::create_directory(directory);
  {
    const FeedMemory memory(laid_out(), shm::Storage{directory}, {});
    // All but the pages that members may write, which they could truncate, and the locks.
    EXPECT_EQ(memory.files().size(), memory.layout().segments.size() - shm::kGroupsMax - 1);
    for (const std::string& file : memory.files()) {
      EXPECT_THAT(file, ::testing::Not(HasSubstr("group")));
      EXPECT_TRUE(std::filesystem::exists(file)) << file;
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

std::vector<std::uint32_t> writable(const WorkerSetup& setup) {
  std::vector<std::uint32_t> ids;
  for (const SegmentSetup& segment : setup.segments()) {
    if (segment.writable()) ids.push_back(segment.id());
  }
  return ids;
}

TEST(WorkerSetup, DescriptorsAreCountedFromOneBecauseTheFirstIsTheSetup) {
  const auto memory = test::feed_memory();
  WorkerSetup setup;
  const GroupSetup group = fill_setup(*memory, 0, {.seed = 9}, setup);
  ASSERT_GE(static_cast<int>(group.segments.size()), setup.segments_size());
  // Those that it only holds, for a supervisor that comes after this one, follow.
  EXPECT_THAT(std::set(group.segments.begin(), group.segments.end()),
              ::testing::SizeIs(memory->layout().segments.size()));
  EXPECT_EQ(setup.descriptor_count(), group.segments.size() + 1);
  for (int i = 0; i < setup.segments_size(); ++i) {
    EXPECT_EQ(setup.segments(i).fd_index(), static_cast<std::uint32_t>(i + 1));
    EXPECT_EQ(setup.segments(i).id(), group.segments[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(setup.seed(), 9U);
}

TEST(WorkerSetup, AProducerMayWriteItsRingsAndNotTheirHeads) {
  const auto memory = test::feed_memory();
  const FeedLayout& layout = memory->layout();
  WorkerSetup front;
  fill_setup(*memory, 0, {}, front);
  const RingPlan& ring = ring_between(layout, 2, 4);
  EXPECT_THAT(writable(front), ::testing::Contains(ring.segment));
  EXPECT_THAT(writable(front), ::testing::Not(::testing::Contains(ring.heads_segment)));
  WorkerSetup back;
  fill_setup(*memory, 1, {}, back);
  EXPECT_THAT(writable(back), ::testing::Not(::testing::Contains(ring.segment)));
  EXPECT_THAT(writable(back), ::testing::Contains(ring.heads_segment));
}

TEST(WorkerSetup, OnlyWhoWritesBatchesGetsTheFeed) {
  const auto memory = test::feed_memory();
  const FeedLayout& layout = memory->layout();
  WorkerSetup front;
  fill_setup(*memory, 0, {}, front);
  EXPECT_EQ(front.outputs_size(), 0);
  for (const SegmentSetup& segment : front.segments()) {
    EXPECT_NE(segment.id(), layout.outputs[0].payload_segment);
    EXPECT_NE(segment.id(), layout.outputs[0].feed_control_segment);
  }
  WorkerSetup back;
  fill_setup(*memory, 1, {}, back);
  ASSERT_EQ(back.outputs_size(), 1);
  EXPECT_EQ(back.outputs(0).group_segments_size(), static_cast<int>(shm::kGroupsMax));
  EXPECT_EQ(back.outputs(0).slots_per_lane(), 4U);
  EXPECT_THAT(writable(back), ::testing::Contains(layout.outputs[0].payload_segment));
  ASSERT_EQ(back.lanes_size(), 1);
  EXPECT_EQ(back.lanes(0).outputs(0).feed(), 1U);
  EXPECT_EQ(back.lanes(0).outputs(0).rings_size(), 0);
}

}  // namespace
}  // namespace ringfeed::layout
