#include "supervisor/doctor/finding.h"

#include <fmt/format.h>
#include <unistd.h>

#include "supervisor/os/text.h"

namespace ringfeed::doctor {

Finding fine(std::string what) { return {.what = std::move(what)}; }

Finding not_known(std::string why) {
  return {.severity = Severity::kNotKnown, .what = std::move(why)};
}

Finding better(std::string what, std::string cost, Remedy remedy) {
  return {.severity = Severity::kBetter,
          .what = std::move(what),
          .cost = std::move(cost),
          .mend = std::move(remedy.mend),
          .advice = std::move(remedy.advice)};
}

Finding wrong(std::string what, std::string cost, Remedy remedy) {
  Finding finding = better(std::move(what), std::move(cost), std::move(remedy));
  finding.severity = Severity::kWrong;
  return finding;
}

std::string_view severity_text(Severity severity) {
  switch (severity) {
    case Severity::kFine:
      return "fine";
    case Severity::kNotKnown:
      return "not known";
    case Severity::kBetter:
      return "could be better";
    case Severity::kWrong:
      return "wrong";
  }
  return "";
}

std::string as_root(const std::string& command) {
  return ::geteuid() == 0 ? command : "sudo " + command;
}

std::string write_line(const std::string& line, const std::string& file) {
  if (::geteuid() == 0) return fmt::format("echo {} > {}", shell_word(line), shell_word(file));
  return fmt::format("echo {} | sudo tee {}", shell_word(line), shell_word(file));
}

}  // namespace ringfeed::doctor
