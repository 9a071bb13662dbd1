// Specification of supervisor/os/journal.h, over a socket that stands for journald's.
#include "supervisor/os/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>

#include "supervisor/metrics/log_writer.h"

namespace ringfeed::process {
namespace {

using ::testing::HasSubstr;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() {
    std::string pattern = ::testing::TempDir() + "rf_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/socket";
    listen();
  }
  ~JournalTest() override { std::filesystem::remove_all(directory_); }
  void listen() {
    ::unlink(path_.c_str());
    there_ = shm::Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(there_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  // The next entry, "" if there is none; what came as a file is read, and must be sealed.
  std::string next() {
    std::string bytes(1 << 20, '\0');
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, 256> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(there_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0) return {};
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr) return bytes.substr(0, static_cast<std::size_t>(got));
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    const shm::Fd file(fd);
    EXPECT_NE(::fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE, 0);
    struct stat info {};
    EXPECT_EQ(::fstat(fd, &info), 0);
    std::string text(static_cast<std::size_t>(info.st_size), '\0');
    EXPECT_EQ(::pread(fd, text.data(), text.size(), 0), info.st_size);
    return text;
  }
  std::string directory_;
  std::string path_;
  shm::Fd there_;
};

TEST_F(JournalTest, AnEntryIsADatagram) {
  Journal journal(path_);
  ASSERT_TRUE(journal.send("MESSAGE=one\n"));
  ASSERT_TRUE(journal.send("MESSAGE=two\n"));
  EXPECT_EQ(next(), "MESSAGE=one\n");
  EXPECT_EQ(next(), "MESSAGE=two\n");
}

TEST_F(JournalTest, ALargeOneIsASealedFile) {
  Journal journal(path_);
  const std::string large = "MESSAGE=" + std::string(4 << 20, 'x') + "\n";
  ASSERT_TRUE(journal.send(large));
  EXPECT_EQ(next(), large);
}

TEST_F(JournalTest, OneThatIsRestartedIsFound) {
  Journal journal(path_);
  ASSERT_TRUE(journal.send("MESSAGE=one\n"));
  there_.reset();
  const Status sent = journal.send("MESSAGE=lost\n");
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().message(), "Connection refused");
  listen();
  ASSERT_TRUE(journal.send("MESSAGE=two\n"));
  EXPECT_EQ(next(), "MESSAGE=two\n");
}

TEST_F(JournalTest, WhatItDidNotTakeIsCountedAndToldLater) {
  metrics::LogWriter writer({.journal = path_},
                            [](std::string_view event, const std::string& values) {
                              return fmt::format("MESSAGE={} {}\n", event, values);
                            });
  writer.write("MESSAGE=one\nPRIORITY=6\n", true);
  EXPECT_EQ(next(), "MESSAGE=one\nPRIORITY=6\n");
  there_.reset();
  for (int i = 0; i < 3; ++i) writer.write("MESSAGE=lost\nPRIORITY=6\n", true);
  EXPECT_THAT(writer.problem(),
              HasSubstr("the journal accepts no lines: 3 were lost (Connection refused)"));
  listen();
  writer.write("MESSAGE=two\nPRIORITY=6\n", true);
  EXPECT_EQ(next(), "MESSAGE=log_lines_lost lines=3 reason=\"Connection refused\"\n");
  EXPECT_EQ(next(), "MESSAGE=two\nPRIORITY=6\n");
  EXPECT_EQ(writer.problem(), "");
}

// $JOURNAL_STREAM is DEVICE:INODE of standard error, as long as nobody has redirected it.
TEST_F(JournalTest, StandardErrorIsTheJournalIfItIsWhatSystemdMadeIt) {
  struct stat here {};
  ASSERT_EQ(::fstat(STDERR_FILENO, &here), 0);
  ::unsetenv("JOURNAL_STREAM");
  EXPECT_FALSE(stderr_is_journal());
  ::setenv("JOURNAL_STREAM", fmt::format("{}:{}", here.st_dev, here.st_ino).c_str(), 1);
  EXPECT_TRUE(stderr_is_journal());
  for (const std::string& other :
       {fmt::format("{}:{}", here.st_dev, here.st_ino + 1), std::string("x"), std::string()}) {
    ::setenv("JOURNAL_STREAM", other.c_str(), 1);
    EXPECT_FALSE(stderr_is_journal()) << other;
  }
  ::unsetenv("JOURNAL_STREAM");
}

}  // namespace
}  // namespace ringfeed::process
