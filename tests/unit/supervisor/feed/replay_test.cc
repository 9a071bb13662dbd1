// Specification of supervisor/feed/replay.h, with real processes whose stage is a fake: what is
// told of a worker that takes the record, leaves it, hangs, or is never ready for it.
// tests/e2e/feed/test_replay.py has real stages.
#include "supervisor/feed/replay.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A record for mix.read.0, whose two outputs are the records for the next stage and the feedback.
ReplayReport replayed(const char* behaviour, std::uint64_t timeout_ms,
                      std::uint64_t record_bytes = 5) {
  ::setenv("RINGFEED_FAKE", behaviour, 1);
  const std::vector<std::byte> bytes(record_bytes, std::byte{7});
  return replay(
      layout::only_lane(test::laid_out(), 2),
      {.supervisor_pid = static_cast<std::uint32_t>(::getpid())}, {.lane = 2, .bytes = bytes},
      {.binary = RINGFEED_BINARY_DIR "/bin/supervisor_fake_worker", .timeout_ms = timeout_ms});
}

std::string refusal(const char* behaviour, std::uint64_t record_bytes = 5) {
  try {
    static_cast<void>(replayed(behaviour, 60'000, record_bytes));
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was refused";
}

TEST(Replay, AStageThatTookTheRecordAndHasNoEndIsToldToStop) {
  const ReplayReport report = replayed("take", 500);
  EXPECT_EQ(report.outcome, ReplayOutcome::kTaken);
  EXPECT_TRUE(report.consumed);
  EXPECT_FALSE(report.finished);
  ASSERT_EQ(report.ports.size(), 2U);
  EXPECT_EQ(report.ports[0].port, "output");
  EXPECT_EQ(report.ports[1].port, "feedback");
  EXPECT_EQ(report.ports[0].records, 0U);
  EXPECT_FALSE(report.batches_port);
}

TEST(Replay, AStageThatEndsWithoutTheRecordHasLeftIt) {
  const ReplayReport report = replayed("finish", 60'000);
  EXPECT_EQ(report.outcome, ReplayOutcome::kLeft);
  EXPECT_FALSE(report.consumed);
  EXPECT_TRUE(report.finished);
}

TEST(Replay, AStageThatWaitsForSomethingElseHasLeftItWhenItsTimeIsOver) {
  const ReplayReport report = replayed("serve", 100);
  EXPECT_EQ(report.outcome, ReplayOutcome::kLeft);
  EXPECT_FALSE(report.finished);
}

TEST(Replay, AStageThatDoesNotHearItsEndHangsAndIsKilled) {
  const ReplayReport report = replayed("stuck", 100);
  EXPECT_EQ(report.outcome, ReplayOutcome::kHung);
  EXPECT_EQ(report.ending.signal, SIGKILL);
}

TEST(Replay, AWorkerThatIsNeverReadySaysNothingAboutTheRecord) {
  EXPECT_THAT(refusal("crash"), AllOf(HasSubstr("exit status 9"), HasSubstr("before it was ready"),
                                      HasSubstr("out of luck")));
  EXPECT_THAT(refusal("permanent"), HasSubstr("the fake has no stage 'mix'"));
}

TEST(Replay, ARecordThatTheRingDoesNotTakeIsRefusedBeforeAnythingStarts) {
  EXPECT_THAT(refusal("take", 1 << 20),
              AllOf(HasSubstr("1048576 bytes"), HasSubstr("port 'orders' of mix.read.0 takes")));
}

}  // namespace
}  // namespace ringfeed::process
