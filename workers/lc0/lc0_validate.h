// Are the records of a chunk as they should be? A list of checks, each of which can be left out.
//
// Any records may be given, those of noise too: the answer is a flaw, never a crash. Records of
// versions 3 to 5 are looked at as what they have become (lc0_record.h); fields that they lack are
// 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "workers/lc0/packed_frame.h"

namespace ringfeed::formats {

enum class Flaw : std::uint8_t {
  kNone,
  kEmpty,        // no records
  kInputFormat,  // not known, or not the same in all records
  kValues,       // q, d, m of root, best, played; plies_left
  kOrigValues,   // q, d, m of orig, which may be NaN
  kCastling,     // a castling byte that is none
  kSideToMove,   // side to move, or the file of an en passant capture
  kResult,
  kRule50,
  kProbabilities,   // a probability that is none
  kProbabilitySum,  // of those that are not negative
  kMoveIndices,     // best_idx or played_idx is no move, or one that is marked illegal
  kTransitions,     // no move leads from a record to the next one
  kPlayedMoves,     // played_idx is not the move that leads to the next record
  kMoveLegality,    // the rules do not allow the move
};
inline constexpr std::size_t kFlaws = 15;
// "empty", "input_format", "values", ...
[[nodiscard]] const char* flaw_name(Flaw flaw) noexcept;

// Which flaws are looked for.
class Checks {
 public:
  static constexpr Checks all() noexcept { return Checks((1U << kFlaws) - 1); }
  static constexpr Checks none() noexcept { return Checks(0); }
  [[nodiscard]] constexpr bool has(Flaw flaw) const noexcept {
    return (bits_ >> static_cast<unsigned>(flaw) & 1U) != 0;
  }
  [[nodiscard]] constexpr Checks with(Flaw flaw, bool on) const noexcept {
    const unsigned bit = 1U << static_cast<unsigned>(flaw);
    return Checks(on ? bits_ | bit : bits_ & ~bit);
  }

 private:
  explicit constexpr Checks(unsigned bits) noexcept : bits_(bits) {}
  unsigned bits_;
};

// What was found first, in the order of the records; of one record in the order of the flaws, moves
// last.
struct Verdict {
  Flaw flaw = Flaw::kNone;
  std::size_t frame = 0;  // number of the record
  std::string text = {};  // what is wrong with it, with its numbers
  [[nodiscard]] bool valid() const noexcept { return flaw == Flaw::kNone; }
};

// Looks at the records of a chunk. Allocates only for what it finds; any thread.
[[nodiscard]] Verdict validate_chunk(std::span<const PackedFrameView> frames,
                                     Checks checks = Checks::all()) noexcept;

}  // namespace ringfeed::formats
