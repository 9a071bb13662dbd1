#include "workers/chess/chess_vocabulary.h"

#include <algorithm>
#include <cstdlib>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {
namespace {

constexpr Token kFirstPromotion = 1792;
constexpr Token kPromotionsOfAColour = 66;
constexpr Token kFirstWord = kMoveTokens;
constexpr std::int16_t kNone = -1;

// Of everything that is not a move, in the order of the numbers.
constexpr std::array<std::string_view, kChessTokens - kFirstWord> kWords = {"white_king",
                                                                            "white_queen",
                                                                            "white_rook",
                                                                            "white_bishop",
                                                                            "white_knight",
                                                                            "white_pawn",
                                                                            "black_king",
                                                                            "black_queen",
                                                                            "black_rook",
                                                                            "black_bishop",
                                                                            "black_knight",
                                                                            "black_pawn",
                                                                            "start_pos",
                                                                            "end_pos",
                                                                            "white_to_move",
                                                                            "black_to_move",
                                                                            "empty",
                                                                            "pad",
                                                                            "bos",
                                                                            "eos",
                                                                            "wl_value",
                                                                            "d_value",
                                                                            "start_think",
                                                                            "end_think",
                                                                            "K",
                                                                            "Q",
                                                                            "k",
                                                                            "q",
                                                                            "KQ",
                                                                            "Kk",
                                                                            "Kq",
                                                                            "Qk",
                                                                            "Qq",
                                                                            "kq",
                                                                            "KQk",
                                                                            "KQq",
                                                                            "Kkq",
                                                                            "Qkq",
                                                                            "KQkq",
                                                                            "no_castling_rights",
                                                                            "end_var",
                                                                            "continue_var",
                                                                            "new_variation",
                                                                            "generic_move"};

constexpr unsigned distance(unsigned a, unsigned b) noexcept { return a < b ? b - a : a - b; }

// Could a queen or a knight go from one square to the other?
constexpr bool is_plain_move(unsigned from, unsigned to) noexcept {
  const unsigned files = distance(from % 8, to % 8);
  const unsigned ranks = distance(from / 8, to / 8);
  if (from == to) return false;
  return files == 0 || ranks == 0 || files == ranks || files * ranks == 2;
}

// kPlain[64 * from + to]: the token, or kNone; kFrom and kTo: the other way round.
struct PlainMoves {
  std::array<std::int16_t, 64 * 64> token;
  std::array<std::uint8_t, kFirstPromotion> from;
  std::array<std::uint8_t, kFirstPromotion> to;
};
constexpr PlainMoves kPlain = [] {
  PlainMoves moves{};
  std::int16_t count = 0;
  for (unsigned from = 0; from < 64; ++from) {
    for (unsigned to = 0; to < 64; ++to) {
      moves.token[64 * from + to] = kNone;
      if (!is_plain_move(from, to)) continue;
      moves.from[static_cast<std::size_t>(count)] = static_cast<std::uint8_t>(from);
      moves.to[static_cast<std::size_t>(count)] = static_cast<std::uint8_t>(to);
      moves.token[64 * from + to] = count++;
    }
  }
  return moves;
}();
static_assert(kPlain.token[64 * 63 + 62] == kFirstPromotion - 1);

constexpr std::string_view kPromotionLetters = "qrb";

// Number of a promotion among those of its colour; the files are neighbours or the same.
constexpr unsigned promotion_number(unsigned file, unsigned target, unsigned letter) noexcept {
  // Two targets from the a-file, three from each other one before this.
  const unsigned before = file == 0 ? 0 : 3 * file - 1;
  const unsigned first = file == 0 ? 0 : file - 1;
  return 3 * (before + target - first) + letter;
}
static_assert(promotion_number(7, 7, 2) == kPromotionsOfAColour - 1);

// The square of two characters; 64: they are none.
constexpr unsigned square_of(std::string_view text) noexcept {
  const auto file = static_cast<unsigned>(text[0] - 'a');
  const auto rank = static_cast<unsigned>(text[1] - '1');
  return file < 8 && rank < 8 ? 8 * rank + file : 64;
}

std::optional<Token> find_promotion(unsigned from, unsigned to, char letter) noexcept {
  const std::size_t piece = kPromotionLetters.find(letter);
  if (piece == std::string_view::npos || distance(from % 8, to % 8) > 1) return std::nullopt;
  const bool white = from / 8 == 6 && to / 8 == 7;
  const bool black = from / 8 == 1 && to / 8 == 0;
  if (!white && !black) return std::nullopt;
  const unsigned number = promotion_number(from % 8, to % 8, static_cast<unsigned>(piece));
  return static_cast<Token>(kFirstPromotion + (white ? 0U : kPromotionsOfAColour) + number);
}

std::string square_name(unsigned square) {
  return {static_cast<char>('a' + square % 8), static_cast<char>('1' + square / 8)};
}

// kCastling[rights]: which of the sixteen words.
constexpr std::array<Token, 16> kCastling = [] {
  constexpr std::string_view kLetters = "KQkq";
  std::array<Token, 16> tokens{};
  for (unsigned rights = 0; rights < 16; ++rights) {
    tokens[rights] = kNoCastlingToken;
    for (std::size_t word = 24; word < 39; ++word) {
      unsigned named = 0;
      for (const char letter : kWords[word]) named |= 1U << kLetters.find(letter);
      if (named == rights) tokens[rights] = static_cast<Token>(kFirstWord + word);
    }
  }
  return tokens;
}();
static_assert(kCastling[0] == kNoCastlingToken && kCastling[15] == kNoCastlingToken - 1);

constexpr std::array<std::int8_t, kChessTokens - kFirstWord> kBoardIds = [] {
  std::array<std::int8_t, kChessTokens - kFirstWord> ids{};
  for (std::int8_t& id : ids) id = -1;
  std::int8_t next = 0;
  const auto number = [&](Token first, Token last) {
    for (Token token = first; token <= last; ++token) ids[token - kFirstWord] = next++;
  };
  number(kWhiteKingToken, kEmptyToken);
  number(kWlValueToken, kDValueToken);
  number(1948, kGenericMoveToken);
  // The only two that are out of order.
  number(kEndThinkToken, kEndThinkToken);
  number(kStartThinkToken, kStartThinkToken);
  return ids;
}();
static_assert(kBoardIds[kStartThinkToken - kFirstWord] == 40);

}  // namespace

std::optional<Token> find_token(std::string_view name) noexcept {
  if (name.size() == 4 || name.size() == 5) {
    const unsigned from = square_of(name.substr(0, 2));
    const unsigned to = square_of(name.substr(2, 2));
    if (from < 64 && to < 64) {
      if (name.size() == 5) return find_promotion(from, to, name[4]);
      const std::int16_t token = kPlain.token[64 * from + to];
      return token == kNone ? std::nullopt : std::optional(static_cast<Token>(token));
    }
  }
  const auto found = std::find(kWords.begin(), kWords.end(), name);
  if (found == kWords.end()) return std::nullopt;
  return static_cast<Token>(kFirstWord + (found - kWords.begin()));
}

std::string token_name(Token token) {
  RF_CHECK(token < kChessTokens, token);
  if (token >= kFirstWord) return std::string(kWords[token - kFirstWord]);
  if (token < kFirstPromotion) {
    return square_name(kPlain.from[token]) + square_name(kPlain.to[token]);
  }
  const bool white = token < kFirstPromotion + kPromotionsOfAColour;
  const unsigned number = (token - kFirstPromotion) % kPromotionsOfAColour;
  const unsigned pair = number / 3;
  const unsigned file = pair < 2 ? 0 : (pair + 1) / 3;
  const unsigned target = file == 0 ? pair : file - 1 + (pair - (3 * file - 1));
  const unsigned from_rank = white ? 6 : 1;
  const unsigned to_rank = white ? 7 : 0;
  return square_name(8 * from_rank + file) + square_name(8 * to_rank + target) +
         kPromotionLetters[number % 3];
}

std::int8_t board_id(Token token) noexcept {
  return token < kFirstWord || token >= kChessTokens ? std::int8_t{-1}
                                                     : kBoardIds[token - kFirstWord];
}

Token castling_token(unsigned rights) noexcept { return kCastling[rights & 15]; }

}  // namespace ringfeed::formats
