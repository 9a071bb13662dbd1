#include "workers/formats/bitext_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ringfeed::formats {
namespace {

// Entries of the table of all pairs of lengths, up to which one pass orders by both at once.
constexpr std::uint64_t kTableMax = std::uint64_t{1} << 24;
// So far ahead of its use memory is asked for.
constexpr std::size_t kAhead = 24;

constexpr std::uint32_t source_of(LengthKey key) noexcept { return key >> 16; }
constexpr std::uint32_t target_of(LengthKey key) noexcept { return key & 0xffffU; }

// Distributes items stably to their places: `begins` says where the items of each bucket begin, and
// is used up. Items without a bucket are left out.
template <typename Index, typename BucketOf>
void distribute(std::span<const Index> items, std::span<const LengthKey> keys, Index first,
                LargeVector<Index>& begins, const BucketOf& bucket_of, Index* out) noexcept {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i + kAhead < items.size()) __builtin_prefetch(&keys[items[i + kAhead] - first]);
    const LengthKey key = keys[items[i] - first];
    if (key >= kLeftOutFrom) continue;
    out[begins[bucket_of(key)]++] = items[i];
  }
}

// Counts to places.
template <typename Index>
void sum_up(LargeVector<Index>& counts) noexcept {
  std::exclusive_scan(counts.begin(), counts.end(), counts.begin(), Index{0});
}

template <typename Index>
std::size_t place_of(const LengthCounts<Index>& counts, LengthKey key) noexcept {
  return counts.by_both ? source_of(key) * counts.targets + target_of(key)
                        : std::size_t{target_of(key)};
}

// Room for all lengths that there are.
template <typename Index>
LengthCounts<Index> room_for(std::span<const LengthKey> keys) {
  LengthCounts<Index> counts;
  for (const LengthKey key : keys) {
    if (key >= kLeftOutFrom) continue;
    counts.sources = std::max<std::uint64_t>(counts.sources, source_of(key) + 1);
    counts.targets = std::max<std::uint64_t>(counts.targets, target_of(key) + 1);
  }
  counts.by_both = counts.sources * counts.targets <= kTableMax;
  counts.counts.assign(counts.by_both ? counts.sources * counts.targets : counts.targets, 0);
  counts.source_counts.assign(counts.by_both ? 0 : counts.sources, 0);
  return counts;
}

template <typename Index>
void count(LengthCounts<Index>& counts, LengthKey key) noexcept {
  if (key >= kLeftOutFrom) {
    ++(key == kTooLong ? counts.too_long : counts.without_tokens);
    return;
  }
  ++counts.kept;
  ++counts.counts[place_of(counts, key)];
  if (!counts.by_both) ++counts.source_counts[source_of(key)];
}

}  // namespace

template <typename Index>
void draw_sentences(NumpyRandom& random, std::uint64_t first, std::uint64_t sentences,
                    std::uint64_t count, LargeVector<Index>& drawn) {
  if (sentences == 0) return;
  const std::size_t before = drawn.size();
  if (count > sentences) {
    for (std::uint64_t i = 0; i < count; ++i) {
      drawn.push_back(static_cast<Index>(first + random.at_most(sentences - 1)));
    }
    return;
  }
  // The whole permutation is drawn, however few of it are wanted.
  drawn.resize(before + sentences);
  const std::span<Index> all = std::span(drawn).subspan(before);
  std::iota(all.begin(), all.end(), static_cast<Index>(first));
  random.shuffle(all);
  drawn.resize(before + count);
}

template <typename Index>
void take_turns(NumpyRandom& random, std::uint64_t first, std::uint64_t sentences,
                std::uint64_t count, std::uint64_t visit, LargeVector<Index>& drawn) {
  if (sentences == 0 || count == 0) return;
  LargeVector<Index> order(sentences);
  std::iota(order.begin(), order.end(), static_cast<Index>(first));
  random.shuffle(std::span(order));
  __extension__ using Wide = unsigned __int128;
  auto at = static_cast<std::uint64_t>(Wide{visit} * count % sentences);
  while (count > 0) {
    const std::uint64_t some = std::min(count, sentences - at);
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(at);
    drawn.insert(drawn.end(), begin, begin + static_cast<std::ptrdiff_t>(some));
    count -= some;
    at = 0;
  }
}

template <typename Index>
LengthCounts<Index> count_lengths(std::span<const LengthKey> keys, Index first,
                                  std::span<const Index> drawn) {
  LengthCounts<Index> counts = room_for<Index>(keys);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    if (i + kAhead < drawn.size()) __builtin_prefetch(&keys[drawn[i + kAhead] - first]);
    count(counts, keys[drawn[i] - first]);
  }
  return counts;
}

template <typename Index>
LengthCounts<Index> count_lengths(std::span<const LengthKey> keys) {
  LengthCounts<Index> counts = room_for<Index>(keys);
  for (const LengthKey key : keys) count(counts, key);
  return counts;
}

template <typename Index>
void order_and_cut(LargeVector<Index>& drawn, std::span<const LengthKey> keys, Index first,
                   LengthCounts<Index> counts, const BatchRules& rules,
                   OrderedBatches<Index>& batches) {
  const std::uint64_t kept = counts.kept;
  batches.too_long += counts.too_long;
  batches.without_tokens += counts.without_tokens;
  const std::uint64_t before = batches.sentences.size();
  const auto emit = [&](std::uint64_t position) {
    batches.ends.push_back(static_cast<Index>(before + position));
  };
  const std::size_t batches_before = batches.ends.size();
  BatchCutter cutter(rules);
  batches.sentences.resize(before + kept);
  Index* const out = batches.sentences.data() + before;
  if (counts.by_both) {
    // How long they are follows from how many there are of each pair of lengths.
    for (std::uint64_t source = 0; source < counts.sources; ++source) {
      for (std::uint64_t target = 0; target < counts.targets; ++target) {
        cutter.add(std::max(source, target), counts.counts[source * counts.targets + target], emit);
      }
    }
    sum_up(counts.counts);
    const auto both_of = [targets = counts.targets](LengthKey key) {
      return source_of(key) * targets + target_of(key);
    };
    distribute(std::span<const Index>(drawn), keys, first, counts.counts, both_of, out);
    LargeVector<Index>().swap(drawn);
  } else {
    LargeVector<Index> by_target(kept);
    sum_up(counts.counts);
    distribute(std::span<const Index>(drawn), keys, first, counts.counts, target_of,
               by_target.data());
    LargeVector<Index>().swap(drawn);
    sum_up(counts.source_counts);
    distribute(std::span<const Index>(by_target), keys, first, counts.source_counts, source_of,
               out);
    for (std::uint64_t i = 0; i < kept; ++i) {
      const LengthKey key = keys[out[i] - first];
      cutter.add(std::max(source_of(key), target_of(key)), 1, emit);
    }
  }
  cutter.finish(emit);
  if (rules.drop_odd_last && rules.multiple > 1 && batches.ends.size() > batches_before) {
    const bool only = batches.ends.size() == batches_before + 1;
    const std::uint64_t begin = only ? before : batches.ends[batches.ends.size() - 2];
    if ((batches.ends.back() - begin) % rules.multiple != 0) {
      batches.ends.pop_back();
      batches.sentences.resize(begin);
    }
  }
}

template void draw_sentences(NumpyRandom&, std::uint64_t, std::uint64_t, std::uint64_t,
                             LargeVector<std::uint32_t>&);
template void draw_sentences(NumpyRandom&, std::uint64_t, std::uint64_t, std::uint64_t,
                             LargeVector<std::uint64_t>&);
template void take_turns(NumpyRandom&, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                         LargeVector<std::uint32_t>&);
template void take_turns(NumpyRandom&, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                         LargeVector<std::uint64_t>&);
template LengthCounts<std::uint32_t> count_lengths(std::span<const LengthKey>, std::uint32_t,
                                                   std::span<const std::uint32_t>);
template LengthCounts<std::uint64_t> count_lengths(std::span<const LengthKey>, std::uint64_t,
                                                   std::span<const std::uint64_t>);
template LengthCounts<std::uint32_t> count_lengths(std::span<const LengthKey>);
template LengthCounts<std::uint64_t> count_lengths(std::span<const LengthKey>);
template void order_and_cut(LargeVector<std::uint32_t>&, std::span<const LengthKey>, std::uint32_t,
                            LengthCounts<std::uint32_t>, const BatchRules&,
                            OrderedBatches<std::uint32_t>&);
template void order_and_cut(LargeVector<std::uint64_t>&, std::span<const LengthKey>, std::uint64_t,
                            LengthCounts<std::uint64_t>, const BatchRules&,
                            OrderedBatches<std::uint64_t>&);

}  // namespace ringfeed::formats
