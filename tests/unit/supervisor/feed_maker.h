// Makers for tests of the supervisor: a plan by hand, its feed in real segments, and lanes that run
// in the test's own process.
//
//   source (1 lane) -> mix (1 lane; behind it 2 lanes "read") -> pack (`packers` lanes) -> batches
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/feed_producer.h"
#include "ringfeed/shm/journal.h"
#include "supervisor/layout/feed_memory.h"

namespace ringfeed::test {

struct FeedShape {
  std::uint32_t packers = 1;
  std::uint32_t slots = 4;
  std::uint64_t slot_bytes = 100;
  bool keep_newest = false;
};

struct PlannedFeed {
  DataLoaderConfig config;
  PipelinePlan plan;
  config::Wiring wiring;
  std::vector<config::StageGroup> groups;
};

inline PlannedFeed planned_feed(const FeedShape& shape = {}) {
  PlannedFeed feed;
  feed.config.set_feed("test");
  feed.config.set_seed(1);
  StageConfig& source = *feed.config.add_stages();
  source.set_name("source");
  source.mutable_file_path_provider()->set_directory("data");
  StageConfig& mix = *feed.config.add_stages();
  mix.set_name("mix");
  mix.mutable_shuffling_chunk_pool()->set_input("source");
  StageConfig& pack = *feed.config.add_stages();
  pack.set_name("pack");
  pack.mutable_tensor_generator()->set_input("mix");
  feed.config.add_feed_output()->set_slots(shape.slots);

  const auto add_output = [](NodePlan& node, const std::string& port, std::uint64_t records,
                             std::uint64_t bytes, bool exported) {
    NodeOutput& out = *node.add_outputs();
    out.set_port(port);
    out.set_queue_capacity(records);
    out.set_queue_bytes(bytes);
    out.set_exported(exported);
  };
  const auto add_input = [](NodePlan& node, const std::string& port, const std::string& from) {
    NodeInput& in = *node.add_inputs();
    in.set_port(port);
    in.set_from(from);
  };
  StagePlan& source_plan = *feed.plan.add_stages();
  source_plan.set_kind("file_path_provider");
  NodePlan& source_node = *source_plan.add_nodes();
  source_node.set_lanes(1);
  add_output(source_node, "output", 16, 65536, true);

  StagePlan& mix_plan = *feed.plan.add_stages();
  mix_plan.set_kind("shuffling_chunk_pool");
  NodePlan& mix_node = *mix_plan.add_nodes();
  mix_node.set_lanes(1);
  mix_node.set_arena_bytes(100'000);
  mix_node.set_arena_bytes_max(10'000'000);
  add_input(mix_node, "input", "");
  add_input(mix_node, "feedback", "read.feedback");
  add_output(mix_node, "orders", 64, 5000, false);
  mix_node.mutable_outputs(0)->set_overflow(DROP_NEW);
  NodePlan& read_node = *mix_plan.add_nodes();
  read_node.set_name("read");
  read_node.set_lanes(2);
  add_input(read_node, "orders", ".orders");
  read_node.mutable_inputs(0)->set_block(3);
  add_output(read_node, "output", 32, 1 << 20, true);
  add_output(read_node, "feedback", 8, 4096, false);

  StagePlan& pack_plan = *feed.plan.add_stages();
  pack_plan.set_kind("tensor_generator");
  NodePlan& pack_node = *pack_plan.add_nodes();
  pack_node.set_lanes(shape.packers);
  add_input(pack_node, "input", "");
  pack_node.mutable_inputs(0)->set_block(7);
  add_output(pack_node, "output", 0, 0, true);
  pack_plan.mutable_batch()->set_slot_bytes(shape.slot_bytes);
  pack_plan.mutable_batch()->set_rows_max(10);
  TensorSpec& tensor = *pack_plan.mutable_batch()->add_tensors();
  tensor.set_name("x");
  tensor.set_dtype("uint8");
  tensor.add_shape(-1);

  feed.wiring.edges = {{0, "output", 1, "input", "chunks"}, {1, "output", 2, "input", "frames"}};
  feed.wiring.order = {0, 1, 2};
  feed.wiring.outputs = {
      {.stage = 2, .port = "output", .settings = 0, .keep_newest = shape.keep_newest}};
  feed.groups = {{"front", {0, 1}}, {"back", {2}}};
  return feed;
}

inline layout::FeedLayout laid_out(const FeedShape& shape = {}) {
  const PlannedFeed feed = planned_feed(shape);
  return layout::lay_out(feed.config, feed.plan, feed.wiring, feed.groups);
}

inline std::unique_ptr<layout::FeedMemory> feed_memory(const FeedShape& shape = {}) {
  return std::make_unique<layout::FeedMemory>(laid_out(shape), shm::Storage{},
                                              shm::FeedIdentity{shm::random_feed_id(), 1});
}

// A producing lane in this process: publishes batches as the last stage does.
class ProducingLane {
 public:
  ProducingLane(const layout::FeedMemory& memory, std::uint32_t number)
      : memory_(memory), index_(memory.output().layout().producing_lanes[number]) {
    const layout::FeedLayout& layout = memory.layout();
    const std::uint32_t arena = layout.lanes[index_].arena_segment;
    arena_ = shm::Arena::map(memory.fd(arena), layout.segments[arena].spec.bytes, "arena")
                 .value_or_throw();
    feed_control_ =
        shm::map_segment(memory.fd(layout.outputs[0].feed_control_segment), true).value_or_throw();
    payload_ =
        shm::map_segment(memory.fd(layout.outputs[0].payload_segment), true).value_or_throw();
    segments_.resize(shm::kFirstRingSegment);
    segments_[shm::kArenaSegment] = arena_.segment();
    segments_[shm::kLanePageSegment] = {reinterpret_cast<std::byte*>(&memory.lane(index_)),
                                        sizeof(shm::LanePage)};
    segments_[shm::kFeedControlSegment] = {feed_control_.data(), feed_control_.bytes()};
    journal_ =
        std::make_unique<shm::Journal>(memory.lane(index_), arena_.journal_area(0),
                                       arena_.journal_area(1), shm::kJournalEntries, segments_);
    journal_->recover();
    shm::FeedProducer::Memory parts;
    parts.feed_control = feed_control_.data();
    parts.payload = payload_.data();
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) parts.groups[g] = &memory.output().group(g);
    parts.page = &memory.lane(index_);
    parts.open_slot = shm::word_ref(shm::kArenaSegment, shm::kRuntimeWordsOffset);
    producer_ = std::make_unique<shm::FeedProducer>(parts, layout.outputs[0].geometry, number);
  }

  // What a lane does between two steps: answers groups that join.
  void attend() { producer_->attend_groups(); }
  // False: no slot is free.
  bool publish() {
    if (!producer_->open(*journal_)) return false;
    producer_->publish(*journal_, {.bytes = 1, .rows = 1});
    journal_->commit();
    return true;
  }
  // As many as find room.
  int publish_all() {
    int count = 0;
    while (publish()) ++count;
    return count;
  }
  void finish() {
    producer_->close(*journal_);
    journal_->commit();
    // release: as the runtime does at the end of a lane.
    memory_.lane(index_).state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished),
                                     std::memory_order_release);
  }

 private:
  const layout::FeedMemory& memory_;
  std::uint32_t index_;
  shm::Arena arena_;
  shm::Mapping feed_control_;
  shm::Mapping payload_;
  std::vector<shm::WritableSegment> segments_;
  std::unique_ptr<shm::Journal> journal_;
  std::unique_ptr<shm::FeedProducer> producer_;
};

}  // namespace ringfeed::test
