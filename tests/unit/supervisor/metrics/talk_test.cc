// Specification of supervisor/metrics/talk.h: who has made a line, and how often progress is said
// where nothing is a terminal.
#include "supervisor/metrics/talk.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/segment.h"

namespace ringfeed::metrics {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Standard error is a file.
class TalkTest : public ::testing::Test {
 protected:
  TalkTest() {
    std::string pattern = ::testing::TempDir() + "rf_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/said";
    const shm::Fd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    before_ = shm::Fd(::dup(STDERR_FILENO));
    ::dup2(file.get(), STDERR_FILENO);
  }
  ~TalkTest() override {
    ::dup2(before_.get(), STDERR_FILENO);
    std::filesystem::remove_all(directory_);
  }

  // What was said at these times, with a count as the text.
  std::vector<std::string> said_at(const std::vector<std::uint64_t>& times_ms) {
    {
      Talk talk({.feed = "f"});
      for (const std::uint64_t at : times_ms) {
        talk.progress({.kind = "pool", .text = "at " + std::to_string(at)}, at);
      }
    }
    return lines_of(path_);
  }

  std::string directory_;
  std::string path_;
  shm::Fd before_;
};

TEST_F(TalkTest, SaysProgressAtOnceAndThenOnceInTenSeconds) {
  std::vector<std::uint64_t> times;
  for (std::uint64_t at = 1000; at <= 31'000; at += 200) times.push_back(at);
  EXPECT_THAT(said_at(times),
              ElementsAre("f: at 1000", "f: at 11000", "f: at 21000", "f: at 31000"));
}

TEST_F(TalkTest, SaysAnotherProgressSooner) {
  {
    Talk talk({.feed = "f"});
    for (std::uint64_t at = 1000; at < 4000; at += 100) {
      const bool later = at >= 1500;
      talk.progress({.kind = later ? "sampler" : "pool", .text = std::to_string(at)}, at);
    }
  }
  EXPECT_THAT(lines_of(path_), ElementsAre("f: 1000", "f: 2000"));
}

TEST_F(TalkTest, SaysNothingTwice) {
  {
    Talk talk({.feed = "f"});
    for (std::uint64_t at = 1000; at < 100'000; at += 1000) talk.progress({.text = "same"}, at);
  }
  EXPECT_THAT(lines_of(path_), ElementsAre("f: same"));
}

TEST_F(TalkTest, NamesTheProcessThatMadeALine) {
  const std::string log = directory_ + "/log";
  {
    Talk talk({.feed = "f", .json = true, .file = log});
    talk.line({.process = "worker/pool", .group = "pool", .pid = 7}, "printed");
    talk.line({.process = "ringfeed-web"}, "ringfeed-web: everybody can read");
  }
  EXPECT_THAT(lines_of(path_), IsEmpty());
  const std::vector<std::string> lines = lines_of(log);
  ASSERT_EQ(lines.size(), 2U);
  const nlohmann::json worker = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(worker["process"], "worker/pool");
  EXPECT_EQ(worker["group"], "pool");
  EXPECT_EQ(worker["pid"], 7);
  const nlohmann::json web = nlohmann::json::parse(lines[1]);
  EXPECT_EQ(web["process"], "ringfeed-web");
  EXPECT_EQ(web["message"], "ringfeed-web: everybody can read");
  EXPECT_FALSE(web.contains("group") || web.contains("pid"));
}

}  // namespace
}  // namespace ringfeed::metrics
