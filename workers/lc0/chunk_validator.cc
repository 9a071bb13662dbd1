#include "workers/lc0/chunk_validator.h"

#include <bit>
#include <cstring>

#include "workers/lc0/chunk_frames.h"

namespace ringfeed {
namespace {

using formats::Flaw;

formats::Checks checks_of(const ChunkValidatorConfig& own) {
  return formats::Checks::all()
      .with(Flaw::kInputFormat, own.check_input_format())
      .with(Flaw::kValues, own.check_values())
      .with(Flaw::kOrigValues, own.check_orig_values())
      .with(Flaw::kCastling, own.check_castling())
      .with(Flaw::kSideToMove, own.check_side_to_move())
      .with(Flaw::kResult, own.check_result())
      .with(Flaw::kRule50, own.check_rule50())
      .with(Flaw::kProbabilities, own.check_probabilities())
      .with(Flaw::kProbabilitySum, own.check_probability_sum())
      .with(Flaw::kMoveIndices, own.check_move_indices())
      .with(Flaw::kTransitions, own.check_transitions())
      .with(Flaw::kPlayedMoves, own.check_played_moves())
      .with(Flaw::kMoveLegality, own.check_move_legality());
}

}  // namespace

ChunkValidator::ChunkValidator(const StageContext& context)
    : context_(context),
      in_(context.input("input")),
      out_(context.output("output")),
      chunks_(context.counter("chunks")),
      frames_passed_(context.counter("frames")),
      chunks_damaged_(context.counter("chunks_damaged")),
      too_large_(context, "skipped_too_large"),
      checks_(checks_of(context.config.chunk_validator())) {
  for (std::size_t flaw = 1; flaw < formats::kFlaws; ++flaw) {
    rejected_.emplace_back(context,
                           fmt::format("rejected_{}", formats::flaw_name(static_cast<Flaw>(flaw))));
  }
}

StepStatus ChunkValidator::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const std::uint64_t bytes = record->bytes.size();
  // Room first: nothing is looked at for an output that is full.
  std::span<std::byte> room;
  if (bytes <= step.record_bytes_max(out_)) {
    room = step.reserve(out_, bytes);
    if (room.empty() && bytes != 0) return StepStatus::kNoRoom;
  }
  if (!open_whole_chunk(record->bytes, chunk_, frames_)) {
    step.count(chunks_damaged_);
    return step.consume(*record);
  }
  const formats::Verdict verdict = formats::validate_chunk(frames_, checks_);
  if (!verdict.valid()) {
    rejected_[static_cast<std::size_t>(verdict.flaw) - 1].skip_chunk(step, chunk_.identity,
                                                                     verdict.frame, verdict.text);
    return step.consume(*record);
  }
  if (room.empty()) {
    too_large_.skip_chunk(
        step, chunk_.identity, 0,
        fmt::format("{} bytes do not fit a record of {}: raise queue_bytes of stage '{}' to at "
                    "least {}",
                    bytes, step.record_bytes_max(out_), context_.stage, std::bit_ceil(2 * bytes)));
    return step.consume(*record);
  }
  std::memcpy(room.data(), record->bytes.data(), bytes);
  step.put_reserved(out_, bytes, {.tag = {record->tag[0], record->tag[1]}, .user = record->user});
  step.count(chunks_);
  step.count(frames_passed_, frames_.size());
  return step.consume(*record);
}

StageType chunk_validator_type() {
  StageType type;
  type.kind = "chunk_validator";
  type.inputs = {{"input", "chunks"}};
  type.outputs = {{"output", "chunks"}};
  type.counters = {
      {"chunks", "Chunks that passed."},
      {"frames", "Frames of the chunks that passed."},
      {"chunks_damaged", "Chunks whose record contradicts itself."},
      {"skipped_too_large", "Chunks that do not fit a record of the output."},
  };
  for (std::size_t flaw = 1; flaw < formats::kFlaws; ++flaw) {
    const char* const name = formats::flaw_name(static_cast<Flaw>(flaw));
    type.counters.push_back(
        {fmt::format("rejected_{}", name), fmt::format("Chunks refused by the check {}.", name)});
  }
  type.nodes = [](const StageView& stage) {
    return std::vector<NodeSpec>{whole_chunk_node<ChunkValidator>(stage.config.chunk_validator())};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 20000 } }
stages { name: "validator" chunk_validator { input: "pool" check_played_moves: false } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
