#include "supervisor/report/page.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/os/text.h"
#include "supervisor/report/html.h"
#include "supervisor/report/page_bytes.h"

namespace ringfeed::report {
namespace {

std::string shown_bytes_of(double bytes) {
  return shown_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

const char* state_text(End end) {
  switch (end) {
    case End::kEnded:
      return "ended";
    case End::kDrained:
      return "drained";
    case End::kStopped:
      return "stopped";
    case End::kFailed:
      return "failed";
  }
  return "ended";
}

std::string tile(std::string_view title, const std::string& value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", title, value);
}

std::string tiles(const Facts& facts) {
  std::uint64_t batches = 0;
  std::uint64_t rows = 0;
  for (const FeedStatus& output : facts.status.outputs()) {
    batches += output.batches_published();
    rows += output.rows_published();
  }
  std::string out = "<dl class=\"tiles\">";
  out += tile("Batches", shown_count(batches));
  out += tile("Rows", rows == 0 ? "–" : shown_count(rows));
  // What an earlier supervisor has seen is not known.
  out += tile(facts.adopted ? "Time since the takeover" : "Time", shown_seconds(facts.seconds));
  out += tile("Trainers",
              shown_count(facts.account.trainers().size() + facts.account.trainers_left_out()));
  out += tile(facts.adopted ? "Deaths since then" : "Deaths", shown_count(facts.metrics.deaths()));
  out += tile("Memory of the feed", html(shown_bytes(facts.status.memory_bytes())));
  return out + "</dl>\n";
}

std::string curves_part(const Facts& facts) {
  const Account& account = facts.account;
  std::vector<double> deaths;
  for (const std::deque<Happening>* list : {&account.first(), &account.last()}) {
    for (const Happening& one : *list) {
      if (one.name == "worker_died" || one.name == "idle_worker_died") deaths.push_back(one.at_s);
    }
  }
  const auto lines = [&](auto number_of) {
    std::vector<Line> all;
    for (std::size_t i = 0; i < account.outputs().size(); ++i) {
      const std::string& alias = account.outputs()[i];
      all.push_back({account.outputs().size() == 1 ? ""
                     : alias.empty()               ? "(no alias)"
                                                   : alias,
                     number_of(i)});
    }
    return all;
  };
  const auto rates = lines([&](std::size_t i) { return account.rate_of(i); });
  const auto waits = lines([&](std::size_t i) { return account.waits_of(i); });
  const auto slots = lines([&](std::size_t i) { return account.slots_of(i); });
  std::string figures;
  const double span_s = facts.seconds;
  figures += figure(account.curves(), {"Batches a second", rates, &shown_rate, 0, span_s, deaths});
  figures += figure(account.curves(), {"Trainers’ time spent waiting for a batch", waits,
                                       &shown_share, 1, span_s, deaths, false});
  figures += figure(account.curves(), {"Slots in use", slots, &shown_share, 1, span_s, deaths});
  figures += figure(account.curves(), {"Private memory of the stages’ processes",
                                       {{"", account.memory()}},
                                       &shown_bytes_of,
                                       0,
                                       span_s,
                                       deaths});
  std::string out = "<section><h2>Over the run</h2>\n";
  out += figures.empty() ? "<p>It was over before anything could be measured.</p>\n"
                         : fmt::format("<div class=\"figures\">{}</div>\n", figures);
  if (!figures.empty() && !deaths.empty()) {
    out += "<p class=\"note\"><span class=\"key death\"></span>a process of a stage died</p>\n";
  }
  if (facts.adopted) {
    out += "<p class=\"note\">The curves begin when this supervisor took the feed over.</p>\n";
  }
  return out + "</section>\n";
}

std::string definition(std::string_view name, const std::string& value) {
  return value.empty() ? "" : fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, html(value));
}

std::string origin_part(const Facts& facts) {
  const Machine& machine = facts.machine;
  std::string out = "<section><h2>Machine and versions</h2>\n<dl class=\"facts\">";
  out += definition("Machine", machine.host);
  out += definition("System", machine.system);
  out += definition("Processor", machine.processor);
  out += definition("Processors for the feed", fmt::format("{:.3g}", machine.cores));
  out += definition("Memory of the machine", shown_bytes(machine.memory_bytes));
  out += definition("ringfeed", facts.version);
  out += definition("ABI", facts.abi);
  out += definition("Worker", facts.worker);
  out += definition("Seed", fmt::to_string(facts.status.seed()));
  out += definition("Feed", facts.feed_id);
  out += definition("Configuration file", facts.status.config_file());
  out += definition("Resumed from", facts.resumed_from);
  out += fmt::format("</dl>\n<h3>Shared memory</h3>\n<pre tabindex=\"0\">{}</pre>\n",
                     html_lines(facts.memory));
  return out + fmt::format(
                   "<h3>Configuration</h3>\n<pre id=\"configuration\" tabindex=\"0\">{}</pre>"
                   "\n</section>\n",
                   html_lines(facts.configuration));
}

// "model name : AMD EPYC" of /proc/cpuinfo.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace

Machine this_machine(double cores) {
  Machine machine;
  machine.cores = cores;
  utsname names{};
  if (::uname(&names) == 0) {
    machine.host = names.nodename;
    machine.system = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  }
  machine.processor = processor_name();
  struct sysinfo info {};
  if (::sysinfo(&info) == 0) machine.memory_bytes = std::uint64_t{info.totalram} * info.mem_unit;
  return machine;
}

std::string page(const Facts& facts) {
  const std::string name = html(facts.status.feed());
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      // Should anything have slipped through, it is not carried out.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\">\n<title>{0} · ringfeed report</title>\n<style>\n{1}</style>\n"
      "</head>\n<body>\n<header><p>ringfeed report</p><h1>{0}</h1>"
      "<p class=\"state {2}\">{2}</p></header>\n<main>\n",
      name, report_css(), state_text(facts.end));
  out += headline(facts);
  out += tiles(facts) + "</section>\n";
  out += curves_part(facts);
  out += limits_part(facts);
  out += delivered_part(facts);
  out += epochs_part(facts);
  out += sources_part(facts);
  out += skips_part(facts);
  out += stages_part(facts);
  out += timeline_part(facts);
  out += origin_part(facts);
  return out + fmt::format(
                   "</main>\n<footer>Written by ringfeed {} on {} UTC.</footer>\n"
                   "</body>\n</html>\n",
                   html(facts.version), shown_date(facts.ended_s));
}

}  // namespace ringfeed::report
