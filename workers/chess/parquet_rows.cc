#include "workers/chess/parquet_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "proto/config.pb.h"
#include "workers/chess/chess_columns.h"
#include "workers/chess/chess_fen.h"
#include "workers/chess/chess_game.h"
#include "workers/chess/chess_variation.h"
#include "workers/chess/game_index.h"

namespace ringfeed::inspect {
namespace {

using formats::ColumnWish;
using formats::RowBatch;
using formats::RowFile;
using nlohmann::ordered_json;

constexpr std::uint64_t kRecordBytes = 256 * 1024;
constexpr std::uint64_t kRecordBytesMax = std::uint64_t{1} << 30;
constexpr std::size_t kMovesShown = 12;

std::unique_ptr<RowFile> opened(const std::string& path, const std::vector<ColumnWish>& wishes) {
  const Result<const formats::ArrowReaders*> readers = formats::arrow_readers();
  if (!readers) throw Error(readers.error());
  Result<std::unique_ptr<RowFile>> file = (*readers)->parquet_rows(path, wishes, 1);
  if (!file) throw Error(file.error().code(), fmt::format("{}: {}", path, file.error().message()));
  return std::move(*file);
}

// Calls `use` with every record of the file. Damage and gaps go to `problems`.
template <typename Use>
void for_each_record(RowFile& file, const std::string& path, ordered_json& problems, Use&& use) {
  std::uint64_t first_row = 0;
  for (std::uint32_t group = 0; group < file.row_groups().size(); ++group) {
    const std::uint64_t rows = file.row_groups()[group];
    std::uint64_t done = 0;
    file.seek(group, 0);
    while (done < rows) {
      const RowFile::Next next =
          file.next({.bytes = kRecordBytes, .bytes_max = kRecordBytesMax, .rows = 65536}, 0);
      if (next.kind == RowFile::Kind::kGroupEnd) break;
      if (next.kind != RowFile::Kind::kRows) {
        problems.push_back(
            fmt::format("{}: row group {}, row {}: {}", path, group, done, next.text));
        if (next.kind == RowFile::Kind::kDamaged) break;
        file.pass(1);
        ++done;
        continue;
      }
      auto bytes = std::make_unique<std::vector<std::byte>>(next.bytes);
      file.write(*bytes, {first_row + done, 0, 0, 0, 0, 0, 0}, "");
      file.pass(next.rows);
      done += next.rows;
      use(std::move(bytes));
    }
    first_row += rows;
  }
}

// Counts by reason, with the first place.
class Skipped {
 public:
  void add(const std::string& reason, std::uint64_t row, const std::string& text) {
    ordered_json& entry = found_[reason];
    if (entry.is_null()) entry = {{"count", 0}, {"row", row}, {"text", text}};
    entry["count"] = entry["count"].get<std::uint64_t>() + 1;
  }
  [[nodiscard]] const ordered_json& found() const { return found_; }

 private:
  ordered_json found_ = ordered_json::object();
};

ordered_json board_of(const std::array<formats::Token, formats::kBoardTokens>& tokens) {
  // Kings to pawns, white and black, as the tokens are numbered.
  constexpr std::string_view kPieces = "KQRBNPkqrbnp";
  ordered_json board = ordered_json::array();
  for (int rank = 7; rank >= 0; --rank) {
    std::string line;
    for (int file = 0; file < 8; ++file) {
      const formats::Token token = tokens[static_cast<std::size_t>(1 + 8 * rank + file)];
      const int piece = token - *formats::find_token("white_king");
      line += piece >= 0 && piece < 12 ? kPieces[static_cast<std::size_t>(piece)] : '.';
    }
    board.push_back(line);
  }
  return board;
}

ordered_json describe_games(RowFile& file, const std::string& path, ordered_json& problems) {
  std::vector<std::unique_ptr<std::vector<std::byte>>> records;
  std::vector<RowBatch> batches;
  for_each_record(file, path, problems, [&](std::unique_ptr<std::vector<std::byte>> bytes) {
    RowBatch batch;
    if (!batch.read(*bytes)) return;
    records.push_back(std::move(bytes));
    batches.push_back(std::move(batch));
  });
  GameIndex games;
  games.build(batches);
  ordered_json out = {{"games", games.games()}, {"rows_without_game", games.rows_without_game()}};
  std::vector<RowPlace> rows;
  Skipped skipped;
  std::size_t plies_min = 0;
  std::size_t plies_max = 0;
  std::array<formats::Token, formats::kBoardTokens> board{};
  for (std::size_t game = 0; game < games.games(); ++game) {
    games.rows_of(game, rows);
    plies_min = game == 0 ? rows.size() : std::min(plies_min, rows.size());
    plies_max = std::max(plies_max, rows.size());
    std::set<std::string> faults;  // each reason once a game
    std::size_t tokens = 0;
    for (const RowPlace& at : rows) {
      const RowBatch& batch = batches[at.batch];
      const std::uint64_t row = batch.head().first_row + at.row;
      const auto fault = [&](const char* reason, const std::string& text) {
        if (faults.insert(reason).second) skipped.add(reason, row, text);
      };
      tokens += formats::kBoardTokens;
      if (const auto fen = batch.text(game_columns::kFen, at.row)) {
        const formats::FenStatus status = formats::read_fen(*fen, board);
        if (status != formats::FenStatus::kOk) {
          fault("fen", fmt::format("'{}': {}", *fen, formats::fen_status_name(status)));
        }
      }
      const std::string_view played = batch.text(game_columns::kPlayedMove, at.row).value_or("");
      if (played.empty()) continue;
      tokens += 3;
      if (!formats::find_token(played)) fault("played_move", fmt::format("'{}'", played));
      const std::string_view best = batch.text(game_columns::kBestMove, at.row).value_or("");
      const std::optional<formats::Token> move = formats::find_token(best);
      if (!move || formats::move_id(*move) < 0) fault("best_move", fmt::format("'{}'", best));
    }
    if (game != 0) continue;
    const RowPlace& begin = rows.front();
    const std::string_view fen =
        batches[begin.batch].text(game_columns::kFen, begin.row).value_or("");
    ordered_json moves = ordered_json::array();
    for (std::size_t i = 0; i < std::min(rows.size(), kMovesShown); ++i) {
      moves.push_back(
          batches[rows[i].batch].text(game_columns::kPlayedMove, rows[i].row).value_or(""));
    }
    out["first"] = {
        {"id", batches[begin.batch].text(game_columns::kGameId, begin.row).value_or("")},
        {"plies", rows.size()},
        {"tokens", tokens},
        {"fen", fen},
        {"moves", moves}};
    if (formats::read_fen(fen, board) == formats::FenStatus::kOk)
      out["first"]["board"] = board_of(board);
  }
  out["plies_min"] = plies_min;
  out["plies_max"] = plies_max;
  out["skipped"] = skipped.found();
  return out;
}

// Every line as long as it may be, in the order of the visits.
class LongestLines final : public formats::VariationDraws {
 public:
  double gumbel() override { return 0; }
  std::uint32_t depth(std::uint32_t most) override { return most; }
};

ordered_json describe_variations(RowFile& file, const std::string& path, ordered_json& problems) {
  std::uint64_t without = 0;
  std::uint64_t samples = 0;
  std::uint64_t lines = 0;
  std::uint64_t longest = 0;
  Skipped skipped;
  LongestLines draws;
  formats::TokenSequence sequence;
  std::vector<formats::Variation> variations;
  for_each_record(file, path, problems, [&](const std::unique_ptr<std::vector<std::byte>>& bytes) {
    RowBatch batch;
    if (!batch.read(*bytes)) return;
    const bool has_played =
        batch.kind(variation_columns::kPlayedMove) != formats::ColumnKind::kAbsent;
    for (std::uint32_t row = 0; row < batch.rows(); ++row) {
      const std::uint64_t number = batch.head().first_row + row;
      const auto json = batch.text(variation_columns::kVariations, row);
      const auto came =
          json ? formats::read_variations(*json, variations) : formats::VariationsJson::kOk;
      if (came != formats::VariationsJson::kOk) {
        skipped.add("json", number, "variations is not a list of objects");
        continue;
      }
      if (!json || variations.empty()) {
        ++without;
        continue;
      }
      const formats::VariationResult result = formats::write_variations(
          {.fen = batch.text(variation_columns::kFen, row),
           .other_move = batch.text(
               has_played ? variation_columns::kPlayedMove : variation_columns::kBestMove, row),
           .searched_move = batch.text(variation_columns::kMctsAction, row),
           .win = batch.number(variation_columns::kWin, row),
           .draw = batch.number(variation_columns::kDraw, row),
           .loss = batch.number(variation_columns::kLoss, row)},
          variations, {}, draws, sequence);
      if (result.fault != formats::VariationFault::kNone) {
        skipped.add(formats::variation_fault_name(result.fault), number,
                    "of the row or of its lines");
      } else if (!result.has_final) {
        skipped.add("no_final_move", number, "neither the searched nor the other move is a token");
      } else {
        ++samples;
        lines += variations.size();
        longest = std::max<std::uint64_t>(longest, sequence.tokens.size());
      }
    }
  });
  return {{"samples", samples},
          {"rows_without_variations", without},
          {"lines", lines},
          {"tokens_max", longest},
          {"skipped", skipped.found()}};
}

std::string skipped_text(const ordered_json& skipped) {
  if (skipped.empty()) return "  nothing would be skipped\n";
  std::string text;
  for (const auto& [reason, entry] : skipped.items()) {
    text += fmt::format("  may be skipped for {}: {}, first at row {}: {}\n", reason,
                        entry["count"].get<std::uint64_t>(), entry["row"].get<std::uint64_t>(),
                        entry["text"].get<std::string>());
  }
  return text;
}

}  // namespace

ordered_json describe_rows(const std::string& path, ordered_json& problems) {
  std::vector<ColumnWish> wishes;
  for (std::string& name : opened(path, {})->column_names()) {
    wishes.push_back({.name = std::move(name)});
  }
  ordered_json out;
  {
    const std::unique_ptr<RowFile> file = opened(path, wishes);
    std::uint64_t rows = 0;
    for (const std::uint64_t group : file->row_groups()) rows += group;
    out["rows"] = rows;
    out["row_groups"] = file->row_groups().size();
    out["columns"] = ordered_json::array();
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      out["columns"].push_back({{"name", wishes[i].name}, {"type", file->columns()[i].type}});
    }
  }
  // A file with variations has all that a file of games has.
  for (const bool games : {true, false}) {
    const std::vector<ColumnWish> wanted =
        games ? wanted_columns(ChessGamesConfig()) : wanted_variation_columns();
    const std::unique_ptr<RowFile> file = opened(path, wanted);
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const formats::ColumnFound& column = file->columns()[i];
      if (!wanted[i].required || column.fits) continue;
      missing.push_back(column.there ? fmt::format("{} (it is {})", wanted[i].name, column.type)
                                     : wanted[i].name);
    }
    if (!missing.empty()) {
      out["missing"][games ? "chess_games" : "chess_variations"] = missing;
    } else if (games) {
      out["games"] = describe_games(*file, path, problems);
    } else {
      out["variations"] = describe_variations(*file, path, problems);
    }
  }
  return out;
}

std::string rows_text(const ordered_json& rows) {
  std::string text;
  for (const ordered_json& column : rows["columns"]) {
    text += fmt::format("  {:20} {}\n", column["name"].get<std::string>(),
                        column["type"].get<std::string>());
  }
  if (rows.contains("games")) {
    const ordered_json& games = rows["games"];
    text += fmt::format(
        "for chess_games: {} games of {} to {} plies", games["games"].get<std::uint64_t>(),
        games["plies_min"].get<std::uint64_t>(), games["plies_max"].get<std::uint64_t>());
    const auto without = games["rows_without_game"].get<std::uint64_t>();
    text += without == 0 ? "\n" : fmt::format("; {} rows without a game\n", without);
    text += skipped_text(games["skipped"]);
    if (games.contains("first")) {
      const ordered_json& first = games["first"];
      text += fmt::format("  the first: {}, {} plies, {} tokens\n    {} ...\n",
                          first["id"].get<std::string>(), first["plies"].get<std::uint64_t>(),
                          first["tokens"].get<std::uint64_t>(),
                          fmt::join(first["moves"].get<std::vector<std::string>>(), " "));
      text += fmt::format("    {}\n", first["fen"].get<std::string>());
      if (first.contains("board")) {
        for (const ordered_json& line : first["board"]) {
          text += fmt::format("    {}\n", fmt::join(line.get<std::string>(), " "));
        }
      }
    }
  }
  if (rows.contains("variations")) {
    const ordered_json& variations = rows["variations"];
    text += fmt::format(
        "for chess_variations: {} samples with {} lines, the longest of {} tokens; {} rows without "
        "variations\n",
        variations["samples"].get<std::uint64_t>(), variations["lines"].get<std::uint64_t>(),
        variations["tokens_max"].get<std::uint64_t>(),
        variations["rows_without_variations"].get<std::uint64_t>());
    text += skipped_text(variations["skipped"]);
  }
  if (!rows.contains("games") && !rows.contains("variations")) {
    for (const auto& [stage, missing] : rows["missing"].items()) {
      text += fmt::format("not for {}: without {}\n", stage,
                          fmt::join(missing.get<std::vector<std::string>>(), ", "));
    }
  }
  return text;
}

}  // namespace ringfeed::inspect
