// Any bytes as a configuration of lczero-training, in text format, JSON or serialized: the first
// byte says as what.
//
// Holds: there is a result or a problem, never both; a result is a configuration that we read
// without a problem.
#include <google/protobuf/stubs/logging.h>

#include "supervisor/config/read.h"
#include "supervisor/import/lczero_config.h"
#include "tests/fuzz/input.h"

using namespace ringfeed;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr config::Format kFormats[] = {config::Format::kText, config::Format::kJson,
                                         config::Format::kSerialized};
  const imports::LczeroSource source{.name = "f.textproto",
                                     .content = std::string(fuzz::text_of(data + 1, size - 1)),
                                     .format = kFormats[data[0] % 3]};
  const imports::Imported imported = imports::import_lczero({&source, 1});
  RF_HOLDS(imported.text.empty() != imported.problems.empty(), imported.text,
           imported.problems.size());
  for (const config::Problem& problem : imported.problems) {
    RF_HOLDS(!problem.text.empty() && problem.text.size() < 4096, problem.text);
  }
  if (imported.text.empty()) return 0;
  const config::Configuration ours =
      config::parse_config(imported.text, "f", {}, config::Format::kText);
  RF_HOLDS(ours.problems().empty(), config::problem_report(ours.problems()), imported.text);
  return 0;
}
