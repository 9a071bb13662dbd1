#include "supervisor/metrics/history.h"

#include <algorithm>

namespace ringfeed::metrics {
namespace {

// A minute has both its ends, and an irregular look may follow.
constexpr std::size_t kLooksMax = kSpanNs / kLookNs + 3;

void not_less(std::uint64_t& value, std::uint64_t before) { value = std::max(value, before); }

void keep_growing(Look& look, const Look& before) {
  for (std::size_t i = 0; i < std::min(look.lanes.size(), before.lanes.size()); ++i) {
    LaneLook& lane = look.lanes[i];
    const LaneLook& was = before.lanes[i];
    not_less(lane.busy_ns, was.busy_ns);
    not_less(lane.starved_ns, was.starved_ns);
    not_less(lane.blocked_ns, was.blocked_ns);
    not_less(lane.cpu_ns, was.cpu_ns);
    not_less(lane.core_wait_ns, was.core_wait_ns);
    not_less(lane.records_in, was.records_in);
    not_less(lane.records_out, was.records_out);
  }
  for (std::size_t i = 0; i < std::min(look.ports.size(), before.ports.size()); ++i) {
    PortLook& port = look.ports[i];
    const PortLook& was = before.ports[i];
    not_less(port.put, was.put);
    not_less(port.get, was.get);
    not_less(port.drop, was.drop);
    not_less(port.put_bytes, was.put_bytes);
  }
}

bool flows(const Look& look, const FeedShape& shape) {
  for (std::size_t i = 0; i < shape.ports.size(); ++i) {
    if (shape.ports[i].output && look.ports[i].put != 0) return true;
  }
  return false;
}

bool alike(const Look& a, const Look& b, const FeedShape& shape) {
  if (flows(a, shape) != flows(b, shape)) return false;
  for (std::size_t i = 0; i < a.ports.size(); ++i) {
    if (a.ports[i].members != b.ports[i].members) return false;
  }
  for (std::size_t i = 0; i < a.lanes.size(); ++i) {
    if (a.lanes[i].at_work != b.lanes[i].at_work) return false;
  }
  return true;
}

}  // namespace

void Fullness::add(std::uint64_t value) {
  min = count == 0 ? value : std::min(min, value);
  max = std::max(max, value);
  latest = value;
  ++count;
  mean += (static_cast<double>(value) - mean) / static_cast<double>(count);
}

void History::add(const std::function<void(Look&)>& fill, bool regular) {
  if (ring_.empty()) ring_.resize(kLooksMax);
  fill(next_);
  if (count_ != 0) keep_growing(next_, newest());
  if (count_ != 0 && !newest_regular_) --count_;
  newest_regular_ = regular;
  if (count_ == ring_.size()) {
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }
  // The one that is let go lends its memory to the next look.
  std::swap(ring_[(first_ + count_) % ring_.size()], next_);
  ++count_;
  while (at(0).time_ns + kSpanNs + kLookNs < newest().time_ns) {
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }
  ever_.resize(newest().ports.size());
  for (std::size_t i = 0; i < newest().ports.size(); ++i) ever_[i].add(newest().ports[i].fill);
}

std::size_t History::begin_of(std::uint64_t window_ns) const {
  const std::uint64_t now = newest().time_ns;
  const std::uint64_t wanted = now - std::min(now, window_ns) + kLookNs / 2;
  std::size_t begin = count_ - 1;
  while (begin > 0 && at(begin).time_ns > wanted) --begin;
  return begin;
}

std::size_t History::steady_since(std::size_t begin, const FeedShape& shape) const {
  std::size_t since = count_ - 1;
  while (since > begin && alike(at(since - 1), newest(), shape)) --since;
  return since;
}

Fullness History::fullness(std::size_t port, std::size_t begin) const {
  Fullness seen;
  for (std::size_t i = begin; i < count_; ++i) seen.add(at(i).ports[port].fill);
  return seen;
}

}  // namespace ringfeed::metrics
