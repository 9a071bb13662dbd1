// What stages say to each other goes along the wires: facts down, wishes up, whatever the order in
// which the configuration lists them.
#include "workers/runtime/links.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "workers/runtime/registry.h"

namespace ringfeed {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Fact<std::uint64_t> kLength{"things.length"};
constexpr Fact<std::string> kPath{"things.path"};  // the stages that they have passed
constexpr Fact<std::uint64_t> kWanted{"things.wanted"};

// Kinds whose settings the tests borrow: a source; stages with one input that pass facts on; one
// with two inputs; one whose inputs are numbered.
class LinksTest : public ::testing::Test {
 protected:
  LinksTest() {
    StageType source;
    source.kind = "parquet_source";
    source.outputs = {{"output", "things"}};
    source.facts = [](const StageView& stage, PortFacts& outputs) {
      outputs["output"].set(kLength, 7);
      outputs["output"].set(kPath, stage.config.name());
    };
    source.more_ports = [](const StageView& stage, std::vector<PortSpec>& inputs,
                           std::vector<PortSpec>&) {
      const Link& reader = stage.links.output("output");
      if (reader.said.find(kWanted) != nullptr) inputs.push_back({"asks", "asks", reader.stage});
    };
    registry_.add(source);
    for (const char* kind : {"chess_games", "sequence_batcher"}) {
      StageType pass;
      pass.kind = kind;
      pass.inputs = {{"input", "things"}};
      pass.outputs = {{"output", "things"}};
      pass.facts = [this](const StageView& stage, PortFacts& outputs) {
        asked_.push_back("facts " + stage.config.name());
        const Facts& in = stage.links.input("input").said;
        outputs["output"] = in;
        // Of 20,000 stages in a row it would be gigabytes.
        if (in.get(kPath).size() > 1000) return;
        outputs["output"].set(kPath, in.get(kPath) + ">" + stage.config.name());
      };
      pass.wishes = [this](const StageView& stage, PortFacts& inputs) {
        asked_.push_back("wishes " + stage.config.name());
        // One more than is wished of it.
        inputs["input"].set(kWanted, stage.links.output("output").said.get(kWanted) + 1);
      };
      registry_.add(pass);
    }
    StageType split;
    split.kind = "chunk_source_splitter";
    split.more_ports = [](const StageView& stage, std::vector<PortSpec>&,
                          std::vector<PortSpec>& outputs) {
      for (const auto& output : stage.config.chunk_source_splitter().outputs()) {
        outputs.push_back({output.name(), "things"});
      }
    };
    split.facts = [](const StageView&, PortFacts& outputs) { outputs["all"].set(kLength, 9); };
    registry_.add(split);
    StageType both;
    both.kind = "variation_mixer";
    both.inputs = {{"input", "things"}, {"variations", "things"}};
    both.outputs = {{"output", "things"}};
    registry_.add(both);
    StageType many;
    many.kind = "join_positions";
    many.outputs = {{"output", "things"}};
    many.more_ports = [](const StageView& stage, std::vector<PortSpec>& inputs,
                         std::vector<PortSpec>&) {
      for (int i = 0; i < stage.config.join_positions().input_size(); ++i) {
        inputs.push_back({"input[" + std::to_string(i) + "]", "things"});
      }
    };
    registry_.add(many);
  }

  const PipelineLinks& links(const std::string& stages) {
    RF_CHECK(google::protobuf::TextFormat::ParseFromString(stages, &feed_), stages.size());
    asked_.clear();
    links_.emplace(feed_, registry_);
    return *links_;
  }
  // What stage `number` finds at an input.
  [[nodiscard]] const Link& input(int number, std::string_view port = "input") const {
    return links_->view(number).links.input(port);
  }
  [[nodiscard]] const Link& output(int number) const {
    return links_->view(number).links.output("output");
  }

  Registry registry_;
  DataLoaderConfig feed_;
  std::optional<PipelineLinks> links_;
  std::vector<std::string> asked_;
};

TEST_F(LinksTest, FactsGoDownAndWishesUpInWhateverOrderTheyAreListed) {
  links(
      "stages { name: 'c' sequence_batcher { input: 'b' } }"
      "stages { name: 'a' parquet_source {} }"
      "stages { name: 'b' chess_games { input: 'a.output' } }");
  EXPECT_EQ(input(0).said.get(kPath), "a>b");
  EXPECT_EQ(input(0).said.get(kLength), 7U);
  EXPECT_EQ(input(0).stage, "b");
  EXPECT_EQ(input(0).port, "output");
  EXPECT_EQ(output(2).said.get(kWanted), 1U);
  EXPECT_EQ(output(1).said.get(kWanted), 2U);
  EXPECT_EQ(output(1).stage, "b");
  EXPECT_EQ(output(1).port, "input");
  EXPECT_FALSE(output(0).linked());
  EXPECT_THAT(asked_, ElementsAre("facts b", "facts c", "wishes c", "wishes b"));
}

TEST_F(LinksTest, PortsMayFollowFromWhatIsSaid) {
  links("stages { name: 'a' parquet_source {} } stages { name: 'b' chess_games { input: 'a' } }");
  ASSERT_EQ(links_->inputs(0).size(), 1U);
  EXPECT_EQ(links_->inputs(0).front().from, "b");
  links("stages { name: 'a' parquet_source {} }");
  EXPECT_THAT(links_->inputs(0), IsEmpty());
}

TEST_F(LinksTest, TheFirstReaderOfAnOutputIsHeard) {
  links(
      "stages { name: 'a' parquet_source {} }"
      "stages { name: 'm' variation_mixer { input: 'a' variations: 'a' } }"
      "stages { name: 'b' chess_games { input: 'a' } }");
  EXPECT_EQ(output(0).stage, "m");
  EXPECT_EQ(output(0).port, "input");
  EXPECT_EQ(output(0).said.find(kWanted), nullptr) << "it wishes nothing";
  EXPECT_EQ(input(1, "variations").said.get(kPath), "a");
  EXPECT_EQ(input(2).said.get(kPath), "a") << "facts are for all that read";
}

TEST_F(LinksTest, AWrongNameOfAnOutputDoesNotUnlinkTheStages) {
  links(
      "stages { name: 'a' parquet_source {} } stages { name: 'b' chess_games { input: 'a.rows' } }"
      "stages { name: 's' chunk_source_splitter { outputs { name: 'all' } } }"
      "stages { name: 'c' sequence_batcher { input: 's' } }");
  EXPECT_EQ(input(1).port, "output");
  EXPECT_EQ(input(1).said.get(kPath), "a");
  EXPECT_EQ(output(0).stage, "b");
  EXPECT_EQ(input(3).port, "all") << "a stage's only output, whatever its name";
  EXPECT_EQ(input(3).said.get(kLength), 9U);
  EXPECT_EQ(links_->view(2).links.output("all").stage, "c");
}

TEST_F(LinksTest, InputsMayBeNumbered) {
  links(
      "stages { name: 'a' parquet_source {} } stages { name: 'b' parquet_source {} }"
      "stages { name: 'j' join_positions { input: 'a' input: 'b' } }");
  EXPECT_EQ(input(2, "input[0]").said.get(kPath), "a");
  EXPECT_EQ(input(2, "input[1]").said.get(kPath), "b");
  EXPECT_FALSE(input(2, "input[2]").linked());
}

// All of it is refused elsewhere; here it only must come to an end.
TEST_F(LinksTest, WhateverIsConfiguredComesToAnEnd) {
  links(
      "stages { name: 'a' chess_games { input: 'b' } }"
      "stages { name: 'b' sequence_batcher { input: 'a' } }"
      "stages { name: 'own' chess_games { input: 'own' } }"
      "stages { name: 'c' chess_games { input: 'b' } }");
  EXPECT_THAT(asked_, ::testing::SizeIs(8)) << "each once in each pass";
  EXPECT_EQ(input(3).stage, "b");
  links(
      "stages { name: 'a' chess_games { input: 'nobody' } } stages { name: 'a' parquet_source {} }"
      "stages { chess_games { input: '' } } stages { name: 'x' chess_games { input: '.' } }"
      "stages { name: 'none' } stages { name: 'y' chess_games { input: 'none.port' } }"
      "stages { name: 'z' chunk_validator { input: 'a' } }");
  EXPECT_FALSE(input(0).linked());
  EXPECT_FALSE(input(2).linked());
  EXPECT_EQ(output(0).stage, "") << "a kind that is not registered reads nothing";
  DataLoaderConfig row;
  for (int i = 0; i < 20'000; ++i) {
    StageConfig& stage = *row.add_stages();
    stage.set_name(std::to_string(i));
    stage.mutable_chess_games()->set_input(std::to_string(i + 1));
  }
  asked_.clear();
  const PipelineLinks deep(row, registry_);
  EXPECT_EQ(asked_.size(), 40'000U);
}

TEST_F(LinksTest, ThePlanTellsWhatIsSaid) {
  google::protobuf::TextFormat::ParseFromString(
      "stages { name: 'a' parquet_source {} } stages { name: 'b' chess_games { input: 'a' } }",
      &feed_);
  Registry registry;
  for (StageType type : registry_.types()) {
    type.nodes = [](const StageView&) { return std::vector<NodeSpec>{}; };
    type.answers = {"chunk_pool_request"};
    registry.add(std::move(type));
  }
  const PipelinePlan plan = plan_pipeline(feed_, registry);
  const auto said = [](const PortPlan& port) {
    std::vector<std::string> texts;
    for (const FactPlan& fact : port.facts()) texts.push_back(fact.name() + " " + fact.text());
    return texts;
  };
  EXPECT_THAT(said(plan.stages(0).outputs(0)), ElementsAre("things.length 7", "things.path a"));
  EXPECT_THAT(said(plan.stages(1).inputs(0)), ElementsAre("things.wanted 1"));
  EXPECT_THAT(plan.stages(0).answers(), ElementsAre("chunk_pool_request"));
}

using FactsDeathTest = LinksTest;
TEST_F(FactsDeathTest, TwoFactsOfOneNameEndTheProcess) {
  constexpr Fact<bool> kOther{"things.length"};
  Facts facts;
  facts.set(kLength, 3);
  EXPECT_DEATH(static_cast<void>(facts.find(kOther)), "value != nullptr");
}

}  // namespace
}  // namespace ringfeed
