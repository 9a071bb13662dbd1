#include "supervisor/cli/manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <span>

#include "ringfeed/shm/quote.h"
#include "supervisor/cli/verb.h"
#include "supervisor/cli/words.h"

namespace ringfeed::cli {
namespace {

struct Entry {
  std::string_view name;
  std::string_view text;
};
constexpr Entry kEnvironment[] = {
    {"RINGFEED_SOCKET_DIR", "Directory of the control sockets, unless --socket-dir is given."},
    {"XDG_RUNTIME_DIR",
     "Control sockets are in its subdirectory ringfeed, and looked for in /run/ringfeed as well."},
    {"XDG_STATE_HOME",
     "Records that were set aside are in ringfeed/FEED/dead-letters below it; default: "
     "~/.local/state."},
    {"RINGFEED_WORKER", "The worker program, if there is none beside ringfeed itself."},
};
// In the directory of the control sockets.
constexpr Entry kFiles[] = {
    {"FEED.sock", "The control socket of a feed."},
    {"FEED.lock", "Locked by the supervisor, and by its workers, for as long as they live."},
    {"FEED.state", "What a supervisor leaves to the next one: processes, files, configuration."},
};
constexpr std::string_view kAbout[] = {
    "A feed is a pipeline that runs under a name. Its supervisor, `ringfeed run`, starts a process "
    "for each group of stages and replaces those that die. Trainers take batches out of shared "
    "memory, with the Python package ringfeed or the C library libringfeed.",
    "All other verbs look at a feed, change it while it runs, or look at its data.",
};

// ---- characters

void add_character(std::string& out, std::string_view utf8) {
  unsigned code = static_cast<unsigned char>(utf8.front());
  code &= utf8.size() == 1 ? 0x7fU : 0x7fU >> utf8.size();
  for (const char byte : utf8.substr(1))
    code = code << 6 | (static_cast<unsigned char>(byte) & 0x3fU);
  out += fmt::format("\\[u{:04X}]", code);
}

// ---- words in the middle of a text

// Names of arguments and of words, which are set like those in the synopsis.
using Names = std::set<std::string, std::less<>>;

std::string set_word(std::string_view word, const Names& names) {
  const auto is_mark = [](char c) {
    return std::string_view("(),.;:").find(c) != std::string::npos;
  };
  std::size_t begin = 0;
  while (begin < word.size() && is_mark(word[begin])) ++begin;
  std::size_t end = word.size();
  while (end > begin && is_mark(word[end - 1])) --end;
  const std::string_view core = word.substr(begin, end - begin);
  const bool option = core.size() > 2 && core.starts_with("--") && core != "---";
  if (!option && !names.contains(core)) return roff_text(word);
  return fmt::format("{}\\f{}{}\\fR{}", roff_text(word.substr(0, begin)), option ? 'B' : 'I',
                     roff_text(core), roff_text(word.substr(end)));
}

std::string set_words(std::string_view text, const Names& names) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    out += set_word(text.substr(0, end), names);
    if (end < text.size()) out += ' ';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// A paragraph: `code` in bold, each sentence on a line of its own.
std::string set_text(std::string_view text, const Names& names) {
  std::string out;
  const bool paired = std::ranges::count(text, '`') % 2 == 0;
  bool code = false;
  while (!text.empty()) {
    const std::size_t end = paired ? std::min(text.find('`'), text.size()) : text.size();
    const std::string_view part = text.substr(0, end);
    out += code ? fmt::format("\\fB{}\\fR", roff_text(part)) : set_words(part, names);
    code = !code;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  for (std::size_t at = out.find(". "); at != std::string::npos; at = out.find(". ", at + 1)) {
    const bool begins =
        at + 2 < out.size() && std::isupper(static_cast<unsigned char>(out[at + 2]));
    if (begins) out[at + 1] = '\n';
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

// ---- parts of a page

std::string head(const std::string& name, std::string_view summary) {
  std::string title = name;
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string small(summary);
  // "Start a feed", but not "JSON".
  if (small.size() > 1 && !std::isupper(static_cast<unsigned char>(small[1]))) {
    small.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(small.front())));
  }
  return fmt::format(
      ".TH {} 1 \"\" \"ringfeed {}\" \"ringfeed\"\n.nr HY 0\n.nh\n.ad l\n.SH NAME\n{} \\- {}\n.SH "
      "SYNOPSIS\n",
      roff_text(title), roff_text(RINGFEED_VERSION), roff_text(name), roff_text(small));
}

std::string entries(const char* title, std::span<const Entry> all, const Names& names) {
  std::string out = fmt::format(".SH {}\n", title);
  for (const Entry& one : all) {
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff_text(one.name), set_text(one.text, names));
  }
  return out;
}

std::string exit_statuses() {
  std::string out = ".SH EXIT STATUS\n";
  for (const ExitStatus& status : kExitStatuses) {
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", status.status, set_text(status.text, {}));
  }
  return out;
}

// A value in bold, a kind in italics: "bash|zsh|fish", "DIR".
std::string set_takes(const OptionWords& option) {
  std::vector<std::string> parts;
  for (const std::string& kind : option.kinds()) {
    const bool value = std::islower(static_cast<unsigned char>(kind.front())) != 0;
    parts.push_back(fmt::format("\\f{}{}\\fR", value ? 'B' : 'I', roff_text(kind)));
  }
  return fmt::format("{}", fmt::join(parts, "|"));
}

std::string set_name(const OptionWords& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    names.push_back(fmt::format("\\f{}{}\\fR", option.argument ? 'I' : 'B', roff_text(name)));
  }
  const bool shows = !option.takes.empty() && (!option.argument || option.kinds().size() > 1);
  return fmt::format("{}{}{}", fmt::join(names, ", "), shows ? " " : "",
                     shows ? set_takes(option) : "");
}

std::string synopsis(const CLI::App& verb, const std::vector<OptionWords>& options) {
  std::string out = fmt::format(".SY ringfeed\\ {}\n", roff_text(verb.get_name()));
  for (const bool arguments : {false, true}) {
    for (const OptionWords& option : options) {
      if (option.argument != arguments || option.is_called("--help")) continue;
      // The longest name is enough here.
      std::string one =
          fmt::format("\\f{}{}\\fR", arguments ? 'I' : 'B', roff_text(option.names.back()));
      if (!option.takes.empty() && !arguments) one += "\\ " + set_takes(option);
      if (!option.required) one = "[" + one + "]";
      out += one + (option.repeats ? "...\\&\n" : "\n");
    }
  }
  return out + ".YS\n";
}

std::string option_list(const char* title, const std::vector<OptionWords>& options, bool arguments,
                        const Names& names) {
  std::string out;
  for (const OptionWords& option : options) {
    if (option.argument != arguments) continue;
    if (out.empty()) out = fmt::format(".SH {}\n", title);
    std::string text = option.text;
    if (!text.empty())
      text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    if (!text.empty() && text.back() != '.') text += '.';
    out += fmt::format(".TP\n{}\n{}\n", set_name(option), set_text(text, names));
  }
  return out;
}

// The pages of verbs that the text names, "ringfeed status", and the program's.
std::string see_also(const CLI::App& verb, const std::string& text) {
  std::vector<std::string> pages{".BR ringfeed (1)"};
  for (const CLI::App* other : verbs_of(*verb.get_parent())) {
    const std::string& name = other->get_name();
    const std::size_t at = text.find("ringfeed " + name);
    const std::size_t end = at + 9 + name.size();
    if (other == &verb || at == std::string::npos) continue;
    if (end < text.size() &&
        (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '-'))
      continue;
    pages.push_back(fmt::format(".BR {} (1)", roff_text("ringfeed-" + name)));
  }
  return fmt::format(".SH SEE ALSO\n{}\n", fmt::join(pages, ",\n"));
}

}  // namespace

std::string roff_text(std::string_view text) {
  std::string out;
  const std::string shown = escaped(text);
  for (std::size_t i = 0; i < shown.size();) {
    const auto lead = static_cast<unsigned char>(shown[i]);
    const std::size_t bytes = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    switch (shown[i]) {
      case '\\':
        out += "\\e";
        break;
      case '-':  // a minus can be copied, a hyphen cannot
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '"':
        out += "\\(dq";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        if (bytes == 1) {
          out += shown[i];
        } else {
          add_character(out, std::string_view(shown).substr(i, bytes));
        }
    }
    i += bytes;
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

ManualPage program_page(const CLI::App& program) {
  const std::string& name = program.get_name();
  const Names names{"FEED"};
  std::string text = head(name, "training data for the processes that train");
  text += ".SY ringfeed\n\\fIVERB\\fR\n[\\fIOPTION\\fR]...\\&\n[\\fIARGUMENT\\fR]...\\&\n.YS\n";
  text += fmt::format(".SH DESCRIPTION\n{}\n", set_text(program.get_description(), names));
  for (const std::string_view about : kAbout) {
    text += fmt::format(".PP\n{}\n", set_text(about, names));
  }
  text += ".SH VERBS\n";
  for (const CLI::App* verb : verbs_of(program)) {
    text += fmt::format(".TP\n.BR {} (1)\n{}.\n", roff_text(name + "-" + verb->get_name()),
                        set_text(verb->get_description(), names));
  }
  text += option_list("OPTIONS", options_of(program), false, names);
  text += exit_statuses() + entries("ENVIRONMENT", kEnvironment, names) +
          entries("FILES", kFiles, names);
  return {name, text};
}

ManualPage verb_page(const CLI::App& verb) {
  const std::string name = verb.get_parent()->get_name() + "-" + verb.get_name();
  const std::vector<OptionWords> options = options_of(verb);
  Names names;
  for (const OptionWords& option : options) {
    if (option.argument) names.insert(option.names.front());
    for (std::string& kind : option.kinds()) {
      if (!std::islower(static_cast<unsigned char>(kind.front()))) names.insert(std::move(kind));
    }
  }
  const Notes notes = notes_of(verb);
  std::string text = head(name, verb.get_description()) + synopsis(verb, options);
  text += fmt::format(".SH DESCRIPTION\n{}.\n", set_text(verb.get_description(), names));
  for (const std::string& paragraph : notes.paragraphs) {
    text += fmt::format(".PP\n{}\n", set_text(paragraph, names));
  }
  text += option_list("ARGUMENTS", options, true, names);
  text += option_list("OPTIONS", options, false, names) + exit_statuses();
  if (!notes.examples.empty()) text += ".SH EXAMPLES\n";
  for (const std::string& example : notes.examples) {
    text += fmt::format(".IP \"\" 4\n\\fB{}\\fR\n", roff_text(example));
  }
  std::string mentions = fmt::format("{}", fmt::join(notes.paragraphs, "\n"));
  for (const OptionWords& option : options) mentions += "\n" + option.text;
  return {name, text + see_also(verb, mentions)};
}

std::vector<ManualPage> manual_pages(const CLI::App& program) {
  std::vector<ManualPage> pages{program_page(program)};
  for (const CLI::App* verb : verbs_of(program)) pages.push_back(verb_page(*verb));
  return pages;
}

}  // namespace ringfeed::cli
