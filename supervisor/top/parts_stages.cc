#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "supervisor/os/text.h"
#include "supervisor/top/parts.h"
#include "supervisor/top/table.h"

namespace ringfeed::top {
namespace {

std::vector<Share> bar_of(const Shares& shares) {
  return {{shares.busy, Tone::kBusy},
          {shares.starved, Tone::kStarved},
          {shares.blocked, Tone::kBlocked}};
}

Cell percent(const std::optional<Shares>& shares, double Shares::*part, Tone tone) {
  if (!shares) return Cell("-", Tone::kDim);
  const double value = 100 * std::clamp(*shares.*part, 0.0, 1.0);
  return {fmt::format("{:.0f}", value), value >= 0.5 ? tone : Tone::kDim};
}

// The queue out of the stage that is fullest.
const QueueRow* fullest(const StageRow& stage) {
  const QueueRow* found = nullptr;
  const auto share = [](const QueueRow& queue) {
    return static_cast<double>(queue.fill) /
           static_cast<double>(std::max<std::uint64_t>(1, queue.capacity));
  };
  for (const QueueRow& queue : stage.queues) {
    if (queue.inside) continue;
    if (found == nullptr || share(queue) > share(*found)) found = &queue;
  }
  return found;
}

Cell queue_bar(const QueueRow* queue) {
  if (queue == nullptr || queue->capacity == 0) return Cell("-", Tone::kDim);
  const double share = static_cast<double>(queue->fill) / static_cast<double>(queue->capacity);
  return std::vector<Share>{{share, Tone::kFill}};
}

std::string fill_text(const QueueRow& queue) {
  return fmt::format("{}/{}", queue.fill, queue.capacity);
}

// The title of a column by which stages can be sorted; the one by which they are has a sign.
class Titles {
 public:
  Titles(const View& view, bool utf8) : view_(view), utf8_(utf8) {}

  [[nodiscard]] Line operator()(std::string text, Sort sort, Tone sign = Tone::kPlain) const {
    Line line(std::move(text), Tone::kTitle);
    if (view_.sort == sort && sort != Sort::kPipeline) return line.add(arrow(), Tone::kBold);
    return sign == Tone::kPlain ? line : line.add(bar_sign(sign, utf8_), sign);
  }

 private:
  [[nodiscard]] const char* arrow() const {
    if (utf8_) return view_.reversed ? "▴" : "▾";
    return view_.reversed ? "^" : "v";
  }
  const View& view_;
  bool utf8_;
};

std::size_t widest(const Picture& picture, const Paper& paper, std::string StageRow::*text,
                   std::size_t least) {
  std::size_t width = least;
  for (const StageRow& stage : picture.stages) {
    width = std::max(width, width_of(paper.clean(stage.*text)));
  }
  return width;
}

std::vector<Column> stage_columns(const Picture& picture, const View& view, const Paper& paper) {
  const Titles title(view, paper.utf8);
  const bool died =
      std::ranges::any_of(picture.stages, [](const StageRow& one) { return one.deaths != 0; });
  const std::size_t name = widest(picture, paper, &StageRow::name, 10) + 3;
  const std::size_t kind = widest(picture, paper, &StageRow::kind, 4);
  const std::size_t process = widest(picture, paper, &StageRow::process, 7);
  return {
      {title(" stage", Sort::kName), std::min<std::size_t>(name, 12),
       std::min<std::size_t>(name, 40), 0},
      {title("kind", Sort::kPipeline), kind, kind, 8},
      {title("process", Sort::kPipeline), process, process, 9},
      {title("pid", Sort::kPipeline), 7, 7, 10, true},
      {title("lanes", Sort::kLanes), 6, 6, 4, true},
      {title("died", Sort::kDeaths), 5, 5, died ? 3 : 7, true},
      {title("in all", Sort::kPipeline), 13, 15, 9, true},
      {title("out/s", Sort::kRate), 7, 9, 0, true},
      {title("time", Sort::kPipeline), 10, 40, 1},
      {title("busy", Sort::kBusy, Tone::kBusy), 5, 7, 2, true},
      {title("starv", Sort::kStarved, Tone::kStarved), 6, 8, 3, true},
      {title("block", Sort::kBlocked, Tone::kBlocked), 6, 8, 3, true},
      {title("cpu", Sort::kPipeline), 4, 5, 8, true},
      {title("queue", Sort::kQueue), 8, 30, 1},
      {title("full", Sort::kPipeline), 9, 13, 3, true},
      {title("to", Sort::kPipeline), 10, 24, 6},
  };
}

Row stage_row(const StageRow& stage, const View& view, const Paper& paper) {
  const QueueRow* const queue = fullest(stage);
  Line name(stage.limits ? fmt::format("{} ", paper.mark()) : "  ",
            stage.limits ? Tone::kLimits : Tone::kPlain);
  name.add(paper.clean(stage.name), stage.limits ? Tone::kLimits : Tone::kPlain);
  Cell lanes(fmt::format("{}", stage.lanes), stage.lanes == 0 ? Tone::kDim : Tone::kPlain);
  if (stage.absent != 0) {
    lanes = Cell(fmt::format("{}/{}", stage.lanes, stage.lanes + stage.absent), Tone::kBad);
  }
  Row row;
  row.chosen = stage.name == view.stage;
  row.cells = {
      name,
      Cell(paper.clean(stage.kind), Tone::kDim),
      Cell(paper.clean(stage.process), Tone::kDim),
      Cell(stage.pid == 0 ? "-" : fmt::to_string(stage.pid), Tone::kDim),
      lanes,
      Cell(fmt::to_string(stage.deaths), stage.deaths == 0 ? Tone::kDim : Tone::kBad),
      Cell(whole(stage.out)),
      Cell(stage.out_per_s ? brief(*stage.out_per_s) : "-"),
      stage.shares ? Cell(bar_of(*stage.shares)) : Cell("not measured", Tone::kDim),
      percent(stage.shares, &Shares::busy, Tone::kBusy),
      percent(stage.shares, &Shares::starved, Tone::kStarved),
      percent(stage.shares, &Shares::blocked, Tone::kBlocked),
      percent(stage.shares, &Shares::cpu, Tone::kPlain),
      queue_bar(queue),
      Cell(queue == nullptr ? "-" : fill_text(*queue)),
      Cell(queue == nullptr ? std::string()
                            : fmt::format("{} {}", paper.arrow(), paper.clean(queue->to)),
           Tone::kDim),
  };
  return row;
}

std::string lanes_word(std::size_t lanes) {
  return fmt::format("{} lane{}", lanes, lanes == 1 ? "" : "s");
}

void add_queues(const StageRow& stage, const Paper& paper, Lines& lines) {
  std::vector<Row> rows;
  for (const QueueRow& queue : stage.queues) {
    Row& row = rows.emplace_back();
    row.cells = {Cell(" " + paper.clean(queue.name)),
                 Cell(fmt::format("{} {}", paper.arrow(), paper.clean(queue.to)), Tone::kDim),
                 queue_bar(&queue),
                 Cell(fill_text(queue)),
                 Cell(brief(queue.put_per_s)),
                 Cell(whole(queue.dropped), queue.dropped == 0 ? Tone::kDim : Tone::kBad)};
  }
  if (rows.empty()) return;
  const auto title = [](const char* text) { return Line(text, Tone::kTitle); };
  const Lines drawn = table({{title(" queue"), 10, 16, 0},
                             {title("to"), 12, 20, 3},
                             {title(""), 10, 24, 1},
                             {title("full"), 9, 15, 0, true},
                             {title("put/s"), 7, 9, 0, true},
                             {title("dropped"), 8, 12, 2, true}},
                            rows, paper.columns, paper.utf8);
  lines.insert(lines.end(), drawn.begin(), drawn.end());
}

void add_lanes(const StageRow& stage, const Paper& paper, Lines& lines) {
  std::vector<Row> rows;
  for (const LaneRow& lane : stage.lane_rows) {
    const bool works =
        lane.state == "running" || lane.state == "starved" || lane.state == "blocked";
    Row& row = rows.emplace_back();
    row.cells = {Cell(" " + paper.clean(lane.name)),
                 Cell(lane.state, lane.state == "absent" ? Tone::kBad
                                  : works                ? Tone::kPlain
                                                         : Tone::kDim),
                 Cell(lane.pid == 0 ? "-" : fmt::to_string(lane.pid), Tone::kDim),
                 Cell(whole(lane.restarts), lane.restarts == 0 ? Tone::kDim : Tone::kBad),
                 Cell(whole(lane.in)),
                 Cell(whole(lane.out)),
                 Cell(lane.out_per_s ? brief(*lane.out_per_s) : "-"),
                 lane.shares ? Cell(bar_of(*lane.shares)) : Cell("-", Tone::kDim)};
  }
  const auto title = [](const char* text) { return Line(text, Tone::kTitle); };
  const Lines drawn = table({{title(" lane"), 14, 32, 0},
                             {title("state"), 8, 8, 2},
                             {title("pid"), 7, 8, 4, true},
                             {title("died"), 4, 5, 3, true},
                             {title("in"), 11, 17, 5, true},
                             {title("out"), 11, 17, 1, true},
                             {title("out/s"), 7, 9, 0, true},
                             {title("last second"), 11, 30, 1}},
                            rows, paper.columns, paper.utf8);
  lines.insert(lines.end(), drawn.begin(), drawn.end());
}

// As many columns of "name value" as there is room for.
void add_counters(const StageRow& stage, const Paper& paper, Lines& lines) {
  if (stage.counters.empty()) return;
  std::vector<std::pair<std::string, std::string>> texts;
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  for (const auto& [name, value] : stage.counters) {
    std::string words = paper.clean(name);
    const bool bytes = fmt::format("_{}_", words).find("_bytes_") != std::string::npos;
    std::ranges::replace(words, '_', ' ');
    texts.emplace_back(words, bytes ? shown_bytes(value) : whole(value));
    name_width = std::max(name_width, width_of(words));
    value_width = std::max(value_width, width_of(texts.back().second));
  }
  name_width = std::min<std::size_t>(name_width, 40);
  const std::size_t each = name_width + value_width + 4;
  const std::size_t across = std::max<std::size_t>(1, paper.columns / each);
  const std::size_t down = (texts.size() + across - 1) / across;
  lines.push_back(Line(" counters", Tone::kTitle));
  for (std::size_t i = 0; i < down; ++i) {
    Line& line = lines.emplace_back();
    for (std::size_t at = i; at < texts.size(); at += down) {
      line.add(" " + left(texts[at].first, name_width, paper.utf8) + " ", Tone::kDim);
      line.add(right(texts[at].second, value_width, paper.utf8) + "  ");
    }
    line.cut(paper.columns, paper.utf8);
  }
}

void add_parts(const StageRow& stage, const Paper& paper, Lines& lines) {
  if (stage.parts.size() < 2) return;
  std::vector<Row> rows;
  for (const PartRow& part : stage.parts) {
    Row& row = rows.emplace_back();
    row.cells = {Cell(" " + (part.name.empty() ? paper.clean(stage.name) : paper.clean(part.name))),
                 Cell(fmt::to_string(part.lanes)),
                 Cell(bar_of(part.shares)),
                 percent(part.shares, &Shares::busy, Tone::kBusy),
                 percent(part.shares, &Shares::starved, Tone::kStarved),
                 percent(part.shares, &Shares::blocked, Tone::kBlocked),
                 percent(part.shares, &Shares::cpu, Tone::kPlain)};
  }
  const auto title = [](const char* text) { return Line(text, Tone::kTitle); };
  const Lines drawn = table({{title(" part"), 12, 24, 0},
                             {title("lanes"), 5, 6, 0, true},
                             {title("time of its lanes"), 10, 30, 1},
                             {title("busy"), 5, 6, 0, true},
                             {title("starv"), 5, 6, 0, true},
                             {title("block"), 5, 6, 0, true},
                             {title("cpu"), 4, 5, 1, true}},
                            rows, paper.columns, paper.utf8);
  lines.insert(lines.end(), drawn.begin(), drawn.end());
}

}  // namespace

Lines stages(const Picture& picture, const View& view, const Paper& paper, std::size_t rows_max) {
  const std::vector<const StageRow*> order = sorted(picture, view);
  std::vector<Row> rows;
  std::size_t chosen = 0;
  for (const StageRow* const stage : order) {
    if (stage->name == view.stage || (view.stage.empty() && stage->limits && chosen == 0)) {
      chosen = rows.size();
    }
    rows.push_back(stage_row(*stage, view, paper));
  }
  Lines lines = table(stage_columns(picture, view, paper), rows, paper.columns, paper.utf8);
  if (rows.size() <= rows_max) return lines;
  if (rows_max < 2) return {lines.begin(), lines.begin() + static_cast<long>(rows_max + 1)};
  // A line says what is not seen.
  const std::size_t seen = rows_max - 1;
  const std::size_t first = std::min(chosen - std::min(chosen, seen / 2), rows.size() - seen);
  Lines some{lines.front()};
  some.insert(some.end(), lines.begin() + 1 + static_cast<long>(first),
              lines.begin() + 1 + static_cast<long>(first + seen));
  some.push_back(
      Line(fmt::format("   {} more stages: the arrow keys lead to them", rows.size() - seen),
           Tone::kDim)
          .cut(paper.columns, paper.utf8));
  return some;
}

Lines stage_details(const StageRow& stage, const Paper& paper) {
  Lines lines;
  Line& line = lines.emplace_back(" stage ", Tone::kTitle);
  line.add(paper.clean(stage.name), stage.limits ? Tone::kLimits : Tone::kBold);
  line.add(fmt::format("{}{}{}{}{}process {}", paper.dot(), paper.clean(stage.kind), paper.dot(),
                       lanes_word(stage.lane_rows.size()), paper.dot(), paper.clean(stage.process)),
           Tone::kDim);
  if (stage.pid != 0) line.add(fmt::format(" ({})", stage.pid), Tone::kDim);
  line.cut(paper.columns, paper.utf8);
  if (!stage.note.empty()) {
    lines.push_back(Line(" " + cut(paper.clean(stage.note), paper.columns - 1, paper.utf8)));
  }
  add_parts(stage, paper, lines);
  add_queues(stage, paper, lines);
  add_lanes(stage, paper, lines);
  add_counters(stage, paper, lines);
  return lines;
}

}  // namespace ringfeed::top
