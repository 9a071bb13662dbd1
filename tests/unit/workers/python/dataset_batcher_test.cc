// The stage dataset_batcher, with a dataset written here instead of an interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ringfeed/shm/requests.h"
#include "tests/support/rig/lane_rig.h"
#include "workers/python/dataset_function.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Places = std::vector<std::uint32_t>;

// What a trainer has: a table, in which it asks for what it likes.
class Table {
 public:
  explicit Table(std::uint64_t entries = 64, std::uint64_t heap = 4096)
      : bytes_(sizeof(shm::RequestsHead) + entries * sizeof(shm::RequestEntry) + heap),
        heap_(bytes_.size() - heap) {
    auto* const head = reinterpret_cast<shm::RequestsHead*>(bytes_.data());
    *head = {.magic = shm::kRequestsMagic,
             .entry_count = entries,
             .bytes = bytes_.size(),
             .lane_count = 1,
             .zero = {}};
  }
  void ask(std::uint64_t number, const std::string& text, std::uint64_t kind = 1) {
    std::memcpy(bytes_.data() + heap_, text.data(), text.size());
    shm::put_request(bytes_.data(), number, heap_, text.size(), kind);
    heap_ += text.size();
  }
  void damage(std::uint64_t number) { shm::put_request(bytes_.data(), number, 1 << 30, 1, 1); }
  [[nodiscard]] std::span<std::byte> all() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t heap_;
};

// A batch has its number, its request as a number, and how many this lane has made before: of every
// third batch the state, with as many bytes behind it as that, and `padding`; for each other one a
// byte is appended.
class Counting final : public DatasetFunction {
 public:
  struct Calls {
    std::vector<std::uint64_t> numbers;
    std::vector<Places> condemned;
    std::function<void(std::uint64_t number)> hook = {};  // in the middle of a batch
    std::uint64_t padding = 0;                            // bytes
  };
  Counting(std::span<std::byte> table, Calls& calls) : table_(table), calls_(calls) {}

  std::span<std::byte> requests() override { return table_; }
  void begin(std::span<const std::byte> state) override {
    if (state.empty()) return;
    std::memcpy(&made_, state.data(), sizeof made_);
    ASSERT_GE(state.size(), state_bytes());
    const std::span<const std::byte> appended = state.subspan(state_bytes());
    EXPECT_LT(appended.size(), 3U);
    for (const std::byte one : appended) EXPECT_EQ(one, std::byte(++made_));
  }
  Outcome run(const Request& request, const std::function<void(std::uint32_t)>& works_on) override {
    calls_.numbers.push_back(request.number);
    calls_.condemned.emplace_back(request.condemned.begin(), request.condemned.end());
    works_on(3);
    if (calls_.hook) calls_.hook(request.number);
    Outcome outcome;
    outcome.head[0] = request.number;
    const std::string text(reinterpret_cast<const char*>(request.bytes.data()),
                           request.bytes.size());
    outcome.head[1] = text.empty() ? 0 : static_cast<std::uint64_t>(std::stoll(text));
    outcome.head[2] = made_;
    outcome.head[3] = request.slot;
    ++made_;
    outcome.appended = made_ % 3 != 1;
    if (outcome.appended) {
      outcome.state.emplace(1, std::byte(made_));
    } else {
      outcome.state.emplace(state_bytes());
      std::memcpy(outcome.state->data(), &made_, sizeof made_);
    }
    outcome.samples = 5;
    outcome.left_out = request.condemned.size();
    outcome.fetch_ns = 3000;
    return outcome;
  }

 private:
  [[nodiscard]] std::uint64_t state_bytes() const { return sizeof made_ + made_ + calls_.padding; }

  std::span<std::byte> table_;
  Calls& calls_;
  std::uint64_t made_ = 0;
};

// The kernel reserves nothing behind so many bytes of a segment.
class MemoryThatDoesNotGrow {
 public:
  explicit MemoryThatDoesNotGrow(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit now{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~MemoryThatDoesNotGrow() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    static_cast<void>(std::signal(SIGXFSZ, handler_));
  }
  MemoryThatDoesNotGrow(const MemoryThatDoesNotGrow&) = delete;
  MemoryThatDoesNotGrow& operator=(const MemoryThatDoesNotGrow&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

struct Trainer {
  explicit Trainer(std::uint32_t processes = 1, bool planned = false) : table(planned ? 1 : 64) {
    set_dataset_opener([this](const StageContext&) {
      return Result<std::unique_ptr<DatasetFunction>>(
          std::make_unique<Counting>(table.all(), calls));
    });
    rig.add_stage(fmt::format(
        "name: 'd' dataset_batcher {{ processes: {} parent_socket: '/p.sock' planned: {} }}",
        processes, planned));
    rig.build();
  }
  ~Trainer() { set_dataset_opener({}); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void rounds(int count = 3) {
    for (int i = 0; i < count; ++i) {
      for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) rig.round(lane);
    }
  }
  // Number, request and place in the lane's row of each batch.
  std::vector<std::vector<std::uint64_t>> got() {
    std::vector<std::vector<std::uint64_t>> all;
    for (const RigBatch& batch : rig.batches()) {
      std::vector<std::uint64_t> head(3);
      std::memcpy(head.data(), batch.bytes.data(), 24);
      all.push_back(head);
    }
    return all;
  }

  Table table;
  Counting::Calls calls;
  LaneRig rig;
};

std::uint64_t key_of(std::uint64_t number, std::uint64_t place) {
  return std::uint64_t{1} << 63 | place << 40 | number;
}

TEST(DatasetBatcher, GoesAsFarAsItsPlanIsWanted) {
  Trainer trainer(2, true);
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, IsEmpty()) << "nobody wants a batch";
  trainer.table.ask(3, "");
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, UnorderedElementsAre(1, 2, 3));
  trainer.table.ask(2, "");
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, SizeIs(3)) << "what is wanted may become less";
  trainer.table.ask(5, "");
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, UnorderedElementsAre(1, 2, 3, 4, 5));
}

TEST(DatasetBatcher, MakesWhatItIsAskedFor) {
  Trainer trainer(2);
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, IsEmpty()) << "nobody has asked";
  trainer.table.ask(1, "10");
  trainer.table.ask(2, "20");
  trainer.table.ask(4, "40");
  trainer.rounds();
  trainer.table.ask(3, "30");
  trainer.table.ask(5, "", shm::kNoMoreRequests);
  trainer.table.ask(6, "", shm::kNoMoreRequests);
  trainer.rounds();
  EXPECT_TRUE(trainer.rig.all_finished());
  auto got = trainer.got();
  std::ranges::sort(got);
  EXPECT_THAT(got, ElementsAre(ElementsAre(1U, 10U, 0U), ElementsAre(2U, 20U, 0U),
                               ElementsAre(3U, 30U, 1U), ElementsAre(4U, 40U, 1U)));
  EXPECT_EQ(trainer.rig.counter("d", "samples"), 20U);
  EXPECT_EQ(trainer.rig.counter("d", "fetch_us"), 12U);
}

// Whatever dies between two rounds, and in the middle of a batch: the same batches.
TEST(DatasetBatcher, GivesTheSameWhateverHappens) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Trainer trainer(3);
    for (std::uint64_t number = 1; number <= 48; ++number) {
      trainer.table.ask(number, std::to_string(7 * number));
    }
    for (std::uint64_t number = 49; number <= 51; ++number) {
      trainer.table.ask(number, "", shm::kNoMoreRequests);
    }
    std::mt19937_64 random(seed);
    restarts == 0 ? trainer.rig.run() : trainer.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(trainer.rig.all_finished());
    auto got = trainer.got();
    std::ranges::sort(got);
    return got;
  };
  const auto undisturbed = run(0, 0);
  EXPECT_THAT(undisturbed, SizeIs(48U));
  for (std::uint64_t seed = 1; seed <= 30; ++seed) ASSERT_EQ(run(seed, 0.4), undisturbed) << seed;
}

TEST(DatasetBatcher, NamesTheSampleItWorksOn) {
  Trainer trainer;
  std::vector<std::uint64_t> keys;
  trainer.calls.hook = [&](std::uint64_t) {
    keys.push_back(trainer.rig.page(0).attempt_key.load());
  };
  trainer.table.ask(1, "1");
  trainer.table.ask(2, "2");
  trainer.rounds();
  EXPECT_THAT(keys, ElementsAre(key_of(1, 3), key_of(2, 3)));
  EXPECT_EQ(trainer.rig.page(0).attempt_key.load(), 0U);
}

TEST(DatasetBatcher, RemembersWhatIsCondemnedUntilItsBatchIsMade) {
  Trainer trainer;
  trainer.table.ask(1, "1");
  trainer.rig.condemn(0, key_of(1, 2));
  trainer.rig.round(0);
  EXPECT_THAT(trainer.calls.numbers, IsEmpty()) << "it is noted first";
  trainer.rig.condemn(0, key_of(1, DatasetFunction::kTogether));
  trainer.rounds();
  trainer.table.ask(2, "2");
  trainer.rounds();
  EXPECT_THAT(trainer.calls.condemned,
              ElementsAre(ElementsAre(2U, DatasetFunction::kTogether), IsEmpty()));
  EXPECT_EQ(trainer.rig.counter("d", "skipped_poison"), 2U);
  EXPECT_THAT(trainer.rig.log("sample_condemned"), SizeIs(2U));
}

TEST(DatasetBatcher, IgnoresAVerdictOverAnotherBatch) {
  Trainer trainer;
  trainer.rig.condemn(0, key_of(9, 2));
  trainer.table.ask(1, "1");
  trainer.rounds();
  EXPECT_THAT(trainer.calls.condemned, ElementsAre(IsEmpty()));
}

TEST(DatasetBatcher, UsesSlotsThatAreFreeAlone) {
  Trainer trainer(2);
  for (std::uint64_t number = 1; number <= 40; ++number) trainer.table.ask(number, "1");
  for (int i = 0; i < 40; ++i) {
    trainer.rounds(1);
    (void)trainer.rig.batches();
  }
  for (const RigBatch& batch : trainer.rig.batches()) {
    std::uint64_t head[4];
    std::memcpy(head, batch.bytes.data(), sizeof head);
    EXPECT_LT(head[3], trainer.rig.feed_geometry().slots);
    EXPECT_EQ(head[3] % 2, (head[0] - 1) % 2) << "a lane has slots of its own";
  }
}

// The dataset has moved on: asked again, it would give what comes after the batch. What it has
// written lies beside the slot that it was told.
TEST(DatasetBatcher, KeepsWhatWasMadeUntilThereIsMemoryForItsState) {
  Trainer trainer;
  for (std::uint64_t number = 1; number <= 6; ++number) {
    trainer.table.ask(number, std::to_string(10 * number));
  }
  trainer.rig.hold_batches(true);
  trainer.calls.hook = [&](std::uint64_t number) {
    if (number == 4) trainer.calls.padding = 8 << 20;
  };
  {
    const MemoryThatDoesNotGrow limit(4 << 20);
    trainer.rounds(6);
    EXPECT_EQ(trainer.rig.counter("d", "batches"), 3U);
    trainer.rig.hold_batches(false);
    trainer.rounds(6);
    EXPECT_THAT(trainer.calls.numbers, ElementsAre(1U, 2U, 3U, 4U));
    EXPECT_GE(trainer.rig.counter("d", "growths_refused"), 2U);
    EXPECT_THAT(trainer.rig.note("d"), HasSubstr("waits for memory"));
  }
  trainer.rounds(6);
  trainer.rig.restart_all();
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, ElementsAre(1U, 2U, 3U, 4U, 5U, 6U));
  EXPECT_THAT(trainer.got(), ElementsAre(ElementsAre(1U, 10U, 0U), ElementsAre(2U, 20U, 1U),
                                         ElementsAre(3U, 30U, 2U), ElementsAre(4U, 40U, 3U),
                                         ElementsAre(5U, 50U, 4U), ElementsAre(6U, 60U, 5U)));
  for (const RigBatch& batch : trainer.rig.batches()) {
    std::uint64_t head[4];
    std::memcpy(head, batch.bytes.data(), sizeof head);
    EXPECT_EQ(head[3], batch.slot) << batch.number;
  }
}

// A process that waits for memory and dies: the next one makes that batch from the state before it.
TEST(DatasetBatcher, MakesABatchAgainInANewProcessThatFindsMemory) {
  Trainer trainer;
  for (std::uint64_t number = 1; number <= 4; ++number) trainer.table.ask(number, "1");
  trainer.calls.hook = [&](std::uint64_t number) {
    if (number == 4) trainer.calls.padding = 8 << 20;
  };
  {
    const MemoryThatDoesNotGrow limit(4 << 20);
    trainer.rounds(6);
  }
  trainer.calls.padding = 0;
  trainer.rig.restart_all();
  trainer.rounds();
  EXPECT_THAT(trainer.calls.numbers, ElementsAre(1U, 2U, 3U, 4U, 4U));
  EXPECT_THAT(trainer.got(), ElementsAre(ElementsAre(1U, 1U, 0U), ElementsAre(2U, 1U, 1U),
                                         ElementsAre(3U, 1U, 2U), ElementsAre(4U, 1U, 3U)));
}

TEST(DatasetBatcher, EndsTheFeedForARequestThatLeavesItsTable) {
  Trainer trainer;
  trainer.table.damage(1);
  EXPECT_DEATH(trainer.rounds(), "a stage has ended the feed");
}

TEST(DatasetBatcher, RefusesMemoryThatIsNoTable) {
  const Trainer trainer;
  std::vector<std::byte> none(4096);
  EXPECT_FALSE(shm::are_requests(none.data(), none.size()));
  Table table;
  EXPECT_TRUE(shm::are_requests(table.all().data(), table.all().size()));
  EXPECT_FALSE(shm::are_requests(table.all().data(), table.all().size() - 64));
  auto* const head = reinterpret_cast<shm::RequestsHead*>(table.all().data());
  const std::uint64_t entries = head->entry_count;
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1} << 40}) {
    head->entry_count = count;
    EXPECT_FALSE(shm::are_requests(table.all().data(), table.all().size())) << count;
  }
  head->entry_count = entries;
  for (const std::uint64_t lanes : {std::uint64_t{0}, std::uint64_t{3}, entries + 1}) {
    head->lane_count = lanes;
    EXPECT_FALSE(shm::are_requests(table.all().data(), table.all().size())) << lanes;
  }
}

}  // namespace
}  // namespace ringfeed
