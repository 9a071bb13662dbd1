// Specification of supervisor/process: the table of a child's life, the restart budget, what is
// kept of a worker's last words, the event loop, identities.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ringfeed/shm/lane_page.h"
#include "supervisor/group/child.h"
#include "supervisor/group/log_tail.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/restart_budget.h"
#include "supervisor/group/spawn.h"
#include "supervisor/group/suspects.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/identity.h"

namespace ringfeed::process {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Program, IsTheWorkerOrWhatIsBesideIt) {
  EXPECT_EQ(program_for("/nowhere/worker", ""), "/nowhere/worker");
  EXPECT_EQ(program_for("/bin/worker", "sh"), "/bin/sh");
  try {
    static_cast<void>(program_for("/bin/worker", "no-such-worker"));
    FAIL() << "was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("/bin/no-such-worker"), HasSubstr("/bin/worker")));
  }
}

TEST(Child, ADeathWhileRunningStartsAnotherProcess) {
  for (const ChildState state : {ChildState::kStarting, ChildState::kRunning}) {
    EXPECT_EQ(next_step(state, ChildEvent::kDiedAgain),
              (ChildStep{ChildState::kStarting, ChildAction::kStart}));
    EXPECT_EQ(next_step(state, ChildEvent::kDiedLater),
              (ChildStep{ChildState::kWaiting, ChildAction::kStartLater}));
    EXPECT_EQ(next_step(state, ChildEvent::kDiedForGood),
              (ChildStep{ChildState::kLost, ChildAction::kFailFeed}));
  }
  EXPECT_EQ(next_step(ChildState::kWaiting, ChildEvent::kTime),
            (ChildStep{ChildState::kStarting, ChildAction::kStart}));
}

TEST(Child, WhoeverWasToldToEndIsNotStartedAgain) {
  for (const ChildEvent event : {ChildEvent::kDiedAgain, ChildEvent::kDiedLater,
                                 ChildEvent::kDiedForGood, ChildEvent::kFinished}) {
    EXPECT_EQ(next_step(ChildState::kStopping, event),
              (ChildStep{ChildState::kGone, ChildAction::kReportEnd}));
  }
  EXPECT_EQ(next_step(ChildState::kStopping, ChildEvent::kReady).state, ChildState::kStopping);
}

TEST(Child, AStopDuringTheBackoffEndsAtOnceBecauseThereIsNoProcess) {
  EXPECT_EQ(next_step(ChildState::kWaiting, ChildEvent::kStop),
            (ChildStep{ChildState::kGone, ChildAction::kReportEnd}));
}

TEST(Child, AReplacedProcessIsFollowedByAnotherWhateverItsEnd) {
  EXPECT_EQ(next_step(ChildState::kRunning, ChildEvent::kReplace),
            (ChildStep{ChildState::kReplacing, ChildAction::kOrderEnd}));
  EXPECT_EQ(next_step(ChildState::kReplacing, ChildEvent::kDiedAgain),
            (ChildStep{ChildState::kStarting, ChildAction::kStart}));
  EXPECT_EQ(next_step(ChildState::kReplacing, ChildEvent::kFinished).state, ChildState::kDone);
  EXPECT_EQ(next_step(ChildState::kStarting, ChildEvent::kReplace).action, ChildAction::kNothing);
}

TEST(Child, NothingHappensToTheDead) {
  for (const ChildState state : {ChildState::kDone, ChildState::kGone, ChildState::kLost}) {
    EXPECT_TRUE(is_over(state));
    for (int event = 0; event < 8; ++event) {
      EXPECT_EQ(next_step(state, static_cast<ChildEvent>(event)),
                (ChildStep{state, ChildAction::kNothing}));
    }
  }
}

constexpr RestartLimits kLimits{
    .max_restarts = 5, .within_ms = 60'000, .backoff_ms_min = 10, .backoff_ms_max = 50};

TEST(RestartBudget, TheFirstRestartIsAtOnceThenTheWaitDoublesUpToItsMaximum) {
  RestartBudget budget(kLimits);
  std::vector<std::uint64_t> delays;
  for (std::uint64_t i = 0; i < 5; ++i) {
    const auto verdict = budget.on_death(1000 + i, 5, false);
    EXPECT_FALSE(verdict.give_up);
    delays.push_back(verdict.delay_ms);
  }
  EXPECT_THAT(delays, ElementsAre(0, 10, 20, 40, 50));
}

TEST(RestartBudget, ALifeOfSomeLengthMakesTheNextRestartQuickAgain) {
  RestartBudget budget(kLimits);
  static_cast<void>(budget.on_death(1000, 5, false));
  EXPECT_EQ(budget.on_death(1001, 5, false).delay_ms, 10U);
  EXPECT_EQ(budget.on_death(5000, kQuickLifeMs, false).delay_ms, 0U);
  EXPECT_EQ(budget.on_death(5001, 5, false).delay_ms, 0U)
      << "the first quick one after a long life";
  EXPECT_EQ(budget.on_death(5002, 5, false).delay_ms, 10U);
}

TEST(RestartBudget, OneDeathMoreThanAllowedWithinThePeriodIsTheEnd) {
  RestartBudget budget(kLimits);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(budget.on_death(1000 + i, 5, false).give_up);
  const auto last = budget.on_death(1010, 5, false);
  EXPECT_TRUE(last.give_up);
  EXPECT_EQ(last.deaths, 6U);
}

TEST(RestartBudget, DeathsAreForgottenAfterThePeriod) {
  RestartBudget budget(kLimits);
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_FALSE(budget.on_death(1000 + i * 15'000, 14'000, true).give_up) << i;
  }
}

TEST(RestartBudget, WithNoRestartsAllowedTheFirstDeathIsTheEnd) {
  RestartBudget budget({.max_restarts = 0});
  EXPECT_TRUE(budget.on_death(1, 1'000'000, true).give_up);
}

TEST(RestartBudget, WhoeverWorkedDidNotDieOfItsStart) {
  RestartBudget budget(kLimits);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(budget.on_death(1000 + i, 5, true).delay_ms, 0U);
}

TEST(RestartBudget, DeathsThatAreExplainedDoNotCount) {
  RestartBudget budget(kLimits);
  for (std::uint64_t i = 0; i < 30; ++i) {
    EXPECT_FALSE(budget.on_death(1000 + i, 5, false).give_up) << i;
    if (i % 3 == 2) budget.forgive(3);
  }
  EXPECT_EQ(budget.on_death(1100, 5, false).delay_ms, 0U);
}

TEST(Blame, FallsOnTheLaneThatFaultedOrStalledAndOnNobodyForWhatCameFromOutside) {
  EXPECT_EQ(blame_for(true, true, false, false, true), Blame::kCertain);
  EXPECT_EQ(blame_for(false, true, false, false, true), Blame::kNone);
  EXPECT_EQ(blame_for(false, false, true, true, false), Blame::kCertain);
  EXPECT_EQ(blame_for(false, false, false, true, false), Blame::kNone);
  EXPECT_EQ(blame_for(false, false, false, false, true), Blame::kNone) << "kill -SEGV by hand";
  EXPECT_EQ(blame_for(false, false, false, false, false), Blame::kPerhaps) << "kill -KILL, exit";
}

TEST(Suspects, ARecordIsCondemnedOnceAfterSoManyDeathsOnItInARow) {
  Suspects suspects(3);
  EXPECT_FALSE(suspects.on_death(0, 7, Blame::kCertain).condemned);
  EXPECT_FALSE(suspects.on_death(0, 7, Blame::kCertain).condemned);
  const Suspects::Verdict third = suspects.on_death(0, 7, Blame::kCertain);
  EXPECT_TRUE(third.condemned);
  EXPECT_EQ(third.deaths, 3U);
  EXPECT_FALSE(suspects.on_death(0, 7, Blame::kCertain).condemned);
}

TEST(Suspects, AnotherRecordStartsAnewAndLanesAreApart) {
  Suspects suspects(2);
  EXPECT_FALSE(suspects.on_death(0, 7, Blame::kCertain).condemned);
  EXPECT_FALSE(suspects.on_death(0, 8, Blame::kCertain).condemned);
  EXPECT_FALSE(suspects.on_death(0, 7, Blame::kCertain).condemned);
  EXPECT_FALSE(suspects.on_death(1, 7, Blame::kCertain).condemned);
  EXPECT_TRUE(suspects.on_death(0, 7, Blame::kCertain).condemned);
}

TEST(Suspects, DeathsThatMayBeAnybodysCountHalfAndNoneAtAll) {
  Suspects suspects(2);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(suspects.on_death(0, 7, Blame::kPerhaps).condemned);
  EXPECT_FALSE(suspects.on_death(0, 7, Blame::kNone).condemned);
  EXPECT_FALSE(suspects.on_death(0, 0, Blame::kCertain).condemned) << "no record was worked on";
  EXPECT_TRUE(suspects.on_death(0, 7, Blame::kPerhaps).condemned);
}

// What several did together is that one's which then does it alone; it is not condemned for it.
TEST(Suspects, DeathsOfSeveralTogetherAreExplainedByTheOneThatIsCondemned) {
  const std::uint64_t several = shm::record_key(0, 0, 7) | shm::kManyRecords;
  const std::uint64_t one = shm::record_key(0, 0, 9);
  Suspects suspects(2);
  EXPECT_FALSE(suspects.on_death(0, several, Blame::kCertain).condemned);
  EXPECT_FALSE(suspects.on_death(0, one, Blame::kCertain).condemned);
  const Suspects::Verdict verdict = suspects.on_death(0, one, Blame::kCertain);
  EXPECT_TRUE(verdict.condemned);
  EXPECT_EQ(verdict.deaths, 3U);
  const Suspects::Verdict next = suspects.on_death(0, one + 1, Blame::kCertain);
  EXPECT_EQ(next.deaths, 1U) << "not those of a record that stood alone";
}

TEST(Suspects, SeveralTogetherAreTriedOneByOneBeforeTheyAreCondemned) {
  const std::uint64_t several = shm::record_key(0, 0, 7) | shm::kManyRecords;
  Suspects at_once(1);
  EXPECT_FALSE(at_once.on_death(0, several, Blame::kCertain).condemned);
  EXPECT_TRUE(at_once.on_death(0, several, Blame::kCertain).condemned);
  Suspects later(3);
  EXPECT_FALSE(later.on_death(0, several, Blame::kCertain).condemned);
  EXPECT_FALSE(later.on_death(0, several, Blame::kCertain).condemned);
  EXPECT_TRUE(later.on_death(0, several, Blame::kCertain).condemned);
}

std::vector<std::string> passed_on;
const LogTail::Sink kCollect = [](std::string_view line) { passed_on.emplace_back(line); };

TEST(LogTail, LinesAreWholeHoweverTheyArrive) {
  passed_on.clear();
  LogTail tail;
  tail.take("one\ntw", kCollect);
  EXPECT_THAT(passed_on, ElementsAre("one"));
  tail.take("o\n\nthree", kCollect);
  EXPECT_THAT(passed_on, ElementsAre("one", "two"));
  tail.finish(kCollect);
  EXPECT_THAT(passed_on, ElementsAre("one", "two", "three"));
}

TEST(LogTail, TheLastLinesAreKeptAndNoMore) {
  LogTail tail;
  for (int i = 0; i < 1000; ++i) tail.take("line " + std::to_string(i) + "\n", kCollect);
  EXPECT_THAT(tail.lines(), SizeIs(LogTail::kLinesKept));
  EXPECT_EQ(tail.last_words(2), "line 998 | line 999");
  tail.clear();
  EXPECT_THAT(tail.last_words(2), IsEmpty());
}

// A segfault in a function of a stage in Python: faulthandler speaks first, then fault.cc.
TEST(LogTail, OfStacksTheNewestCallsAreKept) {
  LogTail tail;
  const auto say = [&tail](const std::string& line) {
    tail.take(line + "\n", [](std::string_view) {});
  };
  say("Fatal Python error: Segmentation fault");
  say("Current thread 0x00007f (most recent call first):");
  say("  File \"own.py\", line 8 in segfault");
  for (int i = 0; i < 90; ++i) say("  File \"framework.py\", line " + std::to_string(i) + " in f");
  say("Extension modules: numpy (total: 1)");
  say(std::string(LogTail::kBacktraceTitle));
  say("/lib/libc.so.6(gsignal+0x12)[0x7f47f52d7fb2]");
  for (int i = 0; i < 60; ++i) say("/usr/bin/python[0x584b24]");
  EXPECT_THAT(tail.lines(),
              ::testing::IsSupersetOf({"Fatal Python error: Segmentation fault",
                                       "  File \"own.py\", line 8 in segfault",
                                       "  File \"framework.py\", line 10 in f",
                                       "/lib/libc.so.6(gsignal+0x12)[0x7f47f52d7fb2]"}));
  EXPECT_THAT(tail.lines(), SizeIs(4 + 2 * LogTail::kFramesKept));
  EXPECT_EQ(tail.last_words(3),
            "Fatal Python error: Segmentation fault | File \"own.py\", line 8 in segfault | File "
            "\"framework.py\", line 0 in f");
  say("the next thing");
  say("a line like [0x7f]");
  EXPECT_EQ(tail.lines().back(), "a line like [0x7f]") << "no frame: no stack is under way";
}

TEST(LogTail, ALineWithoutEndIsCutAndDoesNotGrow) {
  passed_on.clear();
  LogTail tail;
  for (int i = 0; i < 10; ++i) tail.take(std::string(1000, 'x'), kCollect);
  EXPECT_THAT(passed_on, ::testing::Not(IsEmpty()));
  for (const std::string& line : passed_on) EXPECT_LE(line.size(), LogTail::kLineBytesMax);
}

TEST(EventLoop, TimersRunInTheOrderOfTheirTimes) {
  EventLoop loop;
  std::vector<int> order;
  loop.after(20, [&] {
    order.push_back(2);
    loop.stop();
  });
  loop.after(0, [&] { order.push_back(1); });
  const EventLoop::TimerId cancelled = loop.after(1, [&] { order.push_back(9); });
  loop.cancel(cancelled);
  loop.run();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(EventLoop, ACallbackThatThrowsIsCalledAgainAndEndsNothing) {
  EventLoop loop;
  std::vector<std::string> said;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  int timer_calls = 0;
  loop.after(0, [&] {
    if (++timer_calls == 1) throw Error(ErrorCode::kNoMemory, "the timer's");
  });
  int watch_calls = 0;
  loop.watch(ends[0], [&] {
    if (++watch_calls < 3) throw std::bad_alloc();
    loop.unwatch(ends[0]);
    loop.after(0, [&] { loop.stop(); });
  });
  EXPECT_THROW(loop.run(), std::exception) << "nobody has said what to do with it";
  loop.survive([&](const std::exception& error) { said.emplace_back(error.what()); });
  loop.run();
  EXPECT_EQ(watch_calls, 3);
  EXPECT_GE(said.size(), 2U);
  for (const int fd : ends) ::close(fd);
}

TEST(EventLoop, ADescriptorThatWasRemovedIsNotCalledInTheSameRound) {
  EventLoop loop;
  int a[2];
  int b[2];
  ASSERT_EQ(::pipe(a), 0);
  ASSERT_EQ(::pipe(b), 0);
  int calls = 0;
  const auto callback = [&](int other) {
    return [&, other] {
      ++calls;
      loop.unwatch(a[0]);
      loop.unwatch(b[0]);
      static_cast<void>(other);
    };
  };
  loop.watch(a[0], callback(b[0]));
  loop.watch(b[0], callback(a[0]));
  ASSERT_EQ(::write(a[1], "x", 1), 1);
  ASSERT_EQ(::write(b[1], "x", 1), 1);
  loop.run_once(1000);
  loop.run_once(0);
  EXPECT_EQ(calls, 1);
  for (const int fd : {a[0], a[1], b[0], b[1]}) ::close(fd);
}

// A process that waits until it is killed.
pid_t sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  return pid;
}

TEST(Identity, AProcessIsItsNumberAndItsStart) {
  const pid_t pid = sleeper();
  const Identity identity{pid, start_ticks(pid).value()};
  EXPECT_TRUE(is_alive(identity));
  const Identity impostor{pid, identity.start_ticks + 1};
  EXPECT_FALSE(is_alive(impostor));
  EXPECT_FALSE(kill_process(impostor, SIGKILL)) << "another process with the same number";
  EXPECT_TRUE(is_alive(identity));
  const shm::Fd pidfd = open_pidfd(pid);
  EXPECT_FALSE(has_ended(pidfd.get()));
  EXPECT_TRUE(kill_process(identity, SIGKILL));
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(pidfd.get()));
  EXPECT_FALSE(is_alive(identity)) << "a zombie does nothing any more";
  const Ending ending = reap(pidfd);
  EXPECT_EQ(ending.signal, SIGKILL);
  EXPECT_THAT(ending.text(), HasSubstr("signal 9"));
  EXPECT_EQ(start_ticks(pid), std::nullopt);
}

TEST(Identity, OwnNumberInTheOwnNamespace) {
  EXPECT_EQ(pid_in_own_namespace(::getpid()), ::getpid());
}

}  // namespace
}  // namespace ringfeed::process
