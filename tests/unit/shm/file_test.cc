// The specification of ringfeed/shm/file.h.
#include "ringfeed/shm/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ringfeed::shm
