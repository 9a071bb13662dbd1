// What the stages of bitext say to each other (ringfeed/worker/facts.h).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ringfeed/worker/facts.h"
#include "workers/bitext/bitext_collate.h"

namespace ringfeed {

// ---- of parallel text, as far as the configuration tells; the files are not looked at

// BitextCompat, by name.
inline constexpr Fact<std::string> kBitextCompat{"bitext.compat"};

// Keys "CATEGORY:SRC-TGT".
struct BitextDirections {
  std::vector<std::string> keys;
};
inline std::string fact_text(const BitextDirections& directions) {
  return directions.keys.empty() ? "those found"
                                 : fmt::format("{}", fmt::join(directions.keys, ", "));
}
inline constexpr Fact<BitextDirections> kBitextDirections{"bitext.directions"};

// Some direction may have several shards.
inline constexpr Fact<bool> kBitextSharded{"bitext.sharded"};
// Parts of a shard, of which each has two paths of at most so many bytes.
inline constexpr Fact<std::uint64_t> kBitextPartsMax{"bitext.parts_max"};
inline constexpr Fact<std::uint64_t> kBitextPathBytesMax{"bitext.path_bytes_max"};
// The stage that puts language tokens in the place of </s>; not said where none does.
inline constexpr Fact<std::string> kBosEosReplacedBy{"bitext.bos_eos_replaced_by"};

// ---- of batch plans

namespace formats {
inline std::string fact_text(const BitextLimits& limits) {
  return fmt::format("{} tokens, {} sentences (0: any number), {} source and {} target positions",
                     limits.tokens, limits.rows, limits.source_positions, limits.target_positions);
}
}  // namespace formats
inline constexpr Fact<formats::BitextLimits> kPlanLimits{"batch_plans.limits"};

}  // namespace ringfeed
