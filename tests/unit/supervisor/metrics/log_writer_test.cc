// Specification of supervisor/metrics/log_writer.h: whoever logs goes on, whatever becomes of the
// lines.
#include "supervisor/metrics/log_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "ringfeed/shm/result.h"

namespace ringfeed::metrics {
namespace {

using ::testing::HasSubstr;

class Log : public ::testing::Test {
 protected:
  Log() {
    std::string pattern = ::testing::TempDir() + "rf_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/log";
  }
  ~Log() override { std::filesystem::remove_all(directory_); }

  static std::string own_line(std::string_view event, const std::string& values) {
    return fmt::format("{} {}\n", event, values);
  }
  static std::string contents(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string directory_;
  std::string path_;
};

// A pipe with a reader that does not read.
class Pipe : public Log {
 protected:
  Pipe() {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    reader_ = shm::Fd(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  // Reads what is there.
  void read() {
    std::array<char, 65536> bytes;
    for (ssize_t n = 0; (n = ::read(reader_.get(), bytes.data(), bytes.size())) > 0;) {
      said_.append(bytes.data(), static_cast<std::size_t>(n));
    }
  }
  shm::Fd reader_;
  std::string said_;
};

TEST_F(Log, ALineIsThereWhenTheCallReturns) {
  LogWriter writer({.file = path_}, own_line);
  for (int i = 0; i < 100; ++i) {
    writer.write(fmt::format("line {}\n", i), true);
    ASSERT_THAT(contents(path_), HasSubstr(fmt::format("line {}\n", i)));
  }
  EXPECT_EQ(writer.problem(), "");
}

TEST_F(Log, LinesAreAppendedToWhatIsThere) {
  std::ofstream(path_) << "before\n";
  { LogWriter({.file = path_}, own_line).write("now\n", false); }
  EXPECT_EQ(contents(path_), "before\nnow\n");
}

TEST_F(Pipe, OneThatNobodyReadsIsRefusedAtOnce) {
  {
    const LogWriter writer({.file = path_}, own_line);  // somebody does
  }
  reader_.reset();
  try {
    const LogWriter writer({.file = path_}, own_line);
    FAIL() << "a FIFO without a reader was opened";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("a FIFO that nobody reads"));
  }
}

TEST_F(Log, AFifoThatNobodyReadsIsNotWaitedForWhenTheFileIsOpenedAnew) {
  LogWriter writer({.file = path_}, own_line);
  std::filesystem::rename(path_, path_ + ".1");
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  writer.reopen();
  writer.write("after\n", true);
  while (contents(path_ + ".1").empty()) ::usleep(1000);
  EXPECT_EQ(contents(path_ + ".1"), "after\n");
  EXPECT_THAT(writer.problem(), HasSubstr("a FIFO that nobody reads"));
}

TEST_F(Pipe, NobodyWaitsForAReaderAndEveryLineIsThereOrCounted) {
  LogWriter writer({.file = path_}, own_line);
  const std::string filler(200, '.');
  constexpr std::uint64_t kLines = 20'000;  // three times what pipe and queue hold
  for (std::uint64_t i = 0; i < kLines; ++i) {
    writer.write(fmt::format("line {} {}\n", i, filler), i % 7 == 0);
  }
  EXPECT_THAT(writer.problem(), HasSubstr("nobody reads them"));
  // Somebody reads again: what waited comes in order, and then how much is missing.
  while (!writer.problem().empty()) {
    read();
    writer.write("again\n", true);
  }
  read();
  std::uint64_t lines = 0;
  std::uint64_t agains = 0;
  std::uint64_t lost = 0;
  std::int64_t last = -1;
  std::istringstream in(said_);
  for (std::string line; std::getline(in, line);) {
    long long number = 0;
    unsigned long long count = 0;
    if (std::sscanf(line.c_str(), "line %lld", &number) == 1) {
      EXPECT_GT(number, last);
      EXPECT_EQ(line, fmt::format("line {} {}", number, filler)) << "whole";
      last = number;
      ++lines;
    } else if (std::sscanf(line.c_str(), "log_lines_lost lines=%llu", &count) == 1) {
      lost += count;
    } else {
      EXPECT_EQ(line, "again");
      ++agains;
    }
  }
  EXPECT_GE(agains, 1U);
  EXPECT_GE(lost, kLines - lines);
  EXPECT_GT(lines, 4000U) << "a mebibyte waits for a reader";
}

TEST_F(Pipe, AnEndWithoutAReaderIsAnEnd) {
  LogWriter writer({.file = path_}, own_line);
  const std::string filler(1000, '.');
  for (int i = 0; i < 200; ++i) writer.write(filler + "\n", false);
}  // not read, and destroyed: a test that hangs has failed

TEST_F(Pipe, AReaderThatIsGoneCostsLinesAndNoMore) {
  LogWriter writer({.file = path_}, own_line);
  writer.write("one\n", true);
  reader_.reset();
  for (int i = 0; i < 10; ++i) writer.write("lost\n", true);
  EXPECT_THAT(writer.problem(), HasSubstr("10 were lost (Broken pipe)"));
}

TEST_F(Log, AFullDiskIsWaitedOutAndTheLossIsToldWithTheCause) {
  std::filesystem::create_symlink("/dev/full", path_);
  LogWriter writer({.file = path_}, own_line);
  for (int i = 0; i < 5; ++i) writer.write("lost\n", true);
  EXPECT_THAT(writer.problem(), HasSubstr("5 were lost (No space left on device)"));
  std::filesystem::remove(path_);
  writer.reopen();  // there is room again
  writer.write("kept\n", true);
  EXPECT_EQ(contents(path_), "log_lines_lost lines=5 reason=\"No space left on device\"\nkept\n");
  EXPECT_EQ(writer.problem(), "");
}

TEST_F(Log, AFileThatWasMovedAwayIsFollowedByAnother) {
  LogWriter writer({.file = path_}, own_line);
  writer.write("old\n", false);
  std::filesystem::rename(path_, path_ + ".1");
  writer.write("still old\n", false);
  writer.reopen();
  writer.write("new\n", true);
  EXPECT_EQ(contents(path_ + ".1"), "old\nstill old\n");
  EXPECT_EQ(contents(path_), "new\n");
}

TEST_F(Log, AFileThatCannotBeOpenedAnewStays) {
  LogWriter writer({.file = path_}, own_line);
  std::filesystem::rename(path_, path_ + ".1");
  std::filesystem::create_directory(path_);
  writer.reopen();
  writer.write("kept\n", true);
  EXPECT_EQ(contents(path_ + ".1"), "kept\n");
  EXPECT_THAT(writer.problem(), HasSubstr("cannot be reopened: Is a directory"));
}

// Every line is in exactly one of the files, whole and in order: newest in FILE.
TEST_F(Log, AFileThatHasItsSizeIsRenamedBetweenTwoLines) {
  constexpr int kLines = 500;
  {
    LogWriter writer({.file = path_, .rotate_bytes = 4096, .rotate_keep = 100}, own_line);
    for (int i = 0; i < kLines; ++i) writer.write(fmt::format("line {:04}\n", i), i % 50 == 0);
  }
  std::string all;
  int files = 0;
  for (int i = 100; i >= 0; --i) {
    const std::string name = i == 0 ? path_ : fmt::format("{}.{}", path_, i);
    const std::string text = contents(name);
    if (text.empty()) continue;
    ++files;
    EXPECT_LE(text.size(), 4096U) << name;
    all += text;
  }
  std::string expected;
  for (int i = 0; i < kLines; ++i) expected += fmt::format("line {:04}\n", i);
  EXPECT_EQ(all, expected);
  EXPECT_EQ(files, 2) << "5,000 bytes";
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(Log, OnlyTheNewestFilesAreKept) {
  LogWriter writer({.file = path_, .rotate_bytes = 100, .rotate_keep = 2}, own_line);
  for (int i = 0; i < 10; ++i) writer.write(fmt::format("{} {}\n", i, std::string(60, '.')), true);
  EXPECT_EQ(contents(path_)[0], '9');
  EXPECT_EQ(contents(path_ + ".1")[0], '8');
  EXPECT_EQ(contents(path_ + ".2")[0], '7');
  EXPECT_FALSE(std::filesystem::exists(path_ + ".3"));
  EXPECT_EQ(writer.problem(), "");
}

TEST_F(Log, ALineLargerThanAFileGetsOneOfItsOwn) {
  LogWriter writer({.file = path_, .rotate_bytes = 100, .rotate_keep = 9}, own_line);
  const std::string large(1000, '.');
  writer.write("small\n", true);
  writer.write(large + "\n", true);
  writer.write("after\n", true);
  EXPECT_EQ(contents(path_), "after\n");
  EXPECT_EQ(contents(path_ + ".1"), large + "\n");
  EXPECT_EQ(contents(path_ + ".2"), "small\n");
}

TEST_F(Log, WhatCannotBeRenamedIsSaidAndNoLineIsLost) {
  std::filesystem::create_directory(path_ + ".new");  // the next file cannot be made
  LogWriter writer({.file = path_, .rotate_bytes = 100, .rotate_keep = 2}, own_line);
  const std::string line(60, '.');
  for (int i = 0; i < 5; ++i) writer.write(fmt::format("{} {}\n", i, line), true);
  EXPECT_THAT(writer.problem(), HasSubstr("cannot be rotated (1 try)"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(contents(path_), HasSubstr(fmt::format("{} {}\n", i, line)));
  }
  EXPECT_THAT(contents(path_), HasSubstr("log_rotation_failed count=1"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".1"));
  // As soon as it can be, it is.
  std::filesystem::remove(path_ + ".new");
  while (!writer.problem().empty()) writer.write("more\n", true);
  EXPECT_THAT(contents(path_ + ".1"), HasSubstr("4 " + line));
  EXPECT_THAT(contents(path_), HasSubstr("more"));
}

TEST_F(Log, AFileThatSomebodyElseHasMovedIsNotRenamedAgain) {
  LogWriter writer({.file = path_, .rotate_bytes = 100, .rotate_keep = 2}, own_line);
  writer.write(std::string(90, '.') + "\n", true);
  std::filesystem::rename(path_, path_ + ".moved");
  std::ofstream(path_) << "theirs\n";
  writer.write("mine, which is long enough\n", true);
  EXPECT_EQ(contents(path_), "theirs\nmine, which is long enough\n");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".1"));
}

TEST_F(Log, WhoeverMayReadTheOldFileMayReadTheNewOne) {
  LogWriter writer({.file = path_, .rotate_bytes = 100, .rotate_keep = 2}, own_line);
  writer.write(std::string(90, '.') + "\n", true);
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  writer.write(std::string(90, '.') + "\n", true);
  ASSERT_TRUE(std::filesystem::exists(path_ + ".1"));
  struct stat found {};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0640U);
}

TEST_F(Pipe, AFifoIsNeverRenamed) {
  LogWriter writer({.file = path_, .rotate_bytes = 10, .rotate_keep = 2}, own_line);
  for (int i = 0; i < 10; ++i) writer.write("a line that is longer\n", true);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".1"));
  EXPECT_EQ(writer.problem(), "");
}

TEST_F(Log, AFileThatCannotBeOpenedIsAnErrorAtTheStart) {
  EXPECT_THROW(LogWriter({.file = directory_ + "/nowhere/log"}, own_line), Error);
}

}  // namespace
}  // namespace ringfeed::metrics
