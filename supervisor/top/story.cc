#include "supervisor/top/story.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "supervisor/top/text.h"

namespace ringfeed::top {
namespace {

// For each of the last seconds what `value` says of the newest point in it, or of the one before
// where there is none: a look may be late.
template <typename Points, typename Value>
std::vector<double> by_second(const Points& points, std::uint64_t now_ms, Value value) {
  std::vector<double> out(Story::kSeconds, -1);
  std::size_t at = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t back = 1000 * (out.size() - 1 - i);
    if (now_ms < back) continue;
    while (at < points.size() && points[at].ms <= now_ms - back) ++at;
    if (at != 0 && now_ms - back - points[at - 1].ms < 3'000) out[i] = value(at - 1);
  }
  return out;
}

}  // namespace

void Story::add(const Picture& picture, std::uint64_t now_ms, std::int64_t time_s) {
  if (!trouble_.empty()) {
    happened(time_s, "the supervisor answers again", false);
    trouble_.clear();
  }
  if (seen_) compare(picture, time_s);
  compare_trainers(picture, time_s);
  seen_ = true;
  pid_ = picture.pid;
  state_ = picture.state;
  lost_ = picture.lost_batches;
  for (const StageRow& stage : picture.stages) {
    for (const LaneRow& lane : stage.lane_rows) restarts_[lane.name] = lane.restarts;
  }
  for (const auto& [what, count] : picture.skips) skips_[what] = count;

  Point point{.ms = now_ms, .pid = picture.pid};
  std::uint64_t slots = 0;
  for (const OutputRow& output : picture.outputs) {
    point.batches += output.batches;
    point.used += output.used;
    slots += output.slots;
  }
  point.used /= static_cast<double>(std::max<std::uint64_t>(1, slots));
  point.memory = static_cast<double>(picture.memory_bytes);
  points_.push_back(point);
  while (now_ms - points_.front().ms > 1000 * (kSeconds + 10)) points_.pop_front();
}

void Story::add_trouble(const std::string& trouble, std::int64_t time_s) {
  if (trouble == trouble_) return;
  trouble_ = trouble;
  happened(time_s, trouble, true);
}

void Story::compare(const Picture& picture, std::int64_t time_s) {
  if (picture.pid != pid_) {
    happened(time_s, fmt::format("another supervisor serves the feed, process {}", picture.pid),
             true);
  }
  if (picture.state != state_) {
    happened(time_s,
             fmt::format("the feed is {}{}", picture.state,
                         picture.reason.empty() ? "" : ": " + picture.reason),
             picture.state == "failed");
  }
  std::map<std::uint32_t, std::vector<std::string>> died;  // lanes of a process die together
  for (const StageRow& stage : picture.stages) {
    for (const LaneRow& lane : stage.lane_rows) {
      const auto before = restarts_.find(lane.name);
      if (before == restarts_.end() || lane.restarts <= before->second) continue;
      died[lane.pid].push_back(lane.name);
    }
  }
  for (const auto& [pid, lanes] : died) {
    happened(time_s,
             pid == 0 ? fmt::format("the process of {} has died", fmt::join(lanes, ", "))
                      : fmt::format("the process of {} has died and has a successor, process {}",
                                    fmt::join(lanes, ", "), pid),
             true);
  }
  for (const auto& [what, count] : picture.skips) {
    const auto before = skips_.find(what);
    const std::uint64_t was = before == skips_.end() ? 0 : before->second;
    if (count > was)
      happened(time_s, fmt::format("{} left out ({})", whole(count - was), what), false);
  }
  if (picture.lost_batches > lost_) {
    happened(time_s,
             fmt::format("groups lost {} batches, because they were behind",
                         whole(picture.lost_batches - lost_)),
             true);
  }
}

void Story::compare_trainers(const Picture& picture, std::int64_t time_s) {
  std::map<std::string, std::string> now;
  for (const TrainerRow& one : picture.trainers) {
    if (one.pid == 0) continue;
    now[fmt::format("{}/{}/{}/{}", one.output, one.group, one.member, one.pid)] =
        fmt::format("trainer {} of group '{}' (process {})", one.member, one.group, one.pid);
  }
  if (seen_) {
    for (const auto& [key, words] : now) {
      if (!trainers_.contains(key)) happened(time_s, words + " has come", false);
    }
    for (const auto& [key, words] : trainers_) {
      if (!now.contains(key)) happened(time_s, words + " has left", false);
    }
  }
  trainers_ = std::move(now);
}

void Story::happened(std::int64_t time_s, std::string text, bool bad) {
  events_.push_front({time_s, std::move(text), bad});
  if (events_.size() > kEventsMax) events_.pop_back();
}

std::vector<double> Story::rates(std::uint64_t now_ms) const {
  std::vector<double> out = by_second(points_, now_ms, [&](std::size_t i) {
    if (i == 0 || points_[i].ms == points_[i - 1].ms) return -1.0;
    const Point& last = points_[i];
    // Over two seconds, as a look is taken at no exact time.
    const Point& first = points_[i >= 2 ? i - 2 : i - 1];
    if (last.batches < first.batches || last.ms - first.ms > 10'000) return -1.0;
    return 1e3 * static_cast<double>(last.batches - first.batches) /
           static_cast<double>(last.ms - first.ms);
  });
  if (points_.empty() || past_.empty()) return out;
  // What was before the first look is as old now as that is.
  const std::uint64_t age = (now_ms - points_.front().ms) / 1000;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t place = i + age;
    // Between it and the first rate that was seen are two looks.
    if (out[i] < 0 && place < past_.size() + 2) out[i] = past_[std::min(place, past_.size() - 1)];
  }
  return out;
}

std::vector<double> Story::slots_used(std::uint64_t now_ms) const {
  return by_second(points_, now_ms, [&](std::size_t i) { return points_[i].used; });
}

std::vector<double> Story::memory(std::uint64_t now_ms) const {
  return by_second(points_, now_ms, [&](std::size_t i) { return points_[i].memory; });
}

}  // namespace ringfeed::top
