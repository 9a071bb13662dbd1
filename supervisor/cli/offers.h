// Names that completion offers: of feeds that run, and of what is in them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/cli/complete.h"

namespace ringfeed {
class StatusReply;
}

namespace ringfeed::cli {

struct Offered {
  std::string word;
  std::string text;  // for people; may be empty
};

// Those of a kind of kWordKinds; a value offers itself. Throws Error, among others.
[[nodiscard]] std::vector<Offered> offers_of(std::string_view kind, const Line& line,
                                             const CLI::App& program);
// Stages, stage groups or consumer groups.
[[nodiscard]] std::vector<Offered> names_in(const StatusReply& status, Offer what);

// nothing: the kind is a value.
[[nodiscard]] const WordKind* find_kind(std::string_view name);

}  // namespace ringfeed::cli
