#include "supervisor/doctor/finding.h"

#include <fmt/format.h>
#include <unistd.h>

#include "ringfeed/shm/quote.h"

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

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  if (escaped(word) == word) {
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
  }
  std::string quoted = "$'";
  for (const char c : word) {
    if (kPlain.find(c) != kPlain.npos) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + "'";
}

std::string as_root(const std::string& command) {
  return ::geteuid() == 0 ? command : "sudo " + command;
}

std::string write_line(const std::string& line, const std::string& file) {
  if (::geteuid() == 0) return fmt::format("echo {} > {}", shell_word(line), shell_word(file));
  return fmt::format("echo {} | sudo tee {}", shell_word(line), shell_word(file));
}

}  // namespace ringfeed::doctor
