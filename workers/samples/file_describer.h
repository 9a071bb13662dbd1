// What inspect shows of files that sample_source reads: fields with their types, the first samples,
// and what would be left out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "workers/inspect/describers.h"

namespace ringfeed::inspect {

// By a name that nothing else has, packed or not.
[[nodiscard]] bool describe_named_samples(const Question& question, Report& report);
// By a name or a content that others may have too.
[[nodiscard]] bool describe_other_samples(const Question& question, Report& report);
// Of a table whose columns have been shown.
void add_table_samples(const Question& question, Report& report);

// Of the report's `data`.
[[nodiscard]] std::string data_text(const nlohmann::ordered_json& data);

}  // namespace ringfeed::inspect
