// The text of a configuration as a tree of values with their places; text format and JSON give the
// same tree, so everything after this knows only one form and says the same about both.
//
// Both readers go on after a mistake where its extent is clear, so that one run shows as many
// mistakes as possible. Where it is not (a brace without its partner), `complete` is false and the
// tree is only good for saying what was wrong.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::config {

struct Position {
  int line = 0;    // from 1
  int column = 0;  // from 1, in bytes
};

struct Entry;

struct Node {
  enum class Kind {
    kNumber,  // text: as written, with its sign
    kWord,    // text: true, BLOCK, nan, -inf
    kString,  // text: decoded
    kNull,    // JSON only
    kObject,  // entries
    kList,    // items
  };
  Kind kind = Kind::kNull;
  std::string text;
  Position position;
  std::vector<Entry> entries;  // in the order of the text; one name may come more than once
  std::vector<Node> items;
};

struct Entry {
  std::string name;
  Position position;  // of the name
  Node value;
};

struct TreeProblem {
  Position position;
  std::string text;
};

struct Tree {
  Node root;  // an object
  std::vector<TreeProblem> problems;
  std::size_t problems_left_out = 0;  // found, but not kept
  bool complete = true;
};

// Protocol buffer text format: fields with ':', messages in {} or <>, lists in [], '#' comments,
// adjacent strings joined, fields optionally separated by ',' or ';'.
[[nodiscard]] Tree parse_text_format(std::string_view text);
// JSON as RFC 8259 has it. Both forms of field names are left for the binding.
[[nodiscard]] Tree parse_json(std::string_view text);
// One value of text format, for `--set`.
[[nodiscard]] Tree parse_text_value(std::string_view text);

}  // namespace ringfeed::config
