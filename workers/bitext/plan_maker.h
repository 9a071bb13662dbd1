// Makes the plan of an epoch of parallel text: looks up how long all sentences are, draws, orders,
// cuts. In threads of its own, while the epoch before is handed out.
//
// A plan is a function of the settings, the files, and the number of the epoch; what is begun and
// not finished is nobody's loss.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "workers/bitext/bitext_catalogue.h"
#include "workers/bitext/bitext_plan.h"

namespace ringfeed {

struct PlanSettings {
  formats::SamplingSettings sampling;
  formats::BatchRules batches;
  std::uint32_t max_source_positions = 1024;  // max_tokens taken into account
  std::uint32_t max_target_positions = 1024;
  std::uint64_t seed = 1;
  bool update_ordered_indices_seed = false;
  bool one_dataset_per_batch = false;
  std::uint64_t curriculum = 0;
  bool validation = false;
  bool single_direction = false;  // validation of fairseq's sets of a direction by itself
  // fairseq's RoundRobin: batches are cut when a data set's iterator is made.
  bool cut_once = false;
  // The most sentences that are numbered with 32 bits.
  std::uint64_t narrow_max = std::numeric_limits<std::uint32_t>::max();
};

// Which plan is asked for.
struct PlanTask {
  formats::EpochChain chain;
  std::uint64_t epoch = 1;
  std::uint64_t weights_version = 0;  // of the sampling settings
  friend bool operator==(const PlanTask& a, const PlanTask& b) noexcept {
    return a.chain.epoch == b.chain.epoch && a.chain.pass == b.chain.pass && a.epoch == b.epoch &&
           a.weights_version == b.weights_version;
  }
};

struct MadePlan {
  PlanTask task;
  formats::EpochShape shape;
  // One of the two, by whether 32 bits are enough to number the sentences.
  formats::OrderedBatches<std::uint32_t> narrow;
  formats::OrderedBatches<std::uint64_t> wide;
  bool is_wide = false;
  formats::LargeVector<std::uint32_t> narrow_order;  // of the batches
  formats::LargeVector<std::uint64_t> wide_order;
  std::uint64_t drawn = 0;     // sentences, those that are left out too
  double seconds = 0;          // that it took
  std::uint64_t repeated = 0;  // of these, for the second time or more

  [[nodiscard]] std::span<const std::byte> sentences() const noexcept;
  [[nodiscard]] std::span<const std::byte> ends() const noexcept;
  [[nodiscard]] std::span<const std::byte> order() const noexcept;
  [[nodiscard]] std::uint64_t batches() const noexcept;
  [[nodiscard]] std::uint64_t too_long() const noexcept;
  [[nodiscard]] std::uint64_t without_tokens() const noexcept;
};

// How far it is, in hundredths; and whether to stop.
struct PlanProgress {
  std::atomic<std::uint32_t> percent = 0;
  std::atomic<bool> stop = false;
};

// What several epochs share that are slices of one pass.
struct DrawnPass {
  formats::EpochShape shape;  // of which nothing but the slice differs
  formats::LargeVector<formats::DrawnSentence<std::uint32_t>> narrow;
  formats::LargeVector<formats::DrawnSentence<std::uint64_t>> wide;
};

// Throws Error: a file that cannot be read or is another than was found (kIo, kDamaged);
// std::bad_alloc, std::system_error: too little memory, no thread. nullopt: it was told to stop.
// `pass` is used if it fits, and kept for the next slice.
std::optional<MadePlan> make_plan(const PlanSettings& settings, const BitextCatalogue& catalogue,
                                  const PlanTask& task, DrawnPass& pass, PlanProgress& progress);

class PlanMaker {
 public:
  // The catalogue must outlive it.
  explicit PlanMaker(const BitextCatalogue& catalogue) : catalogue_(catalogue) {}

  // Begins with a plan, instead of what is under way. That is told to stop and not waited for here,
  // but by the new plan, so that there is never the memory of two.
  void begin(const PlanSettings& settings, const PlanTask& task) noexcept;
  // What was begun last and has not been given up.
  [[nodiscard]] const std::optional<PlanTask>& task() const noexcept { return task_; }
  // Waits a little for it. True: it is ready, or has failed.
  [[nodiscard]] bool wait(int milliseconds) noexcept;
  // The plan, once; nullptr: not yet, or it has failed: then error() says why, and begin() tries
  // again.
  [[nodiscard]] std::unique_ptr<MadePlan> take() noexcept;
  [[nodiscard]] std::string error() noexcept;
  // Gives up what is under way.
  void forget() noexcept;
  [[nodiscard]] std::uint32_t percent() const noexcept {
    return job_ ? job_->progress.percent.load() : 0;
  }

 private:
  struct Job {
    ~Job();
    PlanProgress progress;
    std::unique_ptr<Job> before;  // has been given up, and comes to its end first
    std::mutex mutex;
    std::condition_variable finished;
    bool done = false;
    std::unique_ptr<MadePlan> made;
    std::string error;
    std::thread thread;
  };
  void run(Job& job, const PlanSettings& settings, const PlanTask& task) noexcept;

  const BitextCatalogue& catalogue_;
  DrawnPass pass_;  // of the thread whose turn it is
  std::optional<PlanTask> task_;
  std::unique_ptr<Job> job_;
};

}  // namespace ringfeed
