// All memory that the lanes of a rig share, as one thing: copied, compared word by word, put back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/rig/lane_rig.h"

namespace ringfeed::crash {

inline std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// A word of shared memory that has changed. `segment` as in Memory::segments().
struct WordChange {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t before = 0;
  std::uint64_t after = 0;
};

// The bytes of every segment.
struct Image {
  std::vector<std::vector<std::byte>> segments;
  // Of all words but those that only tell time (Memory::is_clock).
  std::uint64_t hash = 0;
};

class Memory {
 public:
  explicit Memory(testing::LaneRig& rig);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // As the rig gives them, but with the arenas mapped once more, for lanes come and go.
  [[nodiscard]] const std::vector<testing::RigSegment>& segments() const { return segments_; }
  [[nodiscard]] std::uint32_t arena_of(std::size_t lane) const {
    return first_arena_ + static_cast<std::uint32_t>(lane);
  }
  // The size that the segment has now.
  [[nodiscard]] std::uint64_t bytes(std::uint32_t segment) const;

  [[nodiscard]] Image copy() const;
  // Adds the words that differ from the image, and makes the image the same.
  void compare(Image& image, std::vector<WordChange>& changes) const;
  // Makes the change in the image.
  void apply(Image& image, const WordChange& change) const;
  // A larger arena in the image as well, with zeros.
  static void grow(Image& image, std::uint32_t segment, std::uint64_t bytes);

  // From now on this process has segments of its own: the same bytes at the same addresses, and the
  // rig's descriptors lead to them. Other processes keep the old ones.
  void separate();
  // The segment gets this size, zeros where it grows, in a separate memory.
  void resize(std::uint32_t segment, std::uint64_t bytes);
  void store(std::uint32_t segment, std::uint64_t offset, std::uint64_t value) const;
  // From now on nothing that this process stores is seen by others, arenas that lanes attach later
  // included. Called again, it forgets what was stored since. Sizes are still shared.
  void make_private();

  // A word that tells when something happened or how long it took, and that no lane acts upon.
  [[nodiscard]] bool is_clock(std::uint32_t segment, std::uint64_t offset) const;

 private:
  static void remap(const testing::RigSegment& segment, int flags);

  testing::LaneRig& rig_;
  std::vector<testing::RigSegment> segments_;
  std::uint32_t first_arena_ = 0;
  std::uint64_t lanes_ = 0;
};

}  // namespace ringfeed::crash
