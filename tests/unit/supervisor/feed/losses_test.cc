#include "supervisor/feed/losses.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "proto/config.pb.h"
#include "proto/control.pb.h"

namespace ringfeed::process {
namespace {

using Counters = std::initializer_list<std::pair<const char*, std::uint64_t>>;

void add(StatusReply& status, const std::string& name, Counters counters) {
  StageStatus& stage = *status.add_stages();
  stage.set_name(name);
  for (const auto& [counter, value] : counters) {
    stage.add_counters()->set_name(counter);
    stage.mutable_counters(stage.counters_size() - 1)->set_value(value);
  }
}

// 1000 lines, 40 of them left out; 10 of the others by a function; 940 rows and 10 at the end.
StatusReply some() {
  StatusReply status;
  add(status, "lines", {{"samples", 960}, {"skipped_no_json", 30}, {"skipped_wrong_type", 10}});
  add(status, "mapped", {{"inputs", 960}, {"samples", 950}, {"skipped_ValueError", 10}});
  add(status, "batches", {{"batches", 94}, {"rows", 940}, {"rows_dropped", 10}});
  return status;
}

const std::string kTime = "2026-07-01T12:30:00.123 warning worker/";

TEST(Losses, AreTheCountersOfAllStages) {
  Losses losses;
  losses.count(some());
  EXPECT_EQ(losses.left_out(), 50);
  ASSERT_NE(losses.largest(1000), nullptr);
  EXPECT_EQ(losses.largest(1000)->left_out, 50);
  EXPECT_EQ(losses.largest(1000)->all(), 1000);
  EXPECT_EQ(losses.largest(1001), nullptr);
  EXPECT_EQ(losses.rows(), 940);
  EXPECT_EQ(losses.rows_dropped(), 10);
  EXPECT_EQ(losses.counts_text(), "lines: 30 no_json, lines: 10 wrong_type, mapped: 10 ValueError");
  losses.count(some());
  EXPECT_EQ(losses.left_out(), 50) << "the same looked at again";
}

TEST(Losses, SumsAndFilesThatAreNotReadAreNone) {
  StatusReply status;
  add(status, "loader", {{"sources", 5}, {"skipped_files", 9}, {"skipped_extension", 6}});
  Losses losses;
  losses.count(status);
  EXPECT_EQ(losses.left_out(), 0);
  EXPECT_EQ(losses.counts_text(), "");
}

// 100 games of 90 positions each: the positions do not make up for the games.
TEST(Losses, WhatIsCountedInOtherUnitsIsHeldToTheLimitForItself) {
  StatusReply status;
  add(status, "loader", {{"sources", 3}, {"skipped_files", 1}, {"skipped_empty", 1}});
  add(status, "pool", {{"chunks_read", 60}, {"store_hits", 30}, {"skipped_damaged", 10}});
  add(status, "unpacker", {{"frames", 9000}, {"chunks_damaged", 0}});
  add(status, "tensors", {{"batches", 90}, {"rows", 9000}, {"frames_skipped", 90}});
  Losses losses;
  losses.count(status);
  EXPECT_EQ(losses.left_out(), 101);
  ASSERT_NE(losses.largest(1), nullptr);
  EXPECT_EQ(losses.largest(1)->unit, "files");
  const Losses::Share* const most = losses.largest(100);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(losses.text_of(*most),
            "10 % of all chunks are left out (10 of 100): tensors: 90 frames_skipped, pool: 10 "
            "damaged, loader: 1 empty");
  DataLoaderConfig config;
  config.mutable_skip_limit()->set_after(100);
  config.mutable_skip_limit()->set_share(0.1);
  EXPECT_EQ(losses.over_limit(config), "");
  config.mutable_skip_limit()->set_share(0.09);
  EXPECT_NE(losses.over_limit(config).find("10 of 100 chunks were left out"), std::string::npos);
}

TEST(Losses, OfChessAndParallelTextToo) {
  StatusReply status;
  add(status, "rows", {{"rows", 996}, {"rows_damaged", 1}, {"skipped_unreadable", 3}});
  add(status, "games", {{"rows", 996}, {"games", 40}, {"sequences", 36}, {"skipped_fen", 4}});
  add(status, "bitext", {{"directions", 9}, {"directions_missing", 1}, {"sentences", 900}});
  Losses losses;
  losses.count(status);
  DataLoaderConfig config;
  const auto over = [&](const char* stage, double share, auto settings) {
    config.Clear();
    StageConfig& one = *config.add_stages();
    one.set_name(stage);
    SkipLimitConfig& limit = *settings(one)->mutable_skip_limit();
    limit.set_share(share);
    limit.set_after(10);
    const std::string why = losses.over_limit(config);
    return why.substr(0, why.find(" were left out"));
  };
  const auto rows = [](StageConfig& one) { return one.mutable_parquet_source(); };
  const auto games = [](StageConfig& one) { return one.mutable_chess_games(); };
  const auto bitext = [](StageConfig& one) { return one.mutable_bitext_source(); };
  EXPECT_EQ(over("rows", 0.004, rows), "");
  EXPECT_EQ(over("rows", 0.003, rows), "4 of 1000 samples of stage 'rows'");
  EXPECT_EQ(over("games", 0.1, games), "");
  EXPECT_EQ(over("games", 0.09, games), "4 of 40 sequences of stage 'games'");
  EXPECT_EQ(over("bitext", 0.09, bitext), "1 of 10 directions of stage 'bitext'");
}

TEST(Losses, TheFirstProblemOfEachReasonIsKept) {
  Losses losses;
  const std::string skipped = kTime + "lines skipped stage=lines reason=skipped_no_json count=";
  losses.note("lines", skipped + "1 path=\"/data/a b.jsonl\" offset=17: no colon");
  losses.note("lines", skipped + "2 path=/data/a.jsonl offset=99: another");
  losses.count(some());
  EXPECT_EQ(losses.first_text(),
            "\n  lines: no_json, the first of 30: /data/a b.jsonl, offset 17: no colon");
  const std::string text = losses.text_of(*losses.largest(1000));
  EXPECT_NE(text.find("5 % of all samples are left out (50 of 1000)"), std::string::npos);
  EXPECT_NE(text.find("the first: /data/a b.jsonl, offset 17: no colon"), std::string::npos);
}

TEST(Losses, ATracebackBelongsToItsReason) {
  Losses losses;
  losses.note("mapped.0", kTime +
                              "mapped.0 skipped stage=mapped reason=skipped_ValueError count=1 "
                              "path=sample:00 offset=3: ValueError");
  losses.note("mapped.0", kTime + "mapped.0 exception stage=mapped type=ValueError lineage=00:3");
  losses.note("mapped.0", kTime + "mapped.0 | Traceback");
  losses.note("mapped.1", kTime + "mapped.1 | printed by another process");
  losses.note("mapped.0", kTime + "mapped.0 | ValueError: odd");
  losses.note("mapped.0", kTime + "mapped.0 something else");
  losses.note("mapped.0", kTime + "mapped.0 | printed later");
  losses.count(some());
  EXPECT_NE(losses.first_text().find("ValueError\n    Traceback\n    ValueError: odd"),
            std::string::npos);
  EXPECT_EQ(losses.first_text().find("printed"), std::string::npos);
}

TEST(Losses, ALimitHoldsForItsStageOrForAll) {
  Losses losses;
  losses.count(some());
  DataLoaderConfig config;
  EXPECT_EQ(losses.over_limit(config), "");
  config.mutable_skip_limit()->set_share(0.05);
  EXPECT_EQ(losses.over_limit(config), "") << "as many as it allows";
  config.mutable_skip_limit()->set_share(0.0499);
  EXPECT_NE(losses.over_limit(config).find("50 of 1000 samples were left out"), std::string::npos);
  config.mutable_skip_limit()->set_after(1001);
  EXPECT_EQ(losses.over_limit(config), "") << "there are not enough yet";

  config.clear_skip_limit();
  StageConfig& stage = *config.add_stages();
  stage.set_name("lines");
  stage.mutable_sample_source()->mutable_skip_limit()->set_share(0.04);
  EXPECT_EQ(losses.over_limit(config), "");
  stage.mutable_sample_source()->mutable_skip_limit()->set_share(0.03);
  EXPECT_NE(losses.over_limit(config).find("40 of 1000 samples of stage 'lines' were left out"),
            std::string::npos);
}

}  // namespace
}  // namespace ringfeed::process
