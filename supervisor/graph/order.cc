#include "supervisor/graph/order.h"

#include <algorithm>
#include <optional>

namespace ringfeed::graph {
namespace {

class Order {
 public:
  Order(const std::vector<std::size_t>& frames, const std::vector<std::size_t>& families,
        const std::vector<Link>& links)
      : frames_(frames), families_(families), reads_(frames.size()), placed_(frames.size(), false) {
    for (const Link& link : links) {
      if (!link.back && link.from != link.to) reads_[link.to].push_back(link.from);
    }
  }

  std::vector<std::size_t> take() {
    while (order_.size() < frames_.size()) {
      const std::size_t next = best().value_or(frames_.size());
      placed_[next] = true;
      order_.push_back(next);
    }
    return std::move(order_);
  }

 private:
  // Lower is better; within a rank the first node.
  enum Rank { kSameFrameNext, kSameFrame, kNext, kReady, kWaitsForFamily, kWaits };

  [[nodiscard]] Rank rank(std::size_t node) const {
    bool ready = true;
    bool family = true;
    bool next = false;
    for (const std::size_t from : reads_[node]) {
      if (!placed_[from]) {
        ready = false;
        family = family && families_[from] == families_[node];
      }
      next = next || (!order_.empty() && from == order_.back());
    }
    if (!ready) return family ? kWaitsForFamily : kWaits;
    const bool same = !order_.empty() && frames_[order_.back()] == frames_[node];
    return same ? (next ? kSameFrameNext : kSameFrame) : (next ? kNext : kReady);
  }

  [[nodiscard]] std::optional<std::size_t> best() const {
    std::optional<std::size_t> found;
    Rank found_rank = kWaits;
    for (std::size_t node = 0; node < frames_.size(); ++node) {
      if (placed_[node]) continue;
      const Rank its = rank(node);
      if (found && its >= found_rank) continue;
      found = node;
      found_rank = its;
    }
    return found;
  }

  const std::vector<std::size_t>& frames_;
  const std::vector<std::size_t>& families_;
  std::vector<std::vector<std::size_t>> reads_;  // whom a node reads from
  std::vector<bool> placed_;
  std::vector<std::size_t> order_;
};

}  // namespace

std::vector<std::size_t> drawing_order(const std::vector<std::size_t>& frames,
                                       const std::vector<std::size_t>& families,
                                       const std::vector<Link>& links) {
  return Order(frames, families, links).take();
}

}  // namespace ringfeed::graph
