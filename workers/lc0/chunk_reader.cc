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
      {"frames", "Frames output, where `frames` is set."},
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
      {"skipped_trailing", "Chunks with bytes behind their last gzip member that are nothing."},
      {"skipped_too_large", "Chunks that do not fit a record of the output."},
  };
}

// ---- games, wherever they are: frame_count(), weight(i), frame(i, out)

namespace {

// As they came from a file.
class FileGame {
 public:
  explicit FileGame(const ChunkFiles::Records& records) : records_(records) {}
  [[nodiscard]] std::uint32_t frame_count() const noexcept {
    return static_cast<std::uint32_t>(records_.check.frame_count);
  }
  // None: damaged.
  [[nodiscard]] std::optional<float> weight(const PositionSamplingConfig& weights,
                                            std::uint32_t i) const noexcept {
    return record_weight(weights, at(i), records_.check.version);
  }
  // The bytes of the packed frame; 0: `out` is too short, or the game is damaged.
  [[nodiscard]] std::size_t frame(std::uint32_t i, std::span<std::byte> out) const noexcept {
    return formats::pack(at(i), records_.check.version, out);
  }

 private:
  [[nodiscard]] const std::byte* at(std::uint32_t i) const noexcept {
    return records_.raw.data() + i * records_.check.frame_bytes;
  }
  const ChunkFiles::Records& records_;
};

// Kept by a store or by the lanes that weigh: a PackedGame or its like.
template <typename Game>
class KeptGame {
 public:
  explicit KeptGame(Game& game) : game_(game) {}
  [[nodiscard]] std::uint32_t frame_count() const noexcept {
    return static_cast<std::uint32_t>(game_.frame_count());
  }
  [[nodiscard]] std::optional<float> weight(const PositionSamplingConfig& weights,
                                            std::uint32_t i) const noexcept {
    const std::span<const std::byte> tail = game_.tail(i);
    if (tail.empty()) return std::nullopt;
    return position_weight(weights, tail.data());
  }
  [[nodiscard]] std::size_t frame(std::uint32_t i, std::span<std::byte> out) const noexcept {
    return game_.frame(i, out);
  }

 private:
  Game& game_;
};

// What a stage with this configuration chooses by itself.
template <typename Config>
std::optional<PositionChoice> own_choice(const Config& config, std::uint64_t key) {
  if (!config.has_frames()) return std::nullopt;
  return PositionChoice(wanted_positions(config.frames()), key);
}

std::optional<PositionChoice> own_choice(const StageContext& context) {
  return context.config.has_shuffling_chunk_pool()
             ? own_choice(context.config.shuffling_chunk_pool(), context.key)
             : own_choice(context.config.simple_chunk_extractor(), context.key);
}

}  // namespace

ChunkReader::ChunkReader(const StageContext& context)
    : context_(context),
      in_(context.input("tasks")),
      out_(context.output("output")),
      rejects_(context.output("rejects")),
      frames_(context.counter("frames")),
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
      trailing_(context, "skipped_trailing"),
      choice_(own_choice(context)),
      store_(store_of(context)),
      weighed_games_(weighed_games_of(context)) {
  if (choice_) {
    StateLayout layout;
    state_.emplace(layout);
  } else {
    choice_ = consumer_choice(context.links.output("output"), context.key_of);
  }
}

// Counts and tells the window. Its ring may drop the word: the chunk is then drawn, and refused,
// once more.
StepStatus ChunkReader::refuse(Step& step, const ChunkTask& task,
                               const ChunkRefusal& refusal) noexcept {
  refusal.reason->skip(step, task.path, task.words.offset, refusal.text);
  const RejectRecord reject{task.words.global_index, refusal.away ? 1U : 0U};
  (void)step.put(rejects_, std::as_bytes(std::span(&reject, 1)));
  return state_ ? state_->split.finish(step, task.record) : step.consume(task.record);
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
  at_hand_.task = nullptr;
  if (state_) state_->split.forget(step);
  TaskRecord task{};
  if (record.bytes.size() < sizeof task) return;
  std::memcpy(&task, record.bytes.data(), sizeof task);
  const RejectRecord reject{task.global_index, 0};
  (void)step.put(rejects_, std::as_bytes(std::span(&reject, 1)));
}

// ---- what goes out

bool ChunkReader::begun(const Step& step) const noexcept {
  return state_ && state_->split.done(step) != 0;
}

template <typename Game>
bool ChunkReader::choose(const ChunkTask& task, Game& game) noexcept {
  weights_.clear();
  for (std::uint32_t i = 0; choice_->weighted() && i < game.frame_count(); ++i) {
    const std::optional<float> weight = game.weight(choice_->weights(), i);
    if (!weight) return false;
    weights_.push_back(*weight);
  }
  choice_->choose(task.words.identity, game.frame_count(), task.words.uses, weights_, chosen_);
  return true;
}

// Bytes of a chunk record that are enough for so many frames.
std::uint64_t ChunkReader::room_for(std::uint64_t frames) const noexcept {
  const std::uint64_t list = choice_ ? 4 * frames : 0;
  return sizeof(ChunkRecord) + list + 16 + frames * formats::packed_bytes_max;
}

std::span<std::byte> ChunkReader::reserve(Step& step, std::uint64_t frames) noexcept {
  const std::uint64_t wanted = state_ ? formats::packed_bytes_max : room_for(frames);
  return step.reserve(out_, std::min(step.record_bytes_max(out_), wanted));
}

// A chunk is not inflated for an output that is full. How many frames it has is what its trailer
// claims.
bool ChunkReader::has_room(Step& step, const ChunkTask& task) noexcept {
  const std::uint32_t claimed = std::max(task.words.frames, 1U);
  std::uint64_t frames = claimed;
  if (!state_ && choice_ && !choice_->weighted()) {
    choice_->choose(task.words.identity, claimed, task.words.uses, {}, chosen_);
    frames = chosen_.size();
  }
  return !reserve(step, frames).empty();
}

template <typename Game>
std::optional<StepStatus> ChunkReader::put_chunk(Step& step, const ChunkTask& task,
                                                 Game& game) noexcept {
  const std::uint32_t frame_count = game.frame_count();
  const auto listed = choice_ ? static_cast<std::uint32_t>(chosen_.size()) : frame_count;
  const std::span<std::byte> output = reserve(step, listed);
  if (output.empty()) return StepStatus::kNoRoom;
  const ChunkRecord chunk{.identity = task.words.identity,
                          .frame_count = frame_count,
                          .uses = task.words.uses,
                          .flags = choice_ ? kChunkListed : std::uint16_t{0},
                          .listed_count = listed,
                          .reserved = 0};
  std::uint64_t used = chunk_head_bytes(chunk);
  if (output.size() < used) return refuse_large(step, task, listed);
  std::memset(output.data(), 0, used);
  std::memcpy(output.data(), &chunk, sizeof chunk);
  if (choice_ && listed != 0)
    std::memcpy(output.data() + sizeof chunk, chosen_.data(), 4UL * listed);
  std::size_t before = 0;  // where the frame before begins
  for (std::uint32_t i = 0; i < listed; ++i) {
    const std::span<std::byte> room = output.subspan(used);
    const std::uint32_t frame = choice_ ? chosen_[i] : i;
    std::size_t bytes = 0;
    // position_count may give a position twice.
    if (choice_ && i > 0 && frame == chosen_[i - 1]) {
      bytes = used - before;
      if (room.size() < bytes) return refuse_large(step, task, listed);
      std::memcpy(room.data(), output.data() + before, bytes);
    } else {
      bytes = game.frame(frame, room);
    }
    if (bytes == 0) {
      if (room.size() >= formats::packed_bytes_max) return std::nullopt;
      return refuse_large(step, task, listed);
    }
    before = used;
    used += bytes;
  }
  step.put_reserved(out_, used, {.tag = {task.words.identity, task.words.uses}});
  return step.consume(task.record);
}

template <typename Game>
std::optional<StepStatus> ChunkReader::put_frames(Step& step, const ChunkTask& task,
                                                  Game& game) noexcept {
  const std::uint64_t done = state_->split.done(step);
  std::uint64_t next = done;
  for (; next < chosen_.size(); ++next) {
    const std::span<std::byte> room = reserve(step, 1);
    if (room.empty()) break;
    const std::size_t bytes = game.frame(chosen_[next], room);
    if (bytes == 0) {
      if (room.size() >= formats::packed_bytes_max) return std::nullopt;
      return refuse_large(step, task, 1);
    }
    step.put_reserved(out_, bytes, {.tag = {task.words.identity, chosen_[next]}});
  }
  step.count(frames_, next - done);
  return state_->split.advance(step, task.record, next, chosen_.size());
}

// ---- where chunks come from

template <typename Game>
std::optional<StepStatus> ChunkReader::from_game(Step& step, const ChunkTask& task,
                                                 Game& game) noexcept {
  if (choice_ && !choose(task, game)) return std::nullopt;
  return state_ ? put_frames(step, task, game) : put_chunk(step, task, game);
}

std::optional<StepStatus> ChunkReader::from_kept(Step& step, const ChunkTask& task,
                                                 const StoreKey& key) noexcept {
  const bool first = !begun(step);
  if (weighed_games_) {
    const std::shared_ptr<const WeighedGames::Game> found = weighed_games_->find(key);
    if (!found) return std::nullopt;
    KeptGame game(*found);
    return from_game(step, task, game);
  }
  std::optional<ChunkStore::Lease> lease = store_->find(key, task.words.global_index, scratch_);
  if (!lease) return std::nullopt;
  std::optional<formats::PackedGame> opened = formats::PackedGame::open(*lease);
  std::optional<StepStatus> status;
  if (opened) {
    KeptGame game(*opened);
    status = from_game(step, task, game);
  }
  if (!status) store_->forget(key);
  if (status == StepStatus::kDone && first) step.count(store_hits_);
  return status;
}

// The file of a game that goes out over several steps is read in the first of them, and in the
// first of another process.
StepStatus ChunkReader::from_records(Step& step, const ChunkTask& task) noexcept {
  FileGame game(at_hand_.records);
  const std::optional<StepStatus> status = from_game(step, task, game);
  RF_CHECK(status.has_value(), task.words.identity);  // it was checked when it was read
  // More is to come of it, or it is to be tried again.
  const bool again = status == StepStatus::kNoRoom || begun(step);
  if (!again) at_hand_.task = nullptr;
  return *status;
}

StepStatus ChunkReader::from_file(Step& step, const ChunkTask& task, int fd,
                                  const StoreKey& key) noexcept {
  if (!has_room(step, task)) return StepStatus::kNoRoom;
  at_hand_ = {.task = nullptr, .records = chunk_files_.read(task, fd)};
  const ChunkFiles::Records& records = at_hand_.records;
  if (records.refusal.reason != nullptr) return refuse(step, task, records.refusal);
  if (store_) keep(task, key, records);
  if (!begun(step)) {
    if (store_) step.count(store_misses_);
    step.count(chunks_read_);
    step.count(bytes_read_, task.words.bytes);
    step.count(bytes_inflated_, records.raw.size());
    if (records.trailing_bytes != 0) {
      trailing_.skip(
          step, task.path, task.words.offset,
          fmt::format("{} bytes behind its last gzip member are nothing that can be read",
                      records.trailing_bytes));
    }
  }
  at_hand_.task = task.record.bytes.data();
  return from_records(step, task);
}

// ---- the store

void ChunkReader::keep(const ChunkTask& task, const StoreKey& key,
                       const ChunkFiles::Records& records) noexcept {
  const FileGame game(records);
  packer_.begin(game.frame_count(), records.check.version, records.check.input_format);
  std::byte frame[formats::packed_bytes_max];
  for (std::uint32_t i = 0; i < game.frame_count(); ++i) {
    packer_.add(std::span(frame).first(game.frame(i, frame)));
  }
  store_->put(key, packer_.finish(), task.words.global_index, task.words.window_lower);
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
  if (at_hand_.task == record->bytes.data()) return from_records(step, task);
  struct stat file {};
  if (const std::optional<ChunkRefusal> refusal = chunk_files_.look(task, file)) {
    if (refusal->reason == nullptr) return StepStatus::kIdle;
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
