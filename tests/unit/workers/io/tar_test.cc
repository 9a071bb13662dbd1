#include "workers/io/tar.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>

#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/lc0_sample.h"
#include "workers/io/gzip.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed::formats {
namespace {

using ::testing::AllOf;
using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::SizeStyle;
using testing::TarDialect;
using testing::TarHeader;
using testing::TarMaker;

// The tar behind a descriptor of its own.
class TarFile {
 public:
  explicit TarFile(std::span<const std::byte> bytes) : fd_(::memfd_create("tar", MFD_CLOEXEC)) {
    EXPECT_GE(fd_, 0);
    EXPECT_EQ(::write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  ~TarFile() { ::close(fd_); }
  TarFile(const TarFile&) = delete;
  TarFile& operator=(const TarFile&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

// Indexes the tar in memory and behind a descriptor, which must agree in everything.
TarIndex index_of(std::span<const std::byte> bytes) {
  const Bytes exact(bytes.begin(), bytes.end());
  TarIndex index = index_tar(exact);
  const TarFile file(bytes);
  const Result<TarIndex> from_file = index_tar(file.fd());
  EXPECT_TRUE(from_file.ok());
  if (from_file.ok()) {
    EXPECT_EQ(from_file->members.size(), index.members.size());
    for (std::size_t i = 0; i < std::min(index.members.size(), from_file->members.size()); ++i) {
      EXPECT_EQ(from_file->members[i].name, index.members[i].name);
      EXPECT_EQ(from_file->members[i].data_offset, index.members[i].data_offset);
      EXPECT_EQ(from_file->members[i].data_bytes, index.members[i].data_bytes);
      EXPECT_EQ(from_file->members[i].last_bytes, index.members[i].last_bytes);
    }
    EXPECT_EQ(from_file->problem_count, index.problem_count);
  }
  return index;
}
TarIndex index_of(const TarMaker& tar) { return index_of(tar.bytes()); }

// "name=content" of each member found, so that a wrong offset or size shows as wrong content.
std::vector<std::string> contents(const TarMaker& tar) {
  std::vector<std::string> found;
  for (const TarMember& member : index_of(tar).members) {
    const auto data = tar.bytes().subspan(static_cast<std::size_t>(member.data_offset),
                                          static_cast<std::size_t>(member.data_bytes));
    found.push_back(member.name + "=" +
                    std::string(reinterpret_cast<const char*>(data.data()), data.size()));
  }
  return found;
}

std::vector<TarReason> reasons(const TarMaker& tar) {
  std::vector<TarReason> found;
  for (const TarProblem& problem : index_of(tar).problems) found.push_back(problem.reason);
  return found;
}

TEST(Tar, FindsTheMembersOfTheRealArchive) {
  const Bytes tar = testing::read_file(testing::sample_tar_path());
  ASSERT_EQ(tar.size(), 85504U);
  const TarIndex index = index_of(tar);
  EXPECT_THAT(index.problems, IsEmpty());
  EXPECT_EQ(index.directory_count, 1U);
  std::vector<const TarMember*> games;
  for (const TarMember& member : index.members) {
    if (member_use(member.name) != MemberUse::kNotAChunk) games.push_back(&member);
  }
  // 6 companions ._*, the licence, and the games.
  EXPECT_THAT(index.members, SizeIs(11));
  ASSERT_THAT(games, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    const testing::SampleGame& expected = testing::kSampleGames[i];
    EXPECT_EQ(games[i]->name, expected.name);
    EXPECT_EQ(games[i]->data_offset, expected.data_offset);
    EXPECT_EQ(games[i]->data_bytes, expected.data_bytes);
    EXPECT_EQ(member_use(games[i]->name), MemberUse::kGzipChunk);
    EXPECT_EQ(gzip_uncompressed_bytes(games[i]->last_bytes), expected.frame_count * kV6RecordBytes);
  }
}

// A file without a name cannot be told from the licence or a companion: it is said, not left out.
TEST(Tar, ReportsAMemberWithoutAName) {
  TarMaker tar;
  tar.add("one.gz", "first");
  tar.add("", "nameless");
  tar.add("two.gz", "second");
  EXPECT_THAT(contents(tar), ElementsAre("one.gz=first", "two.gz=second"));
  EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kNameless));
}

class TarSizes : public ::testing::TestWithParam<SizeStyle> {};
INSTANTIATE_TEST_SUITE_P(EveryStyle, TarSizes,
                         ::testing::Values(SizeStyle::kNul, SizeStyle::kSpace,
                                           SizeStyle::kTwelveDigits, SizeStyle::kSpacesFirst,
                                           SizeStyle::kBase256));

TEST_P(TarSizes, AreReadInEveryDialect) {
  for (const TarDialect dialect :
       {TarDialect::kV7, TarDialect::kUstar, TarDialect::kGnu, TarDialect::kStar}) {
    TarMaker tar;
    tar.add({.name = "a/one", .dialect = dialect, .size_style = GetParam()}, "first content");
    tar.add({.name = "two", .dialect = dialect, .size_style = GetParam()}, std::string(511, 'x'));
    tar.add({.name = "three", .dialect = dialect, .size_style = GetParam()}, std::string(512, 'y'));
    tar.add({.name = "four", .dialect = dialect, .size_style = GetParam()}, "");
    tar.add({.name = "five", .dialect = dialect, .size_style = GetParam()}, std::string(513, 'z'));
    tar.end();
    EXPECT_THAT(contents(tar), ElementsAre("a/one=first content", "two=" + std::string(511, 'x'),
                                           "three=" + std::string(512, 'y'),
                                           "four=", "five=" + std::string(513, 'z')));
    EXPECT_THAT(reasons(tar), IsEmpty());
  }
}

TEST(TarNames, JoinTheUstarPrefix) {
  TarMaker tar;
  tar.add({.name = "training.1.gz", .prefix = "a/long/way"}, "data");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("a/long/way/training.1.gz=data"));
}

TEST(TarNames, FillTheirFieldWithoutANul) {
  TarMaker tar;
  tar.add({.name = std::string(100, 'n')}, "data");
  tar.add({.name = std::string(100, 'n'), .prefix = std::string(155, 'p')}, "data");
  tar.end();
  EXPECT_THAT(contents(tar),
              ElementsAre(std::string(100, 'n') + "=data",
                          std::string(155, 'p') + "/" + std::string(100, 'n') + "=data"));
}

// GNU and star keep times where ustar has its prefix, or a part of it.
TEST(TarNames, DoNotTakeTimesForAPrefix) {
  TarMaker tar;
  tar.add({.name = "gnu", .dialect = TarDialect::kGnu}, "1");
  tar.add({.name = "star", .dialect = TarDialect::kStar}, "2");
  tar.add({.name = "star", .dialect = TarDialect::kStar, .prefix = "dir"}, "3");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("gnu=1", "star=2", "dir/star=3"));
}

TEST(TarNames, ComeLongFromGnuExtensions) {
  const std::string name(300, 'l');
  TarMaker tar;
  tar.add_long(std::string(200, 'k'), 'K');
  tar.add_long(name, 'L');
  tar.add({.name = name.substr(0, 100), .dialect = TarDialect::kGnu}, "long");
  tar.add({.name = "short", .dialect = TarDialect::kGnu}, "next");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre(name + "=long", "short=next"));
}

TEST(TarPax, OverridesThePathOfTheNextMemberOnly) {
  TarMaker tar;
  tar.add_pax({{"mtime", "1.5"}, {"path", "über/lang.gz"}, {"comment", "a=b\nc"}});
  tar.add("replaced", "1");
  tar.add("kept", "2");
  tar.add_pax({{"path", "solaris"}}, 'X');
  tar.add("replaced", "3");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("über/lang.gz=1", "kept=2", "solaris=3"));
  EXPECT_THAT(reasons(tar), IsEmpty());
}

TEST(TarPax, OverridesTheSize) {
  TarMaker tar;
  tar.add_pax({{"size", "13"}});
  tar.add_header({.name = "a", .size = 0});
  tar.add_data("thirteen byte");
  tar.add("b", "after");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("a=thirteen byte", "b=after"));
}

TEST(TarPax, HoldsForAllThatFollowWhenGlobal) {
  TarMaker tar;
  tar.add("before", "0");
  tar.add_pax({{"path", "global"}}, 'g');
  tar.add("a", "1");
  tar.add_pax({{"path", "own"}});
  tar.add("b", "2");
  tar.add("c", "3");
  tar.add_pax({{"path", ""}}, 'g');  // taken back
  tar.add("d", "4");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("before=0", "global=1", "own=2", "global=3", "d=4"));
}

TEST(TarPax, AcceptsNulsBehindItsRecords) {
  TarMaker tar;
  tar.add({.name = "PaxHeader", .type = 'x'},
          TarMaker::pax_record("path", "named") + std::string(20, '\0'));
  tar.add("a", "1");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("named=1"));
  EXPECT_THAT(reasons(tar), IsEmpty());
}

TEST(TarPax, IsReportedWhenDamagedAndItsMemberStillDelivered) {
  for (const std::string& payload :
       {std::string("no length"), std::string("999 path=x\n"), std::string("4 a\n"),
        std::string("7 path\n"), std::string("11 path=xyz"), std::string("5 =x\n"),
        std::string("13 size=1x3\n"), std::string("99999999999999999999999 path=x\n"),
        std::string("-7 path=x\n")}) {
    TarMaker tar;
    tar.add({.name = "PaxHeader", .type = 'x'}, payload);
    tar.add("own-name", "1");
    tar.end();
    EXPECT_THAT(contents(tar), ElementsAre("own-name=1")) << payload;
    EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kDamagedExtension)) << payload;
  }
}

// A member of 9 GiB between two small ones, in a sparse file that takes no room.
class TarBeyond8GiB : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PaxAndBase256, TarBeyond8GiB, ::testing::Bool());

TEST_P(TarBeyond8GiB, IsIndexed) {
  constexpr std::uint64_t kHuge = std::uint64_t{9} << 30;
  TarMaker head;
  head.add("first", "1");
  if (GetParam()) {
    head.add_pax({{"size", std::to_string(kHuge)}});
    head.add_header({.name = "huge", .size = 0});
  } else {
    head.add_header({.name = "huge", .size = kHuge, .size_style = SizeStyle::kBase256});
  }
  TarMaker tail;
  tail.add("last", "3");
  tail.end();
  const TarFile file(head.bytes());
  ASSERT_EQ(::pwrite(file.fd(), tail.bytes().data(), tail.size(),
                     static_cast<off_t>(head.size() + kHuge)),
            static_cast<ssize_t>(tail.size()));
  const Result<TarIndex> index = index_tar(file.fd());
  ASSERT_TRUE(index.ok());
  EXPECT_THAT(index->problems, IsEmpty());
  ASSERT_THAT(index->members, SizeIs(3));
  EXPECT_EQ(index->members[1].data_bytes, kHuge);
  EXPECT_EQ(index->members[1].data_offset, head.size());
  EXPECT_EQ(index->members[2].name, "last");
  EXPECT_EQ(index->members[2].data_offset, head.size() + kHuge + 512);
}

TEST(TarTypes, PassOverWhatIsNoFileWithItsPayload) {
  TarMaker tar;
  tar.add_header({.name = "dir/", .type = '5'});
  tar.add_header({.name = "old-dir/", .type = '\0', .dialect = TarDialect::kV7});
  tar.add_header({.name = "symbolic", .type = '2'});
  tar.add_header({.name = "hard", .type = '1'});
  tar.add_header({.name = "character", .type = '3'});
  tar.add_header({.name = "block", .type = '4'});
  tar.add_header({.name = "fifo", .type = '6'});
  tar.add({.name = "volume", .type = 'V', .dialect = TarDialect::kGnu}, "");
  tar.add({.name = "dump", .type = 'D', .dialect = TarDialect::kGnu}, "Yfile one\0Nfile two");
  tar.add({.name = "unknown", .type = '9'}, std::string(1500, 'u'));
  tar.add({.name = "contiguous", .type = '7'}, "file");
  tar.add({.name = "old-file", .type = '\0', .dialect = TarDialect::kV7}, "file");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("contiguous=file", "old-file=file"));
  const TarIndex index = index_of(tar);
  EXPECT_THAT(index.problems, IsEmpty());
  EXPECT_EQ(index.directory_count, 2U);
  EXPECT_EQ(index.link_count, 2U);
  EXPECT_EQ(index.other_count, 6U);
}

TEST(TarTypes, DirectoriesAndSymbolicLinksHaveNoPayloadWhateverTheirSizeSays) {
  TarMaker tar;
  tar.add_header({.name = "dir/", .size = 5000, .type = '5'});
  tar.add_header({.name = "link", .size = 5000, .type = '2'});
  tar.add("a", "1");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("a=1"));
  EXPECT_THAT(reasons(tar), IsEmpty());
}

// Most writers leave the linked file's size in a hard link; pax ones may store its data.
TEST(TarTypes, HardLinksMayHaveAPayloadOrNot) {
  TarMaker without;
  without.add_header({.name = "link", .size = 700, .type = '1'});
  without.add("a", "1");
  without.end();
  EXPECT_THAT(contents(without), ElementsAre("a=1"));
  TarMaker with;
  with.add({.name = "link", .type = '1'}, std::string(700, 'd'));
  with.add("a", "1");
  with.end();
  EXPECT_THAT(contents(with), ElementsAre("a=1"));
  EXPECT_THAT(reasons(with), IsEmpty());
}

//  header(more=1) | map(more=1) | map(more=0) | data | next header
TEST(TarSparse, IsReportedAndPassedOverWithItsMaps) {
  TarMaker tar;
  const std::size_t header =
      tar.add_header({.name = "holes", .size = 700, .type = 'S', .dialect = TarDialect::kGnu});
  tar.text()[header + 482] = 1;
  tar.seal_at(header);
  std::string map(512, 'm');
  map[504] = 1;
  tar.add_bytes(map);
  map[504] = 0;
  tar.add_bytes(map);
  tar.add_data(std::string(700, 'd'));
  tar.add("a", "1");
  tar.add_pax({{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", "b"}});
  tar.add("GNUSparseFile.0/b", "1\n0\n512\n");
  tar.add("c", "2");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("a=1", "c=2"));
  EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kSparseMember, TarReason::kSparseMember));
  EXPECT_EQ(index_of(tar).problems[0].offset, header);
  EXPECT_THAT(index_of(tar).problems[0].text, HasSubstr("holes"));
}

TEST(TarChecksum, MayBeSummedSigned) {
  TarMaker tar;
  tar.add({.name = "\xC3\xA4\xC3\xB6", .signed_sum = true}, "1");
  tar.add({.name = "\xC3\xA4\xC3\xB6", .signed_sum = false}, "2");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("\xC3\xA4\xC3\xB6=1", "\xC3\xA4\xC3\xB6=2"));
  EXPECT_THAT(reasons(tar), IsEmpty());
}

// cat a.tar b.tar
TEST(TarEnd, MayBeFollowedByAnotherArchive) {
  for (const std::size_t zeros : {2U, 3U, 20U, 200U}) {
    TarMaker tar;
    tar.add_pax({{"path", "global"}}, 'g');
    tar.add("a", "1");
    tar.end(zeros);
    tar.add("b", "2");
    tar.end(zeros);
    tar.end(zeros);
    tar.add("c", "3");
    EXPECT_THAT(contents(tar), ElementsAre("global=1", "b=2", "c=3")) << zeros;
    EXPECT_THAT(reasons(tar), IsEmpty()) << zeros;
  }
}

TEST(TarEnd, IsNoPlaceForAnythingElse) {
  for (const std::string& rubbish :
       {std::string(512, 'r'), std::string(5000, 'r'), std::string("r")}) {
    TarMaker tar;
    tar.add("a", "1");
    tar.end(20);
    const std::size_t offset = tar.add_bytes(rubbish);
    EXPECT_THAT(contents(tar), ElementsAre("a=1"));
    EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kTrailing));
    EXPECT_EQ(index_of(tar).problems[0].offset, offset);
    tar.add_data("");
    tar.add("b", "2");
    EXPECT_THAT(contents(tar), ElementsAre("a=1", "b=2"));
    EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kDamagedHeader));
  }
}

TEST(TarEnd, MayBeOneZeroBlockOrNone) {
  for (const std::size_t blocks : {0U, 1U}) {
    TarMaker tar;
    tar.add("a", "1");
    tar.add("b", "2");
    tar.end(blocks);
    EXPECT_THAT(contents(tar), ElementsAre("a=1", "b=2"));
    EXPECT_THAT(reasons(tar), IsEmpty()) << blocks << " blocks";
  }
}

TEST(TarEnd, MayBeFollowedByPadding) {
  TarMaker tar;
  tar.add("a", "1");
  tar.end(20);
  EXPECT_THAT(contents(tar), ElementsAre("a=1"));
  TarMaker odd;
  odd.add("a", "1");
  odd.end(1).add_bytes("not a whole block");
  EXPECT_THAT(contents(odd), ElementsAre("a=1"));
}

TEST(TarEnd, OfAnEmptyFileIsItsBeginning) {
  EXPECT_THAT(contents(TarMaker()), IsEmpty());
  EXPECT_THAT(reasons(TarMaker()), IsEmpty());
  TarMaker zeros;
  EXPECT_THAT(contents(zeros.end(20)), IsEmpty());
  EXPECT_THAT(reasons(zeros), IsEmpty());
}

TEST(TarDamage, OfALoneZeroBlockIsReportedAndPassedOver) {
  TarMaker tar;
  tar.add("a", "1");
  const std::size_t zeros = tar.size();
  tar.end(1);
  tar.add("b", "2");
  tar.end();
  EXPECT_THAT(contents(tar), ElementsAre("a=1", "b=2"));
  ASSERT_THAT(reasons(tar), ElementsAre(TarReason::kDamagedHeader));
  EXPECT_EQ(index_of(tar).problems[0].offset, zeros);
}

// Whatever byte of the middle header is hit, the members around it are delivered and its offset is
// reported.
TEST(TarDamage, OfAHeaderCostsItsMemberAlone) {
  for (std::size_t at = 0; at < 512; ++at) {
    if (at == 155) continue;  // behind the NUL that ends the checksum: means nothing
    TarMaker tar;
    tar.add("a", std::string(600, '1'));
    const std::size_t middle = tar.add("b", std::string(1300, '2'));
    tar.add("c", "3");
    tar.end();
    tar.damage(middle + at);
    ASSERT_THAT(contents(tar), ElementsAre("a=" + std::string(600, '1'), "c=3")) << "byte " << at;
    const TarIndex index = index_of(tar);
    ASSERT_THAT(index.problems, SizeIs(1)) << "byte " << at;
    EXPECT_EQ(index.problems[0].offset, middle);
    EXPECT_EQ(index.problems[0].reason, TarReason::kDamagedHeader);
    EXPECT_THAT(
        index.problems[0].text,
        AllOf(HasSubstr("checksum"), HasSubstr("byte " + std::to_string(middle + 512 + 1536))));
  }
}

TEST(TarDamage, OfTheFirstAndOfTheLastHeader) {
  TarMaker tar;
  const std::size_t first = tar.add("a", "1");
  tar.add("b", "2");
  const std::size_t last = tar.add("c", "3");
  tar.end();
  tar.damage(first);
  tar.damage(last);
  EXPECT_THAT(contents(tar), ElementsAre("b=2"));
  EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kDamagedHeader, TarReason::kDamagedHeader));
  EXPECT_THAT(index_of(tar).problems[1].text, HasSubstr("no header follows"));
}

// A payload of zeros looks like the archive's end to whoever searches.
TEST(TarDamage, IsSearchedThroughThroughZeros) {
  TarMaker tar;
  const std::size_t first = tar.add("a", std::string(200'000, '\0'));
  tar.add("b", "2");
  tar.end();
  tar.damage(first + 3);
  EXPECT_THAT(contents(tar), ElementsAre("b=2"));
}

// A size that no reader can read, in a header whose checksum holds.
TEST(TarDamage, OfASizeFieldIsDamageOfItsHeader) {
  for (const std::string& size :
       {std::string("0000000001x\0", 12), std::string("-0000000001\0", 12), std::string(12, '\xFF'),
        "\x80" + std::string(11, '\xFF'), std::string("8888")}) {
    TarMaker tar;
    const std::size_t at = tar.add("a", "1");
    tar.text().replace(at + 124, size.size(), size);
    tar.seal_at(at);
    tar.add("b", "2");
    tar.end();
    EXPECT_THAT(contents(tar), ElementsAre("b=2"));
    ASSERT_THAT(reasons(tar), ElementsAre(TarReason::kDamagedHeader));
    EXPECT_THAT(index_of(tar).problems[0].text, HasSubstr("size"));
  }
}

TEST(TarDamage, OfAnExtensionDoesNotNameALaterMember) {
  TarMaker tar;
  tar.add_pax({{"path", "meant-for-b"}});
  const std::size_t lost = tar.add("b", "1");
  tar.add("c", "2");
  tar.end();
  tar.damage(lost);
  EXPECT_THAT(contents(tar), ElementsAre("c=2"));
}

TEST(TarDamage, IsCountedBeyondWhatIsKept) {
  TarMaker tar;
  for (std::size_t i = 0; i < kTarProblemsKept + 10; ++i) {
    tar.damage(tar.add("a", "1"));
    tar.add("b", "2");
  }
  tar.end();
  const TarIndex index = index_of(tar);
  EXPECT_EQ(index.problem_count, kTarProblemsKept + 10);
  EXPECT_THAT(index.problems, SizeIs(kTarProblemsKept));
  EXPECT_THAT(index.members, SizeIs(kTarProblemsKept + 10));
}

// Cut at every length: what lies whole before the cut is found, and nothing that does not.
TEST(TarCut, KeepsItsWholeMembers) {
  TarMaker whole;
  whole.add_pax({{"path", "a"}});
  whole.add("x", std::string(700, '1'));  // header at 1024, data 1536..2236
  whole.add("b", std::string(100, '2'));  // header at 2560, data 3072..3172
  whole.end();
  ASSERT_EQ(whole.size(), 3584U + 1024);
  for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    TarMaker tar = whole;
    tar.cut(bytes);
    const TarIndex index = index_tar(tar.bytes());
    const std::size_t expected = bytes >= 3172 ? 2 : bytes >= 2236 ? 1 : 0;
    ASSERT_EQ(index.members.size(), expected) << "cut to " << bytes;
    // At these lengths nothing is missing that the format asks for.
    const bool clean = bytes == 0 || (bytes >= 2236 && bytes <= 2560) || bytes >= 3172;
    ASSERT_THAT(index.problems, SizeIs(clean ? 0 : 1)) << "cut to " << bytes;
    if (!clean) {
      EXPECT_EQ(index.problems[0].reason, TarReason::kCutShort) << "cut to " << bytes;
    }
  }
}

TEST(TarCut, SaysWhereAndHowMuchIsThere) {
  TarMaker tar;
  tar.add("whole", "1");
  const std::size_t header = tar.add("training.7.gz", std::string(1000, '2'));
  tar.cut(tar.size() - 512);
  const TarIndex index = index_of(tar);
  ASSERT_THAT(index.problems, SizeIs(1));
  EXPECT_EQ(index.problems[0].offset, header);
  EXPECT_THAT(index.problems[0].text,
              AllOf(HasSubstr("training.7.gz"), HasSubstr("1000"), HasSubstr("512")));
}

TEST(TarCut, OfAnEnormousClaimIsNoEnormousRead) {
  TarMaker tar;
  tar.add_header({.name = "a", .size = ~std::uint64_t{0} >> 2, .size_style = SizeStyle::kBase256});
  tar.add("b", "2");
  EXPECT_THAT(reasons(tar), ElementsAre(TarReason::kCutShort));
  TarMaker pax;
  pax.add_pax({{"size", "18446744073709551615"}});
  pax.add("a", "1");
  EXPECT_THAT(reasons(pax), ElementsAre(TarReason::kCutShort));
  EXPECT_THAT(contents(pax), IsEmpty());
}

TEST(TarNoise, IsSurvived) {
  std::mt19937_64 random(59);
  TarMaker good;
  good.add_pax({{"path", "long"}, {"size", "5"}});
  good.add("a", "12345");
  good.add_long("another");
  good.add({.name = "b", .dialect = TarDialect::kGnu}, std::string(3000, 'b'));
  good.end();
  for (int round = 0; round < 3000; ++round) {
    TarMaker tar = good;
    for (std::size_t i = random() % 6; i > 0; --i) {
      tar.text()[random() % tar.size()] = static_cast<char>(random());
    }
    if (random() % 2 == 0) {
      for (std::size_t at = 0; at + 512 <= tar.size(); at += 512) {
        if (random() % 3 == 0) tar.seal_at(at);  // so that damaged fields are believed
      }
    }
    tar.cut(random() % (tar.size() + 1));
    const Bytes exact(tar.bytes().begin(), tar.bytes().end());
    for (const TarMember& member : index_tar(exact).members) {
      ASSERT_LE(member.data_offset, exact.size());
      ASSERT_LE(member.data_bytes, exact.size() - member.data_offset)
          << "round " << round << " of seed 59";
    }
  }
}

TEST(TarDescriptor, StaysWhereItIs) {
  TarMaker tar;
  tar.add("a", "1");
  tar.end();
  const TarFile file(tar.bytes());
  ASSERT_EQ(::lseek(file.fd(), 100, SEEK_SET), 100);
  const Result<TarIndex> index = index_tar(file.fd());
  ASSERT_TRUE(index.ok());
  EXPECT_THAT(index->members, SizeIs(1));
  EXPECT_EQ(::lseek(file.fd(), 0, SEEK_CUR), 100);
}

TEST(TarDescriptor, MustBeARegularFile) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  const Result<TarIndex> pipe = index_tar(pipe_fds[0]);
  ASSERT_FALSE(pipe.ok());
  EXPECT_EQ(pipe.error().code(), ErrorCode::kUnsupported);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  const Result<TarIndex> closed = index_tar(-1);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().code(), ErrorCode::kIo);
}

TEST(MemberUse, IsAChunkUnlessLicenceOrAppleDouble) {
  EXPECT_EQ(member_use("run/training.1.gz"), MemberUse::kGzipChunk);
  EXPECT_EQ(member_use("training.1.gz"), MemberUse::kGzipChunk);
  EXPECT_EQ(member_use("run/training.1"), MemberUse::kRawChunk);
  EXPECT_EQ(member_use("training.1.GZ"), MemberUse::kRawChunk);
  EXPECT_EQ(member_use("LICENSE"), MemberUse::kNotAChunk);
  EXPECT_EQ(member_use("run/LICENSE"), MemberUse::kNotAChunk);
  EXPECT_EQ(member_use("LICENSE/training.1.gz"), MemberUse::kGzipChunk);
  EXPECT_EQ(member_use("LICENSE.gz"), MemberUse::kGzipChunk);
  EXPECT_EQ(member_use("run/._training.1.gz"), MemberUse::kNotAChunk);
  EXPECT_EQ(member_use("._run"), MemberUse::kNotAChunk);
  EXPECT_EQ(member_use("._run/training.1.gz"), MemberUse::kGzipChunk);
  EXPECT_EQ(member_use(".hidden.gz"), MemberUse::kGzipChunk);
  EXPECT_EQ(member_use("run/"), MemberUse::kNotAChunk);
  EXPECT_EQ(member_use(""), MemberUse::kNotAChunk);
}

}  // namespace
}  // namespace ringfeed::formats
