// The specification of ringfeed.hpp: owners that give back what they own, and a loader of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "fake_feed.h"
#include "ringfeed.hpp"

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

// A `ringfeed` that does what a test says.
class CppLoader : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string dir = (std::filesystem::temp_directory_path() / "rf-loader-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir.data()), nullptr);
    dir_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string program(const std::string& body) {
    const std::filesystem::path path = dir_ / "ringfeed";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path.string();
  }
  std::filesystem::path dir_;
};

TEST_F(CppLoader, StartsAPrivateFeedAndEndsIt) {
  const std::string serve = "cp \"$2\" " + (dir_ / "given").string() + R"(
directory=${6#control.directory=}
mkfifo "$directory/commands"
exec 3<>"$directory/commands"
printf 'publish 3\nclose\n' >&3
exec )" RINGFEED_BINARY_DIR R"(/bin/fake_feed --dir "$directory" --feed "${4#feed=}" <&3)";
  ringfeed::DataLoader loader("seed: 7");
  loader.add_stage("name: \"a\"");
  loader.start(kPatienceMs, program(serve));
  const auto pid = static_cast<pid_t>(loader.feed().stats().supervisor_pid);
  const std::filesystem::path socket_dir = loader.socket_dir();
  std::uint64_t batches = 0;
  while (const std::optional<ringfeed::Batch> batch = loader.get_next(kPatienceMs)) {
    EXPECT_EQ(batch->seq(), ++batches);
  }
  EXPECT_EQ(batches, 3U);
  loader.stop();
  EXPECT_NE(::kill(pid, 0), 0) << "the supervisor still runs";
  EXPECT_FALSE(std::filesystem::exists(socket_dir));
  std::ifstream given(dir_ / "given");
  const std::string text{std::istreambuf_iterator<char>(given), {}};
  EXPECT_EQ(text, "seed: 7\nstages {\nname: \"a\"\n}\n");
}

TEST_F(CppLoader, ARefusedConfigurationIsToldWhole) {
  ringfeed::DataLoader loader("seed: x");
  try {
    loader.start(kPatienceMs, program("echo \"a:1:1: stage 'x': wrong; do this\" >&2; exit 3"));
    FAIL() << "it was refused";
  } catch (const ringfeed::ClientError& error) {
    EXPECT_EQ(error.status(), RF_INVALID);
    EXPECT_THAT(error.what(), HasSubstr("stage 'x': wrong; do this"));
  }
}

TEST_F(CppLoader, AProgramThatIsMissingIsNamed) {
  ringfeed::DataLoader loader("seed: 7");
  try {
    loader.start(kPatienceMs, (dir_ / "absent").string());
    FAIL() << "there is no such program";
  } catch (const ringfeed::ClientError& error) {
    EXPECT_EQ(error.status(), RF_FEED_FAILED);
    EXPECT_THAT(error.what(), HasSubstr("ringfeed cannot be started"));
  }
}

}  // namespace
}  // namespace ringfeed::testing
