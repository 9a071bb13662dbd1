// The stage dataset_batcher.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/requests.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/batch_schema.h"
#include "workers/kit/stage_help.h"
#include "workers/python/dataset_function.h"

namespace ringfeed {
namespace {

OpenDatasetFunction& opener_of_datasets() {
  static OpenDatasetFunction open;
  return open;
}

constexpr std::uint64_t kBatchHeadBytes = sizeof(DatasetFunction::Head);
// Of one batch; if there are more, the batch as a whole is to blame.
constexpr std::uint64_t kCondemnedMax = 1024;
// Positions of samples that a key can tell apart; the same for all behind it.
constexpr std::uint64_t kPlaceMax = DatasetFunction::kTogether - 1;

// As shm::record_key(): of a sample of batch `number`, in place of a record of an input. Bits 40 to
// 61 are the sample's place; bit 62 stays 0, as no key does that names many.
std::uint64_t key_of(std::uint64_t number, std::uint64_t place) noexcept {
  return std::uint64_t{1} << 63 | place << 40 | (number & ((std::uint64_t{1} << 40) - 1));
}
std::uint32_t place_of(std::uint64_t key) noexcept {
  return static_cast<std::uint32_t>(key >> 40 & DatasetFunction::kTogether);
}

//   output   batches: of each its head
//   arena    where the state of the dataset lies and how long it is (2 x 8 bytes), how many samples
//            of the batch at hand are condemned (8), their places (4 KiB), and the state itself,
//            twice, with what was appended since
//   draws    nothing: the generators are those of the dataset's own language, and in its state
//
// A request stays where it is until the trainer has its batch, and the batch is published in the
// step that makes it. So a process that comes after a dead one makes the same batch of the same
// request and the same state. What the dead one has left in the slot, or in the trainer's memory
// beside it, means nothing.
//
// Each sample is named before it is touched, so that the supervisor can tell which one kills. One
// that is condemned is noted in the arena, in a step of its own, and the batch is made without it.
class DatasetBatcher final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : offset(layout.word()),
          length(layout.word()),
          condemned(layout.word()),
          places(layout.place(kCondemnedMax * sizeof(std::uint32_t))),
          kept(layout.place(0)) {}
    Word offset;  // of the state, behind `kept`
    Word length;
    Word condemned;
    Place places;
    Place kept;  // from here on
  };

  explicit DatasetBatcher(const StageContext& context)
      : context_(context),
        state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        batches_(context.counter("batches")),
        samples_(context.counter("samples")),
        left_out_(context.counter("skipped_poison")),
        raised_(context.counter("exceptions")),
        fetch_us_(context.counter("fetch_us")),
        collate_us_(context.counter("collate_us")),
        planned_(context.config.dataset_batcher().planned()) {
    Result<std::unique_ptr<DatasetFunction>> opened = dataset_opener()(context);
    if (!opened) throw Error(opened.error());
    function_ = std::move(*opened);
    requests_ = function_->requests();
    if (!shm::are_requests(requests_.data(), requests_.size())) {
      throw Error(ErrorCode::kIncompatible,
                  fmt::format("stage '{}': the trainer's memory is no table of requests: use the "
                              "same version of trainer and worker",
                              context.stage));
    }
    // What this process's predecessor has left. Nobody writes it before the first step.
    const std::byte* const kept = context.state + state_.kept.offset + context.load(state_.offset);
    function_->begin({kept, context.load(state_.length)});
  }

  StepStatus step(Step& step) noexcept override {
    if (step.draining()) return StepStatus::kEnd;
    const std::uint64_t number = step.batch_number();
    if (note_condemned(step, number)) return StepStatus::kDone;
    shm::RequestView request;
    switch (find(number, &request)) {
      case shm::RequestState::kNotYet:
        awaited_ = number;
        return StepStatus::kIdle;
      case shm::RequestState::kDamaged:
        context_.fail(fmt::format("stage '{}': request {} of the trainer leaves its table",
                                  context_.stage, number));
        return StepStatus::kIdle;
      case shm::RequestState::kThere:
        break;
    }
    if (request.kind == shm::kNoMoreRequests) return StepStatus::kEnd;
    const std::span<std::byte> slot = step.open_batch();
    if (slot.empty()) return StepStatus::kNoRoom;
    return make(step, number, request, slot);
  }
  // A trainer rings when it has asked for something.
  [[nodiscard]] bool is_asked() const noexcept override {
    shm::RequestView request;
    return find(awaited_, &request) != shm::RequestState::kNotYet;
  }
  [[nodiscard]] const std::atomic<std::uint32_t>* asked_word() const noexcept override {
    return planned_ ? nullptr : &shm::request_bell(requests_.data(), awaited_);
  }
  // Nothing comes without a ring, unless who rings has died in between.
  [[nodiscard]] int poll_ms() const noexcept override { return 50; }

 private:
  [[nodiscard]] shm::RequestState find(std::uint64_t number,
                                       shm::RequestView* request) const noexcept {
    return planned_ ? shm::find_planned(requests_.data(), number, request)
                    : shm::find_request(requests_.data(), number, request);
  }

  StepStatus make(Step& step, std::uint64_t number, const shm::RequestView& request,
                  std::span<std::byte> slot) noexcept {
    if (unkept_) return publish(step, number, request.kind, slot);
    places_.resize(step.load(state_.condemned));
    if (!places_.empty()) {
      std::memcpy(places_.data(), step.bytes(state_.places.offset),
                  places_.size() * sizeof places_[0]);
    }
    step.works_on(key_of(number, DatasetFunction::kTogether));
    shm::RequestEntry* const entry =
        planned_ ? nullptr : &shm::request_entry(requests_.data(), number);
    unkept_ =
        function_->run({.number = number,
                        .kind = request.kind,
                        .bytes = {request.bytes, request.size},
                        .slot = step.batch_slot(),
                        .condemned = places_},
                       [&step, number, entry](std::uint32_t place) {
                         const bool together = place == DatasetFunction::kTogether;
                         step.works_on(key_of(
                             number, together ? place : std::min<std::uint64_t>(place, kPlaceMax)));
                         if (entry == nullptr) return;
                         // relaxed: read by the trainer for its log, when this process hangs or has
                         // died.
                         entry->place.store(std::uint64_t{1} + place, std::memory_order_relaxed);
                       });
    if (!unkept_->fault.empty()) {
      context_.fail(fmt::format("stage '{}': {}", context_.stage, unkept_->fault));
      return StepStatus::kIdle;
    }
    const StepStatus status = publish(step, number, request.kind, slot);
    // Without memory for its state the batch stays as it is, and so does its slot, which this step
    // alone takes: the batch lies beside it.
    return status == StepStatus::kNoRoom ? StepStatus::kDone : status;
  }

  StepStatus publish(Step& step, std::uint64_t number, std::uint64_t kind,
                     std::span<std::byte> slot) noexcept {
    if (unkept_->state && !keep(step, *unkept_->state, unkept_->appended)) {
      return StepStatus::kNoRoom;
    }
    const DatasetFunction::Outcome made = *std::exchange(unkept_, std::nullopt);
    std::memcpy(slot.data(), made.head, kBatchHeadBytes);
    step.store(state_.condemned, 0);
    step.count(batches_);
    step.count(samples_, made.samples);
    step.count(left_out_, made.left_out);
    step.count(raised_, made.raised ? 1 : 0);
    step.count(fetch_us_, made.fetch_ns / 1000);
    step.count(collate_us_, made.collate_ns / 1000);
    const std::uint64_t token[2] = {number, kind};
    step.publish_batch(1, kBatchHeadBytes, token);
    return StepStatus::kDone;
  }

  // Beside what is there, to which a death would return, or behind it. False: there is no memory
  // for it now.
  bool keep(Step& step, const std::vector<std::byte>& state, bool appended) noexcept {
    const std::uint64_t offset = step.load(state_.offset);
    const std::uint64_t length = step.load(state_.length);
    std::uint64_t to = offset + length;
    if (!appended) to = state.size() <= offset ? 0 : shm::align_up(to, 64);
    const std::uint64_t needed = state_.kept.offset + to + state.size();
    if (needed > step.state_bytes() && !step.grow(needed, 2 * needed)) return false;
    step.fill({state_.kept.offset + to, state.size()}, state);
    step.store(state_.offset, appended ? offset : to);
    step.store(state_.length, appended ? length + state.size() : state.size());
    return true;
  }

  // True: a sample of this batch has been condemned, and that is noted now.
  bool note_condemned(Step& step, std::uint64_t number) noexcept {
    const std::uint64_t key = step.condemned();
    if (key == 0 || key == noted_ || key != key_of(number, place_of(key))) return false;
    noted_ = key;
    const std::uint64_t count = step.load(state_.condemned);
    const std::uint32_t place =
        count + 1 < kCondemnedMax ? place_of(key) : DatasetFunction::kTogether;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint32_t known = 0;
      std::memcpy(&known, step.bytes(state_.places.offset + i * sizeof known), sizeof known);
      if (known == place) return false;
    }
    step.fill({state_.places.offset + count * sizeof place, sizeof place},
              std::as_bytes(std::span(&place, 1)));
    step.store(state_.condemned, count + 1);
    context_.warn(
        fmt::format("sample_condemned stage={} batch={} place={}", context_.stage, number,
                    place == DatasetFunction::kTogether ? "together" : std::to_string(place)));
    return true;
  }

  StageContext context_;
  State state_;
  Counter batches_;
  Counter samples_;
  Counter left_out_;
  Counter raised_;
  Counter fetch_us_;
  Counter collate_us_;
  std::unique_ptr<DatasetFunction> function_;
  std::span<std::byte> requests_;
  bool planned_;
  std::vector<std::uint32_t> places_;
  // Of the batch at hand, which the dataset gives only once; none: it has not been made.
  std::optional<DatasetFunction::Outcome> unkept_;
  std::uint64_t awaited_ = 0;
  std::uint64_t noted_ = 0;
};

}  // namespace

void set_dataset_opener(OpenDatasetFunction open) { opener_of_datasets() = std::move(open); }
const OpenDatasetFunction& dataset_opener() noexcept { return opener_of_datasets(); }

StageType dataset_batcher_type() {
  StageType type;
  type.kind = "dataset_batcher";
  type.outputs = {{"output", "batches"}};
  type.counters = {
      {"batches", "Batches that have been made."},
      {"samples", "Samples in them."},
      {"skipped_poison", "Samples that were left out because they kill processes."},
      {"exceptions", "Batches that became an exception of the user's code."},
      {"fetch_us", "Time in the dataset, in microseconds."},
      {"collate_us", "Time in which batches were made of samples, in microseconds."},
  };
  type.problems = [](const StageView& stage) {
    std::vector<Problem> problems;
    if (!stage.config.dataset_batcher().parent_socket().starts_with('/')) {
      problems.push_back({"parent_socket",
                          "is not an absolute path: ringfeed.torch.DataLoader starts such feeds, "
                          "and names the socket of a process that has the dataset"});
    }
    return problems;
  };
  type.batch = [](const StageView&, BatchSchema& schema) {
    constexpr std::int64_t kWords = kBatchHeadBytes / sizeof(std::uint64_t);
    const std::array head{RaggedArray{"head", "uint64", {kWords}, kBatchHeadBytes, 0}};
    describe_batch(std::span<const RaggedArray>(head), 1, kBatchHeadBytes, schema);
  };
  type.nodes = [](const StageView& stage) {
    const DatasetBatcherConfig& own = stage.config.dataset_batcher();
    StateLayout layout;
    (void)DatasetBatcher::State(layout);
    NodeSpec node;
    node.lanes = own.processes();
    node.more_lanes = "give the DataLoader num_workers={}";
    node.on_request = "give the DataLoader a higher prefetch_factor";
    node.process_per_lane = true;
    node.warm_parent = true;
    node.parent_socket = own.parent_socket();
    node.state_bytes = layout.bytes() + 64 * 1024;
    node.state_bytes_max = kGrowsWithData;
    node.outputs = {output_spec(own, "batches", 0, UnitRule::kExplicit)};
    node.weight = 2;
    node.steps_per_commit = 1;
    node.program = "ringfeed-worker-python";
    if (dataset_opener()) {
      node.create = [](const StageContext& context) {
        return std::make_unique<DatasetBatcher>(context);
      };
    }
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "dataset" dataset_batcher { processes: 2 parent_socket: "/data/parent.sock" } }
)",
                  .maker = "requests"};
  return type;
}

}  // namespace ringfeed
