#include "workers/lc0/chunk_weigher.h"

#include <algorithm>

#include "workers/lc0/packed_frame.h"
#include "workers/lc0/position_choice.h"

namespace ringfeed {

ChunkWeigher::ChunkWeigher(const StageContext& context)
    : weights_(context.config.shuffling_chunk_pool().position_sampling()),
      in_(context.input("weigh")),
      out_(context.output("weights")),
      weighed_(context.counter("chunks_weighed")),
      bytes_inflated_(context.counter("bytes_inflated")),
      files_(context),
      store_(store_of(context)),
      weighed_games_(weighed_games_of(context)) {}

std::optional<float> ChunkWeigher::weigh_stored(const ChunkTask& task,
                                                const StoreKey& key) noexcept {
  std::optional<ChunkStore::Lease> lease = store_->find(key, task.words.global_index, scratch_);
  if (!lease) return std::nullopt;
  std::optional<formats::PackedGame> game = formats::PackedGame::open(*lease);
  if (!game) return std::nullopt;
  float weight = 0;
  for (std::uint64_t i = 0; i < game->frame_count(); ++i) {
    const std::span<const std::byte> tail = game->tail(i);
    if (tail.empty()) return std::nullopt;
    weight += position_weight(weights_, tail.data());
  }
  return weight;
}

void ChunkWeigher::keep(const ChunkTask& task, const ChunkFiles::Records& records,
                        const StoreKey& key) noexcept {
  const std::size_t count = records.check.frame_count;
  const auto pack = [&](std::size_t i, std::span<std::byte> to) {
    return to.first(formats::pack(records.raw.data() + i * records.check.frame_bytes,
                                  records.check.version, to));
  };
  std::byte frame[formats::packed_bytes_max];
  if (!store_) {
    packed_.clear();
    ends_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<const std::byte> packed = pack(i, frame);
      if (packed_.size() + packed.size() > WeighedGames::kBytes) return;
      packed_.insert(packed_.end(), packed.begin(), packed.end());
      ends_.push_back(static_cast<std::uint32_t>(packed_.size()));
    }
    return weighed_games_->put(key, packed_, ends_);
  }
  packer_.begin(static_cast<std::uint32_t>(count), records.check.version,
                records.check.input_format);
  for (std::size_t i = 0; i < count; ++i) packer_.add(pack(i, frame));
  store_->put(key, packer_.finish(), task.words.global_index, task.words.window_lower);
}

std::optional<float> ChunkWeigher::weigh(Step& step, const ChunkTask& task) noexcept {
  const auto refuse = [&](const ChunkRefusal& refusal) {
    refusal.reason->skip(step, task.path, task.words.offset, refusal.text);
    return refusal.away ? kWeightAway : -1.0F;
  };
  struct stat file {};
  if (const std::optional<ChunkRefusal> refusal = files_.look(task, file)) {
    if (refusal->reason == nullptr) return std::nullopt;
    return refuse(*refusal);
  }
  if (store_) {
    if (const auto known = weigh_stored(task, ChunkFiles::key_of(task, file))) return *known;
  }
  ChunkRefusal refusal;
  const int fd = files_.open(task, file, refusal);
  if (fd < 0 && refusal.reason == nullptr) return std::nullopt;
  if (fd < 0) return refuse(refusal);
  const ChunkFiles::Records records = files_.read(task, fd);
  if (records.refusal.reason != nullptr) return refuse(records.refusal);
  float weight = 0;
  for (std::size_t i = 0; i < records.check.frame_count; ++i) {
    weight += record_weight(weights_, records.raw.data() + i * records.check.frame_bytes,
                            records.check.version);
  }
  keep(task, records, ChunkFiles::key_of(task, file));
  step.count(bytes_inflated_, records.raw.size());
  return std::max(weight, 0.0F);
}

StepStatus ChunkWeigher::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const ChunkTask task = chunk_task(*record);
  // Room first: a chunk is not inflated for an output that is full.
  const std::span<std::byte> room = step.reserve(out_, sizeof(WeightRecord));
  if (room.empty()) return StepStatus::kNoRoom;
  const std::optional<float> weight = weigh(step, task);
  if (!weight) return StepStatus::kIdle;
  const WeightRecord answer{task.words.global_index, *weight, 0};
  std::memcpy(room.data(), &answer, sizeof answer);
  step.put_reserved(out_, sizeof answer, {.tag = {task.words.identity, task.words.uses}});
  step.count(weighed_);
  return step.consume(*record);
}

// A chunk that cannot be weighed alive is not used: the window waits for an answer.
void ChunkWeigher::forget(Step& step, const Record& record) noexcept {
  TaskRecord task{};
  if (record.bytes.size() < sizeof task) return;
  std::memcpy(&task, record.bytes.data(), sizeof task);
  const WeightRecord answer{task.global_index, -1, 0};
  (void)step.put(out_, std::as_bytes(std::span(&answer, 1)));
}

NodeSpec chunk_weigher_node(const ShufflingChunkPoolConfig& config) {
  NodeSpec weigh;
  weigh.name = "weigh";
  weigh.lanes = config.threads();
  weigh.more_lanes = kMoreThreads;
  weigh.inputs = {{.port = "weigh", .from = ".weigh", .block = 1}};
  weigh.outputs = {{.port = "weights",
                    .record_type = "weights",
                    .exported = false,
                    .queue_capacity = 64,
                    .queue_bytes = 64 * kKiB,
                    .overflow = BLOCK,
                    .units = UnitRule::kFollow}};
  weigh.steps_per_commit = 1;
  weigh.weight = 1;
  weigh.create = [](const StageContext& context) {
    return std::make_unique<ChunkWeigher>(context);
  };
  return weigh;
}

}  // namespace ringfeed
