#include "workers/chess/sequence_batcher.h"

#include <algorithm>
#include <cstring>

#include "proto/feed_output.h"
#include "workers/chess/row_tokens.h"
#include "workers/chess/sequence_facts.h"
#include "workers/chess/sequence_records.h"
#include "workers/kit/batch_schema.h"

namespace ringfeed {
namespace {

// Block ids of a row go up to its length and the number of its blocks, one for 68 tokens: so many
// fit 16 bits.
constexpr std::uint32_t kCompactLengthMax = 32000;

}  // namespace

SequenceBatcher::Arrays::Arrays(const StageView& stage)
    : length(static_cast<std::uint32_t>(stage.config.sequence_batcher().has_length()
                                            ? stage.config.sequence_batcher().length()
                                            : stage.links.input("input").said.get(kLengthMax))),
      compact(stage.config.sequence_batcher().compact()),
      variations(stage.links.input("input").said.get(kHasVariations)) {
  const SequenceBatcherConfig& own = stage.config.sequence_batcher();
  numbers.fill(-1);
  const auto add = [this](Name id, const char* name, const char* wide, std::uint32_t wide_bytes,
                          const char* small, std::uint32_t small_bytes, std::uint32_t elements) {
    numbers[static_cast<std::size_t>(id)] = static_cast<std::int8_t>(fields.size());
    fields.push_back({name, compact ? small : wide, compact ? small_bytes : wide_bytes, elements});
  };
  const auto add_mask = [&](Name id, const char* name) {
    add(id, name, "bool", 1, "bool", 1, length);
  };
  // In the order in which the original has them.
  add(Name::kInputIds, "input_ids", "int64", 8, "int16", 2, length);
  add(Name::kBoardTargetIds, "board_target_ids", "int64", 8, "int8", 1, length);
  add(Name::kMoveTargetIds, "move_target_ids", "int64", 8, "int16", 2, length);
  add_mask(Name::kMoveMask, "move_mask");
  if (variations) add_mask(Name::kThinkingMoveMask, "thinking_move_mask");
  add_mask(Name::kWlPositions, "wl_positions");
  add_mask(Name::kDPositions, "d_positions");
  add(Name::kWlTargets, "wl_targets", "float32", 4, "float32", 4, length);
  add(Name::kDTargets, "d_targets", "float32", 4, "float32", 4, length);
  add_mask(Name::kWdlValid, "wdl_valid");
  add(Name::kBlockId, "block_id", "int64", 8, "int16", 2, length);
  if (variations) {
    add(Name::kFirstIsNotBest, "first_is_not_best", "bool", 1, "bool", 1, 0);
    add_mask(Name::kContinueVarMask, "continue_var_mask");
    add_mask(Name::kNewVariationMask, "new_variation_mask");
    if (own.limit_masks()) {
      add_mask(Name::kEndVarMaxDepthMask, "end_var_max_depth_mask");
      add_mask(Name::kEndThinkMaxVarMask, "end_think_max_var_mask");
    }
    add(Name::kVariationEpoch, "variation_epoch", "int64", 8, "int32", 4, 0);
  }
  if (own.lineage()) add(Name::kLineage, "lineage", "int32", 4, "int32", 4, 4);
  SlotLayout layout;
  for (Field& field : fields) field.offset = layout.place(own.batch_size() * field.row_bytes());
  end = layout.end();
}

SequenceBatcher::SequenceBatcher(const StageContext& context)
    : own_(context.config.sequence_batcher()),
      arrays_(context.view()),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      batches_(context, state_.batch, own_.batch_size(), arrays_.end),
      in_(context.input("input")),
      tokens_(context.counter("tokens")),
      elsewhere_(context.counter("sequences_elsewhere")),
      skipped_(context, "sequences_skipped") {}

template <typename T>
T* SequenceBatcher::at(std::byte* slot, Name name, std::uint64_t row) const noexcept {
  const std::int8_t number = arrays_.numbers[static_cast<std::size_t>(name)];
  if (number < 0) return nullptr;
  const Field& field = arrays_.fields[static_cast<std::size_t>(number)];
  return reinterpret_cast<T*>(slot + field.offset + row * field.row_bytes());
}

template <typename Row>
void SequenceBatcher::write_row(std::byte* slot, std::uint64_t row) const noexcept {
  const Row to = [&]<typename Id, typename BoardTarget, typename MoveTarget, typename BlockId>(
                     formats::TokenRow<Id, BoardTarget, MoveTarget, BlockId>*) {
    return Row{.input_ids = at<Id>(slot, Name::kInputIds, row),
               .board_target_ids = at<BoardTarget>(slot, Name::kBoardTargetIds, row),
               .move_target_ids = at<MoveTarget>(slot, Name::kMoveTargetIds, row),
               .move_mask = at<std::uint8_t>(slot, Name::kMoveMask, row),
               .thinking_move_mask = at<std::uint8_t>(slot, Name::kThinkingMoveMask, row),
               .wl_positions = at<std::uint8_t>(slot, Name::kWlPositions, row),
               .d_positions = at<std::uint8_t>(slot, Name::kDPositions, row),
               .wl_targets = at<float>(slot, Name::kWlTargets, row),
               .d_targets = at<float>(slot, Name::kDTargets, row),
               .wdl_valid = at<std::uint8_t>(slot, Name::kWdlValid, row),
               .block_id = at<BlockId>(slot, Name::kBlockId, row),
               .continue_var_mask = at<std::uint8_t>(slot, Name::kContinueVarMask, row),
               .new_variation_mask = at<std::uint8_t>(slot, Name::kNewVariationMask, row),
               .end_var_max_depth_mask = at<std::uint8_t>(slot, Name::kEndVarMaxDepthMask, row),
               .end_think_max_var_mask = at<std::uint8_t>(slot, Name::kEndThinkMaxVarMask, row)};
  }(static_cast<Row*>(nullptr));
  formats::write_tokens(sequence_, arrays_.length, to);
}

StepStatus SequenceBatcher::step(Step& step) noexcept {
  if (!step.peek(in_)) return step.ended(in_) ? batches_.end(step) : StepStatus::kNoInput;
  BatchWriter::Rows rows = batches_.under_way(step);
  std::uint64_t seen = step.load(state_.seen);
  std::span<std::byte> slot;
  StepStatus status = StepStatus::kDone;
  std::uint64_t tokens = 0;
  bool complete = false;
  for (std::uint32_t i = 0; i < kRowsPerStep && !complete && status == StepStatus::kDone; ++i) {
    const std::optional<Record> record = step.peek(in_);
    if (!record) break;
    if (record->user != kSequenceRecord) {
      complete = record->user == kBatchEndRecord && rows.count != 0;
      status = step.consume(*record);
      continue;
    }
    if (own_.world_size() > 1 && seen++ % own_.world_size() != own_.rank()) {
      step.count(elsewhere_);
      status = step.consume(*record);
      continue;
    }
    if (!formats::unpack(record->bytes, sequence_) || sequence_.tokens.size() > arrays_.length) {
      skipped_.skip(step, "sequence", record->tag[0],
                    fmt::format("{} tokens are not a sequence for rows of {}",
                                sequence_.tokens.size(), arrays_.length));
      status = step.consume(*record);
      continue;
    }
    if (slot.empty()) {
      slot = step.open_batch();
      if (slot.empty()) return StepStatus::kNoRoom;
    }
    if (arrays_.compact) {
      write_row<formats::CompactTokenRow>(slot.data(), rows.count);
    } else {
      write_row<formats::WideTokenRow>(slot.data(), rows.count);
    }
    if (auto* first = at<std::uint8_t>(slot.data(), Name::kFirstIsNotBest, rows.count)) {
      *first = sequence_.first_is_not_best ? 1 : 0;
    }
    const formats::TokenSequence::Lineage& from = sequence_.lineage;
    if (std::byte* epoch = at<std::byte>(slot.data(), Name::kVariationEpoch, rows.count)) {
      const std::uint64_t value = from.variation_epoch;
      std::memcpy(epoch, &value, arrays_.compact ? 4 : 8);
    }
    if (std::byte* to = at<std::byte>(slot.data(), Name::kLineage, rows.count)) {
      std::memcpy(to, &from, sizeof from);
    }
    rows.add(*record);
    tokens += sequence_.tokens.size();
    complete = rows.count == own_.batch_size();
    status = step.consume(*record);
  }
  step.count(tokens_, tokens);
  step.store(state_.seen, seen);
  if (!complete) {
    batches_.keep(step, rows);
    return status;
  }
  if (rows.count < own_.batch_size() && batches_.drop(step, rows)) return status;
  if (slot.empty() && step.open_batch().empty()) return StepStatus::kNoRoom;
  batches_.publish(step, rows);
  return status;
}

StageType sequence_batcher_type() {
  StageType type;
  type.kind = "sequence_batcher";
  type.inputs = {{"input", "sequences"}};
  type.outputs = {{"output", "batches"}};
  type.counters = batch_counters({
      {"tokens", "Tokens written to batches, without padding."},
      {"sequences_skipped", "Sequences that do not fit the batch."},
      {"sequences_elsewhere", "Sequences that are for other ranks."},
  });
  type.problems = [](const StageView& stage) {
    const SequenceBatcherConfig& own = stage.config.sequence_batcher();
    const SequenceBatcher::Arrays arrays(stage);
    const Facts& before = stage.links.input("input").said;
    std::vector<Problem> problems;
    if (arrays.length == 0) {
      problems.push_back({"length", "no earlier stage sets the length of sequences; set it here"});
    } else if (const std::uint64_t longest = before.get(kLengthMax); longest > arrays.length) {
      problems.push_back({"length", fmt::format("incoming sequences have up to {} tokens, but rows "
                                                "only {}; raise it, or lower length_max there",
                                                longest, arrays.length)});
    }
    if (own.compact() && arrays.length > kCompactLengthMax) {
      problems.push_back(
          {"compact",
           fmt::format("16 bits can hold the block ids of at most {} tokens", kCompactLengthMax)});
    }
    if (own.limit_masks() && !arrays.variations) {
      problems.push_back({"limit_masks", "no variations arrive here; remove it"});
    }
    if (own.rank() >= own.world_size()) {
      problems.push_back(
          {"rank", fmt::format("{} is not one of {} machines, which are numbered from 0",
                               own.rank(), own.world_size())});
    }
    if (own.threads() > 1 && (own.world_size() > 1 || before.get(kExactOrder))) {
      problems.push_back({"threads",
                          "several lanes could not tell which samples are theirs; with world_size "
                          "or order EXACT set threads: 1"});
    }
    return problems;
  };
  type.show_row = &chess_row_text;
  type.batch = [](const StageView& stage, BatchSchema& schema) {
    const SequenceBatcher::Arrays arrays(stage);
    std::vector<BatchArray> described;
    for (const SequenceBatcher::Field& field : arrays.fields) {
      BatchArray& array = described.emplace_back();
      array = {field.name, field.dtype, {}, field.row_bytes(), field.offset};
      if (field.elements != 0) array.row_shape.push_back(field.elements);
    }
    describe_batch(described, stage.config.sequence_batcher().batch_size(), arrays.end, schema);
  };
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    inputs["input"].set(kBatchRows, stage.config.sequence_batcher().batch_size());
  };
  type.nodes = [](const StageView& stage) {
    const SequenceBatcherConfig& own = stage.config.sequence_batcher();
    NodeSpec node;
    node.lanes = own.threads();
    node.more_lanes = kMoreThreads;
    StateLayout layout;
    (void)SequenceBatcher::State(layout);
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = own.batch_size()}};
    node.outputs = {output_spec(own, "batches", 0, UnitRule::kExplicit)};
    node.weight = 0.3;
    node.steps_per_commit = 2;
    node.entries_per_step = 64;
    node.create = [](const StageContext& context) {
      return std::make_unique<SequenceBatcher>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "rows" parquet_source { directory: "/data/games" } }
stages { name: "games" chess_games { input: "rows" pool_size: 2000 } }
stages { name: "batches" sequence_batcher { input: "games" batch_size: 16 } }
)",
                  .maker = "chess_tables"};
  return type;
}

}  // namespace ringfeed
