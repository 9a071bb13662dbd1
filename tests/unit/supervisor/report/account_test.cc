#include "supervisor/report/account.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/metrics.pb.h"

namespace ringfeed::report {
namespace {

using metrics::Level;
using ::testing::ElementsAre;

constexpr std::uint64_t kBegun = 1'000;

Account account(bool fresh = true) { return {{"train"}, kBegun, fresh}; }

TrainerKey key(std::uint32_t pid, std::uint64_t start_ticks = 1) {
  return {"train", "default", 0, pid, start_ticks};
}

TrainerNote taken(std::uint64_t batches, std::uint64_t waited_ns = 0) {
  TrainerNote note;
  note.taken = note.done = batches;
  note.waited_ns = waited_ns;
  return note;
}

TEST(Values, AreFoundByTheirKeys) {
  constexpr std::string_view kValues = R"(group=a reason="in group=b \"c\" \\" pid=7 empty=)";
  EXPECT_EQ(value_of(kValues, "group"), "a");
  EXPECT_EQ(value_of(kValues, "reason"), R"(in group=b "c" \)");
  EXPECT_EQ(value_of(kValues, "pid"), "7");
  EXPECT_EQ(value_of(kValues, "empty"), "");
  EXPECT_EQ(value_of(kValues, "roup"), "");
  EXPECT_EQ(value_of("", "group"), "");
  EXPECT_EQ(value_of("group=\"never closed", "group"), "never closed");
}

TEST(Happenings, KeepTheFirstAndTheLast) {
  Account noted = account();
  const std::size_t all = Account::kFirst + Account::kLast + 10;
  for (std::size_t i = 0; i < all; ++i) {
    noted.happened(kBegun + 1'000 * i, Level::kWarn, "worker_died", fmt::format("number={}", i));
  }
  EXPECT_EQ(noted.first().size(), Account::kFirst);
  EXPECT_EQ(noted.last().size(), Account::kLast);
  EXPECT_EQ(noted.left_out(), 10u);
  EXPECT_EQ(noted.first().front().values, "number=0");
  EXPECT_EQ(noted.last().back().values, fmt::format("number={}", all - 1));
  EXPECT_DOUBLE_EQ(noted.last().back().at_s, static_cast<double>(all - 1));
}

TEST(Happenings, AreNotWhatProcessesDoAsAMatterOfCourse) {
  Account noted = account();
  noted.happened(kBegun, Level::kInfo, "worker_started", "group=a");
  EXPECT_TRUE(noted.first().empty());
}

TEST(Happenings, HaveTheLastWordsOfTheProcessThatDied) {
  Account noted = account();
  noted.last_words("of nobody");
  noted.happened(kBegun, Level::kInfo, "first_batch", "");
  noted.happened(kBegun, Level::kWarn, "worker_died", "group=a");
  noted.last_words("terminate called");
  EXPECT_EQ(noted.first().front().words, "");
  EXPECT_EQ(noted.first().back().words, "terminate called");
}

TEST(Happenings, AreCut) {
  Account noted = account();
  noted.happened(kBegun, Level::kError, "problem", std::string(100'000, 'x'));
  EXPECT_LT(noted.first().front().values.size(), Account::kTextBytes + 100);
  EXPECT_THAT(noted.first().front().values, ::testing::EndsWith("(100000 bytes)"));
}

TEST(LinesOfWorkers, AreWarningsAndErrorsAlone) {
  Account noted = account();
  noted.line("2026-07-01T12:30:00.123 info worker:a file_done path=a");
  noted.line("2026-07-01T12:30:00.123 warning worker:a file_skipped path=b");
  noted.line("2026-07-01T12:30:00.123 error worker:a failed");
  noted.line("something that a library has printed");
  noted.line("");
  noted.line("warning");
  EXPECT_THAT(noted.lines(),
              ElementsAre("2026-07-01T12:30:00.123 warning worker:a file_skipped path=b",
                          "2026-07-01T12:30:00.123 error worker:a failed"));
  for (std::size_t i = 0; i < Account::kLines; ++i) noted.line("now warning worker:a more");
  EXPECT_EQ(noted.lines().size(), Account::kLines);
  EXPECT_EQ(noted.lines_left_out(), 2u);
}

TEST(Trainers, AreFollowedFromTheirJoiningToTheirLeaving) {
  Account noted = account();
  EXPECT_EQ(noted.trainer(kBegun + 1'000, key(7), taken(1, 500)), 0u);
  EXPECT_EQ(noted.trainer(kBegun + 2'000, key(7), taken(5, 800)), 300u);
  noted.happened(kBegun + 3'000, Level::kInfo, "trainer_died",
                 "output=train group=default member=0 pid=7");
  noted.trainer(kBegun + 9'000, key(7), taken(5, 800));
  const TrainerNote& note = noted.trainers().at(key(7));
  EXPECT_EQ(note.fate, "trainer_died");
  EXPECT_EQ(note.taken, 5u);
  EXPECT_DOUBLE_EQ(note.first_s, 1);
  EXPECT_DOUBLE_EQ(note.last_s, 3);
}

TEST(Trainers, OfAnotherGroupOrOutputGoOn) {
  Account noted = account();
  noted.trainer(kBegun, key(7), taken(1));
  for (const char* values :
       {"output=train group=other member=0 pid=7", "output=valid group=default member=0 pid=7",
        "output=train group=default member=1 pid=7", "output=train group=default member=0 pid=8"}) {
    noted.happened(kBegun, Level::kInfo, "trainer_left", values);
  }
  EXPECT_EQ(noted.trainers().at(key(7)).fate, "");
}

// The page is the trainer's to write.
TEST(Trainers, HaveNumbersThatNeverFall) {
  Account noted = account();
  noted.trainer(kBegun, key(7), taken(5, 800));
  EXPECT_EQ(noted.trainer(kBegun + 1'000, key(7), taken(2, 100)), 0u);
  EXPECT_EQ(noted.trainers().at(key(7)).taken, 5u);
  EXPECT_EQ(noted.trainers().at(key(7)).waited_ns, 800u);
}

TEST(Trainers, ThatCameBackAreOthers) {
  Account noted = account();
  noted.trainer(kBegun, key(7, 1), taken(5));
  noted.trainer(kBegun, key(7, 2), taken(1));
  EXPECT_EQ(noted.trainers().size(), 2u);
}

TEST(Trainers, ThatLeftLongestAgoMakeRoom) {
  Account noted = account();
  const auto all = static_cast<std::uint32_t>(Account::kTrainersMax);
  for (std::uint32_t pid = 1; pid <= all; ++pid)
    noted.trainer(kBegun + pid, key(pid), taken(1, 10));
  for (const std::uint32_t pid : {9u, 3u}) {
    noted.happened(kBegun + 100'000 - pid, Level::kInfo, "trainer_left",
                   fmt::format("output=train group=default member=0 pid={}", pid));
  }
  noted.trainer(kBegun + 200'000, key(all + 1), taken(1));
  EXPECT_EQ(noted.trainers().size(), Account::kTrainersMax);
  EXPECT_FALSE(noted.trainers().contains(key(9)));
  EXPECT_TRUE(noted.trainers().contains(key(3)));
  EXPECT_EQ(noted.trainers_left_out(), 1u);
  EXPECT_EQ(noted.other_trainers().taken, 1u);
  EXPECT_EQ(noted.other_trainers().waited_ns, 10u);
}

TEST(Epochs, AreThoseThatEndedSinceTheFirstLook) {
  Account noted = account(false);
  noted.epochs(kBegun + 1'000, "pool", 3, {10});
  noted.epochs(kBegun + 2'000, "pool", 3, {15});
  noted.epochs(kBegun + 3'000, "pool", 5, {20});
  ASSERT_EQ(noted.epochs().size(), 2u);
  EXPECT_EQ(noted.epochs()[0].number, 4u);
  EXPECT_EQ(noted.epochs()[1].number, 5u);
  EXPECT_THAT(noted.epochs()[1].batches, ElementsAre(20u));
  EXPECT_EQ(noted.epochs_before().at("pool"), 3u);
}

TEST(Epochs, OfAFreshFeedAreAll) {
  Account noted = account();
  noted.epochs(kBegun + 1'000, "pool", 2, {10});
  EXPECT_EQ(noted.epochs().size(), 2u);
  EXPECT_EQ(noted.epochs_before().at("pool"), 0u);
}

TEST(Epochs, BeyondTheMostAreCounted) {
  Account noted = account();
  noted.epochs(kBegun, "pool", Account::kEpochsMax + 5, {0});
  EXPECT_EQ(noted.epochs().size(), Account::kEpochsMax);
  EXPECT_EQ(noted.epochs_left_out(), 5u);
  noted.epochs(kBegun, "pool", ~0ull, {0});
  EXPECT_EQ(noted.epochs().size(), Account::kEpochsMax) << "and it does not take for ever";
}

TEST(Limits, AreAddedUpByWhatLimits) {
  Account noted = account();
  BottleneckProto found;
  found.set_kind(BottleneckProto::STAGE);
  found.set_stage("pool");
  found.set_sentence("first");
  noted.limit("train", found, 1);
  found.set_sentence("second");
  noted.limit("train", found, 2);
  found.set_kind(BottleneckProto::TRAINERS);
  noted.limit("train", found, 4);
  ASSERT_EQ(noted.limits().size(), 2u);
  const LimitNote& stage = noted.limits().at({"train", BottleneckProto::STAGE, "pool"});
  EXPECT_DOUBLE_EQ(stage.seconds, 3);
  EXPECT_EQ(stage.sentence, "second");
  EXPECT_DOUBLE_EQ(noted.limits().at({"train", BottleneckProto::TRAINERS, ""}).seconds, 4);
}

}  // namespace
}  // namespace ringfeed::report
