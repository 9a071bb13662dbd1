// Shuffles frames: each frame that arrives takes the place of a random earlier one, which goes out.
//
//   input    frames   packed frames
//   output   frames   the same, in another order; with their tags
//   arena    list of places (16 bytes each: place and tag), the places themselves; grows if frames
//            are larger than usual
//   at end   the reservoir goes out in random order, then the output closes; on drain it does not
//            (it is state)
//   skips    a frame larger than any packed frame can be (frames_skipped)
//
// Several lanes keep the order of games among them (the last unit of each is what its reservoir
// held at the end); their number is part of what a seed means.
#pragma once

#include <array>
#include <cstdint>

#include "ringfeed/worker/stage.h"
#include "workers/kit/place_pool.h"

namespace ringfeed {

StageType shuffling_frame_sampler_type();

class ShufflingFrameSampler final : public Stage {
 public:
  // Most frames of usual games have 1040 to 1232 bytes.
  static constexpr std::array<std::uint64_t, 11> kPlaceBytes = {1008, 1056, 1104, 1152, 1200, 1248,
                                                                1296, 1344, 1440, 1680, 8432};
  static constexpr std::uint64_t kPlaceAlignment = 16;
  static constexpr std::uint32_t kStepsPerCommit = 64;

  struct State {
    State(StateLayout& layout, std::uint64_t reservoir_size)
        : count(layout.word()),
          places_bytes(layout.word()),
          list(layout.words(2 * reservoir_size)),
          places(layout, places_bytes, kPlaceBytes, kPlaceAlignment, kStepsPerCommit) {}
    Word count;         // frames in the reservoir
    Word places_bytes;  // bytes of the places made so far
    Words list;         // 2 i: place of frame i, 2 i + 1: its tag
    PlacePool places;
  };

  explicit ShufflingFrameSampler(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  bool put_frame(Step& step, std::uint64_t index) noexcept;
  StepStatus drain(Step& step) noexcept;
  void fetch_early(const Step& step) noexcept;
  void say(std::uint64_t count) noexcept;

  StageContext context_;
  std::uint64_t reservoir_size_;
  State state_;
  InPort in_;
  OutPort out_;
  Counter frames_held_;
  Counter frames_skipped_;
  std::uint64_t said_at_ = 0;
  // Whose turn it will be soon, as foreseen; no more than a hint.
  std::array<std::uint64_t, 8> foreseen_{};
  std::uint64_t foreseen_at_ = 0;
};

}  // namespace ringfeed
