// Which positions of a chunk a use of it gives. A function of the chunk, the use and the settings,
// so that the stage that takes chunks apart and the one that reads them come to the same choice:
// the reader then passes on only what is wanted (consumer_choice()).
//
// position_sampling_rate p: position i of a chunk has a fixed phase t in [0, 1), drawn from chunk
// and index. Use number u of the chunk covers [u p, (u + 1) p) of a circle of length 1 and gives
// the positions whose phase lies there. So the expected share is exactly p in every use, for every
// p, and each position comes once in every 1/p uses: no drift, and no state but the number of the
// use.
//
// position_count k: the positions are shuffled again and again, one shuffle after the other; use u
// gives items k u to k (u + 1) - 1 of that endless row. A use that spans two shuffles may give a
// position twice. With weights (position_sampling) a shuffle keeps each position with the
// probability weight / largest weight in the chunk, and the others wait for the next shuffle.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/worker/facts.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

// The positions that use number `use` of a chunk of `frame_count` positions gives, ascending. `key`
// names seed and chunk.
void sample_by_rate(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use, double rate,
                    std::vector<std::uint32_t>& out);
void sample_by_count(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use,
                     std::uint32_t count, std::vector<std::uint32_t>& out);
// As sample_by_count(); `weights` has one of each position. All the same where none is above 0.
void sample_by_weight(std::uint64_t key, std::span<const float> weights, std::uint64_t use,
                      std::uint32_t count, std::vector<std::uint32_t>& out);

// Weight of a position from the tail of its record (record bytes from 8272 on): how far the search
// has come away from what the network thought,
//
//   min(x^gamma, tau)
//   x = alpha (q_weight |best_q - orig_q| + policy_kld) / (q_weight + pol_scale) + beta
//
// or default_weight where orig_q is NaN, or neither q_weight nor pol_scale is set.
[[nodiscard]] float position_weight(const PositionSamplingConfig& config,
                                    const std::byte* tail) noexcept;

// The same of a record of this version, 3 to 7.
[[nodiscard]] float record_weight(const PositionSamplingConfig& config, const std::byte* record,
                                  std::uint32_t version) noexcept;

// Which positions of each use of a chunk its reader wants (position_choice.h); it wishes for them
// only if they are not all.
struct WantedPositions {
  double rate = 1;          // of 1, if `count` is 0
  std::uint32_t count = 0;  // positions
  std::optional<PositionSamplingConfig> weights;
};
inline std::string fact_text(const WantedPositions& wanted) {
  if (wanted.count == 0) return fmt::format("{} of them", wanted.rate);
  return fmt::format("{} of each{}", wanted.count, wanted.weights ? ", by weight" : "");
}
inline constexpr Fact<WantedPositions> kWantedPositions{"chunks.positions"};

// The choice that a chunk_unpacker makes.
class PositionChoice {
 public:
  // `key`: the unpacker's StageContext::key.
  PositionChoice(const WantedPositions& wanted, std::uint64_t key);

  // Is every position of every chunk given?
  [[nodiscard]] bool all() const noexcept { return count_ == 0 && rate_ >= 1.0; }
  // Does the choice ask for weights of the positions?
  [[nodiscard]] bool weighted() const noexcept { return weights_.has_value(); }
  [[nodiscard]] const PositionSamplingConfig& weights() const noexcept { return *weights_; }
  // The chosen ones, ascending; `weights` is empty unless weighted().
  void choose(std::uint64_t identity, std::uint32_t frame_count, std::uint64_t use,
              std::span<const float> weights, std::vector<std::uint32_t>& out) const;

 private:
  double rate_;
  std::uint32_t count_;
  std::uint64_t key_;
  std::optional<PositionSamplingConfig> weights_;
};

// What a chunk_unpacker wants, or a stage that reads chunks and puts out frames
// (ChunkFramesConfig).
template <typename Config>
[[nodiscard]] WantedPositions wanted_positions(const Config& config) {
  WantedPositions wanted;
  wanted.rate = config.position_sampling_rate();
  wanted.count = config.position_count();
  if (config.has_position_sampling()) wanted.weights = config.position_sampling();
  return wanted;
}
// What contradicts itself in such a configuration, which stands in the field `parent` of the
// stage's ("": it is the stage's).
template <typename Config>
void add_choice_problems(const Config& config, const std::string& parent,
                         std::vector<Problem>& problems) {
  const std::string at = parent.empty() ? "" : parent + ".";
  if (config.has_position_sampling_rate() && config.has_position_count()) {
    problems.push_back(
        {at + "position_count",
         "position_sampling_rate and position_count are both given; give one of them"});
  }
  if (config.has_position_sampling() && !config.has_position_count()) {
    problems.push_back({at + "position_sampling",
                        "weights choose among a count of positions: give position_count instead "
                        "of position_sampling_rate"});
  }
}

// The choice of the stage that reads the chunks of this output; nothing: it wants all of them.
// `key_of`: StageContext::key_of.
[[nodiscard]] std::optional<PositionChoice> consumer_choice(
    const Link& output, const std::function<std::uint64_t(std::string_view)>& key_of);

}  // namespace ringfeed
