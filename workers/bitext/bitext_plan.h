// The order of an epoch of parallel text: by length, ties by chance, cut into batches.
//
// A sentence is known by its number among all sentences of all directions that are loaded, of 32
// bits where they suffice (Index). What is drawn and shuffled is the number together with the
// lengths, so that nothing has to be looked up in a random order. Nothing else is kept for a
// sentence: an epoch of n sentences takes 12 n bytes while it is ordered (16 n where their lengths
// make more than n / 4 pairs, or 2^24), and 4 n afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "workers/bitext/bitext_sampling.h"
#include "workers/io/large_vector.h"
#include "workers/kit/numpy_random.h"

namespace ringfeed::formats {

// Both lengths of a sentence in tokens, with all that stands before and behind it: the source's in
// the high half, the target's in the low one.
using LengthKey = std::uint32_t;
inline constexpr LengthKey kBeyondLimits = 0xffffffffU;  // beyond the limits: left out
inline constexpr LengthKey kNoTokens = 0xfffffffeU;      // on neither side: left out
inline constexpr LengthKey kLeftOutFrom = kNoTokens;
inline constexpr std::uint32_t kPositionsMax = 65534;  // no length that is kept is larger

[[nodiscard]] constexpr LengthKey length_key(std::uint64_t source, std::uint64_t target,
                                             std::uint32_t source_max,
                                             std::uint32_t target_max) noexcept {
  if (source > source_max || target > target_max) return kBeyondLimits;
  if ((source | target) == 0) return kNoTokens;
  return static_cast<LengthKey>(source << 16 | target);
}

struct BatchRules {
  std::uint32_t max_tokens = 0;  // 0: no limit; no sentence that is kept has more
  std::uint32_t batch_size = 0;  // 0: no limit
  std::uint32_t multiple = 8;
  bool drop_odd_last = false;  // the last batch, if its size is no multiple
};

// Cuts a row of sentences into batches, one behind the other: a batch has at most batch_size
// sentences, at most max_tokens tokens if all are padded to the longest, and a multiple of
// `multiple` sentences or fewer than that.
class BatchCutter {
 public:
  explicit BatchCutter(const BatchRules& rules) noexcept : rules_(rules) {}

  // `count` sentences more, all of the same length: the larger one of both sides. Calls
  // emit(position) with the position behind each batch that they end.
  template <typename Emit>
  void add(std::uint64_t longest, std::uint64_t count, const Emit& emit) {
    for (; count > 0; --count) add_one(longest, emit);
  }
  template <typename Emit>
  void finish(const Emit& emit) {
    if (end_ > start_) emit(end_);
    if (next_ > end_) emit(next_);
    start_ = end_ = next_;
    longest_ = waiting_ = 0;
  }

 private:
  template <typename Emit>
  void add_one(std::uint64_t longest, const Emit& emit) {
    const std::uint64_t at = next_++;
    waiting_ = std::max(waiting_, longest);
    const std::uint64_t count = next_ - start_;
    std::uint64_t all = std::max(longest_, waiting_);
    const bool over = (rules_.batch_size != 0 && count > rules_.batch_size) ||
                      (rules_.max_tokens != 0 && count * all > rules_.max_tokens);
    if (over) {
      if (end_ > start_) emit(end_);
      if (rules_.max_tokens != 0 && waiting_ * (next_ - end_) > rules_.max_tokens) {
        // Those that wait are too many by themselves.
        if (at > end_) emit(at);
        waiting_ = longest;
        start_ = at;
      } else {
        start_ = end_;
      }
      all = waiting_;
    }
    if (over || count < rules_.multiple || count % rules_.multiple == 0) {
      end_ = next_;
      longest_ = all;
      waiting_ = 0;
    }
  }

  BatchRules rules_;
  std::uint64_t start_ = 0;    // of the batch under way
  std::uint64_t end_ = 0;      // of what is accepted into it; what follows waits
  std::uint64_t next_ = 0;     // position of the next sentence
  std::uint64_t longest_ = 0;  // of those that are accepted
  std::uint64_t waiting_ = 0;  // of those that wait
};

// A sentence of an epoch.
template <typename Index>
struct DrawnSentence {
  Index sentence;
  LengthKey key;
};

// Appends `count` sentences of a direction, drawn as fairseq draws them: the first of a random
// permutation, or, if that are more than there are, each for itself. Its sentences are numbered
// from `first` on, and `keys` are theirs.
template <typename Index>
void draw_sentences(NumpyRandom& random, std::uint64_t first, std::span<const LengthKey> keys,
                    std::uint64_t count, LargeVector<DrawnSentence<Index>>& drawn);

// Appends `count` sentences of a direction as its visit number `visit` gives them: one fixed random
// order of all of them, gone through round after round, from where the visit before has ended (if
// it took as many).
template <typename Index>
void take_turns(NumpyRandom& random, std::uint64_t first, std::span<const LengthKey> keys,
                std::uint64_t count, std::uint64_t visit, LargeVector<DrawnSentence<Index>>& drawn);

// An epoch's sentences, and its batches: batch b has those from ends[b - 1] (0 for the first) up to
// ends[b].
template <typename Index>
struct OrderedBatches {
  LargeVector<Index> sentences;
  LargeVector<Index> ends;
  std::uint64_t too_long = 0;  // left out
  std::uint64_t without_tokens = 0;
};

// Orders sentences by source length, then by target length, and leaves those of equal lengths in
// the order in which they are given, or, with `ties`, in that into which these shuffle them; cuts
// them into batches, and appends all that to what is there. `drawn` is used up: its memory is given
// back as soon as it is not needed. Many sentences are ordered in two threads.
template <typename Index>
void order_and_cut(LargeVector<DrawnSentence<Index>>& drawn, NumpyRandom* ties,
                   const BatchRules& rules, OrderedBatches<Index>& batches);

}  // namespace ringfeed::formats
