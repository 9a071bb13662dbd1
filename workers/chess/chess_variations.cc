#include "workers/chess/chess_variations.h"

#include <algorithm>
#include <cmath>

#include "ringfeed/worker/random.h"
#include "workers/chess/chess_columns.h"
#include "workers/chess/exact_reader.h"
#include "workers/chess/sequence_pool.h"
#include "workers/chess/sequence_records.h"
#include "workers/rows/row_records.h"

namespace ringfeed {
namespace {

using formats::ColumnKind;
using formats::FittedVariations;
using formats::RowBatch;
using formats::VariationFate;
using formats::VariationFault;

// Draws of a row, by its place.
class RowDraws final : public formats::VariationDraws {
 public:
  explicit RowDraws(std::uint64_t key) : random_(key) {}
  double gumbel() override {
    for (;;) {
      const double value = 1.0 - random_.unit();
      if (value < 1.0) return -std::log(-std::log(value));
    }
  }
  std::uint32_t depth(std::uint32_t most) override {
    return 1 + static_cast<std::uint32_t>(random_.below(most));
  }

 private:
  Random random_;
};

// As the original draws.
class StreamDraws final : public formats::VariationDraws {
 public:
  explicit StreamDraws(RandomStreams& random) : random_(random) {}
  double gumbel() override { return random_.numpy.gumbel(); }
  std::uint32_t depth(std::uint32_t most) override { return 1 + random_.python.below(most); }

 private:
  RandomStreams& random_;
};

}  // namespace

// ---- rows

VariationRows::VariationRows(const StageContext& context, bool exact)
    : exact_(exact),
      options_{.variations_max = context.config.chess_variations().max_variations(),
               .depth_max = context.config.chess_variations().max_depth(),
               .tau_base = context.config.chess_variations().tau_base(),
               .tau_alpha = context.config.chess_variations().tau_alpha()},
      length_max_(context.config.chess_variations().length_max()),
      without_variations_(context.counter("rows_without_variations")),
      tried_again_(context.counter("tried_again")),
      json_(context, "skipped_json"),
      no_final_move_(context, "skipped_no_final_move"),
      too_long_(context, "skipped_too_long"),
      fen_(context, "skipped_fen"),
      visits_(context, "skipped_visits"),
      root_move_(context, "skipped_root_move"),
      wdl_(context, "skipped_wdl"),
      nodes_(context, "skipped_nodes"),
      no_move_(context, "skipped_no_move") {}

VariationRows::Fate VariationRows::convert(Step& step, const RowBatch& batch, std::uint32_t row,
                                           formats::VariationDraws& draws,
                                           formats::TokenSequence& out) {
  const std::uint64_t number = batch.head().first_row + row;
  const std::optional<std::string_view> json = batch.text(variation_columns::kVariations, row);
  if (!json) {
    step.count(without_variations_);
    return Fate::kSkipped;
  }
  const formats::VariationsJson came = formats::read_variations(*json, variations_);
  if (came != formats::VariationsJson::kOk) {
    const bool malformed = came == formats::VariationsJson::kMalformed;
    why_ = malformed ? "variations: not valid JSON" : "variations: not a list of objects";
    if (exact_ && malformed) return Fate::kFault;
    json_.skip(step, batch.path(), number, why_);
    return Fate::kSkipped;
  }
  if (variations_.empty()) {
    step.count(without_variations_);
    return Fate::kSkipped;
  }
  const auto absent = [&batch](std::uint32_t column) {
    return batch.kind(column) == ColumnKind::kAbsent;
  };
  // A file without these columns has been refused, unless the order is EXACT: there each row fails,
  // with the numbers that were drawn until then.
  if (absent(variation_columns::kWin) || absent(variation_columns::kDraw) ||
      absent(variation_columns::kLoss)) {
    no_final_move_.skip(step, batch.path(), number, "there is no column win, draw or loss");
    return Fate::kSkipped;
  }
  const bool has_played = !absent(variation_columns::kPlayedMove);
  const formats::VariationRow values{
      .fen = absent(variation_columns::kFen) ? "?" : batch.text(variation_columns::kFen, row),
      .other_move = batch.text(
          has_played ? variation_columns::kPlayedMove : variation_columns::kBestMove, row),
      .searched_move = batch.text(variation_columns::kMctsAction, row),
      .win = batch.number(variation_columns::kWin, row),
      .draw = batch.number(variation_columns::kDraw, row),
      .loss = batch.number(variation_columns::kLoss, row)};
  if (absent(variation_columns::kMctsAction)) {
    static_cast<void>(formats::write_variations(values, variations_, options_, draws, out));
    no_final_move_.skip(step, batch.path(), number, "there is no column mcts_action");
    return Fate::kSkipped;
  }
  const FittedVariations fitted =
      formats::fit_variations(values, variations_, options_, length_max_, draws, out);
  if (fitted.tries > 1) step.count(tried_again_);
  switch (fitted.fate) {
    case VariationFate::kSample:
      return Fate::kSample;
    case VariationFate::kNoFinal:
      no_final_move_.skip(step, batch.path(), number,
                          "neither the searched nor the other move is a token");
      return Fate::kSkipped;
    case VariationFate::kTooLong:
      too_long_.skip(step, batch.path(), number,
                     fmt::format("more than {} tokens, whatever is left out", length_max_));
      return Fate::kSkipped;
    case VariationFate::kFault:
      break;
  }
  if (exact_ && (fitted.tries > 1 || fitted.fault == VariationFault::kNoMove)) {
    why_ = fmt::format("variations: fault {}", formats::variation_fault_name(fitted.fault));
    return Fate::kFault;
  }
  const auto skip = [&](SkipReason& reason, std::string_view text) {
    reason.skip(step, batch.path(), number, text);
  };
  switch (fitted.fault) {
    case VariationFault::kFen:
      skip(fen_, "a fen of the row or of its lines cannot be read");
      break;
    case VariationFault::kVisits:
      skip(visits_, "visit_count or visit_fraction is null");
      break;
    case VariationFault::kRootMove:
      skip(root_move_, "a line has no root_move");
      break;
    case VariationFault::kWdl:
      skip(wdl_, "wdl is not three numbers");
      break;
    case VariationFault::kNodes:
      skip(nodes_, "nodes is not a list");
      break;
    case VariationFault::kNone:
    case VariationFault::kNoMove:
      skip(no_move_, "a token that is not a move stands where a move is required");
      break;
  }
  return Fate::kSkipped;
}

// ---- lanes of their own draws

ChessVariations::ChessVariations(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      out_(context.output("sequences")),
      rows_(context.counter("rows")),
      sequences_(context.counter("sequences")),
      damaged_(context, "rows_damaged"),
      too_large_(context, "skipped_too_large"),
      variations_(context, false) {}

void ChessVariations::forget(Step& step, const Record&) noexcept { step.store(state_.row, 0); }

StepStatus ChessVariations::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (record->user == kEpochEndRecord) {
    if (!step.put(out_, {}, {.user = kSequencesEndRecord})) return StepStatus::kNoRoom;
    return step.consume(*record);
  }
  if (record->user != kRowsRecord) return step.consume(*record);
  RowBatch batch;
  if (!batch.read(record->bytes)) {
    damaged_.skip(step, "rows", record->tag[0], "these are not rows");
    step.store(state_.row, 0);
    return step.consume(*record);
  }
  // One row a call: what one row of JSON costs is much more than a step.
  const std::uint64_t at = step.load(state_.row);
  if (at >= batch.rows()) {
    step.store(state_.row, 0);
    return step.consume(*record);
  }
  const auto row = static_cast<std::uint32_t>(at);
  const std::uint64_t number = batch.head().first_row + row;
  const std::string_view path = batch.path();
  RowDraws draws(mix(mix(context_.key, batch.head().epoch),
                     mix(mix(path.substr(path.rfind('/') + 1)), number)));
  if (variations_.convert(step, batch, row, draws, sequence_) == VariationRows::Fate::kSample) {
    sequence_.lineage = {batch.head().file, static_cast<std::uint32_t>(number), 0,
                         batch.head().epoch};
    const std::size_t bytes = formats::packed_bytes(sequence_);
    if (bytes > step.record_bytes_max(out_)) {
      too_large_.skip(step, path, number,
                      fmt::format("{} bytes of tokens do not fit a record", bytes));
    } else {
      const std::span<std::byte> room = step.reserve(out_, bytes);
      if (room.empty()) return StepStatus::kNoRoom;
      formats::pack(sequence_, room);
      step.put_reserved(out_, bytes, sequence_info(room));
      step.count(sequences_);
    }
  }
  step.count(rows_);
  if (at + 1 < batch.rows()) {
    step.store(state_.row, at + 1);
    return StepStatus::kDone;
  }
  step.store(state_.row, 0);
  return step.consume(*record);
}

// ---- EXACT

namespace {

class ExactVariations final : public ExactReader {
 public:
  ExactVariations(const StageContext& context, std::uint32_t workers, std::uint32_t batch_size)
      : ExactReader(context, workers, batch_size),
        shuffle_rows_(context.config.chess_variations().shuffle_rows()),
        variations_(context, true) {}

 private:
  bool open(File& file, RandomStreams& random) override {
    file.rows.clear();
    for (std::uint32_t b = 0; b < file.batches.size(); ++b) {
      for (std::uint32_t row = 0; row < file.batches[b].rows(); ++row)
        file.rows.push_back({b, row});
    }
    file.order.resize(file.rows.size());
    for (std::uint32_t i = 0; i < file.order.size(); ++i) file.order[i] = i;
    if (shuffle_rows_) random.python.shuffle(std::span(file.order));
    return true;
  }

  Item next(Step& step, File& file, std::uint32_t item, RandomStreams& random,
            formats::TokenSequence& out) override {
    const RowPlace& at = file.rows[item];
    const RowBatch& batch = file.batches[at.batch];
    StreamDraws draws(random);
    switch (variations_.convert(step, batch, at.row, draws, out)) {
      case VariationRows::Fate::kSample:
        out.lineage = {batch.head().file,
                       static_cast<std::uint32_t>(batch.head().first_row + at.row), 0, 0};
        return Item::kSample;
      case VariationRows::Fate::kSkipped:
        return Item::kSkipped;
      case VariationRows::Fate::kFault:
        break;
    }
    fault(step, file, batch.head().first_row + at.row, variations_.why());
    return Item::kFault;
  }

  bool shuffle_rows_;
  VariationRows variations_;
};

}  // namespace

NodeSpec exact_variations_node(const StageView& stage) {
  return exact_node(stage, stage.config.chess_variations(),
                    [](const StageContext& context, std::uint32_t workers,
                       std::uint32_t batch_size) -> std::unique_ptr<Stage> {
                      return std::make_unique<ExactVariations>(context, workers, batch_size);
                    });
}

// ---- the stage

StageType chess_variations_type() {
  StageType type;
  type.kind = "chess_variations";
  type.inputs = {{"input", "rows"}};
  type.outputs = {{"output", "sequences"}};
  type.more_ports = exact_ports;
  type.counters = {
      {"rows", "Rows read."},
      {"rows_without_variations", "Rows that have no variations."},
      {"sequences", "Sequences made."},
      {.name = "sequences_held",
       .help = "Sequences in the shuffle pool.",
       .kind = kGauge,
       .capacity = {.setting = "pool_size"}},
      {"tried_again", "Rows that only fitted with fewer or shorter lines."},
      {"skipped_json", "Rows whose variations are not readable JSON."},
      {"skipped_fen", "Rows with a position that cannot be read."},
      {"skipped_visits", "Rows with visits that cannot be used."},
      {"skipped_root_move", "Rows with a root move that cannot be read."},
      {"skipped_wdl", "Rows with shares of win, draw and loss that cannot be used."},
      {"skipped_no_move", "Rows with a variation that has no move."},
      {"skipped_no_final_move", "Rows without a final move."},
      {"skipped_too_long", "Rows whose sequence is too long, however few lines it has."},
      {"skipped_too_large", "Rows that do not fit a record."},
      {"files_given_up", "Files not used further after a fault; with EXACT only."},
      {"rows_damaged", "Rows whose record contradicts itself."},
      {"skipped_nodes", "Rows with a number of nodes that cannot be used."},
  };
  type.problems = [](const StageView& stage) {
    return sample_problems(stage, stage.config.chess_variations());
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    sequences_facts(stage, stage.config.chess_variations().length_max(), true, outputs);
  };
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    rows_wishes(stage, wanted_variation_columns(), inputs);
  };
  type.nodes = [](const StageView& stage) {
    const ChessVariationsConfig& own = stage.config.chess_variations();
    if (own.order() == EXACT) return std::vector<NodeSpec>{exact_variations_node(stage)};
    NodeSpec tokens;
    StateLayout layout;
    (void)ChessVariations::State(layout);
    tokens.state_bytes = layout.bytes();
    tokens.lanes = own.threads();
    tokens.more_lanes = kMoreThreads;
    tokens.lanes_max = std::max(own.threads(), own.max_threads());
    tokens.inputs = {{.port = "input", .from = "", .block = 1}};
    tokens.outputs = {sequences_inside(own.length_max())};
    tokens.weight = 1;
    tokens.steps_per_commit = 16;
    tokens.create = [](const StageContext& context) {
      return std::make_unique<ChessVariations>(context);
    };
    OutputSpec output =
        output_spec(own, "sequences", sequence_queue_bytes(own.length_max()), UnitRule::kRecord);
    return std::vector<NodeSpec>{
        tokens, sequence_pool_node(".sequences", own.pool_size(), std::move(output))};
  };
  type.example = {.text = R"(
stages { name: "searched" parquet_source { directory: "/data/variations" } }
stages { name: "variations" chess_variations { input: "searched" max_variations: 2 } }
)",
                  .maker = "chess_tables"};
  return type;
}

}  // namespace ringfeed
