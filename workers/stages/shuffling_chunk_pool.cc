#include "workers/stages/shuffling_chunk_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "workers/runtime/random.h"
#include "workers/stages/chunk_reader.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kBankBytesMin = 1 * kMiB;
constexpr std::uint64_t kBankBytesMax = 64ULL << 30;

std::string_view sort_key(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// The word of a ChunkPlace that changes: frames, uses, flags.
constexpr std::uint64_t kStatusOffset = 16;
std::uint64_t status_word(std::uint32_t frames, std::uint16_t uses, std::uint16_t flags) noexcept {
  return std::uint64_t{flags} << 48 | std::uint64_t{uses} << 32 | frames;
}
std::uint16_t uses_of(std::uint64_t word) noexcept {
  return static_cast<std::uint16_t>(word >> 32);
}
std::uint16_t flags_of(std::uint64_t word) noexcept {
  return static_cast<std::uint16_t>(word >> 48);
}

}  // namespace

std::string ChunkWindow::entry_path(const std::byte* at, const Entry& entry) {
  const std::uint64_t offset = sizeof entry + entry.chunk_count * sizeof(ChunkPlace);
  return {reinterpret_cast<const char*>(at + offset), entry.path_bytes};
}

// ---- the window
// -----------------------------------------------------------------------------------------------------

ChunkWindow::ChunkWindow(const StageContext& context)
    : context_(context),
      pool_size_(context.config.shuffling_chunk_pool().chunk_pool_size()),
      epochs_(context.feed.epochs()),
      state_([this] {
        StateLayout layout;
        return State(layout, pool_size_);
      }()),
      in_(context.input("input")),
      rejects_(context.input("rejects")),
      tasks_(context.output("tasks")),
      sources_kept_(context.counter("sources_kept")),
      chunks_in_window_(context.counter("chunks_in_window")),
      chunks_total_(context.counter("chunks_total")),
      chunks_dropped_(context.counter("chunks_dropped")),
      reshuffles_(context.counter("reshuffles")),
      chunks_outside_(context.counter("chunks_outside_window")),
      draws_(context.counter("draws")),
      hanse_rejected_(context.counter("hanse_rejected")) {
  if (context.load(state_.bank_bytes) != 0) {
    if (context.load(state_.phase) == 0) {
      // Collecting: entries in order of arrival, dead ones among them.
      const std::byte* bank = context.state + state_.banks.offset + context.load(state_.bank);
      for (std::uint64_t at = 0; at < context.load(state_.used);) {
        Entry entry{};
        std::memcpy(&entry, bank + at, sizeof entry);
        RF_CHECK(entry.entry_bytes >= sizeof entry &&
                     at + entry.entry_bytes <= context.load(state_.used),
                 at, entry.entry_bytes);
        if (entry.dead == 0) {
          const std::string path = entry_path(bank + at, entry);
          collected_.emplace(sort_key(path), Source{at, 0, entry.chunk_count});
          collected_chunks_ += entry.chunk_count;
          by_path_.emplace(path, at);
        }
        at += entry.entry_bytes;
      }
    } else {
      rebuild(context.state, context.load(state_.bank), context.load(state_.front),
              context.load(state_.used));
    }
  }
}

void ChunkWindow::rebuild(const std::byte* state, std::uint64_t bank, std::uint64_t front,
                          std::uint64_t used) {
  sources_.clear();
  by_path_.clear();
  const std::byte* base = state + state_.banks.offset + bank;
  for (std::uint64_t at = front; at < used;) {
    Entry entry{};
    std::memcpy(&entry, base + at, sizeof entry);
    RF_CHECK(entry.entry_bytes >= sizeof entry && at + entry.entry_bytes <= used, at,
             entry.entry_bytes);
    sources_.push_back({at, entry.start, entry.chunk_count});
    by_path_.emplace(entry_path(base + at, entry), entry.start);
    at += entry.entry_bytes;
  }
}

Word ChunkWindow::chunk_word(const Step& step, const Source& source,
                             std::uint64_t index) const noexcept {
  return {state_.banks.offset + step.load(state_.bank) + source.offset + sizeof(Entry) +
          index * sizeof(ChunkPlace) + kStatusOffset};
}

const ChunkWindow::Source* ChunkWindow::find(std::uint64_t global_index) const noexcept {
  auto after = std::upper_bound(
      sources_.begin(), sources_.end(), global_index,
      [](std::uint64_t index, const Source& source) { return index < source.start; });
  if (after == sources_.begin()) return nullptr;
  --after;
  return global_index < after->start + after->chunk_count ? &*after : nullptr;
}

// Copies what is alive to another bank with room for `extra_bytes` more. The old one stays whole
// until the step's end. False: the arena cannot grow that far.
bool ChunkWindow::move_bank(Step& step, std::uint64_t extra_bytes) noexcept {
  const std::uint64_t old_bank = step.load(state_.bank);
  const std::uint64_t old_bytes = step.load(state_.bank_bytes);
  const bool collecting = step.load(state_.phase) == 0;
  std::uint64_t live = 0;
  if (collecting) {
    for (const auto& [key, source] : collected_) {
      Entry entry{};
      std::memcpy(&entry, step.bytes(state_.banks.offset + old_bank + source.offset), sizeof entry);
      live += entry.entry_bytes;
    }
  } else {
    live = step.load(state_.used) - step.load(state_.front);
  }
  const std::uint64_t wanted =
      shm::align_up(std::max(kBankBytesMin, 2 * (live + extra_bytes)), 4096);
  const std::uint64_t bank = wanted <= old_bank ? 0 : old_bank + old_bytes;
  if (!step.grow(state_.banks.offset + bank + wanted)) return false;
  std::byte* to = step.bytes_to_write(state_.banks.offset + bank, live);
  std::uint64_t used = 0;
  const std::byte* from = step.bytes(state_.banks.offset + old_bank);
  if (collecting) {
    std::multimap<std::string, Source> moved;
    by_path_.clear();
    for (const auto& [key, source] : collected_) {
      Entry entry{};
      std::memcpy(&entry, from + source.offset, sizeof entry);
      std::memcpy(to + used, from + source.offset, entry.entry_bytes);
      by_path_.emplace(entry_path(to + used, entry), used);
      moved.emplace(key, Source{used, 0, source.chunk_count});
      used += entry.entry_bytes;
    }
    collected_ = std::move(moved);
  } else {
    const std::uint64_t front = step.load(state_.front);
    std::memcpy(to, from + front, live);
    used = live;
    for (Source& source : sources_) source.offset -= front;
  }
  step.store(state_.bank, bank);
  step.store(state_.bank_bytes, wanted);
  step.store(state_.front, 0);
  step.store(state_.used, used);
  return true;
}

// Writes the record's source behind the others; there is room.
void ChunkWindow::append(Step& step, const Record& record) noexcept {
  SourceRecord source{};
  std::memcpy(&source, record.bytes.data(), sizeof source);
  const std::uint64_t chunk_bytes = source.chunk_count * sizeof(ChunkPlace);
  RF_CHECK(record.bytes.size() == sizeof source + chunk_bytes + source.path_bytes,
           record.bytes.size(), source.chunk_count, source.path_bytes);
  const std::uint64_t used = step.load(state_.used);
  Entry entry{};
  entry.entry_bytes = sizeof entry + chunk_bytes + shm::align_up(source.path_bytes, 8);
  entry.start = step.load(state_.total);
  entry.first_chunk = source.first_chunk;
  entry.chunk_count = source.chunk_count;
  entry.path_bytes = source.path_bytes;
  std::byte* at =
      step.bytes_to_write(state_.banks.offset + step.load(state_.bank) + used, entry.entry_bytes);
  std::memcpy(at, &entry, sizeof entry);
  std::memcpy(at + sizeof entry, record.bytes.data() + sizeof source, chunk_bytes);
  std::memset(at + sizeof entry + chunk_bytes, 0, shm::align_up(source.path_bytes, 8));
  std::memcpy(at + sizeof entry + chunk_bytes, record.bytes.data() + sizeof source + chunk_bytes,
              source.path_bytes);
  step.store(state_.used, used + entry.entry_bytes);
}

// Takes the source of the entry at `entry_at` out of the index by path.
void ChunkWindow::forget_path(const std::byte* entry_at, std::uint64_t value) noexcept {
  Entry entry{};
  std::memcpy(&entry, entry_at, sizeof entry);
  const auto [begin, end] = by_path_.equal_range(entry_path(entry_at, entry));
  const auto found =
      std::find_if(begin, end, [value](const auto& known) { return known.second == value; });
  if (found != end) by_path_.erase(found);
}

// While collecting: whole sources from the oldest on are let go while the newer ones fill the
// window by themselves.
void ChunkWindow::prune_collected(Step& step) noexcept {
  for (std::uint32_t listed = 0; listed < 8 && !collected_.empty(); ++listed) {
    const auto oldest = collected_.begin();
    if (collected_chunks_ - oldest->second.chunk_count < pool_size_) return;
    const std::uint64_t at = state_.banks.offset + step.load(state_.bank) + oldest->second.offset;
    step.store(Word{at + offsetof(Entry, dead)}, 1);
    step.count(chunks_outside_, oldest->second.chunk_count);
    collected_chunks_ -= oldest->second.chunk_count;
    forget_path(step.bytes(state_.banks.offset + step.load(state_.bank) + oldest->second.offset),
                oldest->second.offset);
    collected_.erase(oldest);
  }
}

StepStatus ChunkWindow::take_source(Step& step, const Record& record) noexcept {
  SourceRecord source{};
  RF_CHECK(record.bytes.size() >= sizeof source, record.bytes.size());
  std::memcpy(&source, record.bytes.data(), sizeof source);
  const std::string path(
      reinterpret_cast<const char*>(record.bytes.data() + record.bytes.size() - source.path_bytes),
      source.path_bytes);
  const std::uint64_t need =
      sizeof(Entry) + source.chunk_count * sizeof(ChunkPlace) + shm::align_up(path.size(), 8);
  if (step.load(state_.used) + need > step.load(state_.bank_bytes)) {
    // A step of its own: the entry is then appended to the new bank.
    return move_bank(step, need) ? StepStatus::kDone : StepStatus::kNoRoom;
  }
  const bool collecting = step.load(state_.phase) == 0;
  // A file that comes again was rewritten: its first part replaces everything that the file had.
  if (source.first_chunk == 0) {
    const auto [begin, end] = by_path_.equal_range(path);
    std::uint32_t listed = 0;
    for (auto it = begin; it != end; ++it) {
      if (collecting) {
        const auto [same_begin, same_end] = collected_.equal_range(std::string(sort_key(path)));
        const auto old = std::find_if(same_begin, same_end, [&](const auto& entry) {
          return entry.second.offset == it->second;
        });
        if (old == same_end) continue;
        step.store(
            Word{state_.banks.offset + step.load(state_.bank) + it->second + offsetof(Entry, dead)},
            1);
        collected_chunks_ -= old->second.chunk_count;
        collected_.erase(old);
        by_path_.erase(it);
        return StepStatus::kDone;  // one old part a step; the record is looked at again
      }
      const Source* old = find(it->second);
      if (old == nullptr || old->start != it->second) continue;
      for (std::uint64_t i = 0; i < old->chunk_count; ++i) {
        const Word word = chunk_word(step, *old, i);
        const std::uint64_t status = step.load(word);
        if ((flags_of(status) & kChunkDropped) != 0) continue;
        step.store(word, status | std::uint64_t{kChunkDropped} << 48);
        step.count(chunks_dropped_);
        if (++listed == 64) return StepStatus::kDone;  // the rest in the next step
      }
    }
    if (listed != 0) return StepStatus::kDone;
  }
  const std::uint64_t offset = step.load(state_.used);
  append(step, record);
  if (collecting) {
    collected_.emplace(sort_key(path), Source{offset, 0, source.chunk_count});
    by_path_.emplace(path, offset);
    collected_chunks_ += source.chunk_count;
    prune_collected(step);
    step.gauge(sources_kept_, collected_.size());
    step.gauge(chunks_in_window_, std::min(collected_chunks_, pool_size_));
  } else {
    const std::uint64_t total = step.load(state_.total) + source.chunk_count;
    sources_.push_back({offset, step.load(state_.total), source.chunk_count});
    by_path_.emplace(path, step.load(state_.total));
    step.store(state_.total, total);
    // Whole sources leave at the front as long as what follows them fills the window.
    while (sources_.size() > 1 &&
           total - (sources_.front().start + sources_.front().chunk_count) >= pool_size_) {
      forget_path(
          step.bytes(state_.banks.offset + step.load(state_.bank) + sources_.front().offset),
          sources_.front().start);
      sources_.pop_front();
      step.store(state_.front, sources_.front().offset);
    }
    state_.shuffler.move_up(step, window_lower(total), total);
    step.gauge(sources_kept_, sources_.size());
    step.gauge(chunks_in_window_, total - window_lower(total));
    step.gauge(chunks_total_, total);
    waiting_for_usable_ = false;
  }
  say(step);
  return step.consume(record);
}

// The scan is complete: numbers the chunks, oldest source first, and starts the first pass.
StepStatus ChunkWindow::begin_drawing(Step& step) noexcept {
  if (step.load(state_.bank_bytes) == 0 && !move_bank(step, 0)) return StepStatus::kNoRoom;
  // move_bank() copies in the order of collected_, which is that of the keys: oldest first.
  if (!move_bank(step, 0)) return StepStatus::kNoRoom;
  std::uint64_t total = 0;
  std::byte* bank =
      step.bytes_to_write(state_.banks.offset + step.load(state_.bank), step.load(state_.used));
  for (std::uint64_t at = 0; at < step.load(state_.used);) {
    Entry entry{};
    std::memcpy(&entry, bank + at, sizeof entry);
    // Nothing refers to the new bank before this step is committed.
    std::memcpy(bank + at + offsetof(Entry, start), &total, sizeof total);
    total += entry.chunk_count;
    at += entry.entry_bytes;
  }
  collected_.clear();
  rebuild(step.bytes(0), step.load(state_.bank), 0, step.load(state_.used));
  step.store(state_.phase, 1);
  step.store(state_.total, total);
  state_.shuffler.reset(step, window_lower(total), total);
  step.gauge(sources_kept_, sources_.size());
  step.gauge(chunks_in_window_, total - window_lower(total));
  step.gauge(chunks_total_, total);
  if (window_lower(total) != 0) step.count(chunks_outside_, window_lower(total));
  context_.note(fmt::format("window: {} of {} chunks", total - window_lower(total), pool_size_));
  context_.info(fmt::format("window_ready stage={} sources={} chunks={} window={}", context_.stage,
                            sources_.size(), total, pool_size_));
  return StepStatus::kDone;
}

StepStatus ChunkWindow::take_marker(Step& step, const Record& marker) noexcept {
  if (epochs_ != 0) {
    step.store(state_.scanned, 1);
  } else if (step.load(state_.phase) == 0) {
    if (const StepStatus begun = begin_drawing(step); begun != StepStatus::kDone) return begun;
  }
  return step.consume(marker);
}

StepStatus ChunkWindow::take_reject(Step& step, const Record& record) noexcept {
  RejectRecord reject{};
  if (record.bytes.size() == sizeof reject) {
    std::memcpy(&reject, record.bytes.data(), sizeof reject);
    if (const Source* source = find(reject.global_index)) {
      const Word word = chunk_word(step, *source, reject.global_index - source->start);
      const std::uint64_t status = step.load(word);
      if ((flags_of(status) & kChunkDropped) == 0) {
        step.store(word, status | std::uint64_t{kChunkDropped} << 48);
        step.count(chunks_dropped_);
      }
    }
  }
  return step.consume(record);
}

bool ChunkWindow::anything_usable(const Step& step) const noexcept {
  const std::uint64_t lower = window_lower(step.load(state_.total));
  for (const Source& source : sources_) {
    for (std::uint64_t i = source.start < lower ? lower - source.start : 0; i < source.chunk_count;
         ++i) {
      if ((flags_of(step.load(chunk_word(step, source, i))) & kChunkDropped) == 0) return true;
    }
  }
  return false;
}

double acceptance(std::uint32_t frames, std::uint32_t threshold, double gamma) noexcept {
  return std::pow(std::min(1.0, static_cast<double>(frames) / threshold), gamma);
}

// Does a chunk of so many records stand the test? Of one that claims none it will be said why.
bool ChunkWindow::accepts(Step& step, std::uint32_t frames) noexcept {
  const ShufflingChunkPoolConfig& own = context_.config.shuffling_chunk_pool();
  if (!own.has_hanse_sampling_threshold() || frames == 0) return true;
  const double u = static_cast<double>(step.draw(std::uint64_t{1} << 53)) * 0x1.0p-53;
  return u < acceptance(frames, own.hanse_sampling_threshold(), own.hanse_sampling_gamma());
}

StepStatus ChunkWindow::draw_chunk(Step& step) noexcept {
  // Chunks that are passed over change little: several a step.
  bool passed_over = true;
  StepStatus status = StepStatus::kDone;
  for (std::uint32_t drawn = 0; drawn < kDrawsPerStep && passed_over && status == StepStatus::kDone;
       ++drawn) {
    status = draw_one(step, &passed_over);
  }
  return status;
}

// One draw. `*passed_over`: it gave no task, and another may follow in this step.
StepStatus ChunkWindow::draw_one(Step& step, bool* passed_over) noexcept {
  *passed_over = false;
  const StreamShuffler::Draw draw = state_.shuffler.next(step);
  if (draw.exhausted) {
    const std::uint64_t total = step.load(state_.total);
    if (waiting_for_usable_) return StepStatus::kNoInput;
    if (epochs_ != 0 || total != 0) {
      const std::uint64_t passes = step.load(state_.passes) + (total != 0 ? 1 : 0);
      if (epochs_ != 0 && (passes >= epochs_ || total == 0)) {
        if (total == 0)
          context_.warn(
              fmt::format("no_chunks stage={}: no usable file was found", context_.stage));
        return StepStatus::kEnd;
      }
      if (anything_usable(step)) {
        step.store(state_.passes, passes);
        step.count(reshuffles_);
        state_.shuffler.reset(step, window_lower(total), total);
        return StepStatus::kDone;
      }
      if (epochs_ != 0) return StepStatus::kEnd;
    }
    waiting_for_usable_ = true;
    const std::string text =
        total == 0 ? "no chunks yet: waiting for .gz or .tar files"
                   : fmt::format(
                         "none of the {} chunks in the window can be used: waiting for "
                         "new files",
                         total - window_lower(total));
    context_.note(text);
    context_.warn(fmt::format("window_unusable stage={}: {}", context_.stage, text));
    return StepStatus::kNoInput;
  }
  if (!draw.value) return StepStatus::kDone;
  const Source* source = find(*draw.value);
  RF_CHECK(source != nullptr, *draw.value, step.load(state_.total));
  const std::uint64_t index = *draw.value - source->start;
  const Word word = chunk_word(step, *source, index);
  const std::uint64_t status = step.load(word);
  // The draw is used up.
  *passed_over = (flags_of(status) & kChunkDropped) != 0;
  if (*passed_over) return StepStatus::kDone;

  const std::byte* bank = step.bytes(state_.banks.offset + step.load(state_.bank));
  Entry entry{};
  std::memcpy(&entry, bank + source->offset, sizeof entry);
  ChunkPlace place{};
  std::memcpy(&place, bank + source->offset + sizeof entry + index * sizeof place, sizeof place);
  *passed_over = !accepts(step, place.frames);
  if (*passed_over) {
    step.count(hanse_rejected_);
    return StepStatus::kDone;
  }
  const std::string_view path(reinterpret_cast<const char*>(bank + source->offset + sizeof entry +
                                                            entry.chunk_count * sizeof place),
                              entry.path_bytes);
  const TaskRecord task = {
      .global_index = *draw.value,
      .identity = mix(mix(sort_key(path)), entry.first_chunk + index),
      .offset = place.offset,
      .bytes = place.bytes,
      .frames = place.frames,
      .uses = uses_of(status),
      .flags = flags_of(status),
      .path_bytes = entry.path_bytes,
      .reserved = 0,
      .window_lower = window_lower(step.load(state_.total)),
  };
  const std::span<std::byte> room = step.reserve(tasks_, sizeof task + path.size());
  if (room.empty()) return StepStatus::kNoRoom;
  std::memcpy(room.data(), &task, sizeof task);
  std::memcpy(room.data() + sizeof task, path.data(), path.size());
  step.put_reserved(tasks_, sizeof task + path.size(), {.tag = {task.identity, task.uses}});
  const auto uses = static_cast<std::uint16_t>(std::min<std::uint32_t>(65535, task.uses + 1U));
  step.store(word, status_word(static_cast<std::uint32_t>(status), uses, task.flags));
  step.count(draws_);
  return StepStatus::kDone;
}

void ChunkWindow::say(const Step& step) noexcept {
  const bool collecting = step.load(state_.phase) == 0;
  const std::uint64_t chunks = collecting ? collected_chunks_ : step.load(state_.total);
  if (chunks < said_at_ + said_at_ / 64 + 1) return;
  said_at_ = chunks;
  context_.note(fmt::format("window: {} of {} chunks{}", std::min(chunks, pool_size_), pool_size_,
                            collecting ? ", scanning" : ""));
}

StepStatus ChunkWindow::step(Step& step) noexcept {
  // Rejects first: a reading lane never waits for room there for long.
  if (const std::optional<Record> reject = step.peek(rejects_)) return take_reject(step, *reject);
  if (step.draining()) return StepStatus::kEnd;
  if (const std::optional<Record> record = step.peek(in_)) {
    return record->user == kScanCompleteRecord ? take_marker(step, *record)
                                               : take_source(step, *record);
  }
  if (step.load(state_.phase) != 0) return draw_chunk(step);
  if (!step.ended(in_)) return StepStatus::kNoInput;
  return step.load(state_.scanned) != 0 ? begin_drawing(step) : StepStatus::kEnd;
}

StageType shuffling_chunk_pool_type() {
  StageType type;
  type.kind = "shuffling_chunk_pool";
  type.inputs = {{"input", "sources"}};
  type.outputs = {{"output", "chunks"}};
  type.problems = [](const StageConfig& config, const DataLoaderConfig&) {
    const ShufflingChunkPoolConfig& own = config.shuffling_chunk_pool();
    std::vector<Problem> problems;
    if (own.has_hanse_sampling_gamma() && !own.has_hanse_sampling_threshold()) {
      problems.push_back({"hanse_sampling_gamma",
                          "is the exponent of sampling with hanse_sampling_threshold, which is not "
                          "given: give both, or remove it"});
    }
    if (own.has_store_directory() && !own.has_store_bytes()) {
      problems.push_back({"store_directory", "needs store_bytes: how much may be kept there"});
    }
    return problems;
  };
  type.nodes = [](const StageConfig& config, const DataLoaderConfig& feed) {
    const ShufflingChunkPoolConfig& own = config.shuffling_chunk_pool();
    NodeSpec window;
    StateLayout layout;
    (void)ChunkWindow::State(layout, own.chunk_pool_size());
    window.state_bytes = layout.bytes() + kBankBytesMin;
    window.state_bytes_max = layout.bytes() + kBankBytesMax;
    window.inputs = {{.port = "input", .from = "", .block = 1},
                     {.port = "rejects", .from = "read.rejects", .block = 1}};
    window.outputs = {{.port = "tasks",
                       .record_type = "tasks",
                       .exported = false,
                       .queue_capacity = 64,
                       .queue_bytes = 256 * kKiB,
                       .overflow = BLOCK,
                       .units = UnitRule::kRecord}};
    window.weight = 0.02;
    // One: a second call could write a bank that the first one has just left and a dead lane would
    // still need.
    window.steps_per_commit = 1;
    window.entries_per_step = 160;
    window.create = [](const StageContext& context) {
      return std::make_unique<ChunkWindow>(context);
    };

    NodeSpec read;
    read.name = "read";
    read.lanes = own.threads();
    read.lanes_max = std::max(own.threads(), own.max_threads());
    read.state_version = 2;
    read.inputs = {{.port = "tasks", .from = ".tasks", .block = 1}};
    // Whole games are work enough for a commit, and memory enough for a queue; a few positions out
    // of a store are not.
    const auto any_key = [](std::string_view) { return std::uint64_t{0}; };
    const bool few = consumer_choice(feed, config.name(), any_key).has_value();
    read.steps_per_commit = !few ? 1 : own.has_store_bytes() ? 32 : 8;
    OutputSpec chunks = output_spec(own, "chunks", 16 * kMiB, UnitRule::kFollow);
    if (few && !own.has_queue_capacity()) chunks.queue_capacity = 256;
    read.outputs = {chunks,
                    {.port = "rejects",
                     .record_type = "rejects",
                     .exported = false,
                     .queue_capacity = 256,
                     .queue_bytes = 64 * kKiB,
                     .overflow = DROP_NEW,
                     .units = UnitRule::kRecord}};
    if (own.has_store_bytes() && own.store_directory().empty()) {
      read.private_bytes = own.store_bytes();
    }
    read.weight = 2;
    read.create = [](const StageContext& context) {
      return std::make_unique<ChunkReader>(context);
    };
    return std::vector<NodeSpec>{window, read};
  };
  return type;
}

}  // namespace ringfeed
