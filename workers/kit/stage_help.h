// What several stages share: default sizes of rings, and warnings that do not flood the log.
#pragma once

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/config.pb.h"
#include "ringfeed/shm/arena.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
// NodeSpec::state_bytes_max of a state that grows with its data and has no other bound.
inline constexpr std::uint64_t kGrowsWithData = shm::kOpenEndedBytes;

// An output port as the stage's common fields (queue_capacity, queue_bytes, overflow_behavior)
// describe it.
template <typename Config>
OutputSpec output_spec(const Config& config, std::string record_type, std::uint64_t queue_bytes,
                       UnitRule units) {
  OutputSpec out;
  out.port = "output";
  out.record_type = std::move(record_type);
  out.queue_capacity = config.queue_capacity();
  out.queue_bytes = config.has_queue_bytes() ? config.queue_bytes() : queue_bytes;
  out.overflow = config.overflow_behavior();
  out.units = units;
  return out;
}

// Says the first, second, fourth, eighth ... time that something happens, with its count.
class Occasions {
 public:
  // Is this occurrence one to speak of? count() is then how often it has happened in this process.
  bool speak() noexcept { return std::has_single_bit(++count_); }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  std::uint64_t count_ = 0;
};

// A counter of skipped input for one reason, and its warnings.
class SkipReason {
 public:
  SkipReason(const StageContext& context, std::string_view reason)
      : reason_(reason),
        stage_(context.stage),
        warn_(context.warn),
        counter_(context.counter(reason)) {}

  // Counts with the step; says so with the place and the text now and then. `lost`: what this one
  // occasion costs.
  void skip(Step& step, std::string_view place, std::uint64_t offset, std::string_view text,
            std::uint64_t lost = 1) noexcept {
    step.count(counter_, lost);
    more_ += lost - 1;
    if (!occasions_.speak()) return;
    warn_(fmt::format("skipped stage={} reason={} count={} path={} offset={}: {}", stage_, reason_,
                      occasions_.count() + more_, place, offset, text));
  }
  // The same of a sentence, by its number in the file.
  void skip_sentence(Step& step, std::string_view path, std::uint64_t sentence,
                     std::string_view text) noexcept {
    step.count(counter_);
    if (!occasions_.speak()) return;
    warn_(fmt::format("skipped stage={} reason={} count={} path={} sentence={}: {}", stage_,
                      reason_, occasions_.count(), path, sentence, text));
  }
  // The same of a chunk whose file is not known here: its identity is in the tags of its records.
  void skip_chunk(Step& step, std::uint64_t identity, std::uint64_t position,
                  std::string_view text) noexcept {
    step.count(counter_);
    if (!occasions_.speak()) return;
    warn_(fmt::format("skipped stage={} reason={} count={} chunk={:016x} position={}: {}", stage_,
                      reason_, occasions_.count(), identity, position, text));
  }

 private:
  std::string reason_;
  std::string stage_;
  std::function<void(std::string_view)> warn_;
  Counter counter_;
  Occasions occasions_;
  std::uint64_t more_ = 0;  // that the occasions cost, beside one each
};

}  // namespace ringfeed
