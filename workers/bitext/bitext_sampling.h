// How much of each direction of parallel text an epoch has, and of which shard: fairseq's rules,
// and our own.
//
// Everything here is a function of the settings, the sizes of the shards, where the chain of epochs
// began, and the number of the epoch: whoever asks again, in another process, is told the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "workers/kit/numpy_random.h"

namespace ringfeed::formats {

enum class BitextRules : std::uint8_t { kOurs, kNllb, kMain };
enum class SamplingMethod : std::uint8_t { kConcat, kUniform, kTemperature, kWeights };

struct SamplingSettings {
  BitextRules rules = BitextRules::kOurs;
  SamplingMethod method = SamplingMethod::kConcat;
  double temperature = 1.5;
  std::vector<double> weights = {};  // kWeights: one for each direction
  std::optional<std::uint64_t> virtual_data_size = {};
  std::optional<std::uint64_t> virtual_epoch_size = {};
  bool use_local_shard_size = false;
  bool sharded = false;       // there is more than one directory
  bool first_shards = false;  // every epoch is of these, whole
};

// Sentences of a direction in each of its shards; at least one shard.
using ShardSizes = std::vector<std::uint64_t>;

// Where a chain of epochs begins: what an epoch is made of may hang on the epochs before it.
struct EpochChain {
  std::uint64_t epoch = 1;  // its first one
  std::uint64_t pass = 0;   // kOurs: the pass over the data that it begins with
};

// What an epoch is made of.
struct EpochShape {
  std::vector<std::uint32_t> shards;  // of each direction, from 0
  std::vector<double> ratios;         // of each direction; empty: every sentence comes once
  std::uint64_t virtual_size = 0;     // sentences of the pass
  std::uint64_t drawn_in = 0;  // the number, of the epoch or of the pass, that seeds what is drawn
  bool sliced = false;         // the epoch is a slice of the pass, in the pass's order:
  std::uint64_t slice_begin = 0;
  std::uint64_t slice_size = 0;
  std::uint64_t pass = 0;  // kOurs: from 0
  friend bool operator==(const EpochShape&, const EpochShape&) = default;
};

// The shape of epoch `epoch` of a chain; epoch >= chain.epoch. Directions: in their order, at least
// one.
[[nodiscard]] EpochShape epoch_shape(const SamplingSettings& settings,
                                     std::span<const ShardSizes> directions,
                                     const EpochChain& chain, std::uint64_t epoch);

// The sum as NumPy makes it of an array in one piece: in eight partial sums and by halves.
[[nodiscard]] double pairwise_sum(std::span<const double> values) noexcept;

// fairseq's size of a virtual data set: so that the largest direction keeps its size, and at most
// one and a half times the data.
[[nodiscard]] std::uint64_t virtual_data_size(std::span<const std::uint64_t> sizes,
                                              std::span<const double> ratios) noexcept;

// fairseq's counts: in proportion, rounded down; what is missing is dealt out at random.
[[nodiscard]] std::vector<std::uint64_t> random_counts(NumpyRandom& random, std::uint64_t total,
                                                       std::span<const double> ratios);

// Ours: in proportion, rounded down, what is missing goes to the largest remainders, of equal ones
// to the first. Their sum is `total`.
[[nodiscard]] std::vector<std::uint64_t> apportioned_counts(std::uint64_t total,
                                                            std::span<const double> ratios);

}  // namespace ringfeed::formats
