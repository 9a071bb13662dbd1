// The 1968 tokens of the chess pipelines, as numbers: shared by pretraining and fine-tuning.
//
//   0..1791      plain moves: from-square, to-square (a1, b1, ... h8), where a queen or a knight
//                could go. A knight promotion is one of them, and so is castling: king takes rook
//   1792..1857   white promotions: file of the pawn, target file, then queen, rook, bishop
//   1858..1923   black promotions, in the same way
//   1924..1935   white king, queen, rook, bishop, knight, pawn, then the black ones
//   1936..1947   start_pos, end_pos, who moves, empty, pad, bos, eos, wl_value, d_value, thinking
//   1948..1963   castling rights
//   1964..1967   end_var, continue_var, new_variation, generic_move
//
// A token that can stand in or behind a board has a board id as well (0..40), a move has its own
// number as move id. Nothing here allocates; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringfeed::formats {

using Token = std::uint16_t;

inline constexpr Token kMoveTokens = 1924;
inline constexpr Token kChessTokens = 1968;

enum ChessToken : Token {
  kWhiteKingToken = 1924,
  kBlackKingToken = 1930,
  kStartPosToken = 1936,
  kEndPosToken = 1937,
  kWhiteToMoveToken = 1938,
  kBlackToMoveToken = 1939,
  kEmptyToken = 1940,
  kPadToken = 1941,
  kWlValueToken = 1944,
  kDValueToken = 1945,
  kStartThinkToken = 1946,
  kEndThinkToken = 1947,
  kNoCastlingToken = 1963,
  kEndVarToken = 1964,
  kContinueVarToken = 1965,
  kNewVariationToken = 1966,
  kGenericMoveToken = 1967,
};

// The token of this name, exactly as written; nullopt: there is none.
[[nodiscard]] std::optional<Token> find_token(std::string_view name) noexcept;
// Its name; RF_CHECK: token < kChessTokens.
[[nodiscard]] std::string token_name(Token token);

// Among the 41 that stand in or behind boards; -1: none.
[[nodiscard]] std::int8_t board_id(Token token) noexcept;

// Among the 1924 moves; -1: none.
constexpr std::int16_t move_id(Token token) noexcept {
  return token < kMoveTokens ? static_cast<std::int16_t>(token) : std::int16_t{-1};
}

// The castling token of a set of rights: 1 white king's side, 2 white queen's, 4 and 8 black's.
[[nodiscard]] Token castling_token(unsigned rights) noexcept;

}  // namespace ringfeed::formats
