// Any bytes as a configuration: the first says as what (text format, JSON, serialized, an override
// of a small configuration), the others are it.
//
// Holds: problems have texts that are never empty or endless; no more are kept than are to be.
// What is read without a problem is read as the same when it is serialized, and when protobuf
// prints it.
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include <vector>

#include "proto/config.pb.h"
#include "supervisor/config/check.h"
#include "supervisor/config/read.h"
#include "tests/fuzz/input.h"

using namespace ringfeed;
using namespace ringfeed::config;

namespace {

void check_problems(const Configuration& configuration) {
  RF_HOLDS(configuration.problems().size() <= kProblemsKept, configuration.problems().size());
  for (const Problem& problem : configuration.problems()) {
    RF_HOLDS(!problem.text.empty() && problem.text.size() < 4096, problem.text);
  }
  RF_HOLDS(configuration.complete() || !configuration.problems().empty(), "incomplete");
  std::size_t total = configuration.problems().size() + configuration.problems_left_out();
  RF_HOLDS(problem_report(configuration.problems(), configuration.problems_left_out()).empty() ==
               (total == 0),
           total);
}

bool same(const DataLoaderConfig& one, const DataLoaderConfig& other) {
  return one.SerializeAsString() == other.SerializeAsString() ||
         google::protobuf::util::MessageDifferencer::Equals(one, other);
}

std::string problems_of(const Configuration& configuration) {
  return problem_report(configuration.problems());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  constexpr Format kFormats[] = {Format::kText, Format::kJson, Format::kSerialized, Format::kAuto};
  const Format format = kFormats[data[0] % 4];
  std::vector<std::string> overrides;
  if (format == Format::kAuto) overrides.emplace_back(text);
  const std::string_view base =
      "feed: 'f' stages { name: 'p' file_path_provider { directory: 'd' } } "
      "stages { name: 'pool' shuffling_chunk_pool { input: 'p' } }";
  const Configuration read = parse_config(overrides.empty() ? text : base, "f", overrides, format);
  check_problems(read);
  if (!read.complete()) return 0;
  for (const Problem& problem : check_part(read)) RF_HOLDS(!problem.text.empty(), size);
  if (!read.problems().empty()) return 0;

  const DataLoaderConfig& message = read.message();
  const Configuration serialized =
      parse_config(message.SerializeAsString(), "f", {}, Format::kSerialized);
  RF_HOLDS(serialized.problems().empty() && same(serialized.message(), message),
           problems_of(serialized));
  std::string printed;
  RF_HOLDS(google::protobuf::TextFormat::PrintToString(message, &printed), size);
  const Configuration again = parse_config(printed, "f", {}, Format::kText);
  RF_HOLDS(again.problems().empty() && same(again.message(), message), problems_of(again), printed);
  return 0;
}
