#include "workers/kit/proposal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "ringfeed/shm/result.h"

namespace ringfeed {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Looking : public ::testing::Test {
 protected:
  Looking() {
    std::string name = (fs::temp_directory_path() / "ringfeed-proposal-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = fs::canonical(name);
  }
  ~Looking() override { fs::remove_all(directory_); }

  std::string make(const std::string& name) {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "x";
    return path.string();
  }
  [[nodiscard]] std::string refusal(const fs::path& path) const {
    try {
      static_cast<void>(look_at(path.string()));
    } catch (const Error& error) {
      return error.message();
    }
    return {};
  }

  fs::path directory_;
};

TEST_F(Looking, FindsFilesBelowInTheOrderOfTheirPaths) {
  const std::string c = make("b/c.gz");
  const std::string a = make("a.tar");
  const std::string d = make("b/d/d.gz");
  make(".hidden.gz");
  make(".cache/e.gz");
  const DirectoryLook look = look_at(directory_.string() + "/b/..");
  EXPECT_EQ(look.directory, directory_.string());
  EXPECT_THAT(look.files, ElementsAre(a, c, d));
  EXPECT_TRUE(look.whole);
  EXPECT_THAT(look.ending_in(".gz"), ElementsAre(c, d));
  EXPECT_EQ(look.count_text(2), "2");
}

TEST_F(Looking, FollowsLinksAndEndsInALoopOfThem) {
  make("a.gz");
  fs::create_symlink(directory_ / "a.gz", directory_ / "b.gz");
  fs::create_symlink(directory_ / "nowhere", directory_ / "c.gz");
  fs::create_directory_symlink(directory_, directory_ / "loop");
  const DirectoryLook look = look_at(directory_.string(), {.depth = 2});
  EXPECT_THAT(look.files, SizeIs(2 * 3));
  EXPECT_FALSE(look.whole);
}

// A pipe or a device among the files is nobody's data, and nothing waits for it.
TEST_F(Looking, PassesOverWhatIsNoFile) {
  ASSERT_EQ(::mkfifo((directory_ / "a.gz").c_str(), 0600), 0);
  EXPECT_THAT(look_at(directory_.string()).files, IsEmpty());
}

TEST_F(Looking, IsBounded) {
  for (int i = 0; i < 30; ++i) make("many/" + std::to_string(i));
  for (int i = 0; i < 30; ++i) make("z" + std::to_string(i) + "/x");
  // A huge directory does not hide those beside it.
  const DirectoryLook some = look_at(directory_.string(), {.names_of_directory = 40});
  EXPECT_THAT(some.files, SizeIs(60));
  const DirectoryLook fewer = look_at(directory_.string(), {.names_of_directory = 31});
  EXPECT_THAT(fewer.files, SizeIs(60));
  const DirectoryLook ten = look_at(directory_.string(), {.names = 41, .names_of_directory = 40});
  EXPECT_THAT(ten.files, SizeIs(10));
  EXPECT_FALSE(ten.whole);
  EXPECT_EQ(ten.count_text(10), "at least 10");
  const DirectoryLook two = look_at(directory_.string(), {.directories = 2});
  EXPECT_THAT(two.files, SizeIs(30));
  EXPECT_FALSE(two.whole);
  const DirectoryLook flat = look_at(directory_.string(), {.depth = 0});
  EXPECT_THAT(flat.files, IsEmpty());
  EXPECT_FALSE(flat.whole);
}

TEST_F(Looking, SaysWhyItCannot) {
  EXPECT_THAT(refusal(directory_ / "no"), HasSubstr("/no: there is no such directory"));
  EXPECT_THAT(refusal(make("a")), HasSubstr("/a: this is not a directory"));
  EXPECT_THAT(refusal(directory_ / "a" / "b"), HasSubstr("this is not a directory"));
}

constexpr std::string_view kPipeline = R"(# Games in, batches out.
#
# Copy it, set the directory, and run:
#   ringfeed check toy.textproto
#   ringfeed run toy.textproto --set stages.b.threads=2

# Trainers attach by this name: ringfeed.attach("toy").
feed: "toy"

stages {
  name: "a"
  source {
    # Where they are.
    directory: "x"
    directory: "y"
    size: 10
  }
}
stages {
  name: "b"
  source {
    directory: "z"
  }
}
)";

TEST(Pipeline, IsFilledIn) {
  PipelineText pipeline(kPipeline);
  EXPECT_EQ(pipeline.feed(), "toy");
  pipeline.introduce({.directory = "/data"}, "3 files");
  pipeline.set("b", "directory", {"\"only\""});
  pipeline.set("a", "directory", {"\"1\"", "\"2\"", "\"3\""});
  pipeline.add_below("a", "size", {"# Two more.", "more: 2"});
  pipeline.name({.feed = "mine", .file = "there/mine.textproto"});
  EXPECT_EQ(pipeline.feed(), "mine");
  EXPECT_EQ(pipeline.text(), R"(# Games in, batches out.
#
# Written by `ringfeed init` for /data:
#   3 files
# Check it and run it:
#   ringfeed check there/mine.textproto
#   ringfeed run there/mine.textproto --set stages.b.threads=2

# Trainers attach by this name: ringfeed.attach("mine").
feed: "mine"

stages {
  name: "a"
  source {
    # Where they are.
    directory: "1"
    directory: "2"
    directory: "3"
    size: 10
    # Two more.
    more: 2
  }
}
stages {
  name: "b"
  source {
    directory: "only"
  }
}
)");
}

TEST(Pipeline, KeepsItsOwnNames) {
  PipelineText pipeline(kPipeline);
  pipeline.name({});
  EXPECT_EQ(pipeline.text(), kPipeline);
}

TEST(PipelineDeath, LacksWhatIsSet) {
  PipelineText pipeline(kPipeline);
  EXPECT_DEATH(pipeline.set("c", "directory", {}), "");
  EXPECT_DEATH(pipeline.set("b", "size", {}), "");
}

TEST(TextLiteral, HoldsAnyBytes) {
  EXPECT_EQ(text_literal("/data/ü"), "\"/data/ü\"");
  EXPECT_EQ(text_literal("a\"b\\c\nd\x1b"), R"("a\"b\\c\012d\033")");
}

}  // namespace
}  // namespace ringfeed
