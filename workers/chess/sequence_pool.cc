#include "workers/chess/sequence_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "workers/chess/sequence_records.h"
#include "workers/chess/token_sequence.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {
namespace {

// What samples usually take, by which memory is taken at the start.
constexpr std::uint64_t kSampleBytesUsual = 1280;

}  // namespace

SequencePool::SequencePool(const StageContext& context, std::uint64_t pool_size)
    : pool_size_(pool_size),
      tells_ends_(context.links.output("output").said.get(kMixed)),
      state_([pool_size] {
        StateLayout layout;
        return State(layout, pool_size);
      }()),
      in_(context.input("sequences")),
      out_(context.output("output")),
      held_(context.counter("sequences_held")) {}

bool SequencePool::put_out(Step& step, std::uint64_t index) noexcept {
  const std::span<const std::byte> record =
      state_.places.record(step, step.load(state_.list[index]));
  return step.put(out_, record, sequence_info(record));
}

StepStatus SequencePool::empty_one(Step& step, std::uint64_t count) noexcept {
  const std::uint64_t victim = step.draw(count);
  if (!put_out(step, victim)) return StepStatus::kNoRoom;
  state_.places.give(step, step.load(state_.list[victim]));
  step.store(state_.list[victim], step.load(state_.list[count - 1]));
  step.store(state_.count, count - 1);
  step.gauge(held_, count - 1);
  return StepStatus::kDone;
}

StepStatus SequencePool::step(Step& step) noexcept {
  const std::uint64_t count = step.load(state_.count);
  const std::optional<Record> record = step.peek(in_);
  if (!record) {
    if (!step.ended(in_)) return StepStatus::kNoInput;
    return count == 0 || step.draining() ? StepStatus::kEnd : empty_one(step, count);
  }
  if (record->user == kSequencesEndRecord) {
    if (count != 0) return empty_one(step, count);
    if (tells_ends_ && !step.put(out_, {}, {.user = kSequencesEndRecord})) {
      return StepStatus::kNoRoom;
    }
    return step.consume(*record);
  }
  std::uint64_t place = 0;
  if (!state_.places.put(step, record->bytes, &place)) return StepStatus::kNoRoom;
  std::uint64_t index = count;
  if (count < pool_size_) {
    step.store(state_.count, count + 1);
    step.gauge(held_, count + 1);
  } else {
    index = step.draw(pool_size_);
    if (!put_out(step, index)) return StepStatus::kNoRoom;
    state_.places.give(step, step.load(state_.list[index]));
  }
  step.store(state_.list[index], place);
  return step.consume(*record);
}

std::uint64_t sequence_queue_bytes(std::uint64_t length_max) noexcept {
  return std::max<std::uint64_t>(2 * kMiB, std::uint64_t{128} * length_max);
}

std::uint64_t sequence_queue_bytes_min(std::uint64_t length_max) noexcept {
  // A token takes 2 bytes, and with all that may be said about it less than 32; a record fills at
  // most half of a queue.
  return 2 * (std::uint64_t{32} * length_max + 512);
}

std::vector<Problem> sequence_queue_problems(const StageView& stage, const SequenceQueue& queue,
                                             std::uint64_t length_max) {
  std::vector<Problem> problems;
  if (queue.bytes && *queue.bytes < sequence_queue_bytes_min(length_max)) {
    problems.push_back(
        {"queue_bytes", fmt::format("a sequence of {} tokens does not fit half of queue_bytes; "
                                    "give at least {}",
                                    length_max, sequence_queue_bytes_min(length_max))});
  }
  const bool counted_on = queue.exact || stage.links.output("output").said.get(kMixed);
  if (counted_on && queue.may_drop) {
    problems.push_back(
        {"overflow_behavior",
         "with order EXACT, and before a variation_mixer, nothing may be dropped; leave "
         "it at BLOCK"});
  }
  return problems;
}

OutputSpec sequences_inside(std::uint32_t length_max) {
  return {.port = "sequences",
          .record_type = "sequences",
          .exported = false,
          .queue_capacity = 512,
          .queue_bytes = sequence_queue_bytes(length_max),
          .overflow = BLOCK,
          .units = UnitRule::kFollow};
}

NodeSpec sequence_pool_node(std::string from, std::uint64_t pool_size, OutputSpec output) {
  StateLayout layout;
  const SequencePool::State state(layout, pool_size);
  NodeSpec node;
  node.name = "pool";
  node.state_bytes = state.places.head_bytes() + pool_size * kSampleBytesUsual;
  node.state_bytes_max = std::max(kGrowsWithData, 2 * node.state_bytes);
  node.inputs = {{.port = "sequences", .from = std::move(from), .block = 1}};
  output.units = UnitRule::kRecord;
  node.outputs = {std::move(output)};
  node.weight = 0.1;
  node.steps_per_commit = SequencePool::kStepsPerCommit;
  node.entries_per_step = 24;
  node.create = [pool_size](const StageContext& context) {
    return std::make_unique<SequencePool>(context, pool_size);
  };
  return node;
}

}  // namespace ringfeed
