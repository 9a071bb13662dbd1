// The stage sample_shuffler.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/place_pool.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/sample_facts.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kSampleBytesUsual = 1024;
constexpr std::uint32_t kStepsPerCommit = 64;
// Samples that one step puts out to make room for another, at most.
constexpr std::uint32_t kOutPerStep = 8;

//   input    samples
//   output   samples, each a unit
//   arena    the samples held: places, tags
//   at end   puts out what it holds; on drain at once
class SampleShuffler final : public Stage {
 public:
  struct State {
    State(StateLayout& layout, std::uint64_t size)
        : count(layout.word()),
          bytes(layout.word()),
          places_bytes(layout.word()),
          list(layout.words(3 * size)),
          places(layout, places_bytes, usual_place_sizes(), kUsualPlaceAlignment,
                 kStepsPerCommit * kOutPerStep) {}
    Word count;         // samples held
    Word bytes;         // that they have
    Word places_bytes;  // bytes of the places made so far
    Words list;         // 3 i: place of sample i; then its tag
    PlacePool places;
  };

  explicit SampleShuffler(const StageContext& context)
      : context_(context),
        size_(context.config.sample_shuffler().size()),
        bytes_max_(context.config.sample_shuffler().has_reservoir_bytes()
                       ? context.config.sample_shuffler().reservoir_bytes()
                       : ~std::uint64_t{0}),
        state_([this] {
          StateLayout layout;
          return State(layout, size_);
        }()),
        in_(context.input("input")),
        out_(context.output("output")),
        held_(context.counter("samples_held")),
        bytes_held_(context.counter("bytes_held")) {}

  StepStatus step(Step& step) noexcept override {
    const std::optional<Record> sample = step.peek(in_);
    const std::uint64_t count = step.load(state_.count);
    if (!sample) {
      if (!step.ended(in_)) return StepStatus::kNoInput;
      if (count == 0 || step.draining()) return StepStatus::kEnd;
      return put_out(step) ? StepStatus::kDone : StepStatus::kNoRoom;
    }
    const std::uint64_t bytes = sample->bytes.size();
    for (std::uint32_t out = 0; is_full(step, bytes); ++out) {
      if (out == kOutPerStep) return StepStatus::kDone;  // goes on with the next step
      if (!put_out(step)) return out == 0 ? StepStatus::kNoRoom : StepStatus::kDone;
    }
    std::uint64_t place = 0;
    if (!state_.places.put(step, sample->bytes, &place)) return StepStatus::kNoRoom;
    const std::uint64_t index = step.load(state_.count);
    step.store(state_.list[3 * index], place);
    step.store(state_.list[3 * index + 1], sample->tag[0]);
    step.store(state_.list[3 * index + 2], sample->tag[1]);
    const std::uint64_t held = step.load(state_.bytes) + bytes;
    hold(step, index + 1, held);
    if (fills_) say(index + 1, held);
    return step.consume(*sample);
  }

 private:
  [[nodiscard]] bool is_full(const Step& step, std::uint64_t more) const noexcept {
    const std::uint64_t count = step.load(state_.count);
    // One sample is held, however large it is.
    return count == size_ || (count != 0 && step.load(state_.bytes) + more > bytes_max_);
  }
  void hold(Step& step, std::uint64_t count, std::uint64_t bytes) noexcept {
    step.store(state_.count, count);
    step.store(state_.bytes, bytes);
    step.gauge(held_, count);
    step.gauge(bytes_held_, bytes);
  }
  // Whoever waits for the first batch is told by whichever limit is nearer.
  void say(std::uint64_t count, std::uint64_t bytes) noexcept {
    const bool by_bytes = static_cast<double>(bytes) * static_cast<double>(size_) >
                          static_cast<double>(count) * static_cast<double>(bytes_max_);
    const std::uint64_t done = by_bytes ? bytes : count;
    const std::uint64_t all = by_bytes ? bytes_max_ : size_;
    if (done < said_ + all / 100 && done != all) return;
    said_ = done;
    context_.progress(
        by_bytes ? fmt::format("reservoir: {} samples, {} of {} bytes", count, bytes, bytes_max_)
                 : fmt::format("reservoir: {} of {} samples", count, size_),
        done, all);
  }
  // One drawn at random; the last one takes its place in the list. False: no room.
  bool put_out(Step& step) noexcept {
    if (std::exchange(fills_, false)) context_.note("");
    const std::uint64_t count = step.load(state_.count);
    const std::uint64_t victim = step.draw(count);
    const std::uint64_t place = step.load(state_.list[3 * victim]);
    const std::span<const std::byte> bytes = state_.places.record(step, place);
    const RecordInfo info{
        .tag = {step.load(state_.list[3 * victim + 1]), step.load(state_.list[3 * victim + 2])}};
    if (!step.put(out_, bytes, info)) return false;
    state_.places.give(step, place);
    for (std::uint64_t word = 0; word < 3; ++word) {
      step.store(state_.list[3 * victim + word], step.load(state_.list[3 * (count - 1) + word]));
    }
    hold(step, count - 1, step.load(state_.bytes) - bytes.size());
    return true;
  }

  StageContext context_;
  std::uint64_t size_;
  std::uint64_t bytes_max_;
  bool fills_ = true;  // nothing has been put out by this process
  std::uint64_t said_ = 0;
  State state_;
  InPort in_;
  OutPort out_;
  Counter held_;
  Counter bytes_held_;
};

}  // namespace

StageType sample_shuffler_type() {
  StageType type;
  type.kind = "sample_shuffler";
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {.name = "samples_held",
       .help = "Samples in the reservoir.",
       .kind = kGauge,
       .capacity = {.setting = "size"}},
      {"bytes_held", "Bytes of these samples.", kGauge},
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    const TypedFields* const known = stage.links.input("input").said.find(kTypedFields);
    if (known != nullptr) outputs["output"].set(kTypedFields, *known);
  };
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    pass_on_batch_wish(stage.links, "input", inputs);
  };
  type.nodes = [](const StageView& stage) {
    const SampleShufflerConfig& own = stage.config.sample_shuffler();
    StateLayout layout;
    const SampleShuffler::State state(layout, own.size());
    NodeSpec node;
    node.state_bytes = state.places.head_bytes() + kMiB;
    node.state_bytes_max = kGrowsWithData;
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "samples", 4 * kMiB, UnitRule::kRecord)};
    node.weight = 0.2;
    node.steps_per_commit = kStepsPerCommit;
    node.entries_per_step = 16 + 16 * kOutPerStep;
    node.create = [](const StageContext& context) {
      return std::make_unique<SampleShuffler>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "shuffled" sample_shuffler { input: "lines" size: 20 } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
