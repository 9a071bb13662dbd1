// The specification of ringfeed/shm/file.h.
#include "ringfeed/shm/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ringfeed::shm {
namespace {

using ::testing::HasSubstr;

TEST(ReadFile, GivesAllOfIt) {
  const std::string path = ::testing::TempDir() + "rf_read_file";
  std::string text(10'000, 'x');
  text[4096] = '\0';
  for (const std::string& content : {text, std::string("short"), std::string()}) {
    std::ofstream(path, std::ios::binary) << content;
    const Result<std::string> read = read_file(path);
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, content);
  }
  std::filesystem::remove(path);
}

TEST(ReadFile, SaysWhyItCannot) {
  const Result<std::string> missing = read_file("/nowhere/at/all");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("/nowhere/at/all: No such file"));
  // They can be opened; reading is what fails, as of a process that has ended since.
  for (const char* path : {"/", "/proc/self/mem"}) {
    const Result<std::string> unreadable = read_file(path);
    ASSERT_FALSE(unreadable) << path;
    EXPECT_EQ(unreadable.error().code(), ErrorCode::kIo) << path;
  }
}

// A FIFO that nobody writes to is refused at once: whoever opened it would wait for ever.
TEST(OpenRegular, TakesNothingButARegularFile) {
  const std::string path = ::testing::TempDir() + "rf_open_regular";
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Result<Fd> fifo = open_regular(path);
  ASSERT_FALSE(fifo);
  EXPECT_EQ(fifo.error().code(), ErrorCode::kIo);
  EXPECT_THAT(fifo.error().message(), HasSubstr("a FIFO"));
  EXPECT_THAT(read_regular_file(path).error().message(), HasSubstr(path + ": it is a FIFO"));
  std::filesystem::remove(path);
  EXPECT_EQ(open_regular(path).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(open_regular("/etc/passwd/below").error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(open_regular("/").error().message(), HasSubstr("a directory"));
  EXPECT_THAT(open_regular("/dev/null").error().message(), HasSubstr("a device"));
  std::ofstream(path, std::ios::binary) << "data";
  ASSERT_TRUE(open_regular(path));
  EXPECT_EQ(read_regular_file(path).value_or_throw(), "data");
  std::filesystem::remove(path);
}

// Its size says nothing: it never ends.
TEST(ReadFile, RefusesWhatHasNoEnd) {
  const Result<std::string> endless = read_file("/dev/zero", 10'000);
  ASSERT_FALSE(endless);
  EXPECT_EQ(endless.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(endless.error().message(), HasSubstr("/dev/zero: has more than 10000 bytes"));
}

TEST(ReadFile, TakesAsManyBytesAsAreAllowed) {
  const std::string path = ::testing::TempDir() + "rf_read_file_max";
  std::ofstream(path, std::ios::binary) << std::string(10'000, 'x');
  EXPECT_TRUE(read_file(path, 10'000));
  EXPECT_FALSE(read_file(path, 9'999));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ringfeed::shm
