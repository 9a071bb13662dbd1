// What the configuration says of a plug-in's stage (proto/stages/plugin.proto), without protobuf.
//
//   type.nodes = [](const StageView& stage) {
//     const PluginSettings own = plugin_settings(stage.config);
//     NodeSpec node = own.node();
//     node.inputs = {{.port = "input"}};
//     node.outputs = {own.output("samples")};
//     node.create = [](const StageContext& context) { return std::make_unique<Mine>(context); };
//     return std::vector<NodeSpec>{node};
//   };
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ringfeed/worker/options.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

struct PluginSettings {
  std::string kind;
  // Where records come from, as written. Of a stage with one input this is its port "input"; of one
  // with several, "input[0]", "input[1]", ...
  std::vector<std::string> inputs;
  std::uint32_t lanes = 1;      // threads
  std::uint32_t lanes_max = 0;  // max_threads; 0: not given
  std::uint64_t queue_capacity = 0;
  std::uint64_t queue_bytes = 0;  // 0: not given
  int overflow = 0;               // OverflowBehavior
  Options options;

  // The node of a stage that has no other. It can be scaled as max_threads says; of a stage whose
  // lanes may not (NodeSpec::lanes_max) set lanes_max to 0.
  [[nodiscard]] NodeSpec node() const {
    NodeSpec node;
    node.lanes = lanes;
    node.lanes_max = lanes_max;
    node.more_lanes = kMoreThreads;
    return node;
  }
  // An output port with the queue that the configuration asks for. `usual_bytes`: of that queue, if
  // the configuration says nothing.
  [[nodiscard]] OutputSpec output(std::string record_type, UnitRule units = UnitRule::kFollow,
                                  std::uint64_t usual_bytes = std::uint64_t{4} << 20,
                                  std::string port = "output") const {
    OutputSpec output;
    output.port = std::move(port);
    output.record_type = std::move(record_type);
    output.queue_capacity = queue_capacity;
    output.queue_bytes = queue_bytes != 0 ? queue_bytes : usual_bytes;
    output.overflow = overflow;
    output.units = units;
    return output;
  }
};

// Of a stage of StageView::config or StageContext::config. RF_CHECK: it is a plug-in's. What is
// wrong with the options `check` has said, and they are then as if they were not given.
[[nodiscard]] PluginSettings plugin_settings(const StageConfig& config);

struct FeedSettings {
  std::uint32_t epochs = 0;     // passes of a source over its data; 0: endless
  bool drop_remainder = false;  // whether a last batch that is not full is left out
};
// Of StageView::feed or StageContext::feed.
[[nodiscard]] FeedSettings feed_settings(const DataLoaderConfig& feed);

}  // namespace ringfeed
