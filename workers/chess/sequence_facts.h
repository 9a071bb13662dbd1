// What the stages of chess say to each other (ringfeed/worker/facts.h).
#pragma once

#include <cstdint>
#include <string>

#include "ringfeed/worker/facts.h"

namespace ringfeed {

// ---- of sequences

// Tokens of the longest.
inline constexpr Fact<std::uint64_t> kLengthMax{"sequences.length_max"};
// Some may have variations.
inline constexpr Fact<bool> kHasVariations{"sequences.variations"};
// The stage makes them from rows itself, and can answer turns.
inline constexpr Fact<bool> kFromRows{"sequences.from_rows"};
// The source of these rows, and whether its rows repeat whatever the feed's `epochs`.
inline constexpr Fact<std::string> kRowsFrom{"sequences.rows_from"};
inline constexpr Fact<bool> kRepeat{"sequences.repeat"};
// The rank of this source.
inline constexpr Fact<std::uint64_t> kRank{"sequences.rank"};

// ---- facts and wishes

// `order: EXACT`.
inline constexpr Fact<bool> kExactOrder{"sequences.exact_order"};

// ---- wishes

// They are mixed with others: nothing may be dropped, and ends of epochs must come.
inline constexpr Fact<bool> kMixed{"sequences.mixed"};
// Workers of the original that draw them (EXACT); 0: as the stage says itself.
inline constexpr Fact<std::uint64_t> kTurnWorkers{"sequences.workers"};
// Rows of the batches that they go to next.
inline constexpr Fact<std::uint64_t> kBatchRows{"sequences.batch_rows"};

}  // namespace ringfeed
