#include "workers/kit/stream_shuffler.h"

#include <algorithm>
#include <cstring>

namespace ringfeed {
namespace {

// More than this many new integers are not listed in the journal but written to the other bank.
constexpr std::uint64_t kListedMax = 16;

}  // namespace

StreamShuffler::StreamShuffler(StateLayout& layout, std::uint64_t range_max)
    : range_max_(range_max),
      lower_(layout.word()),
      upper_(layout.word()),
      count_(layout.word()),
      bank_(layout.word()),
      banks_{layout.words(2 * range_max + kListedMax), layout.words(2 * range_max + kListedMax)} {}

void StreamShuffler::reset(Step& step, std::uint64_t lower, std::uint64_t upper) const noexcept {
  RF_CHECK(lower <= upper && upper - lower <= range_max_, lower, upper, range_max_);
  const std::uint64_t other = step.load(bank_) ^ 1;
  std::byte* at = step.bytes_to_write(bank(other).offset, 8 * (upper - lower));
  for (std::uint64_t value = lower; value < upper; ++value, at += 8) std::memcpy(at, &value, 8);
  step.store(bank_, other);
  step.store(count_, upper - lower);
  step.store(lower_, lower);
  step.store(upper_, upper);
}

void StreamShuffler::move_up(Step& step, std::uint64_t lower, std::uint64_t upper) const noexcept {
  const std::uint64_t old_upper = step.load(upper_);
  RF_CHECK(lower >= step.load(lower_) && upper >= old_upper && lower <= upper &&
               upper - lower <= range_max_,
           lower, upper, step.load(lower_), old_upper);
  const std::uint64_t count = step.load(count_);
  const Words& now = bank(step.load(bank_));
  const std::uint64_t first_new = std::max(lower, old_upper);
  if (upper - first_new <= kListedMax && count + kListedMax <= now.count) {
    for (std::uint64_t i = 0; i < upper - first_new; ++i) step.store(now[count + i], first_new + i);
    step.store(count_, count + upper - first_new);
  } else {
    const std::uint64_t other = step.load(bank_) ^ 1;
    std::byte* const begin =
        step.bytes_to_write(bank(other).offset, 8 * (count + upper - first_new));
    std::byte* at = begin;
    const auto put = [&at](std::uint64_t value) {
      std::memcpy(at, &value, 8);
      at += 8;
    };
    for (std::uint64_t i = 0; i < count; ++i) {
      if (const std::uint64_t value = step.load(now[i]); value >= lower) put(value);
    }
    for (std::uint64_t value = first_new; value < upper; ++value) put(value);
    step.store(bank_, other);
    step.store(count_, static_cast<std::uint64_t>(at - begin) / 8);
  }
  step.store(lower_, lower);
  step.store(upper_, upper);
}

StreamShuffler::Draw StreamShuffler::next(Step& step) const noexcept {
  const std::uint64_t lower = step.load(lower_);
  std::uint64_t count = step.load(count_);
  const Words& now = bank(step.load(bank_));
  for (std::uint32_t tries = 0; tries <= kStalePerDraw; ++tries) {
    if (count == 0) {
      step.store(count_, 0);
      return {.exhausted = true, .value = std::nullopt};
    }
    const std::uint64_t at = step.draw(count);
    const std::uint64_t value = step.load(now[at]);
    --count;
    if (at != count) step.store(now[at], step.load(now[count]));
    if (value >= lower) {
      step.store(count_, count);
      return {.exhausted = false, .value = value};
    }
  }
  step.store(count_, count);
  return {};
}

}  // namespace ringfeed
