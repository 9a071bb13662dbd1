#include "workers/chess/chess_proposal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "workers/io/arrow_readers.h"

namespace ringfeed {

namespace pipelines {
extern const std::string_view kChessPretrain;
extern const std::string_view kChessFinetune;
}  // namespace pipelines

namespace {

// Files of one directory: one source reads them.
struct Table {
  std::string directory;
  std::vector<std::string> files = {};
  std::uint64_t rows_of_first = 0;
  bool games = false;      // has the columns of games
  bool searched = false;   // and of positions with the lines of a search
  bool played = false;     // values are those of the played move
  std::string fault = {};  // of no use: why
};

// What the first readable file of the directory has.
void look_into(Table& table, const formats::ArrowReaders& readers) {
  constexpr std::size_t kFilesTried = 5;
  for (std::size_t i = 0; i < std::min(table.files.size(), kFilesTried); ++i) {
    const std::string& path = table.files[i];
    const Result<std::unique_ptr<formats::RowFile>> file = readers.parquet_rows(path, {}, 1);
    if (!file) {
      if (table.fault.empty()) {
        table.fault = fmt::format("{}: {}", escaped(path), file.error().message());
      }
      continue;
    }
    const std::vector<std::string> columns = (*file)->column_names();
    const auto has = [&columns](std::initializer_list<std::string_view> names) {
      return std::all_of(names.begin(), names.end(), [&columns](std::string_view name) {
        return std::find(columns.begin(), columns.end(), name) != columns.end();
      });
    };
    const bool values = has({"win", "draw", "loss"});
    table.played = !values && has({"played_q", "played_d"});
    table.games = has({"game_id", "ply", "fen", "best_move"}) && (values || table.played);
    table.searched = has({"fen", "variations"}) && values;
    table.rows_of_first = 0;
    for (const std::uint64_t group : (*file)->row_groups()) table.rows_of_first += group;
    table.fault.clear();
    if (!table.games && !table.searched) {
      table.fault = fmt::format(
          "{} has neither the columns of games (game_id, ply, fen, best_move, and win, draw, loss "
          "or played_q, played_d) nor those of searched positions (fen, variations, win, draw, "
          "loss)",
          escaped(path));
    }
    return;
  }
}

std::vector<Table> tables_of(const std::vector<std::string>& files) {
  std::map<std::string, Table> found;
  for (const std::string& file : files) {
    const std::string directory = file.substr(0, std::max<std::size_t>(file.rfind('/'), 1));
    Table& table = found[directory];
    table.directory = directory;
    table.files.push_back(file);
  }
  std::vector<Table> tables;
  for (auto& [directory, table] : found) tables.push_back(std::move(table));
  return tables;
}

std::string shown(const DirectoryLook& look, const Table& table, std::string_view what) {
  return fmt::format("{} {} with {} in {}", look.count_text(table.files.size()),
                     table.files.size() == 1 ? "Parquet file" : "Parquet files", what,
                     table.directory);
}

}  // namespace

std::optional<Proposal> propose_chess(const DirectoryLook& look, const ProposalWish& wish) {
  std::vector<Table> tables = tables_of(look.ending_in(".parquet"));
  if (tables.empty()) return std::nullopt;
  Proposal proposal;
  const Result<const formats::ArrowReaders*> readers = formats::arrow_readers();
  if (!readers) {
    proposal.problem = readers.error().message();
    return proposal;
  }
  constexpr std::size_t kDirectoriesMax = 20;
  if (tables.size() > kDirectoriesMax) {
    proposal.problem = fmt::format(
        "there are Parquet files in {} directories: give one of them, or one with games and "
        "searched "
        "positions in separate directories",
        look.count_text(tables.size()));
    return proposal;
  }
  std::vector<const Table*> games;
  std::vector<const Table*> searched;
  std::string fault;
  for (Table& table : tables) {
    look_into(table, **readers);
    if (!table.fault.empty() && fault.empty()) fault = table.fault;
    // Searched positions have all columns of games, unless they belong to no game.
    if (table.searched) {
      searched.push_back(&table);
    } else if (table.games) {
      games.push_back(&table);
    }
  }
  if (games.empty() && searched.size() == 1 && searched.front()->games) {
    games.swap(searched);  // lines are passed over
  }
  if (games.empty()) {
    proposal.other_data = searched.empty();
    proposal.problem =
        searched.empty()
            ? fault
            : fmt::format(
                  "{} has searched positions but no games, and games decide how long an epoch "
                  "is: give a directory that has both, in separate directories",
                  escaped(searched.front()->directory));
    return proposal;
  }
  for (const auto& [several, what] :
       {std::pair(&games, "games"), std::pair(&searched, "searched positions")}) {
    if (several->size() < 2) continue;
    proposal.problem = fmt::format(
        "there are {} in several directories, {} and {}: give one of them, or put the files into "
        "one",
        what, escaped((*several)[0]->directory), escaped((*several)[1]->directory));
    return proposal;
  }
  const bool mixes = !searched.empty();
  proposal.found = shown(look, *games.front(), "games");
  if (mixes) proposal.found += ", " + shown(look, *searched.front(), "searched positions");
  PipelineText pipeline(mixes ? pipelines::kChessFinetune : pipelines::kChessPretrain);
  pipeline.introduce(look, proposal.found);
  pipeline.set("rows", "directory", {text_literal(games.front()->directory)});
  if (mixes) pipeline.set("searched", "directory", {text_literal(searched.front()->directory)});
  if (games.front()->played) {
    pipeline.add_below("games", "length_max",
                       {"# The files have played_q and played_d, the values of the played move.",
                        "value_columns: PLAYED_Q_D"});
  }
  pipeline.name(wish);
  proposal.feed = pipeline.feed();
  proposal.text = pipeline.text();
  return proposal;
}

}  // namespace ringfeed
