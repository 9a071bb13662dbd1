// The specification of workers/chess/chess_variation.h; tests/data/chess/finetune_examples.json
// has worked examples, of finetune_rows.json, with the draws that made them.
#include "workers/chess/chess_variation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "workers/chess/token_arrays.h"

namespace ringfeed::formats {
namespace {

using Json = nlohmann::json;

Json variation_data(const std::string& name) {
  return Json::parse(std::ifstream(RINGFEED_SOURCE_DIR "/tests/data/chess/" + name));
}

// Gives what is written down: ["gumbel", [noise, ...]] or ["depth", 1, most, value], in turn.
class WrittenDraws final : public VariationDraws {
 public:
  explicit WrittenDraws(Json draws) : draws_(std::move(draws)) {}
  double gumbel() override {
    const Json& noise = now("gumbel")[1];
    const auto value = noise[noise_].get<double>();
    if (++noise_ == noise.size()) {
      noise_ = 0;
      ++at_;
    }
    return value;
  }
  std::uint32_t depth(std::uint32_t most) override {
    const Json& draw = now("depth");
    EXPECT_EQ(draw[2], most);
    ++at_;
    return draw[3].get<std::uint32_t>();
  }
  [[nodiscard]] bool used_up() const { return at_ == draws_.size(); }

 private:
  const Json& now(const char* kind) {
    EXPECT_EQ(draws_.at(at_)[0], kind);
    return draws_.at(at_);
  }
  Json draws_;
  std::size_t at_ = 0;
  std::size_t noise_ = 0;
};

VariationRow view(const Json& row) {
  const auto text = [&row](const char* key) -> std::optional<std::string_view> {
    if (!row.contains(key) || row[key].is_null()) return std::nullopt;
    return row[key].get_ref<const std::string&>();
  };
  const auto number = [&row](const char* key) {
    return row[key].is_null() ? std::numeric_limits<double>::quiet_NaN() : row[key].get<double>();
  };
  return {.fen = text("fen"),
          .other_move = row.contains("played_move") ? text("played_move") : text("best_move"),
          .searched_move = text("mcts_action"),
          .win = number("win"),
          .draw = number("draw"),
          .loss = number("loss")};
}

void compare_variation(const Json& sample, const TokenSequence& sequence, std::uint32_t length,
                       const std::string& name) {
  std::vector<std::vector<std::int64_t>> ids(4, std::vector<std::int64_t>(length, 1));
  std::vector<std::vector<std::uint8_t>> masks(7, std::vector<std::uint8_t>(length, 7));
  std::vector<std::vector<float>> values(2, std::vector<float>(length, 7));
  write_tokens(sequence, length,
               WideTokenRow{.input_ids = ids[0].data(),
                            .board_target_ids = ids[1].data(),
                            .move_target_ids = ids[2].data(),
                            .move_mask = masks[0].data(),
                            .thinking_move_mask = masks[1].data(),
                            .wl_positions = masks[2].data(),
                            .d_positions = masks[3].data(),
                            .wl_targets = values[0].data(),
                            .d_targets = values[1].data(),
                            .wdl_valid = masks[4].data(),
                            .block_id = ids[3].data(),
                            .continue_var_mask = masks[5].data(),
                            .new_variation_mask = masks[6].data()});
  const auto same = [&](const char* key, const auto& found) {
    const auto wanted = sample[key].get<std::vector<double>>();
    EXPECT_EQ(std::vector<double>(found.begin(), found.end()), wanted) << name << " " << key;
  };
  constexpr const char* kIds[] = {"input_ids", "board_target_ids", "move_target_ids", "block_id"};
  for (std::size_t i = 0; i < 4; ++i) same(kIds[i], ids[i]);
  constexpr const char* kMasks[] = {"move_mask",         "thinking_move_mask", "wl_positions",
                                    "d_positions",       "wdl_valid",          "continue_var_mask",
                                    "new_variation_mask"};
  for (std::size_t i = 0; i < 7; ++i) same(kMasks[i], masks[i]);
  same("wl_targets", values[0]);
  same("d_targets", values[1]);
}

TEST(ChessVariation, GivesTheArraysOfTheExamples) {
  const Json rows = variation_data("finetune_rows.json")["rows"];
  const Json examples = variation_data("finetune_examples.json")["examples"];
  std::size_t good = 0;
  for (const Json& example : examples) {
    const auto name = example["name"].get<std::string>();
    const Json& row = rows[example["row"].get<std::string>()];
    if (row["variations"].is_null()) continue;
    std::vector<Variation> variations;
    ASSERT_EQ(read_variations(row["variations"].get<std::string>(), variations),
              VariationsJson::kOk)
        << name;
    TokenSequence sequence;
    VariationResult result;
    for (const Json& attempt : example["attempts"]) {
      WrittenDraws draws(attempt["draws"]);
      result = write_variations(view(row), variations,
                                {.variations_max = attempt["max_variations"].get<std::uint32_t>(),
                                 .depth_max = attempt["max_depth"].get<std::uint32_t>(),
                                 .tau_base = example["tau_base"].get<double>(),
                                 .tau_alpha = example["tau_alpha"].get<double>()},
                                draws, sequence);
      EXPECT_EQ(result.fault, VariationFault::kNone) << name;
      EXPECT_TRUE(draws.used_up()) << name;
      EXPECT_EQ(sequence.tokens.size(), attempt["length"]) << name;
    }
    if (example["attempts"].empty()) {
      WrittenDraws draws(example["draws_before_failure"]);
      EXPECT_EQ(write_variations(view(row), variations, {}, draws, sequence).fault,
                VariationFault::kWdl);
      EXPECT_TRUE(draws.used_up());
      continue;
    }
    const bool emitted = example.contains("sample") && !example["sample"].is_null();
    EXPECT_EQ(result.has_final, emitted) << name;
    if (!emitted) continue;
    ++good;
    compare_variation(example["sample"], sequence, example["max_seq_len"].get<std::uint32_t>(),
                      name);
    EXPECT_EQ(result.first_is_not_best, example["sample"]["first_is_not_best"] == 1) << name;
  }
  EXPECT_EQ(good, 13U);
  EXPECT_EQ(examples.size(), 16U);
}

constexpr std::string_view kStart = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

VariationResult write(const std::string& json, TokenSequence& sequence,
                      std::optional<std::string_view> searched = "e2e4") {
  std::vector<Variation> variations;
  EXPECT_EQ(read_variations(json, variations), VariationsJson::kOk) << json;
  WrittenDraws draws(Json::parse(R"([["depth", 1, 1, 1], ["depth", 1, 1, 1]])"));
  return write_variations({.fen = kStart,
                           .other_move = std::nullopt,
                           .searched_move = searched,
                           .win = 0.5,
                           .draw = 0.3,
                           .loss = 0.2},
                          variations, {}, draws, sequence);
}

TEST(ChessVariation, NamesWhatIsWrong) {
  TokenSequence sequence;
  const auto fault = [&](const std::string& json) { return write(json, sequence).fault; };
  EXPECT_EQ(fault("[]"), VariationFault::kNone);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": [{"fen": null}]}])"), VariationFault::kNone);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": [{}]}])"), VariationFault::kFen);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": [{"fen": "x"}]}])"), VariationFault::kFen);
  EXPECT_EQ(fault(R"([{"nodes": [{"fen": null}]}])"), VariationFault::kRootMove);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": [{"fen": null, "wdl": [1, 2]}]}])"),
            VariationFault::kWdl);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": [{"fen": null, "wdl": null}]}])"),
            VariationFault::kWdl);
  EXPECT_EQ(fault(R"([{"visit_count": null}, {"visit_count": 3}])"), VariationFault::kVisits);
  EXPECT_EQ(fault(R"([{"visit_count": null}])"), VariationFault::kVisits);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": null}])"), VariationFault::kNodes);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": 0}])"), VariationFault::kNodes);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": "x"}])"), VariationFault::kNodes);
  EXPECT_EQ(fault(R"([{"root_move": "e2e4", "nodes": ""}])"), VariationFault::kNone);
  // Neither of these lines is used.
  EXPECT_EQ(fault(R"([{"root_move": null, "nodes": [{}]}])"), VariationFault::kNone);
  EXPECT_EQ(fault(R"([{"root_move": 7, "visit_count": true, "nodes": [{}]}])"),
            VariationFault::kNone);
  EXPECT_EQ(fault(R"([{"root_move": "bos", "nodes": [{"fen": null}]}])"), VariationFault::kNoMove);
  EXPECT_EQ(write("[]", sequence, "eos").fault, VariationFault::kNoMove);
  EXPECT_FALSE(write("[]", sequence, std::nullopt).has_final);
}

TEST(ChessVariation, TellsWhatIsNoListOfObjects) {
  std::vector<Variation> variations;
  for (const char* json : {"", "{", "[{}] x", "[{\"a\": 01}]"}) {
    EXPECT_EQ(read_variations(json, variations), VariationsJson::kMalformed) << json;
  }
  for (const char* json : {"{\"a\": 1}", "[1]", "7", "\"x\"", "true"}) {
    EXPECT_EQ(read_variations(json, variations), VariationsJson::kNoList) << json;
  }
  for (const char* json : {"[]", "{}", "null", "0", "false", "\"\""}) {
    EXPECT_EQ(read_variations(json, variations), VariationsJson::kOk) << json;
    EXPECT_TRUE(variations.empty()) << json;
  }
}

TEST(ChessVariation, TakesTheNumbersThatPythonWrites) {
  std::vector<Variation> variations;
  ASSERT_EQ(read_variations(R"([{"root_move": "NaN \" Infinity", "visit_fraction": NaN,
                                 "visit_count": -Infinity,
                                 "nodes": [{"wdl": [Infinity, NaN, 0.5]}]}])",
                            variations),
            VariationsJson::kOk);
  EXPECT_EQ(variations[0].root_move, "NaN \" Infinity");
  EXPECT_TRUE(std::isnan(*variations[0].visit_fraction));
  EXPECT_EQ(variations[0].visit_count, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(variations[0].nodes[0].wdl[0], std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(variations[0].nodes[0].wdl[1]));
  EXPECT_EQ(variations[0].nodes[0].wdl[2], 0.5);
  EXPECT_EQ(read_variations("[NaNa]", variations), VariationsJson::kMalformed);
}

TEST(ChessVariation, LeavesOutWhatDoesNotFit) {
  const std::string line =
      R"({"root_move": "e2e4", "nodes": [{"fen": null, "move": "e7e5"}, {"fen": null}]})";
  std::vector<Variation> variations;
  ASSERT_EQ(read_variations("[" + line + "," + line + "]", variations), VariationsJson::kOk);
  // Every line as deep as it may be.
  struct Deepest final : VariationDraws {
    double gumbel() override { return 0; }
    std::uint32_t depth(std::uint32_t most) override { return most; }
  };
  const VariationRow row{.fen = kStart,
                         .other_move = std::nullopt,
                         .searched_move = "e2e4",
                         .win = 0.5,
                         .draw = 0.3,
                         .loss = 0.2};
  Deepest draws;
  TokenSequence sequence;
  // Two lines of two positions take 73 + 2 (71 * 2 + 1) tokens, one takes 216, of one position 145.
  const auto fit = [&](std::uint32_t length) {
    return fit_variations(row, variations, {.variations_max = 2, .depth_max = 2}, length, draws,
                          sequence);
  };
  EXPECT_EQ(fit(359).tries, 1U);
  EXPECT_EQ(sequence.tokens.size(), 359U);
  EXPECT_EQ(fit(358).tries, 2U);
  EXPECT_EQ(sequence.tokens.size(), 216U);
  EXPECT_EQ(fit(215).tries, 3U);
  EXPECT_EQ(sequence.tokens.size(), 145U);
  EXPECT_EQ(fit(145).fate, VariationFate::kSample);
  EXPECT_EQ(fit(144).fate, VariationFate::kTooLong);
}

TEST(ChessVariation, MarksTheLimitsThatWereReached) {
  const std::string line =
      R"({"root_move": "e2e4", "nodes": [{"fen": null, "move": "e7e5"}, {"fen": null}]})";
  std::vector<Variation> variations;
  ASSERT_EQ(read_variations("[" + line + "]", variations), VariationsJson::kOk);
  const auto limits = [&](std::uint32_t lines, std::uint32_t depth) {
    struct Two final : VariationDraws {
      double gumbel() override { return 0; }
      std::uint32_t depth(std::uint32_t) override { return 2; }
    } two;
    TokenSequence sequence;
    EXPECT_TRUE(write_variations({.fen = kStart,
                                  .other_move = std::nullopt,
                                  .searched_move = "e2e4",
                                  .win = 0,
                                  .draw = 0,
                                  .loss = 0},
                                 variations, {.variations_max = lines, .depth_max = depth}, two,
                                 sequence)
                    .has_final);
    std::vector<std::uint32_t> at(2, 0);
    for (const TokenSequence::Target& target : sequence.targets) {
      if ((target.masks & TokenSequence::kEndVarMaxDepth) != 0) at[0] = target.at;
      if ((target.masks & TokenSequence::kEndThinkMaxVar) != 0) at[1] = target.at;
      EXPECT_LT(target.at + 1, sequence.tokens.size());
    }
    return at;
  };
  // The tokens of the one line: 69 e2e4, two values and a board of 68, e7e5, the same again,
  // end_var.
  EXPECT_EQ(limits(1, 2), (std::vector<std::uint32_t>{210, 211}));
  EXPECT_EQ(limits(2, 2), (std::vector<std::uint32_t>{210, 0}));
  EXPECT_EQ(limits(1, 3), (std::vector<std::uint32_t>{0, 211}));
}

// What is in a file may be anything. The sequences that come of it are what stages can pass on.
TEST(ChessVariation, SurvivesNoise) {
  const Json rows = variation_data("finetune_rows.json")["rows"];
  std::vector<std::string> texts;
  for (const auto& [name, row] : rows.items()) {
    if (!row["variations"].is_null()) texts.push_back(row["variations"].get<std::string>());
  }
  const std::vector<std::string> words = {"null",     "[]",      "{}",   "-1",      "1e999",
                                          "\"e1g1\"", "\"\"",    "[[[[", "\"bos\"", "true",
                                          "NaN",      "\\u0000", "\xff"};
  struct Any final : VariationDraws {
    std::mt19937_64 random{3};
    double gumbel() override { return std::uniform_real_distribution<>(-1, 4)(random); }
    std::uint32_t depth(std::uint32_t most) override {
      return 1 + static_cast<std::uint32_t>(random() % most);
    }
  } draws;
  std::size_t samples = 0;
  std::vector<Variation> variations;
  TokenSequence sequence;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = texts[draws.random() % texts.size()];
    for (std::uint64_t changes = draws.random() % 4; changes > 0; --changes) {
      const std::size_t at = draws.random() % text.size();
      switch (draws.random() % 4) {
        case 0:
          text[at] = static_cast<char>(draws.random());
          break;
        case 1:
          text.resize(at + 1);
          break;
        case 2:
          text.insert(at, words[draws.random() % words.size()]);
          break;
        default: {
          // A value becomes another one.
          const std::size_t colon = text.find(": ", at);
          const std::size_t end = text.find_first_of(",}", colon);
          if (end != std::string::npos) {
            text.replace(colon + 2, end - colon - 2, words[draws.random() % words.size()]);
          }
        }
      }
    }
    if (read_variations(text, variations) != VariationsJson::kOk) continue;
    const FittedVariations fitted = fit_variations({.fen = kStart,
                                                    .other_move = "e2e4",
                                                    .searched_move = std::nullopt,
                                                    .win = 0.5,
                                                    .draw = 0.3,
                                                    .loss = 0.2},
                                                   variations, {}, 512, draws, sequence);
    if (fitted.fate != VariationFate::kSample) continue;
    ++samples;
    ASSERT_LE(sequence.tokens.size(), 512U);
    std::vector<std::byte> record(packed_bytes(sequence));
    pack(sequence, record);
    TokenSequence again;
    ASSERT_TRUE(unpack(record, again)) << text;
  }
  EXPECT_GT(samples, 5'000U);
}

}  // namespace
}  // namespace ringfeed::formats
