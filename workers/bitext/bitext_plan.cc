#include "workers/bitext/bitext_plan.h"

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <numeric>
#include <utility>
#include <vector>

namespace ringfeed::formats {
namespace {

// Entries of the table of all pairs of lengths, up to which one pass orders by both at once: no
// more than a fourth of the sentences, so that three tables of them take little beside these.
constexpr std::uint64_t kTableMax = std::uint64_t{1} << 24;
constexpr std::uint64_t kSmallTable = std::uint64_t{1} << 16;
// Fewer sentences are no work for two threads.
constexpr std::uint64_t kManySentences = std::uint64_t{1} << 18;
// So far ahead of its use memory is asked for.
constexpr std::size_t kAhead = 16;
constexpr std::size_t kTouchEvery = 4096;  // bytes

constexpr std::uint32_t source_of(LengthKey key) noexcept { return key >> 16; }
constexpr std::uint32_t target_of(LengthKey key) noexcept { return key & 0xffffU; }

// Counts to places.
template <typename Index>
void sum_up(LargeVector<Index>& counts) noexcept {
  std::exclusive_scan(counts.begin(), counts.end(), counts.begin(), Index{0});
}

// The sentences of an epoch by their lengths.
template <typename Index>
class Ordering {
 public:
  using Items = std::span<const DrawnSentence<Index>>;

  explicit Ordering(Items items) : many_(items.size() >= kManySentences) {
    look_at(items);
    by_both_ = sources_ * targets_ <=
               std::min(kTableMax, std::max<std::uint64_t>(kSmallTable, items.size() / 4));
    table_.assign(by_both_ ? sources_ * targets_ : targets_, 0);
    by_source_.assign(by_both_ ? 0 : sources_, 0);
    count(items);
  }

  [[nodiscard]] bool many() const noexcept { return many_; }
  [[nodiscard]] std::uint64_t kept() const noexcept { return kept_; }
  [[nodiscard]] std::uint64_t too_long() const noexcept { return too_long_; }
  [[nodiscard]] std::uint64_t without_tokens() const noexcept { return without_tokens_; }
  // Whether cut() can cut them: how long they are follows from how many there are of each pair.
  [[nodiscard]] bool by_both() const noexcept { return by_both_; }

  // Before put_in_order().
  template <typename Emit>
  void cut(BatchCutter& cutter, const Emit& emit) const {
    for (std::uint64_t source = 0; source < sources_; ++source) {
      for (std::uint64_t target = 0; target < targets_; ++target) {
        cutter.add(std::max(source, target), table_[source * targets_ + target], emit);
      }
    }
  }

  // Writes the items' numbers, kept() of them, and gives their memory back. Calls visit(key) for
  // each in its turn, unless cut() could cut them.
  template <typename Visit>
  void put_in_order(LargeVector<DrawnSentence<Index>>& items, Index* out, const Visit& visit) {
    sum_up(table_);
    if (!by_both_) {
      LargeVector<DrawnSentence<Index>> by_target(kept_);
      distribute(Items(items), table_, target_of,
                 [&](Index at, const auto& item) { by_target[at] = item; });
      LargeVector<DrawnSentence<Index>>(kept_).swap(items);
      sum_up(by_source_);
      distribute(Items(by_target), by_source_, source_of,
                 [&](Index at, const auto& item) { items[at] = item; });
      LargeVector<DrawnSentence<Index>>().swap(by_target);
      for (const auto& [sentence, key] : items) {
        *out++ = sentence;
        visit(key);
      }
      LargeVector<DrawnSentence<Index>>().swap(items);
      return;
    }
    const auto put = [out](Index at, const auto& item) { out[at] = item.sentence; };
    const auto both_of = [targets = targets_](LengthKey key) {
      return source_of(key) * targets + target_of(key);
    };
    if (many_) {
      // Whoever has the second part counts it first, and so gets a little less.
      const std::size_t middle = items.size() / 9 * 5;
      const Items first_part = Items(items).first(middle);
      const Items second_part = Items(items).subspan(middle);
      LargeVector<Index> begins = table_;
      std::future<void> second = std::async(std::launch::async, [&] {
        place_behind(second_part, both_of, begins);
        distribute(second_part, begins, both_of, put);
      });
      distribute(first_part, table_, both_of, put);
      second.get();
    } else {
      distribute(Items(items), table_, both_of, put);
    }
    LargeVector<DrawnSentence<Index>>().swap(items);
  }

 private:
  // In two parts, each in a thread of its own, if there are many items.
  template <typename Work>
  auto by_parts(Items items, const Work& work) const {
    const std::size_t middle = many_ ? items.size() / 2 : items.size();
    std::vector<decltype(work(items))> of_parts;
    std::future<decltype(work(items))> other;
    if (many_) {
      other = std::async(std::launch::async,
                         [&work, part = items.subspan(middle)] { return work(part); });
    }
    of_parts.push_back(work(items.first(middle)));
    if (many_) of_parts.push_back(other.get());
    return of_parts;
  }

  // The largest lengths.
  void look_at(Items items) {
    const auto of_parts = by_parts(items, [](Items part) {
      std::pair<std::uint32_t, std::uint32_t> longest{};
      for (const auto& [sentence, key] : part) {
        // Of one that is left out: 0.
        const LengthKey kept = key >= kLeftOutFrom ? 0 : key;
        longest.first = std::max(longest.first, source_of(kept));
        longest.second = std::max(longest.second, target_of(kept));
      }
      return longest;
    });
    for (const auto& [source, target] : of_parts) {
      sources_ = std::max(sources_, std::uint64_t{source} + 1);
      targets_ = std::max(targets_, std::uint64_t{target} + 1);
    }
  }

  struct Counts {
    LargeVector<Index> table;
    LargeVector<Index> by_source;
    std::uint64_t too_long = 0;
    std::uint64_t without_tokens = 0;
  };
  void count(Items items) {
    const auto count_part = [this](Items part) {
      Counts counts;
      counts.table.assign(table_.size(), 0);
      counts.by_source.assign(by_source_.size(), 0);
      for (const auto& [sentence, key] : part) {
        if (key >= kLeftOutFrom) {
          ++(key == kBeyondLimits ? counts.too_long : counts.without_tokens);
          continue;
        }
        if (by_both_) {
          ++counts.table[source_of(key) * targets_ + target_of(key)];
        } else {
          ++counts.table[target_of(key)];
          ++counts.by_source[source_of(key)];
        }
      }
      return counts;
    };
    for (const Counts& part : by_parts(items, count_part)) {
      std::ranges::transform(table_, part.table, table_.begin(), std::plus<>());
      std::ranges::transform(by_source_, part.by_source, by_source_.begin(), std::plus<>());
      too_long_ += part.too_long;
      without_tokens_ += part.without_tokens;
    }
    kept_ = items.size() - too_long_ - without_tokens_;
  }

  // Distributes items stably to their places: `begins` says where the items of each bucket begin,
  // and is used up. Items without a bucket are left out.
  template <typename BucketOf, typename Put>
  static void distribute(Items items, LargeVector<Index>& begins, const BucketOf& bucket_of,
                         const Put& put) noexcept {
    for (const auto& item : items) {
      if (item.key < kLeftOutFrom) put(begins[bucket_of(item.key)]++, item);
    }
  }

  // `begins`, of the buckets of all items, become those of the last ones: these.
  template <typename BucketOf>
  void place_behind(Items last, const BucketOf& bucket_of, LargeVector<Index>& begins) const {
    LargeVector<Index> counts(begins.size(), 0);
    for (const auto& [sentence, key] : last) {
      if (key < kLeftOutFrom) ++counts[bucket_of(key)];
    }
    for (std::size_t i = 0; i < begins.size(); ++i) {
      begins[i] = (i + 1 < begins.size() ? begins[i + 1] : static_cast<Index>(kept_)) - counts[i];
    }
  }

  bool many_;
  std::uint64_t sources_ = 0;  // one more than the largest length
  std::uint64_t targets_ = 0;
  // How many there are of each pair of lengths, source by source; or, if these are too many, of
  // each target and of each source.
  bool by_both_ = true;
  LargeVector<Index> table_;
  LargeVector<Index> by_source_;
  std::uint64_t kept_ = 0;
  std::uint64_t too_long_ = 0;
  std::uint64_t without_tokens_ = 0;
};

}  // namespace

template <typename Index>
void draw_sentences(NumpyRandom& random, std::uint64_t first, std::span<const LengthKey> keys,
                    std::uint64_t count, LargeVector<DrawnSentence<Index>>& drawn) {
  const std::uint64_t sentences = keys.size();
  if (sentences == 0) return;
  const std::size_t before = drawn.size();
  if (count > sentences) {
    drawn.resize(before + count);
    std::array<std::uint64_t, kAhead> next;
    for (std::uint64_t i = 0; i < count; i += kAhead) {
      const std::uint64_t some = std::min<std::uint64_t>(kAhead, count - i);
      for (std::uint64_t k = 0; k < some; ++k) {
        next[k] = random.at_most(sentences - 1);
        __builtin_prefetch(&keys[next[k]]);
      }
      for (std::uint64_t k = 0; k < some; ++k) {
        drawn[before + i + k] = {static_cast<Index>(first + next[k]), keys[next[k]]};
      }
    }
    return;
  }
  // The whole permutation is drawn, however few of it are wanted.
  drawn.resize(before + sentences);
  for (std::uint64_t i = 0; i < sentences; ++i) {
    drawn[before + i] = {static_cast<Index>(first + i), keys[i]};
  }
  random.shuffle(std::span(drawn).subspan(before));
  drawn.resize(before + count);
}

template <typename Index>
void take_turns(NumpyRandom& random, std::uint64_t first, std::span<const LengthKey> keys,
                std::uint64_t count, std::uint64_t visit,
                LargeVector<DrawnSentence<Index>>& drawn) {
  const std::uint64_t sentences = keys.size();
  if (sentences == 0 || count == 0) return;
  LargeVector<Index> order(sentences);
  std::iota(order.begin(), order.end(), Index{0});
  random.shuffle(std::span(order));
  __extension__ using Wide = unsigned __int128;
  auto at = static_cast<std::uint64_t>(Wide{visit} * count % sentences);
  while (count > 0) {
    const std::uint64_t some = std::min(count, sentences - at);
    for (std::uint64_t i = at; i < at + some; ++i) {
      if (i + kAhead < sentences) __builtin_prefetch(&keys[order[i + kAhead]]);
      drawn.push_back({static_cast<Index>(first + order[i]), keys[order[i]]});
    }
    count -= some;
    at = 0;
  }
}

template <typename Index>
void order_and_cut(LargeVector<DrawnSentence<Index>>& drawn, NumpyRandom* ties,
                   const BatchRules& rules, OrderedBatches<Index>& batches) {
  Ordering<Index> ordering(drawn);
  batches.too_long += ordering.too_long();
  batches.without_tokens += ordering.without_tokens();
  const std::uint64_t kept = ordering.kept();
  const std::uint64_t before = batches.sentences.size();
  const std::size_t batches_before = batches.ends.size();
  batches.sentences.resize(before + kept);
  Index* const out = batches.sentences.data() + before;
  BatchCutter cutter(rules);
  const auto emit = [&](std::uint64_t position) {
    batches.ends.push_back(static_cast<Index>(before + position));
  };
  // What need not wait for the shuffle, and the system's clearing of memory.
  const auto prepare = [&] {
    if (!ordering.by_both()) return;
    ordering.cut(cutter, emit);
    for (std::uint64_t i = 0; i < kept; i += kTouchEvery / sizeof(Index)) out[i] = 0;
  };
  std::future<void> prepared =
      std::async(ordering.many() ? std::launch::async : std::launch::deferred, prepare);
  if (ties != nullptr) ties->shuffle(std::span(drawn));
  prepared.get();
  ordering.put_in_order(drawn, out, [&](LengthKey key) {
    cutter.add(std::max(source_of(key), target_of(key)), 1, emit);
  });
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

template void draw_sentences(NumpyRandom&, std::uint64_t, std::span<const LengthKey>, std::uint64_t,
                             LargeVector<DrawnSentence<std::uint32_t>>&);
template void draw_sentences(NumpyRandom&, std::uint64_t, std::span<const LengthKey>, std::uint64_t,
                             LargeVector<DrawnSentence<std::uint64_t>>&);
template void take_turns(NumpyRandom&, std::uint64_t, std::span<const LengthKey>, std::uint64_t,
                         std::uint64_t, LargeVector<DrawnSentence<std::uint32_t>>&);
template void take_turns(NumpyRandom&, std::uint64_t, std::span<const LengthKey>, std::uint64_t,
                         std::uint64_t, LargeVector<DrawnSentence<std::uint64_t>>&);
template void order_and_cut(LargeVector<DrawnSentence<std::uint32_t>>&, NumpyRandom*,
                            const BatchRules&, OrderedBatches<std::uint32_t>&);
template void order_and_cut(LargeVector<DrawnSentence<std::uint64_t>>&, NumpyRandom*,
                            const BatchRules&, OrderedBatches<std::uint64_t>&);

}  // namespace ringfeed::formats
