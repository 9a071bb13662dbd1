#include "workers/stages/plan_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <numeric>
#include <utility>

#include "workers/formats/token_file.h"

namespace ringfeed {
namespace {

using formats::BitextRules;
using formats::EpochShape;
using formats::LargeVector;
using formats::LengthKey;
using formats::OrderedBatches;
using formats::TokenFile;

// What a random number of our own rules is for.
enum class Purpose : std::uint32_t { kTurns = 1, kPass = 2, kTies = 3, kBatches = 4 };

// Of fairseq's two data sets: their names' hashes.
constexpr std::uint32_t kWholeHash = 1944279108;
constexpr std::uint32_t kSlicedHash = 2770590817;
// Sentences whose lengths are looked up at once.
constexpr std::uint64_t kSomeSentences = 64 * 1024;
// Hundredths of the work, roughly, that are done behind each part of it.
constexpr std::uint32_t kLengthsDone = 20;
constexpr std::uint32_t kDrawnDone = 45;
constexpr std::uint32_t kOrderedDone = 95;

TokenFile open_as_found(const std::string& prefix, std::uint64_t sentences) {
  Result<TokenFile> opened = TokenFile::open(prefix);
  if (!opened) throw opened.error();
  if (opened->sentences() != sentences) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}.idx: {} sentences, {} when the feed was started; put the former "
                            "file back, or start the feed anew",
                            prefix, opened->sentences(), sentences));
  }
  return std::move(*opened);
}

class Planning {
 public:
  Planning(const PlanSettings& settings, const BitextCatalogue& catalogue, const PlanTask& task,
           PlanProgress& progress)
      : settings_(settings), catalogue_(catalogue), task_(task), progress_(progress) {
    const std::vector<formats::ShardSizes> sizes = catalogue.sizes();
    shape_ = formats::epoch_shape(settings.sampling, sizes, task.chain, task.epoch);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      firsts_.push_back(total_);
      total_ += sizes[i][shape_.shards[i]];
    }
    firsts_.push_back(total_);
  }

  [[nodiscard]] bool is_wide() const noexcept {
    return std::max(total_, shape_.virtual_size) > settings_.narrow_max;
  }
  [[nodiscard]] const EpochShape& shape() const noexcept { return shape_; }

  // False: it was told to stop.
  template <typename Index>
  bool make(DrawnPass& pass, LargeVector<Index>& kept, MadePlan& plan,
            OrderedBatches<Index>& batches, LargeVector<Index>& order) {
    EpochShape same = pass.shape;
    same.slice_begin = shape_.slice_begin;
    same.slice_size = shape_.slice_size;
    const bool known = shape_.sliced && same == shape_ && pass.keys.size() == total_ &&
                       kept.size() == shape_.virtual_size && total_ != 0;
    LargeVector<LengthKey> keys;
    LargeVector<Index> drawn;
    if (known) {
      keys.swap(pass.keys);
      drawn.swap(kept);
    } else {
      pass = DrawnPass{};
      if (!look_up(keys)) return false;
      progress_.percent = kLengthsDone;
      draw(drawn);
      if (shape_.sliced) pass_random().shuffle(std::span<Index>(drawn));
    }
    progress_.percent = kDrawnDone;
    if (progress_.stop) return false;
    if (shape_.sliced) {
      const auto begin = drawn.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(
                                             shape_.slice_begin, drawn.size()));
      const auto end =
          begin + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(
                      shape_.slice_size, static_cast<std::uint64_t>(drawn.end() - begin)));
      LargeVector<Index> slice(begin, end);
      count(slice, plan);
      order_sentences(slice, keys, batches);
      pass.shape = shape_;
      pass.keys.swap(keys);
      kept.swap(drawn);
    } else {
      count(drawn, plan);
      order_sentences(drawn, keys, batches);
    }
    if (progress_.stop) return false;
    progress_.percent = kOrderedDone;
    order.resize(batches.ends.size());
    std::iota(order.begin(), order.end(), Index{0});
    if (task_.epoch > settings_.curriculum && !settings_.validation) {
      batches_random().shuffle(std::span<Index>(order));
    }
    return true;
  }

 private:
  [[nodiscard]] bool ours() const noexcept {
    return settings_.sampling.rules == BitextRules::kOurs;
  }
  [[nodiscard]] NumpyRandom random_of(Purpose purpose, std::uint64_t a, std::uint32_t b = 0) const {
    return NumpyRandom(std::array<std::uint32_t, 6>{
        static_cast<std::uint32_t>(settings_.seed),
        static_cast<std::uint32_t>(settings_.seed >> 32), static_cast<std::uint32_t>(purpose),
        static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32), b});
  }
  // Validation is the same every time.
  [[nodiscard]] std::uint64_t seeding_epoch() const noexcept {
    return settings_.validation ? 1 : task_.epoch;
  }
  // fairseq's, which its seed does not reach.
  [[nodiscard]] NumpyRandom sampling_random() const {
    return NumpyRandom(std::array<std::uint32_t, 3>{
        settings_.sampling.virtual_epoch_size ? kSlicedHash : kWholeHash, 2,
        static_cast<std::uint32_t>(shape_.drawn_in)});
  }
  [[nodiscard]] NumpyRandom pass_random() const {
    return ours() ? random_of(Purpose::kPass, shape_.pass) : sampling_random();
  }
  [[nodiscard]] std::uint64_t seed_of_epoch() const noexcept {
    return settings_.update_ordered_indices_seed && !settings_.validation
               ? settings_.seed + task_.epoch
               : settings_.seed;
  }
  [[nodiscard]] NumpyRandom ties_random() const {
    return ours() ? random_of(Purpose::kTies, seeding_epoch())
                  : NumpyRandom(static_cast<std::uint32_t>(seed_of_epoch()));
  }
  [[nodiscard]] NumpyRandom batches_random() const {
    return ours() ? random_of(Purpose::kBatches, task_.epoch)
                  : NumpyRandom(static_cast<std::uint32_t>(seed_of_epoch() + task_.epoch));
  }

  // Whether chance decides about sentences of equal lengths. In validation only fairseq does so,
  // with a direction by itself, and where tokens stand in the places of `</s>`.
  [[nodiscard]] bool is_by_chance() const noexcept {
    if (!settings_.validation) return true;
    if (ours()) return false;
    return catalogue_.directions.size() == 1 ||
           std::ranges::any_of(catalogue_.directions, [](const CorpusDirection& direction) {
             return std::ranges::any_of(direction.shards, [](const BitextShard& shard) {
               return std::ranges::any_of(shard, &BitextFiles::replaces_eos);
             });
           });
  }

  // The lengths of all sentences.
  bool look_up(LargeVector<LengthKey>& keys) {
    keys.resize(total_);
    std::vector<std::uint32_t> sources(kSomeSentences);
    std::vector<std::uint32_t> targets(kSomeSentences);
    auto at = keys.begin();
    for (std::size_t i = 0; i < catalogue_.directions.size(); ++i) {
      for (const BitextFiles& files : catalogue_.directions[i].shards[shape_.shards[i]]) {
        if (progress_.stop) return false;
        const TokenFile source = open_as_found(files.source, files.sentences);
        const TokenFile target = open_as_found(files.target, files.sentences);
        const auto begin = at;
        for (std::uint64_t first = 0; first < files.sentences; first += kSomeSentences) {
          const std::uint64_t some = std::min(kSomeSentences, files.sentences - first);
          source.sizes(first, std::span(sources).first(some));
          target.sizes(first, std::span(targets).first(some));
          at = add_keys(files, std::span(sources).first(some), std::span(targets).first(some), at);
        }
        for (std::uint32_t again = 1; again < files.repeat; ++again) {
          at = std::copy_n(begin, files.sentences, at);
        }
        progress_.percent = static_cast<std::uint32_t>(
            kLengthsDone * static_cast<std::uint64_t>(at - keys.begin()) /
            std::max<std::uint64_t>(1, total_));
      }
    }
    return true;
  }
  template <typename Iterator>
  Iterator add_keys(const BitextFiles& files, std::span<const std::uint32_t> sources,
                    std::span<const std::uint32_t> targets, Iterator at) const {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      std::uint64_t source = sources[i];
      if (files.truncate_source != 0) {
        source = std::min<std::uint64_t>(source, files.truncate_source - 1) + 1;
      }
      *at++ = formats::length_key(source + files.source_more,
                                  std::uint64_t{targets[i]} + files.target_more,
                                  settings_.max_source_positions, settings_.max_target_positions);
    }
    return at;
  }

  // The sentences of the pass, direction after direction.
  template <typename Index>
  void draw(LargeVector<Index>& drawn) const {
    if (shape_.ratios.empty()) {
      drawn.resize(total_);
      std::iota(drawn.begin(), drawn.end(), Index{0});
      return;
    }
    const std::size_t directions = catalogue_.directions.size();
    // A permutation of a direction may stand at the end before it is cut short.
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < directions; ++i) {
      largest = std::max(largest, firsts_[i + 1] - firsts_[i]);
    }
    drawn.reserve(shape_.virtual_size + (ours() ? 0 : largest));
    if (ours()) {
      const std::vector<std::uint64_t> counts =
          formats::apportioned_counts(shape_.virtual_size, shape_.ratios);
      for (std::size_t i = 0; i < directions; ++i) {
        NumpyRandom random = random_of(Purpose::kTurns, i, shape_.shards[i]);
        formats::take_turns(random, firsts_[i], firsts_[i + 1] - firsts_[i], counts[i],
                            shape_.pass / catalogue_.directions[i].shards.size(), drawn);
      }
      return;
    }
    NumpyRandom random = sampling_random();
    const std::vector<std::uint64_t> counts =
        formats::random_counts(random, shape_.virtual_size, shape_.ratios);
    for (std::size_t i = 0; i < directions; ++i) {
      formats::draw_sentences(random, firsts_[i], firsts_[i + 1] - firsts_[i], counts[i], drawn);
    }
  }

  // How many sentences the epoch has, and how many of them for the second time or more.
  template <typename Index>
  void count(const LargeVector<Index>& drawn, MadePlan& plan) const {
    plan.drawn = drawn.size();
    if (shape_.ratios.empty()) return;
    std::vector<bool> seen(total_);
    for (const Index sentence : drawn) {
      if (seen[sentence]) ++plan.repeated;
      seen[sentence] = true;
    }
  }

  // Order, filter, batches.
  template <typename Index>
  void order_sentences(LargeVector<Index>& drawn, const LargeVector<LengthKey>& keys,
                       OrderedBatches<Index>& batches) const {
    NumpyRandom random = ties_random();
    const std::span<const LengthKey> all(keys);
    if (!settings_.one_dataset_per_batch) {
      // Before they are shuffled: so they lie direction by direction.
      const bool whole = shape_.ratios.empty() && !shape_.sliced;
      formats::LengthCounts<Index> counts =
          whole ? formats::count_lengths<Index>(all)
                : formats::count_lengths(all, Index{0}, std::span<const Index>(drawn));
      if (is_by_chance()) random.shuffle(std::span<Index>(drawn));
      formats::order_and_cut(drawn, all, Index{0}, std::move(counts), settings_.batches, batches);
      return;
    }
    std::vector<LargeVector<Index>> by_direction(catalogue_.directions.size());
    for (const Index sentence : drawn) {
      const auto next = std::ranges::upper_bound(firsts_, std::uint64_t{sentence});
      by_direction[static_cast<std::size_t>(next - firsts_.begin()) - 1].push_back(sentence);
    }
    LargeVector<Index>().swap(drawn);
    for (std::size_t i = 0; i < by_direction.size(); ++i) {
      const auto own = all.subspan(firsts_[i], firsts_[i + 1] - firsts_[i]);
      const auto first = static_cast<Index>(firsts_[i]);
      formats::LengthCounts<Index> counts =
          formats::count_lengths(own, first, std::span<const Index>(by_direction[i]));
      random.shuffle(std::span<Index>(by_direction[i]));
      formats::order_and_cut(by_direction[i], own, first, std::move(counts), settings_.batches,
                             batches);
    }
  }

  const PlanSettings& settings_;
  const BitextCatalogue& catalogue_;
  const PlanTask& task_;
  PlanProgress& progress_;
  EpochShape shape_;
  std::vector<std::uint64_t> firsts_;  // numbers of the directions' first sentences; then the total
  std::uint64_t total_ = 0;
};

template <typename T>
std::span<const std::byte> bytes_of(const LargeVector<T>& items) noexcept {
  return std::as_bytes(std::span<const T>(items));
}

}  // namespace

std::span<const std::byte> MadePlan::sentences() const noexcept {
  return is_wide ? bytes_of(wide.sentences) : bytes_of(narrow.sentences);
}
std::span<const std::byte> MadePlan::ends() const noexcept {
  return is_wide ? bytes_of(wide.ends) : bytes_of(narrow.ends);
}
std::span<const std::byte> MadePlan::order() const noexcept {
  return is_wide ? bytes_of(wide_order) : bytes_of(narrow_order);
}
std::uint64_t MadePlan::batches() const noexcept {
  return is_wide ? wide.ends.size() : narrow.ends.size();
}
std::uint64_t MadePlan::too_long() const noexcept {
  return is_wide ? wide.too_long : narrow.too_long;
}
std::uint64_t MadePlan::without_tokens() const noexcept {
  return is_wide ? wide.without_tokens : narrow.without_tokens;
}

std::optional<MadePlan> make_plan(const PlanSettings& settings, const BitextCatalogue& catalogue,
                                  const PlanTask& task, DrawnPass& pass, PlanProgress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  Planning planning(settings, catalogue, task, progress);
  MadePlan plan;
  plan.task = task;
  plan.shape = planning.shape();
  plan.is_wide = planning.is_wide();
  const bool made = plan.is_wide
                        ? planning.make(pass, pass.wide, plan, plan.wide, plan.wide_order)
                        : planning.make(pass, pass.narrow, plan, plan.narrow, plan.narrow_order);
  if (!made) return std::nullopt;
  plan.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

PlanMaker::~PlanMaker() { stop(); }

void PlanMaker::stop() noexcept {
  progress_.stop = true;
  if (thread_.joinable()) thread_.join();
  progress_.stop = false;
  progress_.percent = 0;
  task_.reset();
  made_.reset();
  error_.clear();
  done_ = false;
}

void PlanMaker::begin(const PlanSettings& settings, const PlanTask& task) {
  stop();
  task_ = task;
  thread_ = std::thread([this, settings, task] {
    std::unique_ptr<MadePlan> made;
    std::string error;
    try {
      std::optional<MadePlan> plan = make_plan(settings, catalogue_, task, pass_, progress_);
      if (plan) made = std::make_unique<MadePlan>(std::move(*plan));
    } catch (const std::bad_alloc&) {
      pass_ = DrawnPass{};
      error = fmt::format("too little memory for the plan of epoch {}", task.epoch);
    } catch (const std::exception& problem) {
      pass_ = DrawnPass{};
      error = problem.what();
    }
    const std::lock_guard lock(mutex_);
    made_ = std::move(made);
    error_ = std::move(error);
    done_ = true;
    finished_.notify_all();
  });
}

bool PlanMaker::wait(int milliseconds) noexcept {
  std::unique_lock lock(mutex_);
  return finished_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                            [this] { return done_; });
}

std::unique_ptr<MadePlan> PlanMaker::take() noexcept {
  const std::lock_guard lock(mutex_);
  return std::move(made_);
}

std::string PlanMaker::error() noexcept {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace ringfeed
