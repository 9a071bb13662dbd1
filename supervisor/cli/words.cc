#include "supervisor/cli/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace ringfeed::cli {
namespace {

// What CLI11 calls a word whose option declares nothing.
constexpr std::string_view kUndeclared[] = {"TEXT", "INT", "UINT", "FLOAT", "BOOLEAN", "CHAR"};

// CLI11 writes checks behind what was declared: "N:POSITIVE".
std::string declared_type(const CLI::Option& option) {
  std::string type = option.get_type_name();
  // CLI11 has no const way to its checks.
  auto& checked = const_cast<CLI::Option&>(option);  // NOLINT(*-const-cast): it changes nothing
  std::vector<std::string> checks;
  try {
    for (int i = 0;; ++i) checks.push_back(checked.get_validator(i)->get_description());
  } catch (const CLI::OptionNotFound&) {
    // That was the last.
  }
  for (; !checks.empty(); checks.pop_back()) {
    const std::string& check = checks.back();
    if (!check.empty() && type.ends_with(":" + check)) type.resize(type.size() - check.size() - 1);
  }
  return type;
}

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : "--" + option.get_lnames().front();
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(long_name(*option));
  std::ranges::sort(names);  // the set is in the order of addresses
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string text_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += "; default: " + option.get_default_str();
  if (!option.get_needs().empty()) text += "; only with " + names_of(option.get_needs());
  if (!option.get_excludes().empty()) text += "; not with " + names_of(option.get_excludes());
  if (option.get_required() && !option.get_positional()) text += "; required";
  return text;
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

}  // namespace

std::vector<std::string> OptionWords::kinds() const { return split(takes, '|'); }

bool OptionWords::is_called(std::string_view name) const {
  return std::ranges::find(names, name) != names.end();
}

OptionWords words_of(const CLI::Option& option) {
  OptionWords words{.option = &option,
                    .argument = option.get_positional(),
                    .text = text_of(option),
                    .required = option.get_required(),
                    .repeats = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll};
  if (words.argument) {
    words.names.push_back(option.get_name(true, false));
  } else {
    for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  }
  if (option.get_type_size() == 0) return words;
  words.takes = declared_type(option);
  if (words.argument && std::ranges::find(kUndeclared, words.takes) != std::end(kUndeclared)) {
    words.takes = words.names.front();
  }
  return words;
}

std::vector<OptionWords> options_of(const CLI::App& verb) {
  std::vector<OptionWords> all;
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_group().empty()) all.push_back(words_of(*option));
  }
  return all;
}

std::vector<const CLI::App*> verbs_of(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

Notes notes_of(const CLI::App& verb) {
  constexpr std::string_view kHeads[] = {"Example: ", "Examples: "};
  Notes notes;
  bool examples = false;
  for (const std::string& line : split(verb.get_footer(), '\n')) {
    const auto* const head = std::ranges::find_if(
        kHeads, [&line](std::string_view one) { return line.starts_with(one); });
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    examples = head != std::end(kHeads) || (examples && begin != 0);
    if (examples) {
      notes.examples.push_back(line.substr(head == std::end(kHeads) ? begin : head->size()));
    } else if (!notes.paragraphs.empty() && notes.paragraphs.back().back() != '.') {
      notes.paragraphs.back() += " " + line;  // a sentence goes on
    } else {
      notes.paragraphs.push_back(line);
    }
  }
  return notes;
}

}  // namespace ringfeed::cli
