#include "workers/bitext/row_sentences.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/worker/batch_view.h"
#include "workers/bitext/bitext_files.h"
#include "workers/bitext/dictionary.h"
#include "workers/kit/row_text.h"

namespace ringfeed {
namespace {

using formats::Dictionary;

// int64, or int32 where the batch is compact; without padding.
std::vector<std::int64_t> ids_of(const BatchView& batch, std::string_view name, std::uint64_t row) {
  const BatchViewArray* const array = batch.find(name);
  std::vector<std::int64_t> ids;
  if (array == nullptr) return ids;
  const auto take = [&](auto items) {
    for (const auto id : items) {
      if (id != Dictionary::kPad) ids.push_back(id);
    }
  };
  if (array->dtype == "int64") take(array->row<std::int64_t>(row));
  if (array->dtype == "int32") take(array->row<std::int32_t>(row));
  return ids;
}

std::string line(std::string_view name, const std::vector<std::int64_t>& ids,
                 const Dictionary* dictionary) {
  if (ids.empty()) return {};
  const std::string text =
      dictionary != nullptr ? dictionary->text(ids) : fmt::format("{}", fmt::join(ids, " "));
  return fmt::format("{:<7} {}\n{:<7} {} tokens\n", name, cut_text(text), "", ids.size());
}

}  // namespace

std::string bitext_row_text(const BatchView& batch, std::uint64_t row) {
  if (batch.find("src_tokens") == nullptr) return {};
  BitextDictionaries dictionaries;
  for (const StageConfig& stage : batch.feed().stages()) {
    if (stage.has_bitext_source()) {
      dictionaries = read_bitext_dictionaries(stage.bitext_source());
    }
  }
  return line("source", ids_of(batch, "src_tokens", row), dictionaries.source.get()) +
         line("target", ids_of(batch, "target", row), dictionaries.target.get());
}

}  // namespace ringfeed
