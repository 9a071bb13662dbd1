// A row of parallel text as people read it: source and target by the symbols of the dictionaries
// that the feed's source was given.
#pragma once

#include <cstdint>
#include <string>

namespace ringfeed {

class BatchView;

// Without a dictionary that can be read, or where languages have different ones and the batch does
// not say which row is of which, the ids. "": the batch has no src_tokens as bitext_collator makes
// them.
[[nodiscard]] std::string bitext_row_text(const BatchView& batch, std::uint64_t row);

}  // namespace ringfeed
