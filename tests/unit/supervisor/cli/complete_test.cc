// What can be typed next, on lines as shells have them.
#include "supervisor/cli/complete.h"

#include <gmock/gmock.h>

#include <memory>

#include "proto/control.pb.h"
#include "supervisor/cli/offers.h"
#include "supervisor/cli/verb.h"

namespace ringfeed::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Strings = std::vector<std::string>;

class Complete : public ::testing::Test {
 protected:
  [[nodiscard]] Expected at(const Strings& words) const { return expected_at(*program_, words); }
  [[nodiscard]] Strings kinds(const Strings& words) const { return at(words).kinds; }
  [[nodiscard]] Strings options(const Strings& words) const {
    Strings names;
    for (const OptionWords& option : at(words).options) names.push_back(option.names.back());
    return names;
  }
  [[nodiscard]] Strings offered(std::string_view kind) const {
    Strings words;
    for (const Offered& one : offers_of(kind, {}, *program_)) words.push_back(one.word);
    return words;
  }

 private:
  int result_ = 0;
  std::unique_ptr<CLI::App> program_ = make_program(result_);
};

TEST_F(Complete, FirstWordIsAVerb) {
  EXPECT_THAT(kinds({""}), ElementsAre("VERB"));
  EXPECT_THAT(offered("VERB"), Contains("run"));
  EXPECT_THAT(offered("VERB"), Not(Contains(std::string(kCompleteVerb))));
  EXPECT_THAT(options({"--"}), ElementsAre("--help", "--version"));
  EXPECT_THAT(kinds({"no-verb", ""}), IsEmpty());
}

TEST_F(Complete, ArgumentsComeInTheirOrder) {
  EXPECT_THAT(kinds({"scale", ""}), ElementsAre("FEED"));
  EXPECT_THAT(kinds({"scale", "--json", "lc0", ""}), ElementsAre("STAGE"));
  EXPECT_THAT(kinds({"scale", "lc0", "pool", ""}), ElementsAre("LANES"));
  EXPECT_EQ(at({"scale", "--socket-dir", "/x", "lc0", ""}).line.feed, "lc0");
  EXPECT_EQ(at({"scale", "--socket-dir=/x", "lc0", ""}).line.directory, "/x");
}

TEST_F(Complete, ValueFollowsItsOption) {
  EXPECT_THAT(kinds({"try", "a.json", "--stage", ""}), ElementsAre("STAGE"));
  EXPECT_THAT(kinds({"try", "a.json", "--stage=x"}), ElementsAre("STAGE"));
  EXPECT_EQ(at({"try", "a.json", "--stage", ""}).line.config, "a.json");
  EXPECT_THAT(kinds({"init", "-o", ""}), ElementsAre("FILE"));
  // Attached: it is given, and the next word is an argument.
  EXPECT_THAT(kinds({"init", "-ofile", ""}),
              ElementsAre("lc0", "chess", "fairseq", "samples", "DIR"));
  EXPECT_THAT(kinds({"status", "--no-such=x"}), IsEmpty());
}

TEST_F(Complete, OptionsThatMayStillCome) {
  EXPECT_THAT(options({"stop", "lc0", "--"}), Contains("--now"));
  EXPECT_THAT(options({"stop", "--now", "lc0", "--"}), Not(Contains("--now")));
  EXPECT_THAT(options({"run", "--set", "a=1", "--"}), Contains("--set"));  // again
  EXPECT_THAT(options({"run", "--resume", "d", "--"}), Not(Contains("--from-batch")));
  // Nothing else can come.
  EXPECT_THAT(options({"status", "lc0", ""}), Contains("--json"));
}

TEST_F(Complete, BehindTwoDashesAreArgumentsAlone) {
  EXPECT_THAT(kinds({"status", "--", "-"}), ElementsAre("FEED"));
  EXPECT_THAT(options({"status", "--", "lc0", ""}), IsEmpty());
}

TEST_F(Complete, ValuesOfferThemselves) {
  EXPECT_THAT(kinds({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(offered("zsh"), ElementsAre("zsh"));
}

TEST(TypedWords, OfBashArePutTogetherAgain) {
  const auto typed = [](const Strings& words) { return typed_words("bash", words); };
  EXPECT_THAT(typed({"try", "--stage", "=", ""}), ElementsAre("try", "--stage="));
  EXPECT_THAT(typed({"--listen", "=", "127.0.0.1", ":", "9"}), ElementsAre("--listen=127.0.0.1:9"));
  EXPECT_THAT(typed({"a\\ b", "'c d'", "\"e'f\""}), ElementsAre("a b", "c d", "e'f"));
  EXPECT_THAT(typed({}), ElementsAre(""));
  EXPECT_THAT(typed_words("fish", Strings{"=", "a\\ b"}), ElementsAre("=", "a\\ b"));
}

TEST(Offers, AreTheNamesInAFeed) {
  StatusReply status;
  for (const char* const name : {"loader", "pool"}) {
    StageStatus& stage = *status.add_stages();
    stage.set_name(name);
    stage.set_kind(std::string("kind_of_") + name);
    stage.set_group("readers");
  }
  status.add_groups()->set_name("a");
  status.add_groups()->set_name("b");
  status.mutable_groups(1)->set_output("small");
  const auto shown = [&status](Offer what) {
    Strings lines;
    for (const Offered& one : names_in(status, what)) lines.push_back(one.word + ": " + one.text);
    return lines;
  };
  EXPECT_THAT(shown(Offer::kStages), ElementsAre("loader: kind_of_loader", "pool: kind_of_pool"));
  EXPECT_THAT(shown(Offer::kStageGroups), ElementsAre("readers: loader, pool"));
  EXPECT_THAT(shown(Offer::kConsumerGroups), ElementsAre("a: consumer group", "b: of small"));
}

}  // namespace
}  // namespace ringfeed::cli
