#include "supervisor/config/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/supervisor/config/plan_maker.h"

namespace ringfeed::config {
namespace {

TEST(Explain, ShowsGroupsStagesPortsBatchesAndMemory) {
  const CheckedText text = checked_text(
      "seed: 7 epochs: 2 storage { memory_budget_bytes: 4294967296 }\n"
      "feed_output { groups { name: \"ranks\" kind: RANKED world: 4 } }\n" +
          lc0_text(),
      {"stages.pool.threads=2"});
  ASSERT_EQ(problem_report(text.checked.problems), "");
  const std::vector<StageGroup> groups =
      stage_groups(text.configuration.message(), text.plan, text.checked.wiring, 2);
  const std::vector<MemoryPart> memory{{"rings", 96 << 20}, {"feed payload", 235 << 20}};
  EXPECT_EQ(
      explain(text.configuration.message(), text.plan, text.checked.wiring, groups, memory),
      "feed lc0: 6 stages, 8 lanes, 3 processes\n"
      "  2 epochs, seed 7, dispatch ORDERED\n"
      "group provider+loader+pool: 5 lanes\n"
      "  provider  file_path_provider    lanes 1           in: -                           out: "
      "files on output\n"
      "  loader    chunk_source_loader   lanes 1           in: files from provider.output  out: "
      "sources on output\n"
      "  pool      shuffling_chunk_pool  lanes 1 + 2 read  in: sources from loader.output  out: "
      "chunks on output\n"
      "group unpacker+sampler: 2 lanes\n"
      "  unpacker  chunk_unpacker           lanes 1  in: chunks from pool.output      out: "
      "frames on output\n"
      "  sampler   shuffling_frame_sampler  lanes 1  in: frames from unpacker.output  out: "
      "frames on output\n"
      "group tensors: 1 lane\n"
      "  tensors  tensor_generator  lanes 1  in: frames from sampler.output  out: batches on "
      "output\n"
      "batches of up to 1024 rows, 28.0 MiB each, 8 slots, from tensors.output\n"
      "  planes float32 [rows, 112, 8, 8]\n"
      "consumer group ranks: RANKED of 4, policy BLOCK\n"
      "memory\n"
      "  rings         96.0 MiB\n"
      "  feed payload  235.0 MiB\n"
      "  in total      331.0 MiB\n"
      "  of a budget of 4.0 GiB\n");
}

TEST(Explain, HasTheSameAsJson) {
  const CheckedText text = checked_text(
      "epochs: 2 feed_output { groups { name: \"ranks\" kind: RANKED world: 4 } }\n" + lc0_text(),
      {"stages.pool.threads=2"});
  const std::vector<MemoryPart> memory{{"rings", 96 << 20}, {"feed payload", 235 << 20}};
  const nlohmann::ordered_json out = explain_json(
      text.configuration.message(), text.plan, text.checked.wiring,
      stage_groups(text.configuration.message(), text.plan, text.checked.wiring, 2), memory);
  EXPECT_EQ(out["feed"], "lc0");
  EXPECT_EQ(out["epochs"], 2);
  EXPECT_EQ(out["seed"], nullptr);
  EXPECT_EQ(out["groups"].size(), 3U);
  const nlohmann::ordered_json& pool = out["groups"][0]["stages"][2];
  EXPECT_EQ(pool["kind"], "shuffling_chunk_pool");
  EXPECT_EQ(pool["nodes"][1],
            (nlohmann::ordered_json{{"name", "read"}, {"lanes", 2}, {"lanes_max", 2}}));
  EXPECT_EQ(pool["inputs"][0]["from_stage"], "loader");
  EXPECT_EQ(pool["outputs"][0]["record_type"], "chunks");
  const nlohmann::ordered_json& batches = out["batches"][0];
  EXPECT_EQ(batches["rows_max"], 1024);
  EXPECT_EQ(batches["slots"], 8);
  EXPECT_EQ(batches["tensors"][0]["shape"], (std::vector<int>{-1, 112, 8, 8}));
  EXPECT_EQ(batches["groups"][0]["world"], 4);
  EXPECT_EQ(out["memory_bytes"], 331 << 20);
}

TEST(Explain, HasProblemsAsJson) {
  const std::vector<Problem> problems{{{"f.textproto", 3, 7}, "pool", "it is wrong", "stages[2]"}};
  EXPECT_EQ(problems_json(problems).dump(),
            R"([{"file":"f.textproto","line":3,"column":7,"stage":"pool","path":"stages[2]",)"
            R"("text":"it is wrong"}])");
}

TEST(Explain, NamesLengthsThatVary) {
  const CheckedText text = checked_text(lc0_text());
  ASSERT_EQ(problem_report(text.checked.problems), "");
  PipelinePlan plan = text.plan;
  BatchSchema& schema = *plan.mutable_stages(plan.stages_size() - 1)->mutable_batch();
  TensorSpec& tokens = *schema.mutable_tensors(0);
  tokens.clear_shape();
  for (const std::int64_t length : {-1, -3, 2, -2}) tokens.add_shape(length);
  EXPECT_THAT(explain(text.configuration.message(), plan, text.checked.wiring,
                      stage_groups(text.configuration.message(), plan, text.checked.wiring, 2), {}),
              ::testing::HasSubstr("  planes float32 [rows, S1, 2, S0]\n"));
}

TEST(Explain, ShowsWhatStagesSayToEachOther) {
  const CheckedText text = checked_text(lc0_text());
  ASSERT_EQ(problem_report(text.checked.problems), "");
  PipelinePlan plan = text.plan;
  const auto say = [](PortPlan& port, const char* name, const std::string& value) {
    FactPlan& fact = *port.add_facts();
    fact.set_name(name);
    fact.set_text(value);
  };
  say(*plan.mutable_stages(4)->mutable_outputs(0), "frames.dealt_in_turn", "yes");
  // A letter of three bytes that begins inside what is shown and ends beyond.
  say(*plan.mutable_stages(3)->mutable_outputs(0), "frames.long", std::string(99, 'x') + "\u20ac");
  // As a category out of somebody's file.
  say(*plan.mutable_stages(3)->mutable_inputs(0), "chunks.positions", "4 of\n\x1b[2J each\xff");
  EXPECT_THAT(explain(text.configuration.message(), plan, text.checked.wiring,
                      stage_groups(text.configuration.message(), plan, text.checked.wiring, 2), {}),
              ::testing::HasSubstr("facts\n"
                                   "  unpacker.output  frames.long           " +
                                   std::string(99, 'x') +
                                   " ...\n"
                                   "  sampler.output   frames.dealt_in_turn  yes\n"
                                   "wishes\n"
                                   R"(  unpacker.input  chunks.positions  4 of\n\x1b[2J each\xff)"
                                   "\n"
                                   "batches of up to"));
}

}  // namespace
}  // namespace ringfeed::config
