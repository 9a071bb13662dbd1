#include "workers/kit/place_pool.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ringfeed {

PlacePool::PlacePool(StateLayout& layout, Word places_bytes, std::span<const std::uint64_t> sizes,
                     std::uint64_t alignment, std::uint64_t given_up_max)
    : sizes_(sizes),
      mask_(alignment - 1),
      given_up_max_(given_up_max),
      places_bytes_(places_bytes) {
  RF_CHECK(sizes.size() <= alignment, sizes.size(), alignment);
  for (const std::uint64_t size : sizes) {
    RF_CHECK(size % alignment == 0, size, alignment);
    free_.push_back({layout.word(), layout.word(), layout.word()});
  }
  places_ = layout.place(0, std::max<std::uint64_t>(alignment, 64));
}

void PlacePool::fetch(const Step& step, std::uint64_t place, std::uint64_t bytes) const noexcept {
  // A number out of date may be of no size.
  const std::uint64_t number = std::min<std::uint64_t>(place & mask_, sizes_.size() - 1);
  bytes = std::min(bytes, sizes_[number]);
  place = offset(place);
  if (place + bytes > step.state_bytes()) return;
  const std::byte* at = step.bytes(place);
  for (std::uint64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + line);
}

bool PlacePool::take(Step& step, std::uint64_t bytes, std::uint64_t* place) noexcept {
  const auto fitting = std::lower_bound(sizes_.begin(), sizes_.end(), bytes + kHead);
  RF_CHECK(fitting != sizes_.end(), bytes);
  const auto number = static_cast<std::uint64_t>(fitting - sizes_.begin());
  const Queue& queue = free_[number];
  const std::uint64_t length = step.load(queue.length);
  if (length > given_up_max_) {
    *place = step.load(queue.front);
    const std::uint64_t next = step.load(Word{offset(*place)});
    step.store(queue.front, next);
    // It was given up long ago, and will be written soon.
    fetch(step, next, 1280);
    step.store(queue.length, length - 1);
    return true;
  }
  const std::uint64_t made = step.load(places_bytes_);
  const std::uint64_t end = places_.offset + made + *fitting;
  if (!step.grow(end, end + std::max(kGrowthMin, step.state_bytes() / 16))) return false;
  *place = (places_.offset + made) | number;
  step.store(places_bytes_, made + *fitting);
  return true;
}

std::byte* PlacePool::make(Step& step, std::uint64_t bytes, std::uint64_t* place) noexcept {
  if (!take(step, bytes, place)) return nullptr;
  // Nothing refers to the place until the commit, so a death in mid-copy leaves no trace. Its
  // length is a word: it may be in the journal, as a link of the free queue.
  step.store(Word{offset(*place)}, bytes);
  return step.bytes_to_write(offset(*place) + kHead, bytes);
}

bool PlacePool::put(Step& step, std::span<const std::byte> record, std::uint64_t* place) noexcept {
  std::byte* to = make(step, record.size(), place);
  if (to == nullptr) return false;
  if (!record.empty()) std::memcpy(to, record.data(), record.size());
  return true;
}

void PlacePool::give(Step& step, std::uint64_t place) noexcept {
  const Queue& queue = free_[place & mask_];
  const std::uint64_t length = step.load(queue.length);
  if (length == 0) {
    step.store(queue.front, place);
  } else {
    step.store(Word{offset(step.load(queue.back))}, place);
  }
  step.store(queue.back, place);
  step.store(queue.length, length + 1);
}

std::span<const std::byte> PlacePool::record(const Step& step, std::uint64_t place) const noexcept {
  const std::uint64_t bytes = step.load(Word{offset(place)});
  RF_CHECK(bytes + kHead <= size(place), bytes, place);
  return {step.bytes(offset(place)) + kHead, bytes};
}

std::span<const std::byte> PlacePool::record(const StageContext& context,
                                             std::uint64_t place) const noexcept {
  const std::uint64_t bytes = context.load(Word{offset(place)});
  RF_CHECK(bytes + kHead <= size(place) && offset(place) + size(place) <= context.state_bytes,
           bytes, place, context.state_bytes);
  return {context.state + offset(place) + kHead, bytes};
}

std::span<const std::uint64_t> usual_place_sizes() noexcept {
  constexpr std::size_t kSizes = 4 * 23 + 1;
  static constexpr auto kTable = [] {
    std::array<std::uint64_t, kSizes> sizes{};
    for (std::size_t i = 0; i < kSizes; ++i)
      sizes[i] = (4 + i % 4) * (std::uint64_t{128} << (i / 4));
    return sizes;
  }();
  static_assert(kTable.front() == 512 && kTable.back() == std::uint64_t{4} << 30);
  return kTable;
}

}  // namespace ringfeed
