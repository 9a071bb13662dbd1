#include "tests/support/rig/lane_rig.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ostream>
#include <thread>

#include "proto/batch.pb.h"
#include "proto/feed_output.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/layout.h"
#include "workers/programs/all.h"

namespace ringfeed::testing {
namespace {

constexpr std::chrono::minutes kLongestWait{1};

std::string with_port(const std::string& from) {
  return from.find('.') == std::string::npos ? from + ".output" : from;
}

// The text of the string field `port` in the one configuration that the stage has; of "name[2]" the
// third of the repeated field `name`.
std::string wired_to(const StageConfig& config, const std::string& port) {
  const std::size_t bracket = port.find('[');
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  config.GetReflection()->ListFields(config, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const google::protobuf::Message& own = config.GetReflection()->GetMessage(config, field);
    const auto* input = own.GetDescriptor()->FindFieldByName(port.substr(0, bracket));
    if (input == nullptr) continue;
    if (bracket == std::string::npos) return own.GetReflection()->GetString(own, input);
    return own.GetReflection()->GetRepeatedString(own, input, std::stoi(port.substr(bracket + 1)));
  }
  return "";
}

}  // namespace

void PrintTo(const RigRecord& record, std::ostream* out) {
  *out << "{\"" << record.bytes << "\", tag " << record.tag[0] << ' ' << record.tag[1] << ", user "
       << record.user << ", lane " << record.lane << '}';
}

// ---- what the rig is made of

struct LaneRig::SourceState {
  // What a lane does next: puts a record, ends the unit, or both.
  struct Move {
    bool has_record = false;
    RigRecord record = {};
    bool ends_unit = false;
  };
  std::vector<std::deque<Move>> moves;  // by lane
  std::vector<char> finished;
  std::uint64_t unit = 0;
};

struct LaneRig::SinkState {
  mutable std::mutex mutex;
  std::vector<RigRecord> records;
  std::uint64_t allowed = ~std::uint64_t{0};
};

struct LaneRig::Node {
  std::string name;
  std::uint32_t number = 0;
  NodeSpec spec;
  std::vector<std::string> counters;  // names that its stage may ask for
  StageConfig config;
  std::string stage;              // whose part it is
  std::vector<std::string> from;  // by input: "node.port"
  std::vector<std::size_t> lanes;
  std::unique_ptr<SourceState> source;
  std::unique_ptr<SinkState> sink;
};

struct LaneRig::Ring {
  std::size_t producer;  // lane
  std::size_t consumer;
  std::uint64_t head_line;  // number in the consumer's heads segment
  shm::RingGeometry geometry;
  shm::Mapping memory;
};

struct LaneRig::Lane {
  struct In {
    std::uint64_t block = 1;
    std::uint32_t peer = 0;  // node
    std::vector<Ring*> rings;
  };
  struct Out {
    std::uint64_t block = 1;
    std::uint32_t peer = 0;
    std::vector<Ring*> rings;
    bool feed = false;
  };
  Node* node = nullptr;
  std::size_t number = 0;  // among all
  std::uint32_t lane = 0;  // among those of its node
  std::vector<In> inputs;
  std::vector<Out> outputs;
  std::uint64_t head_lines = 0;
  std::uint64_t page_stamps = 0;
  std::uint64_t slots = 0;  // of batches, of its own
  shm::Mapping heads;
  shm::Fd arena_fd;
  std::uint64_t arena_bytes_max = 0;
  std::unique_ptr<shm::Arena> arena;
  std::unique_ptr<LaneRuntime> runtime;
};

class LaneRig::SourceStage final : public Stage {
 public:
  SourceStage(const StageContext& context, SourceState& state)
      : out_(context.output("output")), lane_(context.lane), state_(state) {}

  // A move stays in the queue until the call that makes it succeeds.
  StepStatus step(Step& step) noexcept override {
    std::deque<SourceState::Move>& moves = state_.moves[lane_];
    if (moves.empty()) return state_.finished[lane_] ? StepStatus::kEnd : StepStatus::kNoInput;
    const SourceState::Move& move = moves.front();
    if (move.has_record &&
        !step.put(out_, std::as_bytes(std::span(move.record.bytes)),
                  {.tag = {move.record.tag[0], move.record.tag[1]}, .user = move.record.user})) {
      return StepStatus::kNoRoom;
    }
    if (move.ends_unit && !step.end_unit(out_)) return StepStatus::kNoRoom;
    moves.pop_front();
    return StepStatus::kDone;
  }

 private:
  OutPort out_;
  std::uint32_t lane_;
  SourceState& state_;
};

class LaneRig::SinkStage final : public Stage {
 public:
  SinkStage(const StageContext& context, SinkState& state)
      : in_(context.input("input")), lane_(context.lane), state_(state) {}

  StepStatus step(Step& step) noexcept override {
    const std::optional<Record> record = step.peek(in_);
    if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
    const std::lock_guard lock(state_.mutex);
    if (state_.allowed == 0) return StepStatus::kNoInput;
    --state_.allowed;
    state_.records.push_back(
        {.bytes = {reinterpret_cast<const char*>(record->bytes.data()), record->bytes.size()},
         .tag = {record->tag[0], record->tag[1]},
         .user = record->user,
         .lane = lane_});
    return step.consume(*record);
  }

 private:
  InPort in_;
  std::uint32_t lane_;
  SinkState& state_;
};

// ---- description

LaneRig::LaneRig(const std::string& feed_text, const formats::ArrowReaders* arrow) {
  if (!google::protobuf::TextFormat::ParseFromString(feed_text, &config_)) {
    throw Error(ErrorCode::kConfiguration, "the rig's feed cannot be read: " + feed_text);
  }
  formats::set_arrow_readers(arrow);
  register_all_stages(registry_);
}

LaneRig::~LaneRig() = default;

LaneRig::Node& LaneRig::node(const std::string& name) {
  return const_cast<Node&>(std::as_const(*this).node(name));
}
const LaneRig::Node& LaneRig::node(const std::string& name) const {
  for (const std::unique_ptr<Node>& known : nodes_) {
    if (known->name == name) return *known;
  }
  throw Error(ErrorCode::kNotFound, "the rig has no node '" + name + "'");
}

void LaneRig::add_source(const std::string& name, std::uint32_t lanes, RigQueue queue) {
  NodeSpec spec;
  spec.lanes = lanes;
  spec.outputs = {{.port = "output",
                   .record_type = "any",
                   .queue_capacity = queue.capacity,
                   .queue_bytes = queue.bytes,
                   .overflow = queue.overflow,
                   .units = UnitRule::kExplicit}};
  auto state = std::make_unique<SourceState>();
  state->moves.resize(lanes);
  state->finished.resize(lanes);
  spec.create = [&raw = *state](const StageContext& context) {
    return std::make_unique<SourceStage>(context, raw);
  };
  add_node(name, std::move(spec));
  nodes_.back()->source = std::move(state);
}

void LaneRig::add_sink(const std::string& name, const std::string& from, std::uint32_t lanes,
                       std::uint64_t block) {
  NodeSpec spec;
  spec.lanes = lanes;
  spec.inputs = {{.port = "input", .from = with_port(from), .block = block}};
  auto state = std::make_unique<SinkState>();
  spec.create = [&raw = *state](const StageContext& context) {
    return std::make_unique<SinkStage>(context, raw);
  };
  add_node(name, std::move(spec));
  nodes_.back()->sink = std::move(state);
}

void LaneRig::add_node(const std::string& name, NodeSpec spec, std::vector<std::string> counters) {
  auto made = std::make_unique<Node>();
  made->name = name;
  made->stage = name;
  made->config.set_name(name);
  for (const InputSpec& input : spec.inputs) made->from.push_back(with_port(input.from));
  made->counters = std::move(counters);
  made->spec = std::move(spec);
  nodes_.push_back(std::move(made));
}

void LaneRig::add_stage(const std::string& stage_text) {
  StageConfig& config = *config_.add_stages();
  if (!google::protobuf::TextFormat::ParseFromString(stage_text, &config)) {
    throw Error(ErrorCode::kConfiguration, "the rig's stage cannot be read: " + stage_text);
  }
  const StageType* type = registry_.of(config);
  if (type == nullptr) {
    throw Error(ErrorCode::kConfiguration, "the rig knows no such stage: " + stage_text);
  }
  const PipelineLinks links(config_, registry_);
  const int number = config_.stages_size() - 1;
  const StageView stage = links.view(number);
  if (type->problems) {
    for (const Problem& problem : type->problems(stage)) {
      if (problem.warning) continue;
      throw Error(ErrorCode::kConfiguration, problem.field + ": " + problem.text);
    }
  }
  std::map<std::string, std::string> back;  // ports that no field wires
  for (const PortSpec& port : links.inputs(number)) {
    if (!port.from.empty()) back[port.name] = port.from;
  }
  for (NodeSpec& spec : type->nodes(stage)) {
    auto made = std::make_unique<Node>();
    made->name = config.name() + (spec.name.empty() ? "" : "." + spec.name);
    made->stage = config.name();
    made->config = config;
    made->counters = counter_names(*type, config);
    for (const InputSpec& input : spec.inputs) {
      // Inside a stage ".port" is a port of its unnamed node, "node.port" one of another.
      made->from.push_back(back.contains(input.port)   ? with_port(back[input.port])
                           : input.from.empty()        ? with_port(wired_to(config, input.port))
                           : input.from.front() == '.' ? config.name() + input.from
                                                       : config.name() + "." + input.from);
    }
    made->spec = std::move(spec);
    nodes_.push_back(std::move(made));
  }
}

// ---- memory

shm::Mapping LaneRig::make_segment(const std::string& name, shm::SegmentKind kind,
                                   std::uint64_t bytes) {
  shm::SegmentSpec spec;
  spec.name = "rig/" + name;
  spec.kind = kind;
  spec.bytes = bytes;
  shm::Fd fd = shm::create_segment(spec, {}, {}).value_or_throw();
  shm::Mapping mapping = shm::map_segment(fd.get(), true).value_or_throw();
  const RigSegment segment{.name = name,
                           .kind = kind,
                           .fd = fd.get(),
                           .data = mapping.data(),
                           .bytes = mapping.bytes(),
                           .mapped_bytes = mapping.bytes()};
  made_.push_back({std::move(fd), segment});
  return mapping;
}

RigSegment LaneRig::arena_segment(const Lane& lane) const {
  struct stat info {};
  RF_CHECK(::fstat(lane.arena_fd.get(), &info) == 0, errno);
  return {.name = "arena " + lane.node->name,
          .kind = shm::SegmentKind::kArena,
          .fd = lane.arena_fd.get(),
          .data = lane.arena->base(),
          .bytes = static_cast<std::uint64_t>(info.st_size),
          .mapped_bytes = shm::kStateOffset + lane.arena->state_bytes_max(),
          .lane = lane.number};
}

std::vector<RigSegment> LaneRig::segments() const {
  std::vector<RigSegment> all;
  for (const Made& made : made_) all.push_back(made.segment);
  for (const std::unique_ptr<Lane>& lane : lanes_) all.push_back(arena_segment(*lane));
  return all;
}

const std::string& LaneRig::node_of(std::size_t lane) const { return lanes_[lane]->node->name; }

void LaneRig::build() {
  links_.emplace(config_, registry_);
  std::uint32_t number = 0;
  for (const std::unique_ptr<Node>& made : nodes_) {
    made->number = number++;
    for (std::uint32_t i = 0; i < std::max(made->spec.lanes, made->spec.lanes_max); ++i) {
      auto lane = std::make_unique<Lane>();
      lane->node = made.get();
      lane->number = lanes_.size();
      lane->lane = i;
      lane->inputs.resize(made->spec.inputs.size());
      lane->outputs.resize(made->spec.outputs.size());
      made->lanes.push_back(lane->number);
      lanes_.push_back(std::move(lane));
    }
  }
  control_ = make_segment("control", shm::SegmentKind::kControl, shm::control_bytes(lanes_.size()));
  for (const std::unique_ptr<Node>& made : nodes_) {
    shm::store(node_lanes(made->number), {.before = made->spec.lanes, .now = made->spec.lanes});
  }
  connect();
  make_feed();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const NodeSpec& spec = lane->node->spec;
    lane->arena_bytes_max = shm::arena_bytes(std::max(spec.state_bytes, spec.state_bytes_max));
    lane->page_stamps = shm::page_stamps(shm::arena_bytes(spec.state_bytes), lane->arena_bytes_max);
    lane->slots = std::any_of(lane->outputs.begin(), lane->outputs.end(),
                              [](const Lane::Out& output) { return output.feed; })
                      ? feed_geometry_.slots / feed_geometry_.lanes
                      : 0;
    lane->heads = make_segment("heads", shm::SegmentKind::kHeads,
                               shm::heads_bytes(lane->head_lines, lane->page_stamps, lane->slots));
    shm::SegmentSpec arena;
    arena.name = "rig/arena " + lane->node->name;
    arena.kind = shm::SegmentKind::kArena;
    arena.bytes = shm::arena_bytes(spec.state_bytes);
    arena.growable = true;
    lane->arena_fd = shm::create_segment(arena, {}, {}).value_or_throw();
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) attach(*lane);
}

// The node that has this output: the one of that name, or the part of that stage that exports it.
LaneRig::Node& LaneRig::port_owner(const std::string& name, const std::string& port) {
  for (const std::unique_ptr<Node>& made : nodes_) {
    for (const OutputSpec& output : made->spec.outputs) {
      if (output.port == port && (made->name == name || (made->stage == name && output.exported))) {
        return *made;
      }
    }
  }
  throw Error(ErrorCode::kNotFound, fmt::format("the rig has no port {}.{}", name, port));
}

// P lanes before C lanes are joined by P * C rings.
void LaneRig::connect() {
  for (const std::unique_ptr<Node>& to : nodes_) {
    for (std::size_t i = 0; i < to->from.size(); ++i) {
      const std::size_t dot = to->from[i].rfind('.');
      const std::string port = to->from[i].substr(dot + 1);
      Node& from = port_owner(to->from[i].substr(0, dot), port);
      const auto output =
          std::find_if(from.spec.outputs.begin(), from.spec.outputs.end(),
                       [&](const OutputSpec& candidate) { return candidate.port == port; });
      const auto out_index = static_cast<std::size_t>(output - from.spec.outputs.begin());
      for (const std::size_t producer : from.lanes) {
        lanes_[producer]->outputs[out_index].block = to->spec.inputs[i].block;
        lanes_[producer]->outputs[out_index].peer = to->number;
        for (const std::size_t consumer : to->lanes) {
          auto ring = std::make_unique<Ring>();
          ring->producer = producer;
          ring->consumer = consumer;
          ring->head_line = lanes_[consumer]->head_lines++;
          ring->geometry = {
              .capacity_bytes = shm::align_up(
                  output->queue_bytes == 0 ? 64 * 1024 : output->queue_bytes, shm::kPageBytes),
              .records_max = output->queue_capacity,
              .overflow = static_cast<shm::Overflow>(output->overflow)};
          ring->memory = make_segment("ring", shm::SegmentKind::kRing,
                                      shm::kRingDataOffset + ring->geometry.capacity_bytes);
          lanes_[consumer]->inputs[i].block = to->spec.inputs[i].block;
          lanes_[consumer]->inputs[i].peer = from.number;
          lanes_[consumer]->inputs[i].rings.push_back(ring.get());
          lanes_[producer]->outputs[out_index].rings.push_back(ring.get());
          rings_.push_back(std::move(ring));
        }
      }
    }
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    for (std::size_t i = 0; i < lane->outputs.size(); ++i) {
      const OutputSpec& spec = lane->node->spec.outputs[i];
      lane->outputs[i].feed = spec.record_type == "batches";
      if (lane->outputs[i].rings.empty() && !lane->outputs[i].feed) {
        throw Error(ErrorCode::kConfiguration,
                    "the rig's port " + lane->node->name + "." + spec.port + " has no reader");
      }
    }
  }
}

void LaneRig::make_feed() {
  for (const std::unique_ptr<Node>& made : nodes_) {
    const bool feeds =
        std::any_of(made->spec.outputs.begin(), made->spec.outputs.end(),
                    [](const OutputSpec& output) { return output.record_type == "batches"; });
    if (!feeds) continue;
    BatchSchema schema;
    // A node of the test's own has a page for a batch.
    schema.set_slot_bytes(shm::kPageBytes);
    if (const StageType* type = registry_.of(made->config)) {
      type->batch({made->config, config_, links_of(made->stage)}, schema);
    }
    const auto lanes = static_cast<std::uint32_t>(made->lanes.size());
    feed_geometry_ = {.lanes = lanes,
                      .slots = (output_settings(config_).slots() + lanes - 1) / lanes * lanes,
                      .descriptors = shm::descriptor_count(lanes),
                      .slot_bytes = schema.slot_bytes(),
                      .ordered = ordered_dispatch(config_)};
    feed_control_ = make_segment("feed", shm::SegmentKind::kFeedControl,
                                 shm::feed_control_bytes(lanes, feed_geometry_.descriptors));
    payload_ =
        make_segment("payload", shm::SegmentKind::kPayload, shm::payload_bytes(feed_geometry_));
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      groups_.push_back(make_segment("group", shm::SegmentKind::kGroup, shm::kGroupSegmentBytes));
    }
    auto& group = *reinterpret_cast<shm::GroupPage*>(groups_[0].data() + shm::kPageBytes);
    group.head.start.store(1);
    group.head.state.store(static_cast<std::uint32_t>(shm::GroupState::kActive));
  }
}

EdgeMode LaneRig::mode(shm::Overflow overflow) const {
  if (overflow != shm::Overflow::kBlock) return EdgeMode::kLoose;
  return ordered_dispatch(config_) ? EdgeMode::kOrdered : EdgeMode::kRelaxed;
}

const shm::LanePage& LaneRig::page(std::size_t number) const {
  return *reinterpret_cast<const shm::LanePage*>(control_.data() + shm::lane_page_offset(number));
}

std::span<const shm::Stamp> LaneRig::page_stamps(std::size_t number) const {
  const Lane& lane = *lanes_[number];
  return {
      reinterpret_cast<const shm::Stamp*>(lane.heads.data() + shm::stamps_offset(lane.head_lines)),
      lane.page_stamps};
}

std::span<const shm::Stamp> LaneRig::slot_stamps(std::size_t number) const {
  return {page_stamps(number).data() + lanes_[number]->page_stamps, lanes_[number]->slots};
}

RigSegment LaneRig::arena(std::size_t number) const { return arena_segment(*lanes_[number]); }

void LaneRig::order_generation(std::size_t number, std::uint32_t generation) {
  reinterpret_cast<shm::LanePage*>(control_.data() + shm::lane_page_offset(number))
      ->generation.store(generation);
}

shm::Neighbour LaneRig::neighbour(std::size_t lane) const {
  auto* const bells =
      reinterpret_cast<shm::Bell*>(control_.data() + shm::bells_offset(lanes_.size()));
  return {&page(lane), bells + lane};
}

LaneParts LaneRig::make_parts(Lane& lane) {
  const NodeSpec& spec = lane.node->spec;
  lane.arena = std::make_unique<shm::Arena>(
      shm::Arena::map(lane.arena_fd.get(), lane.arena_bytes_max, lane.node->name).value_or_throw());
  if (on_arena_) on_arena_(arena_segment(lane));
  LaneParts parts;
  parts.name = lane.node->name + "." + std::to_string(lane.lane);
  parts.page =
      reinterpret_cast<shm::LanePage*>(control_.data() + shm::lane_page_offset(lane.number));
  parts.bell = neighbour(lane.number).bell;
  parts.arena = lane.arena.get();
  parts.stamps = shm::Stamps(*parts.page, {lane.heads.data(), lane.heads.bytes()}, lane.head_lines,
                             lane.page_stamps, lane.slots);
  parts.segments.resize(shm::kFirstRingSegment);
  parts.segments[shm::kArenaSegment] = lane.arena->segment();
  parts.segments[shm::kHeadsSegment] = {lane.heads.data(), lane.heads.bytes()};
  parts.segments[shm::kLanePageSegment] = {reinterpret_cast<std::byte*>(parts.page),
                                           sizeof(shm::LanePage)};
  for (std::size_t i = 0; i < lane.inputs.size(); ++i) {
    InputPort port;
    port.block = lane.inputs[i].block;
    port.lane = lane.lane;
    port.lanes.own_words = &node_lanes(lane.node->number);
    port.lanes.peer_words = &node_lanes(lane.inputs[i].peer);
    for (Ring* ring : lane.inputs[i].rings) {
      const std::uint64_t line = shm::kHeadLinesOffset + ring->head_line * sizeof(shm::HeadLine);
      InputPort::Ring& in = port.rings.emplace_back();
      in.end = shm::RingConsumer(
          *reinterpret_cast<shm::TailLine*>(ring->memory.data() + shm::kTailLineOffset),
          ring->memory.data() + shm::kRingDataOffset,
          *reinterpret_cast<shm::HeadLine*>(lane.heads.data() + line), ring->geometry, line);
      in.neighbour = neighbour(ring->producer);
      port.mode = mode(ring->geometry.overflow);
    }
    parts.inputs.push_back(std::move(port));
    parts.input_names.push_back(spec.inputs[i].port);
  }
  for (std::size_t i = 0; i < lane.outputs.size(); ++i) {
    OutputPort port;
    port.block = lane.outputs[i].block;
    port.lane = lane.lane;
    port.lanes.own_words = &node_lanes(lane.node->number);
    if (!lane.outputs[i].feed) port.lanes.peer_words = &node_lanes(lane.outputs[i].peer);
    port.unit_per_record = spec.outputs[i].units == UnitRule::kRecord;
    port.follows = spec.outputs[i].units == UnitRule::kFollow && !lane.inputs.empty();
    for (Ring* ring : lane.outputs[i].rings) {
      const std::size_t where = parts.segments.size();
      parts.segments.push_back({ring->memory.data(), ring->memory.bytes()});
      const Lane& consumer = *lanes_[ring->consumer];
      OutputPort::Ring& out = port.rings.emplace_back();
      out.end = shm::RingProducer(
          *reinterpret_cast<shm::TailLine*>(ring->memory.data() + shm::kTailLineOffset),
          ring->memory.data() + shm::kRingDataOffset,
          *reinterpret_cast<const shm::HeadLine*>(consumer.heads.data() + shm::kHeadLinesOffset +
                                                  ring->head_line * sizeof(shm::HeadLine)),
          ring->geometry, static_cast<std::uint8_t>(where));
      out.neighbour = neighbour(ring->consumer);
      port.mode = mode(ring->geometry.overflow);
    }
    parts.outputs.push_back(std::move(port));
    parts.output_names.push_back(spec.outputs[i].port);
    if (lane.outputs[i].feed) {
      shm::FeedProducer::Memory memory;
      memory.feed_control = feed_control_.data();
      memory.payload = payload_.data();
      for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
        memory.groups[g] = reinterpret_cast<shm::GroupPage*>(groups_[g].data() + shm::kPageBytes);
      }
      memory.page = parts.page;
      memory.open_slot = runtime_word(kOpenSlotWord);
      parts.segments[shm::kFeedControlSegment] = {feed_control_.data(), feed_control_.bytes()};
      parts.feed = std::make_unique<shm::FeedProducer>(memory, feed_geometry_, lane.lane);
    }
  }
  parts.random_key = mix(config_.seed(), mix(lane.node->stage));
  if (spec.lanes > 1 || !spec.name.empty()) {
    parts.random_key = mix(parts.random_key, mix(mix(spec.name), lane.lane));
  }
  parts.keep_dead_letter = [this](const DeadLetter& letter) {
    if (on_dead_letter_) {
      on_dead_letter_(letter);
      return;
    }
    dead_letters_.emplace_back(reinterpret_cast<const char*>(letter.record.bytes.data()),
                               letter.record.bytes.size());
  };
  parts.counters = lane.node->counters;
  parts.steps_per_commit = spec.steps_per_commit;
  parts.entries_per_step = spec.entries_per_step;
  parts.pid = static_cast<std::uint32_t>(::getpid());
  return parts;
}

const Links& LaneRig::links_of(const std::string& stage) const {
  static const Links kNone;  // of a node that no stage of the configuration has
  for (int s = 0; s < config_.stages_size(); ++s) {
    if (config_.stages(s).name() == stage) return links_->view(s).links;
  }
  return kNone;
}

void LaneRig::attach(Lane& lane) {
  lane.runtime.reset();
  lane.runtime = std::make_unique<LaneRuntime>(make_parts(lane));
  lane.runtime->attach();
  StageContext context{.config = lane.node->config,
                       .feed = config_,
                       .links = links_of(lane.node->stage),
                       .stage = lane.node->stage,
                       .lane = lane.lane};
  context.lanes = lane.node->spec.lanes;
  lane.runtime->describe(context);
  context.seed = config_.seed();
  context.key = mix(config_.seed(), mix(lane.node->stage));
  context.key_of = [seed = config_.seed()](std::string_view name) { return mix(seed, mix(name)); };
  const auto keep = [this](std::string_view text) {
    {
      const std::lock_guard lock(log_mutex_);
      log_.emplace_back(text);
    }
    if (on_log_) on_log_(text);
  };
  context.info = keep;
  context.warn = keep;
  context.fail = [keep](std::string_view text) {
    keep(text);
    RF_CHECK(false && "a stage has ended the feed");
  };
  if (!lane.runtime->finished() || lane.node->spec.serves_when_over) {
    lane.runtime->set_stage(lane.node->spec.create(context));
  }
}

// ---- feeding, and what came

void LaneRig::feed(const std::string& source, RigRecord record, bool ends_unit) {
  SourceState& state = *node(source).source;
  state.moves[state.unit % state.moves.size()].push_back(
      {.has_record = true, .record = std::move(record), .ends_unit = ends_unit});
  if (ends_unit) ++state.unit;
}

void LaneRig::end_unit(const std::string& source) {
  SourceState& state = *node(source).source;
  state.moves[state.unit % state.moves.size()].push_back({.ends_unit = true});
  ++state.unit;
}

void LaneRig::finish(const std::string& source) {
  std::vector<char>& finished = node(source).source->finished;
  std::fill(finished.begin(), finished.end(), 1);
}

void LaneRig::finish_lane(const std::string& source, std::uint32_t lane) {
  node(source).source->finished[lane] = 1;
}

std::vector<RigRecord> LaneRig::got(const std::string& sink) const {
  const SinkState& state = *node(sink).sink;
  const std::lock_guard lock(state.mutex);
  return state.records;
}

std::vector<RigRecord> LaneRig::got(const std::string& sink, std::uint32_t lane) const {
  std::vector<RigRecord> records = got(sink);
  std::erase_if(records, [lane](const RigRecord& record) { return record.lane != lane; });
  return records;
}

void LaneRig::allow(const std::string& sink, std::uint64_t records) {
  SinkState& state = *node(sink).sink;
  const std::lock_guard lock(state.mutex);
  state.allowed = records;
}

// A trainer that takes each batch as it is published, copies it, and gives it back unless told to
// hold it.
void LaneRig::take_batches() {
  if (!feed_control_) return;
  auto& group = *reinterpret_cast<shm::GroupPage*>(groups_[0].data() + shm::kPageBytes);
  const auto descriptor = [&](std::uint64_t s) -> const shm::Descriptor& {
    return *reinterpret_cast<const shm::Descriptor*>(
        feed_control_.data() + shm::descriptors_offset(feed_geometry_.lanes) +
        s % feed_geometry_.descriptors * sizeof(shm::Descriptor));
  };
  const auto published = [&](std::uint64_t s) { return descriptor(s).seq.load() == s; };
  // One lane's batches may run ahead of another's.
  for (std::uint64_t s = taken_to_ + 1; s < taken_to_ + feed_geometry_.descriptors; ++s) {
    if (!published(s) || batches_by_number_.contains(s)) continue;
    const shm::Descriptor& batch = descriptor(s);
    std::atomic<std::uint64_t>& word = group.words[s % feed_geometry_.descriptors];
    RF_CHECK(shm::claim_take(word, word.load(), s, 0), s);
    const std::byte* const bytes = payload_.data() + batch.offset;
    batches_by_number_[s] = {.number = s,
                             .rows = batch.rows,
                             .slot = batch.slot,
                             .token = {batch.token[0], batch.token[1]},
                             .ragged = std::to_array(batch.ragged),
                             .bytes = {bytes, bytes + batch.bytes}};
    unreleased_.push_back(s);
  }
  while (batches_by_number_.contains(taken_to_ + 1)) ++taken_to_;
  if (hold_batches_) return;
  for (const std::uint64_t s : unreleased_) {
    RF_CHECK(shm::claim_finish(group.words[s % feed_geometry_.descriptors], s, 0), s);
  }
  unreleased_.clear();
}

const std::vector<RigBatch>& LaneRig::batches() {
  take_batches();
  batches_.clear();
  for (const auto& [number, batch] : batches_by_number_) batches_.push_back(batch);
  return batches_;
}

// ---- running

std::vector<std::size_t> LaneRig::lanes_of(const std::string& name) const {
  return node(name).lanes;
}

LaneRuntime& LaneRig::lane(std::size_t number) { return *lanes_[number]->runtime; }

bool LaneRig::all_finished() {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const std::unique_ptr<Lane>& lane) { return lane->runtime->finished(); });
}

bool LaneRig::round(std::size_t number) {
  LaneRuntime& runtime = lane(number);
  if (runtime.finished()) return false;
  const LaneRuntime::Round round = runtime.round();
  take_batches();
  return round == LaneRuntime::Round::kWorked || round == LaneRuntime::Round::kFinished;
}

void LaneRig::run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = 0; i < lanes_.size(); ++i) moved = round(i) || moved;
  }
}

void LaneRig::run_random(std::mt19937_64& random) { run_with_restarts(random, 0); }

void LaneRig::run_with_restarts(std::mt19937_64& random, double probability) {
  std::uniform_int_distribution<std::size_t> any_lane(0, lanes_.size() - 1);
  std::bernoulli_distribution dies(probability);
  for (;;) {
    // Random rounds, until so many in a row were idle that a look at every lane is worth it.
    for (std::size_t idle = 0; idle < 2 * lanes_.size();) {
      const std::size_t number = any_lane(random);
      if (probability > 0 && dies(random)) restart(number);
      idle = round(number) ? 0 : idle + 1;
    }
    bool moved = false;
    for (std::size_t i = 0; i < lanes_.size(); ++i) moved = round(i) || moved;
    if (!moved) return;
  }
}

bool LaneRig::run_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    bool moved = false;
    for (std::size_t i = 0; i < lanes_.size(); ++i) moved = round(i) || moved;
    if (!moved) std::this_thread::yield();
  }
  return true;
}

bool LaneRig::run_in_threads(const std::function<bool()>& until) {
  LaneOrders orders;
  std::atomic<std::size_t> running{lanes_.size()};
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    threads.emplace_back([&orders, &running, &runtime = *lane->runtime] {
      runtime.run(orders);
      running.fetch_sub(1);
    });
  }
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  bool in_time = true;
  while (running.load() != 0 && !(until && until()) && in_time) {
    take_batches();
    std::this_thread::yield();
    in_time = std::chrono::steady_clock::now() < end;
  }
  orders.leave.store(true);
  for (std::thread& thread : threads) thread.join();
  take_batches();
  return in_time;
}

shm::NodeLanesWords& LaneRig::node_lanes(std::uint32_t number) const {
  return reinterpret_cast<shm::NodeLanesWords*>(const_cast<std::byte*>(control_.data()) +
                                                shm::kNodeLanesOffset)[number];
}

bool LaneRig::scale(const std::string& name, std::uint32_t lanes) {
  const std::uint32_t scaled = node(name).number;
  const shm::NodeLanes before = shm::load(node_lanes(scaled));
  std::uint64_t first = shm::kNoUnit;
  std::uint64_t from = 0;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::uint32_t own = lane->node->number;
    const auto at = [&](std::uint64_t words, std::size_t port, std::uint32_t peer,
                        std::uint64_t block) {
      if (own != scaled && peer != scaled) return;
      std::uint64_t stored = 0;
      std::memcpy(&stored, lane->arena->base() + shm::kRuntimeWordsOffset + words + 8 * port, 8);
      const std::uint64_t position = stored == 0 ? 0 : stored - 1;
      const std::uint64_t unit = shm::load(node_lanes(own)).next(lane->lane, position, block);
      first = std::min(first, unit);
      from = std::max({from, position, unit == shm::kNoUnit ? 0 : unit + 1});
    };
    for (std::size_t i = 0; i < lane->inputs.size(); ++i) {
      at(kInputWords, i, lane->inputs[i].peer, lane->inputs[i].block);
    }
    for (std::size_t i = 0; i < lane->outputs.size(); ++i) {
      if (!lane->outputs[i].feed) at(kOutputWords, i, lane->outputs[i].peer, 1);
    }
  }
  if (!ordered_dispatch(config_)) first = from = before.from;
  if (first < before.from) return false;
  for (const std::size_t number : lanes_of(name)) {
    if (finished(number)) return false;
  }
  shm::store(node_lanes(scaled), shm::changed(before, from, lanes));
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->runtime->follow_lanes();
  return true;
}

void LaneRig::restart(std::size_t number) { attach(*lanes_[number]); }

void LaneRig::restart(const std::string& name) {
  for (const std::size_t number : lanes_of(name)) restart(number);
}

void LaneRig::condemn(std::size_t number, std::uint64_t key) {
  auto* const page =
      reinterpret_cast<shm::LanePage*>(control_.data() + shm::lane_page_offset(number));
  page->quarantine_key.store(key);
  restart(number);
}

void LaneRig::restart_all() {
  for (const std::unique_ptr<Lane>& lane : lanes_) attach(*lane);
}

#ifdef RINGFEED_FAILPOINTS
bool LaneRig::is_own(std::size_t number) const {
  return lanes_[number]->node->source || lanes_[number]->node->sink;
}

bool LaneRig::die(std::size_t number, const char* failpoint, std::uint64_t count,
                  const std::function<void(LaneRuntime&)>& before) {
  Lane& lane = *lanes_[number];
  RF_CHECK(!is_own(number), number);
  if (lane.runtime->finished()) return false;
  const pid_t child = ::fork();
  RF_CHECK(child >= 0, errno);
  if (child == 0) {
    shm::arm_failpoint(failpoint, 'k', count);
    attach(lane);
    if (before) before(*lane.runtime);
    if (!lane.runtime->finished()) lane.runtime->round();
    ::_exit(0);
  }
  int status = 0;
  RF_CHECK(::waitpid(child, &status, 0) == child, errno);
  RF_CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0, status);
  attach(lane);
  return WIFSIGNALED(status);
}
#endif

LaneParts LaneRig::take_parts(std::size_t number) {
  lanes_[number]->runtime.reset();
  return make_parts(*lanes_[number]);
}

void LaneRig::want(shm::LaneDesire desire) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    auto& lane_page = const_cast<shm::LanePage&>(page(i));
    if (desire == shm::LaneDesire::kPark) lane_page.park_ticket.fetch_add(1);
    lane_page.desired.store(static_cast<std::uint32_t>(desire));
    shm::ring(neighbour(i).bell->rings);
  }
}

// ---- looking

std::uint64_t LaneRig::counter(const std::string& name, std::string_view wanted) const {
  std::uint64_t sum = 0;
  bool found = false;
  for (const std::size_t number : node(name).lanes) {
    for (const shm::NamedCounter& counter : page(number).counters.named) {
      if (std::string_view(counter.name) != wanted) continue;
      sum += counter.value.load();
      found = true;
    }
  }
  if (!found) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} has no counter '{}'", name, wanted));
  }
  return sum;
}

std::string LaneRig::note(const std::string& name) const {
  const shm::LaneNote& note = page(node(name).lanes.front()).counters.note;
  return {note.text, note.bytes};
}

std::uint64_t LaneRig::arena_bytes(const std::string& name) const {
  std::uint64_t sum = 0;
  for (const std::size_t number : node(name).lanes) sum += lanes_[number]->arena->state_bytes();
  return sum;
}

shm::QueueView LaneRig::queue(const std::string& from, std::uint32_t from_lane,
                              const std::string& to, std::uint32_t to_lane) const {
  const std::size_t producer = node(from).lanes[from_lane];
  const std::size_t consumer = node(to).lanes[to_lane];
  for (const std::unique_ptr<Ring>& ring : rings_) {
    if (ring->producer != producer || ring->consumer != consumer) continue;
    return shm::view_queue(
        *reinterpret_cast<const shm::TailLine*>(ring->memory.data() + shm::kTailLineOffset),
        *reinterpret_cast<const shm::HeadLine*>(lanes_[consumer]->heads.data() +
                                                shm::kHeadLinesOffset +
                                                ring->head_line * sizeof(shm::HeadLine)),
        ring->geometry);
  }
  throw Error(ErrorCode::kNotFound, "the rig has no ring from " + from + " to " + to);
}

std::uint64_t LaneRig::state_word(const std::string& name, std::uint64_t offset,
                                  std::uint32_t lane) const {
  const std::byte* const state = lanes_[node(name).lanes[lane]]->arena->state();
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(state + offset)->load();
}

void LaneRig::damage_state_word(const std::string& name, std::uint64_t offset, std::uint64_t value,
                                std::uint32_t lane) {
  std::byte* const state = lanes_[node(name).lanes[lane]]->arena->state();
  reinterpret_cast<std::atomic<std::uint64_t>*>(state + offset)->store(value);
}

std::vector<std::string> LaneRig::log(std::string_view text) const {
  const std::lock_guard lock(log_mutex_);
  std::vector<std::string> lines;
  for (const std::string& line : log_) {
    if (line.find(text) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

std::vector<RigRecord> numbered(std::uint64_t begin, std::uint64_t end) {
  std::vector<RigRecord> records;
  for (std::uint64_t i = begin; i < end; ++i) records.push_back({.bytes = std::to_string(i)});
  return records;
}

std::vector<std::string> texts(const std::vector<RigRecord>& records) {
  std::vector<std::string> all;
  for (const RigRecord& record : records) all.push_back(record.bytes);
  return all;
}

}  // namespace ringfeed::testing
