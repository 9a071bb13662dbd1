// CachedFiles: what it leaves for the processes that fetch, and what it makes of what they leave.
#include "workers/kit/cached_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;

// A cache directory, and a fetcher played by the test.
struct FakeCache {
  FakeCache() {
    for (const char* name : {"objects/s3/b", "wanted", "failed"}) {
      fs::create_directories(root + "/" + name);
    }
    write("ringfeed-cache", "ringfeed cache 2\n");
  }
  // A copy as fetchers leave it.
  void fetch(const std::string& text) const {
    fs::remove_all(path);
    std::ofstream(path) << text;
    const timespec times[2] = {{.tv_sec = 1000, .tv_nsec = 1},
                               {.tv_sec = copy_time_s(text.size(), 7), .tv_nsec = 7}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root + "/" + name) << text;
  }
  [[nodiscard]] std::vector<std::string> wishes() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(root + "/wanted")) {
      all.push_back(entry.path().filename().string().substr(0, 2) +
                    fs::read_symlink(entry.path()).string());
    }
    std::ranges::sort(all);
    return all;
  }
  void fail(const std::string& name, const std::string& reason) const {
    write("failed/" + wish_hash(name), name + "\n" + reason + "\n");
    fs::remove(root + "/wanted/0-" + wish_hash(name));
  }
  TempDir directory;
  std::string root = directory.path("cache");
  std::string path = root + "/objects/s3/b/a.jsonl";
};

TEST(CachedFiles, HashesAsFetchersDo) {
  EXPECT_EQ(wish_hash(""), "cbf29ce484222325");
  EXPECT_EQ(wish_hash("foobar"), "85944171f73967e8");
  EXPECT_EQ(copy_time_s(0, 0), 1489852503);
  EXPECT_EQ(copy_time_s(1ULL << 40, 999'999'999), 1024920791);
}

TEST(CachedFiles, OpensOtherFilesAsEver) {
  const TempDir directory;
  CachedFiles files;
  EXPECT_TRUE(files.open(directory.write("a", "1")));
  for (const std::string& path : {directory.path("b"), directory.path("objects/b")}) {
    const Result<shm::Fd> fd = files.open(path);
    ASSERT_FALSE(fd);
    EXPECT_EQ(fd.error().code(), ErrorCode::kNotFound);
    files.ask_ahead(path);
  }
}

TEST(CachedFiles, WishForWhatIsNotThereUntilItComes) {
  FakeCache cache;
  CachedFiles files;
  for (int i = 0; i < 3; ++i) {
    const Result<shm::Fd> fd = files.open(cache.path);
    ASSERT_FALSE(fd);
    EXPECT_EQ(fd.error().code(), ErrorCode::kBusy);
    EXPECT_THAT(cache.wishes(), ElementsAre("0-s3/b/a.jsonl"));
  }
  cache.fetch("{}\n");
  EXPECT_TRUE(files.open(cache.path, CachedFiles::Wish::kKeep));
  EXPECT_THAT(cache.wishes(), ElementsAre("0-s3/b/a.jsonl")) << "it must stay for who reads it";
  EXPECT_TRUE(files.open(cache.path));
  EXPECT_THAT(cache.wishes(), IsEmpty());
}

TEST(CachedFiles, SayWhyWhatIsNotThereDoesNotCome) {
  FakeCache cache;
  // Told to somebody else, some time ago: whoever asks now wants to know it as it is now.
  cache.fail("s3/b/a.jsonl", "an old story");
  CachedFiles files;
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  cache.fail("s3/b/a.jsonl", "s3://b/a.jsonl: the store answers 404");
  const Result<shm::Fd> fd = files.open(cache.path);
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(fd.error().message(), "s3://b/a.jsonl: the store answers 404");
  // The next epoch asks anew.
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  EXPECT_THAT(cache.wishes(), ElementsAre("0-s3/b/a.jsonl"));
}

TEST(CachedFiles, AskAheadForWhatComesNext) {
  FakeCache cache;
  CachedFiles files;
  files.ask_ahead(cache.path);
  files.ask_ahead(cache.path);
  EXPECT_THAT(cache.wishes(), ElementsAre("1-s3/b/a.jsonl"));
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  EXPECT_THAT(cache.wishes(), ElementsAre("0-s3/b/a.jsonl", "1-s3/b/a.jsonl"));
  cache.fetch("");
  EXPECT_TRUE(files.open(cache.path));
  EXPECT_THAT(cache.wishes(), IsEmpty());
}

TEST(CachedFiles, SetTheTimeOfTheLastUseAndNoOther) {
  FakeCache cache;
  cache.fetch("1");
  CachedFiles files;
  ASSERT_TRUE(files.open(cache.path));
  struct stat info {};
  ASSERT_EQ(::stat(cache.path.c_str(), &info), 0);
  EXPECT_GT(info.st_atim.tv_sec, 1000);
  EXPECT_EQ(info.st_mtim.tv_sec, copy_time_s(1, 7)) << "it says which version the copy is";
  EXPECT_EQ(info.st_mtim.tv_nsec, 7);
}

// Whoever removes a copy holds a lease on it that nobody else may have it open.
TEST(CachedFiles, WaitForWhoIsRemovingIt) {
  FakeCache cache;
  cache.fetch("1");
  const shm::Fd evictor(::open(cache.path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(evictor);
  ::fcntl(evictor.get(), F_SETSIG, SIGURG);
  if (::fcntl(evictor.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "no leases here";
  CachedFiles files;
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  ASSERT_EQ(::fcntl(evictor.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_TRUE(files.open(cache.path));
  // And the other way round: what is open here cannot have such a lease.
  const Result<shm::Fd> reader = files.open(cache.path);
  EXPECT_NE(::fcntl(evictor.get(), F_SETLEASE, F_WRLCK), 0);
}

// What somebody has done to a copy since it was fetched, each of them to a whole one.
TEST(CachedFiles, WishForWhatIsNotAsItWasFetched) {
  FakeCache cache;
  const std::string other = cache.directory.write("other", "1234");
  struct Damage {
    const char* what;
    std::function<void()> make;
  };
  const std::vector<Damage> damages = {
      {"cut", [&] { fs::resize_file(cache.path, 2); }},
      {"emptied", [&] { fs::resize_file(cache.path, 0); }},
      {"grown", [&] { std::ofstream(cache.path, std::ios::app) << "5"; }},
      {"written to", [&] { std::ofstream(cache.path, std::ios::in) << "x"; }},
      {"replaced by a directory",
       [&] {
         fs::remove(cache.path);
         fs::create_directory(cache.path);
       }},
      {"replaced by a FIFO",
       [&] {
         fs::remove(cache.path);
         ASSERT_EQ(::mkfifo(cache.path.c_str(), 0600), 0);
       }},
      {"replaced by a link",
       [&] {
         fs::remove(cache.path);
         fs::create_symlink(other, cache.path);
       }},
      {"replaced by a link to nothing",
       [&] {
         fs::remove(cache.path);
         fs::create_symlink("nothing", cache.path);
       }},
  };
  for (const Damage& damage : damages) {
    cache.fetch("1234");
    CachedFiles files;
    ASSERT_TRUE(files.open(cache.path)) << damage.what;
    damage.make();
    EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy) << damage.what;
    EXPECT_THAT(cache.wishes(), ElementsAre("0-s3/b/a.jsonl")) << damage.what;
    cache.fetch("1234");
    EXPECT_TRUE(files.open(cache.path)) << damage.what;
  }
}

TEST(CachedFiles, TakeCopiesOfTheLayoutBeforeAsTheyAre) {
  FakeCache cache;
  cache.write("ringfeed-cache", "ringfeed cache 1\n");
  cache.write("objects/s3/b/a.jsonl", "1");
  EXPECT_TRUE(CachedFiles().open(cache.path));
}

TEST(CachedFiles, WaitForNobodyWhereAFileIsAFifo) {
  FakeCache cache;
  CachedFiles files;
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  ASSERT_EQ(::mkfifo((cache.root + "/failed/" + wish_hash("s3/b/a.jsonl")).c_str(), 0600), 0);
  EXPECT_EQ(files.open(cache.path).error().code(), ErrorCode::kBusy);
  fs::remove(cache.root + "/ringfeed-cache");
  ASSERT_EQ(::mkfifo((cache.root + "/ringfeed-cache").c_str(), 0600), 0);
  EXPECT_EQ(CachedFiles().open(cache.path).error().code(), ErrorCode::kNotFound);
}

TEST(CachedFiles, SayWhatIsWrongWithACacheThatCannotBeAsked) {
  FakeCache cache;
  fs::remove_all(cache.root + "/wanted");
  CachedFiles files;
  const Result<shm::Fd> fd = files.open(cache.path);
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(fd.error().message(), HasSubstr("cannot be wished for: No such file"));
}

}  // namespace
}  // namespace ringfeed
