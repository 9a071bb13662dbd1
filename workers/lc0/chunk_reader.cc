#include "workers/lc0/chunk_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "workers/lc0/lc0_record.h"
#include "workers/lc0/packed_frame.h"

namespace ringfeed {
OutputSpec chunk_tasks_output() {
  return {.port = "tasks",
          .record_type = "tasks",
          .exported = false,
          .queue_capacity = WeighedGames::kUnderWay,
          .queue_bytes = 256 * kKiB,
          .overflow = BLOCK,
          .units = UnitRule::kRecord};
}

std::vector<CounterSpec> chunk_reader_counters() {
  return {
      {"chunks_read", "Chunks read from files."},
      {"bytes_read", "Bytes read from files."},
      {"bytes_inflated", "Bytes of chunks after decompression."},
      {"store_hits", "Uses of chunks that the store had."},
      {"store_misses", "Uses of chunks that the store did not have."},
      {"store_evicted", "Games that left the store to make room."},
      {"store_refused", "Games for which the store had no room."},
      {.name = "store_bytes",
       .help = "Bytes of the games in the store.",
       .kind = kGauge,
       .capacity = {.setting = "store_bytes", .shown_as = "store_capacity_bytes"}},
      {"store_games", "Games in the store.", kGauge},
      {"skipped_vanished", "Chunks whose file is gone."},
      {"skipped_unreadable", "Chunks whose file could not be opened or read."},
      {"skipped_damaged", "Chunks that could not be decompressed."},
      {"skipped_empty", "Chunks without a record."},
      {"skipped_record", "Chunks with a record that cannot be used."},
      {"skipped_too_large", "Chunks that do not fit a record of the output."},
  };
}

ChunkReader::ChunkReader(const StageContext& context)
    : context_(context),
      in_(context.input("tasks")),
      out_(context.output("output")),
      rejects_(context.output("rejects")),
      chunks_read_(context.counter("chunks_read")),
      bytes_read_(context.counter("bytes_read")),
      bytes_inflated_(context.counter("bytes_inflated")),
      store_hits_(context.counter("store_hits")),
      store_misses_(context.counter("store_misses")),
      store_evicted_(context.counter("store_evicted")),
      store_refused_(context.counter("store_refused")),
      store_bytes_(context.counter("store_bytes")),
      store_games_(context.counter("store_games")),
      chunk_files_(context),
      too_large_(context, "skipped_too_large"),
      choice_(consumer_choice(context.links.output("output"), context.key_of)),
      store_(store_of(context)),
      weighed_games_(weighed_games_of(context)) {}

// Counts and tells the window. Its ring may drop the word: the chunk is then drawn, and refused,
// once more.
StepStatus ChunkReader::refuse(Step& step, const ChunkTask& task,
                               const ChunkRefusal& refusal) noexcept {
  refusal.reason->skip(step, task.path, task.words.offset, refusal.text);
  const RejectRecord reject{task.words.global_index, refusal.away ? 1U : 0U};
  (void)step.put(rejects_, std::as_bytes(std::span(&reject, 1)));
  return step.consume(task.record);
}

StepStatus ChunkReader::refuse_large(Step& step, const ChunkTask& task,
                                     std::uint64_t frame_count) noexcept {
  return refuse(
      step, task,
      {&too_large_,
       fmt::format("{} positions do not fit a record of {} bytes: raise queue_bytes of stage "
                   "'{}' to at least {}",
                   frame_count, step.record_bytes_max(out_), context_.stage,
                   std::bit_ceil(2 * (frame_count * formats::packed_bytes_max)))});
}

// A chunk that cannot be read alive leaves the window as well.
void ChunkReader::forget(Step& step, const Record& record) noexcept {
  TaskRecord task{};
  if (record.bytes.size() < sizeof task) return;
  std::memcpy(&task, record.bytes.data(), sizeof task);
  const RejectRecord reject{task.global_index, 0};
  (void)step.put(rejects_, std::as_bytes(std::span(&reject, 1)));
}

// ---- the record that goes out

void ChunkReader::choose(const ChunkTask& task, std::uint32_t frame_count) noexcept {
  choice_->choose(task.words.identity, frame_count, task.words.uses, weights_, chosen_);
}

// Bytes that are enough for so many frames.
std::uint64_t ChunkReader::room_for(std::uint64_t frames) const noexcept {
  const std::uint64_t list = choice_ ? 4 * frames : 0;
  return sizeof(ChunkRecord) + list + 16 + frames * formats::packed_bytes_max;
}

// Room for so many frames, or as much as a record can have; false: none now.
bool ChunkReader::reserve(Step& step, std::uint64_t frames, Output& output) noexcept {
  const std::uint64_t bytes = std::min(step.record_bytes_max(out_), room_for(frames));
  if (output.room.size() < bytes) output.room = step.reserve(out_, bytes);
  return !output.room.empty();
}

void ChunkReader::begin(const ChunkTask& task, std::uint32_t frame_count,
                        Output& output) const noexcept {
  const ChunkRecord chunk{
      .identity = task.words.identity,
      .frame_count = frame_count,
      .uses = task.words.uses,
      .flags = choice_ ? kChunkListed : std::uint16_t{0},
      .listed_count = choice_ ? static_cast<std::uint32_t>(chosen_.size()) : frame_count,
      .reserved = 0};
  output.used = chunk_head_bytes(chunk);
  std::memset(output.room.data(), 0, output.used);
  std::memcpy(output.room.data(), &chunk, sizeof chunk);
  if (choice_ && !chosen_.empty()) {
    std::memcpy(output.room.data() + sizeof chunk, chosen_.data(), 4 * chosen_.size());
  }
}

void ChunkReader::finish(Step& step, const ChunkTask& task, const Output& output) noexcept {
  step.put_reserved(out_, output.used, {.tag = {task.words.identity, task.words.uses}});
}

// ---- where chunks come from

template <typename Game>
std::optional<StepStatus> ChunkReader::from_game(Step& step, const ChunkTask& task,
                                                 Game& game) noexcept {
  const auto frame_count = static_cast<std::uint32_t>(game.frame_count());
  if (choice_) {
    weights_.clear();
    for (std::uint32_t i = 0; choice_->weighted() && i < frame_count; ++i) {
      const std::span<const std::byte> tail = game.tail(i);
      if (tail.empty()) return std::nullopt;
      weights_.push_back(position_weight(choice_->weights(), tail.data()));
    }
    choose(task, frame_count);
  }
  const std::uint64_t frames = choice_ ? chosen_.size() : frame_count;
  Output output;
  if (!reserve(step, frames, output)) return StepStatus::kNoRoom;
  if (output.room.size() < room_for(0) + 4 * frames) return refuse_large(step, task, frames);
  begin(task, frame_count, output);
  for (std::uint64_t i = 0; i < frames; ++i) {
    const std::span<std::byte> room = output.room.subspan(output.used);
    const std::size_t frame_bytes = game.frame(choice_ ? chosen_[i] : i, room);
    if (frame_bytes == 0) {
      if (room.size() >= formats::packed_bytes_max) return std::nullopt;
      return refuse_large(step, task, frames);
    }
    output.used += frame_bytes;
  }
  finish(step, task, output);
  if (store_) step.count(store_hits_);
  return step.consume(task.record);
}

std::optional<StepStatus> ChunkReader::from_kept(Step& step, const ChunkTask& task,
                                                 const StoreKey& key) noexcept {
  if (weighed_games_) {
    const std::shared_ptr<const WeighedGames::Game> game = weighed_games_->find(key);
    return game ? from_game(step, task, *game) : std::nullopt;
  }
  std::optional<ChunkStore::Lease> lease = store_->find(key, task.words.global_index, scratch_);
  if (!lease) return std::nullopt;
  std::optional<formats::PackedGame> game = formats::PackedGame::open(*lease);
  const std::optional<StepStatus> status = game ? from_game(step, task, *game) : std::nullopt;
  if (!status) store_->forget(key);
  return status;
}

StepStatus ChunkReader::from_file(Step& step, const ChunkTask& task, int fd,
                                  const StoreKey& key) noexcept {
  const TaskRecord& words = task.words;
  // Room first: a chunk is not inflated for an output that is full.
  const std::uint32_t claimed = std::max(words.frames, 1U);
  if (choice_ && !choice_->weighted()) choose(task, claimed);
  Output output;
  if (!reserve(step, choice_ && !choice_->weighted() ? chosen_.size() : claimed, output)) {
    return StepStatus::kNoRoom;
  }

  const ChunkFiles::Records records = chunk_files_.read(task, fd);
  if (records.refusal.reason != nullptr) return refuse(step, task, records.refusal);
  const std::span<const std::byte> raw = records.raw;
  const formats::ChunkCheck& check = records.check;

  const auto frame_count = static_cast<std::uint32_t>(check.frame_count);
  const auto record_at = [&](std::size_t i) { return raw.data() + i * check.frame_bytes; };
  if (choice_) {
    weights_.clear();
    for (std::uint32_t i = 0; choice_->weighted() && i < frame_count; ++i) {
      weights_.push_back(record_weight(choice_->weights(), record_at(i), check.version));
    }
    choose(task, frame_count);
  }
  const std::uint64_t frames = choice_ ? chosen_.size() : frame_count;
  // The trailer may have claimed fewer frames than there are.
  if (!reserve(step, frames, output)) return StepStatus::kNoRoom;
  if (output.room.size() < room_for(0) + 4 * frames) return refuse_large(step, task, frames);
  begin(task, frame_count, output);
  if (store_) packer_.begin(frame_count, check.version, check.input_format);
  std::byte unwanted[formats::packed_bytes_max];
  std::size_t next = 0;  // of the chosen ones
  for (std::uint32_t i = 0; i < frame_count; ++i) {
    const bool wanted = !choice_ || (next < chosen_.size() && chosen_[next] == i);
    if (!wanted && !store_) continue;
    std::span<std::byte> room = wanted ? output.room.subspan(output.used) : std::span(unwanted);
    std::size_t bytes = formats::pack(record_at(i), check.version, room);
    if (bytes == 0) return refuse_large(step, task, frames);
    if (store_) packer_.add(room.first(bytes));
    // position_count may give a position twice.
    while (wanted) {
      output.used += bytes;
      if (!choice_ || ++next == chosen_.size() || chosen_[next] != i) break;
      const std::span<std::byte> again = output.room.subspan(output.used);
      if (again.size() < bytes) return refuse_large(step, task, frames);
      std::memcpy(again.data(), room.data(), bytes);
    }
  }
  if (store_) {
    store_->put(key, packer_.finish(), words.global_index, words.window_lower);
    step.count(store_misses_);
  }
  finish(step, task, output);
  step.count(chunks_read_);
  step.count(bytes_read_, words.bytes);
  step.count(bytes_inflated_, raw.size());
  return step.consume(task.record);
}

// One lane speaks for the store, which all of them share.
void ChunkReader::tell_of_store(Step& step) noexcept {
  if (context_.lane != 0) return;
  const ChunkStore::Figures now = store_->figures();
  step.gauge(store_bytes_, now.bytes);
  step.gauge(store_games_, now.games);
  if (now.evicted != told_.evicted) step.count(store_evicted_, now.evicted - told_.evicted);
  if (now.refused != told_.refused) step.count(store_refused_, now.refused - told_.refused);
  told_ = now;
  if (const std::optional<std::string> problem = store_->problem()) {
    context_.warn(fmt::format("store stage={}: {}", context_.stage, *problem));
  }
}

StepStatus ChunkReader::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const ChunkTask task = chunk_task(*record);
  struct stat file {};
  if (const std::optional<ChunkRefusal> refusal = chunk_files_.look(task, file)) {
    return refuse(step, task, *refusal);
  }
  StoreKey key{};
  if (store_ || weighed_games_) {
    key = ChunkFiles::key_of(task, file);
    if (const std::optional<StepStatus> status = from_kept(step, task, key)) {
      if (store_ && status == StepStatus::kDone) tell_of_store(step);
      return *status;
    }
  }
  // What is kept is named by the file that is read: it may have been replaced since the look at it.
  ChunkRefusal refusal;
  const int fd = chunk_files_.open(task, file, refusal);
  if (fd < 0 && refusal.reason == nullptr) return StepStatus::kIdle;
  if (fd < 0) return refuse(step, task, refusal);
  if (store_) key = ChunkFiles::key_of(task, file);
  const StepStatus status = from_file(step, task, fd, key);
  if (store_ && status == StepStatus::kDone) tell_of_store(step);
  return status;
}

}  // namespace ringfeed
