#include "supervisor/graph/rails.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ringfeed::graph {
namespace {

constexpr Glyphs kUtf8{"─", "│", "┼", "├", "╮", "┴", "╯", "╭", "╮",
                       "╰", "╯", "●", "◆", "→", "↑", "◀", "█", "░"};
constexpr Glyphs kAscii{"-", "|", "+", "+", "+",  "+", "+", "+", "+",
                        "+", "+", "*", "@", "->", "^", "<", "#", "."};

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

// Bytes of the first `columns` columns.
std::size_t bytes_of(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (!continues(text[at]) && columns-- == 0) break;
    ++at;
  }
  return at;
}

std::string repeated(std::string_view what, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += what;
  return text;
}

}  // namespace

const Glyphs& glyphs(bool utf8) { return utf8 ? kUtf8 : kAscii; }

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char byte) { return !continues(byte); }));
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  std::vector<std::string> lines;
  std::string line_start;
  while (columns_of(text) + line_start.size() > columns) {
    std::size_t end = bytes_of(text, columns - line_start.size());
    std::size_t next = end;
    if (const std::size_t space = text.rfind(' ', end);
        space != std::string_view::npos && text.find_first_not_of(' ') < space) {
      end = space;
      next = space + 1;
    }
    lines.push_back(line_start + std::string(text.substr(0, end)));
    text.remove_prefix(next);
    line_start.assign(indent, ' ');
  }
  lines.push_back(line_start + std::string(text));
  return lines;
}

Rails::Cells Rails::cells() const {
  std::size_t shown = rails_.size();
  while (shown > 0 && !rails_[shown - 1].taken) --shown;
  Cells cells(2 * shown, " ");
  for (std::size_t i = 0; i < shown; ++i) {
    if (rails_[i].drawn) cells[2 * i] = glyphs_.down;
  }
  return cells;
}

std::optional<std::size_t> Rails::free_rail(std::size_t from) const {
  for (std::size_t i = from; i < kRailsMax; ++i) {
    if (i >= rails_.size() || !rails_[i].taken) return i;
  }
  return std::nullopt;
}

void Rails::line(const Cells& cells, std::string_view text, std::string_view right) {
  std::string line;
  if (framed_ || !cells.empty()) line = fmt::format("{} ", framed_ ? glyphs_.down : " ");
  for (const std::string_view cell : cells) line += cell;
  line += text;
  const std::size_t end = kColumns - (framed_ ? 2 : 0);
  const std::size_t used = columns_of(line) + columns_of(right);
  if (framed_ || !right.empty()) line.append(end > used ? end - used : 0, ' ');
  line += right;
  if (framed_) (line += ' ') += glyphs_.down;
  line.erase(line.find_last_not_of(' ') + 1);
  text_ += line + '\n';
}

void Rails::draw(const Cells& first, std::string_view text, std::string_view right) {
  Cells begin = first;
  Cells further = cells();
  const std::size_t width = std::max(begin.size(), further.size());
  begin.resize(width, " ");
  further.resize(width, " ");
  const std::size_t room = kColumns - (framed_ ? 4 : width == 0 ? 0 : 2) - width;
  std::vector<std::string> lines = wrapped(text, room, 2);
  if (!right.empty() && columns_of(lines.back()) + 1 + columns_of(right) > room) {
    lines.emplace_back();
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool last = i + 1 == lines.size();
    line(i == 0 ? begin : further, lines[i], last ? right : std::string_view());
  }
}

void Rails::border(std::string_view left, std::string_view right, std::string_view title) {
  std::string line(left);
  line += glyphs_.across;
  for (const auto& cell : cells()) line += cell == glyphs_.down ? glyphs_.cross : glyphs_.across;
  line += title;
  const std::size_t used = columns_of(line);
  line += repeated(glyphs_.across, kColumns > used + 1 ? kColumns - 1 - used : 0);
  text_ += line += right;
  text_ += '\n';
}

void Rails::open_frame(std::string_view title) {
  const std::size_t room = kColumns - 6 - cells().size();
  const std::vector<std::string> lines = wrapped(title, room, 2);
  border(glyphs_.top_left, glyphs_.top_right, " " + lines.front() + " ");
  framed_ = true;
  for (std::size_t i = 1; i < lines.size(); ++i) say(lines[i]);
}

void Rails::close_frame() {
  border(glyphs_.bottom_left, glyphs_.bottom_right, "");
  framed_ = false;
}

void Rails::say(std::string_view text) { draw(cells(), text); }

void Rails::join(const std::vector<std::size_t>& rails) {
  Cells joined = cells();
  for (std::size_t at = 2 * rails.front() + 1; at < 2 * rails.back(); ++at) {
    joined[at] = joined[at] == glyphs_.down ? glyphs_.cross : glyphs_.across;
  }
  joined[2 * rails.front()] = glyphs_.fork;
  for (const std::size_t rail : rails) {
    if (rail == rails.front()) continue;
    joined[2 * rail] = rail == rails.back() ? glyphs_.turn_up : glyphs_.join;
    rails_[rail] = {};
  }
  line(joined, "", "");
}

void Rails::begin(const std::vector<std::size_t>& ending, bool flows) {
  std::vector<std::size_t> arrive;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].wire && std::ranges::count(ending, *rails_[i].wire) != 0) arrive.push_back(i);
  }
  if (arrive.size() > 1) join(arrive);
  main_ = arrive.empty() ? free_rail(0) : arrive.front();
  left_ = false;
  if (!main_) return;
  if (*main_ >= rails_.size()) rails_.resize(*main_ + 1);
  rails_[*main_] = {.taken = true, .drawn = flows, .wire = {}};
}

void Rails::mark(std::string_view glyph, std::string_view text, std::string_view right) {
  Cells marked = cells();
  if (main_) marked[2 * *main_] = glyph;
  draw(marked, text, right);
}

void Rails::leave(std::size_t wire, std::string_view text) {
  if (!main_) return say(text);
  if (!std::exchange(left_, true)) {
    rails_[*main_].wire = wire;
    return say(text);
  }
  const std::optional<std::size_t> rail = free_rail(*main_ + 1);
  if (!rail) return say(text);
  Cells before = cells();
  if (*rail >= rails_.size()) rails_.resize(*rail + 1);
  before.resize(std::max(before.size(), 2 * (*rail + 1)), " ");
  for (std::size_t at = 2 * *main_ + 1; at < 2 * *rail; ++at) {
    before[at] = before[at] == glyphs_.down ? glyphs_.cross : glyphs_.across;
  }
  before[2 * *main_] = glyphs_.fork;
  before[2 * *rail] = glyphs_.turn_down;
  rails_[*rail] = {.taken = true, .drawn = true, .wire = wire};
  draw(before, text);
}

void Rails::end() {
  if (main_ && !rails_[*main_].wire) rails_[*main_] = {};
  main_.reset();
}

}  // namespace ringfeed::graph
