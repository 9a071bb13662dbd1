#include "workers/chess/chess_games.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ringfeed/worker/random.h"
#include "workers/chess/chess_columns.h"
#include "workers/chess/exact_reader.h"
#include "workers/chess/sequence_pool.h"
#include "workers/chess/sequence_records.h"
#include "workers/kit/stage_help.h"
#include "workers/rows/row_records.h"

namespace ringfeed {
namespace {

using formats::ColumnKind;
using formats::RowBatch;
using formats::RowBatchHead;
using formats::RowBatchWriter;

constexpr std::uint64_t kStateBytesUsual = 16 * kMiB;

// What a window needs of a game: this, for each row whether it comes with its board (u8, up to a
// multiple of 8 together), then a RowBatch of these columns.
struct GameRecord {
  formats::TokenSequence::Lineage lineage;
  std::uint64_t row;  // of the file, the window's first
  std::uint32_t rows;
  std::uint32_t reserved;
};
static_assert(sizeof(GameRecord) == 32);
enum : std::uint32_t { kFen, kPlayedMove, kBestMove, kWin, kDraw, kLoss, kColumns };

constexpr std::uint64_t flag_bytes(std::uint64_t rows) noexcept { return (rows + 7) / 8 * 8; }

std::string_view name_of(std::string_view path) noexcept {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

}  // namespace

formats::GameRow game_row(const RowBatch& batch, std::uint32_t row, bool played_values) {
  formats::GameRow out{.fen = batch.text(game_columns::kFen, row),
                       .played_move = batch.text(game_columns::kPlayedMove, row).value_or(""),
                       .best_move = batch.text(game_columns::kBestMove, row),
                       .win = batch.number(game_columns::kWin, row),
                       .draw = batch.number(game_columns::kDraw, row),
                       .loss = batch.number(game_columns::kLoss, row)};
  if (played_values) {
    // Of q and d both are known or neither is.
    const bool known = !std::isnan(out.win) && !std::isnan(out.draw);
    out.loss = known ? 0.0 : std::nan("");
    if (!known) out.win = out.draw = std::nan("");
  }
  return out;
}

// ---- gathering

ChessGames::ChessGames(const StageContext& context)
    : context_(context),
      played_values_(context.config.chess_games().value_columns() == ChessGamesConfig::PLAYED_Q_D),
      skip_probability_(context.config.chess_games().skip_board_probability()),
      first_ply_(context.config.chess_games().window_start() == ChessGamesConfig::FIRST_PLY),
      length_max_(context.config.chess_games().length_max()),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      rows_(state_.rows),
      in_(context.input("input")),
      out_(context.output("games")),
      rows_counter_(context.counter("rows")),
      rows_without_game_(context.counter("rows_without_game")),
      games_(context.counter("games")),
      games_cut_(context.counter("games_cut")),
      too_large_(context, "skipped_too_large"),
      damaged_(context, "rows_damaged") {}

// With the end of a file go the games that are left of it; in place of rows stands a gap.
void ChessGames::forget(Step& step, const Record& record) noexcept {
  if (record.user == kFileEndRecord || record.user == kFileFailedRecord) {
    step.store(state_.dealt, kGivingUp);
  } else if (record.user == kRowsRecord) {
    RowBatch batch;
    RowBatchHead head = batch.read(record.bytes) ? batch.head() : RowBatchHead{};
    const std::string_view path = head.columns != 0 ? batch.path() : std::string_view();
    head.rows = head.columns = 0;
    head.path_bytes = static_cast<std::uint32_t>(path.size());
    std::vector<std::byte> gap(RowBatchWriter::head_bytes(0, path.size()));
    static_cast<void>(RowBatchWriter(gap, head, path));
    looked_ = false;
    static_cast<void>(rows_.keep(step, state_.places, gap));
  }
}

StepStatus ChessGames::step(Step& step) noexcept {
  if (step.load(state_.dealt) == kGivingUp) {
    looked_ = false;
    if (rows_.give_up(step, state_.places)) step.store(state_.dealt, 0);
    return StepStatus::kDone;
  }
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (record->user == kFileEndRecord || record->user == kFileFailedRecord) {
    return deal(step, *record);
  }
  if (record->user == kEpochEndRecord) {
    if (!step.put(out_, {}, {.user = kSequencesEndRecord})) return StepStatus::kNoRoom;
    return step.consume(*record);
  }
  looked_ = false;
  RowBatch batch;
  if (!batch.read(record->bytes)) {
    damaged_.skip(step, "rows", record->tag[0], "these are not rows");
    return step.consume(*record);
  }
  if (!rows_.keep(step, state_.places, record->bytes)) return StepStatus::kNoRoom;
  step.count(rows_counter_, batch.rows());
  return step.consume(*record);
}

// All rows of the file are there: its games go out.
StepStatus ChessGames::deal(Step& step, const Record& end) noexcept {
  if (rows_.records(step) == 0) return step.consume(end);
  if (!looked_) {
    rows_.look(step, state_.places, batches_);
    index_.build(batches_);
    looked_ = true;
  }
  const std::uint64_t dealt = step.load(state_.dealt);
  std::uint64_t game = dealt;
  for (; game < index_.games() && game < dealt + kGamesPerStep; ++game) {
    if (index_.cut(game)) {
      step.count(games_cut_);
      continue;
    }
    if (!deal_game(step, static_cast<std::uint32_t>(game))) {
      // Those that found room are done.
      if (game == dealt) return StepStatus::kNoRoom;
      break;
    }
    step.count(games_);
  }
  if (game < index_.games()) {
    step.store(state_.dealt, game);
    return StepStatus::kDone;
  }
  step.count(rows_without_game_, index_.rows_without_game());
  step.store(state_.dealt, kGivingUp);
  return step.consume(end);
}

bool ChessGames::deal_game(Step& step, std::uint32_t game) noexcept {
  index_.rows_of(game, game_rows_);
  const RowBatch& file = batches_[game_rows_.front().batch];
  const RowBatchHead& of_file = file.head();
  Random random(mix(mix(context_.key, of_file.epoch), mix(mix(name_of(file.path())), game)));
  moved_.clear();
  included_.clear();
  for (const RowPlace& at : game_rows_) {
    moved_.push_back(
        batches_[at.batch].text(game_columns::kPlayedMove, at.row).value_or("").empty() ? 0 : 1);
    included_.push_back(
        included_.empty() || skip_probability_ == 0 || random.unit() >= skip_probability_ ? 1 : 0);
  }
  layout_.lay_out(moved_, included_);
  const std::size_t choice = first_ply_ ? 0 : random.below(layout_.start_count());
  const formats::GameTokens::Rows window = layout_.window_rows(choice, length_max_);
  const std::size_t begin = window.begin;
  const auto rows = static_cast<std::uint32_t>(window.end - begin);

  std::array<std::uint64_t, 3> text_bytes{};
  const auto text_of = [&](std::uint32_t column,
                           std::uint32_t i) -> std::optional<std::string_view> {
    const RowPlace& at = game_rows_[begin + i];
    // Nobody looks at a board that is left out.
    if (column == kFen && included_[begin + i] == 0) return std::nullopt;
    return batches_[at.batch].text(game_columns::kFen + column, at.row);
  };
  static_assert(game_columns::kPlayedMove == game_columns::kFen + kPlayedMove &&
                game_columns::kBestMove == game_columns::kFen + kBestMove);
  for (std::uint32_t i = 0; i < rows; ++i) {
    for (std::uint32_t column = kFen; column <= kBestMove; ++column) {
      text_bytes[column] += text_of(column, i).value_or("").size();
    }
  }
  std::uint64_t bytes = sizeof(GameRecord) + flag_bytes(rows) +
                        RowBatchWriter::head_bytes(kColumns, file.path().size());
  for (std::uint32_t column = kFen; column <= kBestMove; ++column) {
    bytes += RowBatchWriter::column_bytes(ColumnKind::kText, true, rows, text_bytes[column]);
  }
  bytes += 3 * RowBatchWriter::column_bytes(ColumnKind::kNumber, false, rows, 0);
  const RowPlace& first = game_rows_[begin < game_rows_.size() ? begin : begin - 1];
  const std::uint64_t row = batches_[first.batch].head().first_row + first.row;
  if (bytes > step.record_bytes_max(out_)) {
    too_large_.skip(step, file.path(), row,
                    fmt::format("{} bytes of a game do not fit a record", bytes));
    return true;
  }
  const std::span<std::byte> room = step.reserve(out_, bytes);
  if (room.empty()) return false;
  const GameRecord head{{of_file.file, game, layout_.start(choice), 0}, row, rows, 0};
  std::memcpy(room.data(), &head, sizeof head);
  std::memset(room.data() + sizeof head, 0, flag_bytes(rows));
  std::memcpy(room.data() + sizeof head, included_.data() + begin, rows);
  RowBatchWriter writer(room.subspan(sizeof head + flag_bytes(rows)),
                        {row, rows, kColumns, of_file.file, of_file.epoch,
                         static_cast<std::uint32_t>(file.path().size()), 0},
                        file.path());
  for (std::uint32_t column = kFen; column <= kBestMove; ++column) {
    const RowBatchWriter::Column to = writer.add(ColumnKind::kText, true, text_bytes[column]);
    std::uint32_t at = 0;
    for (std::uint32_t i = 0; i < rows; ++i) {
      const std::optional<std::string_view> text = text_of(column, i);
      to.given[i] = text ? 1 : 0;
      to.offsets[i] = at;
      if (text && !text->empty()) std::memcpy(to.text + at, text->data(), text->size());
      at += text ? static_cast<std::uint32_t>(text->size()) : 0;
    }
    to.offsets[rows] = at;
  }
  const RowBatchWriter::Column win = writer.add(ColumnKind::kNumber, false, 0);
  const RowBatchWriter::Column draw = writer.add(ColumnKind::kNumber, false, 0);
  const RowBatchWriter::Column loss = writer.add(ColumnKind::kNumber, false, 0);
  for (std::uint32_t i = 0; i < rows; ++i) {
    const RowPlace& at = game_rows_[begin + i];
    const formats::GameRow values = game_row(batches_[at.batch], at.row, played_values_);
    win.numbers[i] = values.win;
    draw.numbers[i] = values.draw;
    loss.numbers[i] = values.loss;
  }
  step.put_reserved(
      out_, writer.bytes() + sizeof head + flag_bytes(rows),
      {.tag = {std::uint64_t{of_file.file} << 32 | game, row}, .user = kSequenceRecord});
  return true;
}

// ---- tokens

GameSequences::GameSequences(const StageContext& context)
    : context_(context),
      options_{.length_max = context.config.chess_games().length_max(),
               .read_all = false,
               .overwrite_values = context.config.chess_games().overwrite_values()},
      in_(context.input("games")),
      out_(context.output("sequences")),
      sequences_(context.counter("sequences")),
      fen_(context, "skipped_fen"),
      played_move_(context, "skipped_played_move"),
      best_move_(context, "skipped_best_move"),
      too_large_(context, "skipped_too_large") {}

StepStatus GameSequences::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (record->user == kSequencesEndRecord) {
    if (!step.put(out_, {}, {.user = kSequencesEndRecord})) return StepStatus::kNoRoom;
    return step.consume(*record);
  }
  GameRecord game{};
  RF_CHECK(record->bytes.size() >= sizeof game, record->bytes.size());
  std::memcpy(&game, record->bytes.data(), sizeof game);
  const std::uint64_t head_bytes = sizeof game + flag_bytes(game.rows);
  RowBatch batch;
  RF_CHECK(record->bytes.size() >= head_bytes && batch.read(record->bytes.subspan(head_bytes)) &&
               batch.rows() == game.rows,
           record->bytes.size(), game.rows);
  const std::span included(
      reinterpret_cast<const std::uint8_t*>(record->bytes.data()) + sizeof game, game.rows);
  rows_.clear();
  moved_.clear();
  for (std::uint32_t i = 0; i < game.rows; ++i) {
    rows_.push_back({.fen = batch.text(kFen, i),
                     .played_move = batch.text(kPlayedMove, i).value_or(""),
                     .best_move = batch.text(kBestMove, i),
                     .win = batch.number(kWin, i),
                     .draw = batch.number(kDraw, i),
                     .loss = batch.number(kLoss, i)});
    moved_.push_back(rows_.back().played_move.empty() ? 0 : 1);
  }
  tokens_.lay_out(moved_, included);
  const formats::GameProblem problem = tokens_.build(rows_, 0, options_, sequence_);
  if (problem.fault != formats::GameFault::kNone) {
    const formats::GameRow& row = rows_[problem.row];
    const auto place = game.row + problem.row;
    switch (problem.fault) {
      case formats::GameFault::kFen:
        fen_.skip(step, batch.path(), place,
                  fmt::format("fen '{}': {}", row.fen.value_or(""),
                              formats::fen_status_name(problem.fen)));
        break;
      case formats::GameFault::kPlayedMove:
        played_move_.skip(step, batch.path(), place,
                          fmt::format("played_move '{}' is not a token", row.played_move));
        break;
      default:
        best_move_.skip(step, batch.path(), place,
                        row.best_move ? fmt::format("best_move '{}' is not a move", *row.best_move)
                                      : "best_move is missing");
    }
    return step.consume(*record);
  }
  sequence_.lineage = game.lineage;
  const std::size_t bytes = formats::packed_bytes(sequence_);
  if (bytes > step.record_bytes_max(out_)) {
    too_large_.skip(step, batch.path(), game.row,
                    fmt::format("{} bytes of tokens do not fit a record", bytes));
    return step.consume(*record);
  }
  const std::span<std::byte> room = step.reserve(out_, bytes);
  if (room.empty()) return StepStatus::kNoRoom;
  formats::pack(sequence_, room);
  step.put_reserved(out_, bytes, sequence_info(room));
  step.count(sequences_);
  return step.consume(*record);
}

// ---- the stage

StageType chess_games_type() {
  StageType type;
  type.kind = "chess_games";
  type.inputs = {{"input", "rows"}};
  type.outputs = {{"output", "sequences"}};
  type.more_ports = exact_ports;
  type.counters = {
      {"rows", "Rows read."},
      {"rows_without_game", "Rows that belong to no game."},
      {"games", "Games gathered from their rows."},
      {"games_cut", "Games that lost rows to damage."},
      {"sequences", "Sequences made."},
      {.name = "sequences_held",
       .help = "Sequences in the shuffle pool.",
       .kind = kGauge,
       .capacity = {.setting = "pool_size"}},
      {"skipped_fen", "Games with a position that cannot be read."},
      {"skipped_played_move", "Games with a played move that cannot be read."},
      {"skipped_best_move", "Games with a best move that cannot be read."},
      {"skipped_too_large", "Games that do not fit a record."},
      {"files_given_up", "Files not used further after a fault; with EXACT only."},
      {"rows_damaged", "Rows whose record contradicts itself."},
  };
  type.problems = [](const StageView& stage) {
    return sample_problems(stage, stage.config.chess_games());
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    sequences_facts(stage, stage.config.chess_games().length_max(), false, outputs);
  };
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    rows_wishes(stage, wanted_columns(stage.config.chess_games()), inputs);
  };
  type.nodes = [](const StageView& stage) {
    const ChessGamesConfig& own = stage.config.chess_games();
    if (own.order() == EXACT) return std::vector<NodeSpec>{exact_games_node(stage)};
    NodeSpec gather;
    StateLayout layout;
    const ChessGames::State state(layout);
    gather.state_bytes = state.places.head_bytes() + kStateBytesUsual;
    gather.state_bytes_max = kGrowsWithData;
    gather.inputs = {{.port = "input", .from = "", .block = 1}};
    gather.outputs = {{.port = "games",
                       .record_type = "games",
                       .exported = false,
                       .queue_capacity = 512,
                       .queue_bytes = 4 * kMiB,
                       .overflow = BLOCK,
                       .units = UnitRule::kRecord}};
    gather.weight = 0.3;
    gather.steps_per_commit = ChessGames::kStepsPerCommit;
    gather.entries_per_step = 128;
    gather.create = [](const StageContext& context) {
      return std::make_unique<ChessGames>(context);
    };
    NodeSpec tokens;
    tokens.name = "tokens";
    tokens.lanes = own.threads();
    tokens.more_lanes = kMoreThreads;
    tokens.lanes_max = std::max(own.threads(), own.max_threads());
    tokens.inputs = {{.port = "games", .from = ".games", .block = 1}};
    tokens.outputs = {sequences_inside(own.length_max())};
    tokens.weight = 0.3;
    tokens.steps_per_commit = 64;
    tokens.create = [](const StageContext& context) {
      return std::make_unique<GameSequences>(context);
    };
    OutputSpec output =
        output_spec(own, "sequences", sequence_queue_bytes(own.length_max()), UnitRule::kRecord);
    return std::vector<NodeSpec>{
        gather, tokens, sequence_pool_node("tokens.sequences", own.pool_size(), std::move(output))};
  };
  type.example = {.text = R"(
stages { name: "rows" parquet_source { directory: "/data/games" } }
stages { name: "games" chess_games { input: "rows" pool_size: 2000 } }
)",
                  .maker = "chess_tables"};
  return type;
}

}  // namespace ringfeed
