// The specification of workers/chess/chess_game.h and token_arrays.h;
// tests/data/chess/pretrain_examples.json has worked examples, of pretrain_games.json.
#include "workers/chess/chess_game.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "workers/chess/token_arrays.h"

namespace ringfeed::formats {
namespace {

using Json = nlohmann::json;

Json game_data(const std::string& name) {
  return Json::parse(std::ifstream(RINGFEED_SOURCE_DIR "/tests/data/chess/" + name));
}

// The rows of a game, in the order of their plies; views into `rows`.
std::vector<GameRow> game_rows(Json& rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Json& a, const Json& b) { return a["ply"] < b["ply"]; });
  std::vector<GameRow> game;
  for (const Json& row : rows) {
    const auto text = [&row](const char* key) -> std::optional<std::string_view> {
      if (row[key].is_null()) return std::nullopt;
      return row[key].get_ref<const std::string&>();
    };
    const auto number = [&row](const char* key) {
      return row[key].is_null() ? std::numeric_limits<double>::quiet_NaN() : row[key].get<double>();
    };
    game.push_back({.fen = text("fen"),
                    .played_move = text("played_move").value_or(""),
                    .best_move = text("best_move"),
                    .win = number("win"),
                    .draw = number("draw"),
                    .loss = number("loss")});
  }
  return game;
}

template <typename Row>
struct Arrays;
template <typename Id, typename BoardTarget, typename MoveTarget, typename BlockId>
struct Arrays<TokenRow<Id, BoardTarget, MoveTarget, BlockId>> {
  explicit Arrays(std::size_t length)
      : ids(length, 1),
        boards(length, 1),
        moves(length, 1),
        blocks(length, 1),
        masks(7, std::vector<std::uint8_t>(length, 7)),
        values(2, std::vector<float>(length, 7)) {}
  TokenRow<Id, BoardTarget, MoveTarget, BlockId> row() {
    return {ids.data(),      boards.data(),   moves.data(),     masks[0].data(),  masks[1].data(),
            masks[2].data(), masks[3].data(), values[0].data(), values[1].data(), masks[4].data(),
            blocks.data(),   masks[5].data(), masks[6].data()};
  }
  std::vector<Id> ids;
  std::vector<BoardTarget> boards;
  std::vector<MoveTarget> moves;
  std::vector<BlockId> blocks;
  std::vector<std::vector<std::uint8_t>> masks;
  std::vector<std::vector<float>> values;
};

template <typename Row>
void compare_game(const Json& sample, const TokenSequence& sequence, std::uint32_t length,
                  const std::string& name) {
  Arrays<Row> arrays(length);
  write_tokens(sequence, length, arrays.row());
  const auto same = [&](const char* key, const auto& found) {
    const auto wanted = sample[key].get<std::vector<double>>();
    EXPECT_EQ(std::vector<double>(found.begin(), found.end()), wanted) << name << " " << key;
  };
  same("input_ids", arrays.ids);
  same("board_target_ids", arrays.boards);
  same("move_target_ids", arrays.moves);
  same("block_id", arrays.blocks);
  same("move_mask", arrays.masks[0]);
  same("wl_positions", arrays.masks[2]);
  same("d_positions", arrays.masks[3]);
  same("wdl_valid", arrays.masks[4]);
  same("wl_targets", arrays.values[0]);
  same("d_targets", arrays.values[1]);
  for (const std::size_t other : {1U, 5U, 6U}) {
    EXPECT_EQ(arrays.masks[other], std::vector<std::uint8_t>(length, 0)) << name;
  }
}

std::vector<std::uint8_t> moved(const std::vector<GameRow>& rows) {
  std::vector<std::uint8_t> flags;
  for (const GameRow& row : rows) flags.push_back(row.played_move.empty() ? 0 : 1);
  return flags;
}

TEST(ChessGame, GivesTheArraysOfTheExamplesWideAndCompact) {
  Json games = game_data("pretrain_games.json")["games"];
  const Json examples = game_data("pretrain_examples.json")["examples"];
  std::size_t good = 0;
  for (const Json& example : examples) {
    const auto name = example["name"].get<std::string>();
    const std::vector<GameRow> rows = game_rows(games[example["game"].get<std::string>()]);
    const auto included = example["include_board"].get<std::vector<std::uint8_t>>();
    const auto length = example["max_seq_len"].get<std::uint32_t>();
    GameTokens game;
    game.lay_out(moved(rows), included);
    TokenSequence sequence;
    const GameProblem problem =
        game.build(rows, example["start_choice"].get<std::size_t>(),
                   {.length_max = length, .read_all = true, .overwrite_values = true}, sequence);
    const bool refused = !example.contains("sample") || example["sample"].is_null();
    EXPECT_EQ(problem.fault != GameFault::kNone, refused) << name;
    if (refused) continue;
    ++good;
    const auto starts = example["valid_starts"].get<std::vector<std::uint32_t>>();
    ASSERT_EQ(game.start_count(), starts.size()) << name;
    for (std::size_t i = 0; i < starts.size(); ++i) EXPECT_EQ(game.start(i), starts[i]) << name;
    compare_game<WideTokenRow>(example["sample"], sequence, length, name);
    compare_game<CompactTokenRow>(example["sample"], sequence, length, name);

    // The rows of the window give the same by themselves.
    const auto [begin, end] = game.window_rows(example["start_choice"].get<std::size_t>(), length);
    const std::vector<GameRow> some(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                    rows.begin() + static_cast<std::ptrdiff_t>(end));
    GameTokens part;
    part.lay_out(moved(some), std::span(included).subspan(begin, end - begin));
    TokenSequence again;
    const GameProblem none =
        part.build(some, 0, {.length_max = length, .overwrite_values = true}, again);
    EXPECT_EQ(none.fault, GameFault::kNone) << name;
    compare_game<WideTokenRow>(example["sample"], again, length, name);
  }
  EXPECT_EQ(good, 38U);
  EXPECT_EQ(examples.size(), 41U);
}

struct ThreePlies {
  ThreePlies()
      : games(game_data("pretrain_games.json")["games"]), rows(game_rows(games["three_ply"])) {}
  GameProblem build(std::vector<std::uint8_t> included, std::size_t choice,
                    const GameOptions& options) {
    game.lay_out(moved(rows), included);
    return game.build(rows, choice, options, sequence);
  }
  Json games;
  std::vector<GameRow> rows;
  GameTokens game;
  TokenSequence sequence;
};

TEST(ChessGame, ReadsOnlyWhatIsInTheWindowUnlessItIsAsked) {
  for (const GameFault fault : {GameFault::kFen, GameFault::kPlayedMove}) {
    ThreePlies plies;
    (fault == GameFault::kFen ? plies.rows[2].fen.emplace("nonsense")
                              : plies.rows[2].played_move = "a7a8n");
    EXPECT_EQ(plies.build({1, 1, 1}, 0, {.length_max = 142}).fault, GameFault::kNone);
    const GameProblem found = plies.build({1, 1, 1}, 0, {.length_max = 142, .read_all = true});
    EXPECT_EQ(found.fault, fault);
    EXPECT_EQ(found.row, 2U);
    EXPECT_EQ(found.fen == FenStatus::kOk, fault != GameFault::kFen);
  }
  ThreePlies skipped;
  skipped.rows[1].fen = "nonsense";
  EXPECT_EQ(skipped.build({1, 0, 1}, 0, {.read_all = true}).fault, GameFault::kNone)
      << "a board that is left out is never read";
}

TEST(ChessGame, APlyWithoutABoardLeavesTheValuesOfTheOneBeforeAlone) {
  ThreePlies plies;
  ASSERT_EQ(plies.build({1, 0, 1}, 0, {}).fault, GameFault::kNone);
  Arrays<WideTokenRow> arrays(256);
  write_tokens(plies.sequence, 256, arrays.row());
  EXPECT_EQ(arrays.values[1][70], 0.5F) << "ply 0's own draw value";
  EXPECT_EQ(arrays.values[0][70], 0.0F);
  EXPECT_EQ(arrays.moves[70], 1440) << "its move is asked for there all the same";
  EXPECT_EQ(arrays.values[1][73], 0.45F);
  EXPECT_EQ(arrays.values[1][141], 0.2F);
}

TEST(ChessGame, OfNoMovesIsItsFirstBoard) {
  ThreePlies plies;
  for (GameRow& row : plies.rows) row.played_move = "";
  ASSERT_EQ(plies.build({1, 0, 0}, 0, {}).fault, GameFault::kNone);
  EXPECT_EQ(plies.game.start_count(), 1U);
  EXPECT_EQ(plies.sequence.tokens.size(), kBoardTokens);
  EXPECT_TRUE(plies.sequence.blocks.empty() && plies.sequence.targets.empty());
}

}  // namespace
}  // namespace ringfeed::formats
