// All that `ringfeed doctor` looks at, and how it shows what it has found.
#pragma once

#include <string>
#include <vector>

#include "supervisor/doctor/apart.h"
#include "supervisor/doctor/feeds.h"
#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

// `sockets`: where `ringfeed run` would put a socket; `search`: where feeds are looked for.
[[nodiscard]] std::vector<Check> checks_of_machine(const SocketPlace& sockets,
                                                   const std::vector<std::string>& search);

struct Look {
  bool all = false;      // what is fine as well
  bool colours = false;  // of a terminal
  int width = 100;       // columns; commands are not broken, so that they can be copied
};
[[nodiscard]] std::string show(const Findings& findings, const Look& look);
// One object, see docs/operating.md.
[[nodiscard]] std::string findings_json(const Findings& findings);

[[nodiscard]] bool is_wrong(const Findings& findings);

}  // namespace ringfeed::doctor
