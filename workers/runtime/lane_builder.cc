#include "workers/runtime/lane_builder.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>

#include "proto/config.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/quote.h"
#include "workers/runtime/dead_letter.h"

namespace ringfeed {
namespace {

std::uint64_t own_start_ticks() {
  const std::string text = shm::read_file("/proc/self/stat").value_or_throw();
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

LaneBuilder::LaneBuilder(const WorkerSetup& setup, const DataLoaderConfig& config,
                         Segments& segments, const Registry& registry, const PipelineLinks& links,
                         std::function<void(std::string_view)> fail)
    : setup_(setup),
      config_(config),
      segments_(segments),
      registry_(registry),
      links_(links),
      fail_(std::move(fail)) {
  control_ = segments_.map(segments_.of_kind(shm::SegmentKind::kControl), true);
  lane_count_ = reinterpret_cast<const shm::SegmentHeader*>(control_)->geometry[0];
  start_ticks_ = own_start_ticks();
}

shm::LanePage* LaneBuilder::page(std::uint32_t lane) const {
  RF_CHECK(lane < lane_count_, lane, lane_count_);
  return reinterpret_cast<shm::LanePage*>(control_ + shm::lane_page_offset(lane));
}

const shm::NodeLanesWords* LaneBuilder::node_lanes(std::uint32_t node) const {
  RF_CHECK(node < shm::kNodesMax, node);
  return reinterpret_cast<const shm::NodeLanesWords*>(control_ + shm::kNodeLanesOffset) + node;
}

shm::Bell* LaneBuilder::bell(std::uint32_t lane) const {
  return reinterpret_cast<shm::Bell*>(control_ + shm::bells_offset(lane_count_)) + lane;
}

shm::Neighbour LaneBuilder::neighbour(std::uint32_t lane) const { return {page(lane), bell(lane)}; }

EdgeMode LaneBuilder::mode(shm::Overflow overflow) const {
  if (overflow != shm::Overflow::kBlock) return EdgeMode::kLoose;
  return setup_.dispatch() == FeedOutputConfig::RELAXED ? EdgeMode::kRelaxed : EdgeMode::kOrdered;
}

void LaneBuilder::add_input(LaneParts& parts, const LaneSetup& lane, const LaneInput& input) {
  InputPort port;
  port.block = std::max<std::uint64_t>(1, input.block());
  port.lane = lane.number();
  port.lanes.own_words = node_lanes(lane.node_index());
  port.lanes.peer_words = node_lanes(input.peer_node());
  for (const RingEnd& end : input.rings()) {
    std::byte* ring =
        segments_.map(end.ring_segment(), segments_.spec(end.ring_segment()).writable());
    std::byte* heads = segments_.map(lane.heads_segment(), true);
    const std::uint64_t line = shm::kHeadLinesOffset + end.head_index() * sizeof(shm::HeadLine);
    InputPort::Ring& in = port.rings.emplace_back();
    in.end = shm::RingConsumer(
        *reinterpret_cast<shm::TailLine*>(ring + shm::kTailLineOffset), ring + shm::kRingDataOffset,
        *reinterpret_cast<shm::HeadLine*>(heads + line), ring_geometry(ring), line);
    in.neighbour = neighbour(end.peer_lane());
    port.mode = mode(ring_geometry(ring).overflow);
  }
  if (port.mode == EdgeMode::kOrdered) port.first_unit = input.first_unit();
  if (lane.inputs_size() != 0) {
    parts.segments[shm::kHeadsSegment] = {segments_.map(lane.heads_segment(), true),
                                          segments_.bytes(lane.heads_segment())};
  }
  parts.inputs.push_back(std::move(port));
  parts.input_names.push_back(input.port());
}

void LaneBuilder::add_output(LaneParts& parts, const LaneSetup& lane, const LaneOutput& output,
                             const OutputSpec& spec) {
  OutputPort port;
  port.block = std::max<std::uint64_t>(1, output.block());
  port.lane = lane.number();
  port.lanes.own_words = node_lanes(lane.node_index());
  if (output.feed() == 0) port.lanes.peer_words = node_lanes(output.peer_node());
  port.unit_per_record = spec.units == UnitRule::kRecord;
  port.follows = spec.units == UnitRule::kFollow && lane.inputs_size() != 0;
  for (const RingEnd& end : output.rings()) {
    std::byte* ring = segments_.map(end.ring_segment(), true);
    std::byte* heads =
        segments_.map(end.heads_segment(), segments_.spec(end.heads_segment()).writable());
    const std::size_t where = parts.segments.size();
    RF_CHECK(where < 256, where);
    parts.segments.push_back({ring, segments_.bytes(end.ring_segment())});
    OutputPort::Ring& out = port.rings.emplace_back();
    out.end = shm::RingProducer(
        *reinterpret_cast<shm::TailLine*>(ring + shm::kTailLineOffset), ring + shm::kRingDataOffset,
        *reinterpret_cast<const shm::HeadLine*>(heads + shm::kHeadLinesOffset +
                                                end.head_index() * sizeof(shm::HeadLine)),
        ring_geometry(ring), static_cast<std::uint8_t>(where));
    out.neighbour = neighbour(end.peer_lane());
    port.mode = mode(ring_geometry(ring).overflow);
  }
  if (port.mode == EdgeMode::kOrdered) port.first_unit = output.first_unit();
  parts.outputs.push_back(std::move(port));
  parts.output_names.push_back(output.port());
}

void LaneBuilder::add_feed(LaneParts& parts, const LaneSetup& lane, const FeedSetup& feed) {
  shm::FeedProducer::Memory memory;
  memory.feed_control = segments_.map(feed.feed_control_segment(), true);
  memory.payload = segments_.map(feed.payload_segment(), true);
  if (feed.group_segments_size() != static_cast<int>(shm::kGroupsMax)) {
    throw Error(ErrorCode::kIo, fmt::format("the setup has {} group segments, expected {}",
                                            feed.group_segments_size(), shm::kGroupsMax));
  }
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    memory.groups[g] = reinterpret_cast<shm::GroupPage*>(
        segments_.map(feed.group_segments(static_cast<int>(g)), true) + shm::kPageBytes);
  }
  memory.page = page(lane.index());
  memory.open_slot = runtime_word(kOpenSlotWord);
  const auto& header = *reinterpret_cast<const shm::SegmentHeader*>(memory.feed_control);
  const shm::FeedGeometry geometry = {
      .lanes = header.geometry[0],
      .slots = header.geometry[1],
      .descriptors = header.geometry[2],
      .slot_bytes = std::uint64_t{header.geometry[4]} << 32 | header.geometry[3],
      .ordered = header.geometry[5] != 0,
      .checksum = feed.checksum(),
  };
  parts.segments[shm::kFeedControlSegment] = {memory.feed_control,
                                              segments_.bytes(feed.feed_control_segment())};
  parts.feed = std::make_unique<shm::FeedProducer>(memory, geometry, lane.number());
}

// Of the version of the stage that laid it out, and no other.
std::unique_ptr<shm::Arena> LaneBuilder::map_arena(const LaneSetup& lane, const NodeSpec& node) {
  const SegmentSetup& arena_spec = segments_.spec(lane.arena_segment());
  rlimit addresses{};
  const bool bounded =
      ::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY;
  const std::uint64_t room = shm::arena_room(arena_spec.bytes(), arena_spec.bytes_max(),
                                             static_cast<std::uint64_t>(setup_.lanes_size()),
                                             bounded ? addresses.rlim_cur : 0);
  auto arena = std::make_unique<shm::Arena>(
      shm::Arena::map(segments_.fd(lane.arena_segment()), room, lane.stage()).value_or_throw());

  const std::uint32_t version =
      reinterpret_cast<const shm::SegmentHeader*>(arena->segment().data)->geometry[1];
  if (version != node.state_version) {
    throw Error(
        ErrorCode::kIncompatible,
        fmt::format(
            "stage '{}': its memory was laid out by version {} of the stage, but this program has "
            "version {}: use the program that started the feed, or start the feed anew",
            lane.stage(), version, node.state_version));
  }
  return arena;
}

LaneParts LaneBuilder::connect(const LaneSetup& lane, const NodeSpec& node, shm::Arena& arena) {
  LaneParts parts;
  parts.name = lane.stage() + (lane.node().empty() ? "" : "." + lane.node()) + "." +
               std::to_string(lane.number());
  parts.page = page(lane.index());
  parts.bell = bell(lane.index());
  parts.arena = &arena;
  parts.segments.resize(shm::kFirstRingSegment);
  parts.segments[shm::kArenaSegment] = arena.segment();
  std::byte* const heads = segments_.map(lane.heads_segment(), true);
  const auto& stamped = reinterpret_cast<const shm::SegmentHeader*>(heads)->geometry;
  parts.stamps = shm::Stamps(*parts.page, {heads, segments_.bytes(lane.heads_segment())},
                             stamped[0], stamped[1], stamped[2]);
  parts.segments[shm::kLanePageSegment] = {reinterpret_cast<std::byte*>(parts.page),
                                           sizeof(shm::LanePage)};
  for (const LaneInput& input : lane.inputs()) add_input(parts, lane, input);
  for (const LaneOutput& output : lane.outputs()) {
    const auto spec =
        std::find_if(node.outputs.begin(), node.outputs.end(),
                     [&](const OutputSpec& candidate) { return candidate.port == output.port(); });
    if (spec == node.outputs.end()) {
      throw Error(ErrorCode::kConfiguration,
                  fmt::format("{}: has no output '{}'", parts.name, output.port()));
    }
    add_output(parts, lane, output, *spec);
    if (output.feed() != 0) {
      if (output.feed() > static_cast<std::uint32_t>(setup_.outputs_size())) {
        throw Error(ErrorCode::kIo, fmt::format("the setup has no output {}", output.feed()));
      }
      add_feed(parts, lane, setup_.outputs(static_cast<int>(output.feed()) - 1));
    }
  }
  return parts;
}

// A record that is set aside is written for people, with all that it takes to give it to its stage
// once more.
void LaneBuilder::keep_dead_letters(LaneParts& parts, const LaneSetup& lane) const {
  DeadLetterFacts facts{.directory = setup_.dead_letters(),
                        .feed = setup_.feed(),
                        .stage = lane.stage(),
                        .node = lane.node(),
                        .lane = lane.number(),
                        .cause = "unknown",
                        .seed = setup_.seed(),
                        .version = RINGFEED_VERSION};
  for (const CondemnedRecord& condemned : setup_.condemned()) {
    if (condemned.lane() != lane.index()) continue;
    facts.cause = condemned.cause();
    facts.deaths = condemned.deaths();
  }
  // The builder does not outlive the lane; its configuration does.
  parts.keep_dead_letter = [&config = config_, facts,
                            name = parts.name](const DeadLetter& letter) mutable {
    google::protobuf::TextFormat::PrintToString(config, &facts.config);
    const Result<std::string> path = write_dead_letter(facts, letter);
    if (path) {
      spdlog::warn("dead_letter lane={} seq={} bytes={} file={}", name, shm::seq_of(letter.key),
                   letter.record.bytes.size(), log_value(*path));
    } else {
      spdlog::error("dead_letter_lost lane={} seq={} bytes={} error={}", name,
                    shm::seq_of(letter.key), letter.record.bytes.size(),
                    in_quotes(path.error().message()));
    }
  };
}

BuiltLane LaneBuilder::build(const LaneSetup& lane) {
  const StageConfig& stage = config_.stages(static_cast<int>(lane.stage_index()));
  const StageView view = links_.view(static_cast<int>(lane.stage_index()));
  const NodeSpec node = find_node(view, registry_, lane.node());
  BuiltLane built;
  built.arena = map_arena(lane, node);
  LaneParts parts = connect(lane, node, *built.arena);
  built.page = parts.page;
  parts.random_key = mix(setup_.seed(), mix(lane.stage()));
  if (lane.lanes() > 1 || !lane.node().empty()) {
    // Lanes of one stage draw differently; what is drawn for a thing uses StageContext::key
    // instead.
    parts.random_key = mix(parts.random_key, mix(mix(lane.node()), lane.number()));
  }
  // find_node() has found the kind.
  parts.counters = counter_names(*registry_.of(stage), stage);
  parts.steps_per_commit = node.steps_per_commit;
  parts.entries_per_step = node.entries_per_step;
  parts.pid = static_cast<std::uint32_t>(::getpid());
  parts.start_ticks = start_ticks_;
  keep_dead_letters(parts, lane);
  parts.warn = [](std::string_view text) { spdlog::warn("{}", text); };

  built.runtime = std::make_unique<LaneRuntime>(std::move(parts));
  built.runtime->attach();
  StageContext context{
      .config = stage, .feed = config_, .links = view.links, .stage = lane.stage()};
  context.lane = lane.number();
  context.lanes = lane.lanes();
  built.runtime->describe(context);
  context.seed = setup_.seed();
  std::memcpy(&context.feed_id, setup_.feed_id().data(),
              std::min(setup_.feed_id().size(), sizeof context.feed_id));
  context.key = mix(setup_.seed(), mix(lane.stage()));
  context.key_of = [seed = setup_.seed()](std::string_view name) { return mix(seed, mix(name)); };
  context.info = [](std::string_view text) { spdlog::info("{}", text); };
  context.warn = [](std::string_view text) { spdlog::warn("{}", text); };
  context.fail = fail_;
  if (!built.runtime->finished() || node.serves_when_over) {
    built.runtime->set_stage(create_stage(node, context));
  }
  return built;
}

}  // namespace ringfeed
