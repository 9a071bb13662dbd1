// New targets for a game that was played before: its policy, its result where a blunder decided it,
// what version 7 knows more than version 6. Endgame tables are not used.
//
// In this order:
//   policy       p' = max(0, p + offset)^(1 / temperature), then made to sum to 1. Moves that are
//                marked illegal, and NaN, stay as they are; so does a policy of which nothing would
//                be left. With 0 and 1 not a bit changes. In what was version 3, where an illegal
//                move and one without visits are both 0, zeros stay as well.
//   plies_left   where it is 0: records to the end of the game, 1 for the last one
//   deblunder    from the last record to the first with the target Z = (result_q, result_d,
//                plies_left) of the last one, which from a record to the one before it changes the
//                sign of q and has a ply more. A record with best_q - played_q > threshold - width
//                / 2 is a blunder: Z moves towards (best_q, best_d, best_m) by the weight min(1,
//                (best_q - played_q - threshold) / width + 1/2). So is, with weight 1, one that
//                gave a proven win away or chose a proven loss: best_q > -1, played_q < 1, and
//                best_q 1 with bit 3 of invariance_info, or played_q -1. From the first blunder
//                that was met on, Z is what the records get. Records without visits are no
//                blunders, and a game whose last record has none is left alone: its played_* mean
//                nothing.
//   version 7    of what was version 5 or 6. Q and D are root_q and root_d of the last record, as
//                the first mover sees them; before it theta Q + (1 - theta) root_q, and so D: q_st
//                (in the mover's view) and d_st (at least 0). opp_played_idx and next_played_idx
//                are played_idx of one and two records later, 65535 where there is none or it has
//                no visits.
//
// What was version 7 keeps its short-term fields; versions 3 and 4 know too little to become it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "workers/lc0/packed_frame.h"

namespace ringfeed::formats {

struct RescoreOptions {
  struct Deblunder {
    double threshold = 0;
    double width = 0;
  };
  double policy_temperature = 1;
  double policy_offset = 0;
  std::optional<Deblunder> deblunder = {};
  double st_q_theta = 5.0 / 6.0;
};

// Record bytes from 8272 on, with room for those of version 7.
class RecordTail {
 public:
  static constexpr std::size_t kBytes = kV7RecordBytes - v6::kCastlingUsOoo;
  RecordTail() noexcept = default;
  explicit RecordTail(const PackedFrameView& frame) noexcept;

  template <typename T>
  [[nodiscard]] T get(std::size_t offset) const noexcept {
    T value;
    std::memcpy(&value, bytes_.data() + (offset - v6::kCastlingUsOoo), sizeof value);
    return value;
  }
  template <typename T>
  void set(std::size_t offset, T value) noexcept {
    std::memcpy(bytes_.data() + (offset - v6::kCastlingUsOoo), &value, sizeof value);
  }
  [[nodiscard]] const std::byte* bytes() const noexcept { return bytes_.data(); }

 private:
  std::array<std::byte, kBytes> bytes_ = {};
};

// The version that a record of this one is after rescoring: 7 for 5 and higher, otherwise the same.
[[nodiscard]] std::uint32_t rescored_origin(std::uint32_t origin) noexcept;

// Changes the probabilities (their bits), those that are not `filler`; false: nothing would have
// been left of them, and they stay as they are.
bool reshape_policy(std::span<std::uint32_t> policy, std::uint32_t filler,
                    const RescoreOptions& options) noexcept;

// How many records got a plies_left.
std::size_t fill_plies_left(std::span<RecordTail> game) noexcept;

// How many records of the game are blunders.
std::size_t deblunder(std::span<RecordTail> game,
                      const RescoreOptions::Deblunder& options) noexcept;

// Fills what version 7 has more.
void fill_short_term(std::span<RecordTail> game, double theta) noexcept;

}  // namespace ringfeed::formats
