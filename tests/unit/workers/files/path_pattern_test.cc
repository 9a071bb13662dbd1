#include "workers/files/path_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/rig/stage_data.h"
#include "workers/files/wanted_paths.h"

namespace ringfeed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(PathPattern, MatchesAsAShellDoes) {
  const auto matches = [](const char* pattern, const char* path) {
    return PathPattern(pattern).matches(path);
  };
  EXPECT_TRUE(matches("/data/*.jsonl", "/data/a.jsonl"));
  EXPECT_FALSE(matches("/data/*.jsonl", "/data/b/a.jsonl")) << "a star is no slash";
  EXPECT_FALSE(matches("/data/*.jsonl", "/data/a.jsonl.gz"));
  EXPECT_TRUE(matches("/data/part-[0-3]?.tar", "/data/part-2x.tar"));
  EXPECT_FALSE(matches("/data/part-[0-3]?.tar", "/data/part-4x.tar"));
  EXPECT_FALSE(matches("/data/*", "/data/.hidden"));
  EXPECT_TRUE(matches("/data/.*", "/data/.hidden"));
  EXPECT_TRUE(matches("/data/a\\*", "/data/a*"));
  EXPECT_FALSE(matches("/data/a\\*", "/data/ab"));

  for (const char* path : {"/data/x.txt", "/data/a/x.txt", "/data/a/b/c/x.txt"}) {
    EXPECT_TRUE(matches("/data/**/x.txt", path)) << path;
  }
  EXPECT_FALSE(matches("/data/**/x.txt", "/data/.git/x.txt"));
  EXPECT_FALSE(matches("/data/**/x.txt", "/data/y.txt"));
  EXPECT_TRUE(matches("/data/**", "/data/a/b"));
  EXPECT_TRUE(matches("/data/**/b/**/*.txt", "/data/a/b/c/d/x.txt"));
  EXPECT_FALSE(matches("/data/**/b/**/*.txt", "/data/a/c/d/x.txt"));
  EXPECT_TRUE(matches("/data//a.txt", "/data/a.txt")) << "a slash too many";
}

TEST(PathPattern, KnowsWhereToSearch) {
  EXPECT_EQ(PathPattern("/data/c4/**/*.zst").root(), "/data/c4");
  EXPECT_EQ(PathPattern("/data/c4/a.zst").root(), "/data/c4");
  EXPECT_EQ(PathPattern("/*.zst").root(), "/");
  EXPECT_EQ(PathPattern("data/*.zst").root(), "data");
  EXPECT_EQ(PathPattern("*.zst").root(), ".");
  EXPECT_TRUE(PathPattern("*.zst").matches("./a.zst"));
  EXPECT_TRUE(PathPattern("./*.zst").matches("./a.zst"));
  EXPECT_TRUE(PathPattern("/*.zst").matches("//a.zst")) << "as it is found below /";

  const PathPattern deep("/data/20*/en/*.txt");
  EXPECT_TRUE(deep.reaches("/data"));
  EXPECT_TRUE(deep.reaches("/data/2024"));
  EXPECT_TRUE(deep.reaches("/data/2024/en"));
  EXPECT_FALSE(deep.reaches("/data/1999"));
  EXPECT_FALSE(deep.reaches("/data/2024/de"));
  EXPECT_FALSE(deep.reaches("/data/2024/en/more"));
  EXPECT_TRUE(PathPattern("/data/**/x").reaches("/data/any/thing"));
  EXPECT_FALSE(PathPattern("/data/**/x").reaches("/data/.git"));
}

TEST(PathPattern, BracesStandForEach) {
  const auto expand = [](const char* text) { return expand_braces(text).value_or_throw(); };
  EXPECT_THAT(expand("a.tar"), ElementsAre("a.tar"));
  EXPECT_THAT(expand("{a,b}.{jpg,png}"), ElementsAre("a.jpg", "a.png", "b.jpg", "b.png"));
  EXPECT_THAT(expand("{08..11}"), ElementsAre("08", "09", "10", "11"));
  EXPECT_THAT(expand("{8..10}"), ElementsAre("8", "9", "10"));
  EXPECT_THAT(expand("x{,.gz}"), ElementsAre("x", "x.gz"));
  EXPECT_THAT(expand("{000000..000146}"), SizeIs(147));
  for (const auto& [text, fault] : std::vector<std::pair<const char*, const char*>>{
           {"{a", "a { without its }"},
           {"a}", "a } without its {"},
           {"{a,{b,c}}", "braces inside of braces"},
           {"{9..1}", "{9..1} is no range"},
           {"{a..c}", "{a..c} is no range"},
           {"{0..99999999}", "more than 100000 names"},
           {"{0..999}{0..999}", "more than 100000 names"}}) {
    const auto expanded = expand_braces(text);
    ASSERT_FALSE(expanded) << text;
    EXPECT_THAT(expanded.error().message(), HasSubstr(fault));
  }
}

FilePathProviderConfig config_of(const std::string& directory,
                                 const std::vector<std::string>& patterns) {
  FilePathProviderConfig config;
  if (!directory.empty()) config.set_directory(directory);
  for (const std::string& pattern : patterns) config.add_pattern(pattern);
  return config;
}

TEST(WantedPaths, AreEverythingOrWhatThePatternsSay) {
  const WantedPaths all(config_of("/data//", {}));
  EXPECT_THAT(all.roots(), ElementsAre("/data"));
  EXPECT_TRUE(all.wants("/data/a/b"));

  const WantedPaths some(config_of("/data", {"*.txt", "deep/**/*.gz", "/else/x.txt"}));
  EXPECT_THAT(some.roots(), ElementsAre("/data", "/else"));
  EXPECT_TRUE(some.wants("/data/a.txt"));
  EXPECT_TRUE(some.wants("/data/deep/a.gz"));
  EXPECT_TRUE(some.wants("/else/x.txt"));
  EXPECT_FALSE(some.wants("/else/y.txt"));
  EXPECT_TRUE(some.reaches("/data/deep"));
  EXPECT_FALSE(some.reaches("/data/other"));

  const WantedPaths exact(config_of("", {"/a/b/{0..9999}.tar", "c.tar"}));
  EXPECT_THAT(exact.roots(), ElementsAre("/a/b", "."));
  EXPECT_TRUE(exact.wants("/a/b/7.tar"));
  EXPECT_TRUE(exact.wants("./c.tar"));
  EXPECT_FALSE(exact.wants("/a/b/x.tar"));
  EXPECT_TRUE(exact.reaches("/a"));
  EXPECT_FALSE(exact.reaches("/a/b/c"));
}

TEST(WantedPaths, ReadsLists) {
  const testing::TempDir directory;
  const std::string list =
      directory.write("list.txt", "b.txt\n\n# a remark\n/abs/a.txt\r\ndeep/c.txt\ns3://bucket/d");
  EXPECT_THAT(read_list(list).value_or_throw(),
              ElementsAre(directory.path() + "/b.txt", "/abs/a.txt",
                          directory.path() + "/deep/c.txt", "s3://bucket/d"));
  EXPECT_THAT(read_list(directory.write("empty", "")).value_or_throw(), IsEmpty());
  EXPECT_EQ(read_list(directory.path() + "/none").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ringfeed
