#include "workers/lc0/lc0_validate.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "workers/lc0/lc0_moves.h"

namespace ringfeed::formats {

namespace {

constexpr double kSumMin = 0.99;
constexpr double kSumMax = 1.01;
constexpr unsigned kRule50Max = 100;

template <typename T>
T tail_value(const PackedFrameView& frame, std::size_t offset) noexcept {
  T value;
  std::memcpy(&value, frame.tail + (offset - v6::kCastlingUsOoo), sizeof value);
  return value;
}

float policy_value(const PackedFrameView& frame, std::size_t entry) noexcept {
  float value = 0;
  std::memcpy(&value, frame.policy_values + 4 * entry, sizeof value);
  return value;
}

// The probability of a move; `index` is below 1858.
float probability(const PackedFrameView& frame, std::uint32_t index) noexcept {
  if (frame.kind == PackedKind::kRaw) return policy_value(frame, index);
  std::size_t low = 0;
  std::size_t high = frame.policy_entries;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    std::uint16_t entry = 0;
    std::memcpy(&entry, frame.policy_indices + 2 * middle, sizeof entry);
    if (entry == index) return policy_value(frame, middle);
    if (entry < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return std::bit_cast<float>(packed::filler_bits(frame.origin));
}

// What a number may be; of a NaN none of it is true.
struct Limits {
  float min;
  float max;
  [[nodiscard]] bool holds(float value) const noexcept { return value >= min && value <= max; }
};
constexpr Limits kQ{-1.0F, 1.0F};
constexpr Limits kD{0.0F, 1.0F};
constexpr Limits kNotNegative{0.0F, 3.402823466e38F};

struct NumberField {
  const char* name;
  std::size_t offset;
  Limits limits;
};
constexpr NumberField kValueFields[] = {
    {"root_q", v6::kRootQ, kQ},
    {"root_d", v6::kRootD, kD},
    {"root_m", v6::kRootM, kNotNegative},
    {"best_q", v6::kBestQ, kQ},
    {"best_d", v6::kBestD, kD},
    {"best_m", v6::kBestM, kNotNegative},
    {"played_q", v6::kPlayedQ, kQ},
    {"played_d", v6::kPlayedD, kD},
    {"played_m", v6::kPlayedM, kNotNegative},
    {"plies_left", v6::kPliesLeft, kNotNegative},
};
constexpr NumberField kOrigFields[] = {
    {"orig_q", v6::kOrigQ, kQ},
    {"orig_d", v6::kOrigD, kD},
    {"orig_m", v6::kOrigM, kNotNegative},
};
constexpr NumberField kResultFields[] = {
    {"result_q", v6::kResultQ, kQ},
    {"result_d", v6::kResultD, kNotNegative},
};
struct ByteField {
  const char* name;
  std::size_t offset;
};
constexpr ByteField kCastlingFields[] = {
    {"castling_us_ooo", v6::kCastlingUsOoo},
    {"castling_us_oo", v6::kCastlingUsOo},
    {"castling_them_ooo", v6::kCastlingThemOoo},
    {"castling_them_oo", v6::kCastlingThemOo},
};

// What is found of one chunk.
class Examination {
 public:
  Examination(std::span<const PackedFrameView> frames, Checks checks) noexcept
      : frames_(frames), checks_(checks) {}

  Verdict verdict() noexcept {
    if (frames_.empty()) {
      if (checks_.has(Flaw::kEmpty)) found(Flaw::kEmpty, "no records");
      return std::move(verdict_);
    }
    for (at_ = 0; at_ < frames_.size() && verdict_.valid(); ++at_) fields();
    const bool moves = checks_.has(Flaw::kTransitions) || checks_.has(Flaw::kPlayedMoves) ||
                       checks_.has(Flaw::kMoveLegality);
    for (at_ = 0; moves && at_ < frames_.size() && verdict_.valid(); ++at_) move_made();
    return std::move(verdict_);
  }

 private:
  template <typename... Values>
  void found(Flaw flaw, fmt::format_string<Values...> format, Values&&... values) noexcept {
    if (!verdict_.valid()) return;
    verdict_ = {
        .flaw = flaw, .frame = at_, .text = fmt::format(format, std::forward<Values>(values)...)};
  }

  template <std::size_t N>
  void numbers(Flaw flaw, const NumberField (&fields)[N], bool nan_allowed = false) noexcept {
    if (!checks_.has(flaw)) return;
    for (const NumberField& field : fields) {
      const auto value = tail_value<float>(frames_[at_], field.offset);
      if (field.limits.holds(value) || (nan_allowed && std::isnan(value))) continue;
      found(flaw, "{} is {}", field.name, value);
      return;
    }
  }

  // A byte that is 0 or 1, or has at most one bit.
  void byte(Flaw flaw, const ByteField& field, bool bit_mask) noexcept {
    const auto value = tail_value<std::uint8_t>(frames_[at_], field.offset);
    if (bit_mask ? std::popcount(value) <= 1 : value <= 1) return;
    found(flaw, "{} is {:#04x}, which {}", field.name, value,
          bit_mask ? "has more than one bit" : "is neither 0 nor 1");
  }

  void fields() noexcept {
    const PackedFrameView& frame = frames_[at_];
    if (checks_.has(Flaw::kInputFormat)) {
      if (!input_format_known(frame.input_format)) {
        found(Flaw::kInputFormat, "input_format {}", frame.input_format);
      } else if (frame.input_format != frames_[0].input_format) {
        found(Flaw::kInputFormat, "input_format {}, but {} in the first record", frame.input_format,
              frames_[0].input_format);
      }
    }
    numbers(Flaw::kValues, kValueFields);
    numbers(Flaw::kOrigValues, kOrigFields, true);
    if (checks_.has(Flaw::kCastling)) {
      for (const ByteField& field : kCastlingFields) {
        byte(Flaw::kCastling, field, frame.input_format != input_format::kClassical);
      }
    }
    if (checks_.has(Flaw::kSideToMove)) {
      byte(Flaw::kSideToMove, {"side_to_move_or_enpassant", v6::kSideToMove},
           frame.input_format >= input_format::kCanonical);
    }
    numbers(Flaw::kResult, kResultFields);
    if (checks_.has(Flaw::kRule50)) {
      const auto plies = tail_value<std::uint8_t>(frame, v6::kRule50);
      if (plies > kRule50Max) found(Flaw::kRule50, "rule50_count is {}", plies);
    }
    policy();
    move_indices();
  }

  // Entries that are left out are the filler: -1, or 0 in what was version 3.
  void policy() noexcept {
    const bool each = checks_.has(Flaw::kProbabilities);
    const bool sum_wanted = checks_.has(Flaw::kProbabilitySum);
    if (!each && !sum_wanted) return;
    const PackedFrameView& frame = frames_[at_];
    double sum = 0;
    for (std::size_t i = 0; i < frame.policy_entries; ++i) {
      const float value = policy_value(frame, i);
      const bool probable = (value >= 0 && value <= 1) || value == -1 || std::isnan(value);
      if (each && !probable) {
        found(Flaw::kProbabilities, "a probability is {}", value);
        return;
      }
      if (value >= 0) sum += static_cast<double>(value);
    }
    if (sum_wanted && !(sum >= kSumMin && sum <= kSumMax)) {
      found(Flaw::kProbabilitySum, "the probabilities sum to {}", sum);
    }
  }

  void move_indices() noexcept {
    if (!checks_.has(Flaw::kMoveIndices)) return;
    const PackedFrameView& frame = frames_[at_];
    const bool searched = tail_value<std::uint32_t>(frame, v6::kVisits) > 0;
    struct {
      const char* name;
      std::size_t offset;
    } constexpr kIndices[] = {{"best_idx", v6::kBestIdx}, {"played_idx", v6::kPlayedIdx}};
    for (const auto& field : kIndices) {
      const auto index = tail_value<std::uint16_t>(frame, field.offset);
      if (index >= kPolicyMoves) {
        found(Flaw::kMoveIndices, "{} is {}; there are {} moves", field.name, index, kPolicyMoves);
      } else if (searched && probability(frame, index) < 0) {
        found(Flaw::kMoveIndices, "{} is {}, which is marked illegal", field.name, index);
      }
    }
  }

  // The move that was made in this record.
  void move_made() noexcept {
    const PackedFrameView& frame = frames_[at_];
    const ChessBoard board = position_of(frame, at_ == 0 ? nullptr : &frames_[at_ - 1]);
    const bool searched = tail_value<std::uint32_t>(frame, v6::kVisits) > 0;
    const auto played = tail_value<std::uint16_t>(frame, v6::kPlayedIdx);
    if (at_ + 1 == frames_.size()) {
      if (searched && checks_.has(Flaw::kMoveLegality)) last_move(board, played);
      return;
    }
    const std::optional<Move> move = move_between(board, seen_from(frame, frames_[at_ + 1]));
    if (!move) {
      if (checks_.has(Flaw::kTransitions)) {
        found(Flaw::kTransitions, "no move leads from its board to that of the next record");
      }
      return;
    }
    const MoveText text = move_text(*move);
    if (checks_.has(Flaw::kPlayedMoves)) {
      // Every move of a piece has an index.
      const std::uint16_t index = policy_index(*move).value_or(0);
      if (searched && index != played) {
        found(Flaw::kPlayedMoves, "played_idx is {}, but the move to the next record is {} ({})",
              played, index, text.text);
      } else if (probability(frame, index) < 0) {
        found(Flaw::kPlayedMoves, "the move to the next record, {} ({}), is marked illegal", index,
              text.text);
      }
    }
    if (checks_.has(Flaw::kMoveLegality) && !legal(board, *move)) {
      found(Flaw::kMoveLegality, "the move to the next record, {}, is not legal", text.text);
    }
  }

  // Nothing follows the last record: its move is looked for among all of them.
  void last_move(const ChessBoard& board, std::uint16_t played) noexcept {
    bool allowed = false;
    for_each_move(board, [&](Move move) {
      allowed = allowed || (policy_index(move) == played && legal(board, move));
    });
    if (!allowed) found(Flaw::kMoveLegality, "played_idx is {}, which is not a legal move", played);
  }

  std::span<const PackedFrameView> frames_;
  Checks checks_;
  std::size_t at_ = 0;
  Verdict verdict_;
};

}  // namespace

const char* flaw_name(Flaw flaw) noexcept {
  static constexpr const char* kNames[kFlaws] = {
      "none",        "empty",         "input_format",    "values",
      "orig_values", "castling",      "side_to_move",    "result",
      "rule50",      "probabilities", "probability_sum", "move_indices",
      "transitions", "played_moves",  "move_legality"};
  return kNames[static_cast<std::size_t>(flaw)];
}

Verdict validate_chunk(std::span<const PackedFrameView> frames, Checks checks) noexcept {
  return Examination(frames, checks).verdict();
}

}  // namespace ringfeed::formats
