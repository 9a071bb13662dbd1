// Manual pages out of the command line's own description: ringfeed(1), and one for each verb,
// ringfeed-VERB(1). In the man(7) macros, as groff and mandoc know them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::cli {

struct ManualPage {
  std::string name;  // "ringfeed-run": its file is ringfeed-run.1
  std::string text;
};
[[nodiscard]] ManualPage program_page(const CLI::App& program);
[[nodiscard]] ManualPage verb_page(const CLI::App& verb);
// The program's, then those of all verbs.
[[nodiscard]] std::vector<ManualPage> manual_pages(const CLI::App& program);

// Text as it is, whatever it holds: nothing in it is a request or an escape.
[[nodiscard]] std::string roff_text(std::string_view text);

}  // namespace ringfeed::cli
