// What every kind of stage declares of its counters (ringfeed/worker/counters.h), and how that gets
// into the plan. That a stage asks for no other ones is checked wherever one is made: the process
// ends.
#include "ringfeed/worker/counters.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <set>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/counters.h"
#include "workers/programs/all.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/registry.h"

namespace ringfeed {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

Registry all_kinds() {
  Registry registry;
  register_all_stages(registry);
  return registry;
}

StagePlan plan_of(const std::string& stage_text) {
  DataLoaderConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(stage_text, config.add_stages()));
  return plan_pipeline(config, all_kinds()).stages(0);
}

const CounterPlan& counter(const StagePlan& plan, const std::string& name) {
  static const CounterPlan none;
  const auto found =
      std::ranges::find_if(plan.counters(), [&](const auto& each) { return each.name() == name; });
  return found == plan.counters().end() ? none : *found;
}

class CountersOf : public ::testing::TestWithParam<std::string> {
 protected:
  const StageType& type() const { return *registry_.find(GetParam()); }
  Registry registry_ = all_kinds();
};

TEST_P(CountersOf, EveryKindHaveANameThatFitsAndASentence) {
  std::set<std::string> names;
  std::set<std::string> shown;
  for (const CounterSpec& each : type().counters) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name << " is declared twice";
    EXPECT_TRUE(shown.insert(each.shown_as.empty() ? each.name : each.shown_as).second)
        << each.name << " is shown under a name that another one has";
    EXPECT_LT(each.name.size(), sizeof(shm::NamedCounter::name));
    // Exceptions of Python keep their names: skipped_ValueError.
    const bool of_python = each.name.starts_with("skipped_") && each.name.ends_with("Error");
    const std::string_view letters = of_python ? "abcdefghijklmnopqrstuvwxyz0123456789_"
                                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                               : "abcdefghijklmnopqrstuvwxyz0123456789_";
    EXPECT_EQ(each.name.find_first_not_of(letters), std::string::npos) << each.name;
    ASSERT_THAT(each.help, Not(IsEmpty())) << each.name;
    EXPECT_EQ(each.help.back(), '.') << each.help;
    EXPECT_EQ(each.help.find('\n'), std::string::npos) << each.help;
    for (const CounterSpec& everywhere : LaneRuntime::own_counters()) {
      EXPECT_NE(each.name, everywhere.name) << "every stage has that one";
    }
  }
  EXPECT_LE(counter_names(type(), StageConfig()).size() + LaneRuntime::own_counters().size(),
            shm::kNamedCounters);
}

TEST_P(CountersOf, EveryKindReferToSettingsAndCountersThatThereAre) {
  const auto* const own = StageConfig::descriptor()->FindFieldByName(type().kind)->message_type();
  for (const CounterSpec& each : type().counters) {
    EXPECT_THAT(counter_names(type(), StageConfig()), IsSupersetOf(each.sum_of)) << each.name;
    if (each.capacity.setting.empty()) continue;
    EXPECT_EQ(each.kind, kGauge) << each.name << " has a capacity";
    const auto* const setting = own->FindFieldByName(each.capacity.setting);
    ASSERT_NE(setting, nullptr) << each.capacity.setting;
    EXPECT_EQ(setting->type(), google::protobuf::FieldDescriptor::TYPE_UINT64);
  }
  for (const MetricText& text : type().texts) {
    const auto* const setting = own->FindFieldByName(text.setting);
    ASSERT_NE(setting, nullptr) << text.setting;
    EXPECT_EQ(setting->type(), google::protobuf::FieldDescriptor::TYPE_STRING);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CountersOf, ::testing::ValuesIn([] {
                           const Registry registry = all_kinds();
                           std::vector<std::string> kinds;
                           for (const StageType& type : registry.types())
                             kinds.push_back(type.kind);
                           return kinds;
                         }()),
                         [](const auto& kind) { return kind.param; });

TEST(CounterPlans, SayWhatIsCountedAndWhatItsCapacityIs) {
  const StagePlan pool = plan_of(
      "name: 'pool' shuffling_chunk_pool { chunk_pool_size: 900 chunk_anchor: 'games-7.tar' }");
  const CounterPlan& window = counter(pool, "chunks_in_window");
  EXPECT_EQ(window.help(), "Chunks in the window.");
  EXPECT_TRUE(window.gauge());
  EXPECT_EQ(window.shown_as(), "chunks_current");
  EXPECT_EQ(window.capacity(), 900U);
  EXPECT_EQ(window.capacity_shown_as(), "chunks_capacity");
  EXPECT_FALSE(window.capacity_each_lane());
  EXPECT_FALSE(counter(pool, "draws").gauge());
  EXPECT_FALSE(counter(pool, "store_bytes").has_capacity()) << "there is no store";
  ASSERT_EQ(pool.texts_size(), 1);
  EXPECT_EQ(pool.texts(0).configured(), "games-7.tar");

  const StagePlan sampler = plan_of("name: 's' shuffling_frame_sampler {}");
  EXPECT_EQ(counter(sampler, "frames_held").capacity(),
            ShufflingFrameSamplerConfig().reservoir_size_per_thread());
  EXPECT_TRUE(counter(sampler, "frames_held").capacity_each_lane());

  const StagePlan loader = plan_of("name: 'l' chunk_source_loader {}");
  EXPECT_THAT(counter(loader, "skipped_files").sum_of(), Contains("skipped_empty"));
}

TEST(CounterPlans, HaveThoseThatFollowFromTheConfigurationAndThoseOfEveryStage) {
  const StagePlan plan = plan_of(
      "name: 's' chunk_source_splitter { outputs { name: 'train' } outputs { name: 'test' } }");
  std::vector<std::string> names;
  for (const CounterPlan& each : plan.counters()) {
    names.push_back(each.name());
    EXPECT_TRUE(each.listed()) << each.name() << ": no name of the kind's own";
  }
  EXPECT_THAT(names, ElementsAre("chunks_train", "chunks_test", "dead_letters", "growths_refused"));
}

}  // namespace
}  // namespace ringfeed
