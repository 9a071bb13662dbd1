#include "supervisor/report/curves.h"

#include <algorithm>
#include <cmath>

namespace ringfeed::report {

std::optional<double> Curves::Point::mean(std::size_t number) const {
  const Mean& of = means[number];
  return of.seconds > 0 ? std::optional(of.weighted / of.seconds) : std::nullopt;
}

void Curves::join(Point& to, const Point& next) {
  to.end_s = next.end_s;
  for (std::size_t i = 0; i < to.means.size(); ++i) {
    to.means[i].weighted += next.means[i].weighted;
    to.means[i].seconds += next.means[i].seconds;
  }
}

void Curves::add(double begin_s, double seconds, std::span<const double> values) {
  if (!(seconds > 0)) return;
  Point point{.begin_s = begin_s, .end_s = begin_s + seconds, .means = {}};
  point.means.resize(count_);
  for (std::size_t i = 0; i < std::min(count_, values.size()); ++i) {
    if (std::isfinite(values[i])) point.means[i] = {values[i] * seconds, seconds};
  }
  if (!points_.empty() && points_.back().end_s - points_.back().begin_s < period_s_) {
    return join(points_.back(), point);
  }
  points_.push_back(std::move(point));
  if (points_.size() < kPointsMax) return;
  for (std::size_t i = 0; i < points_.size() / 2; ++i) {
    Point pair = std::move(points_[2 * i]);
    join(pair, points_[2 * i + 1]);
    points_[i] = std::move(pair);
  }
  points_.resize(points_.size() / 2);
  // Half a look less: looks come a little early or late.
  const double mean_s =
      (points_.back().end_s - points_.front().begin_s) / static_cast<double>(points_.size());
  period_s_ = std::max(2 * period_s_, 0.9 * mean_s);
}

double Curves::largest(std::size_t number) const {
  double most = 0;
  for (const Point& point : points_) most = std::max(most, point.mean(number).value_or(0));
  return most;
}

}  // namespace ringfeed::report
