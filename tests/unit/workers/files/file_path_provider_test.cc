// The specification of workers/files/file_path_provider.h, on real directories.
#include "workers/files/file_path_provider.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/support/rig/stage_data.h"
#include "workers/files/find_files.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
namespace fs = std::filesystem;

struct Provider {
  explicit Provider(const std::string& directory, bool finite = false, std::uint64_t capacity = 64)
      : rig(finite ? "epochs: 1" : "") {
    rig.add_stage(
        fmt::format("name: 'provider' file_path_provider {{ directory: '{}' queue_capacity: {} }}",
                    directory, capacity));
    rig.add_sink("out", "provider");
    rig.build();
  }
  // Paths as they came, the marker as "(complete)".
  [[nodiscard]] std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const RigRecord& record : rig.got("out")) {
      all.push_back(record.user == kScanCompleteRecord ? "(complete)" : record.bytes);
    }
    return all;
  }
  // Goes on until so many records have come, then until it is idle.
  [[nodiscard]] bool wait_for(std::size_t records) {
    return rig.run_until([&] { return rig.got("out").size() >= records; }) && (rig.run(), true);
  }
  void finish() {
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  LaneRig rig;
};

// ---- patterns and lists

// What is found with these settings by those who only look.
FilesFound looked_for(const std::string& settings, std::size_t most = 1000) {
  FilePathProviderConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(settings, &config));
  return file_finder(config).find(most, std::chrono::steady_clock::time_point::max());
}

// What a finite run finds with these settings; those who only look find the same.
std::vector<std::string> found_by(const std::string& settings, std::uint64_t* unreadable = nullptr,
                                  std::vector<std::string>* said = nullptr) {
  LaneRig rig("epochs: 1");
  rig.add_stage("name: 'provider' file_path_provider { " + settings + " }");
  rig.add_sink("out", "provider");
  rig.build();
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  if (unreadable != nullptr) *unreadable = rig.counter("provider", "files_unreadable");
  if (said != nullptr) *said = rig.log();
  std::vector<std::string> all;
  for (const RigRecord& record : rig.got("out")) {
    if (record.user != kScanCompleteRecord) all.push_back(fs::path(record.bytes).filename());
  }
  std::vector<std::string> looked;
  for (const std::string& path : looked_for(settings).paths) {
    looked.push_back(fs::path(path).filename());
  }
  EXPECT_EQ(looked, all);
  return all;
}

TEST(FilePathProvider, FindsWhatThePatternsSay) {
  const TempDir directory;
  for (const char* name : {"a.txt", "b.gz", "d/a.txt", "d/c.txt.gz", "d/e/f.txt", "x-07.tar"}) {
    fs::create_directories(fs::path(directory.path() + "/" + name).parent_path());
    directory.write(name, "x");
  }
  const std::string at = "'" + directory.path() + "'";
  EXPECT_THAT(found_by("directory: " + at + " pattern: '*.txt'"), ElementsAre("a.txt"));
  EXPECT_THAT(found_by("directory: " + at + " pattern: '**/*.{txt,gz}'"),
              ElementsAre("a.txt", "b.gz", "a.txt", "c.txt.gz", "f.txt"));
  EXPECT_THAT(found_by("pattern: '" + directory.path() + "/d/**/f.*'"), ElementsAre("f.txt"));
  EXPECT_THAT(found_by("directory: " + at + " pattern: 'x-{00..09}.tar' pattern: 'd/*'"),
              ElementsAre("x-07.tar", "a.txt", "c.txt.gz"));
}

TEST(FilePathProvider, TakesTheFilesOfAListInItsOrder) {
  const TempDir directory;
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) directory.write(name, "x");
  const std::string list = directory.write("list", "c.txt\na.txt\nnone.txt\n");
  std::uint64_t unreadable = 0;
  EXPECT_THAT(found_by("list: '" + list + "'", &unreadable), ElementsAre("c.txt", "a.txt"));
  EXPECT_EQ(unreadable, 1U);
  const std::string mixed = directory.write("mixed", "a.txt\ns3://bucket/b.txt\n");
  std::vector<std::string> said;
  EXPECT_THAT(found_by("list: '" + mixed + "'", &unreadable, &said), ElementsAre("a.txt"));
  EXPECT_EQ(unreadable, 1U);
  EXPECT_THAT(said,
              Contains(HasSubstr("s3://bucket/b.txt: a list of this host may not name URLs")));
  EXPECT_THAT(found_by("list: '" + list + "' pattern: '" + directory.path() + "/*.txt'"),
              ElementsAre("c.txt", "a.txt", "b.txt"));
  EXPECT_THAT(found_by("list: '" + directory.path() + "/none'", &unreadable), IsEmpty());
  EXPECT_EQ(unreadable, 1U);
}

TEST(FindFiles, FindsWhatARunFinds) {
  const TempDir directory;
  const std::string at = directory.path();
  for (const char* name : {"b/2", "b/1", "a", "c/d/x", ".hidden/x", "c/.x"}) {
    fs::create_directories(fs::path(at + "/" + name).parent_path());
    directory.write(name, "x");
  }
  fs::create_directory_symlink("..", at + "/c/up");
  fs::create_symlink("../a", at + "/c/link");
  fs::create_symlink("nothing", at + "/c/dangling");
  ASSERT_EQ(::mkfifo((at + "/pipe").c_str(), 0600), 0);
  const std::string settings = "directory: '" + at + "'";
  EXPECT_THAT(found_by(settings), ElementsAre("a", "1", "2", "link", "x"));
  EXPECT_THAT(looked_for(settings).unreadable,
              ElementsAre(std::pair(at + "/c/dangling", std::string("it is a link to nothing"))));
  EXPECT_TRUE(looked_for(settings).whole);
  EXPECT_FALSE(looked_for(settings, 3).whole);
  EXPECT_THAT(looked_for(settings, 3).paths, SizeIs(3));
}

TEST(FindFiles, SaysWhyThereIsNothing) {
  const TempDir directory;
  directory.write("a.txt", "x");
  const std::string list = directory.write("list", "none\ns3://bucket/b\n");
  const std::string at = "directory: '" + directory.path() + "' ";
  EXPECT_EQ(looked_for(at + "pattern: '*.tar'").nothing,
            "none of the files there (2) matches pattern \"*.tar\"");
  EXPECT_THAT(looked_for(at + "pattern: '*.tar' pattern: '*.gz'").nothing,
              HasSubstr("matches any of 2 patterns (\"*.tar\" and others)"));
  EXPECT_THAT(looked_for("list: '" + list + "'").nothing, HasSubstr("names no file"));
  EXPECT_THAT(looked_for("list: '" + list + "'").unreadable, SizeIs(2));
  EXPECT_EQ(looked_for(at).nothing, "");
  EXPECT_EQ(looked_for("directory: '/none/there' pattern: '*'").nothing, "");
}

TEST(FilePathProvider, AnEndlessRunTakesWhatThePatternsSay) {
  const TempDir directory;
  LaneRig rig("");
  rig.add_stage("name: 'provider' file_path_provider { pattern: '" + directory.path() +
                "/**/*.txt' }");
  rig.add_sink("out", "provider");
  rig.build();
  rig.run();
  fs::create_directories(directory.path() + "/d");
  rig.run();
  directory.write("d/a.gz", "x");
  directory.write("d/a.txt", "x");
  directory.write("b.txt", "x");
  EXPECT_TRUE(rig.run_until([&] { return rig.got("out").size() == 3; }));
  rig.run();
  std::vector<std::string> names;
  for (const RigRecord& record : rig.got("out")) names.push_back(fs::path(record.bytes).filename());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("", "a.txt", "b.txt"));
}

// ---- the scan

TEST(ProviderScan, GivesFilesInOrderOfNamesAndThenTheMarker) {
  TempDir directory;
  for (const char* name : {"b.gz", "a.gz", "sub/x.tar", "sub/deeper/y.gz", "z.gz", "other/c.gz"}) {
    directory.write(name, "x");
  }
  Provider provider(directory.path(), true);
  provider.finish();
  EXPECT_THAT(provider.paths(),
              ElementsAre(directory.path("a.gz"), directory.path("b.gz"), directory.path("z.gz"),
                          directory.path("other/c.gz"), directory.path("sub/x.tar"),
                          directory.path("sub/deeper/y.gz"), "(complete)"));
  EXPECT_EQ(provider.rig.counter("provider", "files_found"), 6U);
}

TEST(ProviderScan, GivesOnlyTheMarkerForAnEmptyDirectory) {
  TempDir directory;
  Provider provider(directory.path() + "//", true);
  provider.finish();
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)"));
}

TEST(ProviderScan, LeavesOutHiddenNamesAndWhatIsNotAFile) {
  TempDir directory;
  for (const char* name : {".hidden.gz", ".folder/a.gz", "sub/.b.gz", "sub/c.gz"}) {
    directory.write(name, "x");
  }
  ASSERT_EQ(::mkfifo(directory.path("pipe.gz").c_str(), 0600), 0);
  fs::create_symlink(directory.path("nowhere"), directory.path("dangling.gz"));
  Provider provider(directory.path(), true);
  provider.finish();
  EXPECT_THAT(provider.paths(), ElementsAre(directory.path("sub/c.gz"), "(complete)"));
}

TEST(ProviderScan, SaysHowManyFilesItHasFoundSoFar) {
  TempDir directory;
  for (int i = 0; i < 1'500; ++i) directory.write(fmt::format("{:04}.gz", i), "x");
  // Complained of in the middle of the scan: directories come after files.
  fs::create_directory(directory.path("sub"));
  fs::create_symlink(directory.path("nowhere"), directory.path("sub/dangling.gz"));
  Provider provider(directory.path(), true, 2'048);
  std::vector<std::string> notes;
  provider.rig.on_log([&](std::string_view) { notes.push_back(provider.rig.note("provider")); });
  provider.finish();
  EXPECT_THAT(notes, ElementsAre(directory.path() + ": 1000 files so far"));
  EXPECT_EQ(provider.rig.note("provider"), directory.path() + ": 1500 files");
}

TEST(ProviderScan, FollowsLinksOnceAndIsNotCaughtInACycle) {
  TempDir directory;
  TempDir elsewhere;
  elsewhere.write("far.gz", "x");
  directory.write("near.gz", "x");
  fs::create_directory_symlink(elsewhere.path(), directory.path("link"));
  fs::create_directory_symlink(directory.path(), elsewhere.path("back"));
  Provider provider(directory.path(), true);
  provider.finish();
  EXPECT_THAT(provider.paths(),
              ElementsAre(directory.path("near.gz"), directory.path("link/far.gz"), "(complete)"));
}

TEST(ProviderScan, WaitsForRoomAndLosesNothing) {
  TempDir directory;
  for (int i = 0; i < 50; ++i) directory.write(fmt::format("{:02}", i), "x");
  Provider provider(directory.path(), true, 2);
  provider.rig.allow("out", 10);
  provider.rig.run();
  EXPECT_THAT(provider.paths(), SizeIs(10));
  provider.rig.allow("out", 100);
  provider.finish();
  EXPECT_THAT(provider.paths(), SizeIs(51));
}

// ---- what cannot be read

TEST(ProviderMissing, EndsAFiniteRunAndSaysSo) {
  TempDir directory;
  Provider provider(directory.path("absent"), true);
  provider.finish();
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)"));
  EXPECT_THAT(provider.rig.log("directory_missing"), Contains(HasSubstr("absent")));
  EXPECT_THAT(provider.rig.note("provider"), HasSubstr("0 files"));
}

TEST(ProviderMissing, IsWaitedForInAnEndlessRun) {
  TempDir directory;
  Provider provider(directory.path("late"));
  provider.rig.run();
  EXPECT_THAT(provider.paths(), IsEmpty()) << "nothing has been scanned yet";
  EXPECT_THAT(provider.rig.note("provider"), HasSubstr("no such directory"));
  directory.write("late/a.gz", "x");
  ASSERT_TRUE(provider.wait_for(2));
  EXPECT_THAT(provider.paths(), ElementsAre(directory.path("late/a.gz"), "(complete)"));
  EXPECT_THAT(provider.rig.log("directory_missing"), SizeIs(1)) << "said once";
}

TEST(ProviderUnreadable, IsCountedAndTheRestIsFound) {
  TempDir directory;
  directory.write("open/a.gz", "x");
  directory.write("shut/b.gz", "x");
  fs::permissions(directory.path("shut"), fs::perms::none);
  // root reads everything; with another identity for files this thread does not.
  const int before = ::setfsuid(65534);
  {
    Provider provider(directory.path(), true);
    provider.finish();
    EXPECT_THAT(provider.paths(), ElementsAre(directory.path("open/a.gz"), "(complete)"));
    EXPECT_EQ(provider.rig.counter("provider", "directories_unreadable"), 1U);
    EXPECT_THAT(provider.rig.log("directory_unreadable"),
                Contains(HasSubstr(directory.path("shut"))));
  }
  ::setfsuid(static_cast<uid_t>(before));
  fs::permissions(directory.path("shut"), fs::perms::owner_all);
}

// A directory that may be listed and not entered shows names that cannot be looked at; a link may
// lead to nothing. Each is counted, and a hundred thousand of them make few lines.
TEST(ProviderUnreadable, CountsNamesThatCannotBeLookedAt) {
  TempDir directory;
  directory.write("open/a.gz", "x");
  for (int i = 0; i < 20; ++i) directory.write(fmt::format("shut/{:02}.gz", i), "x");
  fs::create_symlink(directory.path("nowhere"), directory.path("dangling.gz"));
  fs::permissions(directory.path("shut"),
                  fs::perms::group_read | fs::perms::others_read | fs::perms::owner_all);
  const int before = ::setfsuid(65534);
  {
    Provider provider(directory.path(), true);
    provider.finish();
    EXPECT_THAT(provider.paths(), ElementsAre(directory.path("open/a.gz"), "(complete)"));
    EXPECT_EQ(provider.rig.counter("provider", "files_unreadable"), 21U);
    EXPECT_EQ(provider.rig.counter("provider", "directories_unreadable"), 0U);
    EXPECT_THAT(provider.rig.log("file_unreadable"), SizeIs(5)) << "1, 2, 4, 8, 16";
    EXPECT_THAT(provider.rig.log("file_unreadable"), Contains(HasSubstr("a link to nothing")));
    EXPECT_THAT(provider.rig.log("file_unreadable"), Contains(HasSubstr("Permission denied")));
  }
  ::setfsuid(static_cast<uid_t>(before));
}

// Nothing else is there, so the marker follows the scan at once: what was counted comes before it.
TEST(ProviderUnreadable, IsCountedAlsoWhereNothingElseIsFound) {
  TempDir directory;
  fs::create_symlink(directory.path("nowhere"), directory.path("dangling.gz"));
  Provider provider(directory.path(), true);
  provider.finish();
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)"));
  EXPECT_EQ(provider.rig.counter("provider", "files_unreadable"), 1U);
}

// Nothing is left out because the process has no descriptor left: the scan waits for one.
TEST(ProviderUnreadable, DoesNotMeanThatThereIsNoDescriptor) {
  TempDir directory;
  for (const char* name : {"a.gz", "sub/b.gz"}) directory.write(name, "x");
  Provider provider(directory.path(), true);
  {
    const NoDescriptors none;
    provider.rig.run();
  }
  EXPECT_THAT(provider.paths(), IsEmpty());
  EXPECT_THAT(provider.rig.log("no_descriptor"), Not(IsEmpty()));
  provider.finish();
  EXPECT_THAT(provider.paths(),
              ElementsAre(directory.path("a.gz"), directory.path("sub/b.gz"), "(complete)"));
  EXPECT_EQ(provider.rig.counter("provider", "directories_unreadable"), 0U);
}

// Directories nested so deep that the path of the innermost is longer than the kernel takes.
TEST(ProviderUnreadable, CountsPathsThatAreTooLong) {
  TempDir directory;
  directory.write("a.gz", "x");
  const std::string name(200, 'd');
  int at = ::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int depth = 0; depth < 25; ++depth) {
    ASSERT_EQ(::mkdirat(at, name.c_str(), 0700), 0);
    const int below = ::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ::close(at);
    at = below;
  }
  ::close(at);
  Provider provider(directory.path(), true);
  provider.finish();
  EXPECT_THAT(provider.paths(), ElementsAre(directory.path("a.gz"), "(complete)"));
  EXPECT_EQ(provider.rig.counter("provider", "directories_unreadable"), 1U);
  EXPECT_THAT(provider.rig.log("directory_unreadable"), Contains(HasSubstr("name too long")));
}

// ---- what happens afterwards

TEST(ProviderWatch, FindsANewFileWhenItIsClosed) {
  TempDir directory;
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(1));
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)"));
  const int fd = ::open(directory.path("new.gz").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "half", 4), 4);
  provider.rig.run();
  provider.rig.run();
  EXPECT_THAT(provider.paths(), SizeIs(1)) << "still being written";
  ASSERT_EQ(::write(fd, "whole", 5), 5);
  ::close(fd);
  ASSERT_TRUE(provider.wait_for(2));
  EXPECT_EQ(provider.paths().back(), directory.path("new.gz"));
}

TEST(ProviderWatch, LeavesAFileThatIsOpenDuringTheScanUntilItIsClosed) {
  TempDir directory;
  directory.write("done.gz", "x");
  const int fd = ::open(directory.path("busy.gz").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "half", 4), 4);
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(2));
  EXPECT_THAT(provider.paths(), ElementsAre(directory.path("done.gz"), "(complete)"));
  ::close(fd);
  ASSERT_TRUE(provider.wait_for(3));
  EXPECT_EQ(provider.paths().back(), directory.path("busy.gz"));
}

TEST(ProviderWatch, LeavesAnOpenFileOutOfAFiniteRunAndCountsIt) {
  TempDir directory;
  directory.write("done.gz", "x");
  const int fd = ::open(directory.path("busy.gz").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "half", 4), 4);
  Provider provider(directory.path(), true);
  provider.finish();
  ::close(fd);
  EXPECT_THAT(provider.paths(), ElementsAre(directory.path("done.gz"), "(complete)"));
  EXPECT_EQ(provider.rig.counter("provider", "files_still_open"), 1U);
}

TEST(ProviderWatch, FindsFilesMovedInAndLinkedButNoHiddenOnes) {
  TempDir directory;
  TempDir elsewhere;
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(1));
  directory.write(".a.gz.part", "x");
  provider.rig.run();
  EXPECT_THAT(provider.paths(), SizeIs(1));
  fs::rename(directory.path(".a.gz.part"), directory.path("a.gz"));
  ASSERT_TRUE(provider.wait_for(2));
  fs::rename(elsewhere.write("b.gz", "x"), directory.path("b.gz"));
  ASSERT_TRUE(provider.wait_for(3));
  fs::create_hard_link(elsewhere.write("c.gz", "x"), directory.path("c.gz"));
  ASSERT_TRUE(provider.wait_for(4));
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)", directory.path("a.gz"),
                                            directory.path("b.gz"), directory.path("c.gz")));
}

TEST(ProviderWatch, FindsWhatLiesInNewAndMovedInDirectories) {
  TempDir directory;
  TempDir elsewhere;
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(1));
  // Made at once, deeper than any watch stands.
  directory.write("one/two/three/a.gz", "x");
  ASSERT_TRUE(provider.wait_for(2));
  directory.write("one/two/three/b.gz", "x");
  ASSERT_TRUE(provider.wait_for(3));
  elsewhere.write("whole/tree/c.gz", "x");
  fs::rename(elsewhere.path("whole"), directory.path("whole"));
  ASSERT_TRUE(provider.wait_for(4));
  directory.write("whole/tree/d.gz", "x");
  ASSERT_TRUE(provider.wait_for(5));
  EXPECT_THAT(provider.paths(),
              ElementsAre("(complete)", directory.path("one/two/three/a.gz"),
                          directory.path("one/two/three/b.gz"), directory.path("whole/tree/c.gz"),
                          directory.path("whole/tree/d.gz")));
}

// A directory that leaves is no longer looked at; back under another name its files are new ones.
TEST(ProviderWatch, FollowsDirectoriesThatAreMovedAndRemoved) {
  TempDir directory;
  TempDir elsewhere;
  directory.write("sub/a.gz", "x");
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(2));
  fs::rename(directory.path("sub"), elsewhere.path("sub"));
  provider.rig.run();
  elsewhere.write("sub/outside.gz", "x");
  provider.rig.run();
  EXPECT_THAT(provider.paths(), SizeIs(2));
  fs::rename(elsewhere.path("sub"), directory.path("again"));
  ASSERT_TRUE(provider.wait_for(4));
  EXPECT_THAT(provider.paths(), Contains(directory.path("again/a.gz")));
  EXPECT_THAT(provider.paths(), Contains(directory.path("again/outside.gz")));
  fs::rename(directory.path("again"), directory.path("renamed"));
  ASSERT_TRUE(provider.wait_for(6));
  directory.write("renamed/later.gz", "x");
  ASSERT_TRUE(provider.wait_for(7));
  EXPECT_EQ(provider.paths().back(), directory.path("renamed/later.gz"));
  fs::remove_all(directory.path("renamed"));
  provider.rig.run();
  directory.write("renamed/reborn.gz", "x");
  ASSERT_TRUE(provider.wait_for(8));
  EXPECT_EQ(provider.paths().back(), directory.path("renamed/reborn.gz"));
}

TEST(ProviderWatch, GivesARewrittenFileAgainAndAnUnchangedOneNot) {
  TempDir directory;
  const std::string path = directory.write("a.gz", "one");
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(2));
  // Opened for writing and closed as it was: size and time are the same.
  ::close(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  provider.rig.run();
  EXPECT_THAT(provider.paths(), SizeIs(2));
  directory.write("a.gz", "another content");
  ASSERT_TRUE(provider.wait_for(3));
  EXPECT_THAT(provider.paths(), ElementsAre(path, "(complete)", path));
}

TEST(ProviderWatch, SurvivesFilesThatAreDeletedBeforeItLooks) {
  TempDir directory;
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(1));
  for (int i = 0; i < 20; ++i) fs::remove(directory.write(fmt::format("{}.gz", i), "x"));
  directory.write("stays.gz", "x");
  ASSERT_TRUE(provider.wait_for(2));
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)", directory.path("stays.gz")));
}

// The root itself goes and comes back.
TEST(ProviderWatch, FindsItsDirectoryAgain) {
  TempDir directory;
  directory.write("root/a.gz", "x");
  Provider provider(directory.path("root"));
  ASSERT_TRUE(provider.wait_for(2));
  fs::remove_all(directory.path("root"));
  ASSERT_TRUE(provider.rig.run_until(
      [&] { return provider.rig.note("provider").find("no such") != std::string::npos; }));
  directory.write("root/b.gz", "x");
  ASSERT_TRUE(provider.wait_for(3));
  EXPECT_THAT(provider.paths(),
              ElementsAre(directory.path("root/a.gz"), "(complete)", directory.path("root/b.gz")));
}

// While somebody has a file of it open, the kernel does not say that a directory has gone.
TEST(ProviderWatch, FindsItsDirectoryMadeAgainWhileItsFilesAreOpen) {
  TempDir directory;
  directory.write("root/sub/a.gz", "x");
  Provider provider(directory.path("root"));
  ASSERT_TRUE(provider.wait_for(2));
  const shm::Fd open(::open(directory.path("root/sub/a.gz").c_str(), O_RDONLY | O_CLOEXEC));
  const shm::Fd root(::open(directory.path("root").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(open && root);
  fs::remove_all(directory.path("root"));
  directory.write("root/b.gz", "x");
  ASSERT_TRUE(provider.wait_for(3));
  EXPECT_EQ(provider.paths().back(), directory.path("root/b.gz"));
  directory.write("root/c.gz", "x");
  ASSERT_TRUE(provider.wait_for(4)) << "the new one is watched";
}

// A file system that is taken away while it is in use, and one that is mounted in its place.
TEST(ProviderWatch, FindsWhatIsMountedAnew) {
  TempDir directory;
  fs::create_directories(directory.path("root/disk"));
  const std::string disk = directory.path("root/disk");
  const auto mount = [&] { return ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m"); };
  if (mount() != 0) GTEST_SKIP() << "this user may not mount: " << std::strerror(errno);
  directory.write("root/disk/a.gz", "x");
  {
    Provider provider(directory.path("root"));
    EXPECT_TRUE(provider.wait_for(2));
    const shm::Fd open(::open((disk + "/a.gz").c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
    EXPECT_EQ(mount(), 0);
    directory.write("root/disk/b.gz", "x");
    EXPECT_TRUE(provider.wait_for(3));
    EXPECT_EQ(provider.paths().back(), disk + "/b.gz");
  }
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

// More events than the kernel keeps: the rest is found by scanning again.
TEST(ProviderWatch, FindsByScanningWhatTheKernelDropped) {
  std::ifstream in("/proc/sys/fs/inotify/max_queued_events");
  std::uint64_t events_max = 0;
  ASSERT_TRUE(in >> events_max);
  if (events_max > 100'000) GTEST_SKIP() << "the kernel keeps " << events_max << " events";
  TempDir directory;
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(1));
  // Two names in turn, so that no event equals the one before it.
  for (std::uint64_t i = 0; i < events_max; ++i) {
    directory.write(i % 2 == 0 ? ".one" : ".two", "");
  }
  directory.write("behind.gz", "x");
  ASSERT_TRUE(provider.wait_for(2));
  EXPECT_THAT(provider.paths(), ElementsAre("(complete)", directory.path("behind.gz")));
  EXPECT_THAT(provider.rig.log("events_lost"), SizeIs(1));
}

// Whoever opens a file for writing just while the provider looks whether somebody does, must not
// hurt it: the kernel tells the holder of a lease by a signal.
TEST(ProviderWatch, SurvivesWritersThatOpenWhatItLooksAt) {
  TempDir directory;
  for (int i = 0; i < 20; ++i) directory.write(fmt::format("{:02}.gz", i), "x");
  std::atomic<bool> enough{false};
  std::thread writer([&] {
    while (!enough.load()) {
      for (int i = 0; i < 20; ++i) {
        const std::string path = directory.path(fmt::format("{:02}.gz", i));
        const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0) ::close(fd);
      }
    }
  });
  for (int scan = 0; scan < 100; ++scan) {
    Provider provider(directory.path(), true);
    provider.finish();
    EXPECT_EQ(provider.paths().size() + provider.rig.counter("provider", "files_still_open"), 21U);
  }
  enough.store(true);
  writer.join();
}

// ---- restarts and the end

TEST(ProviderRestart, GivesWhatWasMissedAndNothingTwice) {
  TempDir directory;
  directory.write("kept.gz", "x");
  directory.write("rewritten.gz", "x");
  directory.write("deleted.gz", "x");
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(4));
  directory.write("rewritten.gz", "longer");
  directory.write("sub/new.gz", "x");
  fs::remove(directory.path("deleted.gz"));
  provider.rig.restart("provider");
  ASSERT_TRUE(provider.wait_for(6));
  provider.rig.restart("provider");
  provider.rig.run();
  EXPECT_THAT(provider.paths(),
              ElementsAre(directory.path("deleted.gz"), directory.path("kept.gz"),
                          directory.path("rewritten.gz"), "(complete)",
                          directory.path("rewritten.gz"), directory.path("sub/new.gz")));
}

TEST(ProviderRestart, AnywhereInTheScanGivesEachFileAndTheMarkerOnce) {
  TempDir directory;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    expected.push_back(directory.write(fmt::format("{:02}-{}", i, std::string(40, 'n')), "x"));
  }
  expected.push_back("(complete)");
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Provider provider(directory.path(), true, 3);
    std::mt19937_64 random(seed);
    provider.rig.run_with_restarts(random, 0.4);
    EXPECT_TRUE(provider.rig.all_finished());
    ASSERT_EQ(provider.paths(), expected) << "seed " << seed;
  }
}

// The log of what was seen outgrows what was laid out: 1 MiB, some 4000 long paths.
TEST(ProviderRestart, RemembersMoreFilesThanItWasLaidOutFor) {
  TempDir directory;
  const std::string deep = fmt::format("{:d>120}/{:e>120}", "", "");
  for (int i = 0; i < 4000; ++i) directory.write(fmt::format("{}/{:04}.gz", deep, i), "");
  Provider provider(directory.path());
  const std::uint64_t before = provider.rig.arena_bytes("provider");
  ASSERT_TRUE(provider.wait_for(4001));
  EXPECT_GT(provider.rig.arena_bytes("provider"), before);
  provider.rig.restart("provider");
  provider.rig.run();
  EXPECT_THAT(provider.paths(), SizeIs(4001));
}

TEST(ProviderDrain, EndsAtOnce) {
  TempDir directory;
  directory.write("a.gz", "x");
  Provider provider(directory.path());
  ASSERT_TRUE(provider.wait_for(2));
  provider.rig.want(shm::LaneDesire::kDrain);
  provider.finish();
  EXPECT_THAT(provider.paths(), SizeIs(2));
}

TEST(ProviderSettings, WithoutADirectoryAreRefused) {
  LaneRig rig;
  EXPECT_THROW(rig.add_stage("name: 'provider' file_path_provider {}"), Error);
}

}  // namespace
}  // namespace ringfeed
