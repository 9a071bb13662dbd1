// Any bytes as a FEN, as a list of variations in JSON, and as the moves of a game.
//
// Holds: a FEN that is accepted gives 68 tokens of the vocabulary, in their order, and the position
// written from them gives the same tokens again. What is made of variations or of a game has tokens
// of the vocabulary alone, positions inside it, and comes back from the record that it is packed
// into; no sample is longer than was asked for.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/chess/chess_fen.h"
#include "workers/chess/chess_game.h"
#include "workers/chess/chess_variation.h"
#include "workers/chess/token_sequence.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

constexpr std::string_view kPieces = "KQRBNPkqrbnp";
using Board = std::array<Token, kBoardTokens>;

// The position of these tokens, with rights as K, Q, k and q.
std::string fen_of(const Board& board) {
  std::string fen;
  for (int rank = 7; rank >= 0; --rank) {
    int empty = 0;
    for (int file = 0; file < 8; ++file) {
      const Token token = board[static_cast<std::size_t>(1 + 8 * rank + file)];
      if (token == kEmptyToken) {
        ++empty;
        continue;
      }
      RF_HOLDS(token >= kWhiteKingToken && token < kWhiteKingToken + kPieces.size(), token);
      if (empty != 0) fen += static_cast<char>('0' + empty);
      empty = 0;
      fen += kPieces[token - kWhiteKingToken];
    }
    if (empty != 0) fen += static_cast<char>('0' + empty);
    if (rank > 0) fen += '/';
  }
  fen += board[67] == kWhiteToMoveToken ? " w " : " b ";
  std::string rights;
  for (unsigned set = 0; set < 16; ++set) {
    if (castling_token(set) != board[66]) continue;
    for (unsigned bit = 0; bit < 4; ++bit) {
      if ((set >> bit & 1) != 0) rights += "KQkq"[bit];
    }
  }
  return fen + (rights.empty() ? "-" : rights);
}

void check_fen(std::string_view text) {
  Board board{};
  const FenStatus status = read_fen(text, board);
  if (status != FenStatus::kOk) {
    RF_HOLDS(board == Board{}, fen_status_name(status));
    return;
  }
  RF_HOLDS(board[0] == kStartPosToken && board[65] == kEndPosToken, board[0], board[65]);
  RF_HOLDS(board[67] == kWhiteToMoveToken || board[67] == kBlackToMoveToken, board[67]);
  const std::string again = fen_of(board);
  Board twice{};
  RF_HOLDS(read_fen(again, twice) == FenStatus::kOk && twice == board, again);
}

void check_sequence(const TokenSequence& sequence) {
  std::vector<std::byte> record(packed_bytes(sequence));
  pack(sequence, record);
  TokenSequence again;
  RF_HOLDS(unpack(record, again), record.size());
  RF_HOLDS(again.tokens == sequence.tokens && again.values.size() == sequence.values.size() &&
               again.targets.size() == sequence.targets.size() &&
               again.blocks.size() == sequence.blocks.size(),
           again.tokens.size(), sequence.tokens.size());
}

class Draws : public VariationDraws {
 public:
  explicit Draws(std::string_view text) : text_(text) {}
  double gumbel() override { return static_cast<double>(next()) / 16.0 - 8.0; }
  std::uint32_t depth(std::uint32_t most) override {
    RF_HOLDS(most > 0, most);
    return 1 + next() % most;
  }

 private:
  std::uint32_t next() {
    if (text_.empty()) return 0;
    return static_cast<unsigned char>(text_[at_++ % text_.size()]);
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

void check_variations(std::string_view json) {
  std::vector<Variation> variations;
  if (read_variations(json, variations) != VariationsJson::kOk) {
    RF_HOLDS(variations.empty(), variations.size());
    return;
  }
  for (const std::uint32_t length_max : {1024U, 90U}) {
    const VariationRow row{
        .fen = "8/8/8/8/8/8/8/8 w - - 0 1",
        .other_move = "e2e4",
        .searched_move = variations.empty() ? std::nullopt
                         : variations[0].root_move
                             ? std::optional<std::string_view>(*variations[0].root_move)
                             : std::nullopt,
        .win = 0.5,
        .draw = 0.25,
        .loss = 0.25};
    Draws draws(json);
    TokenSequence sequence;
    const FittedVariations fitted =
        fit_variations(row, variations, {}, length_max, draws, sequence);
    RF_HOLDS(fitted.tries > 0 && fitted.tries <= 1 + 3 * 5, fitted.tries);
    RF_HOLDS((fitted.fate == VariationFate::kFault) == (fitted.fault != VariationFault::kNone),
             static_cast<int>(fitted.fate), variation_fault_name(fitted.fault));
    if (fitted.fate != VariationFate::kSample) continue;
    RF_HOLDS(sequence.tokens.size() <= length_max, sequence.tokens.size(), length_max);
    check_sequence(sequence);
  }
}

// Lines "FEN;played move;best move"; an empty field is missing.
void check_game(std::string_view text) {
  std::vector<GameRow> rows;
  std::vector<std::uint8_t> moved;
  std::vector<std::uint8_t> included;
  while (!text.empty() && rows.size() < 64) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    std::array<std::string_view, 3> fields;
    std::string_view rest = line;
    for (std::string_view& field : fields) {
      field = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    }
    const auto given = [](std::string_view field) {
      return field.empty() ? std::nullopt : std::optional(field);
    };
    const double win = line.size() % 3 == 0 ? std::numeric_limits<double>::quiet_NaN() : 0.5;
    rows.push_back({given(fields[0]), fields[1], given(fields[2]), win, 0.25, 0.25});
    moved.push_back(fields[1].empty() ? 0 : 1);
    included.push_back(line.size() % 2 == 0 ? 1 : 0);
  }
  GameTokens tokens;
  tokens.lay_out(moved, included);
  for (std::size_t choice = 0; choice < std::min<std::size_t>(tokens.start_count(), 8); ++choice) {
    for (const bool read_all : {false, true}) {
      const GameOptions options{
          .length_max = 150, .read_all = read_all, .overwrite_values = read_all};
      RF_HOLDS(tokens.start(choice) <= tokens.token_count(), choice);
      const GameTokens::Rows window = tokens.window_rows(choice, options.length_max);
      RF_HOLDS(window.begin <= window.end && window.end <= rows.size(), window.begin, window.end);
      TokenSequence sequence;
      const GameProblem problem = tokens.build(rows, choice, options, sequence);
      if (problem.fault != GameFault::kNone) {
        RF_HOLDS(problem.row < rows.size(), problem.row);
        continue;
      }
      RF_HOLDS(sequence.tokens.size() <= options.length_max, sequence.tokens.size());
      check_sequence(sequence);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  check_fen(text);
  check_variations(text);
  check_game(text);
  return 0;
}
