#include "workers/bitext/plan_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "workers/io/token_file.h"

namespace ringfeed {
namespace {

using formats::BitextRules;
using formats::DrawnSentence;
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
// Sentences whose lengths are looked up at once, and of which one thread looks up all.
constexpr std::uint64_t kSomeSentences = 16 * 1024;
constexpr std::uint64_t kPieceSentences = std::uint64_t{1} << 20;
// Fewer are no work for two threads.
constexpr std::uint64_t kManySentences = std::uint64_t{1} << 18;
// Hundredths of the work, roughly, that are done behind each part of it.
constexpr std::uint32_t kLengthsDone = 20;
constexpr std::uint32_t kDrawnDone = 45;
constexpr std::uint32_t kOrderedDone = 95;

TokenFile open_as_found(const std::string& prefix, std::uint64_t sentences) {
  Result<TokenFile> opened = TokenFile::open(prefix);
  if (!opened) throw opened.error();
  if (opened->sentences() != sentences) {
    throw Error(ErrorCode::kDamaged,
                fmt::format("{}.idx: {} sentences now, {} when the feed was started; put the "
                            "previous file back, or start the feed anew",
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
  bool make(DrawnPass& pass, LargeVector<DrawnSentence<Index>>& kept, MadePlan& plan,
            OrderedBatches<Index>& batches, LargeVector<Index>& order) {
    EpochShape same = pass.shape;
    same.slice_begin = shape_.slice_begin;
    same.slice_size = shape_.slice_size;
    const bool known =
        shape_.sliced && same == shape_ && kept.size() == shape_.virtual_size && total_ != 0;
    LargeVector<DrawnSentence<Index>> drawn;
    if (known) {
      drawn.swap(kept);
    } else {
      pass = DrawnPass{};
      if (!draw(drawn)) return false;
      if (shape_.sliced) pass_random().shuffle(std::span(drawn));
    }
    progress_.percent = kDrawnDone;
    if (progress_.stop) return false;
    if (shape_.sliced) {
      const std::uint64_t begin = std::min<std::uint64_t>(shape_.slice_begin, drawn.size());
      const std::uint64_t size = std::min<std::uint64_t>(shape_.slice_size, drawn.size() - begin);
      const auto of_slice = std::span(drawn).subspan(begin, size);
      LargeVector<DrawnSentence<Index>> slice(of_slice.begin(), of_slice.end());
      pass.shape = shape_;
      kept.swap(drawn);
      drawn.swap(slice);
    }
    count(drawn, plan);
    order_sentences(drawn, batches);
    if (progress_.stop) return false;
    progress_.percent = kOrderedDone;
    order.resize(batches.ends.size());
    std::iota(order.begin(), order.end(), Index{0});
    if (made_in() > settings_.curriculum && !settings_.validation) {
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
  // The epoch in which fairseq has made the iterator of the data set.
  [[nodiscard]] std::uint64_t made_in() const noexcept {
    if (settings_.validation) return 1;
    return settings_.cut_once && !settings_.sampling.sharded ? task_.chain.epoch : task_.epoch;
  }
  [[nodiscard]] std::uint64_t seed_of_epoch() const noexcept {
    return settings_.update_ordered_indices_seed && !settings_.validation
               ? settings_.seed + made_in()
               : settings_.seed;
  }
  [[nodiscard]] NumpyRandom ties_random() const {
    if (ours()) return random_of(Purpose::kTies, seeding_epoch());
    return NumpyRandom(
        static_cast<std::uint32_t>(seed_of_epoch() + (settings_.cut_once ? made_in() : 0)));
  }
  [[nodiscard]] NumpyRandom batches_random() const {
    return ours() ? random_of(Purpose::kBatches, task_.epoch)
                  : NumpyRandom(static_cast<std::uint32_t>(seed_of_epoch() + task_.epoch));
  }

  // Whether chance decides about sentences of equal lengths. In validation only fairseq does so, in
  // the sets of a direction by itself, and where tokens stand in the places of `</s>`.
  [[nodiscard]] bool is_by_chance() const noexcept {
    if (!settings_.validation) return true;
    if (ours()) return false;
    return settings_.single_direction ||
           std::ranges::any_of(catalogue_.directions, [](const CorpusDirection& direction) {
             return std::ranges::any_of(direction.shards, [](const BitextShard& shard) {
               return std::ranges::any_of(shard, &BitextFiles::replaces_eos);
             });
           });
  }

  // Some sentences of a pair of files.
  struct Piece {
    const BitextFiles* files;
    std::uint64_t first;  // of the files
    std::uint64_t count;
    std::uint64_t number;  // of the first, among all
  };
  [[nodiscard]] std::vector<Piece> pieces() const {
    std::vector<Piece> all;
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < catalogue_.directions.size(); ++i) {
      for (const BitextFiles& files : catalogue_.directions[i].shards[shape_.shards[i]]) {
        for (std::uint32_t turn = 0; turn < files.repeat; ++turn) {
          for (std::uint64_t first = 0; first < files.sentences; first += kPieceSentences) {
            const std::uint64_t count = std::min(kPieceSentences, files.sentences - first);
            all.push_back({&files, first, count, number});
            number += count;
          }
        }
      }
    }
    return all;
  }

  // Calls emit(number, key) for every sentence, in two threads if there are many. False: it was
  // told to stop.
  template <typename Emit>
  bool look_up(const Emit& emit) {
    const std::vector<Piece> all = pieces();
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> failed = false;
    const auto work = [&] {
      std::vector<std::uint32_t> sources(kSomeSentences);
      std::vector<std::uint32_t> targets(kSomeSentences);
      for (std::size_t i = next++; i < all.size() && !failed; i = next++) {
        try {
          if (!look_up_piece(all[i], sources, targets, emit)) return;
        } catch (...) {
          failed = true;
          throw;
        }
        progress_.percent = static_cast<std::uint32_t>(kLengthsDone * (i + 1) / all.size());
      }
    };
    std::future<void> other =
        std::async(total_ >= kManySentences ? std::launch::async : std::launch::deferred, work);
    work();
    other.get();
    return !progress_.stop;
  }
  // False: it was told to stop.
  template <typename Emit>
  bool look_up_piece(const Piece& piece, std::vector<std::uint32_t>& sources,
                     std::vector<std::uint32_t>& targets, const Emit& emit) const {
    const BitextFiles& files = *piece.files;
    const TokenFile source = open_as_found(files.source, files.sentences);
    const TokenFile target = open_as_found(files.target, files.sentences);
    for (std::uint64_t done = 0; done < piece.count; done += kSomeSentences) {
      if (progress_.stop) return false;
      const std::uint64_t some = std::min(kSomeSentences, piece.count - done);
      source.sizes(piece.first + done, std::span(sources).first(some));
      target.sizes(piece.first + done, std::span(targets).first(some));
      for (std::uint64_t i = 0; i < some; ++i) {
        emit(piece.number + done + i, key_of(files, sources[i], targets[i]));
      }
    }
    return true;
  }
  [[nodiscard]] LengthKey key_of(const BitextFiles& files, std::uint64_t source,
                                 std::uint64_t target) const noexcept {
    if (files.truncate_source != 0) {
      source = std::min<std::uint64_t>(source, files.truncate_source - 1) + 1;
    }
    return formats::length_key(source + files.source_more, target + files.target_more,
                               settings_.max_source_positions, settings_.max_target_positions);
  }

  // The sentences of the pass, direction after direction. False: it was told to stop.
  template <typename Index>
  bool draw(LargeVector<DrawnSentence<Index>>& drawn) {
    if (shape_.ratios.empty()) {
      drawn.resize(total_);
      return look_up([&](std::uint64_t number, LengthKey key) {
        drawn[number] = {static_cast<Index>(number), key};
      });
    }
    LargeVector<LengthKey> all(total_);
    if (!look_up([&](std::uint64_t number, LengthKey key) { all[number] = key; })) return false;
    const auto keys_of = [&](std::size_t direction) {
      return std::span<const LengthKey>(all).subspan(firsts_[direction],
                                                     firsts_[direction + 1] - firsts_[direction]);
    };
    const std::size_t directions = catalogue_.directions.size();
    // A permutation of a direction may stand at the end before it is cut short.
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < directions; ++i) largest = std::max(largest, keys_of(i).size());
    drawn.reserve(shape_.virtual_size + (ours() ? 0 : largest));
    NumpyRandom random = ours() ? NumpyRandom(0) : sampling_random();
    const std::vector<std::uint64_t> counts =
        ours() ? formats::apportioned_counts(shape_.virtual_size, shape_.ratios)
               : formats::random_counts(random, shape_.virtual_size, shape_.ratios);
    for (std::size_t i = 0; i < directions; ++i) {
      if (progress_.stop) return false;
      if (ours()) {
        NumpyRandom turns = random_of(Purpose::kTurns, i, shape_.shards[i]);
        formats::take_turns(turns, firsts_[i], keys_of(i), counts[i],
                            shape_.pass / catalogue_.directions[i].shards.size(), drawn);
      } else {
        formats::draw_sentences(random, firsts_[i], keys_of(i), counts[i], drawn);
      }
    }
    return true;
  }

  // How many sentences the epoch has, and how many of them for the second time or more.
  template <typename Index>
  void count(const LargeVector<DrawnSentence<Index>>& drawn, MadePlan& plan) const {
    plan.drawn = drawn.size();
    if (shape_.ratios.empty()) return;
    std::vector<bool> seen(total_);
    for (const auto& [sentence, key] : drawn) {
      if (seen[sentence]) ++plan.repeated;
      seen[sentence] = true;
    }
  }

  // Order, filter, batches.
  template <typename Index>
  void order_sentences(LargeVector<DrawnSentence<Index>>& drawn,
                       OrderedBatches<Index>& batches) const {
    NumpyRandom random = ties_random();
    if (!settings_.one_dataset_per_batch) {
      formats::order_and_cut(drawn, is_by_chance() ? &random : nullptr, settings_.batches, batches);
      return;
    }
    const auto direction_of = [this](const DrawnSentence<Index>& item) {
      const auto next = std::ranges::upper_bound(firsts_, std::uint64_t{item.sentence});
      return static_cast<std::size_t>(next - firsts_.begin()) - 1;
    };
    std::vector<std::uint64_t> counts(catalogue_.directions.size());
    for (const auto& item : drawn) ++counts[direction_of(item)];
    std::vector<LargeVector<DrawnSentence<Index>>> by_direction(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) by_direction[i].reserve(counts[i]);
    for (const auto& item : drawn) by_direction[direction_of(item)].push_back(item);
    LargeVector<DrawnSentence<Index>>().swap(drawn);
    for (auto& own : by_direction) {
      formats::order_and_cut(own, &random, settings_.batches, batches);
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

PlanMaker::Job::~Job() {
  progress.stop = true;
  if (thread.joinable()) thread.join();
}

void PlanMaker::run(Job& job, const PlanSettings& settings, const PlanTask& task) noexcept {
  job.before.reset();  // waits for it
  std::unique_ptr<MadePlan> made;
  std::string error;
  try {
    std::optional<MadePlan> plan = make_plan(settings, catalogue_, task, pass_, job.progress);
    if (plan) made = std::make_unique<MadePlan>(std::move(*plan));
  } catch (const std::bad_alloc&) {
    pass_ = DrawnPass{};
    error = fmt::format("too little memory for the plan of epoch {}", task.epoch);
  } catch (const std::exception& problem) {
    pass_ = DrawnPass{};
    error = problem.what();
  }
  const std::lock_guard lock(job.mutex);
  job.made = std::move(made);
  job.error = std::move(error);
  job.done = true;
  job.finished.notify_all();
}

void PlanMaker::begin(const PlanSettings& settings, const PlanTask& task) noexcept {
  forget();
  task_ = task;
  auto job = std::make_unique<Job>();
  job->before = std::move(job_);
  job_ = std::move(job);
  try {
    job_->thread =
        std::thread([this, &mine = *job_, settings, task] { run(mine, settings, task); });
  } catch (const std::system_error& problem) {
    job_->error = fmt::format("no thread for the plan of epoch {}: {}", task.epoch, problem.what());
    job_->done = true;
  }
}

void PlanMaker::forget() noexcept {
  task_.reset();
  if (job_) job_->progress.stop = true;
}

bool PlanMaker::wait(int milliseconds) noexcept {
  if (!task_) return false;
  std::unique_lock lock(job_->mutex);
  return job_->finished.wait_for(lock, std::chrono::milliseconds(milliseconds),
                                 [this] { return job_->done; });
}

std::unique_ptr<MadePlan> PlanMaker::take() noexcept {
  if (!task_) return nullptr;
  const std::lock_guard lock(job_->mutex);
  return std::move(job_->made);
}

std::string PlanMaker::error() noexcept {
  if (!task_) return {};
  const std::lock_guard lock(job_->mutex);
  return job_->error;
}

}  // namespace ringfeed
