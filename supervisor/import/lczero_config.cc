#include "supervisor/import/lczero_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "supervisor/config/bind.h"
#include "supervisor/config/names.h"
#include "supervisor/config/tree.h"
#include "supervisor/import/lczero_convert.h"
#include "supervisor/import/lczero_wire.h"

namespace ringfeed::imports {
namespace {

using config::Entry;
using config::Node;
using config::Place;
using config::Position;
using config::Problem;

constexpr const char* kDataLoader = "data_loader";
// Of RootConfig, see lczero.proto.
constexpr int kRootDataLoader = 3;
constexpr int kRootName = 1;

// What one source gives besides problems.
struct Understood {
  LczeroMessage message;
  std::string name;  // of the RootConfig
};

bool names_data_loader(const Entry& entry, config::Notation notation) {
  return entry.name == kDataLoader ||
         (notation == config::Notation::kJson && entry.name == "dataLoader");
}

// The data loader's node: the only part of a RootConfig that is looked at, or all there is.
const Node* data_loader_node(const Node& root, config::Notation notation, const std::string& source,
                             std::vector<Problem>& problems) {
  const Node* found = nullptr;
  for (const Entry& entry : root.entries) {
    if (!names_data_loader(entry, notation)) continue;
    const Place place{source, entry.position.line, entry.position.column};
    if (found != nullptr) {
      problems.push_back({place, {}, "data_loader is given twice; keep one", kDataLoader});
    } else if (entry.value.kind != Node::Kind::kObject) {
      problems.push_back({place, {}, "data_loader is not a message { ... }", kDataLoader});
    }
    found = &entry.value;
  }
  if (found != nullptr) return found;
  const bool bare = std::any_of(root.entries.begin(), root.entries.end(), [](const Entry& entry) {
    return entry.name == "stage" || entry.name == "output";
  });
  if (bare) return &root;
  const bool ours = std::any_of(root.entries.begin(), root.entries.end(),
                                [](const Entry& entry) { return entry.name == "stages"; });
  problems.push_back({{source, 0, 0},
                      {},
                      ours
                          ? "this is already a configuration of ringfeed: give it to 'ringfeed run'"
                          : "it has neither a data_loader nor a stage: give a RootConfig of "
                            "lczero-training with a data_loader, or a DataLoaderConfig",
                      {}});
  return nullptr;
}

Understood read_tree(const LczeroSource& source, config::Notation notation,
                     std::vector<Problem>& problems, std::size_t& left_out) {
  Understood result{.message = {.config = {}, .places = config::Places(source.name)}, .name = {}};
  const config::Tree tree = notation == config::Notation::kJson
                                ? config::parse_json(source.content)
                                : config::parse_text_format(source.content);
  const auto place_of = [&source](Position position) {
    return Place{source.name, position.line, position.column};
  };
  left_out += tree.problems_left_out;
  for (const config::TreeProblem& problem : tree.problems) {
    problems.push_back({place_of(problem.position), {}, problem.text, {}});
  }
  if (!tree.complete) return result;
  const Node* const node = data_loader_node(tree.root, notation, source.name, problems);
  if (node == nullptr || node->kind != Node::Kind::kObject) return result;
  config::Binder binder(notation, place_of, result.message.places, problems);
  binder.object(*node, result.message.config, "");
  left_out += binder.left_out();
  if (node == &tree.root) return result;
  for (const Entry& entry : tree.root.entries) {
    if (entry.name == "name" && entry.value.kind == Node::Kind::kString) {
      result.name = entry.value.text;
    }
  }
  return result;
}

Understood read_serialized(const LczeroSource& source, std::vector<Problem>& problems) {
  Understood result{.message = {.config = {}, .places = config::Places(source.name)}, .name = {}};
  std::string_view bytes = source.content;
  // Field 3 tells a RootConfig: a DataLoaderConfig has none.
  if (has_wire_field(bytes, kRootDataLoader)) {
    result.name = wire_field(bytes, kRootName);
    bytes = wire_field(bytes, kRootDataLoader);
  }
  for (std::string& problem : read_wire(bytes, result.message.config)) {
    problems.push_back({{source.name, 0, 0}, {}, std::move(problem), {}});
  }
  return result;
}

bool is_json(const LczeroSource& source) {
  if (source.format != config::Format::kAuto) return source.format == config::Format::kJson;
  const std::size_t first = source.content.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  return first != std::string::npos && source.content[first] == '{';
}

std::string feed_name(const Understood& first, const std::string& source) {
  if (config::valid_feed_name(first.name)) return first.name;
  std::string stem = std::filesystem::path(source).stem().string();
  return source != "-" && config::valid_feed_name(stem) ? stem : "lc0";
}

}  // namespace

Imported import_lczero(std::span<const LczeroSource> sources) {
  Imported imported;
  std::vector<LczeroMessage> messages;
  std::string feed;
  for (const LczeroSource& source : sources) {
    Understood read =
        source.format == config::Format::kSerialized
            ? read_serialized(source, imported.problems)
            : read_tree(source, is_json(source) ? config::Notation::kJson : config::Notation::kText,
                        imported.problems, imported.problems_left_out);
    if (messages.empty()) feed = feed_name(read, source.name);
    messages.push_back(std::move(read.message));
  }
  if (imported.problems.empty()) imported = convert(messages, feed);
  config::sort_problems(imported.problems);
  config::sort_problems(imported.notes);
  return imported;
}

}  // namespace ringfeed::imports
