// Specification of supervisor/group/given_parent.h, with a real process as the parent.
#include "supervisor/group/given_parent.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "supervisor/os/packet.h"
#include "tests/support/rig/careful.h"

namespace ringfeed::process {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Given : public ::testing::Test {
 protected:
  Given() {
    std::string pattern = ::testing::TempDir() + "rf_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    GivenParent::Hooks hooks;
    hooks.on_ready = [this](bool all) {
      ++readies_;
      all_ += all ? 1 : 0;
    };
    hooks.on_work = [this](const std::string& group) { with_work_.push_back(group); };
    hooks.on_ended = [this](pid_t pid) { ended_.push_back(pid); };
    hooks.on_over = [this] { ++overs_; };
    hooks.on_event = [this](std::string_view, std::string_view name, const std::string& values) {
      events_.push_back(std::string(name) + " " + values);
    };
    parent_ = std::make_unique<GivenParent>(loop_, path(), std::move(hooks));
  }
  ~Given() override {
    parent_.reset();
    for (const pid_t pid : parents_) {
      careful::kill_one(pid, SIGCONT);
      end(pid);
    }
    std::filesystem::remove_all(directory_);
  }

  [[nodiscard]] std::string path() const { return directory_ + "/parent.sock"; }
  [[nodiscard]] std::string said_path(pid_t pid) const {
    return directory_ + "/said." + std::to_string(pid);
  }
  [[nodiscard]] std::string said(pid_t pid) const {
    std::ifstream in(said_path(pid));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // What it forks waits for its setup, and ends with 70 if it gets none.
  pid_t begin(const char* behaviour) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(::open(said_path(::getpid()).c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
      ::execl(RINGFEED_BINARY_DIR "/bin/fake_parent", "fake_parent", path().c_str(),
              RINGFEED_BINARY_DIR "/bin/supervisor_fake_worker", behaviour, nullptr);
      ::_exit(99);
    }
    parents_.push_back(pid);
    return pid;
  }
  void end(pid_t pid) {
    careful::kill_one(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    std::erase(parents_, pid);
  }
  [[nodiscard]] shm::Fd listens() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    shm::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(socket.get(), 8), 0);
    return socket;
  }
  // The test's own time limit ends what never comes.
  template <typename Condition>
  void run_until(Condition&& condition) {
    parent_->look_after();
    while (!condition()) loop_.run_once(10);
  }
  void run_until_ready() {
    run_until([this] { return parent_->ready(); });
  }

  std::string directory_;
  EventLoop loop_;
  std::vector<pid_t> parents_;
  std::vector<pid_t> ended_;
  std::vector<std::string> events_;
  int readies_ = 0;
  int all_ = 0;  // of these: for those that are spared, too
  std::vector<std::string> with_work_;
  int overs_ = 0;
  std::unique_ptr<GivenParent> parent_;
};

TEST_F(Given, OneThatComesLateIsWaitedFor) {
  run_until([&] { return !events_.empty(); });
  EXPECT_THAT(events_[0], AllOf(HasSubstr("parent_awaited"), HasSubstr("nothing is there yet")));
  EXPECT_THAT(parent_->why(), HasSubstr("nothing is there yet"));
  const Result<Spawned> early = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code(), ErrorCode::kBusy);
  const pid_t pid = begin("serve");
  run_until([&] { return readies_ == 1; });
  EXPECT_TRUE(parent_->ready());
  EXPECT_THAT(events_,
              Contains(AllOf(HasSubstr("parent_ready"), HasSubstr("pid=" + std::to_string(pid)))));
}

TEST_F(Given, AProcessIsItsChildAndTheEndIsTold) {
  const pid_t pid = begin("serve");
  run_until_ready();
  Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_TRUE(child.ok()) << child.error().message();
  EXPECT_NE(child->identity.pid, pid);
  EXPECT_NE(child->identity.start_ticks, 0U);
  EXPECT_FALSE(has_ended(child->pidfd.get()));
  child->socket.reset();
  run_until([&] { return !ended_.empty(); });
  EXPECT_EQ(ended_[0], child->identity.pid);
  EXPECT_TRUE(has_ended(child->pidfd.get()));
  EXPECT_FALSE(reap(child->pidfd).known) << "it is nobody's here";
  const std::optional<Ending> ending = parent_->ending_of(child->identity.pid);
  ASSERT_TRUE(ending);
  EXPECT_FALSE(ending->known) << "the system has not said so";
  EXPECT_EQ(ending->text(), "exit status 70");
  parent_->forget(child->identity.pid);
  EXPECT_FALSE(parent_->ending_of(child->identity.pid));
}

TEST_F(Given, WhoeverAnswersInPlaceOfANewProcessIsRefusedAndNotKilled) {
  const pid_t pid = begin("lie");
  run_until_ready();
  ::usleep(20'000);  // two ticks of the clock by which processes begin
  const Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(child.error().message(),
              AllOf(HasSubstr("process " + std::to_string(pid)), HasSubstr("in place of a new")));
  EXPECT_FALSE(parent_->ready());
  EXPECT_EQ(careful::kill_one(pid, 0), 0);
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
  careful::kill_one(pid, SIGUSR1);
  run_until_ready();
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
}

TEST_F(Given, OneThatDoesNotAnswerIsLeftAndTriedAgain) {
  const pid_t pid = begin("mute");
  run_until_ready();
  const Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_THAT(child.error().message(), HasSubstr("does not answer"));
  EXPECT_FALSE(parent_->ready());
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0) << "it is none of ours to kill";
  careful::kill_one(pid, SIGUSR1);
  run_until([&] { return readies_ == 2; });
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
}

TEST_F(Given, AProcessThatComesTooLateEndsByItself) {
  const pid_t pid = begin("slow");
  run_until_ready();
  EXPECT_FALSE(parent_->spawn("tokens.1", -1).ok());
  while (said(pid).find("ended") == std::string::npos) ::usleep(1000);
  EXPECT_THAT(said(pid), HasSubstr(" " + std::to_string(3 << 8) + "\n")) << "nobody heard it";
}

TEST_F(Given, WhatItRefusesIsSaidAndItIsKept) {
  begin("full");
  run_until_ready();
  const Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(child.error().message(), "it has no room");
  EXPECT_EQ(parent_->why(), "it has no room");
  EXPECT_TRUE(parent_->ready());
  EXPECT_THAT(events_, Contains(AllOf(HasSubstr("parent_awaited"), HasSubstr("it has no room"))));
}

TEST_F(Given, AGroupWithoutWorkIsSparedUntilTheParentSaysOtherwise) {
  const pid_t pid = begin("spare");
  run_until_ready();
  const Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code(), ErrorCode::kBusy);
  EXPECT_TRUE(parent_->spares());
  EXPECT_TRUE(parent_->ready());
  EXPECT_EQ(parent_->why(), "") << "that is no reason to worry anybody";
  careful::kill_one(pid, SIGUSR1);
  run_until([&] { return readies_ == 2 && !with_work_.empty(); });
  EXPECT_THAT(with_work_, ElementsAre("tokens.1"));
  EXPECT_EQ(all_, 1) << "others that are spared would take its turn";
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
  EXPECT_FALSE(parent_->spares());
  EXPECT_THAT(events_, Not(Contains(HasSubstr("parent_awaited what=\"waits")))) << "all is well";
}

// The loop has others to hear meanwhile.
TEST_F(Given, ARoundOfTheLoopLiesBetweenTwoOrders) {
  begin("serve");
  run_until([&] { return readies_ == 1; });
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
  const Result<Spawned> second = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  run_until([&] { return readies_ == 2; });
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
}

TEST_F(Given, WhoeverWasRefusedIsNotCalledAtOnce) {
  begin("full");
  run_until([&] { return readies_ == 1; });
  EXPECT_EQ(parent_->spawn("tokens.1", -1).error().message(), "it has no room");
  run_until([&] { return parent_->spawn("tokens.1", -1).error().message() == "it has no room"; });
  EXPECT_EQ(readies_, 1);
}

TEST_F(Given, AProcessThatEndsBeforeItSpeaksIsNone) {
  begin("still");
  run_until_ready();
  const Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(child.error().message(), HasSubstr("ended before it spoke"));
  EXPECT_TRUE(parent_->ready());
}

TEST_F(Given, AnotherOneInItsPlaceIsConnectedTo) {
  const pid_t first = begin("serve");
  run_until_ready();
  end(first);
  run_until([&] { return !parent_->ready(); });
  EXPECT_THAT(events_, Contains(HasSubstr("closed the connection")));
  EXPECT_FALSE(parent_->spawn("tokens.1", -1).ok());
  run_until([&] { return parent_->why().find("nobody listens") != std::string::npos; });
  begin("serve");
  run_until([&] { return readies_ == 2; });
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
}

// It is stopped before it has said that it is ready: nothing of it comes, not even its end.
TEST_F(Given, OneThatHangsIsLeftWhenAnotherOneIsInItsPlace) {
  const shm::Fd hangs = listens();
  run_until([&] { return parent_->why().find("not said yet") != std::string::npos; });
  begin("serve");
  run_until_ready();
  EXPECT_TRUE(parent_->spawn("tokens.1", -1).ok());
}

// Somebody else keeps the socket open, on which the next one listens.
TEST_F(Given, BehindOneThatEndsInOrderTheNextOneIsWaitedFor) {
  const shm::Fd listener = listens();
  parent_->look_after();
  shm::Fd link(::accept(listener.get(), nullptr, nullptr));
  control::send_packet(link.get(), "ready").or_throw();
  run_until_ready();
  control::send_packet(link.get(), "over").or_throw();
  run_until([&] { return overs_ == 1; });
  EXPECT_FALSE(parent_->ready());
  EXPECT_THAT(parent_->why(), HasSubstr("the next one comes"));
  EXPECT_EQ(parent_->spawn("tokens.1", -1).error().code(), ErrorCode::kBusy);
  // How its processes have ended is still heard, and it is not asked for anything.
  control::send_packet(link.get(), "ended 78 0").or_throw();
  run_until([&] { return !ended_.empty(); });
  parent_->look_after();
  EXPECT_EQ(::recv(link.get(), nullptr, 0, MSG_DONTWAIT), -1);
  link.reset();
  run_until([&] { return parent_->why().find("not said yet") != std::string::npos; });
  link = shm::Fd(::accept(listener.get(), nullptr, nullptr));
  control::send_packet(link.get(), "ready").or_throw();
  run_until([&] { return readies_ == 2; });
  EXPECT_TRUE(parent_->ready());
  EXPECT_EQ(overs_, 1);
}

TEST_F(Given, OneThatEndsInOrderWhileItIsAskedForAProcessIsNotWaitedFor) {
  const shm::Fd listener = listens();
  parent_->look_after();
  const shm::Fd link(::accept(listener.get(), nullptr, nullptr));
  control::send_packet(link.get(), "ready").or_throw();
  run_until_ready();
  control::send_packet(link.get(), "over").or_throw();
  const Result<Spawned> child = parent_->spawn("tokens.1", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(overs_, 1);
}

TEST_F(Given, WhatNobodyCanReadIsLeft) {
  const shm::Fd listener = listens();
  parent_->look_after();
  const shm::Fd link(::accept(listener.get(), nullptr, nullptr));
  for (const char* const said : {"ended", "ended 1", "ended 1 x", "ended -4 0",
                                 "ended 99999999999 0", "ended 77 9 9", "rubbish", "ended 78 9"}) {
    control::send_packet(link.get(), said).or_throw();
  }
  run_until([&] { return !ended_.empty(); });
  EXPECT_THAT(ended_, ::testing::ElementsAre(78));
  EXPECT_EQ(parent_->ending_of(78)->signal, SIGKILL);
  EXPECT_THAT(parent_->ending_of(78)->text(), HasSubstr("signal 9"));
  EXPECT_FALSE(parent_->ready());
}

}  // namespace
}  // namespace ringfeed::process
