// What inspect has found in files of games, for a terminal.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ringfeed::inspect {

// Of tar, members, chunks, chunk and records; "" if `found` has none of them.
[[nodiscard]] std::string games_text(const nlohmann::ordered_json& found);

}  // namespace ringfeed::inspect
