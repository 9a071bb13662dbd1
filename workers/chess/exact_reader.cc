#include "workers/chess/exact_reader.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "proto/feed_output.h"
#include "workers/chess/chess_columns.h"

namespace ringfeed {
namespace {

// Items that come to nothing in one call of step().
constexpr std::uint32_t kSkippedPerStep = 64;

}  // namespace

bool is_exact(const StageConfig& config) {
  return config.has_chess_games()        ? config.chess_games().order() == EXACT
         : config.has_chess_variations() ? config.chess_variations().order() == EXACT
                                         : config.variation_mixer().order() == EXACT;
}

std::uint32_t exact_workers(const StageView& stage) {
  const Facts& wishes = stage.links.output("output").said;
  const std::uint64_t own =
      wishes.get(kMixed) ? wishes.get(kTurnWorkers) : stage.config.chess_games().workers();
  return std::max(static_cast<std::uint32_t>(own), 1U);
}

std::uint32_t exact_batch_size(const StageView& stage) {
  return static_cast<std::uint32_t>(stage.links.output("output").said.get(kBatchRows, 1));
}

// ---- the stages beside it

void exact_ports(const StageView& stage, std::vector<PortSpec>& inputs,
                 std::vector<PortSpec>& outputs) {
  if (!is_exact(stage.config)) return;
  outputs.push_back({"requests", "requests"});
  const Link& mixer = stage.links.output("output");
  if (!mixer.said.get(kMixed) || !mixer.said.get(kExactOrder)) return;
  inputs.push_back({"turns", "turns",
                    mixer.stage + (mixer.port == "input" ? ".game_turns" : ".variation_turns")});
}

void sequences_facts(const StageView& stage, std::uint32_t length_max, bool variations,
                     PortFacts& outputs) {
  const Link& rows = stage.links.input("input");
  Facts& said = outputs["output"];
  said.set(kLengthMax, length_max);
  said.set(kHasVariations, variations);
  said.set(kFromRows, true);
  said.set(kExactOrder, is_exact(stage.config));
  said.set(kRank, rows.said.get(kRowsRank));
  said.set(kRowsFrom, rows.stage);
  // Of other sources nobody knows.
  said.set(kRepeat, rows.said.get(kRowsRepeat, true));
}

void rows_wishes(const StageView& stage, std::vector<formats::ColumnWish> columns,
                 PortFacts& inputs) {
  inputs["input"].set(kRowColumns, std::move(columns));
  inputs["input"].set(kFilesOnRequest, is_exact(stage.config));
}

std::vector<Problem> exact_problems(const StageView& stage) {
  std::vector<Problem> problems;
  const bool exact = is_exact(stage.config);
  const Link& mixer = stage.links.output("output");
  const bool mixed = mixer.said.get(kMixed);
  if (mixed && mixer.said.get(kExactOrder) != exact) {
    problems.push_back(
        {"order",
         fmt::format(
             "order differs from that of stage '{}'; use the same in all chess stages of a feed",
             mixer.stage)});
  }
  if (!exact) return problems;
  const Link& rows = stage.links.input("input");
  if (rows.linked() && !rows.said.get(kTakesFileRequests)) {
    problems.push_back(
        {"input", fmt::format("with order EXACT rows must come from a source that reads files on "
                              "request; '{}' does not",
                              rows.stage)});
  }
  if (stage.config.has_chess_variations() && !mixed) {
    problems.push_back(
        {"order",
         "order EXACT needs a variation_mixer after it; use order: BETTER for a feed "
         "of variations alone"});
  }
  if (mixed && stage.config.chess_games().workers() != 0) {
    problems.push_back(
        {"workers",
         fmt::format("workers has an effect only before a sequence_batcher; set it in stage '{}'",
                     mixer.stage)});
  }
  return problems;
}

// ---- streams

RandomStreams::RandomStreams(std::uint64_t seed, std::uint32_t epoch, std::uint32_t worker,
                             std::uint32_t rank)
    : python_seed_(seed + std::uint64_t{100003} * epoch + std::uint64_t{997} * worker +
                   std::uint64_t{7919} * rank),
      numpy_seed_(static_cast<std::uint32_t>(python_seed_)),
      epoch_(epoch),
      python(python_seed_),
      numpy(numpy_seed_) {}

void RandomStreams::go_to(const RandomPlace& place) {
  if (python.drawn() > place.python) python = PythonRandom(python_seed_);
  if (numpy.drawn() > place.numpy) numpy = NumpyRandom(numpy_seed_);
  python.skip_to(place.python);
  numpy.skip_to(place.numpy);
}

// ---- ExactReader

ExactReader::State::Worker::Worker(StateLayout& layout)
    : python(layout.word()),
      numpy(layout.word()),
      has_order(layout.word()),
      order_at(layout.word()),
      file(layout.word()),
      open(layout.word()),
      items_python(layout.word()),
      items_numpy(layout.word()),
      item(layout.word()),
      rows(layout) {}

ExactReader::State::State(StateLayout& layout, std::uint32_t worker_count)
    : files(layout.word()),
      loading(layout.word()),
      clearing(layout.word()),
      in_turn(layout.word()),
      places_bytes(layout.word()),
      turns(layout, worker_count),
      workers([&] {
        std::vector<Worker> all;
        for (std::uint32_t i = 0; i < worker_count; ++i) all.emplace_back(layout);
        return all;
      }()),
      places(layout, places_bytes, usual_place_sizes(), kUsualPlaceAlignment,
             kStepsPerCommit * FileRows::kGivenUpMax) {}

ExactReader::ExactReader(const StageContext& context, std::uint32_t workers,
                         std::uint32_t batch_size)
    : context_(context),
      rows_(context.counter("rows")),
      rank_(static_cast<std::uint32_t>(context.links.input("input").said.get(kRowsRank))),
      shuffle_files_(context.links.input("input").said.get(kShuffleFiles)),
      state_([workers] {
        StateLayout layout;
        return State(layout, workers);
      }()),
      own_turns_(state_.turns, batch_size),
      in_(context.input("input")),
      out_(context.output("output")),
      requests_(context.output("requests")),
      sequences_(context.counter("sequences")),
      too_large_(context, "skipped_too_large"),
      given_up_(context, "files_given_up"),
      damaged_(context, "rows_damaged"),
      caches_(workers) {
  if (context.links.output("output").said.get(kMixed)) turns_ = context.input("turns");
}

void ExactReader::fault(Step& step, const File& file, std::uint64_t row, std::string_view text) {
  given_up_.skip(step, file.batches.empty() ? "" : file.batches.front().path(), row,
                 fmt::format("{}; the rest of the file is not used", text));
}

void ExactReader::forget(Step& step, const Record& record) noexcept {
  const std::uint64_t loading = step.load(state_.loading);
  if (turns_ && record.port.index == turns_->index) {
    // Somebody waits for the answer. The item at which it stood goes with it.
    if (record.bytes.size() != sizeof turn_) return;
    std::memcpy(&turn_, record.bytes.data(), sizeof turn_);
    const State::Worker& worker = state_.workers[turn_.worker % state_.workers.size()];
    RandomPlace place = turn_.random;
    if (step.load(state_.in_turn) != 0) place = {step.load(worker.python), step.load(worker.numpy)};
    if (step.load(worker.open) == kOpen) step.store(worker.item, step.load(worker.item) + 1);
    static_cast<void>(
        step.put(out_, {}, {.tag = {place.python, place.numpy}, .user = kNoSampleRecord}));
    step.store(state_.in_turn, 0);
  } else if (record.user == kFilesRecord) {
    step.store(state_.files, 1);  // as if there were none
  } else if (loading != 0 && (record.user == kFileEndRecord || record.user == kFileFailedRecord)) {
    leave_file(step, static_cast<std::uint32_t>(loading - 1));
    step.store(state_.loading, 0);
  } else if (loading != 0) {
    keep_gap(step, static_cast<std::uint32_t>(loading - 1));
  }
}

// A record without rows in place of some that are lost: with it the file is not whole.
bool ExactReader::keep_gap(Step& step, std::uint32_t number) {
  const formats::RowBatchHead head{};
  FileRows rows(state_.workers[number].rows);
  return rows.keep(step, state_.places, std::as_bytes(std::span(&head, 1)));
}

// What a step that comes to nothing has drawn is drawn again: the streams go back with it.
StepStatus ExactReader::step(Step& step) noexcept {
  std::optional<RandomStreams>& random = caches_[own_turns_.worker(step)].random;
  const std::optional<RandomStreams> before = turns_ ? std::nullopt : random;
  const StepStatus status = try_step(step);
  if (status != StepStatus::kDone && status != StepStatus::kEnd && before) random = before;
  return status;
}

StepStatus ExactReader::try_step(Step& step) {
  if (const std::uint64_t clearing = step.load(state_.clearing); clearing != 0) {
    FileRows rows(state_.workers[clearing - 1].rows);
    if (rows.give_up(step, state_.places)) step.store(state_.clearing, 0);
    return StepStatus::kDone;
  }
  std::optional<Record> asked;
  if (!turns_) {
    turn_ = {};
    turn_.worker = own_turns_.worker(step);
    turn_.epoch = own_turns_.epoch(step);
  } else if ((asked = step.peek(*turns_))) {
    RF_CHECK(asked->bytes.size() == sizeof turn_, asked->bytes.size());
    std::memcpy(&turn_, asked->bytes.data(), sizeof turn_);
    RF_CHECK(turn_.worker < state_.workers.size(), turn_.worker);
  }
  if (step.load(state_.loading) != 0 || step.load(state_.files) == 0) {
    const std::optional<Record> record = step.peek(in_);
    if (record) return take_rows(step, *record);
    return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  }
  if (!turns_) return produce(step, nullptr);
  if (!asked) return step.ended(*turns_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (step.load(state_.in_turn) == 0) {
    const State::Worker& worker = state_.workers[turn_.worker];
    if (turn_.restart != 0) restart(step, turn_.worker);
    step.store(worker.python, turn_.random.python);
    step.store(worker.numpy, turn_.random.numpy);
    step.store(state_.in_turn, 1);
    if (step.load(state_.clearing) != 0) return StepStatus::kDone;
  }
  return produce(step, &*asked);
}

// ---- files

StepStatus ExactReader::take_rows(Step& step, const Record& record) {
  const std::uint64_t loading = step.load(state_.loading);
  if (record.user == kFilesRecord) {
    FileList list{};
    RF_CHECK(record.bytes.size() == sizeof list, record.bytes.size());
    std::memcpy(&list, record.bytes.data(), sizeof list);
    step.store(state_.files, std::uint64_t{list.files} + 1);
    if (list.files == 0)
      context_.warn(fmt::format("no_files stage={}: the source has none", context_.stage));
    return step.consume(record);
  }
  if (loading == 0) return step.consume(record);
  if (record.user == kFileEndRecord) return close_file(step, record, true);
  if (record.user == kFileFailedRecord) return close_file(step, record, false);
  formats::RowBatch batch;
  if (!batch.read(record.bytes)) {
    damaged_.skip(step, "rows", record.tag[0], "these are not rows");
    if (!keep_gap(step, static_cast<std::uint32_t>(loading - 1))) return StepStatus::kNoRoom;
    return step.consume(record);
  }
  FileRows rows(state_.workers[loading - 1].rows);
  if (!rows.keep(step, state_.places, record.bytes)) return StepStatus::kNoRoom;
  step.count(rows_, batch.rows());
  return step.consume(record);
}

// All of the file is there, or will never be.
StepStatus ExactReader::close_file(Step& step, const Record& record, bool is_whole) {
  const auto number = static_cast<std::uint32_t>(step.load(state_.loading) - 1);
  const State::Worker& worker = state_.workers[number];
  step.store(state_.loading, 0);
  const FileRows rows(worker.rows);
  File& file = caches_[number].file.emplace();
  rows.look(step, state_.places, file.batches);
  is_whole =
      is_whole && std::all_of(file.batches.begin(), file.batches.end(),
                              [](const formats::RowBatch& batch) { return batch.rows() != 0; });
  if (!is_whole) {
    formats::RowBatch head;
    given_up_.skip(step, head.read(record.bytes) ? head.path() : "", 0,
                   "it cannot be read completely; nothing of it is used");
    leave_file(step, number);
    return step.consume(record);
  }
  RandomStreams& random = streams(step, number, turn_.epoch);
  step.store(worker.items_python, random.place().python);
  step.store(worker.items_numpy, random.place().numpy);
  step.store(worker.item, 0);
  step.store(worker.open, kOpen);
  if (!file.batches.empty() && !open(file, random)) {
    fault(step, file, 0, "a column is missing");
    leave_file(step, number);
  } else {
    opened(step, file);
  }
  step.store(worker.python, random.place().python);
  step.store(worker.numpy, random.place().numpy);
  return step.consume(record);
}

void ExactReader::leave_file(Step& step, std::uint32_t number) {
  const State::Worker& worker = state_.workers[number];
  step.store(state_.clearing, std::uint64_t{number} + 1);
  step.store(worker.open, kClosed);
  step.store(worker.file, step.load(worker.file) + 1);
  caches_[number].file.reset();
}

void ExactReader::restart(Step& step, std::uint32_t number) {
  const State::Worker& worker = state_.workers[number];
  if (step.load(worker.open) == kOpen) leave_file(step, number);
  for (const Word word : {worker.has_order, worker.file, worker.python, worker.numpy}) {
    step.store(word, 0);
  }
  caches_[number].order.reset();
}

// The streams of a worker, where it left them.
RandomStreams& ExactReader::streams(Step& step, std::uint32_t number, std::uint32_t epoch) {
  const State::Worker& worker = state_.workers[number];
  std::optional<RandomStreams>& random = caches_[number].random;
  if (!random || !random->is_of(epoch)) random.emplace(context_.seed, epoch, number, rank_);
  random->go_to({step.load(worker.python), step.load(worker.numpy)});
  return *random;
}

// The worker's files in the order of this epoch; drawn when it begins, and again by a new process.
const std::vector<std::uint32_t>& ExactReader::files_of(Step& step, std::uint32_t number) {
  const State::Worker& worker = state_.workers[number];
  Cache& cache = caches_[number];
  if (cache.order) return *cache.order;
  const std::uint64_t files = step.load(state_.files) - 1;
  const std::uint64_t workers = state_.workers.size();
  const std::uint64_t each = (files + workers - 1) / workers;
  std::vector<std::uint32_t>& order = cache.order.emplace();
  for (std::uint64_t i = number * each; i < std::min((number + 1) * each, files); ++i) {
    order.push_back(static_cast<std::uint32_t>(i));
  }
  if (!shuffle_files_) return order;
  RandomStreams random = *cache.random;
  RandomPlace place = random.place();
  place.python = step.load(worker.order_at);
  random.go_to(place);
  random.python.shuffle(std::span(order));
  return order;
}

// ---- samples

void ExactReader::keep_place(Step& step) {
  const State::Worker& worker = state_.workers[turn_.worker];
  const RandomPlace place = caches_[turn_.worker].random->place();
  step.store(worker.python, place.python);
  step.store(worker.numpy, place.numpy);
}

StepStatus ExactReader::produce(Step& step, const Record* asked) {
  const std::uint32_t number = turn_.worker;
  const State::Worker& worker = state_.workers[number];
  Cache& cache = caches_[number];
  RandomStreams& random = streams(step, number, turn_.epoch);
  if (step.load(worker.has_order) == 0) {
    cache.order.reset();
    step.store(worker.order_at, random.python.drawn());
    step.store(worker.has_order, 1);
    std::vector<std::uint32_t> order = files_of(step, number);
    if (shuffle_files_) random.python.shuffle(std::span(order));  // for what it draws
  }
  const std::vector<std::uint32_t>& order = files_of(step, number);
  if (step.load(worker.open) == kClosed) {
    const std::uint64_t file = step.load(worker.file);
    if (file >= order.size()) return answer(step, asked, false);
    const FileRequest request{order[file], turn_.epoch};
    if (!step.put(requests_, std::as_bytes(std::span(&request, 1)))) return StepStatus::kNoRoom;
    step.store(worker.open, kLoading);
    step.store(state_.loading, std::uint64_t{number} + 1);
    keep_place(step);
    return StepStatus::kDone;
  }
  if (!cache.file) {
    cache.file.emplace();
    FileRows(worker.rows).look(step, state_.places, cache.file->batches);
    RandomStreams then = random;
    then.go_to({step.load(worker.items_python), step.load(worker.items_numpy)});
    if (!cache.file->batches.empty()) RF_CHECK(open(*cache.file, then), number);
  }
  std::uint64_t item = step.load(worker.item);
  for (std::uint32_t tries = 0; item < cache.file->order.size() && tries < kSkippedPerStep;
       ++tries) {
    const Item came = next(step, *cache.file, cache.file->order[item], random, sequence_);
    if (came == Item::kFault) {
      item = cache.file->order.size();
      break;
    }
    ++item;
    if (came == Item::kSkipped) continue;
    step.store(worker.item, item);
    return answer(step, asked, true);
  }
  step.store(worker.item, item);
  if (item >= cache.file->order.size()) leave_file(step, number);
  keep_place(step);
  return StepStatus::kDone;
}

StepStatus ExactReader::answer(Step& step, const Record* asked, bool has_sample) {
  keep_place(step);
  const RandomPlace place = caches_[turn_.worker].random->place();
  if (!has_sample) {
    if (asked == nullptr) return end_of_worker(step);
    if (!step.put(out_, {}, {.tag = {place.python, place.numpy}, .user = kNoSampleRecord})) {
      return StepStatus::kNoRoom;
    }
    step.store(state_.in_turn, 0);
    return step.consume(*asked);
  }
  const std::size_t bytes = formats::packed_bytes(sequence_);
  if (bytes > step.record_bytes_max(out_)) {
    const File& file = *caches_[turn_.worker].file;
    too_large_.skip(step, file.batches.front().path(), sequence_.lineage.game,
                    fmt::format("{} bytes of tokens do not fit a record", bytes));
    return StepStatus::kDone;
  }
  const std::span<std::byte> room = step.reserve(out_, bytes);
  if (room.empty()) return StepStatus::kNoRoom;
  formats::pack(sequence_, room);
  RecordInfo info = sequence_info(room);
  if (asked != nullptr) info.tag[0] = place.python, info.tag[1] = place.numpy;
  step.put_reserved(out_, bytes, info);
  step.count(sequences_);
  if (asked != nullptr) {
    step.store(state_.in_turn, 0);
    return step.consume(*asked);
  }
  own_turns_.sample(step);
  return StepStatus::kDone;
}

// The worker whose turn it is has given all samples of its epoch.
StepStatus ExactReader::end_of_worker(Step& step) {
  switch (own_turns_.worker_done(step, out_)) {
    case ExactTurns::Then::kNoRoom:
      return StepStatus::kNoRoom;
    case ExactTurns::Then::kNextWorker:
      return StepStatus::kDone;
    case ExactTurns::Then::kNothing:
      context_.warn(fmt::format("no_samples stage={}: not one in a whole epoch", context_.stage));
      return StepStatus::kEnd;
    case ExactTurns::Then::kNextEpoch:
      break;
  }
  if (own_turns_.epoch(step) == context_.feed.epochs()) return StepStatus::kEnd;
  for (std::uint32_t i = 0; i < state_.workers.size(); ++i) restart(step, i);
  return StepStatus::kDone;
}

// ---- games

namespace {

class ExactGames final : public ExactReader {
 public:
  ExactGames(const StageContext& context, std::uint32_t workers, std::uint32_t batch_size)
      : ExactReader(context, workers, batch_size),
        own_(context.config.chess_games()),
        played_values_(own_.value_columns() == ChessGamesConfig::PLAYED_Q_D),
        options_{.length_max = own_.length_max(),
                 .read_all = false,
                 .overwrite_values = !own_.has_overwrite_values() || own_.overwrite_values()},
        games_(context.counter("games")),
        rows_without_game_(context.counter("rows_without_game")) {}

 private:
  bool open(File& file, RandomStreams& random) override {
    if (file.batches.front().kind(game_columns::kGameId) == formats::ColumnKind::kAbsent)
      return false;
    file.games.build(file.batches);
    file.order.resize(file.games.games());
    std::iota(file.order.begin(), file.order.end(), 0U);
    if (own_.shuffle_games()) random.numpy.shuffle(std::span(file.order));
    return true;
  }

  void opened(Step& step, const File& file) override {
    step.count(rows_without_game_, file.games.rows_without_game());
  }

  Item next(Step& step, File& file, std::uint32_t game, RandomStreams& random,
            formats::TokenSequence& out) override {
    const auto absent = [&](std::uint32_t column) {
      return file.batches.front().kind(column) == formats::ColumnKind::kAbsent;
    };
    const auto failed = [&](std::size_t i, std::string_view text) {
      const RowPlace& at = places_[std::min(i, places_.size() - 1)];
      fault(step, file, file.batches[at.batch].head().first_row + at.row, text);
      return Item::kFault;
    };
    file.games.rows_of(game, places_);
    if (absent(game_columns::kPly)) return failed(0, "there is no column ply");
    if (absent(game_columns::kFen)) return failed(0, "there is no column fen");
    game_.clear();
    moved_.clear();
    included_.clear();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      game_.push_back(game_row(file.batches[places_[i].batch], places_[i].row, played_values_));
      const formats::GameRow& row = game_.back();
      // A number is drawn for every row but the first, and before the row is looked at.
      included_.push_back(i == 0 || random.python.uniform() > own_.skip_board_probability() ? 1
                                                                                            : 0);
      moved_.push_back(row.played_move.empty() ? 0 : 1);
      if (included_.back() != 0 && row.fen) {
        const formats::FenStatus status = formats::read_fen(*row.fen, board_);
        if (status != formats::FenStatus::kOk) {
          return failed(i, fmt::format("fen '{}': {}", *row.fen, formats::fen_status_name(status)));
        }
      }
      if (moved_.back() == 0) continue;
      for (const auto& [column, name] : needed()) {
        if (absent(column)) return failed(i, fmt::format("there is no column {}", name));
      }
    }
    for (std::size_t i = 0; i < game_.size(); ++i) {
      if (moved_[i] != 0 && !formats::find_token(game_[i].played_move)) {
        return failed(i, fmt::format("played_move '{}' is not a token", game_[i].played_move));
      }
    }
    tokens_.lay_out(moved_, included_);
    // Drawn even of one.
    const std::uint32_t drawn =
        own_.window_start() == ChessGamesConfig::FIRST_PLY
            ? 0
            : random.python.below(static_cast<std::uint32_t>(tokens_.start_count()));
    const formats::GameProblem problem = tokens_.build(game_, drawn, options_, out);
    if (problem.fault != formats::GameFault::kNone) {
      return failed(problem.row, fmt::format("best_move '{}' is not a move",
                                             game_[problem.row].best_move.value_or("")));
    }
    out.lineage = {file.batches.front().head().file, game, tokens_.start(drawn), 0};
    step.count(games_);
    return Item::kSample;
  }

  // What is asked of a row with a move, in this order.
  [[nodiscard]] std::span<const std::pair<std::uint32_t, const char*>> needed() const {
    static constexpr std::pair<std::uint32_t, const char*> kWdl[] = {
        {game_columns::kBestMove, "best_move"},
        {game_columns::kWin, "win"},
        {game_columns::kDraw, "draw"},
        {game_columns::kLoss, "loss"}};
    static constexpr std::pair<std::uint32_t, const char*> kPlayed[] = {
        {game_columns::kBestMove, "best_move"},
        {game_columns::kPlayedQ, "played_q"},
        {game_columns::kPlayedD, "played_d"}};
    if (played_values_) return kPlayed;
    return kWdl;
  }

  ChessGamesConfig own_;
  bool played_values_;
  formats::GameOptions options_;
  Counter games_;
  Counter rows_without_game_;
  std::vector<RowPlace> places_;
  std::vector<formats::GameRow> game_;
  std::vector<std::uint8_t> moved_;
  std::vector<std::uint8_t> included_;
  std::array<formats::Token, formats::kBoardTokens> board_{};
  formats::GameTokens tokens_;
};

}  // namespace

NodeSpec exact_games_node(const StageView& stage) {
  return exact_node(stage, stage.config.chess_games(),
                    [](const StageContext& context, std::uint32_t workers,
                       std::uint32_t batch_size) -> std::unique_ptr<Stage> {
                      return std::make_unique<ExactGames>(context, workers, batch_size);
                    });
}

}  // namespace ringfeed
