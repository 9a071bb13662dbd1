// Specification of supervisor/feed/feed.h and worker.h, with real processes whose stages
// are a fake: starts, deaths, ends, and what clients are told.
#include "supervisor/feed/feed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "proto/control.pb.h"
#include "ringfeed/shm/layout.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"
#include "supervisor/control/silent_feed.h"
#include "supervisor/metrics/show.h"
#include "supervisor/os/packet.h"
#include "tests/support/rig/careful.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A feed run by a child of the test; the test is its client.
class RunningFeed : public ::testing::Test {
 protected:
  RunningFeed() {
    std::string pattern = ::testing::TempDir() + "rf_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    feed_ = test::planned_feed();
    RestartConfig& restart = *feed_.config.mutable_restart();
    restart.set_max_restarts(4);
    restart.set_backoff_ms_min(1);
    restart.set_backoff_ms_max(2);
  }
  ~RunningFeed() override {
    if (pid_ > 0) {
      careful::kill_one(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(directory_);
  }

  void start(const std::string& behaviour) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("RINGFEED_FAKE", behaviour.c_str(), 1);
    const int err = error_fd_ >= 0
                        ? error_fd_
                        : ::open(said_path().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(err, STDERR_FILENO);
    int status = 99;
    try {
      control::FeedLock lock =
          control::FeedLock::take(control::lock_path(directory_, "test"), "test").value_or_throw();
      metrics::Talk talk({.feed = "test", .file = log_file_});
      const FeedRun run{.config = feed_.config,
                        .plan = feed_.plan,
                        .seed = 1,
                        .config_file = "test.textproto",
                        .worker_binary = RINGFEED_BINARY_DIR "/bin/supervisor_fake_worker",
                        .socket = control::socket_path(directory_, "test")};
      Feed supervisor(run, layout::lay_out(feed_.config, feed_.plan, feed_.wiring, feed_.groups),
                      lock, talk);
      status = supervisor.run();
      lock.remove();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(status);
  }

  control::ControlClient connect() {
    for (;;) {
      std::optional<control::ControlClient> client =
          control::ControlClient::connect({directory_}, "test");
      if (client) return std::move(*client);
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        throw Error(ErrorCode::kClosed, "the feed ended before it could be reached:\n" + said());
      }
      ::usleep(1000);
    }
  }
  StatusReply status(control::ControlClient& client) {
    Request request;
    request.set_id(++id_);
    request.mutable_status();
    return client.call(request).status();
  }
  // Asks until the answer is as wanted; the test's own time limit ends what never comes.
  template <typename Condition>
  StatusReply status_when(control::ControlClient& client, Condition&& condition) {
    for (;;) {
      StatusReply reply = status(client);
      if (condition(reply)) return reply;
      ::usleep(1000);
    }
  }
  void request_stop(control::ControlClient& client, bool now) {
    Request request;
    request.set_id(++id_);
    request.mutable_stop()->set_now(now);
    EXPECT_EQ(client.call(request).error(), Reply::NONE);
  }
  // The exit status of the feed; -signal if it was killed.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string said_path() const { return directory_ + "/said"; }
  std::string said() const {
    std::ifstream in(said_path());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool nothing_left() const {
    return !std::filesystem::exists(control::socket_path(directory_, "test")) &&
           !std::filesystem::exists(control::lock_path(directory_, "test"));
  }

  std::string directory_;
  test::PlannedFeed feed_;
  // Until the text is there; the test's own time limit ends what never comes.
  static void wait_for(const std::string& file, const std::string& text) {
    while (contents(file).find(text) == std::string::npos) ::usleep(1000);
  }
  static std::string contents(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Kills the process of the stage's group and returns when there is another one.
  StatusReply replaced(control::ControlClient& client, int stage) {
    const std::uint32_t before = status(client).stages(stage).lanes(0).pid();
    careful::kill_one(before, SIGKILL);
    return status_when(client, [&](const StatusReply& now) {
      const std::uint32_t pid = now.stages(stage).lanes(0).pid();
      return pid != 0 && pid != before && all_lanes_run(now);
    });
  }
  static bool all_lanes_run(const StatusReply& status) {
    for (const StageStatus& stage : status.stages()) {
      if (stage.lanes(0).pid() == 0) return false;
    }
    return true;
  }

  int error_fd_ = -1;  // of the feed; -1: a file
  std::string log_file_;
  pid_t pid_ = 0;
  std::uint64_t id_ = 0;
};

bool all_running(const StatusReply& status) { return status.state() == StatusReply::WARMING; }

TEST_F(RunningFeed, StopsNowAndLeavesNothingBehind) {
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  request_stop(client, true);
  EXPECT_TRUE(client.wait_for_end());
  EXPECT_EQ(wait(), 0) << said();
  EXPECT_TRUE(nothing_left());
}

TEST_F(RunningFeed, TheFirstSignalDrainsAndLanesThatFinishEndTheFeed) {
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  careful::kill_one(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0) << said();
  EXPECT_THAT(said(), HasSubstr("feed_draining"));
  EXPECT_TRUE(nothing_left());
}

TEST_F(RunningFeed, WhoeverDoesNotHearAStopIsKilled) {
  start("stuck");
  control::ControlClient client = connect();
  status_when(client, all_running);
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
  EXPECT_THAT(said(), HasSubstr("worker_killed"));
}

TEST_F(RunningFeed, AnEndedFeedIsStillThereForItsFirstTrainerUntilItIsStopped) {
  start("finish");
  control::ControlClient client = connect();
  const StatusReply ended = status_when(
      client, [](const StatusReply& status) { return status.state() == StatusReply::ENDED; });
  EXPECT_THAT(ended.reason(), HasSubstr("first trainer"));
  careful::kill_one(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
}

TEST_F(RunningFeed, AKilledWorkerIsReplacedAndTheOthersAreNot) {
  start("serve");
  control::ControlClient client = connect();
  const StatusReply before = status_when(client, all_running);
  const auto pid_of = [](const StatusReply& status, int stage) {
    return status.stages(stage).lanes(0).pid();
  };
  careful::kill_one(pid_of(before, 0), SIGKILL);
  const StatusReply after = status_when(client, [&](const StatusReply& status) {
    const LaneStatus& lane = status.stages(0).lanes(0);
    return lane.pid() != 0 && lane.pid() != pid_of(before, 0) && lane.incarnation() == 2;
  });
  EXPECT_EQ(after.stages(0).lanes(0).restarts(), 1U);
  EXPECT_EQ(pid_of(after, 2), pid_of(before, 2));
  EXPECT_EQ(after.stages(2).lanes(0).restarts(), 0U);
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(RunningFeed, AReplacedGroupGetsAFreshProcessWithoutADeath) {
  start("serve");
  control::ControlClient client = connect();
  const StatusReply before = status_when(client, all_running);
  Request request;
  request.set_id(1000);
  request.mutable_restart()->set_group("back");
  const Reply reply = client.call(request);
  ASSERT_EQ(reply.error(), Reply::NONE) << reply.text();
  EXPECT_NE(reply.restart().pid(), before.stages(2).lanes(0).pid());
  EXPECT_THAT(said(), ::testing::Not(HasSubstr("worker_died")));
  request.mutable_restart()->set_group("nowhere");
  const Reply refused = client.call(request);
  EXPECT_EQ(refused.error(), Reply::NO_SUCH_GROUP);
  EXPECT_THAT(refused.text(), HasSubstr("front, back"));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(RunningFeed, AWorkerThatAlwaysCrashesFailsTheFeedWithItsLastWords) {
  start("crash");
  EXPECT_EQ(wait(), 1);
  EXPECT_THAT(said(), AllOf(HasSubstr("died 5 times within 60 s"), HasSubstr("exit status 9"),
                            HasSubstr("fake worker: out of luck")));
  // Why it has failed stays, for whoever looks later.
  EXPECT_FALSE(std::filesystem::exists(control::socket_path(directory_, "test")));
  const auto ended = control::find_silent(directory_, "test");
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->state, "FAILED");
  EXPECT_THAT(ended->reason, HasSubstr("died 5 times within 60 s"));
  control::FeedLock next =
      control::FeedLock::take(control::lock_path(directory_, "test"), "test").value_or_throw();
  EXPECT_TRUE(next.left_behind().over);
  next.keep(false);
  next.remove();
  EXPECT_TRUE(nothing_left());
}

TEST_F(RunningFeed, AFailureThatARestartWouldMeetAgainIsNotTriedAgain) {
  start("permanent");
  EXPECT_EQ(wait(), 1);
  EXPECT_THAT(said(), AllOf(HasSubstr("the fake has no stage 'mix'"),
                            ::testing::Not(HasSubstr("worker_restarted"))));
}

TEST_F(RunningFeed, AFailureOfAGroupThatHasRunIsADeathLikeAnyOther) {
  start("moody");
  control::ControlClient client = connect();
  status_when(client, [](const StatusReply& status) {
    return all_running(status) && status.stages(0).lanes(0).incarnation() >= 5;
  });
  EXPECT_THAT(said(), HasSubstr("status=1 cause=death deaths=4"));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0) << said();
}

TEST_F(RunningFeed, ARecordThatKillsTooOftenIsSetAside) {
  feed_.config.mutable_restart()->set_max_attempts(3);
  feed_.groups = {{"all", {0, 1, 2}}};
  start("poison");
  control::ControlClient client = connect();
  status_when(client,
              [](const StatusReply& status) { return status.state() == StatusReply::ENDED; });
  EXPECT_THAT(said(), AllOf(HasSubstr("record_quarantined"), HasSubstr("key=0x2a deaths=3")));
  careful::kill_one(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
}

TEST_F(RunningFeed, WarningsOfASchedulerEndNobody) {
  start("serve");
  control::ControlClient client = connect();
  const StatusReply before = status_when(client, all_running);
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, SIGRTMIN + 3}) {
    for (int stage = 0; stage < before.stages_size(); ++stage) {
      careful::kill_one(before.stages(stage).lanes(0).pid(), signal);
    }
    careful::kill_one(pid_, signal);
    wait_for(said_path(), fmt::format("signal_ignored feed=test signal={} ", signal));
  }
  const StatusReply after = status(client);
  EXPECT_EQ(after.state(), before.state());
  for (int stage = 0; stage < after.stages_size(); ++stage) {
    EXPECT_EQ(after.stages(stage).lanes(0).pid(), before.stages(stage).lanes(0).pid());
  }
  EXPECT_THAT(said(), ::testing::Not(HasSubstr("feed_draining")));
  careful::kill_one(pid_, SIGQUIT);
  EXPECT_EQ(wait(), 0);
  EXPECT_THAT(said(), AllOf(HasSubstr("feed_stopping"), HasSubstr("signal 3")));
}

TEST_F(RunningFeed, WhatWasBlockedOrIgnoredBeforeChangesNothing) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  for (const int signal : {SIGHUP, SIGTERM, SIGCHLD, SIGUSR1}) ::signal(signal, SIG_IGN);
  start("serve");
  for (const int signal : {SIGHUP, SIGTERM, SIGCHLD, SIGUSR1}) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  control::ControlClient client = connect();
  status_when(client, all_running);
  careful::kill_one(pid_, SIGUSR1);
  wait_for(said_path(), "signal_ignored feed=test signal=10 ");
  replaced(client, 0);
  EXPECT_THAT(said(), HasSubstr("worker_died feed=test group=front signal=9"));
  careful::kill_one(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  EXPECT_THAT(said(), HasSubstr("feed_draining"));
}

// A feed whose last stage runs in processes that somebody else forks.
class GivenFeed : public RunningFeed {
 protected:
  GivenFeed() {
    NodePlan& node = *feed_.plan.mutable_stages(2)->mutable_nodes(0);
    node.set_process_per_lane(true);
    node.set_warm_parent(true);
    node.set_parent_socket(path());
    node.set_program("no-such-program");
  }
  ~GivenFeed() override { end_parent(); }

  [[nodiscard]] std::string path() const { return directory_ + "/parent.sock"; }
  // It forks the fake worker, which behaves as "serve".
  void begin_parent(const char* behaviour) {
    parent_ = ::fork();
    if (parent_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("RINGFEED_FAKE", "serve", 1);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::execl(RINGFEED_BINARY_DIR "/bin/fake_parent", "fake_parent", path().c_str(),
            RINGFEED_BINARY_DIR "/bin/supervisor_fake_worker", behaviour, nullptr);
    ::_exit(99);
  }
  void end_parent() {
    if (parent_ <= 0) return;
    careful::kill_one(parent_, SIGKILL);
    ::waitpid(std::exchange(parent_, 0), nullptr, 0);
  }
  static pid_t packer(const StatusReply& status) {
    return static_cast<pid_t>(status.stages(2).lanes(0).pid());
  }
  static std::string problems(const StatusReply& status) {
    std::string all;
    for (const std::string& problem : status.problems()) all += problem + "\n";
    return all;
  }
  static pid_t parent_of(pid_t pid) {
    const std::string stat = contents(fmt::format("/proc/{}/stat", pid));
    return std::atoi(stat.c_str() + stat.rfind(')') + 4);
  }

  pid_t parent_ = 0;
};

TEST_F(GivenFeed, WaitsForItsParentWhichForksEveryProcess) {
  feed_.config.mutable_restart()->set_max_restarts(1000);
  start("serve");
  control::ControlClient client = connect();
  const StatusReply waits = status_when(client, [](const StatusReply& status) {
    return status.stages(0).lanes(0).incarnation() == 1 && status.problems_size() != 0;
  });
  EXPECT_THAT(problems(waits), HasSubstr(fmt::format("stage group pack.0 waits for the warm parent "
                                                     "at {}: nothing is there yet",
                                                     path())));
  EXPECT_EQ(waits.state(), StatusReply::STARTING);
  begin_parent("serve");
  const StatusReply first = status_when(client, all_running);
  EXPECT_EQ(parent_of(packer(first)), parent_);
  EXPECT_EQ(problems(first), "");
  // How it died is told soon, or not at all.
  do {
    EXPECT_EQ(parent_of(packer(replaced(client, 2))), parent_);
  } while (said().find("group=pack.0 signal=9") == std::string::npos);
  Request request;
  request.set_id(1000);
  request.mutable_restart()->set_group("pack.0");
  // Not before the process has said that it is ready.
  while (client.call(request).error() == Reply::INTERNAL) ::usleep(1000);
  EXPECT_EQ(parent_of(packer(status(client))), parent_);
  request.mutable_restart()->set_binary("/bin/true");
  const Reply refused = client.call(request);
  EXPECT_EQ(refused.error(), Reply::INCOMPATIBLE);
  EXPECT_THAT(refused.text(), HasSubstr("forked by the warm parent at " + path()));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0) << said();
  EXPECT_EQ(::waitpid(parent_, nullptr, WNOHANG), 0) << "it is not the feed's to end";
}

TEST_F(GivenFeed, ADeathOfItsParentIsNoDeathOfTheStage) {
  feed_.config.mutable_restart()->set_max_restarts(1);
  begin_parent("serve");
  start("serve");
  control::ControlClient client = connect();
  const pid_t before = packer(status_when(client, all_running));
  for (const char* const behaviour : {"full", "still", "serve"}) {
    end_parent();
    wait_for(said_path(), "closed the connection");
    if (status(client).stages(2).lanes(0).pid() != 0) careful::kill_one(before, SIGKILL);
    status_when(client, [](const StatusReply& now) { return !now.problems().empty(); });
    begin_parent(behaviour);
    if (behaviour == std::string("full")) {
      wait_for(said_path(), "it has no room");
    } else if (behaviour == std::string("still")) {
      wait_for(said_path(), "ended before it spoke");
    }
  }
  const StatusReply after = status_when(client, [before](const StatusReply& now) {
    return packer(now) != 0 && packer(now) != before && all_lanes_run(now);
  });
  EXPECT_EQ(parent_of(packer(after)), parent_);
  EXPECT_EQ(after.stages(2).lanes(0).restarts(), 1U);
  EXPECT_THAT(said(), AllOf(HasSubstr("group=pack.0 signal=0 cause=death deaths=1"),
                            ::testing::Not(HasSubstr("deaths=2"))));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0) << said();
}

TEST_F(GivenFeed, AnEndThatNobodyTellsIsADeathAllTheSame) {
  begin_parent("silent");
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  replaced(client, 2);
  EXPECT_THAT(said(), HasSubstr("group=pack.0 signal=0 cause=death deaths=1"));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0) << said();
}

TEST_F(GivenFeed, StopsWhileItWaits) {
  start("serve");
  control::ControlClient client = connect();
  status_when(client, [](const StatusReply& status) { return status.problems_size() != 0; });
  request_stop(client, true);
  EXPECT_EQ(wait(), 0) << said();
  EXPECT_TRUE(nothing_left());
}

TEST_F(RunningFeed, AHangupOpensTheLogAnew) {
  log_file_ = directory_ + "/log";
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  std::filesystem::rename(log_file_, log_file_ + ".1");
  careful::kill_one(pid_, SIGHUP);
  wait_for(log_file_, "log_reopened");
  EXPECT_THAT(contents(log_file_ + ".1"), HasSubstr("feed_started"));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
  EXPECT_THAT(contents(log_file_), HasSubstr("feed_ended"));
}

TEST_F(RunningFeed, AStandardErrorThatNobodyReadsKeepsNoStageFromBeingReplaced) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string filler(4096, '.');
  while (::write(ends[1], filler.data(), filler.size()) > 0) {
  }
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, 0), 0);
  error_fd_ = ends[1];
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  for (int i = 0; i < 3; ++i) replaced(client, 0);
  const StatusReply shown = status(client);
  ASSERT_EQ(shown.problems_size(), 1);
  EXPECT_THAT(shown.problems(0), HasSubstr("standard error accepts no lines"));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0) << "the end waits for no reader either";
  EXPECT_TRUE(nothing_left());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(RunningFeed, ADirectoryThatVanishesIsMadeAgainAndTheFeedGoesOn) {
  directory_ += "/sockets";
  control::prepare_directory(directory_, "test");
  log_file_ = directory_ + "/../log";
  start("serve");
  control::ControlClient before = connect();
  status_when(before, all_running);
  for (int i = 0; i < 3; ++i) {
    std::filesystem::remove_all(directory_);
    replaced(before, 0);
    control::ControlClient after = connect();
    EXPECT_EQ(status(after).supervisor_pid(), static_cast<std::uint32_t>(pid_));
    struct stat info {};
    ASSERT_EQ(::stat(directory_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U);
    status_when(before, [](const StatusReply& now) { return now.problems().empty(); });
    EXPECT_THAT(contents(directory_ + "/test.state"), HasSubstr("supervisor"));
  }
  EXPECT_THAT(contents(log_file_), ::testing::Not(HasSubstr("feed_failed")));
  request_stop(before, true);
  EXPECT_EQ(wait(), 0);
  EXPECT_TRUE(nothing_left());
}

TEST_F(RunningFeed, AnotherFeedThatHasTakenTheNameMeanwhileIsNotDisturbed) {
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  std::filesystem::remove(control::lock_path(directory_, "test"));
  {
    control::FeedLock other =
        control::FeedLock::take(control::lock_path(directory_, "test"), "test").value_or_throw();
    other.write({.supervisor = {4711, 1}, .feed_id = "another"}).or_throw();
    const StatusReply shown =
        status_when(client, [](const StatusReply& now) { return now.problems_size() != 0; });
    EXPECT_THAT(shown.problems(0),
                AllOf(HasSubstr("new trainers cannot find the feed"), HasSubstr("process 4711")));
    replaced(client, 0);
  }
  status_when(client, [](const StatusReply& now) { return now.problems().empty(); });
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
  EXPECT_TRUE(nothing_left());
}

TEST_F(RunningFeed, AStartWithoutDescriptorsIsWaitedOutAndIsNoDeath) {
  start("serve");
  control::ControlClient client = connect();
  const StatusReply before = status_when(client, all_running);
  rlimit limit{};
  ASSERT_EQ(::prlimit(pid_, RLIMIT_NOFILE, nullptr, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(::prlimit(pid_, RLIMIT_NOFILE, &none, nullptr), 0);
  careful::kill_one(before.stages(0).lanes(0).pid(), SIGKILL);
  const StatusReply starved = status_when(client, [](const StatusReply& now) {
    return now.problems_size() == 1 && now.problems(0).find(", 4 starts") != std::string::npos;
  });
  EXPECT_THAT(starved.problems(0), AllOf(HasSubstr("stage group 'front' has no process"),
                                         HasSubstr("Too many open files")));
  ASSERT_EQ(::prlimit(pid_, RLIMIT_NOFILE, &limit, nullptr), 0);
  const StatusReply after = status_when(
      client, [](const StatusReply& now) { return now.problems().empty() && all_lanes_run(now); });
  EXPECT_EQ(after.stages(0).lanes(0).restarts(), 1U);
  EXPECT_THAT(said(),
              AllOf(HasSubstr("worker_starved feed=test group=front times=4"),
                    HasSubstr("worker_starved_no_more"), ::testing::Not(HasSubstr("deaths=2"))));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(RunningFeed, ARestartHasDescriptorsWhenAllAreUsedUp) {
  start("serve");
  control::ControlClient client = connect();
  status_when(client, all_running);
  // As many as there are; what the dead process had is taken by others as well.
  std::size_t open = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid_))) {
    ++open;
  }
  rlimit limit{};
  ASSERT_EQ(::prlimit(pid_, RLIMIT_NOFILE, nullptr, &limit), 0);
  // Also when others have got some of the reserve.
  for (const std::size_t short_by : {0, 1, 3}) {
    const rlimit used_up{open - short_by, limit.rlim_max};
    ASSERT_EQ(::prlimit(pid_, RLIMIT_NOFILE, &used_up, nullptr), 0);
    replaced(client, short_by == 1 ? 2 : 0);
  }
  EXPECT_THAT(said(), ::testing::Not(HasSubstr("worker_starved ")));
  request_stop(client, true);
  EXPECT_EQ(wait(), 0);
}

// A trainer by hand: libringfeed has tests of its own.
class Attached : public RunningFeed {
 protected:
  static Request attach_request() {
    Request request;
    request.set_id(1);
    AttachRequest& attach = *request.mutable_attach();
    attach.set_abi_major(shm::kAbiMajor);
    attach.set_layout_hash(shm::kLayoutHash);
    attach.set_pid(static_cast<std::uint32_t>(::getpid()));
    attach.set_client("by hand");
    attach.set_group("g");
    return request;
  }
};

TEST_F(Attached, ATrainerIsShownUntilItLeaves) {
  start("serve");
  control::ControlClient trainer = connect();
  const Reply reply = trainer.call(attach_request());
  ASSERT_EQ(reply.error(), Reply::NONE) << reply.text();
  EXPECT_EQ(reply.attach().feed(), "test");
  EXPECT_EQ(reply.attach().slots(), 4U);
  EXPECT_EQ(reply.attach().slot_bytes(), 100U);
  EXPECT_EQ(reply.attach().slot_stride(), 4096U);
  EXPECT_EQ(reply.attach().tensors_size(), 1);
  control::ControlClient observer = connect();
  StatusReply shown = status(observer);
  ASSERT_EQ(shown.trainers_size(), 1);
  EXPECT_EQ(shown.trainers(0).pid(), static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(shown.trainers(0).client(), "by hand");
  EXPECT_THAT(said(), HasSubstr("client=\"by hand\""));
  EXPECT_EQ(trainer.call(attach_request()).error(), Reply::BAD_REQUEST) << "one place a connection";
  Request detach;
  detach.set_id(2);
  detach.mutable_detach();
  EXPECT_EQ(trainer.call(detach).error(), Reply::NONE);
  EXPECT_EQ(status(observer).trainers_size(), 0);
  request_stop(observer, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(Attached, AClosedConnectionIsNoDeathButADeathIs) {
  start("serve");
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    {
      control::ControlClient trainer = connect();
      if (trainer.call(attach_request()).error() != Reply::NONE) ::_exit(1);
    }  // the connection is closed, the process lives on
    if (::write(go[1], "x", 1) != 1) ::_exit(2);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(go[0], &byte, 1), 1);
  control::ControlClient observer = connect();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(status(observer).trainers_size(), 1);
  careful::kill_one(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  status_when(observer, [](const StatusReply& status) { return status.trainers_size() == 0; });
  EXPECT_THAT(said(), HasSubstr("trainer_died"));
  request_stop(observer, true);
  EXPECT_EQ(wait(), 0);
  ::close(go[0]);
  ::close(go[1]);
}

TEST_F(Attached, NamesForgeNoLinesInTheLogAndOnTheTerminal) {
  start("serve");
  control::ControlClient trainer = connect();
  Request request = attach_request();
  request.mutable_attach()->set_client("x\nworker_died feed=test\x1b[2J\xff");
  request.mutable_attach()->set_group("g pid=1\x1b");
  ASSERT_EQ(trainer.call(request).error(), Reply::NONE);
  wait_for(said_path(), "trainer_joined");
  EXPECT_THAT(said(),
              AllOf(HasSubstr("group=\"g pid=1\\x1b\" member=0"),
                    HasSubstr("client=\"x\\nworker_died feed=test\\x1b[2J\\xff\""),
                    ::testing::Not(HasSubstr("\nworker_died")), ::testing::Not(HasSubstr("\x1b"))));
  const std::string shown = metrics::show_status(status(trainer), nullptr);
  EXPECT_THAT(shown, AllOf(HasSubstr("x\\nworker_died"), HasSubstr("g pid=1\\x1b"),
                           ::testing::Not(HasSubstr("\x1b"))));
  request_stop(trainer, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(Attached, AnotherAbiIsRefusedWithBothVersions) {
  start("serve");
  control::ControlClient trainer = connect();
  Request request = attach_request();
  request.mutable_attach()->set_abi_major(77);
  const Reply reply = trainer.call(request);
  EXPECT_EQ(reply.error(), Reply::INCOMPATIBLE);
  EXPECT_THAT(reply.text(), AllOf(HasSubstr("77."), HasSubstr("same ringfeed version")));
  request_stop(trainer, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(Attached, AnotherProcessThanTheOneThatConnectedIsRefused) {
  start("serve");
  control::ControlClient trainer = connect();
  Request request = attach_request();
  request.mutable_attach()->set_pid(1);
  const Reply reply = trainer.call(request);
  EXPECT_EQ(reply.error(), Reply::BAD_REQUEST);
  EXPECT_THAT(reply.text(), HasSubstr("process 1 uses it"));
  request_stop(trainer, true);
  EXPECT_EQ(wait(), 0);
}

TEST_F(Attached, ADeathOfAWorkerForGoodIsToldToItsTrainers) {
  start("serve");
  control::ControlClient trainer = connect();
  ASSERT_EQ(trainer.call(attach_request()).error(), Reply::NONE);
  control::ControlClient observer = connect();
  // Every life is ended as soon as it is seen, until the budget is used up.
  std::uint32_t last = 0;
  try {
    for (;;) {
      const std::uint32_t pid = status(observer).stages(0).lanes(0).pid();
      if (pid != 0 && pid != last) careful::kill_one(pid, SIGKILL);
      last = pid;
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kClosed);
  }
  EXPECT_EQ(wait(), 1);
  EXPECT_THAT(said(), HasSubstr("stage group 'front' died 5 times"));
}

}  // namespace
}  // namespace ringfeed::process
