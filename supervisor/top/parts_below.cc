#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <sstream>

#include "supervisor/os/text.h"
#include "supervisor/top/parts.h"
#include "supervisor/top/table.h"

namespace ringfeed::top {
namespace {

using Presence = Heard::Presence;

Line title(std::string text) { return Line(std::move(text), Tone::kTitle); }

Row trainer_row(const TrainerRow& one, const Paper& paper) {
  const bool somebody = one.pid != 0;
  const auto number = [&](std::string text) {
    return somebody ? Cell(std::move(text)) : Cell("-", Tone::kDim);
  };
  std::string group = " " + paper.clean(one.group);
  if (!one.output.empty()) group += fmt::format(" ({})", paper.clean(one.output));
  Row row;
  row.cells = {
      Cell(group, somebody ? Tone::kPlain : Tone::kDim),
      number(fmt::to_string(one.member)),
      number(fmt::to_string(one.pid)),
      somebody ? Cell(paper.clean(one.client)) : Cell("no trainer", Tone::kBlocked),
      number(whole(one.taken)),
      number(one.per_s ? brief(*one.per_s) : "-"),
      number(whole(one.holds)),
      Cell(whole(one.behind)),
      Cell(whole(one.skipped), one.skipped == 0 ? Tone::kDim : Tone::kBad),
  };
  return row;
}

struct Curve {
  std::string title;
  std::vector<double> values;
  double most = 0;
  std::string (*show)(double);
};

std::string shown_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }
std::string shown_rate(double value) { return brief(value); }
std::string shown_memory(double value) { return shown_bytes(static_cast<std::uint64_t>(value)); }

std::string limit_of(const FeedNow& feed) {
  if (feed.presence != Presence::kAnswers) return feed.trouble;
  if (feed.picture == nullptr) return {};
  for (const OutputRow& output : feed.picture->outputs) {
    if (!output.sentence.empty()) return output.sentence;
  }
  return feed.picture->reason;
}

std::string state_word(const FeedNow& feed) {
  switch (feed.presence) {
    case Presence::kAsked:
      return "asking";
    case Presence::kSilent:
      return "silent";
    case Presence::kOrphaned:
      return "orphaned";
    case Presence::kGone:
      return "ended";
    case Presence::kAnswers:
      break;
  }
  return feed.picture == nullptr ? std::string() : feed.picture->state;
}

}  // namespace

Lines trainers(const Picture& picture, const Paper& paper) {
  if (picture.trainers.empty()) {
    return {title(" trainers"), Line("   none, and no group that waits for one", Tone::kDim)};
  }
  std::vector<Row> rows;
  std::size_t name = 8;
  bool lost = false;
  for (const TrainerRow& one : picture.trainers) {
    rows.push_back(trainer_row(one, paper));
    name = std::max(name, rows.back().cells.front().line.width());
    lost = lost || one.skipped != 0;
  }
  return table({{title(" group"), std::min<std::size_t>(name, 18), name, 0},
                {title("member"), 6, 6, 4, true},
                {title("pid"), 7, 8, 3, true},
                {title("program"), 12, 30, 5},
                {title("taken"), 9, 13, 2, true},
                {title("taken/s"), 8, 9, 0, true},
                {title("holds"), 5, 6, 0, true},
                {title("behind"), 7, 9, 1, true},
                {title("lost"), 6, 9, lost ? 1 : 6, true}},
               rows, paper.columns, paper.utf8);
}

Lines events(const FeedNow& feed, const Paper& paper) {
  Lines lines{title(" what has happened")};
  if (feed.picture != nullptr && !feed.picture->skips.empty()) {
    std::vector<std::string> parts;
    for (const auto& [what, count] : feed.picture->skips) {
      parts.push_back(fmt::format("{} {}", paper.clean(what), whole(count)));
    }
    // Beside the title: events need the lines.
    lines.front()
        .add(fmt::format("   left out so far: {}", fmt::join(parts, ", ")), Tone::kBlocked)
        .cut(paper.columns, paper.utf8);
  }
  if (feed.story == nullptr) return lines;
  for (const Event& event : feed.story->events()) {
    const std::tm day = fmt::localtime(static_cast<std::time_t>(event.time_s));
    Line line(fmt::format("   {:%H:%M:%S} ", day), Tone::kDim);
    line.add(paper.clean(event.text), event.bad ? Tone::kBad : Tone::kPlain);
    lines.push_back(line.cut(paper.columns, paper.utf8));
  }
  if (lines.size() == 1) {
    lines.push_back(
        Line(cut("   nothing since this was started", paper.columns, paper.utf8), Tone::kDim));
  }
  return lines;
}

Lines curves(const FeedNow& feed, const Now& now, const Paper& paper, std::size_t rows) {
  Lines lines;
  if (feed.story == nullptr || rows == 0) return lines;
  const std::array<Curve, 3> all{
      Curve{"batches/s", feed.story->rates(now.ms), 0, shown_rate},
      Curve{"slots full", feed.story->slots_used(now.ms), 1, shown_percent},
      Curve{"memory", feed.story->memory(now.ms), 0, shown_memory},
  };
  lines.push_back(title(" the last minute"));
  for (const Curve& one : all) {
    const double seen = std::max(0.0, *std::ranges::max_element(one.values));
    const double last = one.values.back();
    Line line(fmt::format(" {} ", one.title), Tone::kDim);
    line.add(last < 0 ? "-" : one.show(last), Tone::kBold);
    line.add(fmt::format("{}most {}", paper.dot(), one.show(seen)), Tone::kDim);
    lines.push_back(line.cut(paper.columns, paper.utf8));
    const std::size_t columns = std::min(one.values.size(), paper.columns - 1);
    for (const std::string& row :
         curve(one.values, one.most > 0 ? one.most : seen, columns, rows, paper.utf8)) {
      lines.push_back(Line(" ").add(row, Tone::kBusy));
    }
  }
  return lines;
}

Lines feeds(const Now& now, const View& view, const Paper& paper) {
  std::vector<Row> rows;
  std::size_t name = 8;
  for (const FeedNow& feed : now.feeds) {
    const bool live = feed.presence == Presence::kAnswers && feed.picture != nullptr;
    const Tone tone = live && feed.picture->state == "running" ? Tone::kGood
                      : feed.presence == Presence::kAsked      ? Tone::kDim
                                                               : Tone::kBad;
    Row& row = rows.emplace_back();
    row.chosen = feed.name == view.feed;
    row.cells = {Cell(" " + paper.clean(feed.name), Tone::kBold),
                 Cell(state_word(feed), tone),
                 Cell(live ? brief(feed.picture->batches_per_s) : "-"),
                 Cell(live ? whole(feed.picture->trainer_count) : "-"),
                 Cell(live ? whole(feed.picture->deaths) : "-"),
                 Cell(paper.clean(limit_of(feed)), live ? Tone::kPlain : Tone::kBad)};
    name = std::max(name, row.cells.front().line.width());
  }
  return table({{title(" feed"), std::min<std::size_t>(name, 24), name + 2, 0},
                {title("state"), 9, 9, 0},
                {title("batches/s"), 9, 9, 1, true},
                {title("trainers"), 8, 8, 2, true},
                {title("deaths"), 6, 6, 3, true},
                {title("what limits it"), 16, 200, 4}},
               rows, paper.columns, paper.utf8);
}

Lines whole_why(const Picture& picture, const Paper& paper) {
  Lines lines;
  std::istringstream text(picture.why);
  for (std::string row; std::getline(text, row);) {
    const std::string cleaned = paper.clean(row);
    // A table is cut, a sentence is wrapped.
    if (row.find("  ") != std::string::npos) {
      lines.push_back(Line(" " + cut(cleaned, paper.columns - 1, paper.utf8)));
      continue;
    }
    for (const std::string& line : wrapped(cleaned, paper.columns - 1)) {
      lines.push_back(Line(" " + line));
    }
  }
  return lines;
}

Lines help(const Paper& paper) {
  struct Word {
    const char* key;
    const char* text;
  };
  const char* const up = paper.utf8 ? "↑ ↓" : "Up Down";
  const std::array<Word, 26> rows{{
      {up, "choose a stage, with its lanes, queues and counters"},
      {"Enter", "the chosen stage on a page of its own; of the list, the chosen feed"},
      {"Esc", "back; no stage is chosen any more"},
      {"> <  s", "sort the stages by another column; r turns the order"},
      {"w", "why: all that is known of what limits the feed"},
      {"n p  Tab", "the next feed, the one before"},
      {"f", "the list of feeds"},
      {"? h", "this page"},
      {"q", "leave; nothing here changes a feed"},
      {"", ""},
      {"stage", "the sign in front marks the one that limits the feed"},
      {"lanes", "at work; 1/2: one of two has no process just now"},
      {"died", "how often its process has died and got a successor"},
      {"out/s", "records that it gave out, of the last stage batches"},
      {"busy", "share of their time in which its lanes work"},
      {"starv", "in which they wait for input"},
      {"block", "in which they wait for room in the queue behind them"},
      {"cpu", "in which they are on a processor; the rest of busy waits for disks and the like"},
      {"queue", "how full the queue behind the stage is; of the last stage: slots for batches"},
      {"slots full", "batches that are finished and not yet given back by all groups"},
      {"taken/s", "batches that a trainer took in the last second"},
      {"holds", "batches that a trainer has taken and not given back"},
      {"behind", "finished batches that the group has not done with"},
      {"lost", "batches that a group was too slow for"},
      {"", ""},
      {"", "Rates and shares are over the last ten seconds, those of lanes over the last one."},
  }};
  Lines lines;
  for (const Word& row : rows) {
    Line line(" " + left(row.key, 12, paper.utf8), Tone::kBold);
    for (const std::string& text : wrapped(row.text, paper.columns - 14)) {
      lines.push_back(line.add(text));
      line = Line(std::string(13, ' '));
    }
  }
  return lines;
}

Line keys(const View& view, const Now& now, const Paper& paper) {
  struct Hint {
    const char* key;
    const char* text;
  };
  const char* const up = paper.utf8 ? "↑↓" : "arrows";
  std::vector<Hint> hints{{"q", "quit"}};
  switch (view.page) {
    case Page::kFeed:
      hints.push_back({"w", "why"});
      hints.push_back({up, "stage"});
      if (!view.stage.empty()) hints.insert(hints.end(), {{"Enter", "details"}, {"Esc", "back"}});
      hints.push_back({"> <", "sort"});
      if (now.feeds.size() > 1) hints.insert(hints.end(), {{"n p", "feed"}, {"f", "feeds"}});
      break;
    case Page::kFeeds:
      hints.insert(hints.end(), {{up, "choose"}, {"Enter", "show"}});
      break;
    case Page::kStage:
    case Page::kWhy:
    case Page::kHelp:
      hints.insert(hints.end(), {{up, "scroll"}, {"Esc", "back"}});
      break;
  }
  hints.push_back({"?", "help"});
  Line line;
  for (const Hint& hint : hints) {
    const std::size_t width = width_of(hint.key) + width_of(hint.text) + 4;
    if (line.width() + width > paper.columns) continue;
    line.add(" ").add(fmt::format(" {} ", hint.key), Tone::kKey).add(fmt::format("{}", hint.text));
  }
  return line;
}

}  // namespace ringfeed::top
