// The specification of ringfeed.h: what a member of a consumer group may rely on.
//
// The feed is real: segments, producing lanes and a control socket, all in this process
// (tests/support/fakes/fake_feed.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ringfeed.h"
#include "ringfeed/shm/requests.h"
#include "tests/support/fakes/fake_feed.h"

namespace ringfeed::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Wish {
  const char* group = "g";
  std::optional<std::uint32_t> rank = std::nullopt;
  std::uint32_t world = 0;
  std::uint32_t start = RF_START_OLDEST;
  std::uint32_t max_hold = 0;
  std::uint32_t view = RF_VIEW_READONLY;
  std::int32_t answer_ms = 0;
};

rf_status attach(const FakeFeed& fake, const Wish& wish, rf_feed** feed) {
  const std::string path = fake.socket_path();
  rf_attach_options options{};
  options.struct_size = sizeof options;
  options.timeout_ms = kPatienceMs;
  options.feed = fake.options().feed.c_str();
  options.group = wish.group;
  options.socket_path = path.c_str();
  options.client = "client_test";
  options.kind = wish.rank ? RF_RANKED : RF_KIND_DEFAULT;
  options.rank = wish.rank.value_or(0);
  options.world = wish.world;
  options.start = wish.start;
  options.max_hold = wish.max_hold;
  options.view = wish.view;
  options.answer_ms = wish.answer_ms;
  return rf_attach(&options, feed);
}

// A member that leaves at the end of the test.
class Member {
 public:
  explicit Member(const FakeFeed& fake, const Wish& wish = {}) {
    EXPECT_EQ(attach(fake, wish, &feed_), RF_OK) << rf_last_error(nullptr);
  }
  ~Member() {
    for (const std::uint64_t seq : held_) rf_release(feed_, seq);
    detach();
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  rf_status next(std::int64_t timeout_ms = kPatienceMs) {
    batch_ = {};
    batch_.struct_size = sizeof batch_;
    const rf_status status = rf_next(feed_, timeout_ms, &batch_);
    if (status == RF_OK) held_.push_back(batch_.seq);
    return status;
  }
  // The number of the next batch; 0 if there was none.
  std::uint64_t take() { return next() == RF_OK ? batch_.seq : 0; }
  rf_status release(std::uint64_t seq) {
    std::erase(held_, seq);
    return rf_release(feed_, seq);
  }
  // Takes and gives back until there is no more; the numbers, and how it ended.
  std::vector<std::uint64_t> take_all(rf_status* end = nullptr) {
    std::vector<std::uint64_t> seen;
    rf_status status = RF_OK;
    while ((status = next()) == RF_OK) {
      seen.push_back(batch_.seq);
      EXPECT_EQ(release(batch_.seq), RF_OK);
    }
    if (end != nullptr) *end = status;
    return seen;
  }
  rf_stats_info stats() {
    rf_stats_info stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(rf_stats(feed_, &stats), RF_OK);
    return stats;
  }
  std::string error() const { return rf_last_error(feed_); }
  const rf_batch& batch() const { return batch_; }
  rf_feed* feed() const { return feed_; }
  // What is held then is the test's to release.
  void detach() {
    rf_detach(feed_);
    feed_ = nullptr;
    held_.clear();
  }

 private:
  rf_feed* feed_ = nullptr;
  rf_batch batch_{};
  std::vector<std::uint64_t> held_;
};

// A feed, and a member of its only group.
struct Joined {
  explicit Joined(FakeFeedOptions options = {}, const Wish& wish = {})
      : fake(std::move(options)), member(fake, wish) {}
  FakeFeed fake;
  Member member;
};

// Publishes so many batches as fast as there is room, and closes the feed; then the threads that
// take them come to their end. `broken`: one of them has given up.
void publish_to(FakeFeed& fake, std::uint64_t batches, std::vector<std::thread>& threads,
                const std::atomic<bool>* broken = nullptr) {
  for (std::uint64_t published = 0; published < batches;) {
    if (broken != nullptr && *broken) break;
    published += fake.publish(batches - published);
    std::this_thread::yield();
  }
  fake.close();
  for (std::thread& thread : threads) thread.join();
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++count;
  }
  return count;
}

// ---- observers ----

// One that looks and is no member.
class Observer {
 public:
  explicit Observer(const FakeFeed& fake) {
    const std::string path = fake.socket_path();
    rf_attach_options options{};
    options.struct_size = sizeof options;
    options.timeout_ms = kPatienceMs;
    options.feed = fake.options().feed.c_str();
    options.socket_path = path.c_str();
    options.observe = 1;
    EXPECT_EQ(rf_attach(&options, &feed_), RF_OK) << rf_last_error(nullptr);
  }
  ~Observer() { rf_detach(feed_); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  rf_status look(rf_batch* batch, std::int64_t timeout_ms = 0) {
    *batch = {};
    batch->struct_size = sizeof *batch;
    return rf_next(feed_, timeout_ms, batch);
  }
  rf_feed* feed() const { return feed_; }

 private:
  rf_feed* feed_ = nullptr;
};

// The id of its first row.
std::int64_t id_of(const rf_feed* feed, const rf_batch& batch) {
  std::int64_t id = 0;
  std::memcpy(&id, static_cast<const std::byte*>(batch.data) + rf_schema(feed)->tensors[1].offset,
              sizeof id);
  return id;
}

TEST(Observe, GivesTheNewestBatchOnceAndTakesNothing) {
  FakeFeed fake({.slots = 4});
  Observer eye(fake);
  rf_batch batch{};
  EXPECT_EQ(eye.look(&batch), RF_TIMEOUT);
  EXPECT_EQ(fake.publish(3), 3U);
  ASSERT_EQ(eye.look(&batch), RF_OK);
  EXPECT_EQ(batch.seq, 3U);
  EXPECT_EQ(id_of(eye.feed(), batch), 3);
  rf_batch again{};
  EXPECT_EQ(eye.look(&again), RF_TIMEOUT) << "nothing newer";
  EXPECT_EQ(fake.members(), 0U);
  // A member gets all of them, and the slots are written again while the copy is kept.
  Member member(fake);
  for (std::uint64_t s = 1; s <= 12; ++s) {
    ASSERT_EQ(member.take(), s);
    ASSERT_EQ(member.release(s), RF_OK);
    fake.publish(1);
  }
  EXPECT_EQ(id_of(eye.feed(), batch), 3) << "a copy";
  ASSERT_EQ(eye.look(&again), RF_OK);
  EXPECT_GE(again.seq, 12U);
  EXPECT_EQ(id_of(eye.feed(), again), static_cast<std::int64_t>(again.seq));
  rf_stats_info stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(rf_stats(eye.feed(), &stats), RF_OK);
  EXPECT_EQ(stats.held, 2U);
  EXPECT_EQ(stats.members, 0U);
  EXPECT_STREQ(stats.group, "");
  EXPECT_EQ(rf_release(eye.feed(), batch.seq), RF_OK);
  EXPECT_EQ(rf_release(eye.feed(), batch.seq), RF_INVALID) << "twice";
  EXPECT_EQ(rf_release(eye.feed(), again.seq), RF_OK);
}

TEST(Observe, HasNoPlaceNoPayloadAndNoGroup) {
  FakeFeed fake(FakeFeedOptions{});
  Observer eye(fake);
  EXPECT_EQ(rf_pass_over(eye.feed(), 2), RF_INVALID);
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  EXPECT_EQ(rf_payload(eye.feed(), &data, &bytes), RF_INVALID);
  const std::string path = fake.socket_path();
  rf_attach_options options{};
  options.struct_size = sizeof options;
  options.feed = fake.options().feed.c_str();
  options.socket_path = path.c_str();
  options.observe = 1;
  options.max_hold = 2;
  rf_feed* feed = nullptr;
  EXPECT_EQ(rf_attach(&options, &feed), RF_INVALID);
  EXPECT_THAT(rf_last_error(nullptr), HasSubstr("an observer is in no group"));
}

TEST(Observe, EndsWithTheFeed) {
  FakeFeed fake({.slots = 4});
  Observer eye(fake);
  fake.publish(2);
  fake.close();
  rf_batch batch{};
  ASSERT_EQ(eye.look(&batch), RF_OK);
  EXPECT_EQ(batch.seq, 2U);
  rf_batch none{};
  EXPECT_EQ(eye.look(&none, kPatienceMs), RF_END);
  EXPECT_EQ(rf_release(eye.feed(), 2), RF_OK);
}

TEST(Observe, VerifiesItsCopy) {
  FakeFeed fake({.checksum = true});
  Observer eye(fake);
  fake.publish(1);
  rf_batch batch{};
  ASSERT_EQ(eye.look(&batch), RF_OK);
  EXPECT_EQ(rf_verify(eye.feed(), &batch), RF_OK);
  *static_cast<unsigned char*>(const_cast<void*>(batch.data)) ^= 1;
  EXPECT_EQ(rf_verify(eye.feed(), &batch), RF_DAMAGED);
  EXPECT_EQ(rf_release(eye.feed(), batch.seq), RF_OK);
}

TEST(Observe, LeavesNoMappingAndNoDescriptorBehind) {
  FakeFeed fake(FakeFeedOptions{});
  fake.publish(1);
  const std::size_t descriptors = open_descriptors();
  const std::size_t mapped = mappings();
  rf_batch batch{};
  {
    Observer eye(fake);
    // The feed's end of its connection is this process's too, and is closed a moment later.
    for (int ms = 0; ms < kPatienceMs && open_descriptors() != descriptors; ++ms) ::usleep(1000);
    EXPECT_EQ(open_descriptors(), descriptors) << "not even a socket";
    ASSERT_EQ(eye.look(&batch), RF_OK);
    EXPECT_EQ(rf_release(eye.feed(), batch.seq), RF_OK);
  }
  EXPECT_EQ(mappings(), mapped);
}

// ---- attach ----

TEST(Attach, GivesTheSchemaOfTheFeed) {
  auto [fake, member] = Joined({.rows_max = 4});
  const rf_schema_info* schema = rf_schema(member.feed());
  ASSERT_NE(schema, nullptr);
  ASSERT_EQ(schema->tensor_count, 3U);
  EXPECT_EQ(schema->rows_max, 4U);
  EXPECT_STREQ(schema->tensors[0].name, "x");
  EXPECT_STREQ(schema->tensors[0].dtype, "float32");
  EXPECT_EQ(schema->tensors[0].item_bytes, 4U);
  EXPECT_EQ(schema->tensors[0].dims, 2U);
  EXPECT_EQ(schema->tensors[0].shape[0], -1);
  EXPECT_EQ(schema->tensors[0].shape[1], 3);
  EXPECT_STREQ(schema->tensors[1].name, "id");
  EXPECT_EQ(schema->tensors[1].offset, 64U);
  EXPECT_STREQ(schema->tensors[2].name, "flags");
}

TEST(Attach, RefusesAFeedThatNobodyServes) {
  rf_attach_options options{};
  options.struct_size = sizeof options;
  options.feed = "absent";
  options.socket_dir = "/nonexistent";
  rf_feed* feed = nullptr;
  EXPECT_EQ(rf_attach(&options, &feed), RF_NO_SUCH_FEED);
  EXPECT_EQ(feed, nullptr);
  EXPECT_THAT(rf_last_error(nullptr),
              HasSubstr("feed absent: nobody serves /nonexistent/absent.sock"));
}

TEST(Attach, WaitsForAFeedThatIsNotThereYet) {
  const std::string dir = (std::filesystem::temp_directory_path() / "rf-late-XXXXXX").string();
  std::string made = dir;
  ASSERT_NE(::mkdtemp(made.data()), nullptr);
  std::atomic<bool> attached{false};
  std::thread trainer([&] {
    rf_attach_options options{};
    options.struct_size = sizeof options;
    options.feed = "fake";
    options.socket_dir = made.c_str();
    options.timeout_ms = kPatienceMs;
    rf_feed* feed = nullptr;
    EXPECT_EQ(rf_attach(&options, &feed), RF_OK) << rf_last_error(nullptr);
    attached = true;
    rf_detach(feed);
  });
  EXPECT_FALSE(attached);
  {
    FakeFeed fake({.socket_dir = made});
    trainer.join();
  }
  EXPECT_TRUE(attached);
  std::filesystem::remove_all(made);
}

TEST(Attach, RefusesWhatNoFeedCanBe) {
  FakeFeed fake;
  rf_feed* feed = nullptr;
  EXPECT_EQ(rf_attach(nullptr, &feed), RF_INVALID);
  rf_attach_options options{};
  EXPECT_EQ(rf_attach(&options, &feed), RF_INVALID) << "struct_size 0";
  options.struct_size = sizeof options;
  for (const char* name : {"", "a/b", "..", "a b"}) {
    options.feed = name;
    EXPECT_EQ(rf_attach(&options, &feed), RF_INVALID) << name;
  }
  EXPECT_EQ(attach(fake, {.rank = 2, .world = 2}, &feed), RF_INVALID);
  EXPECT_THAT(rf_last_error(nullptr), HasSubstr("rank 2 of world 2"));
  EXPECT_EQ(attach(fake, {.rank = 0, .world = 17}, &feed), RF_INVALID);
  EXPECT_EQ(attach(fake, {.view = 2}, &feed), RF_INVALID);
  EXPECT_THAT(rf_last_error(nullptr), HasSubstr("view 2 is neither"));
  EXPECT_EQ(feed, nullptr);
}

TEST(Attach, PassesTheSupervisorsRefusalOn) {
  FakeFeed fake;
  fake.refuse(6, "group g is full: use another one");
  rf_feed* feed = nullptr;
  EXPECT_EQ(attach(fake, {}, &feed), RF_REFUSED);
  EXPECT_STREQ(rf_last_error(nullptr), "group g is full: use another one");
}

TEST(Attach, ASupervisorThatDoesNotAnswerIsATimeout) {
  FakeFeed fake;
  fake.set_silent(true);
  const std::string path = fake.socket_path();
  rf_attach_options options{};
  options.struct_size = sizeof options;
  options.feed = "fake";
  options.socket_path = path.c_str();
  options.answer_ms = 20;
  rf_feed* feed = nullptr;
  EXPECT_EQ(rf_attach(&options, &feed), RF_TIMEOUT);
  EXPECT_THAT(rf_last_error(nullptr), HasSubstr("has not answered in time"));
}

TEST(Attach, AnOlderCallersShorterOptionsMeanDefaults) {
  FakeFeed fake;
  const std::string path = fake.socket_path();
  rf_attach_options options{};
  options.feed = "fake";
  options.socket_path = path.c_str();
  options.struct_size = offsetof(rf_attach_options, client);
  options.kind = 77;  // beyond its struct: not looked at
  options.timeout_ms = kPatienceMs;
  rf_feed* feed = nullptr;
  EXPECT_EQ(rf_attach(&options, &feed), RF_OK) << rf_last_error(nullptr);
  EXPECT_EQ(rf_detach(feed), RF_OK);
}

TEST(Attach, LeavesNoDescriptorAndNoMappingBehind) {
  FakeFeed fake;
  const std::size_t maps_before = mappings();
  { Member warm_up(fake); }
  while (fake.members() != 0) std::this_thread::yield();
  const std::size_t fds_before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    Member member(fake);
    EXPECT_GT(mappings(), maps_before);
  }
  fake.refuse(6, "no");
  rf_feed* feed = nullptr;
  EXPECT_EQ(attach(fake, {}, &feed), RF_REFUSED);
  fake.refuse(0, "");
  fake.spoil_header(shm::SegmentKind::kPayload, [](shm::SegmentHeader& h) { h.magic = 1; });
  EXPECT_EQ(attach(fake, {}, &feed), RF_DAMAGED);
  EXPECT_EQ(mappings(), maps_before);
  // The server closes its ends in its own time.
  while (open_descriptors() > fds_before) std::this_thread::yield();
}

// ---- lengths that vary from batch to batch ----
//
//   tokens  int32 [rows, ragged 1]   at   0, room for 16
//   offset  int64 [ragged 0]         at  64, room for  8
//   total   int64 [2]                at 128

FakeFeedOptions ragged_options() {
  FakeFeedOptions options;
  options.rows_max = 8;
  options.slot_bytes = 192;
  options.tensors = {{"tokens", "int32", {-1, -3}, 0, 64},
                     {"offset", "int64", {-2}, 64, 64},
                     {"total", "int64", {2}, 128, 16}};
  return options;
}

FakeBatch ragged_batch(std::uint32_t rows, std::uint32_t offsets, std::uint32_t width) {
  return {std::vector<std::byte>(192), rows, {offsets, width}};
}

std::uint64_t items(const Member& member, std::uint32_t tensor) {
  return rf_tensor_items(&rf_schema(member.feed())->tensors[tensor], &member.batch());
}

TEST(Ragged, EachBatchHasItsOwnLengths) {
  FakeFeed fake(ragged_options());
  Member member(fake);
  const rf_tensor& tokens = rf_schema(member.feed())->tensors[0];
  EXPECT_EQ(tokens.shape[1], -3);
  for (const auto& [rows, offsets, width] :
       {std::array<std::uint32_t, 3>{8, 3, 2}, {1, 8, 16}, {4, 0, 4}, {0, 1, 16}, {3, 2, 0}}) {
    ASSERT_TRUE(fake.publish(ragged_batch(rows, offsets, width)));
    ASSERT_EQ(member.next(), RF_OK) << member.error();
    EXPECT_EQ(rf_tensor_length(&tokens, &member.batch(), 0), rows);
    EXPECT_EQ(rf_tensor_length(&tokens, &member.batch(), 1), width);
    EXPECT_EQ(items(member, 0), rows * width);
    EXPECT_EQ(items(member, 1), offsets);
    EXPECT_EQ(items(member, 2), 2U);
    EXPECT_EQ(member.release(member.batch().seq), RF_OK);
  }
}

// One item too many, and products that are small again modulo 2^32 and 2^64.
TEST(Ragged, ABatchWithMoreItemsThanThereIsRoomForIsDamagedAndSkipped) {
  FakeFeedOptions options = ragged_options();
  options.tensors.push_back({"deep", "int8", {-4, -5, -6}, 144, 1});
  FakeFeed fake(options);
  Member member(fake);
  const auto damaged = [&](std::uint32_t rows, std::vector<std::uint32_t> ragged,
                           const char* tensor) {
    ASSERT_TRUE(fake.publish({std::vector<std::byte>(192), rows, std::move(ragged)}));
    EXPECT_EQ(member.next(), RF_DAMAGED);
    EXPECT_THAT(member.error(), HasSubstr(tensor));
    EXPECT_EQ(member.stats().held, 0U);
  };
  damaged(1, {8, 17}, "tensor tokens");
  damaged(8, {8, 3}, "tensor tokens");
  damaged(8, {8, 0x80000000U}, "tensor tokens");
  damaged(1, {9, 16}, "tensor offset");
  damaged(1, {8, 16, 0x80000000U, 0x80000000U, 4}, "tensor deep");
  ASSERT_TRUE(fake.publish({std::vector<std::byte>(192), 1, {8, 16, 0x80000000U, 0x80000000U, 0}}));
  EXPECT_EQ(member.next(), RF_OK) << "without items it fits: " << member.error();
  EXPECT_EQ(items(member, 3), 0U);
}

TEST(Ragged, RowsMayBeFewerThanTheWidestBatchWouldNeedRoomForWithAll) {
  FakeFeedOptions options = ragged_options();
  options.rows_max = 1000;
  FakeFeed fake(options);
  Member member(fake);
  ASSERT_TRUE(fake.publish(ragged_batch(16, 1, 1)));
  EXPECT_EQ(member.next(), RF_OK);
  EXPECT_EQ(items(member, 0), 16U);
}

TEST(Ragged, ASchemaThatDoesNotFitOrIsNotKnownIsRefused) {
  const auto refused = [](std::vector<std::int64_t> shape, std::uint64_t bytes,
                          const char* sentence) {
    FakeFeedOptions options = ragged_options();
    options.tensors[0].shape = std::move(shape);
    options.tensors[0].bytes = bytes;
    FakeFeed fake(options);
    rf_feed* feed = nullptr;
    EXPECT_EQ(attach(fake, {}, &feed), RF_INCOMPATIBLE);
    EXPECT_THAT(rf_last_error(nullptr), HasSubstr(sentence));
  };
  refused({-1, 2}, 63, "tensor tokens does not fit its 63 bytes with 8 rows");
  refused({17}, 64, "does not fit its 64 bytes");
  refused({-2, 1LL << 62, 16}, 64, "does not fit its 64 bytes");
  refused({-1, -18}, 64, "dimension 1 of tensor tokens is -18");
  refused({-2, -1}, 64, "dimension 1 of tensor tokens is -1");
}

// ---- every mismatch of a header is one sentence ----

struct Spoil {
  const char* name;
  shm::SegmentKind kind;
  void (*spoil)(shm::SegmentHeader&);
  rf_status status;
  const char* sentence;
};
void reseal(shm::SegmentHeader& h) {
  h.crc32c = shm::crc32c_small(reinterpret_cast<const std::uint8_t*>(&h),
                               offsetof(shm::SegmentHeader, crc32c));
}

class Mismatch : public ::testing::TestWithParam<Spoil> {};

TEST_P(Mismatch, IsRefusedInOneSentence) {
  FakeFeed fake;
  fake.spoil_header(GetParam().kind, GetParam().spoil);
  rf_feed* feed = nullptr;
  EXPECT_EQ(attach(fake, {}, &feed), GetParam().status);
  EXPECT_EQ(feed, nullptr);
  EXPECT_THAT(rf_last_error(nullptr), HasSubstr(GetParam().sentence));
  // The next one finds everything as it should be: nothing of the refused member is left.
  fake.spoil_header(GetParam().kind, nullptr);
  while (fake.members() != 0) std::this_thread::yield();
  Member member(fake);
}

using shm::SegmentHeader;
using shm::SegmentKind;
INSTANTIATE_TEST_SUITE_P(
    Header, Mismatch,
    ::testing::Values(
        Spoil{"Magic", SegmentKind::kControl, [](SegmentHeader& h) { h.magic = 7; }, RF_DAMAGED,
              "segment control: not a ringfeed segment"},
        Spoil{"ByteOrder", SegmentKind::kControl, [](SegmentHeader& h) { h.endian = 0x04030201; },
              RF_INCOMPATIBLE, "another byte order"},
        Spoil{"Abi", SegmentKind::kFeedControl, [](SegmentHeader& h) { h.abi_major = 9; },
              RF_INCOMPATIBLE,
              "segment feed control: its ABI is 9.0, but this library reads 2.0: use the same "
              "ringfeed version"},
        Spoil{"MinReader", SegmentKind::kPayload, [](SegmentHeader& h) { h.abi_min_reader = 5; },
              RF_INCOMPATIBLE, "segment payload: its ABI"},
        Spoil{"Layout", SegmentKind::kPayload, [](SegmentHeader& h) { ++h.layout_hash; },
              RF_INCOMPATIBLE, "segment payload: its memory layout"},
        Spoil{"Checksum", SegmentKind::kControl, [](SegmentHeader& h) { ++h.geometry[3]; },
              RF_DAMAGED, "fails its checksum"},
        Spoil{"Features", SegmentKind::kControl,
              [](SegmentHeader& h) {
                h.features_required = 4;
                reseal(h);
              },
              RF_INCOMPATIBLE, "needs features 0x4"},
        Spoil{"Kind", SegmentKind::kPayload,
              [](SegmentHeader& h) {
                h.kind = 2;
                reseal(h);
              },
              RF_INCOMPATIBLE, "has kind 2, expected 7"},
        Spoil{"Truncated", SegmentKind::kPayload,
              [](SegmentHeader& h) {
                h.total_bytes *= 2;
                reseal(h);
              },
              RF_DAMAGED, "it was truncated"},
        Spoil{"Feed", SegmentKind::kPayload,
              [](SegmentHeader& h) {
                ++h.feed_id[0];
                reseal(h);
              },
              RF_INCOMPATIBLE, "segment payload: belongs to another feed"},
        Spoil{"State", SegmentKind::kFeedControl, [](SegmentHeader& h) { h.state.store(2); },
              RF_DAMAGED, "is condemned"},
        Spoil{"Geometry", SegmentKind::kFeedControl,
              [](SegmentHeader& h) {
                h.geometry[1] = 1000;
                reseal(h);
              },
              RF_DAMAGED, "contradict each other"}),
    [](const auto& test) { return std::string(test.param.name); });

// ---- next ----

TEST(Next, GivesEveryBatchInOrderWithItsBytes) {
  auto [fake, member] = Joined({.slots = 3, .rows_max = 4});
  for (std::uint64_t s = 1; s <= 600; ++s) {  // more than twice around the descriptors
    ASSERT_EQ(fake.publish(1), 1U);
    ASSERT_EQ(member.next(), RF_OK);
    ASSERT_EQ(member.batch().seq, s);
    EXPECT_EQ(member.batch().rows, 4U);
    EXPECT_EQ(member.batch().tries, 0U);
    EXPECT_EQ(member.batch().token[0], 7 * s);
    float x = 0;
    std::memcpy(&x, static_cast<const std::byte*>(member.batch().data) + 4 * 5, 4);
    ASSERT_EQ(x, static_cast<float>(1000 * s + 5));
    ASSERT_EQ(member.release(s), RF_OK);
  }
}

TEST(Next, WithoutABatchIsATimeoutAndClaimsNothing) {
  auto [fake, member] = Joined();
  EXPECT_EQ(member.next(0), RF_TIMEOUT);
  EXPECT_EQ(member.next(5), RF_TIMEOUT);
  EXPECT_THAT(member.error(), HasSubstr("no batch came in time; the feed is running"));
  fake.publish(1);
  EXPECT_EQ(member.take(), 1U);
}

TEST(Next, SleepsUntilABatchComes) {
  FakeFeed fake;
  Member member(fake);
  std::thread producer([&] {
    while (member.stats().waits == 0) std::this_thread::yield();
    fake.publish(1);
  });
  EXPECT_EQ(member.take(), 1U);
  producer.join();
}

// ---- asking ----

// A trainer's table, and what waits on the bell of the one lane.
class Asked {
 public:
  Asked() {
    auto* const head = reinterpret_cast<shm::RequestsHead*>(bytes_.data());
    head->magic = shm::kRequestsMagic;
    head->entry_count = 4;
    head->bytes = bytes_.size();
    head->lane_count = 1;
  }
  void ask(rf_feed* feed, std::uint64_t seq, bool may_wait) {
    EXPECT_EQ(rf_ask(feed, bytes_.data(), bytes_.size(), seq, 0, 0, 1, may_wait ? 1 : 0), RF_OK);
  }
  // Is somebody woken by `act` who sleeps as a lane does? He is woken here if not.
  bool wakes(const std::function<void()>& act) {
    std::atomic<std::uint32_t>& bell = shm::request_bell(bytes_.data(), 1);
    std::atomic<pid_t> sleeper{0};
    std::thread lane([&] {
      const std::uint32_t seen = bell.load();
      sleeper = static_cast<pid_t>(::syscall(SYS_gettid));
      const timespec limit{kPatienceMs / 1000, 0};
      EXPECT_EQ(::syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &limit, nullptr, 0), 0);
    });
    while (sleeper == 0 || !sleeps(sleeper)) std::this_thread::yield();
    act();
    const bool woken = ::syscall(SYS_futex, &bell, FUTEX_WAKE, 1, nullptr, nullptr, 0) == 0;
    lane.join();
    return woken;
  }

 private:
  static bool sleeps(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
    std::string number;
    return file >> number && number == std::to_string(SYS_futex);
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(4096);
};

TEST(Ask, WakesTheLaneAtOnceUnlessABatchOfItIsThere) {
  auto [fake, member] = Joined({.slots = 4, .max_hold = 4});
  rf_feed* const feed = member.feed();
  Asked asked;
  EXPECT_TRUE(asked.wakes([&] { asked.ask(nullptr, 1, false); })) << "before there is a feed";
  EXPECT_TRUE(asked.wakes([&] { asked.ask(feed, 2, true); })) << "batch 1 is not there";
  ASSERT_EQ(fake.publish(2), 2U);
  EXPECT_TRUE(asked.wakes([&] { asked.ask(feed, 3, false); })) << "it may not wait";
  EXPECT_FALSE(asked.wakes([&] { asked.ask(feed, 3, true); })) << "batch 2 is there";
  EXPECT_TRUE(asked.wakes([&] { asked.ask(feed, 4, true); })) << "batch 3 is not";
}

TEST(Ask, WhoWaitsForABatchWakesTheLaneBefore) {
  auto [fake, member] = Joined({.slots = 4, .max_hold = 4});
  rf_feed* const feed = member.feed();
  Asked asked;
  ASSERT_EQ(fake.publish(1), 1U);
  EXPECT_FALSE(asked.wakes([&] { asked.ask(feed, 2, true); }));
  EXPECT_FALSE(asked.wakes([&, &member = member] { EXPECT_EQ(member.take(), 1U); }));
  EXPECT_TRUE(asked.wakes([&, &member = member] { EXPECT_EQ(member.next(0), RF_TIMEOUT); }));
  EXPECT_FALSE(asked.wakes([&, &member = member] { EXPECT_EQ(member.next(0), RF_TIMEOUT); }))
      << "it is owed no more";
}

//   lane 0: 1 . 5     lane 1: . 2 ...     an ordered feed waits for 1 although 2 is there
TEST(Next, AnOrderedFeedIsTakenInItsOrder) {
  auto [fake, member] = Joined({.lanes = 2});
  ASSERT_TRUE(fake.publish_lane(1));
  EXPECT_EQ(member.next(0), RF_TIMEOUT);
  ASSERT_TRUE(fake.publish_lane(0));
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.take(), 2U);
}

TEST(Next, ARelaxedFeedIsTakenAsItIsReady) {
  auto [fake, member] = Joined({.lanes = 2, .slots = 8, .ordered = false, .max_hold = 8});
  ASSERT_TRUE(fake.publish_lane(1));
  ASSERT_TRUE(fake.publish_lane(1));
  EXPECT_EQ(member.take(), 2U);
  EXPECT_EQ(member.take(), 4U);
  ASSERT_TRUE(fake.publish_lane(0));
  EXPECT_EQ(member.take(), 1U);
}

TEST(Next, ALaneThatHasClosedIsNotWaitedFor) {
  auto [fake, member] = Joined({.lanes = 2, .slots = 8, .max_hold = 8});
  ASSERT_EQ(fake.publish(2), 2U);
  fake.close_lane(0);
  ASSERT_TRUE(fake.publish_lane(1));  // 4; there is no 3
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.take(), 2U);
  EXPECT_EQ(member.take(), 4U);
  fake.close_lane(1);
  EXPECT_EQ(member.next(), RF_END);
}

// Lane 0 ends at once, or is slow; lane 1 goes on for more batches than the feed describes.
class Uneven : public ::testing::TestWithParam<std::tuple<bool, bool, std::uint32_t>> {
 protected:
  static constexpr std::uint64_t kMany = 3 * shm::kDescriptorsMax;
};

TEST_P(Uneven, WhatALanePublishesComesHoweverFarAnotherStaysBehind) {
  const auto [ordered, begun, lanes] = GetParam();
  auto [fake, member] = Joined({.lanes = lanes, .slots = 4 * lanes, .ordered = ordered});
  std::vector<std::uint64_t> expected;
  for (std::uint32_t lane = 0; begun && lane < lanes; ++lane) {
    ASSERT_TRUE(fake.publish_lane(lane));
    expected.push_back(lane + 1);
  }
  for (const std::uint64_t s : expected) {
    ASSERT_EQ(member.take(), s);
    ASSERT_EQ(member.release(s), RF_OK);
  }
  // In an ordered feed a lane that is slow is waited for.
  for (std::uint32_t lane = 0; ordered && lane + 1 < lanes; ++lane) fake.close_lane(lane);
  for (std::uint64_t i = begun ? 1 : 0; i < kMany; ++i) {
    ASSERT_TRUE(fake.publish_lane(lanes - 1)) << i;
    const std::uint64_t slow = begun ? lanes + 1 : 1;
    ASSERT_EQ(member.stats().next, ordered || lanes == 1 ? i * lanes + lanes : slow) << i;
    ASSERT_EQ(member.take(), i * lanes + lanes);
    ASSERT_EQ(member.release(i * lanes + lanes), RF_OK);
    ASSERT_EQ(member.stats().lag, 0U);
  }
  if (!ordered && lanes > 1) {
    ASSERT_TRUE(fake.publish_lane(0));
    EXPECT_EQ(member.take(), begun ? lanes + 1 : 1U) << "the slow one's own";
  }
  fake.close();
  EXPECT_EQ(member.next(), RF_END);
}

TEST_P(Uneven, AMemberThatComesLateGetsAllThatIsHeld) {
  const auto [ordered, begun, lanes] = GetParam();
  FakeFeed fake({.lanes = lanes, .slots = 4 * lanes, .ordered = ordered});
  {
    Member first(fake);
    for (std::uint64_t i = 0; i < kMany; ++i) {
      ASSERT_TRUE(fake.publish_lane(lanes - 1));
      if (ordered && i == 0) {
        for (std::uint32_t lane = 0; lane + 1 < lanes; ++lane) fake.close_lane(lane);
      }
      ASSERT_EQ(first.release(first.take()), RF_OK);
    }
    ASSERT_TRUE(fake.publish_lane(lanes - 1));
    ASSERT_TRUE(fake.publish_lane(lanes - 1));
    fake.close();
  }
  Member second(fake);
  EXPECT_EQ(second.stats().lag, 2U);
  EXPECT_THAT(second.take_all(), ElementsAre(kMany * lanes + lanes, kMany * lanes + 2 * lanes));
}

TEST_P(Uneven, WhatIsKeptOfALaneThatHasEndedHoldsUpNobody) {
  const auto [ordered, begun, lanes] = GetParam();
  if (lanes == 1) return;
  auto [fake, member] = Joined({.lanes = lanes, .slots = 4 * lanes, .ordered = ordered});
  ASSERT_TRUE(fake.publish_lane(0));
  ASSERT_EQ(member.take(), 1U);
  for (std::uint32_t lane = 0; lane + 1 < lanes; ++lane) fake.close_lane(lane);
  for (std::uint64_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(fake.publish_lane(lanes - 1));
    ASSERT_EQ(member.take(), i * lanes + lanes);
    ASSERT_EQ(member.release(i * lanes + lanes), RF_OK);
  }
  EXPECT_EQ(member.release(1), RF_OK);
}

TEST_P(Uneven, AnObserverSeesWhatIsNewAndNotWhatHasTheHighestNumber) {
  const auto [ordered, begun, lanes] = GetParam();
  FakeFeed fake({.lanes = lanes, .slots = 4 * lanes, .ordered = ordered});
  Member member(fake);
  Observer eye(fake);
  rf_batch batch{};
  for (std::uint64_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(fake.publish_lane(lanes - 1));
    if (!ordered || lanes == 1) {
      ASSERT_EQ(member.release(member.take()), RF_OK);
    }
    if (ordered && lanes > 1 && i == 3) break;
  }
  ASSERT_EQ(eye.look(&batch), RF_OK);
  EXPECT_EQ(rf_release(eye.feed(), batch.seq), RF_OK);
  for (std::uint64_t i = 0; lanes > 1 && i < 3; ++i) {
    ASSERT_TRUE(fake.publish_lane(0));
    rf_batch newer{};
    ASSERT_EQ(eye.look(&newer), RF_OK);
    EXPECT_EQ(newer.seq, i * lanes + 1);
    EXPECT_EQ(rf_release(eye.feed(), newer.seq), RF_OK);
    EXPECT_EQ(eye.look(&newer), RF_TIMEOUT);
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, Uneven,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(1U, 2U, 3U, 7U)));

// Both lanes had more than the feed describes since the hint was raised last, and have ended.
TEST(End, ComesAfterWhatIsLeftHoweverUnevenTheLanesWere) {
  auto [fake, member] = Joined({.lanes = 2, .slots = 16, .ordered = false, .max_hold = 8});
  ASSERT_TRUE(fake.publish_lane(0));
  ASSERT_EQ(member.take(), 1U);
  ASSERT_EQ(member.release(1), RF_OK);
  for (std::uint64_t i = 1; i <= shm::kDescriptorsMax; ++i) {
    ASSERT_TRUE(fake.publish_lane(1));
    ASSERT_EQ(member.take(), 2 * i);
    ASSERT_EQ(member.release(2 * i), RF_OK);
  }
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(fake.publish_lane(1));
  fake.close();
  rf_status end = RF_OK;
  EXPECT_EQ(member.take_all(&end).size(), 8U);
  EXPECT_EQ(end, RF_END);
}

TEST(Next, ASignalEndsTheWait) {
  FakeFeed fake;
  Member member(fake);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const pthread_t self = ::pthread_self();
  std::atomic<bool> done{false};
  std::thread sender([&] {
    while (member.stats().waits == 0) std::this_thread::yield();
    // Again and again: the first may come between two sleeps.
    while (!done) ::pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(member.next(-1), RF_INTERRUPTED);
  done = true;
  sender.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  fake.publish(1);
  rf_status status = RF_INTERRUPTED;
  while (status == RF_INTERRUPTED) status = member.next();
  EXPECT_EQ(status, RF_OK);
}

TEST(Next, EventsOfTheSupervisorDoNotDisturb) {
  auto [fake, member] = Joined();
  for (int i = 0; i < 1000; ++i) fake.send_event();
  EXPECT_EQ(member.next(0), RF_TIMEOUT);
  fake.publish(1);
  EXPECT_EQ(member.take(), 1U);
}

TEST(Next, RefusesAStructWithoutItsSize) {
  auto [fake, member] = Joined();
  rf_batch batch{};
  EXPECT_EQ(rf_next(member.feed(), 0, &batch), RF_INVALID);
  EXPECT_EQ(rf_next(nullptr, 0, &batch), RF_INVALID);
  rf_stats_info stats{};
  EXPECT_EQ(rf_stats(member.feed(), &stats), RF_INVALID);
}

TEST(Next, AnOlderCallersShorterStructIsNotOverrun) {
  auto [fake, member] = Joined();
  fake.publish(1);
  struct {
    rf_batch batch;
  } room;
  std::memset(&room, 0x5a, sizeof room);
  room.batch.struct_size = offsetof(rf_batch, ragged);
  ASSERT_EQ(rf_next(member.feed(), 0, &room.batch), RF_OK);
  EXPECT_EQ(room.batch.seq, 1U);
  EXPECT_EQ(rf_release(member.feed(), 1), RF_OK);
  for (const std::uint32_t word : room.batch.ragged) EXPECT_EQ(word, 0x5a5a5a5aU);
}

// ---- the end ----

TEST(End, ComesWhenAllIsTakenAlsoIfTheLastOnesAreStillHeldHere) {
  auto [fake, member] = Joined();
  fake.publish(2);
  fake.close();
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.take(), 2U);
  EXPECT_EQ(member.next(), RF_END);
  EXPECT_EQ(member.next(), RF_END);
  EXPECT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(member.release(2), RF_OK);
}

TEST(End, IsNotReachedWhileAnotherLiveMemberMightGiveABatchBack) {
  FakeFeed fake;
  Member holder(fake);
  Member other(fake);
  fake.publish(1);
  fake.close();
  ASSERT_EQ(holder.take(), 1U);
  EXPECT_EQ(other.next(0), RF_TIMEOUT);
  EXPECT_EQ(holder.next(), RF_END);  // it has come back for more: batch 1 has been worked on
  EXPECT_EQ(other.next(), RF_END);
}

TEST(End, ADeadMembersBatchComesBackBeforeIt) {
  FakeFeed fake;
  Member dying(fake);
  Member other(fake);
  fake.publish(2);
  fake.close();
  ASSERT_EQ(dying.take(), 1U);
  ASSERT_EQ(other.take(), 2U);
  ASSERT_EQ(other.next(0), RF_TIMEOUT);
  fake.recover_member(0, 0);
  ASSERT_EQ(other.next(), RF_OK);
  EXPECT_EQ(other.batch().seq, 1U);
  EXPECT_EQ(other.batch().tries, 1U);
  EXPECT_EQ(other.next(), RF_END);
}

TEST(End, AFeedThatWasStoppedEndsThoughItsLanesNeverClosed) {
  auto [fake, member] = Joined({.lanes = 2});
  fake.publish(1);
  fake.set_phase(shm::FeedPhase::kEnded);
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.next(), RF_END);
}

TEST(End, AFailureComesAfterWhatWasPublished) {
  auto [fake, member] = Joined();
  fake.publish(1);
  fake.fail("feed 'fake' has failed: group pool died 11 times within 60 s");
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.next(), RF_FEED_FAILED);
  EXPECT_EQ(member.error(), "feed 'fake' has failed: group pool died 11 times within 60 s");
}

TEST(End, AStopComesAfterWhatWasPublishedAndIsNoEnd) {
  auto [fake, member] = Joined({.lanes = 2});
  fake.publish(1);
  fake.stop("stopped by a request of process 7");
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.next(), RF_FEED_STOPPED);
  EXPECT_THAT(member.error(), HasSubstr("stopped by a request of process 7"));
  EXPECT_EQ(member.stats().phase, static_cast<uint32_t>(RF_PHASE_STOPPED));
}

TEST(End, AFeedWithoutABatchEndsWhenItsSupervisorSaysHow) {
  auto [fake, member] = Joined();
  fake.close_lane(0);
  EXPECT_EQ(member.next(20), RF_TIMEOUT) << "lanes close before the supervisor knows why";
  fake.fail("the run ended without a single batch");
  EXPECT_EQ(member.next(), RF_FEED_FAILED);
}

TEST(End, ItsReasonIsTold) {
  auto [fake, member] = Joined();
  fake.publish(1);
  fake.close();
  EXPECT_EQ(member.take(), 1U);
  EXPECT_EQ(member.next(), RF_END);
  EXPECT_EQ(member.error(), "the run is over");
}

TEST(End, AGroupThatIsStillBeingAdmittedHearsOfTheFailure) {
  auto [fake, member] = Joined();
  fake.publish(1);
  fake.set_group_state(0, shm::GroupState::kJoining);
  EXPECT_EQ(member.next(0), RF_TIMEOUT);
  EXPECT_THAT(member.error(), HasSubstr("the group is still being admitted"));
  fake.fail("worker pool died 11 times");
  EXPECT_EQ(member.next(), RF_FEED_FAILED);
  EXPECT_THAT(member.error(), HasSubstr("worker pool died 11 times"));
}

TEST(Next, BeginsWhenTheGroupIsAdmitted) {
  FakeFeed fake;
  Member member(fake);
  fake.publish(1);
  fake.set_group_state(0, shm::GroupState::kJoining);
  std::thread supervisor([&] {
    while (member.stats().waits == 0) std::this_thread::yield();
    fake.set_group_state(0, shm::GroupState::kActive);
  });
  EXPECT_EQ(member.take(), 1U);
  supervisor.join();
}

TEST(Attach, WaitsUntilTheLanesKnowTheGroupSoThatWhatIsReadyIsGivenAtOnce) {
  FakeFeed fake({.admits = false});
  fake.publish(1);
  std::thread supervisor([&] {
    while (fake.members() == 0) std::this_thread::yield();
    fake.set_group_state(0, shm::GroupState::kActive);
  });
  Member member(fake);
  EXPECT_EQ(member.next(0), RF_OK);
  supervisor.join();
}

TEST(Attach, IsAMemberAlsoWhereALaneDoesNotAnswerInTime) {
  FakeFeed fake({.admits = false});
  fake.publish(1);
  Member member(fake, {.answer_ms = 50});
  EXPECT_EQ(member.next(0), RF_TIMEOUT);
  EXPECT_THAT(member.error(), HasSubstr("the group is still being admitted"));
  fake.set_group_state(0, shm::GroupState::kActive);
  EXPECT_EQ(member.next(0), RF_OK);
}

TEST(Attach, DoesNotWaitForAFeedThatHasFailed) {
  FakeFeed fake({.admits = false});
  fake.fail("worker pool died 11 times");
  Member member(fake, {.answer_ms = -1});
  EXPECT_EQ(member.next(0), RF_FEED_FAILED);
}

TEST(End, AGroupThatHasLeftTheFeedSaysSo) {
  auto [fake, member] = Joined();
  fake.set_group_state(0, shm::GroupState::kDraining);
  EXPECT_EQ(member.next(), RF_DETACHED);
  EXPECT_THAT(member.error(), HasSubstr("group g has left the feed"));
}

TEST(End, AMemberThatWasTakenForDeadClaimsNothingMore) {
  auto [fake, member] = Joined();
  fake.publish(1);
  fake.recover_member(0, 0);
  EXPECT_EQ(member.next(), RF_DETACHED);
  EXPECT_THAT(member.error(), HasSubstr("member 0 has been removed"));
}

// ---- redelivery ----

// taken: 1 by the dying, 2 by the other; 3 published. 1 comes back: it lies below 3 and goes first.
TEST(Redelivery, AGivenBackBatchComesBeforeNewOnes) {
  FakeFeed fake({.slots = 8, .max_hold = 8});
  Member dying(fake);
  Member other(fake);
  fake.publish(3);
  ASSERT_EQ(dying.take(), 1U);
  ASSERT_EQ(other.take(), 2U);
  fake.recover_member(0, 0);
  ASSERT_EQ(other.next(), RF_OK);
  EXPECT_EQ(other.batch().seq, 1U);
  EXPECT_EQ(other.batch().tries, 1U);
  ASSERT_EQ(other.next(), RF_OK);
  EXPECT_EQ(other.batch().seq, 3U);
  EXPECT_EQ(other.batch().tries, 0U);
}

TEST(Redelivery, IsFoundHoweverFarTheGroupHasGoneOn) {
  FakeFeed fake({.slots = 4, .max_hold = 8});
  Member dying(fake);
  Member other(fake);
  fake.publish(1);
  ASSERT_EQ(dying.take(), 1U);
  for (std::uint64_t s = 2; s <= 200; ++s) {
    ASSERT_EQ(fake.publish(1), 1U);
    ASSERT_EQ(other.take(), s);
    ASSERT_EQ(other.release(s), RF_OK);
  }
  fake.recover_member(0, 0);
  EXPECT_EQ(other.take(), 1U);
}

TEST(Redelivery, AtMostOnceClosesTheBatchInstead) {
  FakeFeed fake({.redeliver = false});
  Member dying(fake);
  Member other(fake);
  fake.publish(2);
  fake.close();
  ASSERT_EQ(dying.take(), 1U);
  fake.recover_member(0, 0);
  EXPECT_EQ(other.take(), 2U);
  EXPECT_EQ(other.next(), RF_END);
}

TEST(Redelivery, AReleaseThatComesTooLateSaysSoAndHarmsNobody) {
  FakeFeed fake;
  Member slow(fake);
  Member other(fake);
  fake.publish(1);
  ASSERT_EQ(slow.take(), 1U);
  fake.recover_member(0, 0);
  ASSERT_EQ(other.take(), 1U);
  EXPECT_EQ(slow.release(1), RF_DETACHED);
  EXPECT_EQ(other.stats().held, 1U);
  EXPECT_EQ(other.release(1), RF_OK);
}

// ---- groups ----

TEST(Groups, EachSeesEveryBatch) {
  FakeFeed fake({.slots = 6});
  Member a(fake, {.group = "a"});
  Member b(fake, {.group = "b"});
  fake.publish(4);
  fake.close();
  EXPECT_THAT(a.take_all(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(b.take_all(), ElementsAre(1, 2, 3, 4));
}

TEST(Groups, RanksTakeTheirClassWhateverTheOthersDo) {
  FakeFeed fake({.slots = 8});
  Member r0(fake, {.rank = 0, .world = 2});
  Member r1(fake, {.rank = 1, .world = 2});
  fake.publish(7);
  fake.close();
  rf_status end = RF_OK;
  EXPECT_THAT(r1.take_all(&end), ElementsAre(2, 4, 6));
  EXPECT_EQ(end, RF_END);
  EXPECT_THAT(r0.take_all(&end), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(end, RF_END);
}

TEST(Groups, ARanksBatchComesBackToItsSuccessor) {
  FakeFeed fake({.slots = 8});
  Member other(fake, {.rank = 1, .world = 2});
  Member dying(fake, {.rank = 0, .world = 2});
  fake.publish(4);
  fake.close();
  ASSERT_EQ(dying.take(), 1U);
  fake.recover_member(0, 0);
  EXPECT_THAT(other.take_all(), ElementsAre(2, 4));
  Member successor(fake, {.rank = 0, .world = 2});
  ASSERT_EQ(successor.next(), RF_OK);
  EXPECT_EQ(successor.batch().seq, 1U);
  EXPECT_EQ(successor.batch().tries, 1U);
  EXPECT_EQ(successor.take(), 3U);
}

TEST(Stats, NextIsTheLowestBatchThatTheGroupHasNotFinished) {
  auto [fake, member] = Joined({.slots = 8, .max_hold = 8});
  EXPECT_EQ(member.stats().next, 1U) << "nothing is published yet";
  fake.publish(5);
  EXPECT_EQ(member.stats().next, 1U);
  ASSERT_EQ(member.take(), 1U);
  ASSERT_EQ(member.take(), 2U);
  EXPECT_EQ(member.stats().next, 1U) << "held is not finished";
  ASSERT_EQ(member.release(2), RF_OK);
  EXPECT_EQ(member.stats().next, 1U);
  ASSERT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(member.stats().next, 3U);
  fake.close();
  EXPECT_EQ(member.take_all().size(), 3U);
  EXPECT_EQ(member.stats().next, 6U);
}

TEST(Stats, NextOfARankIsOneOfItsOwn) {
  FakeFeed fake({.slots = 8, .max_hold = 8});
  Member first(fake, {.rank = 0, .world = 2});
  Member second(fake, {.rank = 1, .world = 2});
  fake.publish(5);
  EXPECT_EQ(first.stats().next, 1U);
  EXPECT_EQ(second.stats().next, 2U);
  ASSERT_EQ(second.take(), 2U);
  ASSERT_EQ(second.release(2), RF_OK);
  EXPECT_EQ(first.stats().next, 1U);
  EXPECT_EQ(second.stats().next, 4U);
  fake.close();
  EXPECT_EQ(first.take_all(), (std::vector<std::uint64_t>{1, 3, 5}));
  EXPECT_EQ(first.stats().next, 7U);
}

TEST(Stats, AnOlderCallersShorterStructIsNotOverrun) {
  auto [fake, member] = Joined();
  rf_stats_info stats{};
  stats.struct_size = offsetof(rf_stats_info, next);
  stats.next = 77;
  EXPECT_EQ(rf_stats(member.feed(), &stats), RF_OK);
  EXPECT_STREQ(stats.group, "g");
  EXPECT_EQ(stats.next, 77U);
}

TEST(Groups, NewestBeginsWithTheNextBatch) {
  FakeFeed fake({.slots = 8});
  fake.publish(3);
  Member late(fake, {.group = "late", .start = RF_START_NEWEST});
  Member all(fake, {.group = "all"});
  fake.publish(1);
  EXPECT_EQ(late.take(), 4U);
  EXPECT_EQ(all.take(), 1U);
}

// Four members, one thread each, and a producer: every batch once, whoever is quicker.
TEST(Groups, ConcurrentMembersNeverShareABatch) {
  constexpr std::uint64_t kBatches = 2000;
  FakeFeed fake({.lanes = 2, .slots = 8});
  std::vector<std::unique_ptr<Member>> members;
  for (int i = 0; i < 4; ++i) members.push_back(std::make_unique<Member>(fake));
  std::vector<std::vector<std::uint64_t>> seen(members.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] { seen[i] = members[i]->take_all(); });
  }
  publish_to(fake, kBatches, threads);
  std::vector<std::uint64_t> all;
  for (const auto& part : seen) {
    EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), kBatches);
  for (std::uint64_t s = 1; s <= kBatches; ++s) ASSERT_EQ(all[s - 1], s);
}

// One handle, many threads: what a Python process with finalizers does.
TEST(Groups, ThreadsOfOneMemberMayTakeAndReleaseForEachOther) {
  constexpr std::uint64_t kBatches = 1000;
  FakeFeed fake({.slots = 8, .max_hold = 8});
  Member member(fake);
  std::mutex mutex;
  std::vector<std::uint64_t> taken;
  std::atomic<std::uint64_t> released{0};
  std::atomic<int> taking{2};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (;;) {
        rf_batch batch{};
        batch.struct_size = sizeof batch;
        const rf_status status = rf_next(member.feed(), 20, &batch);
        if (status == RF_END) break;
        if (status != RF_OK) {
          // The other threads hold all there is for the moment.
          EXPECT_THAT(status, AnyOf(RF_TIMEOUT, RF_SLOTS_EXHAUSTED))
              << rf_last_error(member.feed());
          continue;
        }
        const std::lock_guard lock(mutex);
        taken.push_back(batch.seq);
      }
      --taking;
    });
    threads.emplace_back([&] {
      for (;;) {
        std::uint64_t seq = 0;
        {
          const std::lock_guard lock(mutex);
          if (!taken.empty()) {
            seq = taken.back();
            taken.pop_back();
          } else if (taking == 0) {
            return;
          }
        }
        if (seq == 0) {
          std::this_thread::yield();
          continue;
        }
        EXPECT_EQ(rf_release(member.feed(), seq), RF_OK);
        ++released;
      }
    });
  }
  publish_to(fake, kBatches, threads);
  EXPECT_EQ(released, kBatches);
  EXPECT_EQ(member.stats().held, 0U);
}

// ---- private views ----

// Batch s of these tests spreads over several pages, so that some are written and some are not.
constexpr std::uint32_t kWideRows = 2000;
constexpr std::uint64_t kWideItems = 3 * kWideRows;

float* writable_x(const rf_batch& batch) {
  return static_cast<float*>(const_cast<void*>(batch.data));
}

// Is this what the feed wrote for batch s? The first place that is not, or kWideItems.
std::uint64_t first_wrong(const void* data, std::uint64_t s) {
  for (std::uint64_t i = 0; i < kWideItems; ++i) {
    float x = 0;
    std::memcpy(&x, static_cast<const std::byte*>(data) + 4 * i, 4);
    if (x != static_cast<float>(1000 * s + i)) return i;
  }
  return kWideItems;
}

// Bytes of the payload's mapping that this process has made its own.
std::uint64_t own_bytes(const void* data) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      const auto at = reinterpret_cast<std::uint64_t>(data);
      here = from <= at && at < to;
    }
    std::uint64_t kib = 0;
    if (here && std::sscanf(line.c_str(), "Anonymous: %lu kB", &kib) == 1) return 1024 * kib;
  }
  ADD_FAILURE() << "no mapping at " << data;
  return 0;
}

TEST(PrivateView, WhatIsWrittenIsSeenByThisMemberAloneAndOnlyWithThisBatch) {
  FakeFeed fake({.slots = 1, .rows_max = kWideRows, .max_hold = 1});
  Member writer(fake, {.group = "w", .view = RF_VIEW_PRIVATE});
  Member other_writer(fake, {.group = "o", .view = RF_VIEW_PRIVATE});
  Member reader(fake, {.group = "r"});
  for (std::uint64_t s = 1; s <= 20; ++s) {
    ASSERT_EQ(fake.publish(1), 1U);
    for (Member* member : {&writer, &other_writer, &reader}) {
      ASSERT_EQ(member->take(), s);
      ASSERT_EQ(first_wrong(member->batch().data, s), kWideItems) << s;
    }
    // All of it, or one page in the middle.
    float* const x = writable_x(writer.batch());
    const std::uint64_t from = s % 2 == 0 ? 0 : 2048;
    const std::uint64_t count = s % 2 == 0 ? kWideItems : 1024;
    std::fill_n(x + from, count, -1.0F);
    for (std::uint64_t i = from; i < from + count; ++i) ASSERT_EQ(x[i], -1.0F);
    EXPECT_EQ(first_wrong(other_writer.batch().data, s), kWideItems) << s;
    EXPECT_EQ(first_wrong(reader.batch().data, s), kWideItems) << s;
    EXPECT_EQ(first_wrong(fake.payload() + shm::kPageBytes, s), kWideItems) << s;
    writable_x(other_writer.batch())[0] = -2.0F;
    EXPECT_EQ(x[0], s % 2 == 0 ? -1.0F : static_cast<float>(1000 * s));
    for (Member* member : {&writer, &other_writer, &reader}) {
      ASSERT_EQ(member->release(s), RF_OK);
    }
  }
}

TEST(PrivateView, TakesMemoryForWrittenPagesAloneAndGivesItBackWithTheBatch) {
  auto [fake, member] = Joined({.slots = 2, .rows_max = kWideRows}, {.view = RF_VIEW_PRIVATE});
  fake.publish(2);
  ASSERT_EQ(member.take(), 1U);
  const rf_batch first = member.batch();
  ASSERT_EQ(first_wrong(first.data, 1), kWideItems);
  EXPECT_EQ(own_bytes(first.data), 0U) << "reading copies nothing";
  writable_x(first)[0] = -1.0F;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(own_bytes(first.data), page);
  ASSERT_EQ(member.take(), 2U);
  writable_x(member.batch())[0] = -1.0F;
  EXPECT_EQ(own_bytes(first.data), 2 * page);
  ASSERT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(own_bytes(first.data), page) << "those of the batch that is still held";
  EXPECT_EQ(writable_x(member.batch())[0], -1.0F);
  ASSERT_EQ(member.release(2), RF_OK);
  EXPECT_EQ(own_bytes(first.data), 0U);
}

// A program that locks its memory copies every page of a private mapping at that moment.
TEST(PrivateView, PagesThatAProgramHasLockedDoNotShowOldBytes) {
  auto [fake, member] = Joined({.slots = 2, .rows_max = kWideRows}, {.view = RF_VIEW_PRIVATE});
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  const auto* const slots = static_cast<const std::byte*>(member.batch().data) -
                            member.batch().slot * rf_schema(member.feed())->slot_bytes;
  // By number, because sanitizers make the function mlock do nothing.
  ASSERT_EQ(::syscall(SYS_mlock, slots, 2 * rf_schema(member.feed())->slot_bytes), 0)
      << std::strerror(errno);
  EXPECT_GT(own_bytes(member.batch().data), rf_schema(member.feed())->slot_bytes);
  writable_x(member.batch())[0] = -1.0F;
  ASSERT_EQ(member.release(1), RF_OK);
  for (std::uint64_t s = 2; s <= 5; ++s) {
    ASSERT_EQ(fake.publish(1), 1U);
    ASSERT_EQ(member.take(), s);
    EXPECT_EQ(first_wrong(member.batch().data, s), kWideItems) << s;
    ASSERT_EQ(member.release(s), RF_OK);
  }
}

// Threads write to what they hold while others release and take the same slots: no thread finds
// another's or an older batch's bytes in its own, and none loses what it has written.
TEST(PrivateView, ThreadsThatWriteToTheirBatchesDoNotDisturbEachOther) {
  constexpr std::uint64_t kBatches = 1500;
  FakeFeed fake({.slots = 4, .rows_max = kWideRows, .max_hold = 4});
  Member member(fake, {.view = RF_VIEW_PRIVATE});
  std::atomic<std::uint64_t> old_bytes{0};
  std::atomic<std::uint64_t> lost_bytes{0};
  std::atomic<std::uint64_t> taken{0};
  std::atomic<bool> broken{false};
  // For ThreadSanitizer: the order between a release and the next claim of the slot passes through
  // the feed's own mapping of the claim words, where it does not see it.
  std::atomic<std::uint64_t> order{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (;;) {
        rf_batch batch{};
        batch.struct_size = sizeof batch;
        const rf_status status = rf_next(member.feed(), 20, &batch);
        if (status == RF_END) break;
        if (status == RF_TIMEOUT || status == RF_SLOTS_EXHAUSTED) continue;
        if (status != RF_OK) {
          ADD_FAILURE() << rf_last_error(member.feed());
          broken = true;
          break;
        }
        order.fetch_add(1, std::memory_order_acq_rel);
        ++taken;
        if (first_wrong(batch.data, batch.seq) != kWideItems) ++old_bytes;
        float* const x = writable_x(batch);
        const auto mark = -static_cast<float>(batch.seq);
        for (std::uint64_t k = batch.seq % 64; k < kWideItems; k += 64) x[k] = mark;
        // Long enough for a release elsewhere to finish what it has begun.
        for (int wait = 0; wait < 4; ++wait) std::this_thread::yield();
        for (std::uint64_t k = batch.seq % 64; k < kWideItems; k += 64) {
          if (x[k] != mark) ++lost_bytes;
        }
        order.fetch_add(1, std::memory_order_acq_rel);
        EXPECT_EQ(rf_release(member.feed(), batch.seq), RF_OK);
      }
    });
  }
  publish_to(fake, kBatches, threads, &broken);
  EXPECT_EQ(taken, kBatches);
  EXPECT_EQ(old_bytes, 0U);
  EXPECT_EQ(lost_bytes, 0U);
}

TEST(PrivateView, LeavesNoMappingBehind) {
  FakeFeed fake;
  const std::size_t before = mappings();
  fake.publish(1);
  {
    Member member(fake, {.view = RF_VIEW_PRIVATE});
    ASSERT_EQ(member.take(), 1U);
    writable_x(member.batch())[0] = -1.0F;
    EXPECT_GT(mappings(), before);
  }
  EXPECT_EQ(mappings(), before);
}

TEST(Payload, IsWhereTheBatchesLie) {
  auto [fake, member] = Joined({.slots = 3});
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  ASSERT_EQ(rf_payload(member.feed(), &data, &bytes), RF_OK);
  EXPECT_GE(member.batch().data, data);
  EXPECT_LE(static_cast<const std::byte*>(member.batch().data) + member.batch().bytes,
            static_cast<const std::byte*>(data) + bytes);
  EXPECT_EQ(rf_payload(member.feed(), nullptr, &bytes), RF_INVALID);
  EXPECT_EQ(rf_payload(nullptr, &data, &bytes), RF_INVALID);
  ASSERT_EQ(rf_leave(member.feed()), RF_OK);
  EXPECT_EQ(rf_payload(member.feed(), &data, &bytes), RF_DETACHED) << "though a batch is held";
}

TEST(Payload, OfAPrivateViewIsNotGivenAway) {
  auto [fake, member] = Joined({}, {.view = RF_VIEW_PRIVATE});
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  EXPECT_EQ(rf_payload(member.feed(), &data, &bytes), RF_INVALID);
  EXPECT_THAT(member.error(), HasSubstr("attach read-only"));
}

// ---- hoarding ----

TEST(Exhausted, BeyondMaxHold) {
  auto [fake, member] = Joined({.slots = 8, .max_hold = 3});
  fake.publish(5);
  for (std::uint64_t s = 1; s <= 3; ++s) ASSERT_EQ(member.take(), s);
  EXPECT_EQ(member.next(), RF_SLOTS_EXHAUSTED);
  EXPECT_THAT(member.error(), HasSubstr("this member holds 3 of 8 slots (batches 1, 2, 3) and may "
                                        "hold at most 3: release a batch before the next one"));
  EXPECT_EQ(member.stats().held, 3U);
  EXPECT_EQ(member.release(2), RF_OK);
  EXPECT_EQ(member.take(), 4U);
}

TEST(Exhausted, WithAllSlotsOfTheFeed) {
  auto [fake, member] = Joined({.slots = 2, .max_hold = 100});
  fake.publish(2);
  ASSERT_EQ(member.take(), 1U);
  ASSERT_EQ(member.take(), 2U);
  EXPECT_EQ(fake.publish(1), 0U);
  EXPECT_EQ(member.next(), RF_SLOTS_EXHAUSTED);
  EXPECT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(fake.publish(1), 1U);
  EXPECT_EQ(member.take(), 3U);
}

// slots 0 2 of lane 0, 1 3 of lane 1; held: 1 3 (lane 0). Batch 5 is lane 0's and cannot come.
TEST(Exhausted, WithAllSlotsOfTheLaneThatIsNext) {
  auto [fake, member] = Joined({.lanes = 2, .slots = 4, .max_hold = 100});
  fake.publish(4);
  for (std::uint64_t s = 1; s <= 4; ++s) ASSERT_EQ(member.take(), s);
  EXPECT_EQ(member.release(2), RF_OK);
  EXPECT_EQ(member.release(4), RF_OK);
  EXPECT_EQ(member.next(), RF_SLOTS_EXHAUSTED);
  EXPECT_THAT(member.error(), HasSubstr("the lane that writes the next batch has no other slot"));
}

// One batch kept while the feed goes on: D batches later its descriptor is needed.
TEST(Exhausted, WithABatchSoOldThatItsDescriptorIsNeeded) {
  auto [fake, member] = Joined({.slots = 4, .descriptors = 16, .max_hold = 4});
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  for (std::uint64_t s = 2; s <= 16; ++s) {
    ASSERT_EQ(fake.publish(1), 1U);
    ASSERT_EQ(member.take(), s);
    ASSERT_EQ(member.release(s), RF_OK);
  }
  EXPECT_EQ(fake.publish(1), 0U);
  EXPECT_EQ(member.next(), RF_SLOTS_EXHAUSTED);
  EXPECT_THAT(member.error(), HasSubstr("its descriptor is needed"));
  EXPECT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(fake.publish(1), 1U);
  EXPECT_EQ(member.take(), 17U);
}

TEST(Exhausted, IsNotWhatAnotherMembersHoardIsCalled) {
  FakeFeed fake({.slots = 2, .max_hold = 100});
  Member hoarder(fake);
  Member other(fake);
  fake.publish(2);
  ASSERT_EQ(hoarder.take(), 1U);
  ASSERT_EQ(hoarder.take(), 2U);
  EXPECT_EQ(other.next(5), RF_TIMEOUT);
}

TEST(Exhausted, TheEndComesFirst) {
  auto [fake, member] = Joined({.max_hold = 2});
  fake.publish(2);
  fake.close();
  ASSERT_EQ(member.take(), 1U);
  ASSERT_EQ(member.take(), 2U);
  EXPECT_EQ(member.next(), RF_END);
}

// ---- release and detach ----

TEST(Release, OnceAndOnlyWhatIsHeld) {
  auto [fake, member] = Joined();
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  EXPECT_EQ(member.release(2), RF_INVALID);
  EXPECT_EQ(member.release(0), RF_INVALID);
  EXPECT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(member.release(1), RF_INVALID);
  EXPECT_THAT(member.error(), HasSubstr("batch 1 is not held by this handle"));
  EXPECT_EQ(member.stats().done, 1U);
}

TEST(Verify, TellsABatchWhoseBytesAreOthers) {
  auto [fake, member] = Joined({.rows_max = 5000, .checksum = true}, {.view = RF_VIEW_PRIVATE});
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  EXPECT_EQ(rf_verify(member.feed(), &member.batch()), RF_OK) << member.error();
  auto* const last = static_cast<unsigned char*>(const_cast<void*>(member.batch().data)) +
                     member.batch().bytes - 1;
  *last ^= 1;
  EXPECT_EQ(rf_verify(member.feed(), &member.batch()), RF_DAMAGED);
  EXPECT_THAT(member.error(), HasSubstr("something has written to them"));
  *last ^= 1;
  EXPECT_EQ(rf_verify(member.feed(), &member.batch()), RF_OK) << member.error();
  ASSERT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(rf_verify(member.feed(), &member.batch()), RF_INVALID);
  EXPECT_THAT(member.error(), HasSubstr("batch 1 is not held"));
  EXPECT_EQ(rf_verify(member.feed(), nullptr), RF_INVALID);
}

TEST(Verify, NeedsAFeedThatComputesChecksums) {
  auto [fake, member] = Joined();
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  EXPECT_EQ(member.batch().crc32c, 0U);
  EXPECT_EQ(rf_verify(member.feed(), &member.batch()), RF_INVALID);
  EXPECT_THAT(member.error(), HasSubstr("checksum: true"));
}

TEST(Release, ABatchThatWasNeverFilledIsNone) {
  auto [fake, member] = Joined();
  rf_batch batch{};
  EXPECT_EQ(rf_release_batch(member.feed(), &batch), RF_OK);
  EXPECT_EQ(rf_release_batch(member.feed(), nullptr), RF_INVALID);
  fake.publish(1);
  batch.struct_size = sizeof batch;
  ASSERT_EQ(rf_next(member.feed(), kPatienceMs, &batch), RF_OK);
  EXPECT_EQ(rf_release_batch(member.feed(), &batch), RF_OK);
  EXPECT_EQ(member.stats().held, 0U);
}

TEST(Release, RingsForALaneThatWaitsForRoom) {
  auto [fake, member] = Joined();
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  const std::uint32_t before = fake.group(0).bell.load();
  ASSERT_EQ(member.release(1), RF_OK);
  EXPECT_NE(fake.group(0).bell.load(), before);
}

TEST(Detach, HeldBatchesStayReadableAndClaimedUntilTheyAreReleased) {
  auto [fake, member] = Joined({.slots = 2});
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  const void* data = member.batch().data;
  rf_feed* const feed = member.feed();
  member.detach();
  EXPECT_EQ(fake.members(), 1U);
  float x = 0;
  std::memcpy(&x, data, 4);
  EXPECT_EQ(x, 1000.0F);
  EXPECT_EQ(rf_release(feed, 1), RF_OK);
  EXPECT_EQ(fake.members(), 0U);
  const shm::Claim claim = shm::decode_claim(fake.group(0).words[1].load());
  EXPECT_EQ(claim.state, shm::ClaimState::kDone);
}

TEST(Detach, OthersNeedNotWaitForWhatIsHeldThen) {
  FakeFeed fake;
  Member leaving(fake);
  Member other(fake);
  fake.publish(1);
  fake.close();
  ASSERT_EQ(leaving.take(), 1U);
  rf_feed* const feed = leaving.feed();
  leaving.detach();
  EXPECT_EQ(other.next(), RF_END);
  EXPECT_EQ(rf_release(feed, 1), RF_OK);
}

TEST(Detach, LeavingKeepsTheHandleForLaterCalls) {
  auto [fake, member] = Joined();
  fake.publish(2);
  ASSERT_EQ(member.take(), 1U);
  ASSERT_EQ(rf_leave(member.feed()), RF_OK);
  EXPECT_EQ(member.next(), RF_DETACHED);
  EXPECT_EQ(fake.members(), 1U) << "as long as it holds something";
  EXPECT_EQ(member.release(1), RF_OK);
  EXPECT_EQ(fake.members(), 0U);
  EXPECT_EQ(rf_leave(member.feed()), RF_OK);
  EXPECT_EQ(member.next(), RF_DETACHED);
  EXPECT_EQ(member.release(1), RF_INVALID);
  rf_stats_info stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(rf_stats(member.feed(), &stats), RF_DETACHED);
  ASSERT_NE(rf_schema(member.feed()), nullptr);
  EXPECT_STREQ(rf_schema(member.feed())->tensors[0].name, "x");
}

TEST(Detach, WakesAThreadThatWaits) {
  FakeFeed fake;
  Member member(fake);
  std::thread waiter([&fake, feed = member.feed()] {
    rf_batch batch{};
    batch.struct_size = sizeof batch;
    EXPECT_EQ(rf_next(feed, -1, &batch), RF_DETACHED);
    EXPECT_EQ(fake.members(), 0U) << "the last call under way ends the handle";
  });
  while (member.stats().waits == 0) std::this_thread::yield();
  member.detach();
  waiter.join();
}

TEST(Detach, FreesThePlaceBeforeItReturns) {
  FakeFeed fake;
  for (int i = 0; i < 50; ++i) {
    rf_feed* feed = nullptr;
    ASSERT_EQ(attach(fake, {.rank = 0, .world = 1}, &feed), RF_OK) << rf_last_error(nullptr);
    ASSERT_EQ(rf_detach(feed), RF_OK);
  }
  EXPECT_EQ(rf_detach(nullptr), RF_OK);
}

// ---- processes ----

TEST(Fork, TheChildsCallsAreRefusedAndReleaseNothing) {
  auto [fake, member] = Joined();
  fake.publish(2);
  ASSERT_EQ(member.take(), 1U);
  const pid_t child = ::fork();
  if (child == 0) {
    rf_batch batch{};
    batch.struct_size = sizeof batch;
    rf_stats_info stats{};
    stats.struct_size = sizeof stats;
    const bool refused =
        rf_next(member.feed(), 0, &batch) == RF_FORKED &&
        rf_release(member.feed(), 1) == RF_FORKED && rf_stats(member.feed(), &stats) == RF_FORKED &&
        rf_schema(member.feed()) == nullptr && rf_detach(member.feed()) == RF_FORKED &&
        std::strstr(rf_last_error(member.feed()), "attach in the child") != nullptr;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(member.stats().held, 1U);
  EXPECT_EQ(fake.members(), 1U);
  EXPECT_EQ(member.take(), 2U);
  EXPECT_EQ(member.release(1), RF_OK);
}

TEST(Fork, TheBatchsMemoryIsNotMappedInTheChild) {
  auto [fake, member] = Joined();
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  const auto* const data = static_cast<const volatile unsigned char*>(member.batch().data);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(data[0] == 0 ? 2 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_FALSE(WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 2));
#else
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
#endif
}

TEST(Fork, APrivateViewIsNotMappedInTheChildEither) {
  auto [fake, member] = Joined({}, {.view = RF_VIEW_PRIVATE});
  fake.publish(1);
  ASSERT_EQ(member.take(), 1U);
  const auto* const data = static_cast<const volatile unsigned char*>(member.batch().data);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(data[0] == 0 ? 2 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 2));
}

TEST(Fork, WritingToABatchEndsTheProcess) {
  FakeFeed fake;
  fake.publish(1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    rf_feed* feed = nullptr;
    rf_batch batch{};
    batch.struct_size = sizeof batch;
    if (attach(fake, {}, &feed) != RF_OK || rf_next(feed, kPatienceMs, &batch) != RF_OK) ::_exit(1);
    *static_cast<volatile unsigned char*>(const_cast<void*>(batch.data)) = 1;
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
}

// ---- the program in C99 ----

TEST(Example, ACProgramReadsAFeedToItsEnd) {
  FakeFeed fake({.rows_max = 4});
  fake.publish(3);
  std::thread closer([&] { fake.close(); });
  const std::string command = "RINGFEED_SOCKET_DIR=" + fake.socket_dir() + " " +
                              RINGFEED_BINARY_DIR "/bin/client_example fake 2>&1";
  FILE* const out = ::popen(command.c_str(), "r");
  ASSERT_NE(out, nullptr);
  std::string text;
  char part[256];
  while (std::fgets(part, sizeof part, out) != nullptr) text += part;
  EXPECT_EQ(::pclose(out), 0) << text;
  closer.join();
  EXPECT_THAT(text, HasSubstr("batch 1: 4 rows, x float32 x 12, id int64 x 4, flags uint8 x 8\n"));
  // Rows of batch s: twelve values from 1000 s on: 12 * 1000 * (1 + 2 + 3) + 3 * 66.
  EXPECT_THAT(text, HasSubstr("total: 3 batches, 12 rows, sum 72198.0"));
}

}  // namespace
}  // namespace ringfeed::testing
