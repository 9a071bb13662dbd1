// From the supervisor's description of a lane to the lane: its arena, its ports over mapped rings,
// its stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "ringfeed/worker/stage.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/links.h"
#include "workers/runtime/registry.h"
#include "workers/runtime/segments.h"

namespace ringfeed {

class FeedSetup;
class LaneInput;
class LaneOutput;
class LaneSetup;

struct BuiltLane {
  std::unique_ptr<shm::Arena> arena;
  shm::LanePage* page = nullptr;
  std::unique_ptr<LaneRuntime> runtime;
};

class LaneBuilder {
 public:
  // All of it outlives the lanes that are built: they write dead letters with `config` and `setup`,
  // and their stages keep `links`, which are those of `config`. `fail`: as in StageContext.
  LaneBuilder(const WorkerSetup& setup, const DataLoaderConfig& config, Segments& segments,
              const Registry& registry, const PipelineLinks& links,
              std::function<void(std::string_view)> fail);

  // Carries out what the lane's last incarnation committed. Throws Error; what was carried out
  // stays so.
  [[nodiscard]] BuiltLane build(const LaneSetup& lane);

 private:
  [[nodiscard]] shm::LanePage* page(std::uint32_t lane) const;
  [[nodiscard]] const shm::NodeLanesWords* node_lanes(std::uint32_t node) const;
  [[nodiscard]] shm::Bell* bell(std::uint32_t lane) const;
  [[nodiscard]] shm::Neighbour neighbour(std::uint32_t lane) const;
  [[nodiscard]] EdgeMode mode(shm::Overflow overflow) const;

  std::unique_ptr<shm::Arena> map_arena(const LaneSetup& lane, const NodeSpec& node);
  // The parts that lie in memory, and the ports over them.
  LaneParts connect(const LaneSetup& lane, const NodeSpec& node, shm::Arena& arena);
  void add_input(LaneParts& parts, const LaneSetup& lane, const LaneInput& input);
  void add_output(LaneParts& parts, const LaneSetup& lane, const LaneOutput& output,
                  const OutputSpec& spec);
  void add_feed(LaneParts& parts, const LaneSetup& lane, const FeedSetup& feed);
  void keep_dead_letters(LaneParts& parts, const LaneSetup& lane) const;

  const WorkerSetup& setup_;
  const DataLoaderConfig& config_;
  Segments& segments_;
  const Registry& registry_;
  const PipelineLinks& links_;
  std::function<void(std::string_view)> fail_;
  std::byte* control_ = nullptr;
  std::uint32_t lane_count_ = 0;
  std::uint64_t start_ticks_ = 0;
};

}  // namespace ringfeed
