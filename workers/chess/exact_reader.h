// `order: EXACT`: samples in the order in which the program in Python gave them, whose random
// numbers come from two streams that everything draws from. So what is drawn depends on what is
// read, and what is read on what was drawn; one lane does it all, and asks for the files that it
// needs.
//
//   input    rows        of the file asked for; the list of files first (row_records.h)
//            turns       behind a variation_mixer only: who wants a sample, and where the streams are
//   output   output      sequences; behind a variation_mixer each is the answer to a turn, and its tag
//                        says where the streams are then. kBatchEndRecord where a worker of the
//                        original ended its last batch
//            requests    FileRequest
//   arena    for each worker: where its streams are, how far it is with its files, the rows of the
//            file under way
//   skips    with a fault, all that follows in the file (files_given_up); of variations, rows whose
//            conversion fails, by reason
//
// Streams are kept as the number of words that they have given: a process that starts draws them
// again, which takes two nanoseconds a word.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/feed_output.h"
#include "workers/chess/chess_games.h"
#include "workers/chess/chess_variation.h"
#include "workers/chess/exact_turns.h"
#include "workers/chess/game_index.h"
#include "workers/chess/sequence_facts.h"
#include "workers/chess/sequence_pool.h"
#include "workers/chess/sequence_records.h"
#include "workers/io/row_batch.h"
#include "workers/kit/numpy_random.h"
#include "workers/kit/stage_help.h"
#include "workers/rows/file_rows.h"
#include "workers/rows/row_facts.h"
#include "workers/rows/row_records.h"

namespace ringfeed {

// What `order: EXACT` adds to the ports of a stage that makes sequences of rows, and what such a
// stage says of its sequences and wishes of its rows.
void exact_ports(const StageView& stage, std::vector<PortSpec>& inputs,
                 std::vector<PortSpec>& outputs);
void sequences_facts(const StageView& stage, std::uint32_t length_max, bool variations,
                     PortFacts& outputs);
void rows_wishes(const StageView& stage, std::vector<formats::ColumnWish> columns,
                 PortFacts& inputs);
[[nodiscard]] std::vector<Problem> exact_problems(const StageView& stage);

// `order: EXACT` of a stage of chess.
[[nodiscard]] bool is_exact(const StageConfig& config);

// The one node of chess_games and of chess_variations.
[[nodiscard]] NodeSpec exact_games_node(const StageView& stage);
[[nodiscard]] NodeSpec exact_variations_node(const StageView& stage);

// Workers of the original that it stands for, at least 1.
[[nodiscard]] std::uint32_t exact_workers(const StageView& stage);
// Rows of the batches behind it.
[[nodiscard]] std::uint32_t exact_batch_size(const StageView& stage);

// The two streams of a worker in an epoch.
class RandomStreams {
 public:
  // As the original seeds them.
  RandomStreams(std::uint64_t seed, std::uint32_t epoch, std::uint32_t worker, std::uint32_t rank);
  [[nodiscard]] bool is_of(std::uint32_t epoch) const noexcept { return epoch_ == epoch; }
  // Brings both there.
  void go_to(const RandomPlace& place);
  [[nodiscard]] RandomPlace place() const noexcept { return {python.drawn(), numpy.drawn()}; }

 private:
  std::uint64_t python_seed_;
  std::uint32_t numpy_seed_;
  std::uint32_t epoch_;

 public:
  PythonRandom python;
  NumpyRandom numpy;
};

class ExactReader : public Stage {
 public:
  static constexpr std::uint32_t kStepsPerCommit = 1;

  struct State {
    State(StateLayout& layout, std::uint32_t workers);
    struct Worker {
      explicit Worker(StateLayout& layout);
      Word python;  // where its streams are
      Word numpy;
      Word has_order;     // the order of its files was drawn,
      Word order_at;      // when the first stream was here
      Word file;          // in that order, under way
      Word open;          // kClosed, kLoading, kOpen
      Word items_python;  // where the streams were when the file was opened
      Word items_numpy;
      Word item;  // of the file, next
      FileRows::State rows;
    };
    Word files;     // of the source, and 1; 0: not known yet
    Word loading;   // worker whose file comes, and 1
    Word clearing;  // worker whose rows go, and 1
    Word in_turn;   // the turn has begun
    Word places_bytes;
    ExactTurns::State turns;  // if nobody else says whose turn it is
    std::vector<Worker> workers;
    PlacePool places;
  };

  ExactReader(const StageContext& context, std::uint32_t workers, std::uint32_t batch_size);
  StepStatus step(Step& step) noexcept final;
  void forget(Step& step, const Record& record) noexcept final;

 protected:
  // What came of the next item of a file.
  enum class Item : std::uint8_t { kSample, kSkipped, kFault };
  struct File {
    std::vector<formats::RowBatch> batches;
    GameIndex games;
    std::vector<std::uint32_t> order;  // of items
    std::vector<RowPlace> rows;        // of variations: all of them
  };
  // Puts the file's items into their order. False: the file has a fault (said and counted by
  // fault()).
  virtual bool open(File& file, RandomStreams& random) = 0;
  // It has been opened for the first time: what is to be counted of it.
  virtual void opened(Step& step, const File& file) {
    static_cast<void>(step), static_cast<void>(file);
  }
  virtual Item next(Step& step, File& file, std::uint32_t item, RandomStreams& random,
                    formats::TokenSequence& out) = 0;
  // The rest of a file is not used.
  void fault(Step& step, const File& file, std::uint64_t row, std::string_view text);

  StageContext context_;
  Counter rows_;

 private:
  static constexpr std::uint64_t kClosed = 0;
  static constexpr std::uint64_t kLoading = 1;
  static constexpr std::uint64_t kOpen = 2;
  struct Cache {
    std::optional<RandomStreams> random;
    std::optional<std::vector<std::uint32_t>> order;  // of the worker's files
    std::optional<File> file;
  };

  StepStatus try_step(Step& step);
  StepStatus take_rows(Step& step, const Record& record);
  StepStatus close_file(Step& step, const Record& record, bool is_whole);
  StepStatus produce(Step& step, const Record* asked);
  StepStatus answer(Step& step, const Record* asked, bool has_sample);
  StepStatus end_of_worker(Step& step);
  void keep_place(Step& step);
  bool keep_gap(Step& step, std::uint32_t worker);
  void leave_file(Step& step, std::uint32_t worker);
  void restart(Step& step, std::uint32_t worker);
  RandomStreams& streams(Step& step, std::uint32_t worker, std::uint32_t epoch);
  const std::vector<std::uint32_t>& files_of(Step& step, std::uint32_t worker);

  std::uint32_t rank_;
  bool shuffle_files_;
  State state_;
  ExactTurns own_turns_;
  InPort in_;
  std::optional<InPort> turns_;
  OutPort out_;
  OutPort requests_;
  Counter sequences_;
  SkipReason too_large_;
  SkipReason given_up_;
  SkipReason damaged_;
  std::vector<Cache> caches_;
  TurnRecord turn_{};  // the one under way
  formats::TokenSequence sequence_;
};

// What the configuration of a stage of chess says of its queue.
template <typename Config>
[[nodiscard]] SequenceQueue queue_of(const Config& own) {
  return {.bytes = own.has_queue_bytes() ? std::optional(own.queue_bytes()) : std::nullopt,
          .exact = own.order() == EXACT,
          .may_drop = own.overflow_behavior() != BLOCK};
}

// All that may be wrong with the settings of chess_games or chess_variations.
template <typename Config>
[[nodiscard]] std::vector<Problem> sample_problems(const StageView& stage, const Config& own) {
  std::vector<Problem> problems = exact_problems(stage);
  for (Problem& problem : sequence_queue_problems(stage, queue_of(own), own.length_max())) {
    problems.push_back(std::move(problem));
  }
  if (stage.links.output("output").said.get(kMixed) && !ordered_dispatch(stage.feed) &&
      std::max(own.threads(), own.max_threads()) > 1) {
    problems.push_back({"threads",
                        "before a variation_mixer epochs must end in order; with dispatch RELAXED "
                        "set threads: 1"});
  }
  const Link& rows = stage.links.input("input");
  if (rows.said.get(kRowsMayDrop)) {
    problems.push_back({"input", fmt::format("dropped rows of stage '{}' would leave gaps in "
                                             "games; leave its overflow_behavior at BLOCK",
                                             rows.stage)});
  }
  return problems;
}

// The node of a stage whose configuration is `own`.
template <typename Config>
NodeSpec exact_node(const StageView& stage, const Config& own,
                    std::unique_ptr<Stage> (*make)(const StageContext&, std::uint32_t workers,
                                                   std::uint32_t batch_size)) {
  const std::uint32_t workers = exact_workers(stage);
  StateLayout layout;
  const ExactReader::State state(layout, workers);
  NodeSpec node;
  node.state_bytes = state.places.head_bytes() + 16 * kMiB;
  node.state_bytes_max = kGrowsWithData;
  node.inputs = {{.port = "input", .from = "", .block = 1}};
  if (stage.links.output("output").said.get(kMixed)) {
    node.inputs.push_back({.port = "turns", .from = "", .block = 1});
  }
  node.outputs = {
      output_spec(own, "sequences", sequence_queue_bytes(own.length_max()), UnitRule::kRecord),
      {.port = "requests",
       .record_type = "requests",
       .exported = true,
       .queue_capacity = 16,
       .queue_bytes = 64 * kKiB,
       .overflow = BLOCK,
       .units = UnitRule::kRecord}};
  node.weight = 0.5;
  node.steps_per_commit = ExactReader::kStepsPerCommit;
  node.entries_per_step = 64 + 8 * workers + 4 * FileRows::kGivenUpMax;
  node.create = [make, workers, batch_size = exact_batch_size(stage)](const StageContext& context) {
    return make(context, workers, batch_size);
  };
  return node;
}

}  // namespace ringfeed
