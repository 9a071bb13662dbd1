#include "supervisor/doctor/finding.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "supervisor/doctor/doctor.h"

namespace ringfeed::doctor {
namespace {

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
