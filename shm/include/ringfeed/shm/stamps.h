// Stamps: a lane records which pages of its arena and which of its batch slots it changes, so that
// a snapshot can skip the others.
//
// Heads segment of a lane, behind its head lines; geometry[0] = head lines, [1] = stamps of pages
// (N, a power of 2), [2] = stamps of slots:
//   offset                     size  content
//   stamps_offset(geometry[0])  4 N  page p of the arena has stamp p mod N: one for all its pages
//                                    as it is planned, shared by few if it grows far beyond that
//   ...                 4 * slots    the lane's own slots, in turn
// A stamp is the generation in which the page was last changed. Header, journal and runtime words
// change all the time, so do not rely on their stamps.
//
// The supervisor raises `generation` in the lane page. The lane takes it over between two steps: it
// stores `generation_seen` (release), and from then on stamps with it, each page before the first
// byte of it is written. Neither word ever decreases. So a reader of generation_seen = g (acquire)
// sees everything that was written in earlier generations, with its stamps, and everything that is
// written later has a stamp of g or more. This holds whether g is the newest generation or an old
// one. What a dead lane has written was stamped before; its next incarnation goes on from
// generation_seen or later.
#pragma once

#include <algorithm>
#include <bit>
#include <span>

#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/ring_layout.h"

namespace ringfeed::shm {

using Stamp = std::atomic<std::uint32_t>;
static_assert(sizeof(Stamp) == 4);

constexpr std::uint64_t stamps_offset(std::uint64_t head_lines) noexcept {
  return align_up(kHeadLinesOffset + head_lines * sizeof(HeadLine), kPageBytes);
}
constexpr std::uint64_t heads_bytes(std::uint64_t head_lines, std::uint64_t page_stamps,
                                    std::uint64_t slots) noexcept {
  return stamps_offset(head_lines) + align_up((page_stamps + slots) * sizeof(Stamp), kPageBytes);
}
// An arena may often grow far more than it ever does. So its first 64 MiB have stamps of their own
// even if less is planned.
constexpr std::uint64_t page_stamps(std::uint64_t arena_bytes,
                                    std::uint64_t arena_bytes_max) noexcept {
  const std::uint64_t precise = std::max<std::uint64_t>(arena_bytes, 64 << 20);
  return std::bit_ceil(std::min(precise, std::max(arena_bytes, arena_bytes_max)) / kPageBytes);
}

// The lane's side.
class Stamps {
 public:
  Stamps() = default;
  // `heads`: the lane's own heads segment, whole.
  Stamps(LanePage& page, std::span<std::byte> heads, std::uint64_t head_lines,
         std::uint64_t page_stamps, std::uint64_t slots) noexcept
      : page_(&page),
        pages_(reinterpret_cast<Stamp*>(heads.data() + stamps_offset(head_lines))),
        mask_(page_stamps - 1),
        slots_(slots) {
    RF_CHECK(std::has_single_bit(page_stamps) &&
                 heads.size() >= heads_bytes(head_lines, page_stamps, slots),
             heads.size(), head_lines, page_stamps, slots);
  }

  // Called between two steps, and before a new incarnation writes anything.
  void follow() noexcept {
    if (page_ == nullptr) return;
    // acquire: everything that this lane does in the new generation comes after the order for it.
    const std::uint32_t ordered = page_->generation.load(std::memory_order_acquire);
    // relaxed: this lane's own word.
    generation_ = page_->generation_seen.load(std::memory_order_relaxed);
    if (ordered <= generation_) return;
    generation_ = ordered;
    // release: all that was written in earlier generations is there, with its stamps.
    page_->generation_seen.store(ordered, std::memory_order_release);
  }
  // Is there a newer generation? (the sleeper's look)
  [[nodiscard]] bool behind() const noexcept {
    // seq_cst, pairs with the supervisor's store: it rings the bell after it.
    return page_ != nullptr && page_->generation.load(std::memory_order_seq_cst) > generation_;
  }

  // Bytes [offset, offset + bytes) of the arena are about to be written.
  void mark(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (page_ == nullptr || bytes == 0) return;
    const std::uint64_t last = (offset + bytes - 1) / kPageBytes;
    for (std::uint64_t page = offset / kPageBytes; page <= last; ++page)
      stamp(pages_[page & mask_]);
    // After a death the processor's stores are visible in order or not at all. The compiler must
    // not move the write before its stamp.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  // The lane's i-th slot is about to be written.
  void mark_slot(std::uint64_t i) noexcept {
    if (page_ == nullptr) return;
    RF_CHECK(i < slots_, i, slots_);
    stamp(pages_[mask_ + 1 + i]);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // as above
  }

 private:
  void stamp(Stamp& word) const noexcept {
    // relaxed, both: this lane is the only writer, and generation_seen publishes them. An equal
    // value is not stored again, so that the line stays clean.
    if (word.load(std::memory_order_relaxed) != generation_) {
      word.store(generation_, std::memory_order_relaxed);
    }
  }

  LanePage* page_ = nullptr;  // null: no stamps are wanted (tests of parts of a lane)
  Stamp* pages_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t slots_ = 0;
  std::uint32_t generation_ = 0;
};

}  // namespace ringfeed::shm
