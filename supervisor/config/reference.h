// What the schema says about kinds of stages, for people: the text above a stage's message, its
// settings with their comments, types, defaults and ranges. Comments are in no compiled descriptor;
// they come from the descriptor set that is built into the program (proto/config_desc.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::config {

struct EnumValue {
  std::string name;
  std::string text;
};

struct Setting {
  std::string name;           // inside a message "outputs.weight"
  std::string type;           // "uint64", "repeated string", "path", "one of A, B"
  std::string default_value;  // "" where none is declared; the text may tell one that follows
  std::string range;          // "1 to 64", "above 0, at most 1"; "": any
  std::string text;           // Markdown; without what default and range say already
  std::vector<EnumValue> values;
};

struct KindSchema {
  std::string kind;               // name of the field of StageConfig
  std::string domain;             // "lc0": the file of its message
  std::string summary;            // the first clause of the text, without a full stop
  std::vector<std::string> text;  // paragraphs and lists of Markdown
  std::vector<Setting> settings;  // its own, in the order of the schema
  std::vector<Setting> common;    // those of CommonFields that it has
};

// All kinds of StageConfig, in its order.
[[nodiscard]] std::vector<KindSchema> kind_schemas();

}  // namespace ringfeed::config
