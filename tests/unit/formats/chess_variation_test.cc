// The specification of workers/formats/chess_variation.h; tests/data/chess/finetune_examples.json
// has worked examples, of finetune_rows.json, with the draws that made them.
#include "workers/formats/chess_variation.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "workers/formats/token_arrays.h"

namespace ringfeed::formats {
namespace {

using Json = nlohmann::json;

Json data(const std::string& name) {
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

void compare(const Json& sample, const TokenSequence& sequence, std::uint32_t length,
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
  const Json rows = data("finetune_rows.json")["rows"];
  const Json examples = data("finetune_examples.json")["examples"];
  std::size_t good = 0;
  for (const Json& example : examples) {
    const auto name = example["name"].get<std::string>();
    const Json& row = rows[example["row"].get<std::string>()];
    if (row["variations"].is_null()) continue;
    std::string why;
    const auto variations = read_variations(row["variations"].get<std::string>(), why);
    ASSERT_TRUE(variations) << name << ": " << why;
    TokenSequence sequence;
    VariationResult result;
    for (const Json& attempt : example["attempts"]) {
      WrittenDraws draws(attempt["draws"]);
      result = write_variations(view(row), *variations,
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
      EXPECT_EQ(write_variations(view(row), *variations, {}, draws, sequence).fault,
                VariationFault::kWdl);
      EXPECT_TRUE(draws.used_up());
      continue;
    }
    const bool emitted = example.contains("sample") && !example["sample"].is_null();
    EXPECT_EQ(result.has_final, emitted) << name;
    if (!emitted) continue;
    ++good;
    compare(example["sample"], sequence, example["max_seq_len"].get<std::uint32_t>(), name);
    EXPECT_EQ(result.first_is_not_best, example["sample"]["first_is_not_best"] == 1) << name;
  }
  EXPECT_EQ(good, 13U);
  EXPECT_EQ(examples.size(), 16U);
}

constexpr std::string_view kStart = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

VariationResult write(const std::string& json, TokenSequence& sequence,
                      std::optional<std::string_view> searched = "e2e4") {
  std::string why;
  const auto variations = read_variations(json, why);
  EXPECT_TRUE(variations) << why;
  if (!variations) return {};
  WrittenDraws draws(Json::parse(R"([["depth", 1, 1, 1], ["depth", 1, 1, 1]])"));
  return write_variations({.fen = kStart,
                           .other_move = std::nullopt,
                           .searched_move = searched,
                           .win = 0.5,
                           .draw = 0.3,
                           .loss = 0.2},
                          *variations, {}, draws, sequence);
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
  EXPECT_EQ(fault(R"([{"root_move": "bos", "nodes": [{"fen": null}]}])"), VariationFault::kNoMove);
  EXPECT_EQ(write("[]", sequence, "eos").fault, VariationFault::kNoMove);
  EXPECT_FALSE(write("[]", sequence, std::nullopt).has_final);
}

TEST(ChessVariation, RefusesWhatIsNoListOfObjects) {
  std::string why;
  for (const char* json : {"", "{", "{}", "[1]", "null", "[{}] x", "\"\"", "[{\"a\": 01}]"}) {
    EXPECT_FALSE(read_variations(json, why)) << json;
    EXPECT_FALSE(why.empty());
  }
  EXPECT_TRUE(read_variations("[]", why)->empty());
}

}  // namespace
}  // namespace ringfeed::formats
