// What inspect shows of files of samples, and of samples that were set aside.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ringfeed/worker/sample.h"
#include "workers/inspect/describers.h"
#include "workers/samples/domain.h"
#include "workers/samples/file_describer.h"
#include "workers/samples/sample_proposal.h"
#include "workers/samples/sample_text.h"

namespace ringfeed {
namespace inspect {
namespace {

// Stages of any domain take samples, and a plug-in's too, so the record itself is asked: one that
// contradicts itself is none.
bool describe_sample(const Letter& letter, const Options&, Report& report) {
  const std::optional<SampleView> sample = SampleView::open(letter.bytes);
  if (!sample || sample->bytes().size() != letter.bytes.size()) return false;
  report.out["letter"]["holds"] = "a sample";
  report.out["sample"] = sample_text(*sample);
  return true;
}

std::string sample_lines(const nlohmann::ordered_json& found) {
  std::string text;
  if (found.contains("data")) text += data_text(found["data"]);
  if (!found.contains("sample")) return text;
  for (const nlohmann::ordered_json& line : found["sample"]) {
    text += "    " + line.get<std::string>() + "\n";
  }
  return text;
}

}  // namespace
}  // namespace inspect

void add_samples_describers(inspect::Describers& describers) {
  describers.files.push_back({inspect::Turn::kNamed, &inspect::describe_named_samples});
  describers.files.push_back({inspect::Turn::kContent, &inspect::describe_other_samples,
                              "no ending of data (.jsonl, .txt, .npy and others)"});
  describers.more.push_back(&inspect::add_table_samples);
  describers.letters.push_back(&inspect::describe_sample);
  describers.texts.push_back(&inspect::sample_lines);
  describers.kinds.push_back(
      {"samples", "lines of JSON or text, tars, NumPy's arrays, tables", &propose_samples, true});
}

}  // namespace ringfeed
