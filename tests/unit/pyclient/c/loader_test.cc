// The specification of ringfeed.hpp: owners that give back what they own, and a loader of its own.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed.hpp"
#include "tests/support/fakes/fake_feed.h"
#include "tests/support/rig/careful.h"

namespace ringfeed::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ringfeed::AttachOptions options_for(const FakeFeed& fake) {
  ringfeed::AttachOptions options;
  options.feed = fake.options().feed;
  options.socket_path = fake.socket_path();
  options.timeout_ms = kPatienceMs;
  return options;
}

rf_status status_of(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const ringfeed::ClientError& error) {
    if (text != nullptr) *text = error.what();
    return error.status();
  }
  return RF_OK;
}

TEST(CppFeed, GivesEachBatchBackWithItsOwner) {
  FakeFeed fake({.slots = 1, .max_hold = 1});
  ringfeed::Feed feed(options_for(fake));
  for (std::uint64_t s = 1; s <= 10; ++s) {
    ASSERT_EQ(fake.publish(1), 1U);
    std::optional<ringfeed::Batch> batch = feed.next(kPatienceMs);
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->seq(), s);
    const std::span<const float> x = batch->tensor<float>("x");
    ASSERT_EQ(x.size(), 3U * batch->rows());
    EXPECT_EQ(x[4], static_cast<float>(1000 * s + 4));
    EXPECT_EQ(batch->tensor<std::int64_t>("id")[0], static_cast<std::int64_t>(s));
  }
  fake.close();
  EXPECT_FALSE(feed.next(kPatienceMs));
}

// Without waiting for a batch: they are all there.
TEST(CppFeed, HearsWhatIsLeftOutWithItsNextBatch) {
  FakeFeed fake;
  std::vector<std::string> heard;
  ringfeed::AttachOptions options = options_for(fake);
  options.on_notice = [&](const rf_notice& notice) {
    EXPECT_EQ(notice.kind, static_cast<std::uint32_t>(RF_NOTICE_LEFT_OUT));
    heard.emplace_back(notice.text);
  };
  ringfeed::Feed feed(options);
  fake.publish(3);
  EXPECT_TRUE(feed.next(kPatienceMs));
  fake.send_event();
  EXPECT_TRUE(feed.next(kPatienceMs));
  EXPECT_THAT(heard, ElementsAre());
  fake.send_event("5 % of all samples");
  EXPECT_TRUE(feed.next(kPatienceMs));
  EXPECT_THAT(heard, ElementsAre("feed " + options.feed + ": 5 % of all samples"));
}

TEST(CppFeed, ABatchMayOutliveItsFeedAndBeMoved) {
  FakeFeed fake({.checksum = true});
  fake.publish(1);
  std::optional<ringfeed::Batch> kept;
  {
    ringfeed::Feed feed(options_for(fake));
    std::optional<ringfeed::Batch> batch = feed.next(kPatienceMs);
    ASSERT_TRUE(batch);
    kept = std::move(batch);
    ringfeed::Feed moved = std::move(feed);
  }
  EXPECT_EQ(fake.members(), 1U);
  EXPECT_EQ(kept->tensor<float>("x")[0], 1000.0F);
  kept->verify();
  kept->release();
  EXPECT_THROW(kept->verify(), ringfeed::ClientError);
  EXPECT_EQ(fake.members(), 0U);
  EXPECT_THROW(static_cast<void>(kept->tensor<float>("x")), ringfeed::ClientError);
}

TEST(CppFeed, APrivateBatchMayBeWrittenAndTheNextOneIsAsTheFeedWroteIt) {
  FakeFeed fake({.slots = 1, .max_hold = 1});
  ringfeed::AttachOptions options = options_for(fake);
  options.view = RF_VIEW_PRIVATE;
  ringfeed::Feed feed(options);
  for (std::uint64_t s = 1; s <= 5; ++s) {
    ASSERT_EQ(fake.publish(1), 1U);
    std::optional<ringfeed::Batch> batch = feed.next(kPatienceMs);
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->tensor<float>("x")[4], static_cast<float>(1000 * s + 4));
    for (float& x : batch->mutable_tensor<float>("x")) x = -1.0F;
    EXPECT_EQ(batch->tensor<float>("x")[4], -1.0F);
  }
  ASSERT_EQ(fake.publish(1), 1U);
  ringfeed::Feed read_only(options_for(fake));
  std::optional<ringfeed::Batch> batch = read_only.next(kPatienceMs);
  ASSERT_TRUE(batch);
  EXPECT_THROW(static_cast<void>(batch->mutable_tensor<float>("x")), ringfeed::ClientError);
}

TEST(CppFeed, AnArrayHasAsManyItemsAsItsLengthsInThisBatchSay) {
  FakeFeedOptions settings;
  settings.slot_bytes = 128;
  settings.tensors = {{"tokens", "int32", {-1, -2}, 0, 64}, {"total", "int64", {1}, 64, 8}};
  FakeFeed fake(settings);
  ringfeed::Feed feed(options_for(fake));
  for (const std::uint32_t rows : {0U, 1U, 3U}) {
    FakeBatch given{std::vector<std::byte>(128), rows, {5}};
    given.bytes[4] = std::byte{7};
    given.bytes[64] = std::byte{9};
    ASSERT_TRUE(fake.publish(given));
    std::optional<ringfeed::Batch> batch = feed.next(kPatienceMs);
    ASSERT_TRUE(batch);
    const std::span<const std::int32_t> tokens = batch->tensor<std::int32_t>("tokens");
    ASSERT_EQ(tokens.size(), rows * 5U);
    EXPECT_TRUE(tokens.empty() || tokens[1] == 7);
    EXPECT_THAT(batch->shape("tokens"), ElementsAre(rows, 5U));
    EXPECT_THAT(batch->tensor<std::int64_t>("total"), ElementsAre(9));
    EXPECT_THAT(batch->shape("total"), ElementsAre(1U));
    EXPECT_THROW(static_cast<void>(batch->shape("nothing")), ringfeed::ClientError);
  }
}

TEST(CppFeed, TextsAreWhatTheirOffsetsMean) {
  FakeFeedOptions settings;
  settings.slot_bytes = 128;
  settings.tensors = {{"text", "uint8", {-2}, 0, 64}, {"text_offsets", "int64", {-3}, 64, 64}};
  FakeFeed fake(settings);
  ringfeed::Feed feed(options_for(fake));
  const auto publish = [&](std::string_view text, const std::vector<std::int64_t>& ends) {
    FakeBatch given{
        std::vector<std::byte>(128),
        static_cast<std::uint32_t>(ends.size() - 1),
        {static_cast<std::uint32_t>(text.size()), static_cast<std::uint32_t>(ends.size())}};
    std::memcpy(given.bytes.data(), text.data(), text.size());
    std::memcpy(given.bytes.data() + 64, ends.data(), ends.size() * sizeof ends[0]);
    EXPECT_TRUE(fake.publish(given));
    return feed.next(kPatienceMs);
  };
  EXPECT_THAT(publish("onetwo", {0, 3, 3, 6})->strings("text"), ElementsAre("one", "", "two"));
  EXPECT_THAT(publish("", {0})->strings("text"), ElementsAre());
  for (const auto& ends : std::vector<std::vector<std::int64_t>>{{0, 4}, {-1, 1}, {0, 2, 1}}) {
    const std::optional<ringfeed::Batch> batch = publish("abc", ends);
    EXPECT_EQ(status_of([&] { static_cast<void>(batch->strings("text")); }), RF_DAMAGED);
  }
}

TEST(CppFeed, ErrorsCarryTheirStatusAndSentence) {
  FakeFeed fake;
  ringfeed::Feed feed(options_for(fake));
  try {
    feed.next(0);
    FAIL() << "there is no batch";
  } catch (const ringfeed::ClientError& error) {
    EXPECT_EQ(error.status(), RF_TIMEOUT);
    EXPECT_THAT(error.what(), HasSubstr("no batch came in time"));
  }
  fake.publish(1);
  const std::optional<ringfeed::Batch> batch = feed.next(kPatienceMs);
  EXPECT_THROW(static_cast<void>(batch->tensor<double>("x")), ringfeed::ClientError);
  EXPECT_THROW(static_cast<void>(batch->tensor<float>("nothing")), ringfeed::ClientError);
  ringfeed::AttachOptions nobody = options_for(fake);
  nobody.socket_path = fake.socket_dir() + "/nobody.sock";
  nobody.timeout_ms = 0;
  EXPECT_THROW(ringfeed::Feed{nobody}, ringfeed::ClientError);
}

TEST(CppFeed, MetricsOfAnySizeAreGiven) {
  FakeFeed fake;
  ringfeed::Feed feed(options_for(fake));
  MetricsReply metrics;
  ASSERT_TRUE(metrics.ParseFromString(feed.metrics(RF_METRICS_MESSAGE, kPatienceMs)));
  EXPECT_EQ(metrics.feed(), fake.options().feed);
  EXPECT_EQ(status_of([&] { static_cast<void>(feed.metrics(RF_METRICS_JSON, kPatienceMs)); }),
            RF_DAMAGED)
      << "no JSON came";
  // In a packet, in a descriptor, and more of it than the client first has room for.
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{200'000}, std::size_t{3} << 20}) {
    const std::string json(bytes, '7');
    fake.set_metrics(json);
    EXPECT_TRUE(feed.metrics(RF_METRICS_JSON, kPatienceMs) == json) << bytes;
  }
  fake.set_silent(true);
  EXPECT_EQ(status_of([&] { static_cast<void>(feed.metrics(RF_METRICS_JSON, 1)); }), RF_TIMEOUT);
}

// ---- the loader, with the real program ----

const std::string kProgram = RINGFEED_PROGRAMS "/ringfeed";
constexpr std::uint64_t kSampleRows = 324;  // of the four games in tests/data/lc0

std::string files_stage(const std::string& name) {
  return "name: \"" + name +
         "\" file_path_provider { directory: \"" RINGFEED_SOURCE_DIR "/tests/data/lc0\" }";
}

template <typename M>
M message(const std::string& text) {
  M parsed;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parsed)) << text;
  return parsed;
}

// Of every game each position once, or for ever, in batches of 32; a stage in each form.
void add_pipeline(ringfeed::DataLoader& loader, int epochs = 1) {
  loader.add_stages("seed: 5 epochs: " + std::to_string(epochs));
  loader.add_stage(files_stage("files"));
  loader.add_stage(
      message<StageConfig>("name: \"sources\" chunk_source_loader { input: \"files\" }"));
  const std::string bytes =
      message<StageConfig>("name: \"pool\" shuffling_chunk_pool { input: \"sources\" }")
          .SerializeAsString();
  loader.add_stage(std::as_bytes(std::span(bytes)));
  loader.add_stages(R"({"stages": [{"name": "unpacker", "chunkUnpacker": {"input": "pool"}}]})");
  loader.add_stages(message<DataLoaderConfig>(
      "stages { name: \"tensors\" tensor_generator { input: \"unpacker\" batch_size: 32 } }"));
}

TEST(CppLoader, RunsAFeedOfItsOwnToItsEnd) {
  ringfeed::DataLoader loader({}, kProgram);
  add_pipeline(loader);
  loader.start(kPatienceMs);
  const auto pid = static_cast<pid_t>(loader.feed().stats().supervisor_pid);
  const std::filesystem::path socket_dir = loader.socket_dir();
  std::uint64_t rows = 0;
  while (const std::optional<ringfeed::Batch> batch = loader.get_next(kPatienceMs)) {
    EXPECT_EQ(batch->tensor<float>("planes").size(), batch->rows() * std::size_t{112 * 64});
    rows += batch->rows();
  }
  EXPECT_EQ(rows, kSampleRows);
  EXPECT_FALSE(loader.maybe_get_next()) << "the run is over";
  loader.stop();
  EXPECT_NE(careful::kill_one(pid, 0), 0) << "the supervisor still runs";
  EXPECT_FALSE(std::filesystem::exists(socket_dir));
}

TEST(CppLoader, SaysThereAndThenWhatIsWrongWithAStage) {
  ringfeed::DataLoader loader({}, kProgram);
  add_pipeline(loader);
  const std::string before = loader.config();
  std::string text;
  const auto refused = [&](const std::function<void()>& call, const char* why) {
    EXPECT_EQ(status_of(call, &text), RF_INVALID);
    EXPECT_THAT(text, HasSubstr(why));
    EXPECT_EQ(loader.config(), before);
  };
  refused([&] { loader.add_stage("name: \"x\"\n  join_position {}"); }, "stage.textproto:2:3: ");
  refused([&] { loader.add_stage("name: \"x\" join_positions {"); }, "stage.textproto:1:");
  refused([&] { loader.add_stage("name: \"x\" tensor_generator { batch_size: 0 }"); },
          "batch_size is 0");
  refused([&] { loader.add_stage("name: \"pool\" join_positions {}"); }, "'pool'");
  refused([&] { loader.add_stages("sed: 7"); }, "did you mean 'seed'");
  refused([&] { loader.add_stage("{\"name\": 3}"); }, "stage.json:1:");
  refused([&] { loader.add_stage(std::as_bytes(std::span("\xff\xff", 2))); }, "stage.binpb");
  refused([&] { loader.add_stage(message<DataLoaderConfig>("seed: 7")); },
          "give a ringfeed.StageConfig");
  refused([] { ringfeed::DataLoader("seed: x", kProgram); }, "stages.textproto:1:7: ");
  loader.start(kPatienceMs);
  refused([&] { loader.add_stage(files_stage("more")); }, "before start()");
  refused([&] { loader.start(); }, "was already started");
  EXPECT_TRUE(loader.get_next(kPatienceMs)) << "and it runs";
}

TEST(CppLoader, SaysAtTheStartWhatDoesNotFitTogether) {
  ringfeed::DataLoader loader({}, kProgram);
  EXPECT_EQ(status_of([&] { loader.start(kPatienceMs); }), RF_INVALID) << "no stages";
  loader.add_stage("name: \"lonely\" chunk_source_loader { input: \"nobody\" }");
  std::string text;
  EXPECT_EQ(status_of([&] { loader.start(kPatienceMs); }, &text), RF_INVALID);
  EXPECT_THAT(text, HasSubstr("nobody"));
}

TEST(CppLoader, HasTheNamesOfTheDocumentsAndSeveralOutputs) {
  ringfeed::DataLoader loader({}, kProgram);
  add_pipeline(loader);
  loader.AddStage(files_stage("other-files"));
  loader.AddStages(
      "stages { name: \"other-sources\" chunk_source_loader { input: \"other-files\" } }\n"
      "stages { name: \"games\" simple_chunk_extractor { input: \"other-sources\" } }\n"
      "stages { name: \"other-unpacker\" chunk_unpacker { input: \"games\" } }\n"
      "stages { name: \"other\" tensor_generator { input: \"other-unpacker\" batch_size: 4 } }\n"
      "feed_output { stage: \"tensors\" } feed_output { stage: \"other\" alias: \"validation\" }");
  loader.Start();
  ASSERT_TRUE(loader.GetNext());
  ASSERT_TRUE(loader.GetNext("validation"));
  std::uint64_t rows = 4;
  while (rows < kSampleRows) {
    if (const std::optional<ringfeed::Batch> batch = loader.MaybeGetNext("validation")) {
      rows += batch->rows();
    }
  }
  EXPECT_EQ(rows, kSampleRows);
  std::string text;
  EXPECT_EQ(status_of([&] { loader.GetNext("test"); }, &text), RF_INVALID);
  EXPECT_THAT(text, HasSubstr("validation"));
  loader.Stop();
  EXPECT_EQ(status_of([&] { loader.GetNext(); }), RF_DETACHED);
}

TEST(CppLoader, AsksItsStagesAndCountsThem) {
  ringfeed::DataLoader loader({}, kProgram);
  add_pipeline(loader, 0);
  loader.start(kPatienceMs);
  const auto request =
      message<StageControlRequest>("chunk_pool_request { set_chunk_anchor: \"b\" }");
  for (const std::string& stage : {std::string(), std::string("pool")}) {
    const std::vector<ringfeed::StageAnswer> answers =
        stage.empty() ? loader.SendControlMessage(request)
                      : loader.send_control_message(request.SerializeAsString(), stage);
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(answers[0].stage, "pool");
    StageControlResponse response;
    ASSERT_TRUE(response.ParseFromString(answers[0].response));
    EXPECT_EQ(response.chunk_pool_response().chunk_anchor(), "b");
  }
  EXPECT_EQ(status_of([&] { loader.send_control_message(request, "nobody"); }), RF_REFUSED);
  MetricsReply metrics;
  ASSERT_TRUE(metrics.ParseFromString(loader.metrics()));
  EXPECT_EQ(metrics.feed(), "loader");
  ASSERT_EQ(metrics.total().stage_metrics_size(), 5);
  EXPECT_EQ(metrics.total().stage_metrics(2).name(), "pool");
  const std::string json = loader.metrics(RF_METRICS_JSON);
  EXPECT_EQ(json.front(), '{');
  EXPECT_THAT(json, HasSubstr("\"shuffling_chunk_pool\""));
  EXPECT_EQ(status_of([&] { static_cast<void>(loader.metrics(7)); }), RF_INVALID);
}

// A process with a loader that runs: `then` is done in it, and it waits for its end.
pid_t with_loader(const std::function<void(ringfeed::DataLoader&)>& then) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  {
    ringfeed::DataLoader loader({}, kProgram);
    add_pipeline(loader, 0);
    loader.start(kPatienceMs);
    then(loader);
  }
  ::_exit(0);
}

TEST(CppLoader, NothingIsLeftOfAProcessThatIsKilled) {
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = with_loader([&](ringfeed::DataLoader& loader) {
    const std::string dir = loader.socket_dir();
    const std::uint32_t pid = loader.feed().stats().supervisor_pid;
    const std::string said = std::to_string(pid) + " " + dir + "\n";
    static_cast<void>(!::write(told[1], said.data(), said.size()));
    for (;;) ::pause();
  });
  ::close(told[1]);
  std::string said(4096, '\0');
  const ssize_t got = ::read(told[0], said.data(), said.size());
  ::close(told[0]);
  ASSERT_GT(got, 0);
  std::istringstream words(said.substr(0, static_cast<std::size_t>(got)));
  pid_t supervisor = 0;
  std::string dir;
  ASSERT_TRUE(words >> supervisor >> dir);
  ASSERT_TRUE(std::filesystem::exists(dir + "/loader.sock"));
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, supervisor, 0));
  ASSERT_GE(pidfd, 0);
  careful::kill_one(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, kPatienceMs), 1) << "the supervisor still runs";
  ::close(pidfd);
  EXPECT_FALSE(std::filesystem::exists(dir));
}

TEST(CppLoader, AForkedCopyThatGoesEndsNothing) {
  ringfeed::DataLoader not_started({}, kProgram);
  add_pipeline(not_started);
  const std::filesystem::path dir = not_started.socket_dir();
  const pid_t child = with_loader([&](ringfeed::DataLoader& loader) {
    not_started.stop();
    const pid_t copy = ::fork();
    if (copy == 0) {
      loader.stop();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(copy, &status, 0);
    bool goes_on = status == 0;
    for (int i = 0; i < 100; ++i) goes_on = goes_on && loader.get_next(kPatienceMs);
    loader.stop();
    ::_exit(goes_on ? 0 : 1);
  });
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(dir));
}

TEST(CppLoader, AProgramThatIsMissingIsNamed) {
  std::string text;
  EXPECT_EQ(status_of([] { ringfeed::DataLoader("seed: 7", "/absent/ringfeed"); }, &text),
            RF_FEED_FAILED);
  EXPECT_THAT(text, HasSubstr("/absent/ringfeed cannot be started"));
}

}  // namespace
}  // namespace ringfeed::testing
