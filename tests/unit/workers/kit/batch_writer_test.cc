// The specification of workers/kit/batch_writer.h.
#include "workers/kit/batch_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/rig/lane_rig.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t kBatchSize = 4;
constexpr std::uint64_t kRowsPerStep = 3;

// Writes the first byte of each record as a row of one byte. An empty record ends a batch early.
class LetterRows final : public Stage {
 public:
  explicit LetterRows(const StageContext& context)
      : batches_(
            context,
            [] {
              StateLayout layout;
              return BatchWriter::State(layout);
            }(),
            kBatchSize, kBatchSize),
        in_(context.input("input")) {}

  StepStatus step(Step& step) noexcept override {
    if (!step.peek(in_)) return step.ended(in_) ? batches_.end(step) : StepStatus::kNoInput;
    const std::span<std::byte> slot = step.open_batch();
    if (slot.empty()) return StepStatus::kNoRoom;
    BatchWriter::Rows rows = batches_.under_way(step);
    StepStatus status = StepStatus::kDone;
    bool cut = false;
    for (std::uint64_t i = 0; i < kRowsPerStep && rows.count < kBatchSize && !cut; ++i) {
      const std::optional<Record> record = step.peek(in_);
      if (!record) break;
      if (record->bytes.empty()) {
        cut = rows.count != 0;
      } else {
        slot[rows.count] = record->bytes[0];
        rows.add(*record);
      }
      status = step.consume(*record);
    }
    if (rows.count == kBatchSize) {
      batches_.publish(step, rows);
    } else if (!cut) {
      batches_.keep(step, rows);
    } else if (!batches_.drop(step, rows)) {
      batches_.publish(step, rows);
    }
    return status;
  }

 private:
  BatchWriter batches_;
  InPort in_;
};

struct Writer {
  explicit Writer(const std::string& feed = "") : rig(feed) {
    rig.add_source("letters");
    NodeSpec node;
    node.state_bytes = 16;
    node.inputs = {{.port = "input", .from = "letters.output"}};
    node.outputs = {{.port = "output", .record_type = "batches", .units = UnitRule::kExplicit}};
    node.steps_per_commit = 1;
    node.create = [](const StageContext& context) { return std::make_unique<LetterRows>(context); };
    std::vector<std::string> counters;
    for (const CounterSpec& counter : batch_counters({})) counters.push_back(counter.name);
    rig.add_node("batches", std::move(node), counters);
    rig.build();
  }
  // One record for each letter; '|' is the empty one.
  void feed(const std::string& letters) {
    for (const char letter : letters) {
      rig.feed("letters", {.bytes = letter == '|' ? "" : std::string(1, letter),
                           .tag = {static_cast<std::uint64_t>(letter), 7}});
    }
  }
  void finish() {
    rig.finish("letters");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  std::vector<std::string> batches() {
    std::vector<std::string> all;
    for (const RigBatch& batch : rig.batches()) {
      all.emplace_back(reinterpret_cast<const char*>(batch.bytes.data()), batch.rows);
      EXPECT_EQ(batch.token[1], batch.rows);
    }
    return all;
  }
  std::uint64_t counter(std::string_view name) const { return rig.counter("batches", name); }
  LaneRig rig;
};

TEST(BatchWriter, PublishesFullBatchesAndWhatIsLeftAtTheEnd) {
  Writer writer;
  writer.feed("abcdefghij");
  writer.rig.run();
  EXPECT_THAT(writer.batches(), ElementsAre("abcd", "efgh")) << "two rows wait for more";
  writer.finish();
  EXPECT_THAT(writer.batches(), ElementsAre("abcd", "efgh", "ij"));
  EXPECT_EQ(writer.counter("rows"), 10U);
  EXPECT_EQ(writer.counter("batches"), 3U);
  EXPECT_EQ(writer.counter("rows_dropped"), 0U);
}

TEST(BatchWriter, LeavesTheRemainderOutIfAsked) {
  Writer writer("drop_remainder: true");
  writer.feed("abcdefghij");
  writer.finish();
  EXPECT_THAT(writer.batches(), ElementsAre("abcd", "efgh"));
  EXPECT_EQ(writer.counter("rows"), 10U);
  EXPECT_EQ(writer.counter("batches"), 2U);
  EXPECT_EQ(writer.counter("rows_dropped"), 2U);
}

TEST(BatchWriter, EndsWithoutABatchIfNothingCame) {
  Writer writer;
  writer.finish();
  EXPECT_THAT(writer.batches(), IsEmpty());
  EXPECT_EQ(writer.counter("batches"), 0U);
}

TEST(BatchWriter, BeginsAnewAfterABatchThatWasCut) {
  Writer writer;
  writer.feed("ab|cdefg|h");
  writer.finish();
  EXPECT_THAT(writer.batches(), ElementsAre("ab", "cdef", "g", "h"));
  Writer dropping("drop_remainder: true");
  dropping.feed("ab|cdefg|h");
  dropping.finish();
  EXPECT_THAT(dropping.batches(), ElementsAre("cdef"));
  EXPECT_EQ(dropping.counter("rows"), 8U);
  EXPECT_EQ(dropping.counter("rows_dropped"), 4U);
}

// The token tells two batches apart by their rows and the order of these; whoever died meanwhile.
TEST(BatchWriter, GivesEachBatchTheLineageOfItsRows) {
  const auto token = [](const std::string& letters) {
    Writer writer;
    writer.feed(letters);
    writer.finish();
    return writer.rig.batches().front().token[0];
  };
  EXPECT_EQ(token("abcd"), token("abcdefgh"));
  EXPECT_NE(token("abcd"), token("abdc"));
  EXPECT_NE(token("abcd"), token("abc"));
}

TEST(BatchWriterRestart, NeitherLosesNorRepeatsARow) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Writer writer("feed_output { slots: 3 }");
    writer.feed("abcdefgh|ijklmnopq|rs");
    writer.rig.finish("letters");
    std::mt19937_64 random(seed);
    writer.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(writer.rig.all_finished()) << "seed " << seed;
    EXPECT_EQ(writer.counter("rows"), 19U) << "seed " << seed;
    std::vector<std::uint64_t> tokens;
    for (const RigBatch& batch : writer.rig.batches()) tokens.push_back(batch.token[0]);
    return std::pair(writer.batches(), tokens);
  };
  const auto undisturbed = run(0, 0);
  EXPECT_THAT(undisturbed.first, Not(IsEmpty()));
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    ASSERT_EQ(run(seed, 0.3), undisturbed) << "seed " << seed;
  }
}

TEST(BatchWriterDamage, MoreRowsThanABatchHasEndTheProcess) {
  Writer writer;
  writer.feed("ab");
  writer.rig.run();
  writer.feed("cd");
  for (const std::uint64_t rows : {kBatchSize, kBatchSize + 1, ~std::uint64_t{0}}) {
    writer.rig.damage_state_word("batches", 0, rows);
    EXPECT_DEATH(writer.rig.run(), "rows < batch_size_");
  }
}

TEST(BatchCounters, StandBeforeThoseOfTheStage) {
  std::vector<std::string> names;
  for (const CounterSpec& counter : batch_counters({{"tokens", "Tokens."}})) {
    names.push_back(counter.name);
  }
  EXPECT_THAT(names, ElementsAre("rows", "batches", "rows_dropped", "tokens"));
}

}  // namespace
}  // namespace ringfeed
