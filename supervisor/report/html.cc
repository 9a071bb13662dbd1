#include "supervisor/report/html.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ringfeed/shm/quote.h"

namespace ringfeed::report {
namespace {

std::string marked_up(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Inside of a picture; the page gives it its size.
constexpr double kWide = 1000;
constexpr double kHigh = 200;

// The largest 1, 2 or 5 times a power of ten that holds it.
double round_up(double most) {
  if (!(most > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (most <= step * power) return step * power;
  }
  return 10 * power;
}

struct Drawn {
  std::string line;
  std::string area;
};

Drawn draw(const Curves& curves, std::size_t number, double span_s, double most) {
  Drawn drawn;
  std::string piece;
  double first_x = 0;
  double last_x = 0;
  double last_y = 0;
  const auto end_piece = [&] {
    if (piece.empty()) return;
    piece += fmt::format("L{:.1f} {:.1f}", last_x, last_y);
    drawn.line += piece;
    drawn.area += fmt::format("{}L{:.1f} {}L{:.1f} {}Z", piece, last_x, kHigh, first_x, kHigh);
    piece.clear();
  };
  for (const Curves::Point& point : curves.points()) {
    const std::optional<double> value = point.mean(number);
    if (!value) {
      end_piece();
      continue;
    }
    const double begin_x = std::clamp(kWide * point.begin_s / span_s, 0.0, kWide);
    last_x = std::clamp(kWide * point.end_s / span_s, 0.0, kWide);
    last_y = kHigh - kHigh * std::clamp(*value / most, 0.0, 1.0);
    if (piece.empty()) {
      first_x = begin_x;
      piece = fmt::format("M{:.1f} {:.1f}", begin_x, last_y);
    }
    piece += fmt::format("L{:.1f} {:.1f}", (begin_x + last_x) / 2, last_y);
  }
  end_piece();
  return drawn;
}

// Over the whole curve.
double mean_of(const Curves& curves, std::size_t number) {
  double weighted = 0;
  double seconds = 0;
  for (const Curves::Point& point : curves.points()) {
    weighted += point.means[number].weighted;
    seconds += point.means[number].seconds;
  }
  return seconds > 0 ? weighted / seconds : Curves::kUnknown;
}

}  // namespace

std::string html(std::string_view text) { return marked_up(escaped(text)); }
std::string html_lines(std::string_view text) { return marked_up(escaped_lines(text)); }

std::string shown_count(std::uint64_t number) {
  std::string digits = fmt::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string shown_seconds(double seconds) {
  if (!(seconds > 0)) return "0 s";
  // A bound is where the text would be rounded up to the next one.
  if (seconds < 0.0005) return "under 1 ms";
  if (seconds < 0.0995) return fmt::format("{:.0f} ms", 1e3 * seconds);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 172'800) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} days {} h", whole / 86'400, whole % 86'400 / 3600);
}

std::string shown_share(double share) {
  const double percent = 100 * share;
  // Neither all nor nothing where it is not.
  if (percent > 0 && percent < 1) return "under 1\u00a0%";
  if (percent < 100 && percent > 99) return "over 99\u00a0%";
  return fmt::format("{:.0f}\u00a0%", percent);
}

std::string shown_rate(double rate) {
  if (rate == 0) return "0";
  if (rate < 0.005) return "under 0.01";
  if (rate >= 99.95) return shown_count(static_cast<std::uint64_t>(std::llround(rate)));
  return fmt::format("{:.{}f}", rate, rate >= 9.995 ? 1 : 2);
}

std::string shown_number(std::uint64_t number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", shown_count(number), number == 1 ? one : many);
}

std::string shown_date(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string table(std::string_view caption, std::span<const Column> columns,
                  std::span<const Row> rows) {
  // More of them are looked at through a window, so that the page does not end in a list.
  constexpr std::size_t kWholeRowsMax = 25;
  // It can be scrolled by keyboard, so it has a name.
  std::string out = fmt::format(
      "<div class=\"scroll{1}\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">"
      "<table><caption>{0}</caption><thead><tr>",
      html(caption), rows.size() > kWholeRowsMax ? " tall" : "");
  const auto class_of = [&](std::size_t i) {
    return i < columns.size() && columns[i].number ? " class=\"number\"" : "";
  };
  for (std::size_t i = 0; i < columns.size(); ++i) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", class_of(i), html(columns[i].title));
  }
  out += "</tr></thead><tbody>\n";
  for (const Row& row : rows) {
    out += fmt::format("<tr{}{}>", row.attributes.empty() ? "" : " ", row.attributes);
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      out += i == 0 ? fmt::format("<th scope=\"row\"{}>{}</th>", class_of(i), row.cells[i])
                    : fmt::format("<td{}>{}</td>", class_of(i), row.cells[i]);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string bar(std::string_view label, std::span<const Share> shares) {
  std::string out = fmt::format("<div class=\"bar\" role=\"img\" aria-label=\"{}\">", html(label));
  for (const Share& one : shares) {
    const double percent = 100 * std::clamp(one.share, 0.0, 1.0);
    if (!(percent > 0)) continue;
    out += fmt::format("<span class=\"{}\" style=\"width:{:.2f}%\"></span>", one.kind, percent);
  }
  return out + "</div>";
}

std::string figure(const Curves& curves, const Chart& chart) {
  double largest = 0;
  bool known = false;
  std::string said;
  std::string legend;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& line = chart.lines[i];
    const double mean = mean_of(curves, line.number);
    if (std::isnan(mean)) continue;
    known = true;
    largest = std::max(largest, curves.largest(line.number));
    const std::string numbers =
        fmt::format("{}most {}", chart.mean ? fmt::format("mean {}, ", chart.shown(mean)) : "",
                    chart.shown(curves.largest(line.number)));
    said += fmt::format("; {}{}{}", line.name, line.name.empty() ? "" : ": ", numbers);
    legend +=
        fmt::format("<li><span class=\"key line{}\"></span>{}{}</li>", i % 6,
                    line.name.empty() ? "" : "<b>" + html(line.name) + "</b> ", html(numbers));
  }
  if (!known || !(chart.span_s > 0)) return {};
  const double most = chart.most > 0 ? chart.most : round_up(largest);
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption><ul class=\"legend\">{}</ul>"
      "<div class=\"plot\"><div class=\"scale\" aria-hidden=\"true\"><span>{}</span><span>{}</span>"
      "<span>{}</span></div><svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{}\">",
      html(chart.title), legend, html(chart.shown(most)), html(chart.shown(most / 2)),
      html(chart.shown(0)), kWide, kHigh, html(chart.title + said));
  for (const double y : {0.0, kHigh / 2, kHigh}) {
    out +=
        fmt::format("<line class=\"grid\" x1=\"0\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>", kWide, y, y);
  }
  for (const double at_s : chart.marks_s) {
    const double x = std::clamp(kWide * at_s / chart.span_s, 0.0, kWide);
    out += fmt::format("<line class=\"death\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1}\"/>",
                       x, kHigh);
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const Drawn drawn = draw(curves, chart.lines[i].number, chart.span_s, most);
    if (drawn.line.empty()) continue;
    if (chart.lines.size() == 1) {
      out += fmt::format("<path class=\"area line{}\" d=\"{}\"/>", i % 6, drawn.area);
    }
    out += fmt::format("<path class=\"curve line{}\" d=\"{}\"/>", i % 6, drawn.line);
  }
  return out + fmt::format(
                   "</svg></div><div class=\"times\" aria-hidden=\"true\"><span>0</span>"
                   "<span>{}</span><span>{}</span></div></figure>\n",
                   html(shown_seconds(chart.span_s / 2)), html(shown_seconds(chart.span_s)));
}

}  // namespace ringfeed::report
