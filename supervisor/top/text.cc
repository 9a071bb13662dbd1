#include "supervisor/top/text.h"

#include <fmt/format.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ringfeed/shm/quote.h"

namespace ringfeed::top {
namespace {

// A character at the beginning of clean text: its bytes, and its code.
struct Sign {
  std::size_t bytes = 1;
  wchar_t code = 0;
};

// Clean text is UTF-8 without mistakes.
Sign first_sign(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  const std::size_t bytes = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (bytes == 1 || bytes > text.size()) return {1, static_cast<wchar_t>(lead)};
  auto code = static_cast<wchar_t>(lead & (0x7f >> bytes));
  for (std::size_t i = 1; i < bytes; ++i) code = code << 6 | (at(i) & 0x3f);
  return {bytes, code};
}

std::size_t columns_of(wchar_t code) {
  return code < 0x80 ? 1 : static_cast<std::size_t>(std::max(0, ::wcwidth(code)));
}

// Where the first `columns` columns of the text end, in bytes; the columns that they take.
std::pair<std::size_t, std::size_t> place_of(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  std::size_t taken = 0;
  while (at < text.size()) {
    const Sign sign = first_sign(text.substr(at));
    const std::size_t width = columns_of(sign.code);
    if (taken + width > columns) break;
    taken += width;
    at += sign.bytes;
  }
  return {at, taken};
}

std::string_view ellipsis(bool utf8) { return utf8 ? "…" : "~"; }

}  // namespace

Line& Line::add(std::string text, Tone tone) {
  if (text.empty()) return *this;
  if (!pieces.empty() && pieces.back().tone == tone) {
    pieces.back().text += text;
  } else {
    pieces.push_back({std::move(text), tone});
  }
  return *this;
}

Line& Line::add(const Line& other) {
  for (const Piece& piece : other.pieces) add(piece.text, piece.tone);
  return *this;
}

std::size_t Line::width() const {
  std::size_t columns = 0;
  for (const Piece& piece : pieces) columns += width_of(piece.text);
  return columns;
}

std::string Line::text() const {
  std::string all;
  for (const Piece& piece : pieces) all += piece.text;
  return all;
}

Line& Line::fill(std::size_t columns) {
  const std::size_t now = width();
  return now < columns ? add(std::string(columns - now, ' ')) : *this;
}

Line& Line::cut(std::size_t columns, bool utf8) {
  if (width() <= columns) return *this;
  std::size_t room = columns;
  std::vector<Piece> kept;
  for (Piece& piece : pieces) {
    const std::size_t width = width_of(piece.text);
    // The last piece that fits ends with an ellipsis if more follows.
    if (width >= room) {
      kept.push_back({top::cut(piece.text + "  ", room, utf8), piece.tone});
      break;
    }
    room -= width;
    kept.push_back(std::move(piece));
  }
  pieces = std::move(kept);
  return *this;
}

std::string clean(std::string_view text, bool utf8) {
  std::string out;
  const std::string safe = escaped(text);
  for (std::string_view rest = safe; !rest.empty();) {
    const Sign sign = first_sign(rest);
    const bool known = sign.code < 0x80 || (utf8 && ::wcwidth(sign.code) >= 0);
    out += known ? rest.substr(0, sign.bytes) : "?";
    rest.remove_prefix(sign.bytes);
  }
  return out;
}

std::size_t width_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Sign sign = first_sign(text);
    columns += columns_of(sign.code);
    text.remove_prefix(sign.bytes);
  }
  return columns;
}

std::string cut(std::string_view text, std::size_t columns, bool utf8) {
  if (width_of(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  return std::string(text.substr(0, place_of(text, columns - 1).first)) +
         std::string(ellipsis(utf8));
}

std::string left(std::string_view text, std::size_t columns, bool utf8) {
  std::string out = cut(text, columns, utf8);
  out.append(columns - std::min(columns, width_of(out)), ' ');
  return out;
}

std::string right(std::string_view text, std::size_t columns, bool utf8) {
  const std::string out = cut(text, columns, utf8);
  return std::string(columns - std::min(columns, width_of(out)), ' ') + out;
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns) {
  std::vector<std::string> lines;
  columns = std::max<std::size_t>(columns, 2);  // room for the widest character
  while (width_of(text) > columns) {
    std::size_t end = place_of(text, columns).first;
    std::size_t next = end;
    // A space just behind the line is where it may end, too.
    const std::size_t space = text.substr(0, end + 1).rfind(' ');
    if (space != std::string_view::npos && space > 0) {
      end = space;
      next = space + 1;
    }
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(next);
  }
  lines.emplace_back(text);
  return lines;
}

std::string whole(std::uint64_t value) {
  std::string digits = fmt::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string brief(double value) {
  if (!(value >= 0)) return "-";
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  if (value < 9'999.5) return whole(static_cast<std::uint64_t>(std::llround(value)));
  constexpr std::array<std::string_view, 4> kUnits = {"k", "M", "G", "T"};
  std::size_t unit = 0;
  double scaled = value / 1e3;
  while (scaled >= 999.95 && unit + 1 < kUnits.size()) {
    scaled /= 1e3;
    ++unit;
  }
  return scaled < 999.95 ? fmt::format("{:.1f} {}", scaled, kUnits[unit]) : "> 999 T";
}

std::string duration(std::uint64_t ms) {
  const std::uint64_t seconds = ms / 1000;
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7'200) return fmt::format("{} min", seconds / 60);
  if (seconds < 172'800) return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{} d {} h", seconds / 86'400, seconds / 3600 % 24);
}

std::string bar_sign(Tone tone, bool utf8) {
  switch (tone) {
    case Tone::kBusy:
    case Tone::kFill:
      return utf8 ? "█" : "#";
    case Tone::kStarved:
      return utf8 ? "░" : ".";
    case Tone::kBlocked:
      return utf8 ? "▒" : "=";
    default:
      return utf8 ? "·" : "-";
  }
}

Line bar(std::span<const Share> shares, std::size_t columns, bool utf8) {
  Line line;
  double sum = 0;
  std::size_t used = 0;
  for (const Share& share : shares) {
    const double part = std::isfinite(share.part) ? std::clamp(share.part, 0.0, 1.0) : 0;
    sum += part;
    // Each ends where the sum of the shares up to it is, so that rounding adds up.
    auto end =
        static_cast<std::size_t>(std::llround(std::min(sum, 1.0) * static_cast<double>(columns)));
    // What is there is seen, however little it is.
    if (part >= 0.02 && end == used && used < columns) ++end;
    for (; used < end; ++used) line.add(bar_sign(share.tone, utf8), share.tone);
  }
  for (; used < columns; ++used) line.add(bar_sign(Tone::kDim, utf8), Tone::kDim);
  return line;
}

std::vector<std::string> curve(std::span<const double> values, double most, std::size_t columns,
                               std::size_t rows, bool utf8) {
  constexpr std::array<std::string_view, 9> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  // Coarser, as ASCII has nothing of these heights: low, half, high, full.
  constexpr std::array<std::string_view, 9> kPlain = {" ", "_", "_", ".", "-", "-", "=", "+", "#"};
  constexpr std::size_t kSteps = 8;
  std::vector<std::string> lines(rows);
  if (values.size() > columns) values = values.last(columns);
  for (std::string& line : lines) line.assign(columns - values.size(), ' ');
  for (const double value : values) {
    std::size_t height = 0;
    if (value >= 0 && most > 0) {
      const double share = std::min(1.0, value / most);
      // Nothing is a line at the bottom: it is known.
      height = std::max<std::size_t>(
          1, static_cast<std::size_t>(std::llround(share * static_cast<double>(kSteps * rows))));
    } else if (value >= 0) {
      height = 1;
    }
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t below = kSteps * (rows - 1 - row);
      const std::size_t here = height <= below ? 0 : std::min(kSteps, height - below);
      lines[row] += utf8 ? kBlocks[here] : kPlain[here];
    }
  }
  return lines;
}

}  // namespace ringfeed::top
