// Numbers over a whole run, in a bounded number of points: when there are kPointsMax, two
// neighbours become one, and each new one covers twice the time. So a curve of a second and one of
// a month cost the same memory, and the first minutes are never forgotten.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace ringfeed::report {

class Curves {
 public:
  static constexpr std::size_t kPointsMax = 512;
  // Of a number that is not known at a time.
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  explicit Curves(std::size_t count) : count_(count) {}

  // What each number was, on average, over so many seconds from then on. Times are those of the
  // run, and only grow.
  void add(double begin_s, double seconds, std::span<const double> values);

  struct Point {
    double begin_s = 0;
    double end_s = 0;
    struct Mean {
      double weighted = 0;  // value times seconds
      double seconds = 0;   // in which it was known
    };
    std::vector<Mean> means;
    // The mean of a number; nullopt: not known.
    [[nodiscard]] std::optional<double> mean(std::size_t number) const;
  };
  // In the order of time.
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  // The largest mean of a point; 0: nothing is known.
  [[nodiscard]] double largest(std::size_t number) const;

 private:
  static void join(Point& to, const Point& next);

  std::size_t count_;
  double period_s_ = 0;  // that a point covers before the next one begins
  std::vector<Point> points_;
};

}  // namespace ringfeed::report
