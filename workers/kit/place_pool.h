// Room in a lane's arena for records of any size, at the arena's end, where it grows.
//
// Places come in given sizes, so that a record takes little more than it needs. A place begins with
// 8 bytes: how many of the others are in use, or, of a free one, the next free place. Free places
// of a size stand in a queue that runs through them; one that is given up goes to its end, and one
// is taken from its front only if more stand there than one commit can have added. So no call of
// step() writes a place that committed state still refers to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class PlacePool {
 public:
  // `sizes`: ascending, multiples of `alignment`, at most as many as the alignment, so that a place
  // is its offset with the number of its size in the low bits. `given_up_max`: places that one
  // commit gives up at most. Its places are the last thing in the layout.
  PlacePool(StateLayout& layout, Word places_bytes, std::span<const std::uint64_t> sizes,
            std::uint64_t alignment, std::uint64_t given_up_max);

  // Bytes before the first place.
  [[nodiscard]] std::uint64_t head_bytes() const noexcept { return places_.offset; }
  [[nodiscard]] std::uint64_t bytes_max() const noexcept { return sizes_.back() - kHead; }

  // Writes the record to a place that nothing refers to. False: the arena cannot grow now, return
  // kNoRoom. RF_CHECK: it is not larger than bytes_max().
  [[nodiscard]] bool put(Step& step, std::span<const std::byte> record,
                         std::uint64_t* place) noexcept;
  // The same of a record of so many bytes that the caller writes; nullptr: no room now.
  [[nodiscard]] std::byte* make(Step& step, std::uint64_t bytes, std::uint64_t* place) noexcept;
  // Gives a place up; its bytes may be read until the end of the step.
  void give(Step& step, std::uint64_t place) noexcept;
  // What put() wrote.
  [[nodiscard]] std::span<const std::byte> record(const Step& step,
                                                  std::uint64_t place) const noexcept;
  // The same as committed, for caches that are built with the stage.
  [[nodiscard]] std::span<const std::byte> record(const StageContext& context,
                                                  std::uint64_t place) const noexcept;
  // The record's word number `index`, if step.store() is to change it.
  [[nodiscard]] Word word(std::uint64_t place, std::uint64_t index) const noexcept {
    return {offset(place) + kHead + 8 * index};
  }
  // Brings a place into the cache, or as much of it as `bytes`. It may be one out of date.
  void fetch(const Step& step, std::uint64_t place, std::uint64_t bytes) const noexcept;

 private:
  static constexpr std::uint64_t kHead = 8;
  static constexpr std::uint64_t kGrowthMin = 16ULL << 20;
  struct Queue {
    Word front;  // place that is taken next
    Word back;   // place that was given up last
    Word length;
  };
  [[nodiscard]] std::uint64_t offset(std::uint64_t place) const noexcept { return place & ~mask_; }
  [[nodiscard]] std::uint64_t size(std::uint64_t place) const noexcept {
    return sizes_[place & mask_];
  }
  [[nodiscard]] bool take(Step& step, std::uint64_t bytes, std::uint64_t* place) noexcept;

  std::span<const std::uint64_t> sizes_;
  std::uint64_t mask_;
  std::uint64_t given_up_max_;
  Word places_bytes_;  // of the places made so far
  std::vector<Queue> free_;
  Place places_;
};

// Sizes from 512 bytes to 4 GiB, four to each doubling: a place is at most a quarter larger than
// what is in it. For records of any kind, aligned to 128 bytes.
[[nodiscard]] std::span<const std::uint64_t> usual_place_sizes() noexcept;
inline constexpr std::uint64_t kUsualPlaceAlignment = 128;

}  // namespace ringfeed
