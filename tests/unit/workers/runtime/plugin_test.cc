// Stages of plug-ins: what a program may register, which options a configuration may give, and what
// the plan says of them.
#include "ringfeed/worker/plugin.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "proto/batch.pb.h"
#include "proto/config.pb.h"
#include "proto/kinds.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/worker/main.h"
#include "workers/runtime/registry.h"

namespace ringfeed {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const Option<std::int64_t> kCount{
    .name = "count", .help = "How many.", .otherwise = 3, .min = 1, .max = 9};
const Option<double> kShare{
    .name = "share", .help = "A share.", .otherwise = 0.5, .min = 0, .max = 1};
const Option<bool> kTwice{.name = "twice", .help = "Whether twice.", .otherwise = false};
const Option<std::string> kHow{
    .name = "how", .help = "How.", .otherwise = "fast", .choices = {"fast", "well"}};
const Option<std::string> kWho{.name = "who", .help = "Who."};
const Option<std::vector<std::int64_t>> kSizes{
    .name = "sizes", .help = "Sizes.", .otherwise = std::vector<std::int64_t>{}, .min = 0};
const Option<std::vector<double>> kParts{
    .name = "parts", .help = "Parts.", .otherwise = std::vector<double>{1}};
const Option<std::vector<std::string>> kNames{
    .name = "names", .help = "Names.", .otherwise = std::vector<std::string>{"a"}};

StageType counting() {
  StageType type;
  type.kind = "counting";
  type.text = "Counts.";
  type.options = {kCount, kShare, kTwice, kHow, kWho, kSizes, kParts, kNames};
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {.name = "held", .help = "Held.", .kind = kGauge, .capacity = {.setting = "count"}}};
  type.nodes = [](const StageView& stage) {
    const PluginSettings own = plugin_settings(stage.config);
    NodeSpec node = own.node();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {own.output("samples")};
    node.create = [](const StageContext&) { return std::unique_ptr<Stage>(); };
    return std::vector<NodeSpec>{node};
  };
  return type;
}

Registry registry_of(const StageType& type) {
  Registry registry;
  registry.add_plugin(type);
  return registry;
}

StageConfig stage(const std::string& settings) {
  StageConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "name: 's' plugin { kind: 'counting' " + settings + "}", &config));
  return config;
}

StagePlan plan_of(const StageConfig& config, const StageType& type = counting()) {
  DataLoaderConfig feed;
  *feed.add_stages() = config;
  return plan_pipeline(feed, registry_of(type)).stages(0);
}

std::vector<std::string> problems(const std::string& settings) {
  std::vector<std::string> texts;
  const StagePlan plan = plan_of(stage(settings));
  for (const PlanProblem& problem : plan.problems()) {
    texts.push_back(problem.field() + ": " + problem.text());
  }
  return texts;
}

std::string options(const std::string& json) { return "options: '" + json + "' "; }

// ---- kinds

std::string refusal(const std::function<void(StageType&)>& change) {
  StageType type = counting();
  change(type);
  try {
    static_cast<void>(registry_of(type));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(PluginKind, IsRegisteredAsItIs) {
  EXPECT_EQ(refusal([](StageType&) {}), "");
}

TEST(PluginKind, HasAnUsableNameThatNoOtherHas) {
  for (const char* name : {"", "Counting", "two words", "a.b"}) {
    EXPECT_THAT(refusal([name](StageType& type) { type.kind = name; }),
                HasSubstr("cannot be a kind of stage; use 1 to 64 of a-z, 0-9 and _"));
  }
  EXPECT_THAT(refusal([](StageType& type) { type.kind = std::string(65, 'k'); }),
              HasSubstr("cannot be a kind"));
  EXPECT_THAT(refusal([](StageType& type) { type.kind = "sample_source"; }),
              HasSubstr("is a kind of stage of ringfeed's own"));
  EXPECT_THAT(refusal([](StageType& type) { type.kind = "plugin"; }),
              HasSubstr("is a kind of stage of ringfeed's own"));
  Registry registry = registry_of(counting());
  EXPECT_THROW(registry.add_plugin(counting()), Error);
}

TEST(PluginKind, SaysWhatItIsMadeOf) {
  EXPECT_THAT(refusal([](StageType& type) { type.nodes = nullptr; }), HasSubstr("nodes is empty"));
  EXPECT_THAT(refusal([](StageType& type) { type.answers = {"chunk_pool_request"}; }),
              HasSubstr("answers no messages"));
  EXPECT_THAT(refusal([](StageType& type) { type.example.text = "stages {"; }),
              HasSubstr("its example is no configuration"));
}

TEST(PluginKind, DeclaresOptionsThatCanBe) {
  EXPECT_THAT(refusal([](StageType& type) { type.options.push_back(kCount); }),
              HasSubstr("count is declared twice"));
  EXPECT_THAT(refusal([](StageType& type) {
                type.options.push_back(Option<bool>{.name = "min-words", .help = ""});
              }),
              HasSubstr("\"min-words\" cannot be an option"));
  EXPECT_THAT(
      refusal([](StageType& type) {
        type.options.push_back(
            Option<std::int64_t>{.name = "n", .help = "", .otherwise = 0, .min = 1});
      }),
      HasSubstr("the option n is 0 if it is not given, which is not a whole number, from 1"));
}

TEST(PluginKind, DeclaresCountersThatCanBe) {
  const auto with = [](const CounterSpec& counter) {
    return refusal([&counter](StageType& type) { type.counters.push_back(counter); });
  };
  EXPECT_THAT(with({"held", "Held."}), HasSubstr("the counter held is declared twice"));
  EXPECT_THAT(with({std::string(40, 'c'), "Long."}), HasSubstr("cannot be a counter; use 1 to 39"));
  EXPECT_EQ(with({std::string(39, 'c'), "Long."}), "");
  EXPECT_THAT(with({.name = "c", .help = "C.", .kind = kGauge, .capacity = {.setting = "who"}}),
              HasSubstr("is who, which is no option that is a whole number"));
}

TEST(PluginKind, HasAsManyCountersAsALaneHasRoomFor) {
  const std::string text = refusal([](StageType& type) {
    for (int i = 0; i < 48; ++i) type.counters.push_back({"c" + std::to_string(i), "One."});
  });
  EXPECT_THAT(text, HasSubstr("49 counters are declared; a stage has at most "));
}

// ---- options

TEST(PluginOptions, AreReadAsTheyAreDeclared) {
  const PluginSettings own = plugin_settings(
      stage(options(R"({"count": 4, "share": 1, "twice": true, "how": "well", "who": "é",)"
                    R"( "sizes": [1, 2], "parts": [1, 2.5], "names": []})")));
  EXPECT_EQ(own.options.get(kCount), 4);
  EXPECT_EQ(own.options.get(kShare), 1.0);
  EXPECT_EQ(own.options.get(kTwice), true);
  EXPECT_EQ(own.options.get(kHow), "well");
  EXPECT_EQ(own.options.get(kWho), "é");
  EXPECT_THAT(own.options.get(kSizes), ElementsAre(1, 2));
  EXPECT_THAT(own.options.get(kParts), ElementsAre(1, 2.5));
  EXPECT_THAT(own.options.get(kNames), IsEmpty());
  EXPECT_TRUE(own.options.has("count"));
}

TEST(PluginOptions, ThatAreNotGivenAreAsDeclared) {
  for (const char* given : {"", "options: '{}'", "options: '{'", "options: '{\"count\": \"x\"}'"}) {
    const PluginSettings own = plugin_settings(stage(given));
    EXPECT_EQ(own.options.get(kCount), 3) << given;
    EXPECT_EQ(own.options.get(kWho), "") << given;
    EXPECT_THAT(own.options.get(kParts), ElementsAre(1.0)) << given;
  }
}

TEST(PluginOptions, AreRefusedByName) {
  EXPECT_THAT(
      problems(options(R"({"who": "me", "cuont": 4})")),
      ElementsAre("options: options gives \"cuont\", which a counting does not have; it has "
                  "count, share, twice, how, who, sizes, parts, names"));
  EXPECT_THAT(problems(""), ElementsAre("options: options does not give who, which a counting "
                                        "needs: a text"));
  EXPECT_THAT(problems(options(R"({"who": "me"})")), IsEmpty());
}

TEST(PluginOptions, OfAnotherTypeOrOutsideOfTheirRangeAreRefused) {
  struct Case {
    const char* given;
    const char* said;
  };
  for (const Case& each : {
           Case{R"("count": 10)", "gives count as 10; give a whole number, 1 to 9"},
           Case{R"("count": 2.5)", "gives count as 2.5; give a whole number, 1 to 9"},
           Case{R"("count": null)", "gives count as null; give a whole number"},
           Case{R"("count": 9223372036854775808)", "as 9223372036854775808; give a whole number"},
           Case{R"("share": -0.1)", "gives share as -0.1; give a number, 0 to 1"},
           Case{R"("twice": 1)", "gives twice as 1; give true or false"},
           Case{R"("how": "soon")", "gives how as \"soon\"; give a text, one of fast, well"},
           Case{R"("sizes": [1, -1])",
                "gives sizes as [1,-1]; give a list of whole numbers, each from 0"},
           Case{R"("sizes": [1, 2.5])", "give a list of whole numbers"},
           Case{R"("parts": 1)", "gives parts as 1; give a list of numbers"},
           Case{R"("names": ["a", 1])", "give a list of texts"},
           Case{R"("names": {"a": 1})", "give a list of texts"},
       }) {
    EXPECT_THAT(problems(options(std::string(R"({"who": "me", )") + each.given + "}")),
                ElementsAre(AllOf(StartsWith("options: options "), HasSubstr(each.said))))
        << each.given;
  }
}

TEST(PluginOptions, AreAJsonObject) {
  EXPECT_THAT(problems(options("[1]")), ElementsAre(HasSubstr("is no JSON object; write it as")));
  EXPECT_THAT(problems(options(R"({"who": "me",})")),
              ElementsAre(HasSubstr("byte 14 cannot stand there")));
  EXPECT_THAT(problems(options(R"({"who": "me", "who": "you"})")),
              ElementsAre("options: options gives who twice; keep one"));
  // As deep as it may be; a stack that runs over would end the worker.
  EXPECT_THAT(problems(options(std::string(100'000, '['))), ElementsAre(HasSubstr("no JSON")));
}

TEST(PluginOptions, ALongValueIsNotRepeated) {
  EXPECT_THAT(problems(options(R"({"who": "me", "how": ")" + std::string(1000, 'x') + "\"}")),
              ElementsAre(HasSubstr("gives how as a text of 1002 bytes; give")));
}

// ---- plans

constexpr const char* kGood = "input: 'x' options: '{\"who\": \"me\"}' ";

TEST(PluginPlan, SaysKindLanesAndQueues) {
  const StagePlan plan = plan_of(stage(
      std::string(kGood) + "threads: 3 max_threads: 5 queue_capacity: 7 queue_bytes: 131072"));
  EXPECT_EQ(plan.kind(), "plugin");
  EXPECT_EQ(plan.plugin(), "counting");
  ASSERT_EQ(plan.nodes_size(), 1);
  EXPECT_EQ(plan.nodes(0).lanes(), 3U);
  EXPECT_EQ(plan.nodes(0).lanes_max(), 5U);
  EXPECT_TRUE(plan.nodes(0).no_other_program());
  EXPECT_EQ(plan.nodes(0).outputs(0).queue_capacity(), 7U);
  EXPECT_EQ(plan.nodes(0).outputs(0).queue_bytes(), 131072U);
}

TEST(PluginPlan, ACapacityIsAnOption) {
  const auto capacity = [](const char* given) {
    return plan_of(stage(given)).counters(0).capacity();
  };
  EXPECT_EQ(capacity(kGood), 3U);
  EXPECT_EQ(capacity("options: '{\"who\": \"me\", \"count\": 8}'"), 8U);
}

TEST(PluginPlan, AKindThatIsNotHereIsNotPlanned) {
  StageConfig config = stage(kGood);
  config.mutable_plugin()->set_kind("cuonting");
  StagePlan plan = plan_of(config);
  EXPECT_EQ(plan.kind(), "") << "nothing is known of its ports";
  ASSERT_EQ(plan.problems_size(), 1);
  EXPECT_EQ(plan.problems(0).field(), "plugin.kind");
  EXPECT_THAT(plan.problems(0).text(), HasSubstr("it has counting: give one of them"));
  config.mutable_plugin()->clear_kind();
  EXPECT_THAT(plan_of(config).problems(0).text(), StartsWith("kind is missing"));

  DataLoaderConfig feed;
  *feed.add_stages() = stage(kGood);
  const PipelinePlan without = plan_pipeline(feed, Registry());
  EXPECT_THAT(without.stages(0).problems(0).text(),
              HasSubstr("this worker has none; give the plug-in that has it with --worker PATH"));
}

TEST(PluginPlan, RefusesInputsAndLanesThatTheKindDoesNotHave) {
  EXPECT_THAT(problems(std::string(kGood) + "input: 'y'"),
              ElementsAre("input[1]: input is given 2 times, but a counting has 1 input; leave the "
                          "others out"));
  StageType alone = counting();
  alone.nodes = [of = alone.nodes](const StageView& stage) {
    std::vector<NodeSpec> nodes = of(stage);
    nodes[0].lanes = 1;
    nodes[0].lanes_max = 0;
    return nodes;
  };
  const StagePlan plan = plan_of(stage(std::string(kGood) + "threads: 2 max_threads: 4"), alone);
  ASSERT_EQ(plan.problems_size(), 2);
  EXPECT_EQ(plan.problems(0).field(), "threads");
  EXPECT_EQ(plan.problems(1).field(), "max_threads");
  EXPECT_EQ(plan.nodes_size(), 0);
}

TEST(PluginPlan, AsksTheKindOnlyOfOptionsThatCanBe) {
  StageType type = counting();
  int asked = 0;
  type.problems = [&asked](const StageView&) {
    ++asked;
    return std::vector<Problem>{{"options", "count is odd", false}};
  };
  EXPECT_EQ(plan_of(stage("options: '{}'"), type).problems_size(), 1);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(plan_of(stage(kGood), type).problems(0).text(), "count is odd");
  EXPECT_EQ(asked, 1);
}

TEST(PluginPlan, ANodeThatMakesNoStageIsRefused) {
  StageType type = counting();
  type.nodes = [of = type.nodes](const StageView& stage) {
    std::vector<NodeSpec> nodes = of(stage);
    nodes[0].create = nullptr;
    return nodes;
  };
  const StagePlan plan = plan_of(stage(kGood), type);
  ASSERT_EQ(plan.problems_size(), 1);
  EXPECT_THAT(plan.problems(0).text(), HasSubstr("without NodeSpec::create; mend the plug-in"));
}

TEST(PluginPlan, SaysTheLayoutOfBatches) {
  StageType type = counting();
  BatchLayout layout;
  type.batch_layout = [&layout](const StageView&) { return layout; };
  layout.rows_max = 10;
  EXPECT_EQ(layout.add("a", SampleDtype::kInt64, {kAllRows}), 0U);
  EXPECT_EQ(layout.add("b", SampleDtype::kUint8, {kAllRows, 3}), 128U) << "80 bytes, then 64 k";
  EXPECT_EQ(layout.add("c", SampleDtype::kFloat16, {varying_length(2)}, 5000), 192U);
  const StagePlan plan = plan_of(stage(kGood), type);
  ASSERT_THAT(plan.problems(), IsEmpty());
  const BatchSchema& schema = plan.batch();
  EXPECT_EQ(schema.rows_max(), 10U);
  EXPECT_EQ(schema.slot_bytes(), 8192U);
  ASSERT_EQ(schema.tensors_size(), 3);
  EXPECT_EQ(schema.tensors(1).bytes(), 30U);
  EXPECT_EQ(schema.tensors(2).dtype(), "float16");
  EXPECT_THAT(schema.tensors(2).shape(), ElementsAre(-4));
}

TEST(PluginPlan, RefusesBatchesThatCannotBe) {
  const auto refused = [](const std::function<void(BatchLayout&)>& change) {
    StageType type = counting();
    type.batch_layout = [&change](const StageView&) {
      BatchLayout layout;
      layout.rows_max = 2;
      layout.add("a", SampleDtype::kInt64, {kAllRows});
      change(layout);
      return layout;
    };
    const StagePlan plan = plan_of(stage(kGood), type);
    EXPECT_EQ(plan.nodes_size(), 0);
    return plan.problems_size() == 1 ? plan.problems(0).text() : "";
  };
  EXPECT_THAT(refused([](BatchLayout& layout) { layout.rows_max = 0; }),
              HasSubstr("rows_max is 0; mend the plug-in"));
  EXPECT_THAT(refused([](BatchLayout& layout) { layout.tensors.clear(); }),
              HasSubstr("there is no array"));
  const auto with = [&refused](const std::string& name, SampleDtype dtype,
                               const std::vector<std::int64_t>& shape, std::uint64_t bytes = 0) {
    return refused([&](BatchLayout& layout) { layout.add(name, dtype, shape, bytes); });
  };
  EXPECT_THAT(with("a", SampleDtype::kInt8, {1}), HasSubstr("a is there twice"));
  EXPECT_THAT(with("b c", SampleDtype::kInt8, {1}), HasSubstr("\"b c\" cannot be the name"));
  EXPECT_THAT(with("b", SampleDtype::kText, {1}), HasSubstr("text, which is no dtype"));
  EXPECT_THAT(with("b", SampleDtype::kInt8, {}), HasSubstr("0 dimensions; give 1 to 8"));
  EXPECT_THAT(with("b", SampleDtype::kInt8, {3, kAllRows}), HasSubstr("size -1 in dimension 1"));
  EXPECT_THAT(with("b", SampleDtype::kInt8, {varying_length(16)}, 9),
              HasSubstr("size -18 in dimension 0"));
  EXPECT_THAT(with("b", SampleDtype::kInt8, {varying_length(0)}),
              HasSubstr("give bytes_max to add()"));
  EXPECT_THAT(refused([](BatchLayout& layout) { layout.tensors[0].offset = 8; }),
              HasSubstr("a lies at 8 with 16 bytes in 16: use add()"));
}

// A port that the kind does not number is the first that is given.
TEST(PluginPlan, AnInputWithoutANumberIsTheFirst) {
  DataLoaderConfig feed;
  *feed.add_stages() = stage("options: '{\"who\": \"me\"}'");
  feed.mutable_stages(0)->set_name("first");
  *feed.add_stages() = stage("input: 'first' options: '{\"who\": \"me\"}'");
  StageType type = counting();
  std::string seen;
  type.problems = [&seen](const StageView& view) {
    if (view.config.name() == "s") seen = view.links.input("input").stage;
    return std::vector<Problem>();
  };
  static_cast<void>(plan_pipeline(feed, registry_of(type)));
  EXPECT_EQ(seen, "first");
}

TEST(PluginKinds, AreListedBehindWhatAllHaveInCommon) {
  const KindList list = list_kinds(registry_of(counting()));
  ASSERT_EQ(list.kinds_size(), 2);
  EXPECT_EQ(list.kinds(0).kind(), "plugin");
  const StageKind& own = list.kinds(1);
  EXPECT_EQ(own.kind(), "counting");
  EXPECT_TRUE(own.plugin());
  EXPECT_EQ(own.text(), "Counts.");
  EXPECT_EQ(own.counters(0).name(), "held");
  ASSERT_EQ(own.options_size(), 8);
  EXPECT_EQ(own.options(0).type(), "whole number");
  EXPECT_EQ(own.options(0).default_value(), "3");
  EXPECT_EQ(own.options(0).range(), "1 to 9");
  EXPECT_EQ(own.options(3).range(), "one of fast, well");
  EXPECT_FALSE(own.options(4).has_default_value());
  EXPECT_EQ(own.options(7).type(), "list of texts");
  EXPECT_EQ(own.options(7).default_value(), "[\"a\"]");
}

}  // namespace
}  // namespace ringfeed
