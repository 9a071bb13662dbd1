// The stage remote_files, with listings written here instead of a store.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "proto/plan.pb.h"
#include "ringfeed/worker/sample.h"
#include "tests/support/rig/lane_rig.h"
#include "workers/files/file_records.h"
#include "workers/programs/all.h"
#include "workers/python/object_check.h"
#include "workers/python/remote_settings.h"
#include "workers/python/source_function.h"
#include "workers/runtime/registry.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Object {
  std::string path;  // "": the listing is complete
  std::int64_t version = 1;
};

// What Python would say, from the beginning in each process, and how it was asked.
struct ListedStore {
  std::vector<Object> objects;
  std::vector<std::string> cursors = {};
  int failures = 0;  // before anything else
};

class Listing final : public SourceFunction {
 public:
  explicit Listing(ListedStore& store) : store_(store) {}
  void begin(std::uint64_t, const std::vector<std::byte>& cursor, std::uint64_t) override {
    store_.cursors.emplace_back(reinterpret_cast<const char*>(cursor.data()), cursor.size());
  }
  Items next(std::size_t most) override {
    Items items;
    if (store_.failures > 0) {
      --store_.failures;
      return {.error = "RemoteError", .traceback = "Traceback\nRemoteError: the store is away\n"};
    }
    for (; next_ < store_.objects.size() && items.items.size() < most; ++next_) {
      const auto& [path, version] = store_.objects[next_];
      const std::array fields{
          SampleField{
              .name = "path", .dtype = SampleDtype::kBytes, .data = std::as_bytes(std::span(path))},
          SampleField{.name = "version",
                      .dtype = SampleDtype::kInt64,
                      .data = std::as_bytes(std::span(&version, 1))}};
      SourceFunction::Item& item = items.items.emplace_back();
      item.sample.resize(*sample_bytes(fields));
      write_sample(item.sample, fields);
      item.cursor = {std::byte{1}};
    }
    return items;
  }

 private:
  ListedStore& store_;
  std::size_t next_ = 0;
};

struct RemoteStage {
  explicit RemoteStage(ListedStore given, const std::string& feed)
      : store(std::move(given)), rig(feed) {
    set_source_opener([this](const StageContext&) {
      return Result<std::unique_ptr<SourceFunction>>(std::make_unique<Listing>(store));
    });
    rig.add_stage("name: 'r' remote_files { url: 's3://b/' cache: '/c' cache_bytes: 9 }");
    rig.add_sink("out", "r");
    rig.build();
  }
  ~RemoteStage() { set_source_opener({}); }
  RemoteStage(const RemoteStage&) = delete;
  RemoteStage& operator=(const RemoteStage&) = delete;

  [[nodiscard]] std::vector<std::string> got() const {
    std::vector<std::string> all;
    for (const RigRecord& record : rig.got("out")) {
      all.push_back(record.user == kScanCompleteRecord ? "complete" : record.bytes);
    }
    return all;
  }
  ListedStore store;
  LaneRig rig;
};

TEST(RemoteFiles, NamesTheListingAndEndsInAFiniteRun) {
  RemoteStage stage({.objects = {{"/c/1"}, {"/c/2"}, {""}}}, "epochs: 3");
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre("/c/1", "/c/2", "complete"));
  EXPECT_EQ(stage.rig.counter("r", "files_found"), 2U);
  EXPECT_THAT(stage.store.cursors, ElementsAre("0"));
}

TEST(RemoteFiles, ASuccessorLooksForWishesThoughItsLaneHasEnded) {
  RemoteStage stage({.objects = {{"/c/1"}, {""}}}, "epochs: 1");
  stage.rig.run();
  int opened = 0;
  set_source_opener([&](const StageContext&) {
    ++opened;
    return Result<std::unique_ptr<SourceFunction>>(std::make_unique<Listing>(stage.store));
  });
  stage.rig.restart("r");
  EXPECT_EQ(opened, 1);
  stage.rig.run();
  EXPECT_THAT(stage.got(), ElementsAre("/c/1", "complete"));
}

TEST(RemoteFiles, AddsWhatIsNewOrHasChangedInAnEndlessRun) {
  RemoteStage stage({.objects = {{"/c/1"}, {"/c/2", 0}, {""}}}, "epochs: 0");
  stage.rig.run();
  EXPECT_THAT(stage.got(), ElementsAre("/c/1", "/c/2", "complete"));
  stage.store.objects.push_back({"/c/3"});
  stage.store.objects.push_back({"/c/1", 2});
  stage.store.objects.push_back({""});
  stage.rig.run();
  EXPECT_THAT(stage.got(), ElementsAre("/c/1", "/c/2", "complete", "/c/3", "/c/1"));
  // A successor lists again: the store has them as they were given.
  stage.rig.restart("r");
  stage.store.objects = {{"/c/1", 2}, {"/c/2", 7}, {"/c/3"}, {""}, {"/c/2", 8}, {""}};
  stage.rig.run();
  EXPECT_THAT(stage.got(), ElementsAre("/c/1", "/c/2", "complete", "/c/3", "/c/1", "/c/2"));
  EXPECT_THAT(stage.store.cursors, ElementsAre("0", "all"));
}

TEST(RemoteFiles, GivesEachOnceWhoeverIsRestarted) {
  ListedStore store;
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    store.objects.push_back({"/c/" + std::to_string(i)});
    expected.push_back(store.objects.back().path);
  }
  store.objects.push_back({""});
  expected.emplace_back("complete");
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    RemoteStage stage(store, "epochs: 1");
    std::mt19937_64 random(seed);
    stage.rig.run_with_restarts(random, 0.2);
    EXPECT_EQ(stage.got(), expected) << seed;
  }
}

TEST(RemoteFiles, TriesAListingThatFailsAndSaysSo) {
  RemoteStage stage({.objects = {{"/c/1"}, {""}}, .failures = 2}, "epochs: 1");
  ASSERT_TRUE(stage.rig.run_until([&] {
    stage.rig.round(0);
    stage.rig.round(1);
    return stage.rig.all_finished();
  }));
  EXPECT_THAT(stage.got(), ElementsAre("/c/1", "complete"));
  EXPECT_THAT(stage.rig.log("the store is away"), SizeIs(2));
  EXPECT_EQ(stage.rig.counter("r", "listing_failed"), 0U);
}

TEST(RemoteFiles, LeavesOutWhatIsTooLongForAPath) {
  RemoteStage stage({.objects = {{"/c/" + std::string(5000, 'x')}, {"/c/2"}, {""}}}, "epochs: 1");
  stage.rig.run();
  EXPECT_THAT(stage.got(), ElementsAre("/c/2", "complete"));
  EXPECT_EQ(stage.rig.counter("r", "files_unreadable"), 1U);
}

StagePlan planned(const std::string& stage) {
  Registry registry;
  register_all_stages(registry);
  DataLoaderConfig config;
  RF_CHECK(google::protobuf::TextFormat::ParseFromString(
               "epochs: 1 stages { name: 'r' " + stage + " }", &config),
           stage.size());
  return plan_pipeline(config, registry).stages(0);
}
std::vector<std::string> problems_of(const std::string& stage) {
  std::vector<std::string> all;
  const StagePlan plan = planned(stage);
  for (const PlanProblem& problem : plan.problems()) {
    all.push_back(problem.field() + ": " + problem.text());
  }
  return all;
}

TEST(RemoteFiles, AreWhatAFilePathProviderIsThatWasGivenUrls) {
  const std::string cache = " cache: '/c' cache_bytes: 5 ";
  const StagePlan plan =
      planned("file_path_provider { directory: 's3://b/games' pattern: '*.tar'" + cache + "}");
  EXPECT_THAT(plan.problems(), IsEmpty());
  ASSERT_THAT(plan.nodes(), SizeIs(1));
  EXPECT_EQ(plan.nodes(0).program(), "ringfeed-worker-python");
  EXPECT_EQ(planned("file_path_provider { directory: '/data' }").nodes(0).program(), "");

  const auto urls = [&](const std::string& settings) {
    StageConfig config;
    RF_CHECK(google::protobuf::TextFormat::ParseFromString(
                 "name: 'r' file_path_provider { " + settings + cache + "}", &config),
             settings.size());
    return remote_settings(config)->urls;
  };
  EXPECT_THAT(urls("directory: 's3://b/games'"), ElementsAre("s3://b/games/"));
  EXPECT_THAT(urls("directory: 's3://b/games/' pattern: '*.tar' pattern: 'gs://c/x'"),
              ElementsAre("s3://b/games/*.tar", "gs://c/x"));
  EXPECT_THAT(urls("list: 'https://host/list'"), IsEmpty());
}

TEST(RemoteFiles, SaysWhatIsMissing) {
  EXPECT_THAT(problems_of("remote_files {}"),
              ElementsAre(HasSubstr("url: url is not set"), HasSubstr("cache: cache is not set"),
                          HasSubstr("cache_bytes: cache_bytes is not set")));
  EXPECT_THAT(problems_of("file_path_provider { directory: 's3://b/' }"),
              ElementsAre(HasSubstr("cache: cache is not set"),
                          HasSubstr("cache_bytes: cache_bytes is not set")));
  const std::string cache = " cache: '/c' cache_bytes: 5 ";
  EXPECT_THAT(problems_of("remote_files { url: '/data'" + cache + "storage_options: '[]' }"),
              ElementsAre(HasSubstr("url[0]: \"/data\" is no URL"),
                          HasSubstr("storage_options: storage_options are no JSON object")));
  EXPECT_THAT(problems_of("file_path_provider { directory: '/d' pattern: 's3://b/*'" + cache + "}"),
              ElementsAre(HasSubstr("directory: /d is of this host, and the stage is given URLs")));
  EXPECT_THAT(problems_of("file_path_provider { directory: 's3://b' pattern: '/d/*'" + cache + "}"),
              ElementsAre(HasSubstr("pattern[0]: /d/* is of this host")));
  EXPECT_THAT(problems_of("file_path_provider { directory: '/d' cache_bytes: 5 }"),
              ElementsAre(HasSubstr("cache_bytes: cache_bytes is for URLs")));
}

// What Python is asked to make, and what it says of it.
TEST(RemoteFiles, AsksPythonWhetherItCanRead) {
  std::vector<ObjectSettings> asked;
  set_object_check([&asked](const ObjectSettings& settings) {
    asked.push_back(settings);
    return std::string("RemoteError: pip install s3fs");
  });
  EXPECT_THAT(problems_of("remote_files { url: 's3://b/' cache: '/c' cache_bytes: 5 fetches: 3 "
                          "storage_options: '{\"anon\": true}' }"),
              ElementsAre(": RemoteError: pip install s3fs"));
  set_object_check({});
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_EQ(asked[0].object, "ringfeed.worker.files:Files");
  EXPECT_THAT(asked[0].options,
              AllOf(HasSubstr("\"urls\":[\"s3://b/\"]"), HasSubstr("\"cache_bytes\":5"),
                    HasSubstr("\"storage_options\":{\"anon\":true}"), HasSubstr("\"threads\":3"),
                    HasSubstr("\"look_again_s\":null")));
}

}  // namespace
}  // namespace ringfeed
