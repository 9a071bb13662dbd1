#include "workers/chess/row_tokens.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ringfeed/worker/batch_view.h"
#include "workers/chess/chess_fen.h"
#include "workers/chess/chess_vocabulary.h"

namespace ringfeed {
namespace {

using formats::Token;

constexpr std::size_t kSquaresOfBoard = 64;

// Of the pieces and the empty square; '\0': it is none of these.
char letter_of(Token token) {
  constexpr std::string_view kLetters = "KQRBNPkqrbnp";
  if (token == formats::kEmptyToken) return '.';
  if (token < formats::kWhiteKingToken || token >= formats::kWhiteKingToken + kLetters.size()) {
    return '\0';
  }
  return kLetters[token - formats::kWhiteKingToken];
}

// a1, b1, … h8 as letters; nullopt: no board stands there.
std::optional<std::string> squares_at(std::span<const Token> tokens) {
  if (tokens.size() < formats::kBoardTokens || tokens[0] != formats::kStartPosToken) {
    return std::nullopt;
  }
  std::string squares;
  for (std::size_t i = 0; i < kSquaresOfBoard; ++i) {
    const char letter = letter_of(tokens[i + 1]);
    if (letter == '\0') return std::nullopt;
    squares += letter;
  }
  return squares;
}

std::string fen_of(const std::string& squares) {
  std::string fen;
  for (std::size_t rank = 8; rank-- > 0;) {
    int empty = 0;
    for (std::size_t file = 0; file < 8; ++file) {
      const char letter = squares[8 * rank + file];
      if (letter == '.') {
        ++empty;
        continue;
      }
      if (empty != 0) fen += static_cast<char>('0' + std::exchange(empty, 0));
      fen += letter;
    }
    if (empty != 0) fen += static_cast<char>('0' + empty);
    if (rank != 0) fen += '/';
  }
  return fen;
}

std::string board_of(const std::string& squares) {
  std::string text;
  for (std::size_t rank = 8; rank-- > 0;) {
    text += fmt::format("{}", rank + 1);
    for (std::size_t file = 0; file < 8; ++file)
      text += fmt::format(" {}", squares[8 * rank + file]);
    text += '\n';
  }
  return text + "  a b c d e f g h\n";
}

std::string text_of(std::span<const Token> tokens) {
  std::string board;
  std::string text;
  std::size_t padding = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == formats::kPadToken) {
      ++padding;
      continue;
    }
    if (!text.empty()) text += ' ';
    if (const std::optional<std::string> squares = squares_at(tokens.subspan(i))) {
      if (board.empty()) board = board_of(*squares);
      text += fmt::format("[{}]", fen_of(*squares));
      i += kSquaresOfBoard;  // what follows says itself: end_pos, rights, who moves
    } else {
      text += tokens[i] < formats::kChessTokens ? formats::token_name(tokens[i])
                                                : fmt::format("#{}", tokens[i]);
    }
  }
  text = board + text + '\n';
  return padding == 0 ? text : text + fmt::format("and {} of padding\n", padding);
}

template <typename Id>
std::string of_ids(std::span<const Id> ids) {
  std::vector<Token> tokens;
  for (const Id id : ids) {
    // What is no token is shown as its number, if it has one.
    tokens.push_back(id >= 0 && id <= 0xffff ? static_cast<Token>(id) : Token{0xffff});
  }
  return tokens.empty() ? "" : text_of(tokens);
}

}  // namespace

std::string chess_row_text(const BatchView& batch, std::uint64_t row) {
  const BatchViewArray* const ids = batch.find("input_ids");
  if (ids == nullptr) return {};
  if (ids->dtype == "int16") return of_ids(ids->row<std::int16_t>(row));
  if (ids->dtype == "int64") return of_ids(ids->row<std::int64_t>(row));
  return {};
}

}  // namespace ringfeed
