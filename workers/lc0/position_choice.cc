#include "workers/lc0/position_choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ringfeed/worker/random.h"
#include "workers/kit/shuffle.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed {

namespace {

float tail_float(const std::byte* tail, std::size_t offset) noexcept {
  float value = 0;
  std::memcpy(&value, tail + (offset - formats::v6::kCastlingUsOoo), sizeof value);
  return value;
}

}  // namespace

void sample_by_rate(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use, double rate,
                    std::vector<std::uint32_t>& out) {
  out.clear();
  if (rate >= 1.0) {
    out.resize(frame_count);
    std::iota(out.begin(), out.end(), 0U);
    return;
  }
  // The circle in 64-bit fixed point: wrapping around is what unsigned arithmetic does anyway.
  const auto arc = static_cast<std::uint64_t>(std::ldexp(rate, 64));
  const std::uint64_t begin = arc * use;
  const std::uint64_t phases = mix(key);
  for (std::uint32_t i = 0; i < frame_count; ++i) {
    if (mix(phases ^ i) - begin < arc) out.push_back(i);
  }
}

void sample_by_count(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use,
                     std::uint32_t count, std::vector<std::uint32_t>& out) {
  out.clear();
  if (frame_count == 0) return;
  for (std::uint64_t item = use * count; item < (use + 1) * count; ++item) {
    out.push_back(Shuffle(key, item / frame_count, frame_count).at(item % frame_count));
  }
  std::sort(out.begin(), out.end());
}

void sample_by_weight(std::uint64_t key, std::span<const float> weights, std::uint64_t use,
                      std::uint32_t count, std::vector<std::uint32_t>& out) {
  out.clear();
  if (weights.empty()) return;
  const float largest = *std::max_element(weights.begin(), weights.end());
  if (!(largest > 0)) {
    sample_by_count(key, static_cast<std::uint32_t>(weights.size()), use, count, out);
    return;
  }
  const std::uint64_t first = use * count;
  std::uint64_t passed = 0;
  std::vector<bool> kept(weights.size());
  for (std::uint64_t round = 0; out.size() < count; ++round) {
    // One toss a position, in their own order: a round that is passed over need not be shuffled.
    Random tosses(mix(mix(key, round), 1));
    std::uint64_t keeps = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      kept[i] = tosses.unit() < static_cast<double>(weights[i]) / static_cast<double>(largest);
      keeps += kept[i] ? 1 : 0;
    }
    if (passed + keeps <= first) {
      passed += keeps;
      continue;
    }
    const Shuffle shuffled(key, round, weights.size());
    for (std::uint64_t place = 0; place < weights.size(); ++place) {
      const std::uint32_t position = shuffled.at(place);
      if (!kept[position] || passed++ < first) continue;
      out.push_back(position);
      if (out.size() == count) break;
    }
  }
  std::sort(out.begin(), out.end());
}

float position_weight(const PositionSamplingConfig& config, const std::byte* tail) noexcept {
  const float orig_q = tail_float(tail, formats::v6::kOrigQ);
  const bool unset = !config.has_diff_focus_q_weight() && !config.has_diff_focus_pol_scale();
  if (unset || std::isnan(orig_q)) return config.default_weight();
  const float q_weight = config.diff_focus_q_weight();
  const float difference = std::abs(tail_float(tail, formats::v6::kBestQ) - orig_q);
  const float total = (q_weight * difference + tail_float(tail, formats::v6::kPolicyKld)) /
                      (q_weight + config.diff_focus_pol_scale());
  const float weight =
      std::min(std::pow(config.diff_focus_alpha() * total + config.diff_focus_beta(),
                        config.diff_focus_gamma()),
               config.diff_focus_tau());
  // What is no number (a damaged record, a root of something negative) is never preferred.
  return std::isnan(weight) ? 0.0F : weight;
}

float record_weight(const PositionSamplingConfig& config, const std::byte* record,
                    std::uint32_t version) noexcept {
  // Older versions do not have what weights are made of, and say so with orig_q.
  if (version < 6) return config.default_weight();
  return position_weight(config, record + formats::v6::kCastlingUsOoo);
}

PositionChoice::PositionChoice(const WantedPositions& wanted, std::uint64_t key)
    : rate_(wanted.count > 0 ? 0 : wanted.rate),
      count_(wanted.count),
      key_(key),
      weights_(wanted.weights) {}

void PositionChoice::choose(std::uint64_t identity, std::uint32_t frame_count, std::uint64_t use,
                            std::span<const float> weights, std::vector<std::uint32_t>& out) const {
  const std::uint64_t key = mix(key_, identity);
  if (count_ == 0) {
    sample_by_rate(key, frame_count, use, rate_, out);
  } else if (weighted()) {
    sample_by_weight(key, weights, use, count_, out);
  } else {
    sample_by_count(key, frame_count, use, count_, out);
  }
}

std::optional<PositionChoice> consumer_choice(
    const Link& output, const std::function<std::uint64_t(std::string_view)>& key_of) {
  const WantedPositions* const wanted = output.said.find(kWantedPositions);
  if (wanted == nullptr) return std::nullopt;
  return PositionChoice(*wanted, key_of(output.stage));
}

}  // namespace ringfeed
