#include "tests/crash/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/worker/random.h"

namespace ringfeed::crash {
namespace {

using shm::kPageBytes;
using testing::RigSegment;

// What one word adds to the hash of an image: nothing if it is 0, so that room that was never used
// costs nothing.
std::uint64_t share(std::uint32_t segment, std::uint64_t offset, std::uint64_t value) {
  return value == 0 ? 0 : mix(std::uint64_t{segment} << 56 | offset, value);
}

bool all_zero(const std::byte* page) {
  return page[0] == std::byte{0} && std::memcmp(page, page + 1, kPageBytes - 1) == 0;
}

}  // namespace

Memory::Memory(testing::LaneRig& rig)
    : rig_(rig), segments_(rig.segments()), lanes_(rig.lane_count()) {
  first_arena_ = static_cast<std::uint32_t>(segments_.size() - lanes_);
  for (std::size_t i = first_arena_; i < segments_.size(); ++i) {
    void* const at = ::mmap(nullptr, segments_[i].mapped_bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, segments_[i].fd, 0);
    RF_CHECK(at != MAP_FAILED, errno, segments_[i].mapped_bytes);
    segments_[i].data = static_cast<std::byte*>(at);
  }
}

Memory::~Memory() {
  for (std::size_t i = first_arena_; i < segments_.size(); ++i) {
    ::munmap(segments_[i].data, segments_[i].mapped_bytes);
  }
}

std::uint64_t Memory::bytes(std::uint32_t segment) const {
  struct stat info {};
  RF_CHECK(::fstat(segments_[segment].fd, &info) == 0, errno);
  return static_cast<std::uint64_t>(info.st_size);
}

bool Memory::is_clock(std::uint32_t segment, std::uint64_t offset) const {
  if (segments_[segment].kind != shm::SegmentKind::kControl) return false;
  if (offset < kPageBytes || offset >= shm::bells_offset(lanes_)) return false;
  const std::uint64_t at = offset % kPageBytes;
  constexpr std::uint64_t kCounters = offsetof(shm::LanePage, counters);
  return at == offsetof(shm::LanePage, progress_ns) ||
         (at >= kCounters && at < kCounters + offsetof(shm::LaneCounters, named));
}

Image Memory::copy() const {
  Image image;
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    const std::byte* const data = segments_[i].data;
    image.segments.emplace_back(data, data + bytes(i));
    for (std::uint64_t page = 0; page < image.segments[i].size(); page += kPageBytes) {
      if (all_zero(data + page)) continue;
      for (std::uint64_t at = page; at < page + kPageBytes; at += 8) {
        if (!is_clock(i, at)) image.hash += share(i, at, word_at(data + at));
      }
    }
  }
  return image;
}

void Memory::apply(Image& image, const WordChange& change) const {
  std::memcpy(image.segments[change.segment].data() + change.offset, &change.after,
              sizeof change.after);
  if (is_clock(change.segment, change.offset)) return;
  image.hash += share(change.segment, change.offset, change.after) -
                share(change.segment, change.offset, change.before);
}

void Memory::compare(Image& image, std::vector<WordChange>& changes) const {
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    for (std::uint64_t page = 0; page < image.segments[i].size(); page += kPageBytes) {
      const std::byte* const now = segments_[i].data + page;
      const std::byte* const then = image.segments[i].data() + page;
      if (std::memcmp(now, then, kPageBytes) == 0) continue;
      for (std::uint64_t at = 0; at < kPageBytes; at += 8) {
        if (word_at(now + at) == word_at(then + at)) continue;
        changes.push_back({i, page + at, word_at(then + at), word_at(now + at)});
        apply(image, changes.back());
      }
    }
  }
}

void Memory::grow(Image& image, std::uint32_t segment, std::uint64_t bytes) {
  RF_CHECK(bytes >= image.segments[segment].size(), bytes, segment);
  image.segments[segment].resize(bytes);
  // A state with more room is another state.
  image.hash += mix(segment, bytes);
}

void Memory::remap(const RigSegment& segment, int flags) {
  // MAP_NORESERVE: an arena's address space is larger than any machine's memory.
  void* const at = ::mmap(segment.data, segment.mapped_bytes, PROT_READ | PROT_WRITE,
                          flags | MAP_FIXED | MAP_NORESERVE, segment.fd, 0);
  RF_CHECK(at == segment.data, errno, segment.mapped_bytes);
}

void Memory::separate() {
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    const RigSegment& segment = segments_[i];
    const std::uint64_t size = bytes(i);
    const int fd = ::memfd_create(segment.name.c_str(), MFD_CLOEXEC);
    RF_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) == 0, errno);
    for (std::uint64_t page = 0; page < size; page += kPageBytes) {
      if (all_zero(segment.data + page)) continue;
      RF_CHECK(::pwrite(fd, segment.data + page, kPageBytes, static_cast<off_t>(page)) ==
                   static_cast<ssize_t>(kPageBytes),
               errno);
    }
    RF_CHECK(::dup3(fd, segment.fd, O_CLOEXEC) == segment.fd, errno);
    ::close(fd);
    remap(segment, MAP_SHARED);
  }
}

void Memory::resize(std::uint32_t segment, std::uint64_t size) {
  if (bytes(segment) == size) return;
  // Shrunk to nothing of what lies beyond, then zeros: what a finished copy has left there goes.
  RF_CHECK(::ftruncate(segments_[segment].fd, static_cast<off_t>(size)) == 0, errno, size);
}

void Memory::store(std::uint32_t segment, std::uint64_t offset, std::uint64_t value) const {
  std::memcpy(segments_[segment].data + offset, &value, sizeof value);
}

void Memory::make_private() {
  for (const RigSegment& segment : segments_) remap(segment, MAP_PRIVATE);
  rig_.on_arena([](const RigSegment& segment) { remap(segment, MAP_PRIVATE); });
}

}  // namespace ringfeed::crash
