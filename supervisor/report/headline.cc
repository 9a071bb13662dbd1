// The first words of a report: what ran, how long, what was delivered, who waited for whom; and
// what limited.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/report/html.h"
#include "supervisor/report/page.h"

namespace ringfeed::report {
namespace {

std::string output_name(const std::string& alias) {
  return alias.empty() ? "without an alias" : fmt::format("“{}”", html(alias));
}

std::string batches_and_rows(const FeedStatus& output) {
  std::string text = shown_number(output.batches_published(), "batch", "batches");
  if (output.rows_published() != 0) {
    text += fmt::format(" ({})", shown_number(output.rows_published(), "row", "rows"));
  }
  return text;
}

// Batches that were made, but that a group did not finish.
std::string unfinished_words(const Facts& facts) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> parts;
  std::size_t more = 0;
  for (const ConsumerGroupStatus& group : facts.status.groups()) {
    if (group.lag() == 0) continue;
    if (parts.size() == kNamed) {
      ++more;
      continue;
    }
    parts.push_back(fmt::format(
        "group “{}” did not finish {}", html(group.name()),
        group.lag() == 1 ? "one of them" : fmt::format("{} of them", shown_count(group.lag()))));
  }
  if (parts.empty()) return {};
  if (more != 0) {
    parts.push_back(fmt::format("nor did {}", shown_number(more, "other group", "other groups")));
  }
  return fmt::format("; {}", fmt::join(parts, ", "));
}

std::string delivered_sentence(const Facts& facts) {
  const auto& outputs = facts.status.outputs();
  std::vector<std::string> parts;
  std::uint64_t batches = 0;
  for (const FeedStatus& output : outputs) {
    batches += output.batches_published();
    parts.push_back(outputs.size() == 1 ? batches_and_rows(output)
                                        : fmt::format("{} of output {}", batches_and_rows(output),
                                                      output_name(output.alias())));
  }
  const std::string left = unfinished_words(facts);
  const bool taken = facts.adopted || !facts.account.trainers().empty();
  std::string text = fmt::format("The feed {} <b>{}</b>",
                                 batches == 0 || (taken && left.empty()) ? "delivered" : "made",
                                 fmt::join(parts, ", "));
  if (facts.adopted) {
    return text + fmt::format(
                      "{}. It began on {} UTC; this supervisor took it over and ran it for "
                      "the last {}.",
                      left, shown_date(facts.feed_began_s), shown_seconds(facts.seconds));
  }
  text += fmt::format(" in <b>{}</b>", shown_seconds(facts.seconds));
  if (batches != 0 && facts.seconds > 0) {
    text += fmt::format(", {} a second", shown_rate(static_cast<double>(batches) / facts.seconds));
  }
  return text + left + ".";
}

std::string end_sentence(const Facts& facts) {
  const std::string reason = html(facts.reason);
  switch (facts.end) {
    case End::kEnded:
      return "It came to its end.";
    case End::kDrained:
      return fmt::format("It was drained ({}): what was under way was delivered.", reason);
    case End::kStopped:
      return fmt::format("It was stopped before its end: {}.", reason);
    case End::kFailed:
      return fmt::format("<b class=\"bad\">It failed</b>: {}", reason);
  }
  return {};
}

std::string limit_words(const Facts& facts, const LimitKey& key) {
  const bool nobody = !facts.adopted && facts.account.trainers().empty();
  const std::string_view who = nobody ? "the feed" : "trainers";
  const std::string stage = fmt::format("<b>{}</b>", html(key.stage));
  switch (key.kind) {
    case BottleneckProto::STAGE:
      return fmt::format("{} waited for stage {}", who, stage);
    case BottleneckProto::TRAINERS:
      return "finished batches waited for <b>the trainers</b>";
    case BottleneckProto::FILES:
      return fmt::format("{} waited for files, which stage {} did not have yet", who, stage);
    case BottleneckProto::MACHINE:
      return fmt::format("{} waited for processors: stage {} was the slowest", who, stage);
    case BottleneckProto::GIVES_NOTHING:
      return fmt::format("{} waited for stage {}, which gave nothing of what it had", who, stage);
    case BottleneckProto::QUEUE:
      return fmt::format("{} waited because the queue behind stage {} was too small", who, stage);
    case BottleneckProto::LEAVES_OUT:
      return fmt::format("stage {} left out more than half of what it got", stage);
    default:
      return "nothing can be said";
  }
}

// The largest first.
std::vector<std::pair<LimitKey, LimitNote>> limits_of(const Facts& facts,
                                                      const std::string& output) {
  std::vector<std::pair<LimitKey, LimitNote>> found;
  for (const auto& [key, note] : facts.account.limits()) {
    if (key.output == output) found.emplace_back(key, note);
  }
  std::ranges::stable_sort(found, std::greater<>(),
                           [](const auto& one) { return one.second.seconds; });
  return found;
}

double seconds_of(const std::vector<std::pair<LimitKey, LimitNote>>& limits) {
  double seconds = 0;
  for (const auto& [key, note] : limits) seconds += note.seconds;
  return seconds;
}

std::string limit_sentence(const Facts& facts) {
  std::string text;
  for (const std::string& output : facts.account.outputs()) {
    const auto limits = limits_of(facts, output);
    const double all = seconds_of(limits);
    if (!(all > 0)) continue;
    text += fmt::format(
        "{}For {} of the time {}. ",
        facts.account.outputs().size() == 1 ? "" : fmt::format("Output {}: ", output_name(output)),
        shown_share(limits.front().second.seconds / all), limit_words(facts, limits.front().first));
  }
  return text;
}

std::string waiting_sentence(const Facts& facts) {
  double there_s = 0;
  double waited_s = static_cast<double>(facts.account.other_trainers().waited_ns) / 1e9;
  for (const auto& [key, note] : facts.account.trainers()) {
    const double here_s = note.last_s - note.first_s;
    const double said_s = static_cast<double>(note.waited_ns) / 1e9;
    there_s += here_s;
    // It writes the number itself. An adopted one was there before it was seen.
    waited_s += facts.adopted ? said_s : std::min(said_s, here_s);
  }
  const std::uint64_t left_out = facts.account.trainers_left_out();
  const std::uint64_t count = facts.account.trainers().size() + left_out;
  if (count == 0) return "No trainer took part.";
  std::string text =
      fmt::format("{} waited {} for batches in all", shown_number(count, "trainer", "trainers"),
                  shown_seconds(waited_s));
  // What an adopted one had waited before was not in this time; nor is the time of the others
  // known.
  if (there_s > 0 && !facts.adopted && left_out == 0) {
    text += fmt::format(", {} of {} time", shown_share(std::min(1.0, waited_s / there_s)),
                        count == 1 ? "its" : "their");
  }
  return text + ".";
}

std::string trouble_sentence(const Facts& facts) {
  const std::vector<Loss> lost = losses(facts);
  std::uint64_t letters = 0;
  for (const Loss& one : lost) {
    if (one.counter->name() == "dead_letters") letters += one.counter->value();
  }
  const std::uint64_t deaths = facts.metrics.deaths();
  std::string text = deaths == 0
                         ? "No process of a stage died"
                         : fmt::format("<b>{}</b>", shown_number(deaths, "process of a stage died",
                                                                 "processes of stages died"));
  if (facts.adopted) text += " since then";
  text += lost.empty() ? ", and nothing was skipped"
                       : "; some data was left out, as listed under “Skipped”";
  if (letters != 0) {
    text += fmt::format("; {} set aside as dead letters",
                        shown_number(letters, "record was", "records were"));
  }
  return text + ".";
}

const char* kind_class(int kind) {
  switch (kind) {
    case BottleneckProto::TRAINERS:
      return "blocked";
    case BottleneckProto::FILES:
      return "starved";
    case BottleneckProto::UNKNOWN:
      return "unknown";
    default:
      return "busy";
  }
}

std::string limits_of_output(const Facts& facts, const std::string& output, bool named) {
  const auto limits = limits_of(facts, output);
  const double all = seconds_of(limits);
  if (!(all > 0)) return {};
  std::string out = named ? fmt::format("<h3>Output {}</h3>\n", output_name(output)) : "";
  out += "<ul class=\"limits\">\n";
  for (const auto& [key, note] : limits) {
    const double share = note.seconds / all;
    const Share part{kind_class(key.kind), share};
    out += fmt::format(
        "<li data-kind=\"{}\" data-stage=\"{}\"><p><span class=\"share\">{}</span> {} <span "
        "class=\"soft\">({})</span></p>{}<p class=\"soft\">{}</p></li>\n",
        BottleneckProto::Kind_Name(static_cast<BottleneckProto::Kind>(key.kind)), html(key.stage),
        shown_share(share), limit_words(facts, key), shown_seconds(note.seconds),
        bar(shown_share(share), {&part, 1}), html(note.sentence));
  }
  return out + "</ul>\n";
}

}  // namespace

std::string headline(const Facts& facts) {
  std::string text =
      fmt::format("<section id=\"headline\"><p class=\"lead\">{}</p>\n", delivered_sentence(facts));
  text +=
      fmt::format("<p class=\"lead\">{} {}</p>\n", limit_sentence(facts), waiting_sentence(facts));
  return text + fmt::format("<p>{} {}</p>\n", end_sentence(facts), trouble_sentence(facts));
}

std::string limits_part(const Facts& facts) {
  std::string out = "<section><h2>Who waited for whom</h2>\n";
  std::string parts;
  for (const std::string& output : facts.account.outputs()) {
    parts += limits_of_output(facts, output, facts.account.outputs().size() > 1);
  }
  if (parts.empty()) return out + "<p>The run was too short to tell.</p></section>\n";
  return out + parts +
         "<p class=\"note\">Looked at once a second. The sentence is what <code>ringfeed "
         "why</code> "
         "would have said the last time.</p></section>\n";
}

}  // namespace ringfeed::report
