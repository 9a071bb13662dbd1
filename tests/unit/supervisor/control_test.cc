// Specification of supervisor/control, but for groups: where sockets lie, one supervisor a name,
// packets with descriptors, who may talk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "proto/control.pb.h"
#include "supervisor/control/client.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/packet.h"
#include "supervisor/control/place.h"
#include "supervisor/control/server.h"

namespace ringfeed::control {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Directory : public ::testing::Test {
 protected:
  Directory() {
    std::string pattern = ::testing::TempDir() + "rf_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~Directory() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST(Place, TheConfigurationComesFirstThenTheEnvironmentThenTheSystem) {
  EXPECT_EQ(socket_directory("/a", {"/b", "/c"}), "/a");
  EXPECT_EQ(socket_directory("", {"/b", "/c"}), "/b");
  EXPECT_EQ(socket_directory("", {"", "/c"}), "/c/ringfeed");
  EXPECT_EQ(socket_directory("", {"", ""}), "/run/ringfeed");
}

TEST(Place, AClientOfASessionAlsoLooksForFeedsOfTheSystem) {
  EXPECT_THAT(search_directories("/a", {"/b", "/c"}), ElementsAre("/a"));
  EXPECT_THAT(search_directories("", {"/b", "/c"}), ElementsAre("/b"));
  EXPECT_THAT(search_directories("", {"", "/c"}), ElementsAre("/c/ringfeed", "/run/ringfeed"));
  EXPECT_THAT(search_directories("", {}), ElementsAre("/run/ringfeed"));
}

using PlaceOnDisk = Directory;

TEST_F(PlaceOnDisk, TheDirectoryIsMadeForItsUserAlone) {
  const std::string directory = directory_ + "/x/ringfeed";
  prepare_directory(directory, "lc0");
  struct stat info {};
  ASSERT_EQ(::stat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  EXPECT_NO_THROW(prepare_directory(directory, "lc0"));
}

TEST_F(PlaceOnDisk, APathTooLongForASocketIsRefusedWithItsLength) {
  const std::string directory = directory_ + "/" + std::string(120, 'd');
  try {
    prepare_directory(directory, "lc0");
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), AllOf(HasSubstr("107 are possible"), HasSubstr("shorter")));
  }
}

TEST_F(PlaceOnDisk, AFileInPlaceOfTheDirectoryIsRefused) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "x";
  EXPECT_THROW(prepare_directory(file, "lc0"), Error);
}

TEST_F(PlaceOnDisk, FeedsAreFoundByTheirFiles) {
  std::ofstream(socket_path(directory_, "b")) << "";
  std::ofstream(lock_path(directory_, "a")) << "";
  std::ofstream(lock_path(directory_, "b")) << "";
  std::ofstream(directory_ + "/note.txt") << "";
  EXPECT_THAT(feeds_in(directory_), ElementsAre("a", "b"));
  EXPECT_THAT(feeds_in(directory_ + "/nowhere"), IsEmpty());
}

using Lock = Directory;

TEST_F(Lock, ANameHasOneSupervisorAndTheOtherIsTold) {
  const std::string path = lock_path(directory_, "lc0");
  FeedLock held = FeedLock::take(path, "lc0").value_or_throw();
  held.write({.supervisor = {4711, 1}, .workers = {}, .files = {}});
  const Result<FeedLock> second = FeedLock::take(path, "lc0");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(second.error().message(), AllOf(HasSubstr("feed 'lc0'"), HasSubstr("process 4711"),
                                              HasSubstr("ringfeed stop")));
  held.remove();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(FeedLock::take(path, "lc0").ok());
}

TEST_F(Lock, WhatADeadSupervisorLeftIsKnown) {
  const std::string path = lock_path(directory_, "lc0");
  const LockRecord record{.supervisor = {1, 2},
                          .workers = {{"pool", {3, 4}}, {"a+b", {5, 6}}},
                          .files = {"/dev/shm/a file"}};
  {
    FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
    lock.write(record);
  }  // the process dies: the kernel drops the lock, the file stays
  const FeedLock next = FeedLock::take(path, "lc0").value_or_throw();
  EXPECT_EQ(next.left_behind().supervisor, record.supervisor);
  EXPECT_EQ(next.left_behind().workers, record.workers);
  EXPECT_EQ(next.left_behind().files, record.files);
}

TEST_F(Lock, EveryPrefixOfARecordCanBeReadAndSaysNothingFalse) {
  const LockRecord record{
      .supervisor = {123, 456}, .workers = {{"pool", {789, 1011}}}, .files = {"/dev/shm/file"}};
  const std::string text = record.text();
  for (std::size_t bytes = 0; bytes <= text.size(); ++bytes) {
    const LockRecord read = LockRecord::parse(text.substr(0, bytes));
    EXPECT_TRUE(read.supervisor.pid == 0 || read.supervisor == record.supervisor) << bytes;
    EXPECT_TRUE(read.workers.empty() || read.workers == record.workers) << bytes;
    EXPECT_TRUE(read.files.empty() || read.files == record.files) << bytes;
  }
}

TEST_F(Lock, OrphansAreEndedOnlyIfTheyAreWhoTheyWere) {
  const auto sleeper = [] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (;;) ::pause();
    }
    return process::Identity{pid, process::start_ticks(pid).value()};
  };
  const process::Identity orphan = sleeper();
  const process::Identity stranger = sleeper();
  const std::string file = directory_ + "/segment";
  std::ofstream(file) << "x";
  const std::vector<std::string> done = clear_remains(
      {.supervisor = {},
       .workers = {{"pool", orphan}, {"pack", {stranger.pid, stranger.start_ticks + 1}}},
       .files = {file, directory_ + "/gone"}});
  EXPECT_EQ(done.size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(file));
  int status = 0;
  ASSERT_EQ(::waitpid(orphan.pid, &status, 0), orphan.pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(process::is_alive(stranger));
  ASSERT_TRUE(process::kill_process(stranger, SIGKILL));
  ::waitpid(stranger.pid, &status, 0);
}

class Pair : public ::testing::Test {
 protected:
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    a_ = shm::Fd(ends[0]);
    b_ = shm::Fd(ends[1]);
  }
  shm::Fd a_;
  shm::Fd b_;
};

TEST_F(Pair, APacketIsOneMessageWithItsDescriptors) {
  const shm::Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> fds(kDescriptorsPerPacket, null.get());
  ASSERT_TRUE(send_packet(a_.get(), "hello", fds).ok());
  ASSERT_TRUE(send_packet(a_.get(), "again").ok());
  const Packet first = receive_packet(b_.get()).value_or_throw();
  EXPECT_EQ(first.bytes, "hello");
  EXPECT_EQ(first.fds.size(), kDescriptorsPerPacket);
  EXPECT_EQ(receive_packet(b_.get()).value_or_throw().bytes, "again");
  EXPECT_TRUE(receive_packet(b_.get()).value_or_throw().empty);
}

TEST_F(Pair, AMessageTooLargeForAPacketArrivesWhole) {
  std::string large(10 << 20, 'x');
  large.back() = 'y';
  ASSERT_TRUE(send_packet(a_.get(), large).ok());
  const Packet packet = receive_packet(b_.get()).value_or_throw();
  EXPECT_TRUE(packet.bytes == large);
  EXPECT_THAT(packet.fds, IsEmpty());
}

TEST_F(Pair, TheEndOfTheOtherSideIsAnEndAndNoError) {
  a_.reset();
  EXPECT_TRUE(receive_packet(b_.get()).value_or_throw().end);
  const Status sent = send_packet(b_.get(), "anyone?");
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code(), ErrorCode::kClosed);
}

TEST_F(Pair, WhoDoesNotReadIsNotWaitedFor) {
  Status sent;
  for (int i = 0; i < 100'000 && sent.ok(); ++i)
    sent = send_packet(a_.get(), std::string(1000, 'x'));
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code(), ErrorCode::kBusy);
}

class Server : public Directory {
 protected:
  Server() : path_(socket_path(directory_, "lc0")) {
    server_ = std::make_unique<ControlServer>(
        loop_, path_,
        ControlServer::Handlers{[this](ConnectionId id, const Request& request) {
                                  Reply reply;
                                  reply.set_id(request.id());
                                  reply.mutable_stop();
                                  server_->send(id, reply);
                                  last_ = id;
                                },
                                [this](ConnectionId) { ++closed_; }});
  }
  process::EventLoop loop_;
  std::string path_;
  ConnectionId last_ = 0;
  int closed_ = 0;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(Server, TheSocketIsForItsUserAloneAndGoesWithTheServer) {
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Server, ASocketThatADeadServerLeftIsReplaced) {
  server_.reset();
  std::ofstream(path_) << "";
  EXPECT_NO_THROW(ControlServer(loop_, path_, {}));
}

TEST_F(Server, AClientIsAnsweredAndKnownByItsProcess) {
  int checked[2];  // the client stays until it has been looked at
  ASSERT_EQ(::pipe(checked), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::optional<ControlClient> client = ControlClient::connect({directory_}, "lc0");
    Request request;
    request.set_id(5);
    request.mutable_stop();
    const bool answered = client && client->call(request).id() == 5;
    ::close(checked[1]);
    char byte = 0;
    (void)!::read(checked[0], &byte, 1);
    ::_exit(answered ? 0 : 1);
  }
  ::close(checked[0]);
  while (last_ == 0) loop_.run_once(1000);
  EXPECT_EQ(server_->peer(last_).pid, child);
  EXPECT_EQ(server_->peer(last_).uid, ::geteuid());
  const shm::Fd pidfd = server_->peer_pidfd(last_);
  ASSERT_TRUE(static_cast<bool>(pidfd));
  ::close(checked[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(process::has_ended(pidfd.get()));
  while (closed_ == 0) loop_.run_once(1000);
  EXPECT_EQ(server_->peer(last_).pid, 0);
}

TEST_F(Server, BytesThatAreNoRequestGetASentence) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::optional<ControlClient> client = ControlClient::connect({directory_}, "lc0");
    Request request;
    request.set_id(1);
    request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(4, "\xff");
    const Reply reply = client->call(request);
    ::_exit(reply.error() == Reply::BAD_REQUEST ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) loop_.run_once(10);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Client, AFeedThatIsNotThereIsNoError) {
  EXPECT_FALSE(ControlClient::connect({"/nonexistent"}, "lc0").has_value());
}

}  // namespace
}  // namespace ringfeed::control
