#include "supervisor/doctor/finding.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "supervisor/doctor/doctor.h"

namespace ringfeed::doctor {
namespace {

std::string said_by_bash(const std::string& word) {
  const std::string inner = "printf %s " + word;
  std::string quoted = "'";
  for (const char c : inner) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* const pipe = ::popen(("bash -c " + quoted + "'").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string said;
  std::array<char, 256> bytes{};
  for (std::size_t got = 0; (got = std::fread(bytes.data(), 1, bytes.size(), pipe)) != 0;) {
    said.append(bytes.data(), got);
  }
  ::pclose(pipe);
  return said;
}

TEST(DoctorFinding, AShellTakesAWordAsItIs) {
  EXPECT_EQ(shell_word("/run/ringfeed"), "/run/ringfeed");
  EXPECT_EQ(shell_word(""), "''");
  for (const char* word :
       {"a b", "it's", "$HOME", "`id`", "a;b", "*", "~", "-x", "a\nb", "\x1b[31m", "\xff\xfe",
        "\xc3\xa9", "\\", "\"", "'\n'", "#", "!", "a\tb", "%s"}) {
    EXPECT_EQ(said_by_bash(shell_word(word)), word) << shell_word(word);
  }
}

TEST(DoctorFinding, JsonTakesAnyBytes) {
  const Findings findings{wrong("name \xff\n", "cost", {"rm x", ""}), fine("well")};
  const auto shown = nlohmann::json::parse(findings_json(findings));
  EXPECT_FALSE(shown["ok"]);
  EXPECT_EQ(shown["wrong"], 1);
  EXPECT_EQ(shown["findings"].size(), 2U);
}

TEST(DoctorFinding, ATerminalGetsNoEscapesOfOthers) {
  const std::string shown = show({wrong("name \x1b[31m\n", "cost", {"rm x", ""})}, {});
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  EXPECT_NE(shown.find("1 is wrong"), std::string::npos);
}

TEST(DoctorFinding, ACheckThatThrowsOrDiesOrHangsCostsItsOwnAnswer) {
  const Findings findings =
      look_apart({{"throws", []() -> Findings { throw std::runtime_error("why"); }},
                  {"dies", []() -> Findings { ::abort(); }},
                  {"hangs",
                   []() -> Findings {
                     for (;;) ::pause();
                   }},
                  {"well", [] { return Findings{fine("\xff")}; }}},
                 1000);
  ASSERT_EQ(findings.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(findings[i].severity, Severity::kNotKnown);
  EXPECT_EQ(findings[0].what, "why");
  EXPECT_NE(findings[1].what.find("signal 6"), std::string::npos);
  EXPECT_EQ(findings[3].what, "\xff");
}

}  // namespace
}  // namespace ringfeed::doctor
