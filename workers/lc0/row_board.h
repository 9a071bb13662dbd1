// A row of Lc0's tensors as people read it: the position as a board, the values, the likeliest
// moves.
#pragma once

#include <cstdint>
#include <string>

namespace ringfeed {

class BatchView;

// From the mover's side: the mover's pieces are upper case and move up the board. "": the batch has
// no planes as tensor_generator makes them.
[[nodiscard]] std::string lc0_row_text(const BatchView& batch, std::uint64_t row);

}  // namespace ringfeed
