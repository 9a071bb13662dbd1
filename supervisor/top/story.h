// What has happened to a feed while somebody looked: its last minute in numbers, and events.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "supervisor/top/picture.h"

namespace ringfeed::top {

struct Event {
  std::int64_t time_s = 0;  // CLOCK_REALTIME
  std::string text;
  bool bad = false;
};

class Story {
 public:
  static constexpr std::size_t kSeconds = 60;
  static constexpr std::size_t kEventsMax = 200;

  // The supervisor has answered. Times are given by the caller: of CLOCK_MONOTONIC, and of the day.
  void add(const Picture& picture, std::uint64_t now_ms, std::int64_t time_s);
  // It has not; `trouble` says why. The same twice is one event.
  void add_trouble(const std::string& trouble, std::int64_t time_s);
  // Batches a second before the first look (past_rates()).
  void set_past(std::vector<double> rates) { past_ = std::move(rates); }
  [[nodiscard]] bool has_past() const { return !past_.empty(); }

  [[nodiscard]] const std::deque<Event>& events() const { return events_; }  // the newest first
  // The last kSeconds seconds up to `now_ms`, the newest last; -1: not known.
  [[nodiscard]] std::vector<double> rates(std::uint64_t now_ms) const;
  [[nodiscard]] std::vector<double> slots_used(std::uint64_t now_ms) const;  // shares
  [[nodiscard]] std::vector<double> memory(std::uint64_t now_ms) const;      // bytes

 private:
  struct Point {
    std::uint64_t ms = 0;
    std::uint32_t pid = 0;  // of the supervisor
    std::uint64_t batches = 0;
    double used = 0;
    double memory = 0;
  };
  void happened(std::int64_t time_s, std::string text, bool bad);
  void compare(const Picture& picture, std::int64_t time_s);
  void compare_trainers(const Picture& picture, std::int64_t time_s);

  std::deque<Point> points_;
  std::deque<Event> events_;
  std::vector<double> past_;
  std::string trouble_;
  // As last seen.
  bool seen_ = false;
  std::uint32_t pid_ = 0;
  std::string state_;
  std::uint64_t lost_ = 0;
  std::map<std::string, std::uint32_t> restarts_;  // by lane
  std::map<std::string, std::uint64_t> skips_;
  std::map<std::string, std::string> trainers_;  // "default/0": the words for it
};

}  // namespace ringfeed::top
