// The specification of ringfeed/shm/large_pages.h.
#include "ringfeed/shm/large_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "ringfeed/shm/segment.h"

namespace ringfeed::shm {
namespace {

constexpr std::uint64_t kBytes = 4 * kLargePageBytes;

struct Segment {
  Fd fd;
  Mapping mapping;
  [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::uint64_t page) const {
    return std::atomic_ref(
        *reinterpret_cast<std::uint64_t*>(mapping.data() + kPageBytes * page + 1024));
  }
};

Segment make_segment(std::uint64_t bytes) {
  SegmentSpec spec;
  spec.name = "lc0/arena";
  spec.kind = SegmentKind::kArena;
  spec.bytes = bytes;
  Segment segment;
  segment.fd = create_segment(spec, Storage{}, FeedIdentity{}).value_or_throw();
  segment.mapping = map_segment(segment.fd.get(), true).value_or_throw();
  return segment;
}

// What the kernel has mapped at this address in large pages.
std::uint64_t large_kib(const std::byte* at) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(at) << '-';
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(begin.str())) here = true;
    if (!here || !line.starts_with("ShmemPmdMapped:")) continue;
    return std::stoull(line.substr(line.find(':') + 1));
  }
  return 0;
}

TEST(LargePages, FitWhereASegmentIsMappedThatHasRoomForOne) {
  for (const std::uint64_t bytes : {kLargePageBytes, kBytes, kBytes + kPageBytes}) {
    const Segment segment = make_segment(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment.mapping.data()) % kLargePageBytes, 0U);
  }
}

TEST(LargePages, ASmallSegmentAndOneBeyondAllAddressesLieAnywhere) {
  EXPECT_EQ(place_for_large_pages(kLargePageBytes - kPageBytes), nullptr);
  EXPECT_EQ(place_for_large_pages(std::uint64_t{1} << 62), nullptr);
}

// Both mappings see every store, those during the move included.
TEST(LargePages, ContentsStayWhoeverWritesMeanwhile) {
  constexpr std::uint64_t kPages = kBytes / kPageBytes;
  const Segment segment = make_segment(kBytes);
  const Mapping other = map_segment(segment.fd.get(), false).value_or_throw();
  std::atomic<bool> over{false};
  std::uint64_t rounds = 0;
  std::thread writer([&] {
    // relaxed, all: the join orders everything.
    do {
      for (std::uint64_t page = 1; page < kPages; ++page) {
        segment.word(page).store(rounds * kPages + page, std::memory_order_relaxed);
      }
      ++rounds;
    } while (!over.load(std::memory_order_relaxed));
  });
  std::uint64_t large = 0;
  for (std::uint64_t at = 0; at < kBytes; at += kLargePageBytes) {
    if (gather_pages(segment.mapping.data() + at, kLargePageBytes)) large += kLargePageBytes;
  }
  over.store(true, std::memory_order_relaxed);
  writer.join();
  for (std::uint64_t page = 1; page < kPages; ++page) {
    const std::uint64_t value = (rounds - 1) * kPages + page;
    EXPECT_EQ(segment.word(page).load(std::memory_order_relaxed), value);
    EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(other.data() + kPageBytes * page + 1024),
              value);
  }
  EXPECT_EQ(large_kib(segment.mapping.data()), large / 1024) << "what it says is what there is";
}

TEST(LargePages, AreRefusedWhereNothingIsMapped) {
  void* const nowhere = place_for_large_pages(kBytes);
  ASSERT_NE(nowhere, nullptr);
  EXPECT_FALSE(gather_pages(static_cast<std::byte*>(nowhere), kLargePageBytes));
}

}  // namespace
}  // namespace ringfeed::shm
