#include "supervisor/config/wiring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "ringfeed/shm/result.h"
#include "tests/unit/config/plan_maker.h"

namespace ringfeed::config {
namespace {

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
  EXPECT_EQ(wiring.batches_stage, 5);
  EXPECT_EQ(wiring.batches_port, "output");
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
  EXPECT_EQ(text.checked.wiring.batches_stage, 0);
}

TEST(Wiring, AnInputCanNameItsPort) {
  EXPECT_THAT(messages(lc0_text_with("\"unpacker\" }", "\"unpacker.output\" }")), IsEmpty());
}

TEST(WiringRefuses, AMissingInput) {
  EXPECT_THAT(
      messages(lc0_text_with("input: \"unpacker\"", "")),
      ElementsAre("lc0.textproto:5:26: stage 'sampler': input is missing; give the stage that "
                  "frames come from: unpacker"));
  EXPECT_THAT(messages(lc0_text_with("input: \"provider\"", "input: \"\"")),
              ElementsAre(HasSubstr("2:47: stage 'loader': input is missing")));
}

TEST(WiringRefuses, AnInputThatNobodyCouldGive) {
  EXPECT_THAT(
      messages("stages { name: \"t\" tensor_generator {} }"),
      ElementsAre(HasSubstr("stage 't': input is missing; add a stage that puts out frames")));
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
                    "an output feeds one input"),
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
  EXPECT_THAT(
      messages("stages { name: \"p\" file_path_provider { directory: \"/d\" } }\n"),
      ElementsAre("lc0.textproto:1:1: no stage puts out batches, which trainers take; add a "
                  "stage that makes them from p.output (files)"));
}

TEST(WiringRefuses, TwoOutputsOfBatches) {
  const std::string text =
      lc0_text() +
      "stages { name: \"p2\" file_path_provider { directory: \"/e\" } }\n"
      "stages { name: \"l2\" chunk_source_loader { input: \"p2\" } }\n"
      "stages { name: \"c2\" shuffling_chunk_pool { input: \"l2\" } }\n"
      "stages { name: \"u2\" chunk_unpacker { input: \"c2\" position_count: 1 } }\n"
      "stages { name: \"t2\" tensor_generator { input: \"u2\" } }\n";
  EXPECT_THAT(
      messages(text),
      ElementsAre("lc0.textproto:11:1: stage 't2': its output 'output' carries batches, but so "
                  "does tensors.output; a feed has one output of batches: remove one of the "
                  "two, or run two feeds"));
}

// sampler <-> more, beside a pipeline that is right.
TEST(WiringRefuses, Cycles) {
  const std::string two = lc0_text() +
                          "stages { name: \"a\" shuffling_frame_sampler { input: \"b\" } }\n"
                          "stages { name: \"b\" shuffling_frame_sampler { input: \"a\" } }\n";
  EXPECT_THAT(
      messages(two),
      ElementsAre("lc0.textproto:7:46: stage 'a': it feeds itself: a > b > a; give one of them "
                  "an input from outside"));
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
