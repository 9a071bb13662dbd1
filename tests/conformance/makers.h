// Data for the examples of stages (StageExample): a maker fills a directory, which then stands for
// /data. Small, of real records, and the same every time.
#pragma once

#include <string_view>

#include "tests/support/rig/stage_data.h"

namespace ringfeed::testing {

// Training games of Leela Chess Zero, two tars and two .gz in new/ and in old/.
void lc0_files(const TempDir& directory);
// Parquet files, games in games/ and searched positions in variations/. Only where Arrow is.
void chess_tables(const TempDir& directory);
// JSON objects in lines, in three files, one of them packed.
void jsonl_files(const TempDir& directory);
// An array of 100 numbers, in weights.npy.
void item_weights(const TempDir& directory);
// Token files of parallel text in the shards shard000/ and shard001/.
void token_files(const TempDir& directory);

// By its name; nullptr: there is none, or not in this build.
using Maker = void (*)(const TempDir& directory);
[[nodiscard]] Maker maker_named(std::string_view name);

}  // namespace ringfeed::testing
