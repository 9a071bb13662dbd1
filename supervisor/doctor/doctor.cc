#include "supervisor/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/quote.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

constexpr Severity kWorstFirst[] = {Severity::kWrong, Severity::kBetter, Severity::kNotKnown,
                                    Severity::kFine};

std::string_view colour_of(Severity severity) {
  switch (severity) {
    case Severity::kWrong:
      return "\x1b[1;31m";
    case Severity::kBetter:
      return "\x1b[33m";
    case Severity::kNotKnown:
      return "\x1b[1m";
    case Severity::kFine:
      return "\x1b[32m";
  }
  return "";
}

// In lines of at most `width`, the later ones indented.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t at = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t length = shown_width(word);
    if (at != 0 && at + 1 + length > width) {
      out += '\n' + std::string(indent, ' ');
      at = 0;
    } else if (at != 0) {
      out += ' ';
      ++at;
    }
    out += word;
    at += length;
  }
  return out;
}

constexpr std::size_t kLabel = 8;  // "  costs "

void add_line(std::string& out, std::string_view label, const std::string& text, const Look& look,
              bool is_command) {
  if (text.empty()) return;
  const auto width = static_cast<std::size_t>(std::max(look.width, 40)) - kLabel;
  const std::string shown = escaped(text);
  out += fmt::format("  {:<6}{}\n", label, is_command ? shown : wrapped(shown, width, kLabel));
}

std::string heading(const Finding& finding, const Look& look) {
  const std::string_view text = severity_text(finding.severity);
  return look.colours ? fmt::format("{}{}\x1b[0m", colour_of(finding.severity), text)
                      : std::string(text);
}

// "2 are wrong, 1 could be better, 20 are fine"
std::string summary(const Findings& findings) {
  const auto count = [&](Severity severity) {
    return std::ranges::count(findings, severity, &Finding::severity);
  };
  const auto part = [](std::int64_t number, std::string_view one, std::string_view more) {
    return number == 0 ? std::string() : fmt::format("{} {}, ", number, number == 1 ? one : more);
  };
  return part(count(Severity::kWrong), "is wrong", "are wrong") +
         part(count(Severity::kBetter), "could be better", "could be better") +
         part(count(Severity::kNotKnown), "is not known", "are not known") +
         fmt::format("{} {} fine\n", count(Severity::kFine),
                     count(Severity::kFine) == 1 ? "is" : "are");
}

}  // namespace

std::vector<Check> checks_of_machine(const SocketPlace& sockets,
                                     const std::vector<std::string>& search) {
  return {
      {"kernel", look_at_kernel, true},
      {"system calls", look_at_system_calls},
      {"proc", look_at_proc, true},
      {"memory", look_at_memory, true},
      {"large pages", look_at_large_pages, true},
      {"dev shm", look_at_shared_memory_mount},
      {"processors", look_at_processors, true},
      {"numa", look_at_numa, true},
      {"clock", look_at_clock, true},
      {"vector units", look_at_vector_units, true},
      {"open files", look_at_open_files, true},
      {"processes", look_at_processes, true},
      {"address space", look_at_address_space, true},
      {"stack", look_at_stack, true},
      {"file size", look_at_file_size, true},
      {"core dumps", look_at_core_dumps, true},
      {"locked memory", look_at_locked_memory, true},
      {"inotify", look_at_inotify, true},
      {"temporary directory", look_at_temporary_directory},
      {"dead letters", look_at_dead_letters},
      {"workers", look_at_workers},
      {"python", look_at_python},
      {"socket directory", [sockets] { return look_at_socket_directory(sockets); }},
      {"feeds", [search] { return look_at_feeds(search); }},
  };
}

std::string show(const Findings& findings, const Look& look) {
  std::size_t names = 0;
  for (const Finding& one : findings) names = std::max(names, one.check.size());
  std::string out;
  for (const Severity severity : kWorstFirst) {
    for (const Finding& one : findings) {
      if (one.severity != severity) continue;
      if (severity == Severity::kFine) {
        if (!look.all) continue;
        const std::size_t indent = names + 7;
        const auto width = static_cast<std::size_t>(std::max(look.width, 60)) - indent;
        out += fmt::format("{}  {:<{}} {}\n", heading(one, look), one.check, names,
                           wrapped(escaped(one.what), width, indent));
        continue;
      }
      out += fmt::format("{}: {}\n", heading(one, look), one.check);
      add_line(out, "what", one.what, look, false);
      add_line(out, "cost", one.cost, look, false);
      add_line(out, "mend", one.mend, look, true);
      add_line(out, one.mend.empty() ? "mend" : "", one.advice, look, false);
      out += '\n';
    }
  }
  return out + summary(findings);
}

std::string findings_json(const Findings& findings) {
  const auto count = [&](Severity severity) {
    return std::ranges::count(findings, severity, &Finding::severity);
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    std::string severity(severity_text(one.severity));
    std::ranges::replace(severity, ' ', '_');
    std::string check = one.check;
    std::ranges::replace(check, ' ', '_');
    list.push_back({{"check", check},
                    {"severity", severity},
                    {"what", one.what},
                    {"cost", one.cost},
                    {"mend", one.mend},
                    {"advice", one.advice}});
  }
  const nlohmann::ordered_json out{{"ok", !is_wrong(findings)},
                                   {"version", RINGFEED_VERSION},
                                   {"wrong", count(Severity::kWrong)},
                                   {"could_be_better", count(Severity::kBetter)},
                                   {"not_known", count(Severity::kNotKnown)},
                                   {"fine", count(Severity::kFine)},
                                   {"findings", list}};
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

bool is_wrong(const Findings& findings) {
  return std::ranges::count(findings, Severity::kWrong, &Finding::severity) != 0;
}

}  // namespace ringfeed::doctor
