// What inspect shows of token files.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "workers/bitext/bitext_proposal.h"
#include "workers/bitext/domain.h"
#include "workers/bitext/token_sentences.h"
#include "workers/inspect/describers.h"

namespace ringfeed {
namespace inspect {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

// Of a token file both names are there, or one that stands for them.
bool describe_token_file(const Question& question, Report& report) {
  const Options& options = question.options;
  const std::optional<std::string> prefix = token_prefix(options.path, text_of(question.head));
  if (!prefix) return false;
  if (!options.chunk.empty()) {
    refuse(fmt::format("{}: --chunk is for tars, and this is not one", options.path));
  }
  report.is("token_file", "a token file that cannot be read");
  ordered_json found = describe_tokens(
      *prefix, {.dictionary = options.dictionary, .sentence = options.record, .all = options.all},
      report.out["problems"]);
  if (found.is_null()) return true;
  report.out["text"] = fmt::format("a token file of {}, {}",
                                   plural(found["sentences"].get<std::uint64_t>(), "sentence"),
                                   plural(found["tokens"].get<std::uint64_t>(), "token"));
  report.out["tokens"] = std::move(found);
  return true;
}

std::string no_token_file(const std::string& path) {
  std::error_code failed;
  if (path.ends_with(".bin")) {
    return fmt::format("{}: there is no such file, nor its index {}.idx; check the name", path,
                       path.substr(0, path.size() - 4));
  }
  if (fs::exists(path + ".bin", failed)) {
    return fmt::format(
        "{0}: there is {0}.bin, but not its index {0}.idx; copy the index too, or name another "
        "file",
        path);
  }
  return fmt::format(
      "{0}: there is no such file, and no token file of this name ({0}.idx and {0}.bin); check "
      "the name",
      path);
}

std::string text_of_found(const ordered_json& found) {
  return found.contains("tokens") ? tokens_text(found["tokens"]) : "";
}

}  // namespace
}  // namespace inspect

void add_bitext_describers(inspect::Describers& describers) {
  describers.files.push_back({inspect::Turn::kMarked, &inspect::describe_token_file,
                              "not a token file (PREFIX.idx and PREFIX.bin)",
                              &inspect::no_token_file});
  describers.texts.push_back(&inspect::text_of_found);
  describers.kinds.push_back(
      {"fairseq", "parallel text in fairseq's token files (.idx and .bin)", &propose_bitext});
}

}  // namespace ringfeed
