// The specification of ringfeed/shm/segment.h and ringfeed/shm/arena.h.
#include "ringfeed/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/room.h"

namespace ringfeed::shm {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A directory of its own for each test, removed with it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (fs::temp_directory_path() / "ringfeed_segment_XXXXXX").string();
    RF_CHECK(::mkdtemp(pattern.data()) != nullptr, errno);
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { fs::remove_all(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::string path_;
};

FeedIdentity some_feed() {
  FeedIdentity feed;
  for (std::uint8_t i = 0; i < 16; ++i) feed.feed_id[i] = static_cast<std::uint8_t>(0xa0 + i);
  feed.config_hash = 0x1122334455667788;
  return feed;
}
SegmentSpec some_spec() {
  SegmentSpec spec;
  spec.name = "lc0/ring unpack.0>sample.0";
  spec.kind = SegmentKind::kRing;
  spec.bytes = 3 * kPageBytes;
  spec.geometry = {17, 0, 19};
  return spec;
}
std::uint64_t file_bytes(int fd) {
  struct stat info {};
  RF_CHECK(::fstat(fd, &info) == 0, errno);
  return static_cast<std::uint64_t>(info.st_size);
}
SegmentHeader& header_of(const Mapping& mapping) {
  return *reinterpret_cast<SegmentHeader*>(mapping.data());
}

// ---- headers ------------------------------------------------------------------------------------

TEST(SegmentHeaderBytes, AreTheOnesInTheTable) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok()) << fd.error().message();
  const Result<Mapping> mapping = map_segment(fd->get(), false);
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->bytes(), 3 * kPageBytes);
  const auto u32 = [&](std::size_t offset) {
    std::uint32_t value = 0;
    std::memcpy(&value, mapping->data() + offset, 4);
    return value;
  };
  const auto u64 = [&](std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, mapping->data() + offset, 8);
    return value;
  };
  EXPECT_EQ(std::memcmp(mapping->data(), "RINGFEED", 8), 0);
  EXPECT_EQ(u32(8), kAbiMajor);
  EXPECT_EQ(u32(12), kAbiMinor);
  EXPECT_EQ(u64(16), kLayoutHash);
  EXPECT_EQ(u32(24), 256U);
  EXPECT_EQ(u32(28), static_cast<std::uint32_t>(SegmentKind::kRing));
  EXPECT_EQ(u64(32), 3 * kPageBytes);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(static_cast<std::uint8_t>(mapping->data()[40 + i]), 0xa0 + i);
  }
  EXPECT_EQ(u64(56), 0x1122334455667788U);
  EXPECT_EQ(u32(64), 0x01020304U);
  EXPECT_EQ(u32(68), 4096U);
  EXPECT_EQ(u64(72), 0U);
  EXPECT_EQ(u64(80), 0U);
  EXPECT_GT(u64(88), 1'500'000'000'000'000'000U) << "nanoseconds since 1970";
  EXPECT_NE(u64(96), 0U);
  EXPECT_EQ(u32(104), kAbiMinReader);
  EXPECT_EQ(u32(112), 17U);
  EXPECT_EQ(u32(116), 0U);
  EXPECT_EQ(u32(120), 19U);
  EXPECT_EQ(u32(176), crc32c_small(reinterpret_cast<const std::uint8_t*>(mapping->data()), 176));
  EXPECT_EQ(u32(180), 1U) << "ready";
  for (std::size_t i = 184; i < mapping->bytes(); ++i) {
    ASSERT_EQ(mapping->data()[i], std::byte{0}) << i;
  }
}

// The check value of CRC-32C, from the catalogue of parametrised CRC algorithms.
TEST(SegmentHeaderBytes, AreSummedByTheCastagnoliPolynomial) {
  constexpr std::uint8_t kDigits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  EXPECT_EQ(crc32c_small(kDigits, 9), 0xe3069283U);
  EXPECT_EQ(crc32c_small(kDigits, 0), 0U);
}

struct Spoilt {
  const char* name;
  std::function<void(SegmentHeader&)> spoil;
  bool resum;  // give the spoilt header a right checksum
  ErrorCode code;
  const char* says;
};

class CheckHeader : public ::testing::TestWithParam<Spoilt> {};

TEST_P(CheckHeader, RefusesInOneSentenceThatNamesTheSegment) {
  const FeedIdentity feed = some_feed();
  const Result<Fd> fd = create_segment(some_spec(), {}, feed);
  ASSERT_TRUE(fd.ok());
  const Result<Mapping> mapping = map_segment(fd->get(), true);
  ASSERT_TRUE(mapping.ok());
  SegmentHeader& header = header_of(*mapping);
  ASSERT_TRUE(check_header(header, SegmentKind::kRing, &feed, file_bytes(fd->get()), "x").ok());
  GetParam().spoil(header);
  if (GetParam().resum) {
    header.crc32c = crc32c_small(reinterpret_cast<const std::uint8_t*>(&header),
                                 offsetof(SegmentHeader, crc32c));
  }
  const Status status =
      check_header(header, SegmentKind::kRing, &feed, file_bytes(fd->get()), "lc0/ring a>b");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), GetParam().code);
  EXPECT_THAT(status.error().message(), ::testing::StartsWith("segment lc0/ring a>b: "));
  EXPECT_THAT(status.error().message(), HasSubstr(GetParam().says));
  EXPECT_THAT(status.error().message(), ::testing::Not(HasSubstr("\n")));
}
INSTANTIATE_TEST_SUITE_P(
    EachField, CheckHeader,
    ::testing::Values(
        Spoilt{"magic", [](SegmentHeader& h) { h.magic = 0; }, true, ErrorCode::kDamaged,
               "not a ringfeed segment"},
        Spoilt{"endian", [](SegmentHeader& h) { h.endian = 0x04030201; }, true,
               ErrorCode::kIncompatible, "byte order"},
        Spoilt{"abi_major", [](SegmentHeader& h) { h.abi_major = 9; }, true,
               ErrorCode::kIncompatible, "its ABI is 9.0, but this program reads 2.0"},
        Spoilt{"abi_min_reader", [](SegmentHeader& h) { h.abi_min_reader = kAbiMinor + 1; }, true,
               ErrorCode::kIncompatible, "use the same ringfeed version"},
        Spoilt{"layout_hash", [](SegmentHeader& h) { h.layout_hash ^= 1; }, true,
               ErrorCode::kIncompatible, "memory layout"},
        Spoilt{"header_bytes", [](SegmentHeader& h) { h.header_bytes = 512; }, true,
               ErrorCode::kIncompatible, "memory layout"},
        Spoilt{"crc32c", [](SegmentHeader& h) { h.crc32c ^= 1; }, false, ErrorCode::kDamaged,
               "checksum"},
        Spoilt{"geometry", [](SegmentHeader& h) { h.geometry[15] = 1; }, false, ErrorCode::kDamaged,
               "checksum"},
        Spoilt{"features", [](SegmentHeader& h) { h.features_required = 2; }, true,
               ErrorCode::kIncompatible, "0x2"},
        Spoilt{"kind", [](SegmentHeader& h) { h.kind = 6; }, true, ErrorCode::kIncompatible,
               "has kind 6, expected 2"},
        Spoilt{"total_bytes", [](SegmentHeader& h) { h.total_bytes += kPageBytes; }, true,
               ErrorCode::kDamaged, "has 12288 bytes, but its header says 16384"},
        Spoilt{"feed_id", [](SegmentHeader& h) { h.feed_id[15] ^= 1; }, true,
               ErrorCode::kIncompatible, "another feed"},
        Spoilt{"building", [](SegmentHeader& h) { h.state = 0; }, false, ErrorCode::kDamaged,
               "not finished by its builder"},
        Spoilt{"condemned", [](SegmentHeader& h) { h.state = 2; }, false, ErrorCode::kDamaged,
               "condemned"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(CheckHeaderOf, AnyFeedAcceptsAnyFeed) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok());
  const Result<Mapping> mapping = map_segment(fd->get(), false, 0, kPageBytes);
  ASSERT_TRUE(mapping.ok());
  EXPECT_TRUE(
      check_header(header_of(*mapping), SegmentKind::kRing, nullptr, 3 * kPageBytes, "x").ok());
}

TEST(CheckHeaderOf, AGrownArenaMayBeLargerThanItsHeaderSays) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok());
  const Result<Mapping> mapping = map_segment(fd->get(), false);
  ASSERT_TRUE(mapping.ok());
  EXPECT_TRUE(
      check_header(header_of(*mapping), SegmentKind::kRing, nullptr, 9 * kPageBytes, "x").ok());
}

TEST(FeedIds, AreNotAlike) { EXPECT_NE(random_feed_id(), random_feed_id()); }

// ---- memfds -------------------------------------------------------------------------------------

TEST(SegmentMemfd, IsReservedWhole) {
  SegmentSpec spec = some_spec();
  spec.bytes = 1'000'001;
  const Result<Fd> fd = create_segment(spec, {}, some_feed());
  ASSERT_TRUE(fd.ok());
  struct stat info {};
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(info.st_size), align_up(1'000'001, kPageBytes));
  EXPECT_GE(info.st_blocks * 512, info.st_size) << "a touch must not be the first to need memory";
  EXPECT_NE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SegmentMemfd, CanNeitherShrinkNorGrow) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok());
  EXPECT_NE(::ftruncate(fd->get(), kPageBytes), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(::ftruncate(fd->get(), 4 * kPageBytes), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_FALSE(grow_segment(fd->get(), 4 * kPageBytes, "x").ok());
  EXPECT_EQ(file_bytes(fd->get()), 3 * kPageBytes);
}

TEST(SegmentMemfd, ThatIsGrowableGrowsAndNeverShrinks) {
  SegmentSpec spec = some_spec();
  spec.growable = true;
  const Result<Fd> fd = create_segment(spec, {}, some_feed());
  ASSERT_TRUE(fd.ok());
  EXPECT_NE(::ftruncate(fd->get(), kPageBytes), 0);
  EXPECT_EQ(errno, EPERM);
  ASSERT_TRUE(grow_segment(fd->get(), 5 * kPageBytes + 1, "x").ok());
  EXPECT_EQ(file_bytes(fd->get()), 6 * kPageBytes);
  ASSERT_TRUE(grow_segment(fd->get(), kPageBytes, "x").ok()) << "it is as large already";
  EXPECT_EQ(file_bytes(fd->get()), 6 * kPageBytes);
}

TEST(SegmentMemfd, ThatCannotBeHadIsRefusedWithWhatIsMissing) {
  SegmentSpec spec = some_spec();
  spec.bytes = std::uint64_t{1} << 50;
  const Result<Fd> fd = create_segment(spec, {}, some_feed());
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(fd.error().message(), HasSubstr("segment lc0/ring unpack.0>sample.0: needs "
                                              "1048576.0 GiB"));
  EXPECT_THAT(fd.error().message(), HasSubstr("this machine has "));
}

TEST(SegmentMapping, SeesWhatAnotherMappingWrote) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok());
  const Result<Mapping> whole = map_segment(fd->get(), true);
  const Result<Mapping> last_page = map_segment(fd->get(), false, 2 * kPageBytes, kPageBytes);
  ASSERT_TRUE(whole.ok() && last_page.ok());
  whole->data()[2 * kPageBytes + 5] = std::byte{42};
  EXPECT_EQ(last_page->data()[5], std::byte{42});
}

TEST(SegmentMapping, BeyondTheEndIsRefused) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok());
  EXPECT_FALSE(map_segment(fd->get(), false, 3 * kPageBytes).ok());
  EXPECT_FALSE(map_segment(-1, false).ok());
}

TEST(SegmentMapping, MovesWithItsOwner) {
  const Result<Fd> fd = create_segment(some_spec(), {}, some_feed());
  ASSERT_TRUE(fd.ok());
  Result<Mapping> first = map_segment(fd->get(), true);
  ASSERT_TRUE(first.ok());
  const std::byte* const data = first->data();
  Mapping second = std::move(*first);
  EXPECT_EQ(second.data(), data);
  EXPECT_FALSE(*first);
  EXPECT_EQ(header_of(second).magic, kMagic);
}

// ---- files --------------------------------------------------------------------------------------

TEST(SegmentFile, StandsInTheDirectoryUnderItsNameForItsOwnerOnly) {
  const TemporaryDirectory directory;
  const Result<Fd> fd = create_segment(some_spec(), {directory.path()}, some_feed());
  ASSERT_TRUE(fd.ok()) << fd.error().message();
  EXPECT_THAT(directory.files(), ::testing::ElementsAre("lc0_ring_unpack.0_sample.0"));
  struct stat info {};
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(static_cast<std::uint64_t>(info.st_size), 3 * kPageBytes);
}

TEST(SegmentFile, OutlivesItsDescriptorsAndPassesTheCheck) {
  const TemporaryDirectory directory;
  const FeedIdentity feed = some_feed();
  {
    const Result<Fd> fd = create_segment(some_spec(), {directory.path()}, feed);
    ASSERT_TRUE(fd.ok());
    const Result<Mapping> mapping = map_segment(fd->get(), true);
    ASSERT_TRUE(mapping.ok());
    mapping->data()[kPageBytes] = std::byte{7};
  }
  const Fd fd(::open((directory.path() + "/lc0_ring_unpack.0_sample.0").c_str(), O_RDWR));
  ASSERT_TRUE(fd);
  const Result<Mapping> mapping = map_segment(fd.get(), false);
  ASSERT_TRUE(mapping.ok());
  EXPECT_TRUE(
      check_header(header_of(*mapping), SegmentKind::kRing, &feed, mapping->bytes(), "x").ok());
  EXPECT_EQ(mapping->data()[kPageBytes], std::byte{7});
}

TEST(SegmentFile, ThatWasTruncatedIsRefused) {
  const TemporaryDirectory directory;
  const Result<Fd> fd = create_segment(some_spec(), {directory.path()}, some_feed());
  ASSERT_TRUE(fd.ok());
  ASSERT_EQ(::ftruncate(fd->get(), kPageBytes), 0) << "a file cannot be sealed";
  const Result<Mapping> mapping = map_segment(fd->get(), false);
  ASSERT_TRUE(mapping.ok());
  const Status status =
      check_header(header_of(*mapping), SegmentKind::kRing, nullptr, mapping->bytes(), "x");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("it was truncated"));
}

// A feed may still be running on files of the same name: its memory must not vanish under it.
TEST(SegmentFile, ReplacesAnOlderOneWithoutTouchingItsBytes) {
  const TemporaryDirectory directory;
  const Result<Fd> old_fd = create_segment(some_spec(), {directory.path()}, some_feed());
  ASSERT_TRUE(old_fd.ok());
  const Result<Mapping> old_mapping = map_segment(old_fd->get(), true);
  ASSERT_TRUE(old_mapping.ok());
  old_mapping->data()[2 * kPageBytes] = std::byte{7};
  SegmentSpec smaller = some_spec();
  smaller.bytes = kPageBytes;
  ASSERT_TRUE(create_segment(smaller, {directory.path()}, some_feed()).ok());
  EXPECT_EQ(file_bytes(old_fd->get()), 3 * kPageBytes);
  EXPECT_EQ(old_mapping->data()[2 * kPageBytes], std::byte{7});
  EXPECT_EQ(fs::file_size(directory.path() + "/lc0_ring_unpack.0_sample.0"), kPageBytes);
}

TEST(SegmentFile, ThatDoesNotFitIsRefusedAndLeavesNothingBehind) {
  const TemporaryDirectory directory;
  SegmentSpec spec = some_spec();
  spec.bytes = std::uint64_t{1} << 62;
  const Result<Fd> fd = create_segment(spec, {directory.path()}, some_feed());
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(fd.error().message(), HasSubstr("free in " + directory.path()));
  EXPECT_THAT(directory.files(), IsEmpty());
}

TEST(SegmentFile, InADirectoryThatIsNotThereIsRefused) {
  const Result<Fd> fd = create_segment(some_spec(), {"/nowhere/at/all"}, some_feed());
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.error().code(), ErrorCode::kIo);
  EXPECT_THAT(fd.error().message(), HasSubstr("/nowhere/at/all/lc0_ring_unpack.0_sample.0"));
}

// In a child with a mount namespace of its own: 64 KiB of room. Exit: 0 all as claimed, 77 the
// kernel does not let this user mount, else the number of the claim that failed.
int fill_a_tiny_tmpfs(const std::string& directory) {
  const int flags = ::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS;
  if (::unshare(flags) != 0) return 77;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=64k,mode=700") != 0) return 77;
  SegmentSpec spec = some_spec();
  spec.bytes = 32 * 1024;
  const Result<Fd> fits = create_segment(spec, {directory}, some_feed());
  if (!fits.ok()) return 1;
  spec.name = "second";
  spec.bytes = 48 * 1024;
  const Result<Fd> does_not = create_segment(spec, {directory}, some_feed());
  if (does_not.ok()) return 2;
  if (does_not.error().code() != ErrorCode::kNoMemory) return 3;
  if (fs::exists(directory + "/second")) return 4;
  if (available_bytes({directory}) != 32 * 1024) return 5;  // nothing of it stays reserved
  const Status grown = grow_segment(fits->get(), 128 * 1024, "first");
  if (grown.ok() || grown.error().code() != ErrorCode::kNoMemory) return 6;
  if (file_bytes(fits->get()) != 32 * 1024) return 7;
  if (available_bytes({directory}) != 32 * 1024) return 8;
  if (!grow_segment(fits->get(), 64 * 1024, "first").ok()) return 9;  // the rest can be had
  return 0;
}

TEST(SegmentFile, InAFullFileSystemIsRefusedAndLeavesNothingBehind) {
  const TemporaryDirectory directory;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(fill_a_tiny_tmpfs(directory.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user may not mount a tmpfs";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the claim with this number failed";
}

// ---- arenas -------------------------------------------------------------------------------------

class Arenas : public ::testing::Test {
 protected:
  static Fd make_segment() {
    SegmentSpec spec;
    spec.name = "lc0/arena sample.0";
    spec.kind = SegmentKind::kArena;
    spec.bytes = arena_bytes(100);
    spec.growable = true;
    return create_segment(spec, {}, some_feed()).value_or_throw();
  }
  Fd fd = make_segment();
};

TEST_F(Arenas, HaveTheJournalTheRuntimesWordsAndTheStateOneBehindTheOther) {
  const Result<Arena> arena = Arena::map(fd.get(), 0, "a");
  ASSERT_TRUE(arena.ok());
  EXPECT_GE(kPageBytes, sizeof(SegmentHeader));
  EXPECT_EQ(reinterpret_cast<std::byte*>(arena->journal_area(0)), arena->base() + kPageBytes);
  EXPECT_EQ(arena->journal_area(1), arena->journal_area(0) + kJournalEntries);
  EXPECT_EQ(arena->base() + kRuntimeWordsOffset,
            reinterpret_cast<std::byte*>(arena->journal_area(1) + kJournalEntries));
  EXPECT_EQ(arena->state(), arena->base() + kRuntimeWordsOffset + kRuntimeWordsBytes);
  EXPECT_GE(arena->state_bytes(), 100U);
  EXPECT_EQ(arena->segment().bytes, file_bytes(fd.get()));
}

// Of a process there are 2^47 bytes at most, however many processors, and so lanes, it has.
TEST(ArenaRoom, IsAllThatABoundedOneNeedsAndAShareForThoseThatGrowWithTheirData) {
  constexpr std::uint64_t kGiB = 1 << 30;
  EXPECT_EQ(arena_room(5000, 0, 1, 0), 5000U);
  EXPECT_EQ(arena_room(5000, 64 * kGiB, 1024, 0), 64 * kGiB);
  EXPECT_EQ(arena_room(5000, 64 * kGiB, 1, 8 * kGiB), 64 * kGiB);
  EXPECT_EQ(arena_room(5000, kOpenEndedBytes, 1, 0), kOpenEndedBytes);
  for (const std::uint64_t lanes : {1, 44, 128, 1024, 100'000}) {
    EXPECT_LE(lanes * arena_room(5000, kOpenEndedBytes, lanes, 0), std::uint64_t{1} << 46);
    EXPECT_GE(arena_room(5000, kOpenEndedBytes, lanes, 0), kGiB / 4) << lanes;
    EXPECT_LE(lanes * arena_room(0, kOpenEndedBytes, lanes, 8 * kGiB), kGiB);
  }
  EXPECT_EQ(arena_room(5 * kGiB, kOpenEndedBytes, 1, 8 * kGiB), 5 * kGiB);
}

TEST_F(Arenas, GrowInPlaceAndKeepWhatTheyHold) {
  Result<Arena> arena = Arena::map(fd.get(), arena_bytes(1 << 20), "a");
  ASSERT_TRUE(arena.ok());
  std::byte* const state = arena->state();
  std::memset(state, 0x5a, arena->state_bytes());
  const std::uint64_t old_bytes = arena->state_bytes();
  ASSERT_TRUE(arena->grow(1 << 20).ok());
  EXPECT_EQ(arena->state(), state);
  ASSERT_GE(arena->state_bytes(), 1U << 20);
  for (std::uint64_t i = 0; i < old_bytes; ++i) ASSERT_EQ(state[i], std::byte{0x5a});
  for (std::uint64_t i = old_bytes; i < arena->state_bytes(); ++i) {
    ASSERT_EQ(state[i], std::byte{0});
  }
  state[arena->state_bytes() - 1] = std::byte{1};  // may be touched
  EXPECT_EQ(arena->segment().bytes, file_bytes(fd.get())) << "the journal may point there too";
}

TEST_F(Arenas, AreAsLargeInTheNextIncarnation) {
  {
    Result<Arena> arena = Arena::map(fd.get(), arena_bytes(1 << 20), "a");
    ASSERT_TRUE(arena.ok());
    ASSERT_TRUE(arena->grow(1 << 18).ok());
    arena->state()[1000] = std::byte{9};
  }
  const Result<Arena> arena = Arena::map(fd.get(), arena_bytes(1 << 20), "a");
  ASSERT_TRUE(arena.ok());
  EXPECT_GE(arena->state_bytes(), 1U << 18);
  EXPECT_EQ(arena->state()[1000], std::byte{9});
}

TEST_F(Arenas, ThatMayNotGrowSoFarStayUsable) {
  Result<Arena> arena = Arena::map(fd.get(), arena_bytes(1 << 20), "lc0/arena sample.0");
  ASSERT_TRUE(arena.ok());
  const std::uint64_t before = arena->state_bytes();
  const Status status = arena->grow((1 << 20) + kPageBytes);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(status.error().message(), HasSubstr("arena lc0/arena sample.0: needs "));
  EXPECT_EQ(arena->state_bytes(), before);
  EXPECT_EQ(file_bytes(fd.get()), arena_bytes(before));
  EXPECT_TRUE(arena->grow(before + 1).ok());
}

TEST_F(Arenas, ThatCannotGrowForWantOfMemoryStayUsable) {
  constexpr std::uint64_t kMoreThanThereIs = std::uint64_t{1} << 45;
  Result<Arena> arena = Arena::map(fd.get(), kMoreThanThereIs, "a");
  if (!arena.ok()) GTEST_SKIP() << "no address space: " << arena.error().message();
  const std::uint64_t before = arena->state_bytes();
  const Status status = arena->grow(kMoreThanThereIs - (1 << 20));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kNoMemory);
  EXPECT_EQ(arena->state_bytes(), before);
  EXPECT_EQ(file_bytes(fd.get()), arena_bytes(before));
  std::memset(arena->state(), 1, before);
  EXPECT_TRUE(arena->grow(before + 1).ok());
}

}  // namespace
// The files of control groups as a kernel shows them, in a directory.
class Cgroups : public ::testing::Test {
 protected:
  Cgroups() : root_(std::filesystem::temp_directory_path() / fmt::format("rf-cg-{}", ::getpid())) {}
  ~Cgroups() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }
  std::filesystem::path root_;
};

TEST_F(Cgroups, OfVersion1BoundTheRoomByTheOwnGroupAndThoseAboveIt) {
  const std::string own = "12:cpu,cpuacct:/job\n4:memory:/slurm/job_7/step_0\n1:name=systemd:/\n";
  EXPECT_EQ(room_of_cgroups(own, root_).bytes, std::numeric_limits<std::uint64_t>::max());
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  write("memory/slurm/job_7/memory.limit_in_bytes", "5000000");
  write("memory/slurm/job_7/memory.usage_in_bytes", "1000000");
  Room room = room_of_cgroups(own, root_);
  EXPECT_EQ(room.bytes, 4'000'000U);
  EXPECT_EQ(room.place, "control group /slurm/job_7");
  write("memory/slurm/job_7/step_0/memory.limit_in_bytes", "3000000");
  write("memory/slurm/job_7/step_0/memory.usage_in_bytes", "3500000");
  room = room_of_cgroups(own, root_);
  EXPECT_EQ(room.bytes, 0U) << "more is used than the limit";
  EXPECT_EQ(room.place, "control group /slurm/job_7/step_0");
  // In a container the own group's files are at the root.
  write("memory/memory.limit_in_bytes", "700");
  EXPECT_EQ(room_of_cgroups("4:memory:/docker/0123\n", root_).bytes, 700U);
}

TEST_F(Cgroups, OfVersion2BoundItToo) {
  write("a/memory.max", "max");
  write("a/b/memory.max", "1000");
  write("a/b/memory.current", "400");
  EXPECT_EQ(room_of_cgroups("0::/a/b/c\n", root_).bytes, 600U);
  EXPECT_EQ(room_of_cgroups("0::/a\n", root_).bytes, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(room_of_cgroups("0::/\nno line of a kernel's\n::\n", root_).bytes,
            std::numeric_limits<std::uint64_t>::max());
}

}  // namespace ringfeed::shm
