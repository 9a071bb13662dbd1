#include "workers/lc0/shuffling_frame_sampler.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "workers/kit/stage_help.h"
#include "workers/lc0/lc0_facts.h"
#include "workers/lc0/packed_frame.h"

namespace ringfeed {
namespace {

// What a frame of usual games takes on average, with its entries in the list; what is reserved at
// the start.
constexpr std::uint64_t kFrameBytesUsual = 1168;
// Most frames are not larger.
constexpr std::uint64_t kFrameBytesMost = 1280;

// The tag's two words in one: 40 bits of the chunk's identity suffice for lineage, 24 bits for the
// frame.
std::uint64_t fold_tag(const std::uint64_t (&tag)[2]) noexcept {
  return tag[0] << 24 | (tag[1] & 0xffffff);
}

std::uint64_t state_bytes_wanted(std::uint64_t reservoir_size) {
  StateLayout layout;
  (void)ShufflingFrameSampler::State(layout, reservoir_size);
  return layout.bytes() +
         (reservoir_size + 4 * ShufflingFrameSampler::kStepsPerCommit) * kFrameBytesUsual;
}

// A place stays of its size: a feed whose frames change from one size to another until all have had
// their time ends up with a reservoir of each.
std::uint64_t state_bytes_limit(std::uint64_t reservoir_size) {
  StateLayout layout;
  (void)ShufflingFrameSampler::State(layout, reservoir_size);
  const auto& sizes = ShufflingFrameSampler::kPlaceBytes;
  return layout.bytes() + (reservoir_size + 4 * ShufflingFrameSampler::kStepsPerCommit) *
                              std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

}  // namespace

static_assert(ShufflingFrameSampler::kPlaceBytes.back() >= formats::packed_bytes_max + 8);

ShufflingFrameSampler::ShufflingFrameSampler(const StageContext& context)
    : context_(context),
      reservoir_size_(context.config.shuffling_frame_sampler().reservoir_size_per_thread()),
      state_([this] {
        StateLayout layout;
        return State(layout, reservoir_size_);
      }()),
      in_(context.input("input")),
      out_(context.output("output")),
      frames_held_(context.counter("frames_held")),
      frames_skipped_(context.counter("frames_skipped")) {}

bool ShufflingFrameSampler::put_frame(Step& step, std::uint64_t index) noexcept {
  const std::uint64_t place = step.load(state_.list[2 * index]);
  const std::uint64_t tag = step.load(state_.list[2 * index + 1]);
  return step.put(out_, state_.places.record(step, place), {.tag = {tag >> 24, tag & 0xffffff}});
}

StepStatus ShufflingFrameSampler::drain(Step& step) noexcept {
  const std::uint64_t count = step.load(state_.count);
  if (count == 0 || step.draining()) return StepStatus::kEnd;
  const std::uint64_t victim = step.draw(count);
  if (!put_frame(step, victim)) return StepStatus::kNoRoom;
  step.store(state_.list[2 * victim], step.load(state_.list[2 * (count - 1)]));
  step.store(state_.list[2 * victim + 1], step.load(state_.list[2 * (count - 1) + 1]));
  step.store(state_.count, count - 1);
  step.gauge(frames_held_, count - 1);
  return StepStatus::kDone;
}

// A frame drawn at random is in no cache: what the draws to come will ask for is fetched meanwhile,
// first the entry of the list and, half way, the place that it names.
void ShufflingFrameSampler::fetch_early(const Step& step) noexcept {
  constexpr std::uint64_t kAhead = std::tuple_size_v<decltype(foreseen_)>;
  const auto entry = [&](std::uint64_t index) { return step.bytes(state_.list[2 * index].offset); };
  std::uint64_t& farthest = foreseen_[foreseen_at_ % kAhead];
  const std::uint64_t nearer = foreseen_[(foreseen_at_ + kAhead / 2) % kAhead];
  ++foreseen_at_;
  farthest = step.foresee(reservoir_size_, kAhead);
  __builtin_prefetch(entry(farthest));
  // Not through the step: it may be out of date, and an address out of date does no harm.
  std::uint64_t place = 0;
  std::memcpy(&place, entry(nearer), sizeof place);
  state_.places.fetch(step, place, kFrameBytesMost);
}

void ShufflingFrameSampler::say(std::uint64_t count) noexcept {
  if (count < said_at_ + reservoir_size_ / 100 && count != reservoir_size_) return;
  said_at_ = count;
  context_.progress(fmt::format("reservoir: {} of {} frames", count, reservoir_size_), count,
                    reservoir_size_);
}

StepStatus ShufflingFrameSampler::step(Step& step) noexcept {
  const std::optional<Record> frame = step.peek(in_);
  if (!frame) return step.ended(in_) ? drain(step) : StepStatus::kNoInput;
  if (frame->bytes.size() > formats::packed_bytes_max) {
    step.count(frames_skipped_);
    return step.consume(*frame);
  }
  std::uint64_t place = 0;
  if (!state_.places.put(step, frame->bytes, &place)) return StepStatus::kNoRoom;
  std::uint64_t index = step.load(state_.count);
  if (index < reservoir_size_) {
    step.store(state_.count, index + 1);
    step.gauge(frames_held_, index + 1);
    say(index + 1);
  } else {
    fetch_early(step);
    index = step.draw(reservoir_size_);
    if (!put_frame(step, index)) return StepStatus::kNoRoom;
    state_.places.give(step, step.load(state_.list[2 * index]));
  }
  step.store(state_.list[2 * index], place);
  step.store(state_.list[2 * index + 1], fold_tag(frame->tag));
  return step.consume(*frame);
}

StageType shuffling_frame_sampler_type() {
  StageType type;
  type.kind = "shuffling_frame_sampler";
  type.inputs = {{"input", "frames"}};
  type.outputs = {{"output", "frames"}};
  type.counters = {
      {.name = "frames_held",
       .help = "Frames in the reservoirs.",
       .kind = kGauge,
       .capacity = {.setting = "reservoir_size_per_thread", .each_lane = true}},
      {"frames_skipped", "Frames of another size than the reservoir's places."},
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    const ShufflingFrameSamplerConfig& own = stage.config.shuffling_frame_sampler();
    outputs["output"].set(kDealtInTurn, own.threads() == 1 || own.overflow_behavior() != BLOCK);
  };
  type.nodes = [](const StageView& stage) {
    const ShufflingFrameSamplerConfig& own = stage.config.shuffling_frame_sampler();
    NodeSpec node;
    node.lanes = own.threads();
    node.more_lanes = kMoreThreads;
    node.state_bytes = state_bytes_wanted(own.reservoir_size_per_thread());
    node.state_bytes_max = state_bytes_limit(own.reservoir_size_per_thread());
    node.state_version = 3;
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    // A single lane deals out its frames one by one. Of several each has got another number of
    // them; if those were dealt out in turn, the lane that has more would wait for the one that has
    // less, with the rest of the feed in between waiting for both. So they keep the units of games.
    node.outputs = {output_spec(own, "frames", 4 * kMiB,
                                own.threads() == 1 ? UnitRule::kRecord : UnitRule::kFollow)};
    node.weight = 0.3;
    node.steps_per_commit = ShufflingFrameSampler::kStepsPerCommit;
    node.entries_per_step = 24;
    node.create = [](const StageContext& context) {
      return std::make_unique<ShufflingFrameSampler>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 20000 } }
stages { name: "unpacker" chunk_unpacker { input: "pool" position_count: 4 } }
stages { name: "sampler" shuffling_frame_sampler { input: "unpacker" reservoir_size_per_thread: 50000 } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
