// What a report says of batches and data: delivered by output and trainer, by epoch, by source, and
// what was skipped.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/report/html.h"
#include "supervisor/report/page.h"

namespace ringfeed::report {
namespace {

constexpr double kNsPerS = 1e9;

std::string fate_words(const TrainerNote& note) {
  if (note.fate == "trainer_died") return "<b class=\"bad\">died</b>";
  if (note.fate == "trainer_left") return "left";
  return "there to the end";
}

std::string alias_cell(const std::string& alias) { return alias.empty() ? "–" : html(alias); }

std::string outputs_table(const Facts& facts) {
  const std::array<Column, 5> columns{
      {{"Output"}, {"Batches", true}, {"Rows", true}, {"A second", true}, {"Slots", true}}};
  std::vector<Row> rows;
  for (const FeedStatus& output : facts.status.outputs()) {
    const double rate = facts.adopted || !(facts.seconds > 0)
                            ? 0
                            : static_cast<double>(output.batches_published()) / facts.seconds;
    rows.push_back(
        {{alias_cell(output.alias()), shown_count(output.batches_published()),
          output.rows_published() == 0 ? "–" : shown_count(output.rows_published()),
          rate > 0 ? shown_rate(rate) : "–", shown_count(output.slots())},
         fmt::format("data-output=\"{}\" data-batches=\"{}\" data-rows=\"{}\"",
                     html(output.alias()), output.batches_published(), output.rows_published())});
  }
  return table("Published, by output", columns, rows);
}

std::string trainers_table(const Facts& facts) {
  const std::array<Column, 9> columns{{{"Group"},
                                       {"Output"},
                                       {"Member", true},
                                       {"Process"},
                                       {"Batches taken", true},
                                       {"Given back", true},
                                       {"Waited", true},
                                       {"There"},
                                       {"At the end"}}};
  std::vector<Row> rows;
  for (const auto& [key, note] : facts.account.trainers()) {
    const double there_s = note.last_s - note.first_s;
    const double waited_s = static_cast<double>(note.waited_ns) / kNsPerS;
    rows.push_back(
        {{html(key.group), alias_cell(key.output), fmt::to_string(key.member),
          fmt::format("{} <span class=\"soft\">{}</span>", key.pid, html(note.client)),
          shown_count(note.taken), shown_count(note.done),
          !facts.adopted && there_s > 0 && waited_s <= there_s
              ? fmt::format("{} <span class=\"soft\">({})</span>", shown_seconds(waited_s),
                            shown_share(waited_s / there_s))
              : shown_seconds(waited_s),
          fmt::format("<span class=\"times-cell\">{} – {}</span>", shown_seconds(note.first_s),
                      shown_seconds(note.last_s)),
          fate_words(note)},
         fmt::format("data-group=\"{}\" data-pid=\"{}\" data-taken=\"{}\" data-done=\"{}\" "
                     "data-waited-ns=\"{}\" data-fate=\"{}\"",
                     html(key.group), key.pid, note.taken, note.done, note.waited_ns,
                     html(note.fate))});
  }
  const TrainerNote& others = facts.account.other_trainers();
  const std::uint64_t left_out = facts.account.trainers_left_out();
  if (left_out != 0) {
    rows.push_back({{shown_number(left_out, "other", "others"), "–", "–", "–",
                     shown_count(others.taken), shown_count(others.done),
                     shown_seconds(static_cast<double>(others.waited_ns) / kNsPerS), "–", "–"}});
  }
  return table("Trainers", columns, rows);
}

// The bound that so many of the waits keep: "at most 25 ms".
std::string bound_of(const ConsumerGroupStatus& group, double share) {
  constexpr double kUsPerS = 1e6;
  const auto all = static_cast<double>(
      std::accumulate(group.wait_counts().begin(), group.wait_counts().end(), std::uint64_t{0}));
  double below = 0;
  for (int i = 0; i < group.wait_bounds_us_size() && i < group.wait_counts_size(); ++i) {
    below += static_cast<double>(group.wait_counts(i));
    if (below < share * all) continue;
    return "at most " + shown_seconds(static_cast<double>(group.wait_bounds_us(i)) / kUsPerS);
  }
  return group.wait_bounds_us().empty()
             ? "not known"
             : "over " +
                   shown_seconds(static_cast<double>(*group.wait_bounds_us().rbegin()) / kUsPerS);
}

std::string waits_cell(const ConsumerGroupStatus& group, std::uint64_t waits) {
  if (waits == 0) return "–";
  return fmt::format("half {}, 99 of 100 {}", bound_of(group, 0.5), bound_of(group, 0.99));
}

std::string groups_table(const Facts& facts) {
  const std::array<Column, 8> columns{{{"Group"},
                                       {"Output"},
                                       {"Kind"},
                                       {"First batch", true},
                                       {"Not finished", true},
                                       {"Lost", true},
                                       {"Waited", true},
                                       {"For a batch"}}};
  std::vector<Row> rows;
  for (const ConsumerGroupStatus& group : facts.status.groups()) {
    const std::uint64_t waits =
        std::accumulate(group.wait_counts().begin(), group.wait_counts().end(), std::uint64_t{0});
    rows.push_back(
        {{html(group.name()), alias_cell(group.output()),
          group.kind() == ConsumerGroupConfig::RANKED ? fmt::format("ranked, {}", group.world())
                                                      : "shared",
          shown_count(group.start()), shown_count(group.lag()), shown_count(group.skipped()),
          shown_seconds(static_cast<double>(group.wait_ns()) / kNsPerS), waits_cell(group, waits)},
         fmt::format("data-group=\"{}\" data-lag=\"{}\" data-lost=\"{}\" data-waits=\"{}\" "
                     "data-wait-ns=\"{}\"",
                     html(group.name()), group.lag(), group.skipped(), waits, group.wait_ns())});
  }
  return table("Consumer groups at the end", columns, rows);
}

// The declaration of a counter; nullptr: the plan does not have it.
const CounterPlan* declared(const PipelinePlan& plan, int stage, const std::string& name) {
  if (stage >= plan.stages_size()) return nullptr;
  for (const CounterPlan& counter : plan.stages(stage).counters()) {
    if (counter.name() == name) return &counter;
  }
  return nullptr;
}

// Does it read what no stage before it has read?
bool is_source(const StagePlan& stage) {
  return std::ranges::all_of(stage.inputs(), [](const PortPlan& input) {
    return input.record_type() == "files" || !input.from().empty();
  });
}

// Draws that a sampler refuses ("hanse_rejected") are no loss: they are drawn again.
bool tells_of_loss(const std::string& name) {
  constexpr std::array<std::string_view, 12> kWords{
      "skipped",  "dropped",  "rejected_",    "damaged", "unreadable", "left_out",
      "given_up", "problems", "dead_letters", "missing", "still_open", "games_cut"};
  return std::ranges::any_of(kWords,
                             [&](std::string_view word) { return name.find(word) != name.npos; });
}

std::string shown_name(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return html(name);
}

Row counter_row(const Facts& facts, int number, const CounterStatus& counter) {
  const StageStatus& stage = facts.status.stages(number);
  const CounterPlan* const plan = declared(facts.plan, number, counter.name());
  return {{html(stage.name()), shown_name(counter.name()), shown_count(counter.value()),
           plan == nullptr ? "" : html(plan->help())},
          fmt::format("data-stage=\"{}\" data-counter=\"{}\" data-value=\"{}\"", html(stage.name()),
                      html(counter.name()), counter.value())};
}

std::string counters_table(const std::string& caption, const std::vector<Row>& rows) {
  const std::array<Column, 4> columns{
      {{"Stage"}, {"Counter"}, {"Number", true}, {"What it counts"}}};
  return table(caption, columns, rows);
}

}  // namespace

std::string delivered_part(const Facts& facts) {
  std::string out = "<section><h2>Delivered</h2>\n" + outputs_table(facts);
  out += facts.account.trainers().empty() ? "<p>No trainer took a batch.</p>\n"
                                          : trainers_table(facts);
  if (facts.status.groups_size() != 0) out += groups_table(facts);
  out +=
      "<p class=\"note\">Every group gets every batch, so batches of several groups count once as "
      "published and once in each group. A batch that was delivered again after a death counts for "
      "both members. Lost: skipped by a group that may lag, or closed because its trainer died. "
      "Waited: time asleep in <code>next()</code> because no batch was there; of a trainer all of "
      "it, of a group, with all trainers that it ever had, what batches were waited for that "
      "came.";
  if (facts.adopted) {
    out +=
        " Published counts since the feed began, and what trainers took and waited since they "
        "joined; those that left before this supervisor took it over are not listed.";
  }
  return out + "</p></section>\n";
}

std::string epochs_part(const Facts& facts) {
  const Account& account = facts.account;
  bool counted = !account.epochs_before().empty();
  if (!counted) return {};
  std::string out = "<section><h2>Epochs</h2>\n";
  std::vector<Column> columns{{"Stage"}, {"Epoch", true}, {"Ended after", true}};
  const bool single = account.outputs().size() == 1;
  for (const std::string& alias : account.outputs()) {
    const std::string of = single ? "" : fmt::format(", {}", alias.empty() ? "(no alias)" : alias);
    columns.push_back({"Batches by then" + of, true});
    columns.push_back({"Since the epoch before" + of, true});
  }
  std::map<std::string, std::vector<std::uint64_t>> before;
  std::vector<Row> rows;
  for (const EpochNote& epoch : account.epochs()) {
    std::vector<std::uint64_t>& last = before[epoch.stage];
    // Of the first one that was seen there is no epoch before, unless it is the first of all.
    const bool known = !last.empty() || epoch.number == 1;
    last.resize(epoch.batches.size());
    Row row{
        {html(epoch.stage), shown_count(epoch.number), shown_seconds(epoch.at_s)},
        fmt::format("data-stage=\"{}\" data-epoch=\"{}\" data-batches=\"{}\"", html(epoch.stage),
                    epoch.number, epoch.batches.empty() ? 0 : epoch.batches.front())};
    for (std::size_t i = 0; i < epoch.batches.size(); ++i) {
      row.cells.push_back(shown_count(epoch.batches[i]));
      row.cells.push_back(known ? shown_count(epoch.batches[i] - last[i]) : "–");
    }
    last = epoch.batches;
    rows.push_back(std::move(row));
  }
  out += rows.empty() ? "<p>No epoch ended.</p>\n" : table("Epochs that ended", columns, rows);
  if (account.epochs_left_out() != 0) {
    out += fmt::format("<p>{} more ended, and are not listed.</p>\n",
                       shown_number(account.epochs_left_out(), "epoch", "epochs"));
  }
  for (const auto& [stage, number] : account.epochs_before()) {
    if (number == 0) continue;
    out += fmt::format("<p>Stage {} had ended {} before this supervisor took the feed over.</p>\n",
                       html(stage), shown_number(number, "epoch", "epochs"));
  }
  return out +
         "<p class=\"note\">An epoch has ended when its stage has handed out everything of it. "
         "Batches are those published by then, to a quarter of a second: what was still on its way "
         "in queues and shuffle windows is among the batches of the next epoch.</p></section>\n";
}

std::string sources_part(const Facts& facts) {
  std::vector<Row> rows;
  for (int i = 0; i < facts.status.stages_size() && i < facts.plan.stages_size(); ++i) {
    if (!is_source(facts.plan.stages(i))) continue;
    for (const CounterStatus& counter : facts.status.stages(i).counters()) {
      if (counter.value() != 0 || counter.name() == "files_found") {
        rows.push_back(counter_row(facts, i, counter));
      }
    }
  }
  if (rows.empty()) return {};
  return "<section><h2>Files and what was read</h2>\n" +
         counters_table("What the sources counted", rows) +
         "<p class=\"note\">Exact over all lives of a stage: a counter changes together with the "
         "step that it counts. Of these stages, which begin with files or make data themselves, "
         "all numbers; those of the others are below if they tell of a loss. Which row of which "
         "file went into which batch is not counted.</p></section>\n";
}

std::vector<Loss> losses(const Facts& facts) {
  std::vector<Loss> found;
  for (int i = 0; i < facts.status.stages_size(); ++i) {
    for (const CounterStatus& counter : facts.status.stages(i).counters()) {
      if (counter.value() == 0 || !tells_of_loss(counter.name())) continue;
      const CounterPlan* const plan = declared(facts.plan, i, counter.name());
      if (plan == nullptr || !plan->gauge()) found.push_back({i, &counter});
    }
  }
  return found;
}

std::string skips_part(const Facts& facts) {
  std::vector<Row> rows;
  for (const Loss& one : losses(facts)) rows.push_back(counter_row(facts, one.stage, *one.counter));
  std::string out = "<section><h2>Skipped</h2>\n";
  if (rows.empty()) {
    out += "<p>Nothing was skipped.</p>\n";
  } else {
    out += counters_table("Left out, by stage and reason", rows);
    out += "<p class=\"note\">Some counters sum up others, so the numbers do not add up.</p>\n";
  }
  if (!facts.account.lines().empty()) {
    out += "<h3>Warnings of the stages</h3>\n<pre id=\"lines\" tabindex=\"0\">";
    for (const std::string& line : facts.account.lines()) out += html(line) + "\n";
    out += "</pre>\n";
    if (facts.account.lines_left_out() != 0) {
      out += fmt::format("<p class=\"note\">{} more in the log.</p>\n",
                         shown_number(facts.account.lines_left_out(), "line", "lines"));
    }
  }
  return out + "</section>\n";
}

}  // namespace ringfeed::report
