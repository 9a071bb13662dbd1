#include "workers/lc0/tensor_generator.h"

#include "proto/feed_output.h"
#include "workers/kit/batch_schema.h"
#include "workers/lc0/lc0_facts.h"
#include "workers/lc0/row_board.h"

namespace ringfeed {
namespace {

formats::Lc0Options options_of(const TensorGeneratorConfig& config) {
  formats::Lc0Options options;
  if (config.layout() == TensorGeneratorConfig::FIVE_ARRAYS) {
    options.layout = formats::Lc0Layout::kFive;
  }
  switch (config.planes()) {
    case TensorGeneratorConfig::PLANES_FLOAT32:
      options.planes = formats::PlanesType::kFloat32;
      break;
    case TensorGeneratorConfig::PLANES_FLOAT16:
      options.planes = formats::PlanesType::kFloat16;
      break;
    case TensorGeneratorConfig::PLANES_BFLOAT16:
      options.planes = formats::PlanesType::kBfloat16;
      break;
    case TensorGeneratorConfig::PLANES_UINT8:
      options.planes = formats::PlanesType::kUint8;
      break;
    case TensorGeneratorConfig::PLANES_BITS:
      options.planes = formats::PlanesType::kBits;
      break;
  }
  switch (config.policy()) {
    case TensorGeneratorConfig::POLICY_FLOAT32:
      options.policy = formats::PolicyType::kFloat32;
      break;
    case TensorGeneratorConfig::POLICY_FLOAT16:
      options.policy = formats::PolicyType::kFloat16;
      break;
    case TensorGeneratorConfig::POLICY_SPARSE:
      options.policy = formats::PolicyType::kSparse;
      break;
  }
  switch (config.unknown_values()) {
    case TensorGeneratorConfig::UNKNOWN_AS_STORED:
      options.unknown = formats::UnknownValues::kAsStored;
      break;
    case TensorGeneratorConfig::UNKNOWN_NAN:
      options.unknown = formats::UnknownValues::kNan;
      break;
    case TensorGeneratorConfig::UNKNOWN_ZERO:
      options.unknown = formats::UnknownValues::kZero;
      break;
  }
  options.policy_entries_max = config.policy_entries_max();
  options.classical_planes = config.as_lczero_training();
  return options;
}

}  // namespace

TensorGenerator::Tensors::Tensors(const TensorGeneratorConfig& config)
    : options(options_of(config)), fields(formats::lc0_fields(options)), end(0) {
  static_assert(SlotLayout::kAlignment % formats::kTensorAlignment == 0);
  SlotLayout layout;
  for (const formats::Lc0Field& field : fields) {
    offsets.push_back(layout.place(config.batch_size() * field.row_bytes));
  }
  end = layout.end();
}

TensorGenerator::TensorGenerator(const StageContext& context)
    : batch_size_(context.config.tensor_generator().batch_size()),
      tensors_(context.config.tensor_generator()),
      batches_(
          context,
          [] {
            StateLayout layout;
            return State(layout).batch;
          }(),
          batch_size_, tensors_.end),
      in_(context.input("input")),
      skipped_(context, "frames_skipped"),
      writer_(tensors_.options) {}

StepStatus TensorGenerator::step(Step& step) noexcept {
  if (!step.peek(in_)) return step.ended(in_) ? batches_.end(step) : StepStatus::kNoInput;
  const std::span<std::byte> slot = step.open_batch();
  if (slot.empty()) return StepStatus::kNoRoom;
  formats::Lc0Tensors tensors;
  for (std::size_t i = 0; i < tensors_.fields.size(); ++i) {
    tensors.*tensors_.fields[i].place = slot.data() + tensors_.offsets[i];
  }
  BatchWriter::Rows rows = batches_.under_way(step);
  StepStatus status = StepStatus::kDone;
  for (std::uint32_t i = 0;
       i < kRowsPerStep && rows.count < batch_size_ && status == StepStatus::kDone; ++i) {
    const std::optional<Record> frame = step.peek(in_);
    if (!frame) break;
    const formats::RowStatus row = writer_.write_row(frame->bytes, tensors, rows.count);
    if (row == formats::RowStatus::kWritten) {
      rows.add(*frame);
    } else {
      skipped_.skip(step, "frame", frame->tag[1], formats::row_status_name(row));
    }
    status = step.consume(*frame);
  }
  // The rows are in memory before the step that says so.
  formats::store_fence();
  if (rows.count == batch_size_) {
    batches_.publish(step, rows);
  } else {
    batches_.keep(step, rows);
  }
  return status;
}

StageType tensor_generator_type() {
  StageType type;
  type.kind = "tensor_generator";
  type.inputs = {{"input", "frames"}};
  type.outputs = {{"output", "batches"}};
  type.counters = batch_counters({{"frames_skipped", "Frames that could not become rows."}});
  type.problems = [](const StageView& stage) {
    // Lanes take batch_size units in turn. Only where a unit is one row, and so a lane's turn one
    // batch, do they come round in the order in which batches are numbered.
    const TensorGeneratorConfig& own = stage.config.tensor_generator();
    std::vector<Problem> problems;
    if (own.as_lczero_training() && own.planes() == TensorGeneratorConfig::PLANES_BITS) {
      problems.push_back(
          {"as_lczero_training",
           "as_lczero_training with planes: PLANES_BITS: one bit per square cannot hold the masks "
           "of files that it outputs as numbers; use PLANES_UINT8, or leave one of the two out"});
    }
    if (own.threads() < 2 || !ordered_dispatch(stage.feed)) {
      return problems;
    }
    const Link& before = stage.links.input("input");
    if (before.linked() && !before.said.get(kDealtInTurn)) {
      problems.push_back(
          {"threads",
           fmt::format("{} lanes after stage '{}' would wait for each other for ever: with "
                       "dispatch ORDERED, only a shuffling_frame_sampler with one lane and "
                       "join_positions distribute rows in turn; set threads: 1 here, or put such a "
                       "sampler before it, or set feed_output.dispatch: RELAXED",
                       own.threads(), before.stage)});
    }
    return problems;
  };
  type.show_row = &lc0_row_text;
  type.batch = [](const StageView& stage, BatchSchema& schema) {
    const TensorGenerator::Tensors tensors(stage.config.tensor_generator());
    std::vector<BatchArray> arrays;
    for (std::size_t i = 0; i < tensors.fields.size(); ++i) {
      const formats::Lc0Field& field = tensors.fields[i];
      arrays.push_back({field.name,
                        field.dtype,
                        {field.row_shape.begin(), field.row_shape.end()},
                        field.row_bytes,
                        tensors.offsets[i]});
    }
    describe_batch(arrays, stage.config.tensor_generator().batch_size(), tensors.end, schema);
  };
  type.nodes = [](const StageView& stage) {
    const TensorGeneratorConfig& own = stage.config.tensor_generator();
    NodeSpec node;
    node.lanes = own.threads();
    node.more_lanes = kMoreThreads;
    StateLayout layout;
    (void)TensorGenerator::State(layout);
    node.state_bytes = layout.bytes();
    node.state_version = 2;
    node.inputs = {{.port = "input", .from = "", .block = own.batch_size()}};
    node.outputs = {output_spec(own, "batches", 0, UnitRule::kExplicit)};
    node.weight = 1;
    node.steps_per_commit = 2;
    node.entries_per_step = 64;
    node.create = [](const StageContext& context) {
      return std::make_unique<TensorGenerator>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 20000 } }
stages { name: "unpacker" chunk_unpacker { input: "pool" position_count: 4 } }
stages { name: "sampler" shuffling_frame_sampler { input: "unpacker" reservoir_size_per_thread: 50000 } }
stages { name: "tensors" tensor_generator { input: "sampler" batch_size: 256 } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
