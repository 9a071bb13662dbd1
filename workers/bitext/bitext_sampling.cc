#include "workers/bitext/bitext_sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {
namespace {

constexpr std::uint64_t kPeriodMax = std::uint64_t{1} << 20;  // passes

std::uint64_t sum_of(std::span<const std::uint64_t> sizes) noexcept {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

std::uint64_t parts_of(std::uint64_t total, std::uint64_t part) noexcept {
  return part == 0 ? 1 : std::max<std::uint64_t>(1, total / part + (total % part != 0 ? 1 : 0));
}

// Ratios by the sizes that count for them; not normalised.
std::vector<double> ratios_of(const SamplingSettings& settings,
                              std::span<const std::uint64_t> sizes) {
  switch (settings.method) {
    case SamplingMethod::kConcat:
      return {};
    case SamplingMethod::kUniform:
      return std::vector<double>(sizes.size(), 1.0);
    case SamplingMethod::kWeights:
      return settings.weights;
    case SamplingMethod::kTemperature:
      break;
  }
  const auto total = static_cast<double>(sum_of(sizes));
  std::vector<double> ratios;
  ratios.reserve(sizes.size());
  for (const std::uint64_t size : sizes) {
    ratios.push_back(
        total == 0 ? 0.0 : std::pow(static_cast<double>(size) / total, 1.0 / settings.temperature));
  }
  return ratios;
}

std::uint64_t size_of_pass(const SamplingSettings& settings, std::span<const std::uint64_t> sizes,
                           std::span<const double> ratios) {
  if (ratios.empty()) return sum_of(sizes);
  return settings.virtual_data_size ? *settings.virtual_data_size
                                    : virtual_data_size(sizes, ratios);
}

// The sizes of the shards that are loaded.
std::vector<std::uint64_t> loaded_sizes(std::span<const ShardSizes> directions,
                                        std::span<const std::uint32_t> shards) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(directions.size());
  for (std::size_t i = 0; i < directions.size(); ++i) sizes.push_back(directions[i][shards[i]]);
  return sizes;
}

std::vector<std::uint32_t> shards_at(std::span<const ShardSizes> directions, std::uint64_t number) {
  std::vector<std::uint32_t> shards;
  shards.reserve(directions.size());
  for (const ShardSizes& sizes : directions) {
    shards.push_back(static_cast<std::uint32_t>(number % sizes.size()));
  }
  return shards;
}

// fairseq's memory of how long the shards are that it has loaded, filed under the number of the
// epoch in which it did, and not of the shard.
class Recorded {
 public:
  Recorded(const SamplingSettings& settings, std::span<const ShardSizes> directions)
      : settings_(settings), directions_(directions) {
    for (const ShardSizes& sizes : directions) lengths_.emplace_back(sizes.size());
  }

  // Ratios of a data set that is made in an epoch.
  std::vector<double> ratios(std::uint64_t epoch, std::span<const std::uint32_t> shards) {
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = 0; i < directions_.size(); ++i) {
      std::vector<std::optional<std::uint64_t>>& lengths = lengths_[i];
      std::optional<std::uint64_t>& own = lengths[(epoch - 1) % lengths.size()];
      if (!own) own = directions_[i][shards[i]];
      sizes.push_back(settings_.use_local_shard_size ? *own : guessed(lengths));
    }
    return ratios_of(settings_, sizes);
  }

 private:
  // Of all shards, if those that are not known are as long as the longest known one.
  static std::uint64_t guessed(std::span<const std::optional<std::uint64_t>> lengths) noexcept {
    std::uint64_t longest = 0;
    for (const auto& length : lengths) longest = std::max(longest, length.value_or(0));
    std::uint64_t all = 0;
    for (const auto& length : lengths) all += length.value_or(longest);
    return all;
  }

  const SamplingSettings& settings_;
  std::span<const ShardSizes> directions_;
  std::vector<std::vector<std::optional<std::uint64_t>>> lengths_;
};

// Epochs that are whole data sets.
EpochShape whole_shape(const SamplingSettings& settings, std::span<const ShardSizes> directions,
                       const EpochChain& chain, std::uint64_t epoch) {
  Recorded recorded(settings, directions);
  EpochShape shape;
  std::uint64_t most = 1;
  for (const ShardSizes& sizes : directions) most = std::max<std::uint64_t>(most, sizes.size());
  for (std::uint64_t at = settings.sharded ? chain.epoch : epoch; at <= epoch; ++at) {
    // Once every shard has been loaded nothing new is learned.
    if (at > chain.epoch + most) at = epoch;
    // What is not sharded is loaded once, at the begin; its only shard has one length.
    shape.shards = shards_at(directions, settings.sharded ? at - 1 : 0);
    shape.ratios = recorded.ratios(at, shape.shards);
  }
  shape.virtual_size = size_of_pass(settings, loaded_sizes(directions, shape.shards), shape.ratios);
  shape.drawn_in = shape.ratios.empty() ? 0 : epoch;
  shape.slice_size = shape.virtual_size;
  return shape;
}

// Epochs that are slices of a data set. Which shard is loaded follows from when slices were drawn.
EpochShape sliced_shape(const SamplingSettings& settings, std::span<const ShardSizes> directions,
                        const EpochChain& chain, std::uint64_t epoch) {
  Recorded recorded(settings, directions);
  EpochShape shape;
  shape.sliced = true;
  std::uint64_t counter = 1;  // of the shard that is next
  bool load_next = false;
  bool made = false;  // just now
  std::uint64_t slice = 0;
  std::uint64_t slices = 1;
  const auto make = [&](std::uint64_t at, std::uint64_t shard_number) {
    shape.shards = shards_at(directions, shard_number - 1);
    shape.ratios = recorded.ratios(at, shape.shards);
    shape.virtual_size =
        size_of_pass(settings, loaded_sizes(directions, shape.shards), shape.ratios);
    slice = std::min(*settings.virtual_epoch_size, shape.virtual_size);
    slices = parts_of(shape.virtual_size, slice);
    made = true;
    load_next = false;
  };
  if (settings.virtual_data_size) {
    counter =
        (chain.epoch - 1) / parts_of(*settings.virtual_data_size, *settings.virtual_epoch_size) + 1;
    make(chain.epoch, counter);
  } else {
    make(chain.epoch, chain.epoch);
  }
  for (std::uint64_t at = chain.epoch; at <= epoch; ++at) {
    if (load_next && settings.sharded) make(at, counter);
    shape.slice_begin = (at - 1) % slices * slice;
    if (made) {
      shape.drawn_in = at;
      made = false;
    } else if (shape.slice_begin == 0) {
      shape.drawn_in = at;
      ++counter;
      load_next = true;
    }
  }
  shape.slice_size = std::min(slice, shape.virtual_size - shape.slice_begin);
  return shape;
}

// Ours: pass after pass, each over the next shard and cut into as many epochs as it takes.
EpochShape our_shape(const SamplingSettings& settings, std::span<const ShardSizes> directions,
                     const EpochChain& chain, std::uint64_t epoch) {
  std::vector<std::uint64_t> totals;
  for (const ShardSizes& sizes : directions) totals.push_back(sum_of(sizes));
  EpochShape shape;
  const std::vector<double> ratios = ratios_of(settings, totals);
  std::uint64_t first = chain.epoch;  // epoch of the pass
  shape.pass = chain.pass;
  if (!settings.virtual_epoch_size) {
    shape.pass += epoch - first;
    first = epoch;
  }
  // After so many passes the same shards come again, and so do the same numbers of epochs.
  std::uint64_t period = 1;
  for (const ShardSizes& sizes : directions) {
    if (period <= kPeriodMax) period = std::lcm(period, sizes.size());
  }
  for (;; ++shape.pass) {
    if (shape.pass - chain.pass == period && first > chain.epoch) {
      const std::uint64_t epochs = first - chain.epoch;
      const std::uint64_t times = (epoch - first) / epochs;
      first += times * epochs;
      shape.pass += times * period;
    }
    shape.shards = shards_at(directions, shape.pass);
    std::vector<std::uint64_t> sizes = loaded_sizes(directions, shape.shards);
    shape.ratios = ratios;
    // A shard may have nothing of a direction, and a direction that is left out does not count.
    for (std::size_t i = 0; i < shape.ratios.size(); ++i) {
      if (sizes[i] == 0) shape.ratios[i] = 0;
      if (shape.ratios[i] == 0) sizes[i] = 0;
    }
    shape.virtual_size = size_of_pass(settings, sizes, shape.ratios);
    std::uint64_t slices = 1;
    shape.slice_begin = 0;
    shape.slice_size = shape.virtual_size;
    if (settings.virtual_epoch_size) {
      const std::uint64_t slice = std::min(*settings.virtual_epoch_size, shape.virtual_size);
      slices = parts_of(shape.virtual_size, slice);
      shape.sliced = slices > 1;
      shape.slice_begin = std::min((epoch - first) * slice, shape.virtual_size);
      shape.slice_size = std::min(slice, shape.virtual_size - shape.slice_begin);
    }
    if (epoch - first < slices) break;
    first += slices;
  }
  shape.drawn_in = shape.pass;
  return shape;
}

}  // namespace

EpochShape epoch_shape(const SamplingSettings& settings, std::span<const ShardSizes> directions,
                       const EpochChain& chain, std::uint64_t epoch) {
  RF_CHECK(epoch >= chain.epoch && chain.epoch >= 1, epoch, chain.epoch);
  if (settings.first_shards) {
    EpochShape shape;
    shape.shards.resize(directions.size());
    shape.virtual_size = shape.slice_size = sum_of(loaded_sizes(directions, shape.shards));
    return shape;
  }
  if (settings.rules == BitextRules::kOurs) return our_shape(settings, directions, chain, epoch);
  if (settings.virtual_epoch_size) return sliced_shape(settings, directions, chain, epoch);
  return whole_shape(settings, directions, chain, epoch);
}

double pairwise_sum(std::span<const double> values) noexcept {
  const std::size_t n = values.size();
  if (n > 128) {
    const std::size_t half = n / 2 / 8 * 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  std::size_t i = 0;
  double sum = 0;
  if (n >= 8) {
    std::array<double, 8> partial;
    std::copy_n(values.begin(), 8, partial.begin());
    for (i = 8; i + 8 <= n; i += 8) {
      for (std::size_t k = 0; k < 8; ++k) partial[k] += values[i + k];
    }
    sum = ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
          ((partial[4] + partial[5]) + (partial[6] + partial[7]));
  }
  for (; i < n; ++i) sum += values[i];
  return sum;
}

std::uint64_t virtual_data_size(std::span<const std::uint64_t> sizes,
                                std::span<const double> ratios) noexcept {
  const auto largest = static_cast<std::size_t>(std::ranges::max_element(sizes) - sizes.begin());
  const auto total = static_cast<double>(sum_of(sizes));
  double size = 0;
  for (const double ratio : ratios) {
    size += ratio / ratios[largest] * static_cast<double>(sizes[largest]);
  }
  // Also where the largest direction has no weight, and the quotient is no number.
  return static_cast<std::uint64_t>(size < 1.5 * total ? size : 1.5 * total);
}

std::vector<std::uint64_t> random_counts(NumpyRandom& random, std::uint64_t total,
                                         std::span<const double> ratios) {
  const double sum = pairwise_sum(ratios);
  if (!(sum > 0)) return std::vector<std::uint64_t>(ratios.size(), 0);
  std::vector<double> upto;  // running sums of the shares
  std::vector<std::uint64_t> counts;
  std::uint64_t missing = total;
  for (const double ratio : ratios) {
    const double share = ratio / sum;
    upto.push_back(upto.empty() ? share : upto.back() + share);
    counts.push_back(static_cast<std::uint64_t>(static_cast<double>(total) * share));
    missing -= std::min(missing, counts.back());
  }
  const double last = upto.back();
  for (double& value : upto) value /= last;
  for (; missing > 0; --missing) {
    const auto chosen = std::ranges::upper_bound(upto, random.uniform());
    ++counts[static_cast<std::size_t>(std::min(chosen, upto.end() - 1) - upto.begin())];
  }
  return counts;
}

std::vector<std::uint64_t> apportioned_counts(std::uint64_t total, std::span<const double> ratios) {
  const double sum = pairwise_sum(ratios);
  if (!(sum > 0)) return std::vector<std::uint64_t>(ratios.size(), 0);
  std::vector<std::uint64_t> counts;
  std::vector<double> remainders;
  std::uint64_t missing = total;
  for (const double ratio : ratios) {
    const double exact = static_cast<double>(total) * (ratio / sum);
    counts.push_back(std::min(missing, static_cast<std::uint64_t>(exact)));
    remainders.push_back(exact - std::floor(exact));
    missing -= counts.back();
  }
  std::vector<std::size_t> order(ratios.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return remainders[i]; });
  for (std::size_t i = 0; missing > 0; ++i, --missing) ++counts[order[i % order.size()]];
  return counts;
}

}  // namespace ringfeed::formats
