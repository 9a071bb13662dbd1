#include "supervisor/cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "supervisor/cli/words.h"

namespace ringfeed::cli {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kTextColumn = 30;

// Words on lines, of which the first has been written as far as `used` and the others begin at
// `indent`.
std::string filled(std::string_view text, std::size_t indent, std::size_t used) {
  std::string out;
  std::size_t column = used;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (column > indent && column + 1 + end > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

std::string entry(const std::string& name, std::string_view text) {
  std::string line = "  " + name;
  // Two columns between them, or a line of its own.
  if (line.size() + 2 > kTextColumn) {
    line += "\n" + std::string(kTextColumn, ' ');
  } else {
    line.resize(kTextColumn, ' ');
  }
  return line + filled(text, kTextColumn, kTextColumn);
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool) const {
  const OptionWords words = words_of(*option);
  std::string name = fmt::format("{}", fmt::join(words.names, ","));
  if (!words.takes.empty() && words.takes != name) name += " " + words.takes;
  return entry(name, words.text);
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  return entry(verb->get_name(), verb->get_description());
}

std::string HelpFormatter::make_footer(const CLI::App* verb) const {
  const Notes notes = notes_of(*verb);
  std::string out;
  for (const std::string& paragraph : notes.paragraphs) out += filled(paragraph, 0, 0);
  const std::string head = notes.examples.size() == 1 ? "Example: " : "Examples: ";
  for (const std::string& example : notes.examples) {
    out += (&example == &notes.examples.front() ? head : std::string(head.size(), ' ')) + example;
    out += '\n';
  }
  return out;
}

}  // namespace ringfeed::cli
