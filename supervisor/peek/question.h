// Asks the program that knows the stages what is in a batch: whoever writes it says how it reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/peek/observed_batch.h"

namespace ringfeed {
class OriginReply;
class ShowAnswer;
}  // namespace ringfeed

namespace ringfeed::peek {

// `rows`: the first ones are asked about. Never throws for what the program does: what went wrong
// is in the answer's problems.
[[nodiscard]] ShowAnswer ask_about(const ObservedBatch& batch, const OriginReply& origin,
                                   std::uint64_t rows, const std::vector<std::string>& pictures);

}  // namespace ringfeed::peek
