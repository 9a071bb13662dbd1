// Files of /proc and /sys with contents that nobody expects.
#include "supervisor/doctor/texts.h"

#include <gtest/gtest.h>

namespace ringfeed::doctor {
namespace {

using Cpus = std::vector<int>;

TEST(DoctorTexts, ALimitIsANumberOrNone) {
  EXPECT_EQ(limit_in("0"), 0U);
  EXPECT_EQ(limit_in(" 4096\n"), 4096U);
  EXPECT_EQ(limit_in("18446744073709551615"), kNoLimit);
  EXPECT_EQ(limit_in("max\n"), kNoLimit);
  EXPECT_EQ(limit_in("-1"), kNoLimit);
  for (const char* text : {"", " ", "-2", "+1", "1 2", "0x10", "1k", "18446744073709551616",
                           "maximum", "max max", "1.5"}) {
    EXPECT_EQ(limit_in(text), std::nullopt) << text;
  }
  EXPECT_EQ(limit_in(std::string_view("1\0", 2)), std::nullopt);
}

TEST(DoctorTexts, TheChosenWordStandsInBrackets) {
  EXPECT_EQ(chosen_in("always [madvise] never\n"), "madvise");
  EXPECT_EQ(chosen_in("[]"), "");
  for (const char* text : {"", "always", "[never", "never]", "]["}) {
    EXPECT_EQ(chosen_in(text), "") << text;
  }
}

TEST(DoctorTexts, WordsAreWithoutBracketsAndBlanks) {
  EXPECT_EQ(words_in(" a\t[b]\n\n c "), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(words_in("").empty());
  EXPECT_TRUE(words_in(" \n[] ").empty());
}

TEST(DoctorTexts, MemoryIsInBytes) {
  constexpr std::string_view kText =
      "MemTotal:       1024 kB\nMemFree:\nHugePages_Total:       3\nMemAvailableNot: 1 kB\n"
      "MemAvailable:   17592186044416 MB\nBuffers: 18014398509481984 kB\nCached: many kB\n";
  EXPECT_EQ(meminfo_in(kText, "MemTotal"), 1048576U);
  EXPECT_EQ(meminfo_in(kText, "HugePages_Total"), 3U);
  for (const char* key : {"MemFree", "MemAvailable", "Buffers", "Cached", "Mem", "", "None"}) {
    EXPECT_EQ(meminfo_in(kText, key), std::nullopt) << key;
  }
}

TEST(DoctorTexts, TheFirstLineOfAKeyCounts) {
  constexpr std::string_view kText = "Name:\tUid: 7\nUidNot:\t1\nUid:\t5\t6\nUid:\t8\nGid";
  EXPECT_EQ(status_in(kText, "Uid"), "5\t6");
  EXPECT_EQ(status_in(kText, "Name"), "Uid: 7");
  EXPECT_EQ(status_in(kText, "Gid"), std::nullopt);
  EXPECT_EQ(status_in("", "Uid"), std::nullopt);
}

TEST(DoctorTexts, ACapabilityIsABit) {
  constexpr std::string_view kText = "CapEff:\t0000000001000000\nCapBnd:\t\nCapPrm:\t01xz\n";
  EXPECT_TRUE(has_capability(kText, "CapEff", 24));
  EXPECT_FALSE(has_capability(kText, "CapEff", 23));
  EXPECT_FALSE(has_capability(kText, "CapEff", 64));
  for (const char* set : {"CapBnd", "CapPrm", "CapAmb"}) {
    EXPECT_FALSE(has_capability(kText, set, 0)) << set;
  }
  EXPECT_TRUE(has_capability("CapEff:\tffffffffffffffff", "CapEff", 63));
  EXPECT_FALSE(has_capability("CapEff:\t1ffffffffffffffff", "CapEff", 0)) << "too many digits";
  EXPECT_FALSE(has_capability("CapEff:\t-1", "CapEff", 0));
}

TEST(DoctorTexts, ProcessorsAreAList) {
  EXPECT_EQ(cpus_in("0-3,8\n"), (Cpus{0, 1, 2, 3, 8}));
  EXPECT_EQ(cpus_in(""), Cpus());
  EXPECT_EQ(cpus_in("7"), Cpus{7});
  for (const char* text : {"3-1", "-1", "1-", "a", "0-3;8", "0--3", "1,,2", "0-65536",
                           "0-2147483647", "99999999999", "0-40000,0-40000"}) {
    EXPECT_EQ(cpus_in(text), std::nullopt) << text;
  }
}

TEST(DoctorTexts, AShareIsPartOfAPeriod) {
  EXPECT_EQ(processors_in("200000 100000\n"), 2.0);
  EXPECT_EQ(processors_in("50000 100000"), 0.5);
  EXPECT_EQ(processors_in("50000"), 0.5);
  EXPECT_EQ(processors_in("max 100000"), kNoShare);
  EXPECT_EQ(processors_in("-1 100000"), kNoShare);
  for (const char* text : {"", "1 0", "a 1", "1 a", "1 2 3", "-2 100000"}) {
    EXPECT_EQ(processors_in(text), std::nullopt) << text;
  }
}

TEST(DoctorTexts, MountsHaveTheirPointWithItsBlanks) {
  const std::vector<Mount> mounts = mounts_in(
      "22 1 0:20 / / rw - ext4 /dev/vda rw\n"
      "nothing\n\n"
      "23 22 0:21 / /a\\040b\\134c rw,nosuid shared:1 - tmpfs tmpfs rw,size=64k\n"
      "24 22 0:22 / /proc rw,relatime - proc proc rw,hidepid=invisible\n"
      "25 22 0:23 / /short rw - \n"
      "26 22 - tmpfs tmpfs rw\n"
      "27 22 0:24 / /odd\\9\\777\\04 rw - tmpfs tmpfs");
  ASSERT_EQ(mounts.size(), 4U);
  EXPECT_EQ(mounts[1].point, "/a b\\c");
  EXPECT_EQ(mounts[1].type, "tmpfs");
  EXPECT_EQ(mounts[1].value_of("size"), "64k");
  EXPECT_TRUE(mounts[1].has("nosuid"));
  EXPECT_FALSE(mounts[1].has("suid"));
  EXPECT_FALSE(mounts[1].has("siz"));
  EXPECT_EQ(mounts[2].value_of("hidepid"), "invisible");
  EXPECT_EQ(mounts[2].value_of("hide"), "");
  EXPECT_EQ(mounts[3].point, "/odd\\9\\777\\04");
}

TEST(DoctorTexts, APathLiesInTheLastOfTheLongestMounts) {
  const std::vector<Mount> mounts{{"/", "first", "", ""},
                                  {"/run", "under", "", ""},
                                  {"/run", "over", "", ""},
                                  {"/run/a", "deep", "", ""}};
  EXPECT_EQ(mount_of(mounts, "/run/b")->type, "over");
  EXPECT_EQ(mount_of(mounts, "/running")->type, "first");
  EXPECT_EQ(mount_of(mounts, "/run/a/b")->type, "deep");
  EXPECT_EQ(mount_of({}, "/run"), nullptr);
  EXPECT_EQ(mount_of(mounts, "relative"), nullptr);
}

}  // namespace
}  // namespace ringfeed::doctor
