#include "workers/lc0/position.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "workers/lc0/lc0_record.h"
#include "workers/lc0/policy_moves.h"

namespace ringfeed::inspect {
namespace {

using formats::kPolicyMoves;
using nlohmann::ordered_json;
namespace v6 = formats::v6;

constexpr std::size_t kStepPlanes = 13;
constexpr std::size_t kHistorySteps = 8;
constexpr int kOpponentPawns = 6;
constexpr int kRepetition = 12;

template <typename Value>
Value load(std::span<const std::byte> record, std::size_t offset) {
  Value value{};
  std::memcpy(&value, record.data() + offset, sizeof value);
  return value;
}
unsigned byte_at(std::span<const std::byte> record, std::size_t offset) {
  return std::to_integer<unsigned>(record[offset]);
}

// A float by its shortest digits: 0.1 and not 0.100000001490116.
double shortest(float value) {
  return std::isfinite(value) ? std::strtod(fmt::format("{}", value).c_str(), nullptr)
                              : static_cast<double>(value);
}

// A record's bit planes; squares are numbered a1 = 0 … h8 = 63 in the view of the side to move.
class Planes {
 public:
  explicit Planes(std::span<const std::byte> record) : record_(record) {}
  [[nodiscard]] std::uint64_t plane(std::size_t step, int kind) const {
    const std::size_t number = step * kStepPlanes + static_cast<std::size_t>(kind);
    return load<std::uint64_t>(record_, v6::kPlanes + number * 8);
  }
  // In a byte of a plane, which is a rank, the highest bit is file a.
  [[nodiscard]] bool at(std::size_t step, int kind, int square) const {
    return (plane(step, kind) >> (square ^ 7) & 1) != 0;
  }
  // Capitals are the side to move's.
  [[nodiscard]] char piece(int square) const {
    constexpr std::array<char, 12> kLetters = {'P', 'N', 'B', 'R', 'Q', 'K',
                                               'p', 'n', 'b', 'r', 'q', 'k'};
    char found = '.';
    for (int kind = 0; kind < 12; ++kind) {
      if (!at(0, kind, square)) continue;
      found = found == '.' ? kLetters[static_cast<std::size_t>(kind)] : '?';
    }
    return found;
  }
  [[nodiscard]] std::size_t history_steps() const {
    std::size_t steps = 0;
    for (std::size_t step = 0; step < kHistorySteps; ++step) {
      for (int kind = 0; kind < kRepetition; ++kind) {
        if (plane(step, kind) != 0) steps = step + 1;
      }
    }
    return steps;
  }

 private:
  std::span<const std::byte> record_;
};

const char* input_format_name(std::uint32_t format) {
  switch (format) {
    case formats::input_format::kClassical:
      return "classical";
    case formats::input_format::kCastlingPlane:
      return "castling plane";
    case formats::input_format::kCanonical:
      return "canonical";
    case formats::input_format::kHectoplies:
      return "canonical, hectoplies";
    case formats::input_format::kCanonicalV2:
      return "canonical v2";
    case formats::input_format::kHectopliesArmageddon:
      return "canonical, hectoplies, armageddon";
    case formats::input_format::kCanonicalV2Armageddon:
      return "canonical v2, armageddon";
    default:
      return "unknown";
  }
}

bool side_is_stored(std::uint32_t format) {
  return format == formats::input_format::kClassical ||
         format == formats::input_format::kCastlingPlane;
}

std::optional<bool> black_to_move(std::span<const std::byte> record, std::uint32_t format) {
  if (side_is_stored(format)) return byte_at(record, v6::kSideToMove) != 0;
  constexpr unsigned kBlack = 128;
  if (!formats::input_format_known(format)) return std::nullopt;
  return (byte_at(record, v6::kInvarianceInfo) & kBlack) != 0;
}

std::array<std::string, 8> board_of(const Planes& planes) {
  std::array<std::string, 8> rows;
  for (int rank = 7; rank >= 0; --rank) {
    for (int file = 0; file < 8; ++file) {
      rows[static_cast<std::size_t>(7 - rank)] += planes.piece(8 * rank + file);
    }
  }
  return rows;
}

char other_color(char piece) {
  if (piece >= 'a' && piece <= 'z') return static_cast<char>(piece - 'a' + 'A');
  if (piece >= 'A' && piece <= 'Z') return static_cast<char>(piece - 'A' + 'a');
  return piece;
}

// The rights of one side; `white` decides on the case. Format 1 has flags, format 2 files of rooks.
std::string castling_of(unsigned queenside, unsigned kingside, std::uint32_t format, bool white) {
  std::string letters;
  if (format == formats::input_format::kClassical) {
    if (kingside != 0) letters += 'K';
    if (queenside != 0) letters += 'Q';
  } else {
    for (const unsigned files : {kingside, queenside}) {
      if (files != 0) letters += static_cast<char>('A' + std::countr_zero(files));
    }
  }
  if (!white) std::transform(letters.begin(), letters.end(), letters.begin(), other_color);
  return letters;
}

// The square behind an opponent's pawn that has just gone two ranks, seen in the step before.
std::string en_passant(const Planes& planes, bool black) {
  if (planes.history_steps() < 2) return "-";
  for (int file = 0; file < 8; ++file) {
    const int here = 8 * 4 + file;
    const int before = 8 * 6 + file;
    if (planes.at(0, kOpponentPawns, here) && !planes.at(0, kOpponentPawns, before) &&
        !planes.at(1, kOpponentPawns, here) && planes.at(1, kOpponentPawns, before)) {
      return fmt::format("{}{}", static_cast<char>('a' + file), black ? '3' : '6');
    }
  }
  return "-";
}

// Why there is none; empty: fen is it.
std::string derive_fen(std::span<const std::byte> record, const Planes& planes,
                       const RecordPlace& place, std::uint32_t format, std::string& fen) {
  if (!side_is_stored(format)) {
    return "records of this input_format are turned and mirrored, and do not show the real board";
  }
  const bool black = *black_to_move(record, format);
  std::array<std::string, 8> rows = board_of(planes);
  if (black) {
    std::reverse(rows.begin(), rows.end());
    for (std::string& row : rows) {
      std::transform(row.begin(), row.end(), row.begin(), other_color);
    }
  }
  for (const std::string& row : rows) {
    if (row.find('?') != std::string::npos) return "two pieces stand on one square: damaged";
    int empty = 0;
    if (!fen.empty()) fen += '/';
    for (const char piece : row) {
      if (piece == '.') {
        ++empty;
        continue;
      }
      if (empty != 0) fen += std::to_string(empty);
      empty = 0;
      fen += piece;
    }
    if (empty != 0) fen += std::to_string(empty);
  }
  const std::string us = castling_of(byte_at(record, v6::kCastlingUsOoo),
                                     byte_at(record, v6::kCastlingUsOo), format, !black);
  const std::string them = castling_of(byte_at(record, v6::kCastlingThemOoo),
                                       byte_at(record, v6::kCastlingThemOo), format, black);
  const std::string castling = black ? them + us : us + them;
  // Records have no move number; it is known where the game is whole.
  const std::size_t number = place.from_the_start ? 1 + place.index / 2 : 1;
  fen += fmt::format(" {} {} {} {} {}", black ? 'b' : 'w', castling.empty() ? "-" : castling,
                     en_passant(planes, black), byte_at(record, v6::kRule50), number);
  return {};
}

ordered_json fields_of(std::span<const std::byte> record, std::uint32_t origin,
                       std::uint32_t format) {
  ordered_json fields;
  const auto byte = [&](const char* name, std::size_t offset) {
    fields[name] = byte_at(record, offset);
  };
  const auto real = [&](const char* name, std::size_t offset) {
    fields[name] = shortest(load<float>(record, offset));
  };
  byte("castling_us_ooo", v6::kCastlingUsOoo);
  byte("castling_us_oo", v6::kCastlingUsOo);
  byte("castling_them_ooo", v6::kCastlingThemOoo);
  byte("castling_them_oo", v6::kCastlingThemOo);
  byte(side_is_stored(format) ? "side_to_move" : "en_passant", v6::kSideToMove);
  byte("rule50_count", v6::kRule50);
  byte(origin < 5 ? "move_count" : "invariance_info", v6::kInvarianceInfo);
  if (origin < 6) fields["result"] = static_cast<int>(load<float>(record, v6::kResultQ));
  if (origin >= 4) {
    real("root_q", v6::kRootQ);
    real("best_q", v6::kBestQ);
    real("root_d", v6::kRootD);
    real("best_d", v6::kBestD);
  }
  if (origin >= 5) {
    real("root_m", v6::kRootM);
    real("best_m", v6::kBestM);
    real("plies_left", v6::kPliesLeft);
  }
  if (origin < 6) return fields;
  real("result_q", v6::kResultQ);
  real("result_d", v6::kResultD);
  real("played_q", v6::kPlayedQ);
  real("played_d", v6::kPlayedD);
  real("played_m", v6::kPlayedM);
  real("orig_q", v6::kOrigQ);
  real("orig_d", v6::kOrigD);
  real("orig_m", v6::kOrigM);
  fields["visits"] = load<std::uint32_t>(record, v6::kVisits);
  fields["played_idx"] = load<std::uint16_t>(record, v6::kPlayedIdx);
  fields["best_idx"] = load<std::uint16_t>(record, v6::kBestIdx);
  real("policy_kld", v6::kPolicyKld);
  if (origin < 7) return fields;
  real("q_st", v6::kQSt);
  real("d_st", v6::kDSt);
  fields["opp_played_idx"] = load<std::uint16_t>(record, v6::kOppPlayedIdx);
  fields["next_played_idx"] = load<std::uint16_t>(record, v6::kNextPlayedIdx);
  return fields;
}

ordered_json invariance_of(unsigned bits) {
  constexpr std::array<const char*, 8> kNames = {"flip",           "mirror",       "transpose",
                                                 "best_is_proven", "max_length",   "adjudicated",
                                                 "only_history",   "black_to_move"};
  ordered_json names = ordered_json::array();
  for (std::size_t bit = 0; bit < kNames.size(); ++bit) {
    if ((bits >> bit & 1) != 0) names.push_back(kNames[bit]);
  }
  return names;
}

// A move of the policy; null if there is none of this index.
ordered_json move_of(std::size_t index, const Planes& planes, bool mirrored) {
  if (index >= kPolicyMoves) return nullptr;
  const PolicyMove move = policy_moves()[index];
  ordered_json out = {{"index", index}, {"move", uci(move, mirrored)}, {"castling", nullptr}};
  if (planes.piece(move.from) == 'K' && planes.piece(move.to) == 'R') {
    PolicyMove castling = move;
    const int file = move.to % 8 > move.from % 8 ? 6 : 2;
    castling.to = static_cast<std::uint8_t>(move.from / 8 * 8 + file);
    out["castling"] = uci(castling, mirrored);
  }
  return out;
}

ordered_json policy_of(std::span<const std::byte> record, const Planes& planes,
                       std::uint32_t origin, bool mirrored, std::size_t top) {
  std::array<float, kPolicyMoves> probabilities{};
  std::memcpy(probabilities.data(), record.data() + v6::kPolicy, formats::kPolicyBytes);
  std::vector<std::size_t> order;
  double sum = 0;
  std::size_t legal = 0;
  std::size_t unknown = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const float p = probabilities[i];
    if (std::isnan(p)) {
      ++unknown;
    } else if (p >= 0) {
      ++legal;
      sum += static_cast<double>(p);
      // Version 3 has 0 for moves that are not legal, too.
      if (origin > 3 || p > 0) order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return probabilities[a] > probabilities[b];
  });
  ordered_json policy = {{"legal", legal + unknown}, {"sum", sum}, {"top", ordered_json::array()}};
  if (origin == 3) policy["legal"] = nullptr;
  if (unknown != 0) policy["nan"] = unknown;
  for (std::size_t i = 0; i < std::min(top, order.size()); ++i) {
    ordered_json move = move_of(order[i], planes, mirrored);
    move["probability"] = shortest(probabilities[order[i]]);
    policy["top"].push_back(std::move(move));
  }
  return policy;
}

}  // namespace

bool is_start_position(std::span<const std::byte> record) noexcept {
  // Own and the opponent's pawns, knights, bishops, rooks, queen, king; a byte is a rank.
  constexpr std::array<std::uint64_t, 6> kOwn = {0xFF00, 0x42, 0x24, 0x81, 0x10, 0x08};
  const Planes planes(record);
  for (int kind = 0; kind < 6; ++kind) {
    std::uint64_t theirs = kOwn[static_cast<std::size_t>(kind)];
    theirs = theirs == 0xFF00 ? std::uint64_t{0xFF} << 48 : theirs << 56;
    if (planes.plane(0, kind) != kOwn[static_cast<std::size_t>(kind)] ||
        planes.plane(0, kind + 6) != theirs) {
      return false;
    }
  }
  return true;
}

ordered_json describe_record(std::span<const std::byte> record, const RecordPlace& place,
                             std::size_t top) {
  const auto format = load<std::uint32_t>(record, v6::kInputFormat);
  const Planes planes(record);
  const std::optional<bool> black = black_to_move(record, format);
  // Moves of canonical formats are those of the turned board, so they are left as they stand.
  const bool mirrored = side_is_stored(format) && black.value_or(false);
  ordered_json out = {{"index", place.index},    {"version", place.origin},
                      {"input_format", format},  {"input_format_name", input_format_name(format)},
                      {"side_to_move", nullptr}, {"board", board_of(planes)}};
  if (black) out["side_to_move"] = *black ? "black" : "white";
  std::string fen;
  const std::string missing = derive_fen(record, planes, place, format, fen);
  out["fen"] = nullptr;
  if (missing.empty()) {
    out["fen"] = fen;
  } else {
    out["fen_missing"] = missing;
  }
  out["move_number_known"] = place.from_the_start;
  out["history_steps"] = planes.history_steps();
  out["repetition"] = planes.plane(0, kRepetition) != 0;
  out["fields"] = fields_of(record, place.origin, format);
  if (place.origin >= 5) {
    out["invariance"] = invariance_of(byte_at(record, v6::kInvarianceInfo));
  }
  out["policy"] = policy_of(record, planes, place.origin, mirrored, top);
  if (place.origin >= 6) {
    const bool searched = load<std::uint32_t>(record, v6::kVisits) != 0;
    const auto move = [&](std::size_t offset) {
      return searched ? move_of(load<std::uint16_t>(record, offset), planes, mirrored)
                      : ordered_json(nullptr);
    };
    out["played"] = move(v6::kPlayedIdx);
    out["best"] = move(v6::kBestIdx);
  }
  return out;
}

}  // namespace ringfeed::inspect
