// What inspect_path() has found, for a terminal.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "workers/inspect/inspect.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;

std::string stages_text(const ordered_json& stages) {
  std::string text;
  for (const ordered_json& stage : stages) {
    std::string inputs;
    for (const ordered_json& input : stage["input"]) {
      inputs += (inputs.empty() ? " <- " : ", ") + input.get<std::string>();
    }
    text += fmt::format("  {}: {}{}\n", stage["name"].get<std::string>(),
                        stage["kind"].get<std::string>(), inputs);
  }
  return text;
}

std::string manifest_text(const ordered_json& manifest) {
  std::string text = fmt::format(
      "feed {}, batch {}, seed {}, taken at {} by ringfeed {} (ABI {})\n",
      manifest["feed"].get<std::string>(), number_text(manifest["newest_batch"]),
      number_text(manifest["seed"]), manifest["taken_at"].get<std::string>(),
      manifest["ringfeed_version"].get<std::string>(), manifest["abi"].get<std::string>());
  for (const ordered_json& group : manifest["groups"]) {
    text += fmt::format("  group {}: next batch {}\n", group["name"].get<std::string>(),
                        number_text(group["next_batch"]));
  }
  text += stages_text(manifest["stages"]);
  for (const ordered_json& segment : manifest["segments"]) {
    text += fmt::format("  {}: segment {}, {} bytes\n", segment["file"].get<std::string>(),
                        segment["name"].get<std::string>(), number_text(segment["bytes"]));
  }
  return text + fmt::format("  {} bytes in all; resume from it with: ringfeed run --resume\n",
                            number_text(manifest["bytes"]));
}

std::string letter_text(const ordered_json& letter) {
  std::string text;
  for (const auto& [name, value] : letter.items()) {
    std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    if (shown.empty()) continue;
    // A cause goes over several lines: backtrace, last words.
    for (std::size_t at = shown.find('\n'); at != std::string::npos; at = shown.find('\n', at)) {
      if (at + 1 == shown.size()) {
        shown.pop_back();
        break;
      }
      shown.replace(at, 1, "\n    ");
      at += 1;
    }
    text += fmt::format("  {}: {}\n", name, shown);
  }
  return text;
}

}  // namespace

std::string as_text(const ordered_json& found, const Describers& describers) {
  std::string text =
      fmt::format("{}: {}\n", found["path"].get<std::string>(), found["text"].get<std::string>());
  if (found.contains("letter")) text += letter_text(found["letter"]);
  if (found.contains("manifest")) text += manifest_text(found["manifest"]);
  if (found.contains("feed")) {
    text += fmt::format("feed {}\n", found["feed"].get<std::string>());
    text += stages_text(found["stages"]);
  }
  for (const auto& domain_text : describers.texts) text += domain_text(found);
  return text;
}

}  // namespace ringfeed::inspect
