#include "workers/chess/chess_variation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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

// JSON has no numbers that are not finite; what Python writes as NaN, Infinity and -Infinity is
// read as numbers that nothing else is.
constexpr double kNotANumber = 7.625e-301;
constexpr double kInfinity = 7.75e-301;

// As in Python, true and false are numbers.
bool is_number(const Json& value) { return value.is_number() || value.is_boolean(); }

double number(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  const double read = value.get<double>();
  if (read == kNotANumber || read == -kNotANumber) return std::numeric_limits<double>::quiet_NaN();
  if (read == kInfinity) return std::numeric_limits<double>::infinity();
  if (read == -kInfinity) return -std::numeric_limits<double>::infinity();
  return read;
}

// The text with these numbers for the words, outside of strings.
std::string with_numbers(std::string_view text) {
  std::string out;
  bool in_string = false;
  while (!text.empty()) {
    std::size_t taken = 1;
    if (!in_string && text.starts_with("NaN")) {
      taken = 3;
      out += "7.625e-301";
    } else if (!in_string && text.starts_with("Infinity")) {
      taken = 8;
      out += "7.75e-301";
    } else {
      if (text.front() == '"') in_string = !in_string;
      if (in_string && text.front() == '\\') taken = std::min<std::size_t>(2, text.size());
      out += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  return out;
}

Json parse(std::string_view text) {
  Json parsed = Json::parse(text, nullptr, false);
  if (!parsed.is_discarded() || (text.find("NaN") == std::string_view::npos &&
                                 text.find("Infinity") == std::string_view::npos)) {
    return parsed;
  }
  return Json::parse(with_numbers(text), nullptr, false);
}

double or_zero(double value) noexcept { return std::isnan(value) ? 0.0 : value; }

std::optional<double> number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0.0;
  if (!is_number(*found)) return std::nullopt;
  return number(*found);
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
        wdl->is_array() && wdl->size() == 3 && std::all_of(wdl->begin(), wdl->end(), is_number);
    for (std::size_t i = 0; node.wdl_usable && i < 3; ++i) node.wdl[i] = number((*wdl)[i]);
  } else {
    node.wdl_usable = true;
  }
  return node;
}

Variation read_variation(const Json& object) {
  Variation variation;
  if (const auto move = object.find("root_move"); move != object.end()) {
    variation.root_move = move->is_string() ? move->get<std::string>() : "no text";
  }
  variation.visit_count = number_of(object, "visit_count");
  variation.visit_fraction = number_of(object, "visit_fraction");
  if (const auto nodes = object.find("nodes"); nodes != object.end()) {
    if (nodes->is_array()) {
      for (const Json& node : *nodes) variation.nodes.push_back(read_node(node));
    } else if (nodes->is_string() || nodes->is_object()) {
      variation.nodes_claimed = static_cast<std::uint32_t>(
          nodes->is_string() ? nodes->get_ref<const std::string&>().size() : nodes->size());
    } else {
      variation.nodes_unusable = true;
    }
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
  // Says of the last token, before what comes as a matter of course, that a limit was reached.
  void mark_limit(Token next, TokenSequence::Mask mask) {
    out_.targets.push_back({last(), kIgnored, board_id(next), mask});
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
  if (std::any_of(all.begin(), all.end(), [](const Variation& v) { return !v.visit_count; })) {
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

VariationFault write_line(const Variation& line, std::uint32_t depth, bool deepest, Writer& writer,
                          std::uint32_t& written) {
  if (!line.root_move) return VariationFault::kRootMove;
  const std::optional<Token> root = find_token(king_takes_rook(*line.root_move));
  if (!root) return VariationFault::kNone;  // a knight promotion, say: the line is left out
  if (line.nodes_claimed != 0) return VariationFault::kNodes;
  ++written;
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
  if (deepest) writer.mark_limit(kEndVarToken, TokenSequence::kEndVarMaxDepth);
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
    case VariationFault::kNodes:
      return "nodes";
    case VariationFault::kNoMove:
      return "no_move";
  }
  return "unknown";
}

VariationsJson read_variations(std::string_view json, std::vector<Variation>& out) {
  out.clear();
  // Python takes no byte order mark.
  const Json parsed =
      json.starts_with("\xef\xbb\xbf") ? Json(Json::value_t::discarded) : parse(json);
  if (parsed.is_discarded()) return VariationsJson::kMalformed;
  if (parsed.empty() || parsed == Json(false) || (parsed.is_number() && parsed == Json(0)) ||
      parsed == Json("")) {
    return VariationsJson::kOk;
  }
  if (!parsed.is_array() ||
      !std::all_of(parsed.begin(), parsed.end(), [](const Json& v) { return v.is_object(); })) {
    return VariationsJson::kNoList;
  }
  for (const Json& variation : parsed) out.push_back(read_variation(variation));
  return VariationsJson::kOk;
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
  std::uint32_t written = 0;
  for (const Variation* line : chosen) {
    if (line->nodes_unusable) return failed(VariationFault::kNodes);
    const auto most = static_cast<std::uint32_t>(
        std::min<std::size_t>(options.depth_max, line->nodes.size() + line->nodes_claimed));
    if (most == 0) continue;
    // Drawn for a line that is left out as well.
    const std::uint32_t depth = draws.depth(most);
    const VariationFault fault =
        write_line(*line, depth, depth == options.depth_max, writer, written);
    if (fault != VariationFault::kNone) return failed(fault);
  }
  if (written == options.variations_max) {
    writer.mark_limit(kEndThinkToken, TokenSequence::kEndThinkMaxVar);
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

FittedVariations fit_variations(const VariationRow& row, const std::vector<Variation>& variations,
                                const VariationOptions& options, std::uint32_t length_max,
                                VariationDraws& draws, TokenSequence& out) {
  FittedVariations fitted;
  VariationResult result;
  // A word that is no move matters only in what is used in the end.
  const auto fits = [&](const VariationOptions& tried) {
    ++fitted.tries;
    result = write_variations(row, variations, tried, draws, out);
    if (result.fault != VariationFault::kNone && result.fault != VariationFault::kNoMove) {
      fitted.fault = result.fault;
      return true;
    }
    return out.tokens.size() <= length_max;
  };
  bool done = fits(options);
  for (std::uint32_t lines = options.variations_max - 1; !done && lines > 0; --lines) {
    for (std::uint32_t depth = options.depth_max; !done && depth > 0; --depth) {
      VariationOptions fewer = options;
      fewer.variations_max = lines;
      fewer.depth_max = depth;
      done = fits(fewer);
    }
  }
  if (fitted.fault != VariationFault::kNone) return fitted;
  if (!done) {
    fitted.fate = VariationFate::kTooLong;
  } else if (!result.has_final) {
    fitted.fate = VariationFate::kNoFinal;
  } else if (result.fault == VariationFault::kNoMove) {
    fitted.fault = VariationFault::kNoMove;
  } else {
    out.first_is_not_best = result.first_is_not_best;
    fitted.fate = VariationFate::kSample;
  }
  return fitted;
}

}  // namespace ringfeed::formats
