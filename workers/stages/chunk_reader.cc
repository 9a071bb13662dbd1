#include "workers/stages/chunk_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "workers/formats/lc0_record.h"
#include "workers/formats/packed_frame.h"

namespace ringfeed {
namespace {

constexpr std::size_t kOpenFilesMax = 128;

std::string not_gzip(std::span<const std::byte> bytes) {
  std::string begin;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(bytes.size(), 4))) {
    begin += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  }
  return "not a gzip file (starts with" + (begin.empty() ? " nothing" : begin) + ")";
}

std::shared_ptr<ChunkStore> store_of(const StageContext& context) {
  const ShufflingChunkPoolConfig& own = context.config.shuffling_chunk_pool();
  if (!own.has_store_bytes()) return nullptr;
  return ChunkStore::shared(
      context.stage, {.budget_bytes = own.store_bytes(), .directory = own.store_directory()});
}

StoreKey key_of(const TaskRecord& task, std::string_view path, const struct stat& file) noexcept {
  return store_key({.path = path,
                    .device = file.st_dev,
                    .inode = file.st_ino,
                    .file_bytes = static_cast<std::uint64_t>(file.st_size),
                    .mtime_ns = static_cast<std::int64_t>(file.st_mtim.tv_sec) * 1'000'000'000 +
                                file.st_mtim.tv_nsec,
                    .offset = task.offset,
                    .bytes = task.bytes});
}

}  // namespace

OutputSpec chunk_tasks_output() {
  return {.port = "tasks",
          .record_type = "tasks",
          .exported = false,
          .queue_capacity = 64,
          .queue_bytes = 256 * kKiB,
          .overflow = BLOCK,
          .units = UnitRule::kRecord};
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
      vanished_(context, "skipped_vanished"),
      unreadable_(context, "skipped_unreadable"),
      damaged_(context, "skipped_damaged"),
      empty_(context, "skipped_empty"),
      record_(context, "skipped_record"),
      too_large_(context, "skipped_too_large"),
      choice_(consumer_choice(context.feed, context.stage, context.key_of)),
      store_(store_of(context)) {}

ChunkReader::~ChunkReader() {
  for (const auto& [path, file] : files_) ::close(file.fd);
}

// A descriptor of the file that has been looked at: it may have been replaced since it was opened.
int ChunkReader::open_file(const std::string& path, const struct stat& now) noexcept {
  ++clock_;
  if (const auto found = files_.find(path); found != files_.end()) {
    OpenFile& file = found->second;
    if (file.device == now.st_dev && file.inode == now.st_ino) {
      file.used_at = clock_;
      return file.fd;
    }
    ::close(file.fd);
    files_.erase(found);
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat opened {};
  ::fstat(fd, &opened);
  if (files_.size() >= kOpenFilesMax) {
    const auto oldest = std::min_element(
        files_.begin(), files_.end(),
        [](const auto& a, const auto& b) { return a.second.used_at < b.second.used_at; });
    ::close(oldest->second.fd);
    files_.erase(oldest);
  }
  files_.emplace(path, OpenFile{fd, clock_, opened.st_dev, opened.st_ino});
  return fd;
}

// Counts and tells the window. Its ring may drop the word: the chunk is then drawn, and refused,
// once more.
StepStatus ChunkReader::refuse(Step& step, const Task& task, SkipReason& reason,
                               std::string_view text) noexcept {
  reason.skip(step, task.path, task.words.offset, text);
  const RejectRecord reject{task.words.global_index};
  (void)step.put(rejects_, std::as_bytes(std::span(&reject, 1)));
  return step.consume(task.record);
}

StepStatus ChunkReader::refuse_large(Step& step, const Task& task,
                                     std::uint64_t frame_count) noexcept {
  return refuse(
      step, task, too_large_,
      fmt::format("{} positions do not fit a record of {} bytes: raise queue_bytes of stage "
                  "'{}' to at least {}",
                  frame_count, step.record_bytes_max(out_), context_.stage,
                  std::bit_ceil(2 * (frame_count * formats::packed_bytes_max))));
}

// A chunk that cannot be read alive leaves the window as well.
void ChunkReader::forget(Step& step, const Record& record) noexcept {
  TaskRecord task{};
  if (record.bytes.size() < sizeof task) return;
  std::memcpy(&task, record.bytes.data(), sizeof task);
  const RejectRecord reject{task.global_index};
  (void)step.put(rejects_, std::as_bytes(std::span(&reject, 1)));
}

// ---- the record that goes out
// ----------------------------------------------------------------------

void ChunkReader::choose(const Task& task, std::uint32_t frame_count) noexcept {
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

void ChunkReader::begin(const Task& task, std::uint32_t frame_count,
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

void ChunkReader::finish(Step& step, const Task& task, const Output& output) noexcept {
  step.put_reserved(out_, output.used, {.tag = {task.words.identity, task.words.uses}});
}

// ---- where chunks come from
// ------------------------------------------------------------------------

StepStatus ChunkReader::from_store(Step& step, const Task& task, const StoreKey& key,
                                   ChunkStore::Lease& lease, bool* damaged) noexcept {
  const auto broken = [&] {
    store_->forget(key);
    *damaged = true;
    return StepStatus::kDone;
  };
  std::optional<formats::PackedGame> game = formats::PackedGame::open(lease);
  if (!game) return broken();
  const auto frame_count = static_cast<std::uint32_t>(game->frame_count());
  if (choice_) {
    weights_.clear();
    for (std::uint32_t i = 0; choice_->weighted() && i < frame_count; ++i) {
      const std::span<const std::byte> tail = game->tail(i);
      if (tail.empty()) return broken();
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
    const std::size_t bytes = game->frame(choice_ ? chosen_[i] : i, room);
    if (bytes == 0) {
      if (room.size() >= formats::packed_bytes_max) return broken();
      return refuse_large(step, task, frames);
    }
    output.used += bytes;
  }
  finish(step, task, output);
  step.count(store_hits_);
  return step.consume(task.record);
}

StepStatus ChunkReader::from_file(Step& step, const Task& task, int fd,
                                  const StoreKey& key) noexcept {
  const TaskRecord& words = task.words;
  // Room first: a chunk is not inflated for an output that is full.
  const std::uint32_t claimed = std::max(words.frames, 1U);
  if (choice_ && !choice_->weighted()) choose(task, claimed);
  Output output;
  if (!reserve(step, choice_ && !choice_->weighted() ? chosen_.size() : claimed, output)) {
    return StepStatus::kNoRoom;
  }

  if (words.bytes > formats::kInflatedBytesMax) {
    return refuse(step, task, damaged_, "larger than any chunk");
  }
  if (stored_.size() < words.bytes) stored_.resize(words.bytes);
  std::uint64_t have = 0;
  while (have < words.bytes) {
    const ssize_t got = ::pread(fd, stored_.data() + have, words.bytes - have,
                                static_cast<off_t>(words.offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(step, task, unreadable_, std::strerror(errno));
    if (got == 0) {
      return refuse(step, task, damaged_,
                    fmt::format("the file ends after {} of {} bytes", have, words.bytes));
    }
    have += static_cast<std::uint64_t>(got);
  }
  std::span<const std::byte> raw(stored_.data(), words.bytes);
  const bool gzip = (words.flags & kChunkGzip) != 0;
  if (gzip) {
    const formats::GzipOutcome outcome =
        inflater_.inflate(std::span<const std::byte>(stored_.data(), words.bytes), &raw);
    if (!outcome.ok()) {
      return refuse(
          step, task, damaged_,
          fmt::format("{}: {}", formats::gzip_status_name(outcome.status),
                      formats::gzip_outcome_text(outcome, inflater_.inflated_bytes_max())));
    }
  }
  const formats::ChunkCheck check = formats::check_chunk(raw);
  if (!check.usable()) {
    std::string text = fmt::format("{}: {}", formats::chunk_reason_name(check.reason),
                                   formats::chunk_check_text(check));
    // What is not gzip is taken for plain records; if it is none of both, the former was meant.
    if (!gzip) text = fmt::format("{}; as plain records: {}", not_gzip(raw), text);
    return refuse(step, task, check.reason == formats::ChunkReason::kEmpty ? empty_ : record_,
                  text);
  }

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
  Task task{.record = *record, .words = {}, .path = {}};
  RF_CHECK(record->bytes.size() >= sizeof task.words, record->bytes.size());
  std::memcpy(&task.words, record->bytes.data(), sizeof task.words);
  RF_CHECK(record->bytes.size() == sizeof task.words + task.words.path_bytes, record->bytes.size(),
           task.words.path_bytes);
  task.path.assign(reinterpret_cast<const char*>(record->bytes.data()) + sizeof task.words,
                   task.words.path_bytes);

  struct stat file {};
  if (::stat(task.path.c_str(), &file) != 0) {
    return refuse(step, task, errno == ENOENT ? vanished_ : unreadable_, std::strerror(errno));
  }
  StoreKey key{};
  if (store_) {
    key = key_of(task.words, task.path, file);
    std::optional<ChunkStore::Lease> lease = store_->find(key, task.words.global_index, scratch_);
    if (lease) {
      bool damaged = false;
      const StepStatus status = from_store(step, task, key, *lease, &damaged);
      if (!damaged) {
        if (status == StepStatus::kDone) tell_of_store(step);
        return status;
      }
    }
  }
  const int fd = open_file(task.path, file);
  if (fd < 0) {
    return refuse(step, task, errno == ENOENT ? vanished_ : unreadable_, std::strerror(errno));
  }
  if (store_) {
    // What is kept is named by the file that is read: it may have been replaced since the look at
    // it.
    ::fstat(fd, &file);
    key = key_of(task.words, task.path, file);
  }
  const StepStatus status = from_file(step, task, fd, key);
  if (store_ && status == StepStatus::kDone) tell_of_store(step);
  return status;
}

}  // namespace ringfeed
