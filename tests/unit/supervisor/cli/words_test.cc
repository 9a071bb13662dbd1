// What the command line says of itself: every word's kind is declared, every verb has an example,
// and it is all found in the manual.
#include "supervisor/cli/words.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "supervisor/cli/manual.h"
#include "supervisor/cli/offers.h"
#include "supervisor/cli/verb.h"

namespace ringfeed::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Words : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<const CLI::App*> verbs() const { return verbs_of(*program_); }

 private:
  int result_ = 0;
  std::unique_ptr<CLI::App> program_ = make_program(result_);
};

// Whoever adds an option declares its word: type_name() of one of kWordKinds.
TEST_F(Words, EveryOptionDeclaresWhatItTakes) {
  for (const CLI::App* verb : verbs()) {
    for (const OptionWords& option : options_of(*verb)) {
      EXPECT_THAT(option.text, Not("")) << verb->get_name() << " " << option.names.front();
      for (const std::string& kind : option.kinds()) {
        const bool value =
            std::ranges::none_of(kind, [](unsigned char c) { return std::isupper(c); });
        EXPECT_TRUE(value || find_kind(kind) != nullptr)
            << verb->get_name() << " " << option.names.front() << " takes " << kind;
      }
    }
  }
}

TEST_F(Words, EveryVerbHasAnExampleAndASummaryOfALine) {
  for (const CLI::App* verb : verbs()) {
    EXPECT_THAT(notes_of(*verb).examples, Not(ElementsAre())) << verb->get_name();
    EXPECT_LE(verb->get_description().size(), 70U) << verb->get_name();
  }
}

TEST_F(Words, ManualHasEveryOption) {
  for (const CLI::App* verb : verbs()) {
    const ManualPage page = verb_page(*verb);
    EXPECT_EQ(page.name, "ringfeed-" + verb->get_name());
    for (const OptionWords& option : options_of(*verb)) {
      for (const std::string& name : option.names)
        EXPECT_THAT(page.text, HasSubstr(roff_text(name)));
    }
    for (const std::string& example : notes_of(*verb).examples) {
      EXPECT_THAT(page.text, HasSubstr(roff_text(example)));
    }
  }
}

TEST(Roff, TextIsNoRequestAndNoEscape) {
  EXPECT_EQ(roff_text(".so /etc/passwd"), "\\&.so /etc/passwd");
  EXPECT_EQ(roff_text("'a'"), "\\(aqa\\(aq");
  EXPECT_EQ(roff_text("a\\fB-b"), "a\\efB\\-b");
  EXPECT_EQ(roff_text("µ\n"), "\\[u00B5]\\en");
}

TEST(Notes, AreTextsAndExamples) {
  CLI::App verb;
  verb.footer("One.\nTwo goes\non.\nExamples: a b\n          c\nThree.");
  const Notes notes = notes_of(verb);
  EXPECT_THAT(notes.paragraphs, ElementsAre("One.", "Two goes on.", "Three."));
  EXPECT_THAT(notes.examples, ElementsAre("a b", "c"));
}

// What checks add to a type is theirs, and no kind of word.
TEST(OptionWords, SayWhatWasDeclared) {
  CLI::App verb;
  int number = 0;
  std::string where;
  CLI::Option* const all = verb.add_option("-n,--number", number, "a number");
  all->type_name("N")->check(CLI::Range(1, 5))->check(CLI::PositiveNumber);
  const CLI::Option* const place =
      verb.add_option("--at", where, "a place")->type_name("ADDRESS:PORT")->excludes(all);
  EXPECT_EQ(words_of(*all).takes, "N");
  EXPECT_THAT(words_of(*all).names, ElementsAre("-n", "--number"));
  EXPECT_EQ(words_of(*place).takes, "ADDRESS:PORT");
  EXPECT_EQ(words_of(*place).text, "a place; not with --number");
}

}  // namespace
}  // namespace ringfeed::cli
