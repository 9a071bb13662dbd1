// What inspect shows of Parquet files.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"
#include "workers/chess/chess_proposal.h"
#include "workers/chess/domain.h"
#include "workers/chess/parquet_rows.h"
#include "workers/inspect/describers.h"

namespace ringfeed {
namespace inspect {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kParquetMagic = "PAR1";

bool describe_parquet(const Question& question, Report& report) {
  const Options& options = question.options;
  const bool parquet = text_of(question.head).starts_with(kParquetMagic) ||
                       std::filesystem::path(options.path).extension() == ".parquet";
  if (question.file == nullptr || !parquet) return false;
  report.is("parquet", "a Parquet file");
  ordered_json& out = report.out;
  out["rows"] = describe_rows(options.path, out["problems"]);
  out["text"] = fmt::format("a Parquet file with {} in {}",
                            plural(out["rows"]["rows"].get<std::uint64_t>(), "row"),
                            plural(out["rows"]["row_groups"].get<std::uint64_t>(), "row group"));
  return true;
}

std::string text_of_found(const ordered_json& found) {
  return found.contains("rows") ? rows_text(found["rows"]) : "";
}

}  // namespace
}  // namespace inspect

void add_chess_describers(inspect::Describers& describers) {
  describers.files.push_back({inspect::Turn::kNamed, &inspect::describe_parquet});
  describers.texts.push_back(&inspect::text_of_found);
  describers.kinds.push_back({"chess", "chess games in Parquet files (.parquet)", &propose_chess});
}

}  // namespace ringfeed
