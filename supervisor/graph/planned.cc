#include "supervisor/graph/planned.h"

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "supervisor/layout/memory.h"
#include "supervisor/metrics/status.h"

namespace ringfeed::graph {
namespace {

void add_groups(const FeedOutputConfig& settings, const layout::OutputLayout& output,
                StatusReply& status) {
  for (const ConsumerGroupConfig& configured : settings.groups()) {
    ConsumerGroupStatus& group = *status.add_groups();
    group.set_name(configured.name());
    group.set_kind(configured.kind());
    group.set_world(configured.kind() == ConsumerGroupConfig::RANKED ? configured.world() : 0);
    group.set_policy(output.keep_newest ? ConsumerGroupConfig::SKIP : configured.policy());
    if (!output.alias.empty()) group.set_output(output.alias);
  }
}

}  // namespace

Graph planned_graph(const DataLoaderConfig& config, const PipelinePlan& plan,
                    const layout::FeedLayout& layout) {
  StatusReply status;
  status.set_feed(layout.feed);
  status.set_memory_bytes(layout::memory_sum(layout));
  metrics::lay_out_stages(layout, plan, status);
  metrics::lay_out_rings(layout, status);
  for (const layout::OutputLayout& output : layout.outputs) {
    const BatchSchema& schema = plan.stages(static_cast<int>(output.stage)).batch();
    metrics::lay_out_output(layout, output, schema, status);
    add_groups(output_settings(config, output.settings), output, status);
  }
  Graph graph = make_graph(status, nullptr);
  for (const config::MemoryPart& part : layout::memory_parts(layout)) {
    graph.memory.push_back({part.part, part.bytes});
  }
  return graph;
}

}  // namespace ringfeed::graph
