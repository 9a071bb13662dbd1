#include "supervisor/config/wiring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "ringfeed/shm/result.h"
#include "tests/unit/supervisor/config/plan_maker.h"

namespace ringfeed::config {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST(Wiring, ConnectsEveryInputToItsOutput) {
  const CheckedText text = checked_text(lc0_text());
  ASSERT_THAT(text.checked.problems, IsEmpty());
  const Wiring& wiring = text.checked.wiring;
  EXPECT_THAT(
      wiring.edges,
      ElementsAre(Edge{0, "output", 1, "input", "files"}, Edge{1, "output", 2, "input", "sources"},
                  Edge{2, "output", 3, "input", "chunks"}, Edge{3, "output", 4, "input", "frames"},
                  Edge{4, "output", 5, "input", "frames"}));
  EXPECT_THAT(wiring.order, ElementsAre(0, 1, 2, 3, 4, 5));
  ASSERT_EQ(wiring.outputs.size(), 1U);
  EXPECT_EQ(wiring.outputs[0].stage, 5);
  EXPECT_EQ(wiring.outputs[0].port, "output");
}

TEST(Wiring, TheOrderOfTheStagesInTheFileDoesNotMatter) {
  const CheckedText text = checked_text(R"(
    stages { name: "tensors" tensor_generator { input: "unpacker.output" } }
    stages { name: "unpacker" chunk_unpacker { input: "pool" position_count: 1 } }
    stages { name: "loader" chunk_source_loader { input: "provider" } }
    stages { name: "pool" shuffling_chunk_pool { input: "loader" } }
    stages { name: "provider" file_path_provider { directory: "/data" } })");
  ASSERT_EQ(problem_report(text.checked.problems), "");
  EXPECT_THAT(text.checked.wiring.order, ElementsAre(4, 2, 3, 1, 0));
  EXPECT_EQ(text.checked.wiring.outputs.at(0).stage, 0);
}

TEST(Wiring, AnInputCanNameItsPort) {
  EXPECT_THAT(messages(lc0_text_with("\"unpacker\" }", "\"unpacker.output\" }")), IsEmpty());
}

TEST(WiringRefuses, AMissingInput) {
  EXPECT_THAT(messages(lc0_text_with("input: \"unpacker\"", "")),
              ElementsAre("lc0.textproto:5:26: stage 'sampler': input is missing; name the stage "
                          "that outputs frames: unpacker"));
  EXPECT_THAT(messages(lc0_text_with("input: \"provider\"", "input: \"\"")),
              ElementsAre(HasSubstr("2:47: stage 'loader': input is missing")));
}

TEST(WiringRefuses, AnInputThatNobodyCouldGive) {
  EXPECT_THAT(
      messages("stages { name: \"t\" tensor_generator {} }"),
      ElementsAre(HasSubstr("stage 't': input is missing; add a stage that outputs frames")));
}

TEST(WiringRefuses, AnUnknownStage) {
  EXPECT_THAT(
      messages(lc0_text_with("input: \"unpacker\"", "input: \"unpaker\"")),
      ElementsAre("lc0.textproto:5:52: stage 'sampler': input is \"unpaker\", but there is no "
                  "stage 'unpaker'; did you mean 'unpacker'?"));
  EXPECT_THAT(messages(lc0_text_with("input: \"unpacker\"", "input: \"mixer\"")),
              ElementsAre(HasSubstr("there is no stage 'mixer'; there are provider, loader, pool")))
      << "that nobody reads the unpacker only follows from it";
}

TEST(WiringRefuses, AnUnknownPort) {
  EXPECT_THAT(
      messages(lc0_text_with("input: \"unpacker\"", "input: \"unpacker.frames\"")),
      ElementsAre(HasSubstr("5:52: stage 'sampler': input is \"unpacker.frames\", but stage "
                            "'unpacker' has no output 'frames'; it has output")));
  EXPECT_THAT(messages(lc0_text_with("input: \"unpacker\"", "input: \"unpacker.outptu\"")),
              ElementsAre(HasSubstr("no output 'outptu'; did you mean 'output'?")));
}

TEST(WiringRefuses, RecordsOfAnotherType) {
  EXPECT_THAT(messages(lc0_text_with("input: \"unpacker\"", "input: \"pool\"")),
              ElementsAre("lc0.textproto:5:52: stage 'sampler': pool.output carries chunks, "
                          "sampler.input takes frames; frames come from unpacker.output"))
      << "a message for one mistake";
}

TEST(WiringRefuses, TwoReadersOfOneOutput) {
  const std::string text =
      lc0_text() + "stages { name: \"more\" shuffling_frame_sampler { input: \"unpacker\" } }\n";
  EXPECT_THAT(
      messages(text),
      UnorderedElementsAre(
          HasSubstr("7:49: stage 'more': unpacker.output is already read by stage 'sampler'; "
                    "an output feeds only one input"),
          HasSubstr("7:1: stage 'more': nobody reads its output 'output' (frames)")));
}

TEST(WiringRefuses, AnOutputThatNobodyReads) {
  const std::string text =
      lc0_text() + "stages { name: \"spare\" file_path_provider { directory: \"/d\" } }\n";
  EXPECT_THAT(messages(text),
              ElementsAre("lc0.textproto:7:1: stage 'spare': nobody reads its output "
                          "'output' (files); give spare to an input that takes files, "
                          "or remove the stage"));
}

TEST(WiringRefuses, APipelineWithoutBatches) {
  EXPECT_THAT(messages("stages { name: \"p\" file_path_provider { directory: \"/d\" } }\n"),
              ElementsAre("lc0.textproto:1:1: no stage outputs batches for trainers; add a "
                          "stage that makes them from p.output (files)"));
}

// Training and validation out of the same files.
std::string two_outputs(const std::string& outputs) {
  return R"(stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "split" chunk_source_splitter {
  input: "loader" outputs { name: "a" } outputs { name: "b" } } }
stages { name: "pool" shuffling_chunk_pool { input: "split.a" } }
stages { name: "u1" chunk_unpacker { input: "pool" position_count: 1 } }
stages { name: "t1" tensor_generator { input: "u1" } }
stages { name: "extract" simple_chunk_extractor { input: "split.b" } }
stages { name: "u2" chunk_unpacker { input: "extract" position_count: 1 } }
stages { name: "t2" tensor_generator { input: "u2" } }
)" + outputs;
}

TEST(Wiring, SeveralOutputsOfBatchesAreToldApart) {
  const CheckedText text = checked_text(two_outputs(
      "feed_output { stage: \"t2\" alias: \"validation\" } feed_output { stage: \"t1.output\" }"));
  ASSERT_EQ(problem_report(text.checked.problems), "");
  EXPECT_THAT(text.checked.wiring.outputs,
              ElementsAre(BatchesPort{.stage = 5, .port = "output", .settings = 1},
                          BatchesPort{.stage = 8, .port = "output", .settings = 0}))
      << "the one without an alias first";
  EXPECT_THAT(text.checked.wiring.edges, Contains(Edge{2, "b", 6, "input", "sources"}));
}

TEST(WiringRefuses, SeveralOutputsOfBatchesThatAreNotToldApart) {
  EXPECT_THAT(
      messages(two_outputs("")),
      ElementsAre(
          HasSubstr("stage 't1': its output 'output' carries batches, but it is not the only one; "
                    "give it a name that trainers can ask for: feed_output { stage: "
                    "\"t1\" alias:"),
          HasSubstr("stage 't2': its output 'output' carries batches")));
  EXPECT_THAT(messages(two_outputs("feed_output { slots: 8 } feed_output { stage: \"t2\" }")),
              ElementsAre(HasSubstr("it does not say which output of batches it configures; add "
                                    "stage: \"NAME\" with one of t1, t2"),
                          HasSubstr("neither it nor feed_output[0] has an alias")));
  EXPECT_THAT(
      messages(
          two_outputs("feed_output { stage: \"t1\" } feed_output { stage: \"t3\" alias: \"x\" }")),
      ElementsAre(HasSubstr("stage is \"t3\", but no output of batches has that name; did you "
                            "mean 't1'")));
  EXPECT_THAT(
      messages(two_outputs("feed_output { stage: \"t1\" alias: \"x\" } feed_output { stage: "
                           "\"t2\" alias: \"x\" }")),
      ElementsAre(HasSubstr("its alias 'x' is also that of feed_output[0]; rename one of them")));
  EXPECT_THAT(messages(two_outputs("feed_output { stage: \"t1\" } feed_output { stage: \"t1\" "
                                   "alias: \"x\" }")),
              ElementsAre(HasSubstr("stage 't2': its output"),
                          HasSubstr("and so does feed_output[0]; keep one of the two")));
  EXPECT_THAT(
      messages(two_outputs("feed_output { stage: \"t1\" } feed_output { stage: \"t2\" alias: "
                           "\"x\" dispatch: RELAXED }")),
      ElementsAre(HasSubstr("dispatch is RELAXED here and ORDERED in feed_output[0]")));
}

TEST(WiringRefuses, AnOutputOfASplitterThatNobodyReads) {
  EXPECT_THAT(messages(lc0_text_with("input: \"loader\"", "input: \"split.a\"") +
                       "stages { name: \"split\" chunk_source_splitter { input: \"loader\" outputs "
                       "{ name: \"a\" } outputs { name: \"b\" } } }"),
              ElementsAre(HasSubstr("nobody reads its output 'b' (sources)")));
}

TEST(Wiring, AStageCanHaveSeveralInputs) {
  const std::string more =
      "stages { name: \"u2\" chunk_unpacker { input: \"e\" position_count: 1 } }\n"
      "stages { name: \"e\" simple_chunk_extractor { input: \"l2\" } }\n"
      "stages { name: \"l2\" chunk_source_loader { input: \"p2\" } }\n"
      "stages { name: \"p2\" file_path_provider { directory: \"/data\" } }\n"
      "stages { name: \"join\" join_positions { input: \"u2\" input: \"unpacker\" } }\n";
  const CheckedText text =
      checked_text(lc0_text_with("input: \"unpacker\"", "input: \"join\"") + more);
  ASSERT_EQ(problem_report(text.checked.problems), "");
  EXPECT_THAT(text.checked.wiring.edges, Contains(Edge{6, "output", 10, "input[0]", "frames"}));
  EXPECT_THAT(text.checked.wiring.edges, Contains(Edge{3, "output", 10, "input[1]", "frames"}));
}

// The sampler asks the loader, which the pool and the unpacker stand between.
Checked asked_back(const std::string& from, const std::string& type = "requests") {
  const Configuration configuration = parse_config(lc0_text(), "lc0.textproto");
  PipelinePlan plan = lc0_plan(configuration.message());
  StagePlan& sampler = *plan.mutable_stages(4);
  PortPlan* const out = sampler.add_outputs();
  out->set_name("requests");
  out->set_record_type(type);
  NodeOutput* const output = sampler.mutable_nodes(0)->add_outputs();
  output->set_port("requests");
  output->set_record_type(type);
  output->set_exported(true);
  StagePlan& loader = *plan.mutable_stages(1);
  PortPlan* const in = loader.add_inputs();
  in->set_name("requests");
  in->set_record_type("requests");
  in->set_from(from);
  loader.mutable_nodes(0)->add_inputs()->set_port("requests");
  // What has two outputs is read by name.
  return check_config(parse_config(lc0_text_with("input: \"sampler\"", "input: \"sampler.output\""),
                                   "lc0.textproto"),
                      plan);
}

TEST(Wiring, RequestsMayGoBackToAStageBefore) {
  const Checked checked = asked_back("sampler.requests");
  ASSERT_EQ(problem_report(checked.problems), "");
  EXPECT_THAT(checked.wiring.edges, Contains(Edge{4, "requests", 1, "requests", "requests", true}));
  EXPECT_THAT(checked.wiring.order, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(WiringRefuses, RequestsThatNobodyMakes) {
  EXPECT_THAT(problem_report(asked_back("sampler.questions").problems), HasSubstr("questions"));
  EXPECT_THAT(problem_report(asked_back("nobody.requests").problems), HasSubstr("nobody"));
  EXPECT_THAT(problem_report(asked_back("sampler.requests", "frames").problems),
              HasSubstr("requests"));
}

// sampler <-> more, beside a pipeline that is right.
TEST(WiringRefuses, Cycles) {
  const std::string two = lc0_text() +
                          "stages { name: \"a\" shuffling_frame_sampler { input: \"b\" } }\n"
                          "stages { name: \"b\" shuffling_frame_sampler { input: \"a\" } }\n";
  EXPECT_THAT(messages(two), ElementsAre("lc0.textproto:7:46: stage 'a': it feeds itself: a > b > "
                                         "a; give one of these stages an input from outside"));
  const std::string one =
      lc0_text() + "stages { name: \"a\" shuffling_frame_sampler { input: \"a\" } }\n";
  EXPECT_THAT(messages(one), ElementsAre(HasSubstr("7:46: stage 'a': it feeds itself: a > a;")));
}

// A stage with several outputs, as later stages will have.
TEST(Wiring, OneOfSeveralOutputsMustBeNamed) {
  const auto check = [](std::string_view input) {
    const Configuration configuration =
        parse_config(lc0_text_with("input: \"loader\"", "input: \"" + std::string(input) + "\""),
                     "lc0.textproto");
    PipelinePlan plan = lc0_plan(configuration.message());
    StagePlan& loader = *plan.mutable_stages(1);
    loader.mutable_outputs(0)->set_name("train");
    loader.mutable_nodes(0)->mutable_outputs(0)->set_port("train");
    PortPlan* const other = loader.add_outputs();
    other->set_name("test");
    other->set_record_type("sources");
    NodeOutput* const output = loader.mutable_nodes(0)->add_outputs();
    output->set_port("test");
    output->set_record_type("sources");
    output->set_exported(true);
    return check_config(configuration, plan);
  };
  EXPECT_THAT(
      problem_report(check("loader").problems),
      HasSubstr("stage 'loader' has several outputs; write loader.PORT with one of train, test"));
  const Checked named = check("loader.train");
  EXPECT_EQ(named.wiring.edges[1].from_port, "train");
  EXPECT_EQ(
      problem_report(named.problems),
      "lc0.textproto:2:1: stage 'loader': nobody reads its output 'test' (sources); give loader to "
      "an input that takes sources, or remove the stage\n");
}

TEST(Wiring, WithoutAPortTheOnlyOutputIsMeantWhateverItsName) {
  const Configuration configuration = parse_config(lc0_text(), "lc0.textproto");
  PipelinePlan plan = lc0_plan(configuration.message());
  StagePlan& loader = *plan.mutable_stages(1);
  loader.mutable_outputs(0)->set_name("sources");
  loader.mutable_nodes(0)->mutable_outputs(0)->set_port("sources");
  const Checked checked = check_config(configuration, plan);
  EXPECT_EQ(problem_report(checked.problems), "");
  EXPECT_EQ(checked.wiring.edges[1].from_port, "sources");
}

// ------------------------------------------------------------------- a plan of another build

class PlanMismatch : public testing::TestWithParam<std::function<void(PipelinePlan&)>> {};

TEST_P(PlanMismatch, IsAnErrorAndNotAProblemOfTheConfiguration) {
  const Configuration configuration = parse_config(lc0_text(), "lc0.textproto");
  PipelinePlan plan = lc0_plan(configuration.message());
  GetParam()(plan);
  try {
    static_cast<void>(check_config(configuration, plan));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIncompatible);
    EXPECT_THAT(error.message(), HasSubstr("from one build"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryContradiction, PlanMismatch,
    testing::Values(
        [](PipelinePlan& plan) { plan.mutable_stages()->RemoveLast(); },
        [](PipelinePlan& plan) { plan.mutable_stages(0)->clear_nodes(); },
        [](PipelinePlan& plan) { plan.mutable_stages(1)->mutable_nodes(0)->set_lanes(0); },
        [](PipelinePlan& plan) { plan.mutable_stages(1)->mutable_inputs(0)->set_name("entry"); },
        [](PipelinePlan& plan) { plan.mutable_stages(1)->mutable_nodes(0)->clear_inputs(); },
        [](PipelinePlan& plan) { plan.mutable_stages(1)->mutable_nodes(0)->clear_outputs(); },
        [](PipelinePlan& plan) {
          plan.mutable_stages(2)->mutable_nodes(1)->mutable_inputs(0)->set_from("x.y");
        },
        [](PipelinePlan& plan) { plan.mutable_stages(2)->mutable_nodes(1)->clear_inputs(); },
        [](PipelinePlan& plan) { plan.mutable_stages(5)->clear_batch(); },
        [](PipelinePlan& plan) {
          *plan.mutable_stages(1)->add_nodes() = plan.stages(1).nodes(0);
        }));

}  // namespace
}  // namespace ringfeed::config
