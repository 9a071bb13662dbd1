// Specification of supervisor/control, but for groups: where sockets lie, one supervisor a name,
// packets with descriptors, who may talk.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>

#include "proto/control.pb.h"
#include "supervisor/control/client.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/control/server.h"
#include "supervisor/os/packet.h"
#include "tests/support/rig/careful.h"

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
  held.write({.supervisor = {4711, 1}, .workers = {}, .files = {}}).or_throw();
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
    lock.write(record).or_throw();
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

TEST_F(Lock, ARecordSaysPathsOfEveryKindAndWhetherItIsWhole) {
  LockRecord record{.supervisor = {123, 456},
                    .workers = {{"pool", {789, 1011}}},
                    .files = {"/a/line\nworker 1 2 pool", "/back\\slash\\n", " / "}};
  record.boot = "some-boot";
  record.feed_id = std::string(16, '\1');
  record.snapshot = "/snap\nshot";
  record.namespaces = Namespaces{4026531836, 4026531834};
  record.making_mark = "@0123456789abcdef";
  record.making_directory = "/dev/shm/two\nlines";
  const std::string text = record.text();
  bool whole = false;
  const LockRecord read = LockRecord::parse(text, &whole);
  EXPECT_TRUE(whole);
  EXPECT_EQ(read.files, record.files);
  EXPECT_EQ(read.workers, record.workers);
  EXPECT_EQ(read.snapshot, record.snapshot);
  EXPECT_EQ(read.namespaces, record.namespaces);
  EXPECT_EQ(read.making_mark, record.making_mark);
  EXPECT_EQ(read.making_directory, record.making_directory);
  EXPECT_EQ(read.text(), text);
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    static_cast<void>(LockRecord::parse(text.substr(0, bytes), &whole));
    EXPECT_FALSE(whole) << bytes;
  }
}

TEST_F(Lock, ADamagedRecordIsNoAbsentOne) {
  const std::string path = lock_path(directory_, "lc0");
  std::ofstream(directory_ + "/lc0.state") << "record 2\nboot x\nsuperv";
  FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
  ASSERT_FALSE(lock.is_whole().ok());
  EXPECT_EQ(lock.is_whole().error().code(), ErrorCode::kDamaged);
  EXPECT_THAT(lock.is_whole().error().message(), HasSubstr("--fresh"));
  lock.remove();
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/lc0.state")) << "it is left for its reader";
}

// The next descriptors are refused.
class NoDescriptors {
 public:
  explicit NoDescriptors(rlim_t but) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    const rlimit limit{static_cast<rlim_t>(next) + but, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(Lock, WhatCannotBeReadIsAnErrorAndNotNothing) {
  const std::string path = lock_path(directory_, "lc0");
  {
    FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
    lock.write({.supervisor = {1, 2}, .workers = {{"pool", {3, 4}}}, .files = {}}).or_throw();
  }
  for (const rlim_t but : {0, 1}) {
    const NoDescriptors none(but);
    const Result<FeedLock> refused = FeedLock::take(path, "lc0");
    ASSERT_FALSE(refused.ok()) << but;
    EXPECT_EQ(refused.error().code(), ErrorCode::kIo) << refused.error().message();
  }
  EXPECT_EQ(FeedLock::take(path, "lc0").value_or_throw().left_behind().workers.size(), 1U);
}

TEST(Identity, AProcessThatCannotBeLookedAtIsNotDead) {
  const process::Identity self{::getpid(), process::start_ticks(::getpid()).value()};
  EXPECT_EQ(process::life_of(self), process::Life::kLives);
  EXPECT_EQ(process::life_of({self.pid, self.start_ticks + 1}), process::Life::kGone);
  const NoDescriptors none(0);
  EXPECT_EQ(process::life_of(self), process::Life::kUnknown);
  EXPECT_TRUE(process::is_alive(self));
  const Result<shm::Fd> opened = process::open_living(self);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::kIo);
}

// A process that keeps the workers' lock of a feed, and nothing else of it; dead with this object.
class LockedWorker {
 public:
  explicit LockedWorker(FeedLock& lock) {
    const int held = lock.worker_lock();
    pid_ = ::fork();
    if (pid_ != 0) return;
    const auto kept = static_cast<unsigned>(held);
    ::close_range(3, kept - 1, 0);
    ::close_range(kept + 1, ~0U, 0);
    for (;;) ::pause();
  }
  ~LockedWorker() { end(); }
  void end() {
    if (pid_ <= 0) return;
    careful::kill_one(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  [[nodiscard]] process::Identity identity() const {
    return {pid_, process::start_ticks(pid_).value()};
  }

 private:
  pid_t pid_ = 0;
};

// The child of a supervisor that has just died may not have closed its copy of the lock yet.
FeedLock take_in_the_end(const std::string& path) {
  for (;;) {
    if (Result<FeedLock> taken = FeedLock::take(path, "lc0")) return std::move(*taken);
  }
}
// Nor may a worker that has just been forked have closed its copies.
Status take_again_in_the_end(FeedLock& lock) {
  for (;;) {
    Status taken = lock.take_again("lc0", "this");
    if (taken || taken.error().message().find("already run") == std::string::npos) return taken;
  }
}

TEST_F(Lock, WorkersOfAnotherNamespaceAreKnownToLiveByTheirLock) {
  const std::string path = lock_path(directory_, "lc0");
  LockRecord record{.supervisor = {1, 2}, .workers = {{"pool", {3, 4}}}, .files = {}};
  record.boot = boot_id();
  record.namespaces = own_namespaces().value_or_throw();
  record.namespaces->pid += 1;
  std::optional<LockedWorker> worker;
  {
    FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
    worker.emplace(lock);
    struct stat info {};
    ASSERT_EQ(::fstat(lock.worker_lock(), &info), 0);
    record.lock_device = info.st_dev;
    record.lock_inode = info.st_ino;
    lock.write(record).or_throw();
  }
  FeedLock next = take_in_the_end(path);
  EXPECT_TRUE(next.is_elsewhere());
  EXPECT_THAT(next.lives_unseen(), HasSubstr("live in another pid namespace"));
  EXPECT_THAT(living_workers(next.left_behind()), IsEmpty()) << "its number means nobody here";
  worker->end();
  EXPECT_EQ(next.lives_unseen(), "");
  record.lock_inode += 1;
  next.write(record).or_throw();
  { const FeedLock given_up = std::move(next); }
  EXPECT_THAT(FeedLock::take(path, "lc0").value_or_throw().lives_unseen(), HasSubstr("is gone"));
}

TEST_F(Lock, WorkersThatNoRecordNamesAreKnownToLiveByTheirLock) {
  const std::string path = lock_path(directory_, "lc0");
  std::optional<LockedWorker> worker;
  {
    FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
    worker.emplace(lock);
  }
  LockRecord record{.boot = boot_id(), .namespaces = own_namespaces().value_or_throw()};
  for (const bool recorded : {false, true}) {
    FeedLock next = take_in_the_end(path);
    if (recorded) {
      // A number that is nobody's, as that of one whom /proc does not show.
      record.workers = {{"pool", {worker->identity().pid, 1}}};
      next.write(record).or_throw();
      { const FeedLock given_up = std::move(next); }
      next = FeedLock::take(path, "lc0").value_or_throw();
    }
    EXPECT_THAT(next.lives_unseen(), AllOf(HasSubstr("cannot be seen from here"), HasSubstr(path)));
    EXPECT_THAT(next.unseen_remedy(), HasSubstr("fuser"));
    EXPECT_FALSE(next.is_elsewhere());
    EXPECT_TRUE(next.keeps()) << "the file that shows that they live stays";
    next.remove();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  {
    record.workers = {{"pool", worker->identity()}};
    FeedLock next = take_in_the_end(path);
    next.write(record).or_throw();
  }
  EXPECT_EQ(take_in_the_end(path).lives_unseen(), "") << "one of them is seen to live";
  worker->end();
  EXPECT_EQ(take_in_the_end(path).lives_unseen(), "");
}

TEST_F(Lock, NothingIsRemovedWhileAnotherWorkerLivesThanThoseThatWereEnded) {
  const std::string path = lock_path(directory_, "lc0");
  const std::string file = directory_ + "/segment";
  std::ofstream(file) << "x";
  std::optional<LockedWorker> named;
  std::optional<LockedWorker> unnamed;
  {
    FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
    named.emplace(lock);
    unnamed.emplace(lock);
    lock.write({.workers = {{"pool", named->identity()}}, .files = {file}, .boot = boot_id()})
        .or_throw();
  }
  const FeedLock next = take_in_the_end(path);
  EXPECT_EQ(next.lives_unseen(), "");
  try {
    static_cast<void>(clear_remains(next.left_behind(), &next));
    FAIL() << "the files of a living worker were removed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBusy);
    EXPECT_THAT(error.message(), HasSubstr("cannot be ended from here"));
  }
  EXPECT_TRUE(std::filesystem::exists(file));
  unnamed->end();
  EXPECT_EQ(clear_remains(next.left_behind(), &next).size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(Lock, WorkersOfAnotherFeedUnderTheNameAreSeenWithoutARecord) {
  const std::string path = lock_path(directory_, "lc0");
  FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
  std::optional<LockedWorker> own(std::in_place, lock);
  std::filesystem::rename(path, path + ".away");
  std::optional<LockedWorker> worker;
  {
    FeedLock other = FeedLock::take(path, "lc0").value_or_throw();
    worker.emplace(other);
  }
  const Status refused = take_again_in_the_end(lock);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("another feed 'lc0'"));
  worker->end();
  EXPECT_TRUE(take_again_in_the_end(lock).ok());
  std::filesystem::rename(path + ".away", path);
  const Status again = take_again_in_the_end(lock);
  EXPECT_TRUE(again.ok()) << "its own workers keep that lock: " << again.error().message();
}

TEST_F(Lock, AnUnknownBootIsNoOtherOne) {
  ASSERT_FALSE(boot_id().empty());
  EXPECT_FALSE(was_another_boot({.boot = boot_id()}));
  EXPECT_TRUE(was_this_boot({.boot = boot_id()}));
  EXPECT_TRUE(was_another_boot({.boot = "another"}));
  EXPECT_FALSE(was_this_boot({.boot = "another"}));
  EXPECT_FALSE(was_another_boot({}));
  EXPECT_FALSE(was_this_boot({}));
}

// What somebody else may have put in the place of the lock or the record.
const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> kPlanted{
    {"a FIFO", [](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
    {"a directory", [](const std::string& path) { ASSERT_EQ(::mkdir(path.c_str(), 0700), 0); }},
    {"a symbolic link",
     [](const std::string& path) {
       std::ofstream(path + ".target") << "record 2\nend\n";
       ASSERT_EQ(::symlink((path + ".target").c_str(), path.c_str()), 0);
     }},
};

TEST_F(Lock, OnlyRegularFilesAreTakenForLockAndRecord) {
  const std::string lock = lock_path(directory_, "lc0");
  for (const std::string& path : {lock, directory_ + "/lc0.state"}) {
    for (const auto& [what, plant] : kPlanted) {
      plant(path);
      const Result<FeedLock> refused = FeedLock::take(lock, "lc0");
      ASSERT_FALSE(refused.ok()) << path << what;
      EXPECT_EQ(refused.error().code(), ErrorCode::kIo);
      EXPECT_THAT(refused.error().message(),
                  AllOf(HasSubstr(path + " is " + what), HasSubstr("not a regular file")));
      EXPECT_EQ(find_orphan(lock).ok(), path == lock);
      std::filesystem::remove(path);
    }
  }
  EXPECT_TRUE(FeedLock::take(lock, "lc0").ok());
}

TEST_F(Lock, FilesOfAnotherUserAreNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string lock = lock_path(directory_, "lc0");
  for (const std::string& path : {lock, directory_ + "/lc0.state"}) {
    std::ofstream(path) << LockRecord{.workers = {{"pool", {::getppid(), 1}}}}.text();
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    const Result<FeedLock> refused = FeedLock::take(lock, "lc0");
    ASSERT_FALSE(refused.ok()) << path;
    EXPECT_THAT(refused.error().message(),
                AllOf(HasSubstr(path + " belongs to user 65534"), HasSubstr("control.directory")));
    EXPECT_EQ(find_orphan(lock).ok(), path == lock);
    std::filesystem::remove(path);
  }
}

TEST_F(Lock, WhatHasTheNameOfAHalfWrittenRecordIsNotWrittenTo) {
  FeedLock lock = FeedLock::take(lock_path(directory_, "lc0"), "lc0").value_or_throw();
  const std::string partial = directory_ + "/lc0.state.partial";
  for (const auto& [what, plant] : kPlanted) {
    plant(partial);
    const Status written = lock.write({.feed_id = "0123456789abcdef"});
    if (what == "a directory") {
      ASSERT_FALSE(written.ok());
      EXPECT_THAT(written.error().message(), HasSubstr("a directory is in the way"));
      EXPECT_TRUE(std::filesystem::is_directory(partial));
      std::filesystem::remove(partial);
    } else {
      EXPECT_TRUE(written.ok()) << what;
    }
  }
  EXPECT_EQ(std::filesystem::file_size(partial + ".target"), 13U) << "a link is not followed";
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

TEST_F(Lock, ALockWhoseDirectoryHasGoneIsTakenAgainUnderTheSameName) {
  const std::string path = lock_path(directory_, "lc0");
  FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
  ASSERT_TRUE(lock.in_place());
  std::filesystem::remove_all(directory_);
  EXPECT_FALSE(lock.in_place());
  EXPECT_FALSE(lock.write({.feed_id = "0123456789abcdef"}).ok());
  EXPECT_FALSE(lock.take_again("lc0", "0123456789abcdef").ok());
  prepare_directory(directory_, "lc0");
  lock.take_again("lc0", "0123456789abcdef").or_throw();
  EXPECT_TRUE(lock.in_place());
  EXPECT_EQ(FeedLock::take(path, "lc0").error().code(), ErrorCode::kBusy);
}

TEST_F(Lock, WhoseNameIsAnothersByNowTouchesNothingOfHis) {
  const std::string path = lock_path(directory_, "lc0");
  FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
  std::filesystem::remove(path);
  {
    FeedLock other = FeedLock::take(path, "lc0").value_or_throw();
    other.write({.supervisor = {4711, 1}}).or_throw();
    const Status refused = lock.take_again("lc0", "x");
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message(), HasSubstr("process 4711"));
    lock.remove();
    EXPECT_TRUE(other.in_place());
    EXPECT_TRUE(std::filesystem::exists(directory_ + "/lc0.state"));
  }
}

TEST_F(Lock, AFeedThatGoesOnUnderTheNameIsNotWrittenOver) {
  const std::string path = lock_path(directory_, "lc0");
  FeedLock lock = FeedLock::take(path, "lc0").value_or_throw();
  std::filesystem::remove(path);
  const process::Identity living{::getpid(), process::start_ticks(::getpid()).value()};
  {
    FeedLock other = FeedLock::take(path, "lc0").value_or_throw();
    other.write({.workers = {{"pool", living}}, .boot = boot_id(), .feed_id = "another"})
        .or_throw();
  }  // its supervisor dies, its worker lives
  EXPECT_THAT(lock.take_again("lc0", "this").error().message(), HasSubstr("another feed 'lc0'"));
  EXPECT_TRUE(lock.take_again("lc0", "another").ok()) << "its own record";
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

TEST_F(Pair, APacketThatIsLookedAtStaysUntilItIsDropped) {
  const shm::Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(send_packet(a_.get(), "first", std::vector<int>(3, null.get())).ok());
  ASSERT_TRUE(send_packet(a_.get(), std::string(1 << 20, 'x')).ok());
  for (int look = 0; look < 2; ++look) {
    const Packet packet = peek_packet(b_.get()).value_or_throw();
    EXPECT_EQ(packet.bytes, "first");
    EXPECT_EQ(packet.fds.size(), 3U);
  }
  drop_packet(b_.get());
  for (int look = 0; look < 2; ++look) {
    EXPECT_EQ(peek_packet(b_.get()).value_or_throw().bytes.size(), 1U << 20);
  }
  drop_packet(b_.get());
  EXPECT_TRUE(peek_packet(b_.get()).value_or_throw().empty);
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

// Clients are connections of this process, or of others where that matters.
class Crowd : public Directory {
 protected:
  Crowd() : path_(socket_path(directory_, "lc0")) { serve({}); }
  ~Crowd() override {
    for (const pid_t pid : children_) {
      careful::kill_one(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  void serve(const ServerLimits& limits, process::DescriptorReserve* reserve = nullptr) {
    server_.reset();
    server_ = std::make_unique<ControlServer>(
        loop_, path_,
        ControlServer::Handlers{
            [this](ConnectionId id, const Request& request) {
              Reply reply;
              reply.set_id(request.id());
              if (request.has_attach()) reply.mutable_attach();
              if (request.has_status()) reply.mutable_status();
              if (request.has_stop()) throw Error(ErrorCode::kIo, "no");
              server_->send(id, reply);
            },
            [](ConnectionId) {},
            [this](std::uint64_t times, const std::string&) { starved_.push_back(times); }},
        reserve, limits);
  }
  shm::Fd connect() {
    shm::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, path_.size());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  // Connected and accepted, or refused.
  shm::Fd silent() {
    shm::Fd socket = connect();
    loop_.run_once(0);
    return socket;
  }
  // A process with so many connections that say nothing; it has them when this returns.
  void process_with(int count) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::vector<shm::Fd> sockets;
      for (int i = 0; i < count; ++i) {
        sockets.push_back(connect());
        (void)!::write(ready[1], "x", 1);
      }
      for (;;) ::pause();
    }
    children_.push_back(pid);
    for (int i = 0; i < count; ++i) {
      char byte = 0;
      ASSERT_EQ(::read(ready[0], &byte, 1), 1);
      loop_.run_once(0);
    }
    ::close(ready[0]);
    ::close(ready[1]);
  }
  Reply ask(const shm::Fd& socket, const Request& request) {
    static_cast<void>(send_packet(socket.get(), request.SerializeAsString()));
    return answer(socket);
  }
  // What the server says there next; an empty one at the end.
  Reply answer(const shm::Fd& socket) {
    Reply reply;
    for (;;) {
      const Packet packet = receive_packet(socket.get()).value_or_throw();
      if (packet.end) return reply;
      if (!packet.empty) {
        reply.ParseFromString(packet.bytes);
        return reply;
      }
      loop_.run_once(10);
    }
  }
  static Request attach_request() {
    Request request;
    request.set_id(1);
    request.mutable_attach();
    return request;
  }
  static Request status_request() {
    Request request;
    request.set_id(1);
    request.mutable_status();
    return request;
  }

  process::EventLoop loop_;
  std::string path_;
  std::vector<std::uint64_t> starved_;
  std::vector<pid_t> children_;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(Crowd, WhoSaysNothingIsToldSoAndDisconnected) {
  serve({.silent_ms = 1});
  const shm::Fd client = silent();
  const Reply said = answer(client);
  EXPECT_EQ(said.error(), Reply::BAD_REQUEST);
  EXPECT_THAT(said.text(), HasSubstr("the supervisor of feed 'lc0' got no request"));
  EXPECT_EQ(answer(client).error(), Reply::NONE) << "the end";
  EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(Crowd, WhoHasAskedMayBeSilent) {
  serve({.silent_ms = 50});
  const shm::Fd client = connect();
  EXPECT_TRUE(ask(client, status_request()).has_status());
  const shm::Fd other = silent();
  EXPECT_EQ(answer(other).error(), Reply::BAD_REQUEST);
  EXPECT_TRUE(ask(client, status_request()).has_status());
}

TEST_F(Crowd, OneProcessHasItsShareAndNoMore) {
  serve({.per_process = 3});
  std::vector<shm::Fd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(silent());
  const shm::Fd refused = connect();
  const Reply said = ask(refused, status_request());
  EXPECT_EQ(said.error(), Reply::FULL);
  EXPECT_THAT(said.text(), AllOf(HasSubstr(fmt::format("process {}", ::getpid())),
                                 HasSubstr("3 connections to feed 'lc0'")));
  process_with(1);
  EXPECT_EQ(server_->connections(), 4U) << "another one has a share of its own";
}

TEST_F(Crowd, SilentConnectionsShutNobodyOut) {
  for (int i = 0; i < 10; ++i) process_with(60);
  EXPECT_EQ(server_->connections(), 512U);
  const shm::Fd operator_ = connect();
  EXPECT_TRUE(ask(operator_, status_request()).has_status());
  const shm::Fd trainer = connect();
  EXPECT_TRUE(ask(trainer, attach_request()).has_attach());
  process_with(60);
  EXPECT_TRUE(ask(trainer, status_request()).has_status()) << "members stay";
}

TEST_F(Crowd, TheLastPlacesAreForOperators) {
  serve({.connections = 8, .reserved = 2, .per_process = 8});
  std::vector<shm::Fd> members;
  for (int i = 0; i < 6; ++i) {
    members.push_back(connect());
    ASSERT_TRUE(ask(members.back(), attach_request()).has_attach());
  }
  const shm::Fd refused = connect();
  const Reply said = ask(refused, attach_request());
  EXPECT_EQ(said.error(), Reply::FULL);
  EXPECT_THAT(said.text(), AllOf(HasSubstr("already serves 7 connections"),
                                 HasSubstr("2 are reserved for status and stop")));
  const shm::Fd operator_ = connect();
  EXPECT_TRUE(ask(operator_, status_request()).has_status());
  for (const shm::Fd& member : members) EXPECT_TRUE(ask(member, status_request()).has_status());
}

TEST_F(Crowd, WhenNobodyGivesWayTheReasonIsSaid) {
  serve({.connections = 3, .reserved = 0, .per_process = 10});
  std::vector<shm::Fd> members;
  for (int i = 0; i < 3; ++i) {
    members.push_back(connect());
    ASSERT_TRUE(ask(members.back(), attach_request()).has_attach());
  }
  const Reply said = ask(connect(), status_request());
  EXPECT_EQ(said.error(), Reply::FULL);
  EXPECT_THAT(said.text(), HasSubstr("already serves 3 connections, which is the maximum"));
}

TEST_F(Crowd, ARefusalReachesAClientThatHasSentItsRequestTooLate) {
  serve({.per_process = 1});
  const shm::Fd first = silent();
  const shm::Fd refused = silent();  // refused and closed before it says anything
  const Reply said = ask(refused, status_request());
  EXPECT_EQ(said.error(), Reply::FULL);
}

TEST_F(Crowd, WhatARequestThrowsIsItsAnswer) {
  const shm::Fd client = connect();
  Request request;
  request.set_id(7);
  request.mutable_stop();
  const Reply said = ask(client, request);
  EXPECT_EQ(said.error(), Reply::INTERNAL);
  EXPECT_EQ(said.id(), 7U);
  EXPECT_TRUE(ask(client, status_request()).has_status());
}

TEST_F(Crowd, ASocketWhoseNameHasGoneIsMadeAgainAndConnectionsStay) {
  const shm::Fd before = connect();
  EXPECT_TRUE(ask(before, status_request()).has_status());
  ASSERT_TRUE(server_->in_place());
  std::filesystem::remove(path_);
  EXPECT_FALSE(server_->in_place());
  server_->listen_again().or_throw();
  EXPECT_TRUE(server_->in_place());
  const shm::Fd after = connect();
  EXPECT_TRUE(ask(after, status_request()).has_status());
  EXPECT_TRUE(ask(before, status_request()).has_status());
  std::filesystem::remove(path_);
  std::ofstream(path_) << "another's";
  server_.reset();
  EXPECT_TRUE(std::filesystem::exists(path_)) << "what is not its own is left";
}

// In a process of its own, whose limit is what it has open.
class Starving : public Crowd {
 protected:
  // Runs `body` there; it returns whether all was well.
  template <typename Body>
  void starve(Body&& body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      process::DescriptorReserve reserve(process::kReserveForRestart + process::kReserveForClients);
      serve({}, &reserve);
      waiting_.push_back(connect());  // made before: this process is the client as well
      waiting_.push_back(connect());
      const int next = ::dup(0);
      ::close(next);
      const rlimit limit{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      ::_exit(body(reserve) && !HasFailure() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  std::vector<shm::Fd> waiting_;
};

TEST_F(Starving, AnOperatorIsAnsweredOnTheReserveAndATrainerIsToldWhy) {
  starve([this](process::DescriptorReserve& reserve) {
    EXPECT_TRUE(ask(waiting_[0], status_request()).has_status());
    EXPECT_LT(reserve.size(), process::kReserveForRestart + process::kReserveForClients);
    const Reply said = ask(waiting_[1], attach_request());
    EXPECT_EQ(said.error(), Reply::FULL);
    EXPECT_THAT(said.text(), HasSubstr("no descriptors left: raise its limit"));
    return true;
  });
}

TEST_F(Starving, AQueueOfClientsCostsNoProcessorTime) {
  starve([this](process::DescriptorReserve& reserve) {
    reserve.give_up(100);
    while (::open("/dev/null", O_RDONLY) >= 0) {
    }
    // Nothing can be accepted, and the queue stays full: rounds pass only when the rest is over.
    for (int i = 0; i < 6; ++i) loop_.run_once(-1);
    EXPECT_GE(starved_.size(), 4U) << "most rounds were a rest that was over";
    return true;
  });
}

TEST(Client, AFeedThatIsNotThereIsNoError) {
  EXPECT_FALSE(ControlClient::connect({"/nonexistent"}, "lc0").has_value());
}

}  // namespace
}  // namespace ringfeed::control
