// What `ringfeed doctor` has found: each finding with what it costs, and the command that mends it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::doctor {

// From good to bad. Not known: the system does not let us look, which is no reason to call it fine.
enum class Severity { kFine, kNotKnown, kBetter, kWrong };

struct Finding {
  std::string check = {};  // whose finding it is, see doctor.h: "open files"
  Severity severity = Severity::kFine;
  std::string what = {};    // a sentence without its full stop
  std::string cost = {};    // what it costs a feed; "" if it is fine or not known
  std::string mend = {};    // a line for a shell, which mends it; "": no command can
  std::string advice = {};  // what else can be done, or what the command does; may be ""
};
using Findings = std::vector<Finding>;

[[nodiscard]] Finding fine(std::string what);
[[nodiscard]] Finding not_known(std::string why);
// The command, and what to know of it.
struct Remedy {
  std::string mend = {};
  std::string advice = {};
};
[[nodiscard]] Finding better(std::string what, std::string cost, Remedy remedy);
[[nodiscard]] Finding wrong(std::string what, std::string cost, Remedy remedy);

// "wrong", "could be better", "not known", "fine".
[[nodiscard]] std::string_view severity_text(Severity severity);

// The command as the user who can do it: with sudo, unless this is root.
[[nodiscard]] std::string as_root(const std::string& command);
// The command that writes a line to a file of root's.
[[nodiscard]] std::string write_line(const std::string& line, const std::string& file);

}  // namespace ringfeed::doctor
