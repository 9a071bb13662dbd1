#include "workers/formats/chess_variation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace ringfeed::formats {
namespace {

using Json = nlohmann::json;

// Castling as the search writes it, and as the tokens do. What else goes from e1 to g1 is taken for
// it as well.
std::string_view king_takes_rook(std::string_view move) noexcept {
  if (move == "e1g1") return "e1h1";
  if (move == "e1c1") return "e1a1";
  if (move == "e8g8") return "e8h8";
  if (move == "e8c8") return "e8a8";
  return move;
}

double or_zero(double value) noexcept { return std::isnan(value) ? 0.0 : value; }

std::optional<double> number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0.0;
  if (!found->is_number()) return std::nullopt;
  return found->get<double>();
}

VariationNode read_node(const Json& object) {
  using Given = VariationNode::Given;
  VariationNode node;
  if (const auto fen = object.find("fen"); fen != object.end()) {
    node.fen_given = fen->is_null() ? Given::kNull : Given::kYes;
    if (fen->is_string()) node.fen = fen->get<std::string>();
  }
  if (const auto move = object.find("move"); move != object.end() && move->is_string()) {
    node.move = move->get<std::string>();
  }
  if (const auto wdl = object.find("wdl"); wdl != object.end()) {
    node.wdl_given = wdl->is_null() ? Given::kNull : Given::kYes;
    node.wdl_usable =
        wdl->is_array() && wdl->size() == 3 &&
        std::all_of(wdl->begin(), wdl->end(), [](const Json& value) { return value.is_number(); });
    for (std::size_t i = 0; node.wdl_usable && i < 3; ++i) node.wdl[i] = (*wdl)[i].get<double>();
  } else {
    node.wdl_usable = true;
  }
  return node;
}

Variation read_variation(const Json& object) {
  Variation variation;
  if (const auto move = object.find("root_move"); move != object.end() && move->is_string()) {
    variation.root_move = move->get<std::string>();
  }
  variation.visit_count = number_of(object, "visit_count");
  variation.visit_fraction = number_of(object, "visit_fraction");
  if (const auto nodes = object.find("nodes"); nodes != object.end() && nodes->is_array()) {
    for (const Json& node : *nodes) variation.nodes.push_back(read_node(node));
  }
  return variation;
}

// Writes tokens and what is said about them.
class Writer {
 public:
  explicit Writer(TokenSequence& out) : out_(out) { out_.clear(); }

  [[nodiscard]] std::uint32_t last() const {
    return static_cast<std::uint32_t>(out_.tokens.size()) - 1;
  }
  void put(Token token) { out_.tokens.push_back(token); }

  [[nodiscard]] bool put_board(bool given, std::string_view fen) {
    std::array<Token, kBoardTokens> board;
    if (!given) {
      write_empty_board(board);
    } else if (read_fen(fen, board) != FenStatus::kOk) {
      return false;
    }
    const auto begin = static_cast<std::uint32_t>(out_.tokens.size());
    out_.tokens.insert(out_.tokens.end(), board.begin(), board.end());
    out_.blocks.push_back({begin, begin + static_cast<std::uint32_t>(kBoardTokens)});
    return true;
  }

  void put_values(float wl, float d, bool known) {
    const std::uint32_t valid = TokenSequence::known(known);
    put(kWlValueToken);
    out_.values.push_back({last(), TokenSequence::kWl | TokenSequence::kWlPosition | valid, wl, d});
    put(kDValueToken);
    out_.values.push_back({last(), TokenSequence::kD | TokenSequence::kDPosition | valid, wl, d});
  }

  // Asks for the move at the token before it. False: it is a word and no move.
  [[nodiscard]] bool ask(std::uint32_t at, Token move, Token target, unsigned masks) {
    if (move_id(move) < 0) return false;
    out_.targets.push_back({at, move_id(move), board_id(target), static_cast<std::uint8_t>(masks)});
    return true;
  }
  void put_thought(Token move) {
    const std::uint32_t at = last();
    Token target = kContinueVarToken;
    unsigned masks = TokenSequence::kThinking;
    if (out_.tokens[at] == kStartThinkToken) {
      target = kGenericMoveToken;
    } else if (out_.tokens[at] == kEndVarToken) {
      target = kNewVariationToken;
      masks |= TokenSequence::kNewVariation;
    } else {
      masks |= TokenSequence::kContinueVar;
    }
    moves_ = ask(at, move, target, masks) && moves_;
    put(move);
  }
  [[nodiscard]] bool moves() const { return moves_; }
  void not_a_move() { moves_ = false; }

 private:
  TokenSequence& out_;
  bool moves_ = true;
};

// The kept variations in the order in which they are written; false: a null where a number is due.
bool choose(const std::vector<Variation>& all, const VariationRow& row,
            const VariationOptions& options, VariationDraws& draws,
            std::vector<const Variation*>& chosen) {
  for (const Variation& variation : all) chosen.push_back(&variation);
  if (all.size() > 1 &&
      std::any_of(all.begin(), all.end(), [](const Variation& v) { return !v.visit_count; })) {
    return false;
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const Variation* a, const Variation* b) {
    return a->visit_count.value_or(0) > b->visit_count.value_or(0);
  });
  if (chosen.size() > options.variations_max) chosen.resize(options.variations_max);
  if (chosen.size() <= 1) return true;
  const double win = or_zero(row.win);
  const double loss = or_zero(row.loss);
  const double variance = (win + loss) - (win - loss) * (win - loss);
  const double tau = options.tau_base * (1.0 + options.tau_alpha * variance);
  std::vector<double> scores;
  std::vector<double> noise;
  for (std::size_t i = 0; i < chosen.size(); ++i) noise.push_back(draws.gumbel());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (!chosen[i]->visit_fraction) return false;
    scores.push_back(*chosen[i]->visit_fraction / tau + noise[i]);
  }
  std::vector<std::size_t> order(chosen.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&scores](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::vector<const Variation*> ordered;
  for (const std::size_t i : order) ordered.push_back(chosen[i]);
  chosen = std::move(ordered);
  return true;
}

VariationFault write_line(const Variation& line, std::uint32_t depth, Writer& writer) {
  if (!line.root_move) return VariationFault::kRootMove;
  const std::optional<Token> root = find_token(king_takes_rook(*line.root_move));
  if (!root) return VariationFault::kNone;  // a knight promotion, say: the line is left out
  writer.put_thought(*root);
  for (std::uint32_t i = 0; i < depth; ++i) {
    const VariationNode& node = line.nodes[i];
    if (!node.wdl_usable) return VariationFault::kWdl;
    writer.put_values(static_cast<float>(node.wdl[0] - node.wdl[2]),
                      static_cast<float>(node.wdl[1]), true);
    if (node.fen_given == VariationNode::Given::kMissing ||
        !writer.put_board(node.fen_given == VariationNode::Given::kYes, node.fen)) {
      return VariationFault::kFen;
    }
    if (i + 1 == depth || node.move.empty()) continue;
    if (const auto move = find_token(king_takes_rook(node.move))) writer.put_thought(*move);
  }
  writer.put(kEndVarToken);
  return VariationFault::kNone;
}

}  // namespace

const char* variation_fault_name(VariationFault fault) noexcept {
  switch (fault) {
    case VariationFault::kNone:
      return "none";
    case VariationFault::kFen:
      return "fen";
    case VariationFault::kVisits:
      return "visits";
    case VariationFault::kRootMove:
      return "root_move";
    case VariationFault::kWdl:
      return "wdl";
    case VariationFault::kNoMove:
      return "no_move";
  }
  return "unknown";
}

std::optional<std::vector<Variation>> read_variations(std::string_view json, std::string& why) {
  const Json parsed = Json::parse(json, nullptr, false);
  if (parsed.is_discarded()) {
    why = "no valid JSON";
    return std::nullopt;
  }
  if (!parsed.is_array() ||
      !std::all_of(parsed.begin(), parsed.end(), [](const Json& v) { return v.is_object(); })) {
    why = "no list of objects";
    return std::nullopt;
  }
  std::vector<Variation> variations;
  for (const Json& variation : parsed) variations.push_back(read_variation(variation));
  return variations;
}

VariationResult write_variations(const VariationRow& row, const std::vector<Variation>& variations,
                                 const VariationOptions& options, VariationDraws& draws,
                                 TokenSequence& out) {
  VariationResult result;
  const auto failed = [&result](VariationFault fault) {
    result.fault = fault;
    return result;
  };
  Writer writer(out);
  std::vector<const Variation*> chosen;
  if (!choose(variations, row, options, draws, chosen)) return failed(VariationFault::kVisits);
  if (!writer.put_board(row.fen.has_value(), row.fen.value_or(""))) {
    return failed(VariationFault::kFen);
  }
  writer.put(kStartThinkToken);
  for (const Variation* line : chosen) {
    const auto most =
        static_cast<std::uint32_t>(std::min<std::size_t>(options.depth_max, line->nodes.size()));
    if (most == 0) continue;
    // Drawn for a line that is left out as well.
    const VariationFault fault = write_line(*line, draws.depth(most), writer);
    if (fault != VariationFault::kNone) return failed(fault);
  }
  writer.put(kEndThinkToken);
  const std::uint32_t end = writer.last();

  const auto mapped = [](const std::optional<std::string_view>& move) {
    return king_takes_rook(move.value_or(""));
  };
  std::string_view final_move = mapped(row.searched_move);
  if (!find_token(final_move)) final_move = mapped(row.other_move);
  const float wl = static_cast<float>(or_zero(row.win) - or_zero(row.loss));
  const auto d = static_cast<float>(or_zero(row.draw));
  const bool known = !std::isnan(row.win) && !std::isnan(row.draw) && !std::isnan(row.loss);
  if (const std::optional<Token> token = find_token(final_move)) {
    result.has_final = true;
    if (!writer.ask(end, *token, kGenericMoveToken, TokenSequence::kMove)) writer.not_a_move();
    writer.put(*token);
  }
  writer.put_values(wl, d, known);
  out.values.push_back(
      {end, TokenSequence::kWl | TokenSequence::kD | TokenSequence::known(known), wl, d});
  if (!chosen.empty() && !final_move.empty()) {
    if (!chosen.front()->root_move) return failed(VariationFault::kRootMove);
    result.first_is_not_best = king_takes_rook(*chosen.front()->root_move) != final_move;
  }
  if (!writer.moves()) return failed(VariationFault::kNoMove);
  return result;
}

}  // namespace ringfeed::formats
