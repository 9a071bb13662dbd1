// Zips as they are written, and with every kind of damage.
#include "workers/io/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "ringfeed/shm/file.h"
#include "tests/support/makers/zip_maker.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::HasSubstr;

struct OpenZip {
  explicit OpenZip(const std::string& bytes)
      : fd(std::move(*shm::open_regular(directory.write("a.zip", bytes)))),
        members(formats::read_zip_directory(fd.get())) {}
  // A member in pieces of so many bytes; or what is wrong with it.
  std::string read(std::size_t number, std::size_t piece = 1000) {
    const formats::ZipMember& member = (*members)[number];
    if (!member.unreadable.empty()) return "unreadable: " + member.unreadable;
    formats::ZipReader reader(fd.get(), member);
    std::string all;
    while (all.size() < member.bytes) {
      std::string some(std::min<std::uint64_t>(piece, member.bytes - all.size()), '\0');
      if (const Status got = reader.read(std::as_writable_bytes(std::span(some))); !got) {
        return "damaged: " + got.error().message();
      }
      all += some;
    }
    if (const Result<bool> end = reader.finish(~std::uint64_t{0}); !end)
      return "damaged: " + end.error().message();
    return all;
  }
  TempDir directory;
  shm::Fd fd;
  Result<std::vector<formats::ZipMember>> members;
};

std::string words(std::size_t count) {
  std::mt19937 random(3);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += std::to_string(random() % 5000) + ' ';
  return text;
}

TEST(Zip, ReadsMembersOfEachKind) {
  const std::string text = words(60000);
  for (const bool zip64 : {false, true}) {
    ZipMaker maker;
    maker.add("stored", text, {.zip64 = zip64});
    maker.add("deflated", text, {.deflated = true, .zip64 = zip64});
    maker.add("empty", "", {.zip64 = zip64});
    maker.add("nothing", "", {.deflated = true, .zip64 = zip64});
    OpenZip zip(maker.finish(zip64, zip64 ? "" : "a comment, even PK\5\6"));
    ASSERT_TRUE(zip.members) << zip.members.error().message();
    ASSERT_EQ(zip.members->size(), 4U);
    for (const std::size_t piece : {std::size_t{7919}, std::size_t{1} << 20}) {
      EXPECT_EQ(zip.read(0, piece), text);
      EXPECT_EQ(zip.read(1, piece), text);
    }
    EXPECT_EQ(zip.read(2), "");
    EXPECT_EQ(zip.read(3), "");
    EXPECT_TRUE((*zip.members)[1].deflated);
    EXPECT_EQ((*zip.members)[0].name, "stored");
  }
}

TEST(Zip, NamesWhatItCannotRead) {
  ZipMaker maker;
  maker.add("locked", "text", {.flags = 1});
  maker.add("good", "text");
  std::string bytes = maker.finish();
  OpenZip zip(bytes);
  EXPECT_EQ(zip.read(0), "unreadable: it is encrypted");
  EXPECT_EQ(zip.read(1), "text") << "another one does not matter";
  const std::size_t second = bytes.rfind("PK\1\2");
  std::string other = bytes;
  other[second + 10] = 12;
  EXPECT_THAT(OpenZip(other).read(1), HasSubstr("packed by method 12"));
  other = bytes;
  other[second + 42] = 3;
  EXPECT_THAT(OpenZip(other).read(1), HasSubstr("its head is not where the directory says"));
  other = bytes;
  other[second + 45] = 0x7f;
  EXPECT_THAT(OpenZip(other).read(1), HasSubstr("it lies outside of the file"));
  other = bytes;
  other[second + 24] = 9;
  EXPECT_THAT(OpenZip(other).read(1), HasSubstr("it cannot have 9 bytes in 4"));
  other = bytes;
  other[second + 16] = static_cast<char>(other[second + 16] ^ 1);
  EXPECT_THAT(OpenZip(other).read(1), HasSubstr("another checksum"));
}

TEST(Zip, SaysWhatIsWrongWithTheWhole) {
  ZipMaker maker;
  maker.add("one", words(10));
  const std::string bytes = maker.finish();
  for (const std::string& none : {std::string(), std::string("text"), bytes.substr(0, 40),
                                  bytes.substr(0, bytes.size() - 1)}) {
    const OpenZip zip(none);
    ASSERT_FALSE(zip.members);
    EXPECT_EQ(zip.members.error().code(), ErrorCode::kDamaged);
    EXPECT_THAT(zip.members.error().message(), HasSubstr("no directory at its end"));
  }
  std::uint64_t trailing = 0;
  for (const std::string& comment :
       {std::string(), std::string("a comment PK\x05\x06 of its own")}) {
    TempDir directory;
    for (const std::size_t behind : {0U, 1U, 700U}) {
      const std::string path =
          directory.write("a.zip", maker.finish(false, comment) + std::string(behind, '\0'));
      EXPECT_TRUE(formats::read_zip_directory(shm::open_regular(path)->get(), &trailing));
      EXPECT_EQ(trailing, behind);
    }
  }
  std::string fewer = bytes;
  fewer[fewer.size() - 12] = 0;
  EXPECT_THAT(OpenZip(fewer).members.error().message(), HasSubstr("more than the 0 entries"));
  std::string moved = bytes;
  moved[moved.size() - 4] = 0x7f;
  EXPECT_THAT(OpenZip(moved).members.error().message(), HasSubstr("outside of it"));
  std::string more = bytes;
  more[more.size() - 12] = 2;
  EXPECT_THAT(OpenZip(more).members.error().message(), HasSubstr("entry 1 of its directory"));
}

TEST(Zip, DeflatedMembersEndWhereTheyAreDamagedHoweverTheyAreRead) {
  ZipMaker maker;
  const std::string text = words(60000);
  maker.add("a", text, {.deflated = true});
  const std::string bytes = maker.finish();
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    std::string hurt = bytes;
    const std::size_t at = 31 + random() % (bytes.size() - 31);
    hurt[at] = static_cast<char>(hurt[at] ^ 1 << random() % 8);
    OpenZip zip(hurt);
    if (!zip.members) continue;
    for (std::size_t m = 0; m < zip.members->size(); ++m) {
      const std::string got = zip.read(m, 4096);
      // Some bits are of no account: a time, a comment.
      EXPECT_TRUE(got == text || got.starts_with("damaged") || got.starts_with("unreadable")) << at;
    }
  }
}

}  // namespace
}  // namespace ringfeed
