// One record as people read it: the board, the fields by name, the moves that the policy prefers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

namespace ringfeed::inspect {

struct RecordPlace {
  std::size_t index = 0;        // in its game
  std::uint32_t origin = 6;     // version that the record has in its file
  bool from_the_start = false;  // the game's first record is the start position
};

// `record`: in the layout of version 6, or of version 7 if `origin` is 7; whole. `top`: moves of
// the policy.
//
//   index, version, input_format, input_format_name
//   side_to_move   "white", "black"; null where the record does not say
//   board          8 strings of 8, the top rank first, in the view of the side to move: its pieces
//                  are capitals, '.' is empty, '?' are two pieces on one square
//   fen            null where it cannot be derived, then fen_missing says why
//   history_steps, repetition
//   fields         name -> number; NaN is null. Only those that the version has
//   invariance     names of the bits that are set in invariance_info
//   policy         legal (null for version 3, which does not tell), sum, and top: index, move (in
//                  the real view if the side to move is known), probability, castling (the usual
//                  notation of it) or null
//   played, best   moves of played_idx and best_idx, null if there are none
[[nodiscard]] nlohmann::ordered_json describe_record(std::span<const std::byte> record,
                                                     const RecordPlace& place, std::size_t top);

// Whether the record's position is the one that games begin with.
[[nodiscard]] bool is_start_position(std::span<const std::byte> record) noexcept;

}  // namespace ringfeed::inspect
