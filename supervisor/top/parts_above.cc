#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "supervisor/os/text.h"
#include "supervisor/top/parts.h"

namespace ringfeed::top {
namespace {

using Presence = Heard::Presence;

// As many of the items as fit, the first ones first.
Line joined(const Lines& items, const Paper& paper) {
  Line out(" ");
  for (const Line& item : items) {
    const std::size_t gap = out.pieces.size() == 1 && out.width() == 1 ? 0 : 2;
    if (out.width() + gap + item.width() > paper.columns) continue;
    out.add(std::string(gap, ' ')).add(item);
  }
  return out;
}

Line item(std::string value, std::string_view word, Tone tone = Tone::kBold) {
  Line line(std::move(value), tone);
  return word.empty() ? line : line.add(fmt::format(" {}", word), Tone::kDim);
}

std::string plural(std::uint64_t count, std::string_view one, std::string_view many) {
  return std::string(count == 1 ? one : many);
}

// What its presence adds to the state of a feed.
Line state_of(const FeedNow& feed) {
  switch (feed.presence) {
    case Presence::kAsked:
      return Line("asking", Tone::kDim);
    case Presence::kSilent:
      return Line("does not answer", Tone::kBad);
    case Presence::kOrphaned:
      return Line("without a supervisor", Tone::kBad);
    case Presence::kGone:
      return Line("ended", Tone::kBad);
    case Presence::kAnswers:
      break;
  }
  if (feed.picture == nullptr) return {};
  const std::string& state = feed.picture->state;
  return Line(state, state == "failed"                         ? Tone::kBad
                     : state == "running"                      ? Tone::kGood
                     : state == "ended" || state == "draining" ? Tone::kBlocked
                                                               : Tone::kPlain);
}

// A sentence in at most so many lines, with an ellipsis if there is more of it.
void add_sentence(const std::string& sentence, std::size_t indent, std::size_t lines_max, Tone tone,
                  const Paper& paper, Lines& out) {
  const std::string text = paper.clean(sentence);
  if (text.empty() || lines_max == 0 || paper.columns <= indent) return;
  const std::size_t columns = paper.columns - indent;
  std::vector<std::string> lines = wrapped(text, columns);
  if (lines.size() > lines_max) {
    std::string& last = lines[lines_max - 1];
    last = cut(last + std::string(columns + 1, ' '), std::min(width_of(last) + 1, columns),
               paper.utf8);
    lines.resize(lines_max);
  }
  for (const std::string& line : lines) out.emplace_back(std::string(indent, ' ') + line, tone);
}

bool is_over(const Picture& picture) {
  return picture.state == "ended" || picture.state == "failed";
}

Line verdict_of(const OutputRow& output, const Picture& picture, const Paper& paper) {
  Line line(" ");
  const auto say = [&](const char* sign, const char* plain, std::string text, Tone tone) {
    line.add(fmt::format("{} ", paper.utf8 ? sign : plain), tone).add(std::move(text), tone);
  };
  using Verdict = OutputRow::Verdict;
  if (is_over(picture)) {
    say("■", "*", "the feed is over", Tone::kBold);
  } else if (output.verdict == Verdict::kTrainersWait) {
    say("▲", "!", fmt::format("TRAINERS WAIT for {}", paper.clean(output.for_whom)), Tone::kLimits);
  } else if (output.verdict == Verdict::kTrainersLimit) {
    say("●", "*", "trainers do not wait: batches wait for them", Tone::kGood);
  } else if (output.verdict == Verdict::kNobody) {
    say("○", "-", "no trainer is attached", Tone::kBold);
  } else {
    say("…", "-", "it is too early to say who waits", Tone::kBold);
  }
  if (!output.alias.empty()) {
    Line named(fmt::format(" {}:", paper.clean(output.alias)), Tone::kBold);
    named.add(line).add(
        fmt::format("  {}/s, {} of {} slots", brief(output.per_s), output.used, output.slots),
        Tone::kDim);
    line = std::move(named);
  }
  return line.cut(paper.columns, paper.utf8);
}

}  // namespace

Line header(const Now& now, const FeedNow& feed, const Paper& paper) {
  Line line(" ");
  line.add(cut(paper.clean(feed.name), paper.columns / 2, paper.utf8), Tone::kBold).add("  ");
  line.add(state_of(feed));
  if (feed.picture != nullptr && feed.presence == Presence::kAnswers) {
    line.add(fmt::format(" for {}", duration(feed.picture->uptime_ms)));
  } else if (feed.picture != nullptr) {
    line.add(fmt::format("{}as it was {} ago", paper.dot(), duration(feed.age_ms)));
  }
  if (feed.picture != nullptr && paper.columns >= 100) {
    line.add(fmt::format("{}supervisor {}", paper.dot(), feed.picture->pid), Tone::kDim);
    if (!feed.picture->config.empty()) {
      line.add(fmt::format("{}{}", paper.dot(), paper.clean(feed.picture->config)), Tone::kDim);
    }
  }
  const std::tm day = fmt::localtime(static_cast<std::time_t>(now.time_s));
  std::string end = fmt::format("{:%H:%M:%S} ", day);
  if (now.feeds.size() > 1) {
    const auto place = static_cast<std::size_t>(&feed - now.feeds.data());
    if (place < now.feeds.size()) {
      end = fmt::format("feed {} of {}{}{}", place + 1, now.feeds.size(), paper.dot(), end);
    }
  }
  const std::size_t width = width_of(end);
  if (width + 20 > paper.columns) return line.cut(paper.columns, paper.utf8);
  line.cut(paper.columns - width - 1, paper.utf8).fill(paper.columns - width);
  return line.add(end, Tone::kDim);
}

Line figures(const Picture& picture, const Paper& paper) {
  std::uint64_t slots = 0;
  std::uint64_t used = 0;
  std::uint64_t batches = 0;
  for (const OutputRow& output : picture.outputs) {
    slots += output.slots;
    used += output.used;
    batches += output.batches;
  }
  Lines items{
      item(brief(picture.batches_per_s), "batches/s"),
      item(fmt::format("{}/{}", used, slots), "slots"),
      item(whole(picture.trainer_count), plural(picture.trainer_count, "trainer", "trainers")),
      item(whole(picture.deaths), plural(picture.deaths, "death", "deaths"),
           picture.deaths == 0 ? Tone::kBold : Tone::kBad),
      item(shown_bytes(picture.memory_bytes), ""),
  };
  if (picture.skipped != 0) {
    items.push_back(item(whole(picture.skipped), "left out", Tone::kBlocked));
  }
  if (picture.lost_batches != 0) {
    items.push_back(item(whole(picture.lost_batches), "batches lost", Tone::kBad));
  }
  items.push_back(item(whole(batches), "batches in all"));
  if (picture.cores > 0) {
    items.push_back(
        item(fmt::format("{:.1f}", picture.cores_busy),
             fmt::format("of {:g} processors, {:.1f} idle", picture.cores, picture.cores_idle)));
  }
  return joined(items, paper);
}

Line minute(const FeedNow& feed, const Now& now, const Paper& paper) {
  if (feed.story == nullptr) return {};
  const std::vector<double> rates = feed.story->rates(now.ms);
  const double most = std::max(0.0, *std::ranges::max_element(rates));
  Line line(" last minute ", Tone::kDim);
  const std::string end = fmt::format(" most {}/s", brief(most));
  const std::size_t room = line.width() + end.size() + 1;
  if (room + 10 > paper.columns) return {};
  const std::size_t columns = std::min(rates.size(), paper.columns - room);
  line.add(curve(rates, most, columns, 1, paper.utf8).front(), Tone::kBusy);
  return line.add(end, Tone::kDim);
}

Lines verdicts(const Picture& picture, const Paper& paper, std::size_t lines_max) {
  Lines lines;
  for (const OutputRow& output : picture.outputs) {
    lines.push_back(verdict_of(output, picture, paper));
    if (!is_over(picture)) add_sentence(output.sentence, 3, lines_max, Tone::kPlain, paper, lines);
  }
  return lines;
}

Lines troubles(const FeedNow& feed, const Paper& paper, std::size_t lines_max) {
  Lines lines;
  const auto add = [&](const std::string& text, Tone tone, std::size_t most) {
    const std::size_t left = lines_max - std::min(lines_max, lines.size());
    add_sentence(text, 1, std::min(most, left), tone, paper, lines);
  };
  if (feed.presence != Presence::kAnswers && feed.presence != Presence::kAsked) {
    add(feed.trouble + "; looking for it", Tone::kBad, lines_max);
  }
  if (feed.picture == nullptr) return lines;
  // What is no trouble has no more than a third of the lines.
  const std::size_t few = std::max<std::size_t>(1, lines_max / 3);
  if (!feed.picture->reason.empty() && feed.presence == Presence::kAnswers) {
    const bool bad = feed.picture->state == "failed";
    add(feed.picture->reason, bad ? Tone::kBad : Tone::kPlain, bad ? lines_max : few);
  }
  for (const std::string& problem : feed.picture->problems) {
    add("problem: " + problem, Tone::kBad, lines_max);
  }
  for (const std::string& progress : feed.picture->progress) add(progress, Tone::kPlain, few);
  return lines;
}

}  // namespace ringfeed::top
