// A row of the fine-tuning data as tokens: the position, lines that a search has looked at (their
// moves, values and positions), and the move that was chosen. Which lines, in which order and how
// deep is drawn while it is written, so the draws are the caller's.
// One thread; allocates what the largest row needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workers/chess/chess_fen.h"
#include "workers/chess/token_sequence.h"

namespace ringfeed::formats {

// As in the JSON of the column `variations`; what has no value there has none here.
struct VariationNode {
  enum class Given : std::uint8_t { kMissing, kNull, kYes };
  Given fen_given = Given::kMissing;
  std::string fen;
  std::string move;  // that leads to the next node; empty: none
  Given wdl_given = Given::kMissing;
  bool wdl_usable = false;  // three numbers
  double wdl[3] = {0, 0, 0};
};
struct Variation {
  std::optional<std::string> root_move;      // nullopt: missing; what is no text is no token either
  std::optional<double> visit_count = 0;     // nullopt: null
  std::optional<double> visit_fraction = 0;  // nullopt: null
  std::vector<VariationNode> nodes;
  // What else stands in their place: nothing that has a length, or something that has one, but no
  // nodes. The row is at fault, in the second case once a depth has been drawn.
  bool nodes_unusable = false;
  std::uint32_t nodes_claimed = 0;
};

// The list in `json`; empty also of null, false, 0 and {}.
enum class VariationsJson : std::uint8_t {
  kOk,
  kMalformed,  // no JSON
  kNoList,     // something else
};
[[nodiscard]] VariationsJson read_variations(std::string_view json, std::vector<Variation>& out);

struct VariationRow {
  std::optional<std::string_view> fen;
  // The move that was played if the file has that column, else the best one.
  std::optional<std::string_view> other_move;
  std::optional<std::string_view> searched_move;  // the most visited one
  double win;                                     // of the side that moves; NaN: missing
  double draw;
  double loss;
};

struct VariationOptions {
  std::uint32_t variations_max = 3;
  std::uint32_t depth_max = 5;
  double tau_base = 0.3;
  double tau_alpha = 1.0;
};

class VariationDraws {
 public:
  virtual ~VariationDraws() = default;
  virtual double gumbel() = 0;
  // 1 to `most`.
  virtual std::uint32_t depth(std::uint32_t most) = 0;
};

enum class VariationFault : std::uint8_t {
  kNone,
  kFen,       // of the row or of a node
  kVisits,    // visit_count or visit_fraction is null
  kRootMove,  // there is none
  kWdl,       // of a node: not three numbers
  kNodes,     // of a line: no list
  kNoMove,    // a token that is no move stands where one is asked for
};
[[nodiscard]] const char* variation_fault_name(VariationFault fault) noexcept;

struct VariationResult {
  VariationFault fault = VariationFault::kNone;
  bool has_final = false;  // else it is no sample
  bool first_is_not_best = false;
};

// Writes the row with all tokens that it has, however many.
[[nodiscard]] VariationResult write_variations(const VariationRow& row,
                                               const std::vector<Variation>& variations,
                                               const VariationOptions& options,
                                               VariationDraws& draws, TokenSequence& out);

enum class VariationFate : std::uint8_t {
  kSample,
  kNoFinal,  // no move to end with
  kTooLong,  // whatever is left out
  kFault,
};
struct FittedVariations {
  VariationFate fate = VariationFate::kFault;
  VariationFault fault = VariationFault::kNone;
  std::uint32_t tries = 0;
};

// The row in at most `length_max` tokens: as asked, else with ever fewer lines and, for each number
// of them, ever shorter ones, drawn anew each time, until it fits.
[[nodiscard]] FittedVariations fit_variations(const VariationRow& row,
                                              const std::vector<Variation>& variations,
                                              const VariationOptions& options,
                                              std::uint32_t length_max, VariationDraws& draws,
                                              TokenSequence& out);

}  // namespace ringfeed::formats
