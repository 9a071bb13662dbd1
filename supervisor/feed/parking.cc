#include "supervisor/feed/parking.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

namespace ringfeed::process {
namespace {

// A step that takes longer is stuck, or works on a very large file.
constexpr std::uint64_t kParkMsMax = 10'000;
constexpr std::uint64_t kLookMs = 1;

std::uint64_t now_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace

Parking::Parking(EventLoop& loop, const layout::FeedMemory& memory,
                 std::function<void(std::uint64_t ticket)> order)
    : loop_(loop), memory_(memory), order_(std::move(order)) {}

Parking::~Parking() { end(); }

void Parking::begin(std::function<void(const std::optional<Error>&)> at_rest) {
  at_rest_ = std::move(at_rest);
  ticket_ = 1;
  for (const layout::LanePlan& plan : memory_.layout().lanes) {
    // relaxed: written by supervisors only.
    ticket_ =
        std::max(ticket_, memory_.lane(plan.index).park_ticket.load(std::memory_order_relaxed) + 1);
  }
  parked_ = true;
  since_us_ = now_us();
  order_(ticket_);
  look();
}

std::uint64_t Parking::end() {
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  if (!parked_) return 0;
  parked_ = false;
  order_(0);
  return now_us() - since_us_;
}

bool Parking::at_rest(std::uint32_t lane) const {
  // acquire, pairs with the lane's release: all that it has stored is there.
  return memory_.lane_finished(lane) ||
         memory_.lane(lane).parked.load(std::memory_order_acquire) == ticket_;
}

// Throws nothing but what the callback throws: whoever waits for it would wait for ever.
void Parking::look() {
  timer_.reset();
  // A copy: the callback may destroy this object.
  const auto at_rest = at_rest_;
  try {
    if (!all_at_rest()) return;
  } catch (const Error& error) {
    end();
    return at_rest(error);
  } catch (const std::exception&) {
    end();
    return at_rest(Error(ErrorCode::kNoMemory, "no memory"));
  }
  at_rest(std::nullopt);
}

bool Parking::all_at_rest() {
  for (const layout::LanePlan& plan : memory_.layout().lanes) {
    if (this->at_rest(plan.index)) continue;
    if (now_us() - since_us_ > kParkMsMax * 1000) {
      throw Error(ErrorCode::kTimeout, fmt::format("lane {} has not finished its step within {} s",
                                                   plan.name(), kParkMsMax / 1000));
    }
    timer_ = loop_.after(kLookMs, [this] { look(); });
    return false;
  }
  return true;
}

}  // namespace ringfeed::process
