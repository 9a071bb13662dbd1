// Specification of supervisor/graph: what a graph is made of, in which order, and that a feed has
// the graph that its configuration promised.
#include "supervisor/graph/graph.h"

#include <gmock/gmock.h>

#include <map>

#include "supervisor/graph/order.h"
#include "supervisor/graph/planned.h"
#include "supervisor/metrics/status.h"
#include "tests/unit/supervisor/feed_maker.h"
#include "tests/unit/supervisor/graph/graph_maker.h"

namespace ringfeed::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> node_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.name);
  return names;
}

// "mix.read.output>pack"; a '^' before those that go back.
std::vector<std::string> queue_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Queue& queue : graph.queues) {
    names.push_back((queue.back ? "^" : "") + graph.nodes[queue.from].name + "." + queue.port +
                    ">" + graph.nodes[queue.to].name);
  }
  return names;
}

TEST(Graph, NodesAreStagesAndTheirPartsAndQueuesGoBackOrForward) {
  const Graph graph = make_graph(running_feed(), nullptr);
  EXPECT_THAT(node_names(graph), ElementsAre("source", "mix", "mix.read", "pack"));
  EXPECT_THAT(queue_names(graph), ElementsAre("source.output>mix", "mix.orders>mix.read",
                                              "^mix.read.feedback>mix", "mix.read.output>pack"));
  EXPECT_EQ(graph.nodes[2].stage, "mix");
  EXPECT_EQ(graph.nodes[2].part, "read");
  EXPECT_EQ(graph.processes[graph.nodes[2].processes.at(0)].name, "front");
  EXPECT_EQ(graph.outputs.at(0).from, 3U);
  EXPECT_EQ(graph.outputs[0].groups.at(0).trainers.at(0).client, "train.py");
}

TEST(Graph, SpareLanesAndTheirRingsDoNotCount) {
  const Graph graph = make_graph(running_feed(), nullptr);
  EXPECT_EQ(graph.nodes[2].lanes, 2U);
  EXPECT_EQ(graph.nodes[2].lanes_max, 3U);
  EXPECT_EQ(graph.queues[1].rings, 2U);
  EXPECT_EQ(graph.queues[1].capacity_records, 32U);
}

// Of the records of a queue that holds few, large ones the bytes tell.
TEST(Graph, AQueueIsAsFullAsItsFullerMeasure) {
  const Graph graph = make_graph(running_feed(), nullptr);
  EXPECT_DOUBLE_EQ(graph.queues[0].fill_share(), 0.25);
  EXPECT_DOUBLE_EQ(graph.queues[3].fill_share(), 1);
  EXPECT_EQ(Queue().fill_share(), 0) << "it has no room";
}

TEST(Graph, RatesAndLoadsAreThoseOfTenSeconds) {
  const MetricsReply metrics = its_metrics();
  const Graph graph = make_graph(running_feed(), &metrics);
  EXPECT_EQ(graph.seconds_covered, 4);
  EXPECT_FALSE(graph.queues[0].records_per_s) << "source has no metrics";
  EXPECT_EQ(graph.queues[1].records_per_s, 20);
  EXPECT_EQ(graph.queues[2].records_per_s, 30) << "inside a stage its part's name is before it";
  EXPECT_EQ(graph.queues[3].records_per_s, 40);
  EXPECT_EQ(graph.queues[3].bytes_per_s, 250'000);
  EXPECT_EQ(graph.outputs[0].batches_per_s, 12.5);
  ASSERT_TRUE(graph.nodes[2].load);
  EXPECT_EQ(graph.nodes[2].load->busy, 0.9);
  EXPECT_EQ(graph.nodes[1].load->busy, 0.25);
  EXPECT_FALSE(graph.nodes[0].load);
}

TEST(Graph, TheBottleneckIsMarked) {
  const MetricsReply metrics = its_metrics();
  const Graph graph = make_graph(running_feed(), &metrics);
  EXPECT_TRUE(graph.nodes[2].limits);
  EXPECT_FALSE(graph.nodes[1].limits);
  EXPECT_EQ(graph.bottlenecks.at(0).node, 2U);
  EXPECT_EQ(graph.bottlenecks[0].sentence, metrics.bottlenecks(0).sentence());
}

TEST(Graph, AnEmptyOrContradictoryStatusHasAGraph) {
  EXPECT_THAT(node_names(make_graph(StatusReply(), nullptr)), IsEmpty());
  StatusReply status;
  add_stage(status, "a", "g");
  add_ring(status, "nobody.0", "a.0");
  add_ring(status, "a.0", "a.0");
  add_output(status, "nobody");
  status.mutable_stages(0)->add_lanes()->set_name("odd");
  const Graph graph = make_graph(status, nullptr);
  EXPECT_THAT(queue_names(graph), ElementsAre("^a.output>a"));
  EXPECT_FALSE(graph.outputs.at(0).from);
}

// What `ringfeed graph CONFIG` shows is what the feed then is.
TEST(Graph, AFeedHasTheGraphOfItsConfiguration) {
  const test::PlannedFeed feed = test::planned_feed({.packers = 2});
  const auto memory = test::feed_memory({.packers = 2});
  const Graph planned = planned_graph(feed.config, feed.plan, memory->layout());
  StatusReply status;
  status.set_state(StatusReply::RUNNING);
  metrics::fill_stages(*memory, feed.plan, {{7, 0}, {8, 0}}, status);
  metrics::fill_rings(*memory, status);
  const control::ConsumerGroups groups(memory->output());
  metrics::fill_output(memory->output(), groups, feed.plan.stages(2).batch(), status);
  const Graph running = make_graph(status, nullptr);
  EXPECT_FALSE(planned.running);
  EXPECT_TRUE(running.running);
  EXPECT_EQ(node_names(running), node_names(planned));
  EXPECT_EQ(queue_names(running), queue_names(planned));
  EXPECT_THAT(queue_names(planned), ElementsAre("source.output>mix", "mix.orders>mix.read",
                                                "^mix.read.feedback>mix", "mix.read.output>pack"));
  for (std::size_t i = 0; i < planned.queues.size(); ++i) {
    EXPECT_EQ(running.queues[i].to_port, planned.queues[i].to_port);
    EXPECT_EQ(running.queues[i].rings, planned.queues[i].rings);
    EXPECT_EQ(running.queues[i].capacity_records, planned.queues[i].capacity_records);
    EXPECT_EQ(running.queues[i].capacity_bytes, planned.queues[i].capacity_bytes);
  }
  EXPECT_EQ(planned.queues[3].rings, 4U);
  EXPECT_EQ(running.outputs.at(0).slots, planned.outputs.at(0).slots);
  EXPECT_EQ(planned.outputs[0].from, 3U);
  std::uint64_t sum = 0;
  for (const MemoryPart& part : planned.memory) sum += part.bytes;
  EXPECT_EQ(sum, planned.memory_bytes);
}

TEST(DrawingOrder, WritersComeBeforeTheirReaders) {
  EXPECT_THAT(drawing_order({0, 0, 0}, {0, 1, 2}, {{2, 0}, {0, 1}}), ElementsAre(2, 0, 1));
  EXPECT_THAT(drawing_order({}, {}, {}), IsEmpty());
}

//   0 > 1 > 3, 0 > 2 > 3; 0 and 2 share a frame
TEST(DrawingOrder, NodesOfAFrameStayTogether) {
  EXPECT_THAT(drawing_order({5, 6, 5, 6}, {0, 1, 2, 3}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}),
              ElementsAre(0, 2, 1, 3));
}

// Two parts of a stage that wait for each other are begun where the stage begins, and a link that
// is known to go back says nothing.
TEST(DrawingOrder, ACircleIsCutInsideAFamily) {
  EXPECT_THAT(
      drawing_order({0, 0, 0, 0}, {0, 1, 1, 2}, {{0, 1}, {1, 2}, {2, 1}, {2, 3}, {3, 0, true}}),
      ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(drawing_order({0, 0}, {0, 1}, {{0, 1}, {1, 0}}), ElementsAre(0, 1));
}

}  // namespace
}  // namespace ringfeed::graph
