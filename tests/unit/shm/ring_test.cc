// The specification of ringfeed/shm/ring.h.
#include "ringfeed/shm/ring.h"

#include <algorithm>
#include <deque>
#include <string>

#include "tests/unit/shm/rig.h"

namespace ringfeed::shm {
namespace {

using ::testing::ElementsAre;
using testing::GetLane;
using ::testing::IsEmpty;
using testing::numbered_record;
using testing::PutLane;
using testing::RingMemory;

using Records = std::vector<std::string>;

constexpr RingGeometry kOnePage = {.capacity_bytes = kPageBytes, .records_max = 1000};

RingGeometry with(Overflow overflow, std::uint64_t records_max,
                  std::uint64_t capacity_bytes = kPageBytes) {
  return {.capacity_bytes = capacity_bytes, .records_max = records_max, .overflow = overflow};
}

// ---- what a ring does ---------------------------------------------------------------------------

class Ring : public ::testing::Test {
 protected:
  RingMemory memory{kOnePage};
  PutLane producer{memory};
  GetLane consumer{memory};
};

TEST_F(Ring, GivesRecordsInTheOrderInWhichTheyWerePut) {
  for (const char* record : {"one", "two", "three"}) ASSERT_TRUE(producer.put(record));
  producer.commit();
  EXPECT_THAT(consumer.drain(), ElementsAre("one", "two", "three"));
  EXPECT_THAT(consumer.drain(), IsEmpty());
}

TEST_F(Ring, CarriesTagUserWordAndNumberWithEachRecord) {
  ASSERT_TRUE(producer.put("a", {.tag = {7, 8}, .user = 9}));
  ASSERT_TRUE(producer.put("b", {.tag = {17, 18}, .user = 19}));
  producer.commit();
  for (const std::uint64_t seq : {0, 1}) {
    const std::optional<RecordView> record = consumer.ring.peek();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->header->seq, seq);
    EXPECT_EQ(record->header->tag[0], 10 * seq + 7);
    EXPECT_EQ(record->header->tag[1], 10 * seq + 8);
    EXPECT_EQ(record->header->user, 10 * seq + 9);
    EXPECT_EQ(record->header->type, static_cast<std::uint32_t>(RecordType::kData));
    EXPECT_EQ(record->header->flags, 0U);
    consumer.ring.consume();
  }
}

TEST_F(Ring, HandsOutPayloadsAlignedToTheRecordAlignment) {
  for (const std::size_t bytes : {1, 63, 64, 65}) {
    std::byte* const room = producer.ring.reserve(bytes);
    ASSERT_NE(room, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(room) % kRecordAlign, 0U);
    producer.ring.put(bytes, {});
  }
}

TEST_F(Ring, ShowsNothingBeforeTheCommit) {
  ASSERT_TRUE(producer.put("not yet"));
  producer.ring.stage(producer.journal);
  EXPECT_EQ(consumer.peek(), std::nullopt);
  producer.journal.commit();
  producer.ring.settle();
  EXPECT_EQ(consumer.peek(), "not yet");
}

TEST_F(Ring, PeekTwiceGivesTheSameRecord) {
  producer.put_and_commit("again");
  EXPECT_EQ(consumer.peek(), "again");
  EXPECT_EQ(consumer.get(), "again");
  EXPECT_EQ(consumer.peek(), std::nullopt);
}

TEST_F(Ring, AReservationThatIsNotPutCostsNothing) {
  for (int i = 0; i < 10000; ++i) ASSERT_NE(producer.ring.reserve(1000), nullptr);
  EXPECT_FALSE(producer.ring.touched());
  producer.commit();
  EXPECT_EQ(memory.tail().tail.load(), 0U);
  EXPECT_EQ(memory.tail().tail_seq.load(), 0U);
  producer.put_and_commit("first");
  EXPECT_THAT(consumer.drain(), ElementsAre("first"));
}

// Near the ring's end a reservation writes a pad record; unless a record follows, that is scratch.
TEST_F(Ring, AReservationThatIsNotPutCostsNothingAtTheRingsEndEither) {
  producer.put_and_commit(std::string(1900, 'a'));
  producer.put_and_commit(std::string(1900, 'b'));
  consumer.drain();
  const std::uint64_t tail = memory.tail().tail.load();
  ASSERT_NE(producer.ring.reserve(1000), nullptr);  // does not fit before the end
  EXPECT_FALSE(producer.ring.touched());
  producer.commit();
  EXPECT_EQ(memory.tail().tail.load(), tail);
  producer.put_and_commit("small");  // fits before the end, where the pad was
  EXPECT_EQ(memory.tail().tail.load(), tail + record_footprint(5));
  EXPECT_THAT(consumer.drain(), ElementsAre("small"));
}

TEST_F(Ring, ARecordMayBeSmallerThanItsReservation) {
  std::byte* const room = producer.ring.reserve(1500);
  ASSERT_NE(room, nullptr);
  std::memcpy(room, "short", 5);
  producer.ring.put(5, {});
  producer.commit();
  EXPECT_EQ(memory.tail().tail.load(), record_footprint(5));
  EXPECT_THAT(consumer.drain(), ElementsAre("short"));
}

TEST_F(Ring, RollbackForgetsWhatWasPutAfterTheSavepoint) {
  ASSERT_TRUE(producer.put("kept"));
  const RingProducer::Savepoint here = producer.ring.savepoint();
  for (const char* other : {"x", "yy"}) {
    ASSERT_TRUE(producer.put(other));
    ASSERT_TRUE(producer.put(std::string(900, 'z')));
    producer.ring.rollback(here);
  }
  ASSERT_TRUE(producer.put("instead"));
  producer.commit();
  EXPECT_THAT(consumer.drain(), ElementsAre("kept", "instead"));
}

TEST_F(Ring, RollbackGivesTheConsumerHisRecordsBack) {
  for (const char* record : {"1", "2", "3"}) ASSERT_TRUE(producer.put(record));
  producer.commit();
  EXPECT_EQ(consumer.get(), "1");
  const RingConsumer::Savepoint here = consumer.ring.savepoint();
  EXPECT_EQ(consumer.get(), "2");
  EXPECT_EQ(consumer.get(), "3");
  consumer.ring.rollback(here);
  EXPECT_EQ(consumer.get(), "2");
  consumer.commit();
  EXPECT_THAT(consumer.drain(), ElementsAre("3"));
}

TEST_F(Ring, AnAbandonedStepHasConsumedNothing) {
  for (const char* record : {"1", "2"}) ASSERT_TRUE(producer.put(record));
  producer.commit();
  EXPECT_EQ(consumer.get(), "1");
  consumer.ring.abandon();
  EXPECT_FALSE(consumer.ring.touched());
  EXPECT_THAT(consumer.drain(), ElementsAre("1", "2"));
}

TEST_F(Ring, RoomComesBackOnlyWithTheConsumersCommit) {
  ASSERT_TRUE(producer.put(std::string(1900, 'a')));
  ASSERT_TRUE(producer.put(std::string(1900, 'b')));
  producer.commit();
  ASSERT_TRUE(consumer.get());
  EXPECT_FALSE(producer.put(std::string(1900, 'c')));
  consumer.commit();
  EXPECT_TRUE(producer.put(std::string(1900, 'c')));
}

TEST_F(Ring, MarksTheLastRecordOfTheStepAndNoOther) {
  EXPECT_FALSE(producer.ring.mark_last(kFlagUnitEnd)) << "nothing was put";
  ASSERT_TRUE(producer.put("a"));
  ASSERT_TRUE(producer.put("b"));
  EXPECT_TRUE(producer.ring.mark_last(kFlagUnitEnd));
  producer.commit();
  EXPECT_FALSE(producer.ring.mark_last(kFlagUnitEnd)) << "the record is out of reach";
  EXPECT_EQ(consumer.ring.peek()->header->flags, 0U);
  consumer.ring.consume();
  EXPECT_EQ(consumer.ring.peek()->header->flags, kFlagUnitEnd);
}

TEST_F(Ring, AfterARollbackTheLastRecordIsTheOneBefore) {
  ASSERT_TRUE(producer.put("a"));
  const RingProducer::Savepoint here = producer.ring.savepoint();
  ASSERT_TRUE(producer.put("b"));
  producer.ring.rollback(here);
  EXPECT_TRUE(producer.ring.mark_last(kFlagUnitEnd));
  producer.commit();
  EXPECT_EQ(consumer.peek(), "a");
  EXPECT_EQ(consumer.ring.peek()->header->flags, kFlagUnitEnd);
}

TEST_F(Ring, CarriesTheEndOfAUnitThatHasNoRecordLeft) {
  ASSERT_NE(producer.ring.reserve(0), nullptr);
  producer.ring.put(0, {}, RecordType::kUnitEnd);
  producer.commit();
  const std::optional<RecordView> record = consumer.ring.peek();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->header->type, static_cast<std::uint32_t>(RecordType::kUnitEnd));
  EXPECT_THAT(record->bytes, IsEmpty());
}

TEST_F(Ring, EndsWhenItIsClosedAndDrained) {
  producer.put_and_commit("last words");
  EXPECT_FALSE(consumer.ring.ended());
  producer.ring.close(producer.journal);
  EXPECT_FALSE(producer.ring.closed()) << "closing is part of the step";
  producer.commit();
  EXPECT_TRUE(producer.ring.closed());
  EXPECT_FALSE(consumer.ring.ended()) << "a record is left";
  EXPECT_EQ(consumer.get(), "last words");
  EXPECT_TRUE(consumer.ring.ended());
  consumer.commit();
  EXPECT_TRUE(consumer.ring.ended());
}

TEST_F(Ring, ClosesTogetherWithTheRecordsOfTheSameStepAndTwiceIsOnce) {
  EXPECT_FALSE(consumer.ring.ended());
  ASSERT_TRUE(producer.put("with it"));
  producer.close_and_commit();
  producer.close_and_commit();
  EXPECT_FALSE(consumer.ring.ended());
  EXPECT_THAT(consumer.drain(), ElementsAre("with it"));
  EXPECT_TRUE(consumer.ring.ended());
}

TEST_F(Ring, AnEmptyClosedRingHasEndedForEveryIncarnation) {
  producer.close_and_commit();
  EXPECT_TRUE(consumer.ring.ended());
  EXPECT_TRUE(GetLane(memory).ring.ended());
  EXPECT_TRUE(PutLane(memory).ring.closed());
}

TEST_F(Ring, TheSleepersLookSeesPublishingAndClosing) {
  EXPECT_EQ(consumer.peek(), std::nullopt);
  EXPECT_FALSE(consumer.ring.tail_moved());
  producer.put_and_commit("news");
  EXPECT_TRUE(consumer.ring.tail_moved());
  consumer.drain();
  EXPECT_FALSE(consumer.ring.tail_moved());
  producer.close_and_commit();
  EXPECT_TRUE(consumer.ring.tail_moved());
}

TEST_F(Ring, TheSleepersLookSeesRoom) {
  while (producer.put_and_commit(std::string(500, 'x'))) continue;
  EXPECT_FALSE(producer.ring.head_moved());
  ASSERT_TRUE(consumer.get());
  EXPECT_FALSE(producer.ring.head_moved());
  consumer.commit();
  EXPECT_TRUE(producer.ring.head_moved());
}

// ---- sizes --------------------------------------------------------------------------------------

class RingSizes : public ::testing::TestWithParam<std::uint64_t> {};

// Twice round the ring, so that the record also stands behind a pad.
TEST_P(RingSizes, ComeOutAsTheyWentIn) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  std::uint64_t number = 0;
  while (memory.tail().tail.load() < 2 * kPageBytes) {
    const std::string record = numbered_record(number++, GetParam());
    ASSERT_TRUE(producer.put_and_commit(record)) << number;
    ASSERT_THAT(consumer.drain(), ElementsAre(record)) << number;
  }
}
INSTANTIATE_TEST_SUITE_P(AtEveryLimit, RingSizes,
                         ::testing::Values(0, 1, 63, 64, 65, 127, 128, 129,
                                           record_bytes_max(kOnePage) - 64,
                                           record_bytes_max(kOnePage) - 1,
                                           record_bytes_max(kOnePage)));

TEST(RingSizeDeathTest, ARecordLargerThanHalfTheRingIsRefused) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  EXPECT_EQ(record_bytes_max(kOnePage), kPageBytes / 2 - 64);
  EXPECT_DEATH(producer.ring.reserve(record_bytes_max(kOnePage) + 1), "1985, 4096");
  EXPECT_DEATH(producer.ring.reserve(~std::uint64_t{0}), "check failed");
}

TEST(RingSizeDeathTest, APutBeyondItsReservationIsRefused) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  ASSERT_NE(producer.ring.reserve(64), nullptr);
  EXPECT_DEATH(producer.ring.put(65, {}), "65, 64");
}

// The header would be written over whatever stood where the last reservation was.
TEST(RingSizeDeathTest, APutWithoutAReservationIsRefused) {
  RingMemory memory(with(Overflow::kBlock, 1));
  PutLane producer(memory);
  EXPECT_DEATH(producer.ring.put(0, {}), "check failed") << "none was ever made";
  ASSERT_TRUE(producer.put_and_commit("full"));
  EXPECT_DEATH(producer.ring.put(0, {}), "check failed") << "it has become a record";
  ASSERT_EQ(producer.ring.reserve(0), nullptr);
  EXPECT_DEATH(producer.ring.put(0, {}), "check failed") << "it was refused";
}

TEST(RingSizeDeathTest, AReservationEndsWithARollback) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  const RingProducer::Savepoint here = producer.ring.savepoint();
  ASSERT_NE(producer.ring.reserve(8), nullptr);
  producer.ring.rollback(here);
  EXPECT_DEATH(producer.ring.put(8, {}), "check failed");
}

TEST(RingSizeDeathTest, ConsumeWithoutPeekIsRefused) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit("x"));
  EXPECT_DEATH(consumer.ring.consume(), "check failed");
  ASSERT_TRUE(consumer.peek());
  consumer.ring.abandon();
  EXPECT_DEATH(consumer.ring.consume(), "check failed") << "the peek went with its step";
}

TEST(RingSizeDeathTest, AGeometryThatCannotWorkIsRefused) {
  EXPECT_DEATH(PutLane(RingMemory(with(Overflow::kBlock, 1, kPageBytes + 64))), "check failed");
  EXPECT_DEATH(PutLane(RingMemory(with(Overflow::kBlock, 0))), "check failed");
}

// ---- capacity -----------------------------------------------------------------------------------

TEST(RingCapacity, IsBoundedInRecords) {
  RingMemory memory(with(Overflow::kBlock, 3));
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit("a"));  // committed or not, it counts
  ASSERT_TRUE(producer.put("b"));
  ASSERT_TRUE(producer.put("c"));
  EXPECT_FALSE(producer.put("d"));
  EXPECT_FALSE(producer.ring.last_dropped()) << "blocking drops nothing";
  producer.commit();
  EXPECT_FALSE(producer.put("d"));
  ASSERT_TRUE(consumer.get());
  consumer.commit();
  EXPECT_TRUE(producer.put("d"));
  EXPECT_FALSE(producer.put("e"));
}

TEST(RingCapacity, IsBoundedInBytesToTheLast) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(producer.put(std::string(64, 'x'))) << i;  // 32 * 128
  EXPECT_FALSE(producer.put(""));
  producer.commit();
  EXPECT_EQ(producer.ring.pending_bytes(), kPageBytes);
  EXPECT_EQ(producer.ring.pending_records(), 32U);
  EXPECT_EQ(consumer.ring.free_bytes(), 0U);
  EXPECT_THAT(consumer.drain(), ::testing::SizeIs(32));
  EXPECT_EQ(consumer.ring.free_bytes(), kPageBytes);
}

// A pad takes room like a record: |aaaa bbbb ....| needs the head beyond aaaa before c fits in
// front of it.
TEST(RingCapacity, CountsThePaddingAtTheRingsEnd) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit(std::string(1472, 'a')));  // 1536 bytes
  ASSERT_TRUE(producer.put_and_commit(std::string(1472, 'b')));  // 1024 are left
  EXPECT_FALSE(producer.put(std::string(961, 'c')));
  EXPECT_TRUE(producer.put(std::string(960, 'd')));
  producer.ring.rollback({2 * 1536, 2, 0, 0});
  ASSERT_TRUE(consumer.get());
  consumer.commit();
  EXPECT_FALSE(producer.put(std::string(1473, 'c'))) << "1536 bytes of a are free, 1600 needed";
  EXPECT_TRUE(producer.put(std::string(1472, 'c')));
  producer.commit();
  EXPECT_EQ(memory.tail().tail.load(), kPageBytes + 1536);
  EXPECT_THAT(consumer.drain(), ElementsAre(std::string(1472, 'b'), std::string(1472, 'c')));
}

TEST(RingCapacity, TheLargestRecordFitsIntoAnEmptyRingWhereverItStands) {
  for (std::uint64_t start = 0; start < kPageBytes; start += 64) {
    RingMemory memory(kOnePage);
    PutLane producer(memory);
    GetLane consumer(memory);
    for (std::uint64_t at = 0; at < start; at += 64) {
      ASSERT_TRUE(producer.put_and_commit(""));
      consumer.drain();
    }
    EXPECT_TRUE(producer.put(std::string(record_bytes_max(kOnePage), 'x'))) << start;
  }
}

// ---- wrapping -----------------------------------------------------------------------------------

TEST(RingWrap, ARecordThatEndsExactlyAtTheEndNeedsNoPad) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  for (int i = 0; i < 3; ++i) {
    for (const char c : {'a', 'b'}) {
      ASSERT_TRUE(producer.put_and_commit(std::string(1984, c)));
      EXPECT_THAT(consumer.drain(), ElementsAre(std::string(1984, c)));
    }
    EXPECT_EQ(memory.tail().tail.load(), (static_cast<std::uint64_t>(i) + 1) * kPageBytes);
  }
}

//   | a.... b.... pad | c....       the pad has a header, the number of c, and is not seen
TEST(RingWrap, ARecordThatDoesNotFitBeforeTheEndStandsBehindAPad) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit(std::string(1472, 'a')));
  ASSERT_TRUE(producer.put_and_commit(std::string(1472, 'b')));
  consumer.drain();
  ASSERT_TRUE(producer.put_and_commit(std::string(1472, 'c')));
  const RecordHeader& pad = memory.record(2 * 1536);
  EXPECT_EQ(pad.type, static_cast<std::uint32_t>(RecordType::kPad));
  EXPECT_EQ(record_footprint(pad.bytes), 1024U);
  EXPECT_EQ(pad.seq, 2U);
  EXPECT_EQ(memory.record(kPageBytes).seq, 2U);
  EXPECT_EQ(memory.view().size_records, 1U);
  EXPECT_THAT(consumer.drain(), ElementsAre(std::string(1472, 'c')));
  EXPECT_EQ(memory.head().head_seq.load(), 3U);
}

TEST(RingWrap, TheSmallestPadIsOneHeader) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit(std::string(1984, 'a')));
  ASSERT_TRUE(producer.put_and_commit(std::string(1920, 'b')));
  consumer.drain();
  ASSERT_TRUE(producer.put_and_commit("c"));
  EXPECT_EQ(memory.record(kPageBytes - 64).type, static_cast<std::uint32_t>(RecordType::kPad));
  EXPECT_EQ(memory.record(kPageBytes - 64).bytes, 0U);
  EXPECT_THAT(consumer.drain(), ElementsAre("c"));
}

// Everything lies behind the cursors: a ring whose stream is beyond 2^40 bytes works like a new
// one.
TEST(RingWrap, WorksAtAnyStreamPosition) {
  RingMemory memory(kOnePage);
  const std::uint64_t far = std::uint64_t{1} << 62;
  memory.tail().tail = memory.head().head = far;
  memory.tail().tail_seq = memory.head().head_seq = far / 64;
  PutLane producer(memory);
  GetLane consumer(memory);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::string record = numbered_record(i, 777);
    ASSERT_TRUE(producer.put_and_commit(record));
    ASSERT_THAT(consumer.drain(), ElementsAre(record));
  }
}

// ---- damage -------------------------------------------------------------------------------------

// A published record of 100 bytes at the ring's start, then one thing spoilt.
class RingDamageDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(producer.put_and_commit(std::string(100, 'x'))); }
  RingMemory memory{kOnePage};
  PutLane producer{memory};
};

TEST_F(RingDamageDeathTest, AWrongNumberIsRefused) {
  memory.record(0).seq = 1;
  EXPECT_DEATH(GetLane(memory).peek(), "header->seq == seq_");
}

TEST_F(RingDamageDeathTest, AnUnknownTypeIsRefused) {
  for (const std::uint32_t type : {0U, 4U, ~0U}) {
    memory.record(0).type = type;
    EXPECT_DEATH(GetLane(memory).peek(), "header->type") << type;
  }
}

TEST_F(RingDamageDeathTest, ASizeBeyondTheTailIsRefused) {
  for (const std::uint64_t bytes : {std::uint64_t{129}, std::uint64_t{4096}, ~std::uint64_t{0}}) {
    memory.record(0).bytes = bytes;
    EXPECT_DEATH(GetLane(memory).peek(), "check failed") << bytes;
  }
}

TEST_F(RingDamageDeathTest, APadBeyondTheTailIsRefused) {
  memory.record(0).type = static_cast<std::uint32_t>(RecordType::kPad);
  memory.record(0).bytes = 192;
  EXPECT_DEATH(GetLane(memory).peek(), "end <= tail_seen_");
}

TEST_F(RingDamageDeathTest, ARecordBeyondTheRingsEndIsRefused) {
  // The tail is a whole round ahead, so only the ring's own end stops this record.
  memory.record(0).bytes = 1984 - 64;
  ASSERT_TRUE(producer.put_and_commit(std::string(1500, 'y')));
  GetLane consumer(memory);
  memory.record(0).bytes = 100;
  ASSERT_TRUE(consumer.get());
  ASSERT_TRUE(consumer.get());
  consumer.commit();
  ASSERT_TRUE(producer.put_and_commit(std::string(1900, 'z')));
  ASSERT_TRUE(producer.put_and_commit(std::string(1500, 'z')));
  memory.record(memory.head().head.load()).bytes = 3000;
  EXPECT_DEATH(GetLane(memory).peek(), "capacity_bytes");
}

TEST_F(RingDamageDeathTest, ATailFartherAheadThanTheRingIsLongIsRefused) {
  memory.tail().tail = kPageBytes + 64;
  EXPECT_DEATH(GetLane(memory).peek(), "check failed");
}

TEST_F(RingDamageDeathTest, ATailBehindTheHeadIsRefused) {
  memory.head().head = 1024;
  EXPECT_DEATH(GetLane(memory).peek(), "check failed");
}

TEST_F(RingDamageDeathTest, AHeadBeyondTheTailIsRefusedByTheProducer) {
  memory.head().head = 2 * kPageBytes;
  const auto fill = [&] {
    while (producer.put(std::string(1000, 'x'))) continue;
  };
  EXPECT_DEATH(fill(), "head <= tail_");
}

TEST_F(RingDamageDeathTest, AHeadNumberBeyondTheTailsIsRefusedByTheProducer) {
  memory.head().head_seq = 99;
  const auto fill = [&] {
    while (producer.put(std::string(1000, 'x'))) continue;
  };
  EXPECT_DEATH(fill(), "head_seq <= seq_");
}

// ---- overflow -----------------------------------------------------------------------------------

// The numbers of the queue that users know: room for 3, 1 is in, a batch of 5 comes.
TEST(RingDropNew, KeepsTheOldestAndCountsTheRest) {
  RingMemory memory(with(Overflow::kDropNew, 3));
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit("old"));
  for (const bool fits : {true, true, false, false, false}) {
    EXPECT_EQ(producer.put("new"), fits);
    EXPECT_EQ(producer.ring.last_dropped(), !fits);
  }
  producer.commit();
  const QueueView view = memory.view();
  EXPECT_EQ(view.put_total, 6U);
  EXPECT_EQ(view.drop_total, 3U);
  EXPECT_EQ(view.size_records, 3U);
  EXPECT_THAT(consumer.drain(), ElementsAre("old", "new", "new"));
}

TEST(RingDropNew, CountsADropInTheStepAndNotBefore) {
  RingMemory memory(with(Overflow::kDropNew, 1));
  PutLane producer(memory);
  ASSERT_TRUE(producer.put_and_commit("full"));
  const RingProducer::Savepoint here = producer.ring.savepoint();
  EXPECT_FALSE(producer.put("x"));
  EXPECT_TRUE(producer.ring.touched());
  EXPECT_EQ(memory.view().drop_total, 0U);
  producer.ring.rollback(here);
  EXPECT_FALSE(producer.ring.touched());
  EXPECT_FALSE(producer.put("y"));
  producer.commit();
  EXPECT_EQ(memory.view().drop_total, 1U);
  EXPECT_FALSE(PutLane(memory).put_and_commit("z"));  // the next life counts on
  EXPECT_EQ(memory.view().drop_total, 2U);
}

TEST(RingDropNew, DropsForWantOfBytesToo) {
  RingMemory memory(with(Overflow::kDropNew, 100));
  PutLane producer(memory);
  ASSERT_TRUE(producer.put_and_commit(std::string(1984, 'a')));
  ASSERT_TRUE(producer.put_and_commit(std::string(1984, 'b')));
  EXPECT_FALSE(producer.put_and_commit(""));
  EXPECT_EQ(memory.view().drop_total, 1U);
}

// The other half of the example: room for 3, full of 1..3, then 4..8 come.
TEST(RingKeepNewest, KeepsTheNewestAndCountsTheRest) {
  RingMemory memory(with(Overflow::kKeepNewest, 3));
  PutLane producer(memory);
  GetLane consumer(memory);
  for (int i = 1; i <= 8; ++i) EXPECT_TRUE(producer.put_and_commit(std::to_string(i))) << i;
  QueueView view = memory.view();
  EXPECT_EQ(view.put_total, 8U);
  EXPECT_EQ(view.drop_total, 5U) << "counted although the consumer has not come by";
  EXPECT_EQ(view.size_records, 3U);
  EXPECT_THAT(consumer.drain(), ElementsAre("6", "7", "8"));
  view = memory.view();
  EXPECT_EQ(view.put_total, 8U);
  EXPECT_EQ(view.get_total, 3U);
  EXPECT_EQ(view.drop_total, 5U);
  EXPECT_EQ(view.size_records, 0U);
}

TEST(RingKeepNewest, GivesUpForWantOfBytesToo) {
  RingMemory memory(with(Overflow::kKeepNewest, 100));
  PutLane producer(memory);
  GetLane consumer(memory);
  for (char c = 'a'; c <= 'h'; ++c) EXPECT_TRUE(producer.put_and_commit(std::string(1500, c)));
  EXPECT_THAT(consumer.drain(), ElementsAre(std::string(1500, 'g'), std::string(1500, 'h')));
  EXPECT_EQ(memory.view().drop_total, 6U);
}

TEST(RingKeepNewest, NeverOverwritesWhatTheConsumersStepIsReading) {
  RingMemory memory(with(Overflow::kKeepNewest, 100));
  PutLane producer(memory);
  GetLane consumer(memory);
  for (const char c : {'a', 'b'}) ASSERT_TRUE(producer.put_and_commit(std::string(1984, c)));
  const std::optional<RecordView> held = consumer.ring.peek();
  ASSERT_TRUE(held);
  for (char c = 'c'; c <= 'z'; ++c) {
    EXPECT_FALSE(producer.put_and_commit(std::string(1984, c)));
    EXPECT_TRUE(producer.ring.last_dropped());
    ASSERT_EQ(std::string(reinterpret_cast<const char*>(held->bytes.data()), held->bytes.size()),
              std::string(1984, 'a'));
  }
  consumer.ring.consume();
  consumer.commit();
  EXPECT_TRUE(producer.put_and_commit(std::string(1984, '!')));
  const QueueView view = memory.view();
  EXPECT_EQ(view.put_total, view.get_total + view.size_records + view.drop_total);
  EXPECT_EQ(view.get_total, 1U);
}

// The step under way holds from its first record on, not only the record that it reads now.
TEST(RingKeepNewest, NeverOverwritesWhatTheConsumersStepHasConsumed) {
  RingMemory memory(with(Overflow::kKeepNewest, 3));
  PutLane producer(memory);
  GetLane consumer(memory);
  for (const char* record : {"1", "2", "3"}) ASSERT_TRUE(producer.put_and_commit(record));
  const RecordView first = *consumer.ring.peek();
  consumer.ring.consume();
  const RecordView second = *consumer.ring.peek();
  consumer.ring.consume();
  EXPECT_FALSE(producer.put_and_commit("4"));
  EXPECT_EQ(static_cast<char>(first.bytes[0]), '1');
  EXPECT_EQ(static_cast<char>(second.bytes[0]), '2');
  consumer.commit();
  EXPECT_TRUE(producer.put_and_commit("5"));
  EXPECT_THAT(consumer.drain(), ElementsAre("3", "5"));
}

// The producer had already given up everything when it met the consumer's hold.
TEST(RingKeepNewest, GoesOnAfterTheConsumerLetsGoOfAllThatWasGivenUp) {
  RingMemory memory(with(Overflow::kKeepNewest, 1));
  PutLane producer(memory);
  GetLane consumer(memory);
  ASSERT_TRUE(producer.put_and_commit("1"));
  ASSERT_EQ(consumer.peek(), "1");
  EXPECT_FALSE(producer.put_and_commit("2"));
  consumer.ring.abandon();
  EXPECT_TRUE(producer.put_and_commit("3"));
  EXPECT_THAT(consumer.drain(), ElementsAre("3"));
}

TEST(RingKeepNewest, GoesOnAfterTheConsumerDiedHoldingAllThatWasGivenUp) {
  RingMemory memory(with(Overflow::kKeepNewest, 1));
  PutLane producer(memory);
  ASSERT_TRUE(producer.put_and_commit("1"));
  {
    GetLane killed(memory);
    ASSERT_EQ(killed.peek(), "1");
    EXPECT_FALSE(producer.put_and_commit("2"));
  }
  GetLane consumer(memory);
  EXPECT_TRUE(producer.put_and_commit("3"));
  EXPECT_THAT(consumer.drain(), ElementsAre("3"));
}

// The discard is announced before the newcomer is committed; it may never come.
TEST(RingKeepNewest, GoesOnAfterTheProducerDiedBetweenGivingUpAndPublishing) {
  RingMemory memory(with(Overflow::kKeepNewest, 1));
  GetLane consumer(memory);
  {
    PutLane killed(memory);
    ASSERT_TRUE(killed.put_and_commit("1"));
    ASSERT_TRUE(killed.put("2"));  // gives up 1
  }
  EXPECT_EQ(consumer.peek(), std::nullopt) << "given up is given up";
  PutLane producer(memory);
  EXPECT_TRUE(producer.put_and_commit("3"));
  EXPECT_THAT(consumer.drain(), ElementsAre("3"));
  const QueueView view = memory.view();
  EXPECT_EQ(view.put_total, view.get_total + view.size_records + view.drop_total);
  EXPECT_EQ(view.drop_total, 1U);
}

TEST(RingKeepNewest, AStepCannotGiveUpItsOwnRecords) {
  RingMemory memory(with(Overflow::kKeepNewest, 3));
  PutLane producer(memory);
  GetLane consumer(memory);
  for (const bool fits : {true, true, true, false}) EXPECT_EQ(producer.put("x"), fits);
  producer.commit();
  EXPECT_EQ(memory.view().drop_total, 1U);
  EXPECT_THAT(consumer.drain(), ::testing::SizeIs(3));
}

TEST(RingKeepNewest, EndsEvenIfEverythingWasGivenUp) {
  RingMemory memory(with(Overflow::kKeepNewest, 1));
  GetLane consumer(memory);
  {
    PutLane killed(memory);
    ASSERT_TRUE(killed.put_and_commit("1"));
    ASSERT_TRUE(killed.put("2"));
  }
  PutLane producer(memory);
  EXPECT_EQ(consumer.peek(), std::nullopt);
  producer.close_and_commit();
  EXPECT_TRUE(consumer.ring.ended());
  EXPECT_FALSE(consumer.ring.tail_moved()) << "or it would never sleep again";
}

// ---- against a model ----------------------------------------------------------------------------

struct RandomCase {
  Overflow overflow;
  std::uint64_t records_max;
  std::uint64_t seed;
};

// A double-ended queue with the same rules, and the same deaths.
class RingModel {
 public:
  explicit RingModel(RingGeometry geometry) : geometry_(geometry) {}

  [[nodiscard]] bool has_room(std::uint64_t bytes) const {
    std::uint64_t end = tail;
    const std::uint64_t need = 64 + (bytes + 63) / 64 * 64;
    const std::uint64_t left = geometry_.capacity_bytes - end % geometry_.capacity_bytes;
    if (need > left) end += left;
    return end + need - head <= geometry_.capacity_bytes && seq - head_seq < geometry_.records_max;
  }
  void put(std::string record) {
    const std::uint64_t need = 64 + (record.size() + 63) / 64 * 64;
    const std::uint64_t left = geometry_.capacity_bytes - tail % geometry_.capacity_bytes;
    if (need > left) tail += left;
    tail += need;
    ++seq;
    pending.push_back({std::move(record), tail});
  }
  struct Entry {
    std::string record;
    std::uint64_t end;
  };
  std::uint64_t tail = 0, seq = 0, head = 0, head_seq = 0, dropped = 0;
  std::uint64_t committed_tail = 0, committed_seq = 0, committed_dropped = 0;
  std::deque<Entry> pending;    // of the producer's step
  std::deque<Entry> published;  // from the committed head on
  std::size_t read = 0;         // of the consumer's step

 private:
  RingGeometry geometry_;
};

class RingRandom : public ::testing::TestWithParam<RandomCase> {};

// 10^5 operations of both lanes, deaths included: every answer is the model's.
TEST_P(RingRandom, BehavesAsAQueueWithTheSameRules) {
  const RandomCase& with_these = GetParam();
  SCOPED_TRACE("seed " + std::to_string(with_these.seed));
  const RingGeometry geometry = with(with_these.overflow, with_these.records_max);
  RingMemory memory(geometry);
  RingModel model(geometry);
  testing::Draws draws(with_these.seed);
  auto producer = std::make_unique<PutLane>(memory);
  auto consumer = std::make_unique<GetLane>(memory);
  std::uint64_t number = 0;
  std::uint64_t delivered = 0;
  const auto forget_pending = [&] {
    model.pending.clear();
    model.tail = model.committed_tail;
    model.seq = model.committed_seq;
    model.dropped = model.committed_dropped;
  };
  for (int operation = 0; operation < 100'000; ++operation) {
    switch (draws.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3: {  // put
        const std::uint64_t bytes = draws.below(draws.below(4) == 0 ? 1985 : 300);
        std::string record = numbered_record(number++, bytes);
        const bool fits = model.has_room(bytes);
        ASSERT_EQ(producer->put(record), fits) << operation;
        if (fits) {
          model.put(std::move(record));
        } else if (with_these.overflow == Overflow::kDropNew) {
          ++model.dropped;
        }
        break;
      }
      case 4: {  // a savepoint, some records, and back
        const RingProducer::Savepoint here = producer->ring.savepoint();
        for (std::uint64_t i = draws.below(4); i > 0; --i) {
          producer->put(numbered_record(~number, draws.below(1985)));
        }
        producer->ring.rollback(here);
        break;
      }
      case 5:
      case 6:
        producer->commit();
        for (RingModel::Entry& entry : model.pending) model.published.push_back(std::move(entry));
        model.pending.clear();
        model.committed_tail = model.tail;
        model.committed_seq = model.seq;
        model.committed_dropped = model.dropped;
        break;
      case 7:  // the producer dies, with or without a step under way
        producer = std::make_unique<PutLane>(memory);
        forget_pending();
        break;
      case 8:
      case 9: {  // get
        const std::optional<std::string> record = consumer->get();
        ASSERT_EQ(record.has_value(), model.read < model.published.size()) << operation;
        if (record) {
          ASSERT_EQ(*record, model.published[model.read].record) << operation;
          ++model.read;
        }
        break;
      }
      case 10:
        consumer->commit();
        delivered += model.read;
        for (; model.read > 0; --model.read) {
          model.head = model.published.front().end;
          ++model.head_seq;
          model.published.pop_front();
        }
        break;
      case 11:
        if (draws.below(2) == 0) {
          consumer->ring.abandon();
        } else {
          consumer = std::make_unique<GetLane>(memory);
        }
        model.read = 0;
        break;
      default:
        FAIL();
    }
    const QueueView view = memory.view();
    ASSERT_EQ(view.put_total, view.get_total + view.size_records + view.drop_total) << operation;
    ASSERT_EQ(view.get_total, model.head_seq);
    ASSERT_EQ(view.size_records, model.published.size());
    ASSERT_EQ(view.drop_total, model.committed_dropped);
  }
  EXPECT_GT(delivered, 1000U) << "the test has not tested";
  EXPECT_GT(memory.tail().tail.load(), 100 * kPageBytes) << "the ring has hardly wrapped";
}
INSTANTIATE_TEST_SUITE_P(
    Seeds, RingRandom,
    ::testing::Values(RandomCase{Overflow::kBlock, 1000, 1}, RandomCase{Overflow::kBlock, 5, 2},
                      RandomCase{Overflow::kBlock, 1, 3}, RandomCase{Overflow::kDropNew, 1000, 4},
                      RandomCase{Overflow::kDropNew, 4, 5}),
    [](const auto& instance) { return "Seed" + std::to_string(instance.param.seed); });

class RingRandomKeepNewest : public ::testing::TestWithParam<RandomCase> {};

// What comes out is a subsequence of what was published, whole, and every record is accounted for.
TEST_P(RingRandomKeepNewest, DeliversASubsequenceAndLosesCountOfNothing) {
  const RandomCase& with_these = GetParam();
  SCOPED_TRACE("seed " + std::to_string(with_these.seed));
  RingMemory memory(with(Overflow::kKeepNewest, with_these.records_max));
  testing::Draws draws(with_these.seed);
  auto producer = std::make_unique<PutLane>(memory);
  auto consumer = std::make_unique<GetLane>(memory);
  std::vector<std::string> pending;
  std::vector<std::string> published;  // by number on the ring
  std::uint64_t offered = 0;           // committed, drops included
  std::uint64_t pending_drops = 0;
  std::uint64_t next = 0;  // the consumer's step reads records from this number on
  std::uint64_t committed_next = 0;
  std::uint64_t taken = 0;
  std::uint64_t committed_taken = 0;
  std::uint64_t longest_drop_run = 0;
  std::uint64_t drop_run = 0;
  for (int operation = 0; operation < 100'000; ++operation) {
    switch (draws.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const std::string record =
            numbered_record(published.size() + pending.size() + 1000003 * offered,
                            draws.below(draws.below(4) == 0 ? 1985 : 300));
        if (producer->put(record)) {
          pending.push_back(record);
          drop_run = 0;
        } else {
          ++pending_drops;
          longest_drop_run = std::max(longest_drop_run, ++drop_run);
        }
        break;
      }
      case 4:
      case 5:
      case 6:
        producer->commit();
        offered += pending.size() + pending_drops;
        published.insert(published.end(), pending.begin(), pending.end());
        pending.clear();
        pending_drops = 0;
        break;
      case 7:
        producer = std::make_unique<PutLane>(memory);
        pending.clear();
        pending_drops = 0;
        break;
      case 8:
      case 9: {
        const std::optional<RecordView> record = consumer->ring.peek();
        if (!record) break;
        ASSERT_GE(record->header->seq, next) << operation;
        ASSERT_LT(record->header->seq, published.size()) << operation;
        ASSERT_EQ(*consumer->peek(), published[record->header->seq]) << operation;
        next = record->header->seq + 1;
        ++taken;
        consumer->ring.consume();
        break;
      }
      case 10:
        consumer->commit();
        committed_next = next;
        committed_taken = taken;
        break;
      case 11:
        if (draws.below(2) == 0) {
          consumer->ring.abandon();
        } else {
          consumer = std::make_unique<GetLane>(memory);
        }
        next = committed_next;
        taken = committed_taken;
        break;
      default:
        FAIL();
    }
    const QueueView view = memory.view();
    ASSERT_EQ(view.put_total, view.get_total + view.size_records + view.drop_total) << operation;
    ASSERT_EQ(view.put_total, offered) << operation;
    ASSERT_EQ(view.get_total, committed_taken) << operation;
  }
  consumer->ring.abandon();
  producer = std::make_unique<PutLane>(memory);
  ASSERT_TRUE(producer->put_and_commit("the newest")) << "nobody holds anything";
  const Records rest = consumer->drain();
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(rest.back(), "the newest");
  EXPECT_EQ(memory.view().size_records, 0U);
  EXPECT_GT(committed_taken, 500U) << "the test has not tested";
  EXPECT_GT(memory.view().drop_total, 500U) << "the test has not tested";
  EXPECT_LT(longest_drop_run, 1000U) << "it stopped taking records";
}
INSTANTIATE_TEST_SUITE_P(Seeds, RingRandomKeepNewest,
                         ::testing::Values(RandomCase{Overflow::kKeepNewest, 1000, 11},
                                           RandomCase{Overflow::kKeepNewest, 5, 12},
                                           RandomCase{Overflow::kKeepNewest, 1, 13}),
                         [](const auto& instance) {
                           return "Seed" + std::to_string(instance.param.seed);
                         });

// ---- what a queue's user sees -------------------------------------------------------------------

TEST(RingWake, RingsASleeperAndLeavesTheCursorsAsTheyAre) {
  const RingMemory memory({.capacity_bytes = kPageBytes, .records_max = 8});
  PutLane producer(memory);
  GetLane consumer(memory);
  producer.put_and_commit("one");
  EXPECT_FALSE(producer.ring.wake(memory.consumer.as_neighbour())) << "nobody sleeps";
  memory.consumer.page().waiting = 1;
  producer.put("of a step that is not committed");
  EXPECT_TRUE(producer.ring.wake(memory.consumer.as_neighbour()));
  EXPECT_EQ(memory.consumer.bell().rings.load(), 1U);
  EXPECT_EQ(memory.tail().tail.load(), record_footprint(3));
  EXPECT_EQ(memory.tail().closed.load(), 0U);

  EXPECT_EQ(consumer.get(), "one");
  memory.producer.page().waiting = 1;
  EXPECT_TRUE(consumer.ring.wake(memory.producer.as_neighbour()));
  EXPECT_EQ(memory.producer.bell().rings.load(), 1U);
  EXPECT_EQ(memory.head().head.load(), 0U) << "consumed in a step that is not committed";

  producer.close_and_commit();
  EXPECT_TRUE(producer.ring.wake(memory.consumer.as_neighbour()));
  EXPECT_EQ(memory.tail().closed.load(), 1U);
}

// Small records are fetched ahead of the reader; whatever their sizes, what is read is what is
// there.
TEST(RingPrefetch, FollowsRecordsOfAnySizeAroundTheRing) {
  const RingMemory memory({.capacity_bytes = 4 * kPageBytes, .records_max = 1000});
  PutLane producer(memory);
  GetLane consumer(memory);
  testing::Draws draws(7);
  std::uint64_t put = 0;
  std::uint64_t got = 0;
  const auto bytes_of = [](std::uint64_t number) {
    return number % 5 == 0 ? number * 977 % 7000 : number * 31 % 200;
  };
  while (got < 5'000) {
    for (std::uint64_t left = 1 + draws.below(40); left > 0; --left) {
      if (!producer.put(testing::numbered_record(put, bytes_of(put)))) break;
      ++put;
    }
    producer.commit();
    for (std::uint64_t left = 1 + draws.below(40); left > 0; --left) {
      const std::optional<std::string> record = consumer.get();
      if (!record) break;
      ASSERT_EQ(*record, testing::numbered_record(got, bytes_of(got))) << got;
      ++got;
    }
    consumer.commit();
  }
}

TEST(QueueViews, TellSizeCapacityAndTotals) {
  RingMemory memory(with(Overflow::kDropNew, 4));
  PutLane producer(memory);
  GetLane consumer(memory);
  QueueView view = memory.view();
  EXPECT_EQ(view.size_records, 0U);
  EXPECT_EQ(view.capacity_records, 4U);
  EXPECT_EQ(view.capacity_bytes, kPageBytes);
  EXPECT_FALSE(view.closed);
  for (int i = 0; i < 5; ++i) producer.put("x");
  producer.commit();
  ASSERT_TRUE(consumer.get());
  consumer.commit();
  view = memory.view();
  EXPECT_EQ(view.size_records, 3U);
  EXPECT_EQ(view.size_bytes, 3 * record_footprint(1));
  EXPECT_EQ(view.put_total, 5U);
  EXPECT_EQ(view.get_total, 1U);
  EXPECT_EQ(view.drop_total, 1U);
  producer.close_and_commit();
  EXPECT_TRUE(memory.view().closed);
}

TEST(QueueViews, CountOnlyCommittedSteps) {
  RingMemory memory(kOnePage);
  PutLane producer(memory);
  GetLane consumer(memory);
  producer.put("x");
  EXPECT_EQ(memory.view().put_total, 0U);
  producer.commit();
  EXPECT_EQ(memory.view().put_total, 1U);
  consumer.get();
  EXPECT_EQ(memory.view().get_total, 0U);
  EXPECT_EQ(memory.view().size_records, 1U);
}

}  // namespace
}  // namespace ringfeed::shm
