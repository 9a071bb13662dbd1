#include "workers/lc0/lc0_rescore.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

namespace {

constexpr std::uint8_t kBestIsProven = 8;  // bit 3 of invariance_info
constexpr std::uint16_t kNoMove = 65535;

double number(const RecordTail& tail, std::size_t offset) noexcept {
  return static_cast<double>(tail.get<float>(offset));
}
void set_number(RecordTail& tail, std::size_t offset, double value) noexcept {
  tail.set(offset, static_cast<float>(value));
}

// How far a record's blunder moves the target; 0: it is none.
double blunder_weight(const RecordTail& tail, const RescoreOptions::Deblunder& options) noexcept {
  if (tail.get<std::uint32_t>(v6::kVisits) == 0) return 0;
  const double best = number(tail, v6::kBestQ);
  const double played = number(tail, v6::kPlayedQ);
  const bool best_proven = (tail.get<std::uint8_t>(v6::kInvarianceInfo) & kBestIsProven) != 0;
  if (best > -1 && played < 1 && ((best == 1 && best_proven) || played == -1)) return 1;
  const double lost = best - played;
  if (!(lost > options.threshold - options.width / 2)) return 0;
  if (options.width <= 0) return 1;
  return std::min(1.0, (lost - options.threshold) / options.width + 0.5);
}

}  // namespace

RecordTail::RecordTail(const PackedFrameView& frame) noexcept {
  const std::size_t record = frame.version == 7 ? kV7RecordBytes : kV6RecordBytes;
  std::memcpy(bytes_.data(), frame.tail, record - v6::kCastlingUsOoo);
}

std::uint32_t rescored_origin(std::uint32_t origin) noexcept { return origin >= 5 ? 7 : origin; }

bool reshape_policy(std::span<std::uint32_t> policy, std::uint32_t filler,
                    const RescoreOptions& options) noexcept {
  if (options.policy_temperature == 1 && options.policy_offset == 0) return true;
  const auto touched = [filler](std::uint32_t bits) {
    return bits != filler && std::bit_cast<float>(bits) >= 0;
  };
  const auto shifted = [&options](std::uint32_t bits) {
    return std::max(0.0, static_cast<double>(std::bit_cast<float>(bits)) + options.policy_offset);
  };
  double largest = 0;
  for (const std::uint32_t bits : policy) {
    if (touched(bits)) largest = std::max(largest, shifted(bits));
  }
  if (!(largest > 0) || !std::isfinite(largest)) return false;
  RF_CHECK(policy.size() <= kPolicyMoves, policy.size());
  double raised[kPolicyMoves];
  double sum = 0;
  for (std::size_t i = 0; i < policy.size(); ++i) {
    if (!touched(policy[i])) continue;
    // As shares of the largest one, so that no exponent makes all of them 0.
    const double share = shifted(policy[i]) / largest;
    raised[i] = share > 0 ? std::pow(share, 1 / options.policy_temperature) : 0.0;
    sum += raised[i];
  }
  for (std::size_t i = 0; i < policy.size(); ++i) {
    if (!touched(policy[i])) continue;
    policy[i] = std::bit_cast<std::uint32_t>(static_cast<float>(raised[i] / sum));
  }
  return true;
}

std::size_t fill_plies_left(std::span<RecordTail> game) noexcept {
  std::size_t filled = 0;
  for (std::size_t i = 0; i < game.size(); ++i) {
    if (game[i].get<float>(v6::kPliesLeft) != 0) continue;
    game[i].set(v6::kPliesLeft, static_cast<float>(game.size() - i));
    ++filled;
  }
  return filled;
}

std::size_t deblunder(std::span<RecordTail> game,
                      const RescoreOptions::Deblunder& options) noexcept {
  if (game.empty() || game.back().get<std::uint32_t>(v6::kVisits) == 0) return 0;
  double q = number(game.back(), v6::kResultQ);
  double d = number(game.back(), v6::kResultD);
  double plies = number(game.back(), v6::kPliesLeft);
  std::size_t blunders = 0;
  for (std::size_t i = game.size(); i-- > 0;) {
    RecordTail& tail = game[i];
    const double weight = blunder_weight(tail, options);
    if (weight > 0) {
      ++blunders;
      q += weight * (number(tail, v6::kBestQ) - q);
      d += weight * (number(tail, v6::kBestD) - d);
      plies += weight * (number(tail, v6::kBestM) - plies);
    }
    if (blunders != 0) {
      set_number(tail, v6::kResultQ, q);
      set_number(tail, v6::kResultD, d);
      set_number(tail, v6::kPliesLeft, plies);
    }
    q = -q;
    plies += 1;
  }
  return blunders;
}

void fill_short_term(std::span<RecordTail> game, double theta) noexcept {
  const auto played_at = [game](std::size_t i) {
    if (i >= game.size() || game[i].get<std::uint32_t>(v6::kVisits) == 0) return kNoMove;
    return game[i].get<std::uint16_t>(v6::kPlayedIdx);
  };
  double q = 0;
  double d = 0;
  for (std::size_t i = game.size(); i-- > 0;) {
    RecordTail& tail = game[i];
    // Of the first mover, who makes the moves with even numbers.
    const double sign = i % 2 == 0 ? 1 : -1;
    const bool last = i + 1 == game.size();
    const double root_q = sign * number(tail, v6::kRootQ);
    const double root_d = number(tail, v6::kRootD);
    q = last ? root_q : theta * q + (1 - theta) * root_q;
    d = last ? root_d : theta * d + (1 - theta) * root_d;
    set_number(tail, v6::kQSt, sign * q);
    // A NaN stays one.
    set_number(tail, v6::kDSt, d < 0 ? 0.0 : d);
    tail.set(v6::kOppPlayedIdx, played_at(i + 1));
    tail.set(v6::kNextPlayedIdx, played_at(i + 2));
  }
}

}  // namespace ringfeed::formats
