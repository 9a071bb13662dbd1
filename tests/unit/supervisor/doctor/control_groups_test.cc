// Limits of control groups of both versions, in trees of files that are made here.
#include "supervisor/doctor/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace ringfeed::doctor {
namespace {

namespace fs = std::filesystem;

class DoctorControlGroups : public testing::Test {
 protected:
  DoctorControlGroups() {
    std::string place = (fs::temp_directory_path() / "rf-groups-XXXXXX").string();
    EXPECT_NE(::mkdtemp(place.data()), nullptr);
    root_ = place;
  }
  ~DoctorControlGroups() override { fs::remove_all(root_); }

  std::string put(const std::string& file, const std::string& text) {
    const fs::path path = root_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  [[nodiscard]] std::string root() const { return root_.string(); }

 private:
  fs::path root_;
};

TEST_F(DoctorControlGroups, TheLimitThatLeavesLeastIsNamed) {
  put("memory.max", "max\n");
  const std::string above = put("a/memory.max", "1000\n");
  put("a/memory.current", "900\n");
  put("a/b/memory.max", "500\n");
  put("a/b/memory.current", "100\n");
  const auto limit = memory_limit("0::/a/b\n", root());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->file, above);
  EXPECT_EQ(limit->value, 1000U);
  EXPECT_EQ(limit->left(), 100U);
}

TEST_F(DoctorControlGroups, MoreThanTheLimitLeavesNothing) {
  put("memory.max", "100\n");
  put("memory.current", "200\n");
  EXPECT_EQ(memory_limit("0::/", root()).value().left(), 0U);
}

TEST_F(DoctorControlGroups, VersionOneHasADirectoryForEachController) {
  put("memory/a/memory.limit_in_bytes", "4096\n");
  put("memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("cpu/cpu.cfs_quota_us", "50000\n");
  put("cpu/cpu.cfs_period_us", "100000\n");
  put("pids/pids.max", "max\n");
  constexpr std::string_view kGroups = "5:pids:/\n4:hugetlb,memory:/a\n3:cpu,cpuacct:/a\n";
  EXPECT_EQ(memory_limit(kGroups, root()).value().value, 4096U);
  const auto processors = processor_limit(kGroups, root());
  ASSERT_TRUE(processors);
  EXPECT_EQ(processors->processors, 0.5);
  EXPECT_EQ(processors->none, "-1");
  EXPECT_FALSE(process_limit(kGroups, root()));
  EXPECT_FALSE(memory_brake(kGroups, root()));
}

TEST_F(DoctorControlGroups, APathOfTheMachineOutsideLeadsToTheRoot) {
  put("memory.max", "100\n");
  EXPECT_EQ(memory_limit("0::/../../outside/pod\n", root()).value().value, 100U);
}

TEST_F(DoctorControlGroups, OddContentsAreNoLimit) {
  put("memory.max", "much\n");
  put("pids.max", "");
  put("cpu.max", "1 0\n");
  for (const char* groups :
       {"", "\n\n", "0", "0:", "0::", "0::relative", "::::", ":memory:", "0::/\n"}) {
    EXPECT_FALSE(memory_limit(groups, root())) << groups;
    EXPECT_FALSE(process_limit(groups, root())) << groups;
    EXPECT_FALSE(processor_limit(groups, root())) << groups;
  }
}

}  // namespace
}  // namespace ringfeed::doctor
