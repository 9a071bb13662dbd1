// A row of chess tokens as people read it.
#pragma once

#include <cstdint>
#include <string>

namespace ringfeed {

class BatchView;

// Tokens by their names, each board as in Forsyth-Edwards notation in brackets, padding counted.
// The first board is drawn too. "": the batch has no input_ids as sequence_batcher makes them.
[[nodiscard]] std::string chess_row_text(const BatchView& batch, std::uint64_t row);

}  // namespace ringfeed
