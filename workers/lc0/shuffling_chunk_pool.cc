#include "workers/lc0/shuffling_chunk_pool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "proto/control.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/worker/random.h"
#include "workers/kit/sort_key.h"
#include "workers/lc0/chunk_reader.h"
#include "workers/lc0/chunk_weigher.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kBankBytesMin = 1 * kMiB;
constexpr std::uint64_t kBankBytesMax = 64ULL << 30;
// Where fewer chunks a pass are to be expected, passes are made slowly.
constexpr double kHopedMin = 1e-6;
// A file that is away is looked at this often at least; one that has been back for a while is as
// any other.
constexpr std::chrono::seconds kAwayPauseMax(30);
constexpr std::chrono::seconds kBackFor(60);

// The words of a ChunkPlace that change: frames, uses, flags; weight and whether it is known.
constexpr std::uint64_t kStatusOffset = 16;
constexpr std::uint64_t kWeightOffset = 24;
std::uint64_t status_word(std::uint32_t frames, std::uint16_t uses, std::uint16_t flags) noexcept {
  return std::uint64_t{flags} << 48 | std::uint64_t{uses} << 32 | frames;
}
bool is_power_of_ten(std::uint64_t number) noexcept {
  while (number != 0 && number % 10 == 0) number /= 10;
  return number == 1;
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

ChunkWindow::ChunkWindow(const StageContext& context)
    : context_(context),
      limits_{.chunks = context.config.shuffling_chunk_pool().chunk_pool_size(),
              .positions = limit(context.config.shuffling_chunk_pool().has_window_positions(),
                                 context.config.shuffling_chunk_pool().window_positions()),
              .bytes = limit(context.config.shuffling_chunk_pool().has_window_bytes(),
                             context.config.shuffling_chunk_pool().window_bytes())},
      epochs_(context.feed.epochs()),
      state_([this] {
        StateLayout layout;
        return State(layout, limits_.chunks);
      }()),
      in_(context.input("input")),
      rejects_(context.input("rejects")),
      tasks_(context.output("tasks")),
      weighted_(context.config.shuffling_chunk_pool().has_position_sampling()),
      weights_(weighted_ ? context.input("weights") : InPort{}),
      weigh_(weighted_ ? context.output("weigh") : OutPort{}),
      sources_kept_(context.counter("sources_kept")),
      chunks_in_window_(context.counter("chunks_in_window")),
      chunks_kept_(context.counter("chunks_kept")),
      chunks_total_(context.counter("chunks_total")),
      chunks_dropped_(context.counter("chunks_dropped")),
      reshuffles_(context.counter("reshuffles")),
      epochs_ended_(context.counter("epochs")),
      chunks_outside_(context.counter("chunks_outside_window")),
      draws_(context.counter("draws")),
      hanse_rejected_(context.counter("hanse_rejected")),
      weighted_rejected_(context.counter("weighted_rejected")),
      weights_known_(context.counter("weights_known")),
      chunk_weights_(context.counter("chunk_weights")),
      weight_sum_(context.counter("chunk_weight_sum_millionths")),
      weight_min_(context.counter("chunk_weight_min_millionths")),
      weight_max_(context.counter("chunk_weight_max_millionths")),
      weight_latest_(context.counter("chunk_weight_latest_millionths")),
      positions_in_window_(context.counter("positions_in_window")),
      bytes_in_window_(context.counter("bytes_in_window")),
      chunks_since_anchor_(context.counter("chunks_since_anchor")),
      gives_nothing_(context.counter("gives_nothing")),
      newer_(context.config.shuffling_chunk_pool().numeric_sort_keys()),
      collected_(ByKey{newer_}) {
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
          const Extent extent = extent_of(bank + at, entry);
          collected_.emplace(path, Source{at, 0, entry.chunk_count, extent});
          collected_extent_ += extent;
          by_path_.emplace(path, at);
        }
        at += entry.entry_bytes;
      }
    } else {
      rebuild(context.state, context.load(state_.bank), context.load(state_.front),
              context.load(state_.used));
      const std::byte* bank = context.state + state_.banks.offset + context.load(state_.bank);
      for (const Source& source : sources_) {
        for (std::uint32_t i = 0; i < source.chunk_count; ++i) {
          if (source.start + i < context.load(state_.lower)) continue;
          window_ += extent_of(place_at(bank, source, i));
        }
      }
    }
  }
}

// A limit that is not given does not limit.
std::uint64_t ChunkWindow::limit(bool given, std::uint64_t value) noexcept {
  return given ? value : std::numeric_limits<std::uint64_t>::max();
}

ChunkPlace ChunkWindow::place_at(const std::byte* bank, const Source& source,
                                 std::uint64_t index) noexcept {
  ChunkPlace place{};
  std::memcpy(&place, bank + source.offset + sizeof(Entry) + index * sizeof place, sizeof place);
  return place;
}

ChunkWindow::Extent ChunkWindow::extent_of(const ChunkPlace& place) noexcept {
  return {.chunks = 1, .positions = place.frames, .bytes = place.bytes};
}

// Of all chunks of the entry.
ChunkWindow::Extent ChunkWindow::extent_of(const std::byte* at, const Entry& entry) noexcept {
  Extent extent;
  for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
    ChunkPlace place{};
    std::memcpy(&place, at + sizeof entry + i * sizeof place, sizeof place);
    extent += extent_of(place);
  }
  return extent;
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
    sources_.push_back({at, entry.start, entry.chunk_count, {}});
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
    for (const auto& [path, source] : collected_) {
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
    Collected moved(ByKey{newer_});
    by_path_.clear();
    for (const auto& [path, source] : collected_) {
      Entry entry{};
      std::memcpy(&entry, from + source.offset, sizeof entry);
      std::memcpy(to + used, from + source.offset, entry.entry_bytes);
      by_path_.emplace(path, used);
      moved.emplace(path, Source{used, 0, source.chunk_count, source.extent});
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
    Extent rest = collected_extent_;
    rest -= oldest->second.extent;
    if (!fills(rest)) return;
    const std::uint64_t at = state_.banks.offset + step.load(state_.bank) + oldest->second.offset;
    step.store(Word{at + offsetof(Entry, dead)}, 1);
    step.count(chunks_outside_, oldest->second.chunk_count);
    collected_extent_ = rest;
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
        const auto [same_begin, same_end] = collected_.equal_range(path);
        const auto old = std::find_if(same_begin, same_end, [&](const auto& entry) {
          return entry.second.offset == it->second;
        });
        if (old == same_end) continue;
        step.store(
            Word{state_.banks.offset + step.load(state_.bank) + it->second + offsetof(Entry, dead)},
            1);
        collected_extent_ -= old->second.extent;
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
  // What a splitter has left nothing of; above, it took the place of what was there.
  if (source.chunk_count == 0) return step.consume(record);
  const std::uint64_t offset = step.load(state_.used);
  append(step, record);
  const std::byte* bank = step.bytes(state_.banks.offset + step.load(state_.bank));
  Entry entry{};
  std::memcpy(&entry, bank + offset, sizeof entry);
  const Extent extent = extent_of(bank + offset, entry);
  if (collecting) {
    collected_.emplace(path, Source{offset, 0, source.chunk_count, extent});
    by_path_.emplace(path, offset);
    collected_extent_ += extent;
    prune_collected(step);
    step.gauge(sources_kept_, collected_.size());
    step.gauge(chunks_in_window_, std::min(collected_extent_.chunks, limits_.chunks));
  } else {
    const std::uint64_t total = step.load(state_.total) + source.chunk_count;
    sources_.push_back({offset, step.load(state_.total), source.chunk_count, {}});
    by_path_.emplace(path, step.load(state_.total));
    step.store(state_.total, total);
    count_since_anchor(step, source.chunk_count);
    window_ += extent;
    const std::uint64_t first = total - source.chunk_count;
    const std::uint64_t lower_before = step.load(state_.lower);
    const std::uint64_t lower = move_lower(step, total);
    // The window may begin within the source, if that is large.
    step.count(chunks_total_, total - std::max(lower, first));
    if (lower != lower_before) step.count(chunks_outside_, lower - lower_before);
    // Whole sources leave at the front once all their chunks have left the window.
    while (sources_.size() > 1 && sources_.front().start + sources_.front().chunk_count <= lower) {
      forget_path(bank + sources_.front().offset, sources_.front().start);
      sources_.pop_front();
      step.store(state_.front, sources_.front().offset);
    }
    state_.shuffler.move_up(step, lower, total);
    show_window(step);
    waiting_for_usable_ = false;
    hopeless_ = false;
  }
  say(step);
  return step.consume(record);
}

// Is the window full with this much?
bool ChunkWindow::fills(const Extent& extent) const noexcept {
  return extent.chunks >= limits_.chunks || extent.positions >= limits_.positions ||
         extent.bytes >= limits_.bytes;
}

// Lets the oldest chunks go until the window keeps its limits; the newest one stays in any case.
// The new lower end.
std::uint64_t ChunkWindow::move_lower(Step& step, std::uint64_t total) noexcept {
  const std::byte* bank = step.bytes(state_.banks.offset + step.load(state_.bank));
  std::uint64_t lower = step.load(state_.lower);
  const Source* source = nullptr;
  const auto over = [this] {
    return window_.chunks > limits_.chunks || window_.positions > limits_.positions ||
           window_.bytes > limits_.bytes;
  };
  while (over() && lower + 1 < total) {
    if (source == nullptr || lower >= source->start + source->chunk_count) source = find(lower);
    RF_CHECK(source != nullptr, lower, total);
    window_ -= extent_of(place_at(bank, *source, lower - source->start));
    ++lower;
  }
  step.store(state_.lower, lower);
  return lower;
}

void ChunkWindow::show_window(Step& step) noexcept {
  step.gauge(sources_kept_, sources_.size());
  step.gauge(chunks_in_window_, window_.chunks);
  const std::uint64_t total = step.load(state_.total);
  step.gauge(chunks_kept_, sources_.empty() ? 0 : total - sources_.front().start);
  step.gauge(positions_in_window_, window_.positions);
  step.gauge(bytes_in_window_, window_.bytes);
}

// ---- the anchor

std::string ChunkWindow::anchor(const Step& step) const {
  if (step.load(state_.anchor_set) == 0)
    return context_.config.shuffling_chunk_pool().chunk_anchor();
  const std::uint64_t bank = step.load(state_.anchor_bank);
  return {reinterpret_cast<const char*>(step.bytes(state_.anchors[bank & 1].offset)),
          step.load(state_.anchor_bytes)};
}

// Writes to the place that no word refers to, and switches.
void ChunkWindow::set_anchor(Step& step, std::string_view key) noexcept {
  const std::uint64_t bank = step.load(state_.anchor_bank) ^ 1;
  const std::string_view kept = key.substr(0, kAnchorBytes);
  step.fill(state_.anchors[bank & 1], std::as_bytes(std::span(kept)));
  step.store(state_.anchor_bank, bank);
  step.store(state_.anchor_bytes, kept.size());
  step.store(state_.anchor_set, 1);
}

void ChunkWindow::count_since_anchor(Step& step, std::uint64_t chunks) noexcept {
  const std::uint64_t since = step.load(state_.since_anchor) + chunks;
  step.store(state_.since_anchor, since);
  step.gauge(chunks_since_anchor_, since);
}

// Reset answers the new anchor and the count before it; set the new anchor and the count, which
// stays.
void ChunkWindow::control(Step& step, const StageControlRequest& request,
                          StageControlResponse& response) noexcept {
  if (!request.has_chunk_pool_request()) return;
  const ShufflingChunkPoolControlRequest& asked = request.chunk_pool_request();
  ShufflingChunkPoolControlResponse& answer = *response.mutable_chunk_pool_response();
  answer.set_chunks_since_anchor(static_cast<std::int32_t>(std::min<std::uint64_t>(
      step.load(state_.since_anchor), std::numeric_limits<std::int32_t>::max())));
  if (asked.reset_chunk_anchor()) {
    // While there are no chunks, the anchor stays.
    std::string newest = anchor(step);
    if (!collected_.empty()) newest = sort_key(collected_.rbegin()->first);
    if (!sources_.empty()) {
      const std::byte* at =
          step.bytes(state_.banks.offset + step.load(state_.bank)) + sources_.back().offset;
      Entry entry{};
      std::memcpy(&entry, at, sizeof entry);
      newest = sort_key(entry_path(at, entry));
    }
    set_anchor(step, newest);
    step.store(state_.since_anchor, 0);
    step.gauge(chunks_since_anchor_, 0);
    answer.set_chunk_anchor(newest.substr(0, kAnchorBytes));
    return;
  }
  if (asked.has_set_chunk_anchor()) set_anchor(step, asked.set_chunk_anchor());
  answer.set_chunk_anchor(anchor(step));
}

// ---- drawing

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
  const std::string anchor = this->anchor(step);
  std::uint64_t since_anchor = 0;
  window_ = {};
  for (const Source& source : sources_) {
    Entry entry{};
    std::memcpy(&entry, bank + source.offset, sizeof entry);
    window_ += extent_of(bank + source.offset, entry);
    const std::string path = entry_path(bank + source.offset, entry);
    if (anchor.empty() || newer_(anchor, sort_key(path))) since_anchor += source.chunk_count;
  }
  count_since_anchor(step, since_anchor);
  const std::uint64_t lower = move_lower(step, total);
  state_.shuffler.reset(step, lower, total);
  begin_pass();
  show_window(step);
  step.count(chunks_total_, total - lower);
  if (lower != 0) step.count(chunks_outside_, lower);
  if (window_.chunks == limits_.chunks &&
      !context_.config.shuffling_chunk_pool().has_chunk_pool_size() &&
      (limits_.positions != limit(false, 0) || limits_.bytes != limit(false, 0))) {
    context_.warn(
        fmt::format("window_cut stage={}: {} chunks, the default of chunk_pool_size, have {} "
                    "positions and {} bytes: raise chunk_pool_size to match the other limit",
                    context_.stage, window_.chunks, window_.positions, window_.bytes));
  }
  context_.note(fmt::format("window: {} of {} chunks", window_.chunks, limits_.chunks));
  context_.info(fmt::format("window_ready stage={} sources={} chunks={} window={}", context_.stage,
                            sources_.size(), total, limits_.chunks));
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
      set_aside(step, *source, reject.global_index, reject.away != 0);
    }
  }
  return step.consume(record);
}

void ChunkWindow::AwayFile::wait(Clock::time_point now) {
  look_at = now + pause;
  pause = std::min<Clock::duration>(2 * pause, kAwayPauseMax);
}

// The chunk is not drawn any more, or not as long as its file is away.
void ChunkWindow::set_aside(Step& step, const Source& source, std::uint64_t number,
                            bool away) noexcept {
  const Word word = chunk_word(step, source, number - source.start);
  const std::uint64_t status = step.load(word);
  if ((flags_of(status) & kChunkDropped) != 0) return;
  if (!away || epochs_ != 0) {
    step.store(word, status | std::uint64_t{kChunkDropped} << 48);
    step.count(chunks_dropped_);
    return;
  }
  step.store(word, status | std::uint64_t{kChunkAway} << 48);
  if (away_.size() > 2 * sources_.size() + 1024) away_.clear();  // of files that have left
  const std::byte* at = step.bytes(state_.banks.offset + step.load(state_.bank)) + source.offset;
  Entry entry{};
  std::memcpy(&entry, at, sizeof entry);
  const auto [file, fresh] = away_.try_emplace(entry_path(at, entry));
  if (!fresh && !file->second.back) return;  // one of many that were under way
  const Clock::time_point now = Clock::now();
  if (file->second.back && now > file->second.since + kBackFor) file->second = {};
  file->second.back = false;
  file->second.wait(now);
}

// Is the file of this chunk, which was away, there again as far as the chunk's end? Then the chunk
// is as it was. A file that is being copied back grows.
bool ChunkWindow::is_back(Step& step, const Source& source, std::uint64_t number) noexcept {
  const std::byte* bank = step.bytes(state_.banks.offset + step.load(state_.bank));
  const std::byte* at = bank + source.offset;
  Entry entry{};
  std::memcpy(&entry, at, sizeof entry);
  const ChunkPlace place = place_at(bank, source, number - source.start);
  const std::uint64_t end = place.offset + place.bytes;
  const auto known = away_.try_emplace(entry_path(at, entry)).first;
  AwayFile& file = known->second;
  if (!file.back || file.bytes < end) {
    const Clock::time_point now = Clock::now();
    if (now < file.look_at) return false;
    const bool was_back = std::exchange(file.back, false);
    struct stat info {};
    const Result<shm::Fd> opened = shm::open_regular(known->first);
    if (opened && ::fstat(opened->get(), &info) == 0) {
      file.back = true;
      file.bytes = static_cast<std::uint64_t>(info.st_size);
      if (!was_back) file.since = now;
    }
    if (!file.back || file.bytes < end) {
      file.wait(now);
      return false;
    }
  }
  const Word word = chunk_word(step, source, number - source.start);
  step.store(word, step.load(word) & ~(std::uint64_t{kChunkAway} << 48));
  return true;
}

void ChunkWindow::say_away(Step& step) noexcept {
  step.gauge(gives_nothing_, 1);
  gives_ = false;
  const std::string text = fmt::format(
      "none of the {} chunks in the window can be used: their files cannot be opened "
      "or read: waiting for them, or for new files",
      step.load(state_.total) - step.load(state_.lower));
  context_.note(text);
  context_.warn(fmt::format("window_unusable stage={}: {}", context_.stage, text));
}

bool ChunkWindow::anything_usable(const Step& step) const noexcept {
  const std::uint64_t lower = step.load(state_.lower);
  for (const Source& source : sources_) {
    for (std::uint64_t i = source.start < lower ? lower - source.start : 0; i < source.chunk_count;
         ++i) {
      if ((flags_of(step.load(chunk_word(step, source, i))) & kChunkDropped) == 0) return true;
    }
  }
  return false;
}

double acceptance(std::uint32_t frames, std::uint64_t threshold, double gamma) noexcept {
  return std::pow(std::min(1.0, static_cast<double>(frames) / static_cast<double>(threshold)),
                  gamma);
}

// Does a chunk of so many records stand the test? Of one that claims none it will be said why.
bool ChunkWindow::accepts(Step& step, std::uint32_t frames) noexcept {
  const ShufflingChunkPoolConfig& own = context_.config.shuffling_chunk_pool();
  if (!own.has_hanse_sampling_threshold() || frames == 0) return true;
  const double u = static_cast<double>(step.draw(std::uint64_t{1} << 53)) * 0x1.0p-53;
  return u < acceptance(frames, own.hanse_sampling_threshold(), own.hanse_sampling_gamma());
}

void ChunkWindow::begin_pass() noexcept {
  pass_whole_ = true;
  pass_given_ = 0;
  pass_refused_ = 0;
  pass_away_ = 0;
  pauses_ = (hopeless_ || all_away_) && epochs_ == 0;
}

void ChunkWindow::end_pass(Step& step) noexcept {
  const bool all_away = pass_given_ == 0 && pass_refused_ == 0 && pass_away_ != 0;
  if (all_away && !std::exchange(all_away_, true)) say_away(step);
  if (!pass_whole_ || pass_given_ != 0 || pass_refused_ == 0) {
    barren_passes_ = 0;
    hopeless_ = false;
    return;
  }
  ++barren_passes_;
  ++barren_passes_ever_;
  step.gauge(gives_nothing_, 1);
  gives_ = false;
  if (is_power_of_ten(barren_passes_)) say_barren(step);
}

// Why nothing is accepted, with what may be hoped for.
void ChunkWindow::say_barren(const Step& step) noexcept {
  const ShufflingChunkPoolConfig& own = context_.config.shuffling_chunk_pool();
  const std::uint64_t lower = step.load(state_.lower);
  std::uint64_t usable = 0;
  std::uint32_t longest = 0;
  double hoped = 0;  // chunks a pass
  for (const Source& source : sources_) {
    for (std::uint64_t i = source.start < lower ? lower - source.start : 0; i < source.chunk_count;
         ++i) {
      const std::uint64_t word = step.load(chunk_word(step, source, i));
      if ((flags_of(word) & kChunkDropped) != 0) continue;
      const auto frames = static_cast<std::uint32_t>(word);
      ++usable;
      longest = std::max(longest, frames);
      if (own.has_hanse_sampling_threshold()) {
        hoped += acceptance(frames, own.hanse_sampling_threshold(), own.hanse_sampling_gamma());
      }
    }
  }
  std::string text = fmt::format(
      "outputs nothing: in {} passes in a row none of the {} chunks in the window was accepted",
      barren_passes_, usable);
  if (weighted_) {
    text += fmt::format(" by its weight: lower weighted_sampling_gamma ({:g})",
                        own.weighted_sampling_gamma());
  } else {
    hopeless_ = hoped < kHopedMin;
    text += fmt::format(
        ": with hanse_sampling_threshold {} and hanse_sampling_gamma {:g} the longest, of {} "
        "records, is accepted with a probability of {:.2g}; lower them",
        own.hanse_sampling_threshold(), own.hanse_sampling_gamma(), longest,
        acceptance(longest, own.hanse_sampling_threshold(), own.hanse_sampling_gamma()));
  }
  context_.note(text);
  if (barren_passes_ever_ < said_next_) return;
  said_next_ = 10 * barren_passes_ever_;
  context_.warn(fmt::format("nothing_accepted stage={} passes={}: {}", context_.stage,
                            barren_passes_ever_, text));
}

StepStatus ChunkWindow::draw_chunk(Step& step) noexcept {
  if (std::exchange(pauses_, false)) return StepStatus::kIdle;
  // Chunks that are passed over change little: several a step.
  bool passed_over = true;
  StepStatus status = StepStatus::kDone;
  for (std::uint32_t drawn = 0; drawn < kDrawsPerStep && passed_over && status == StepStatus::kDone;
       ++drawn) {
    status = draw_one(step, &passed_over);
  }
  return status;
}

std::optional<std::uint64_t> ChunkWindow::next_number(Step& step, bool waits,
                                                      StepStatus& status) noexcept {
  status = StepStatus::kDone;
  const StreamShuffler::Draw draw = state_.shuffler.next(step);
  if (!draw.exhausted) return draw.value;
  status = StepStatus::kNoInput;
  const std::uint64_t total = step.load(state_.total);
  if (waiting_for_usable_) return std::nullopt;
  if (epochs_ != 0 || total != 0) {
    const std::uint64_t passes = step.load(state_.passes) + (total != 0 ? 1 : 0);
    if (epochs_ != 0 && (passes >= epochs_ || total == 0)) {
      if (waits) return std::nullopt;
      if (total != 0) step.count(epochs_ended_);
      end_pass(step);
      if (total == 0) {
        context_.warn(fmt::format("no_chunks stage={}: no usable file was found", context_.stage));
      }
      status = StepStatus::kEnd;
      return std::nullopt;
    }
    if (anything_usable(step)) {
      step.store(state_.passes, passes);
      step.count(reshuffles_);
      if (epochs_ != 0) step.count(epochs_ended_);
      state_.shuffler.reset(step, step.load(state_.lower), total);
      end_pass(step);
      begin_pass();
      status = StepStatus::kDone;
      return std::nullopt;
    }
    if (epochs_ != 0) {
      if (!waits) status = StepStatus::kEnd;
      return std::nullopt;
    }
  }
  if (waits) return std::nullopt;
  waiting_for_usable_ = true;
  const std::string text =
      total == 0 ? "no chunks yet: waiting for .gz or .tar files"
                 : fmt::format(
                       "none of the {} chunks in the window can be used: waiting for new "
                       "files",
                       total - step.load(state_.lower));
  context_.note(text);
  context_.warn(fmt::format("window_unusable stage={}: {}", context_.stage, text));
  return std::nullopt;
}

// A task about the chunk; false: no room now.
bool ChunkWindow::put_task(Step& step, OutPort port, const Source& source,
                           std::uint64_t number) noexcept {
  const std::uint64_t index = number - source.start;
  const std::byte* bank = step.bytes(state_.banks.offset + step.load(state_.bank));
  Entry entry{};
  std::memcpy(&entry, bank + source.offset, sizeof entry);
  const ChunkPlace place = place_at(bank, source, index);
  const std::uint64_t status = step.load(chunk_word(step, source, index));
  const std::string_view path(reinterpret_cast<const char*>(bank + source.offset + sizeof entry +
                                                            entry.chunk_count * sizeof place),
                              entry.path_bytes);
  const TaskRecord task = {
      .global_index = number,
      .identity = mix(mix(sort_key(path)), place.index),
      .offset = place.offset,
      .bytes = place.bytes,
      .frames = place.frames,
      .uses = uses_of(status),
      .flags = flags_of(status),
      .path_bytes = entry.path_bytes,
      .reserved = 0,
      .window_lower = step.load(state_.lower),
  };
  const std::span<std::byte> room = step.reserve(port, sizeof task + path.size());
  if (room.empty()) return false;
  std::memcpy(room.data(), &task, sizeof task);
  std::memcpy(room.data() + sizeof task, path.data(), path.size());
  step.put_reserved(port, sizeof task + path.size(), {.tag = {task.identity, task.uses}});
  return true;
}

// The chunk is used.
StepStatus ChunkWindow::give(Step& step, const Source& source, std::uint64_t number) noexcept {
  if (!put_task(step, tasks_, source, number)) return StepStatus::kNoRoom;
  const Word word = chunk_word(step, source, number - source.start);
  const std::uint64_t status = step.load(word);
  const auto uses =
      static_cast<std::uint16_t>(std::min<std::uint32_t>(65535, uses_of(status) + 1U));
  step.store(word, status_word(static_cast<std::uint32_t>(status), uses, flags_of(status)));
  step.count(draws_);
  ++pass_given_;
  barren_passes_ = 0;
  if (std::exchange(all_away_, false)) {
    context_.info(fmt::format("window_usable stage={}", context_.stage));
  }
  // Also what the process before has said.
  if (!std::exchange(gives_, true)) {
    step.gauge(gives_nothing_, 0);
    context_.note(fmt::format("window: {} of {} chunks", window_.chunks, limits_.chunks));
  }
  return StepStatus::kDone;
}

// One draw. `*passed_over`: it gave no task, and another may follow in this step.
StepStatus ChunkWindow::draw_one(Step& step, bool* passed_over) noexcept {
  *passed_over = false;
  StepStatus status = StepStatus::kDone;
  const std::optional<std::uint64_t> number = next_number(step, false, status);
  if (!number) return status;
  const Source* source = find(*number);
  RF_CHECK(source != nullptr, *number, step.load(state_.total));
  const std::uint64_t word = step.load(chunk_word(step, *source, *number - source->start));
  // The draw is used up.
  *passed_over = (flags_of(word) & kChunkDropped) != 0;
  if (!*passed_over && (flags_of(word) & kChunkAway) != 0) {
    *passed_over = !is_back(step, *source, *number);
    pass_away_ += *passed_over ? 1 : 0;
  }
  if (*passed_over) return StepStatus::kDone;
  *passed_over = !accepts(step, static_cast<std::uint32_t>(word));
  if (*passed_over) {
    ++pass_refused_;
    step.count(hanse_rejected_);
    return StepStatus::kDone;
  }
  return give(step, *source, *number);
}

// ---- drawing by weight

Word ChunkWindow::weight_word(const Step& step, const Source& source,
                              std::uint64_t number) const noexcept {
  return {chunk_word(step, source, number - source.start).offset - kStatusOffset + kWeightOffset};
}

StepStatus ChunkWindow::take_weight(Step& step, const Record& record) noexcept {
  WeightRecord answer{};
  RF_CHECK(record.bytes.size() == sizeof answer, record.bytes.size());
  std::memcpy(&answer, record.bytes.data(), sizeof answer);
  if (const Source* source = find(answer.global_index)) {
    if (answer.weight >= 0) {
      step.store(weight_word(step, *source, answer.global_index),
                 std::uint64_t{kWeightKnown} << 32 | std::bit_cast<std::uint32_t>(answer.weight));
    } else {
      const bool away = answer.weight == kWeightAway;
      set_aside(step, *source, answer.global_index, away);
      // It is asked for again when the chunk is.
      if (away) {
        step.store(weight_word(step, *source, answer.global_index),
                   std::uint64_t{kWeightUnknown} << 32);
      }
    }
  }
  return step.consume(record);
}

void ChunkWindow::show_weight(Step& step, float weight, float largest) noexcept {
  const auto millionths = [](float value) {
    constexpr double kMost = 1e18;  // leaves room for a sum
    return static_cast<std::uint64_t>(std::min(1e6 * static_cast<double>(value), kMost));
  };
  const std::uint64_t known = step.load(state_.smallest_weight);
  const float smallest =
      known == 0 ? weight
                 : std::min(weight, std::bit_cast<float>(static_cast<std::uint32_t>(known)));
  step.store(state_.smallest_weight,
             std::uint64_t{kWeightKnown} << 32 | std::bit_cast<std::uint32_t>(smallest));
  step.count(chunk_weights_);
  step.count(weight_sum_, millionths(weight));
  step.gauge(weight_min_, millionths(smallest));
  step.gauge(weight_max_, millionths(largest));
  step.gauge(weight_latest_, millionths(weight));
}

// The oldest candidate: kDone if it was decided on, kNoInput if its weight has not come.
StepStatus ChunkWindow::decide_one(Step& step) noexcept {
  const std::uint64_t first = step.load(state_.decided);
  if (first == step.load(state_.drawn)) return StepStatus::kNoInput;
  const std::uint64_t number = step.load(state_.candidates[first % kCandidates]);
  const Source* source = find(number);
  // It may have left the window since, or been found unusable.
  const bool usable =
      source != nullptr && (flags_of(step.load(chunk_word(step, *source, number - source->start))) &
                            (kChunkDropped | kChunkAway)) == 0;
  if (usable) {
    const std::uint64_t known = step.load(weight_word(step, *source, number));
    if (known >> 32 != kWeightKnown) return StepStatus::kNoInput;
    const auto weight = std::bit_cast<float>(static_cast<std::uint32_t>(known));
    const float largest = std::max(
        weight, std::bit_cast<float>(static_cast<std::uint32_t>(step.load(state_.largest_weight))));
    const double gamma = context_.config.shuffling_chunk_pool().weighted_sampling_gamma();
    // A number of its own for each candidate: others are drawn at any time between the two.
    const double u = Random(mix(context_.key, first)).unit();
    if (largest <= 0 || u < std::pow(static_cast<double>(weight) / largest, gamma)) {
      if (const StepStatus given = give(step, *source, number); given != StepStatus::kDone) {
        return given;
      }
    } else {
      ++pass_refused_;
      step.count(weighted_rejected_);
    }
    step.store(state_.largest_weight, std::bit_cast<std::uint32_t>(largest));
    show_weight(step, weight, largest);
  }
  step.store(state_.decided, first + 1);
  return StepStatus::kDone;
}

// Draws a chunk ahead, and asks for its weight if need be.
StepStatus ChunkWindow::add_candidate(Step& step) noexcept {
  const std::uint64_t drawn = step.load(state_.drawn);
  const std::uint64_t decided = step.load(state_.decided);
  if (drawn - decided == kCandidates) return StepStatus::kNoInput;
  StepStatus status = StepStatus::kDone;
  const std::optional<std::uint64_t> number = next_number(step, drawn != decided, status);
  if (!number) return status;
  const Source* source = find(*number);
  RF_CHECK(source != nullptr, *number, step.load(state_.total));
  const std::uint64_t chunk = step.load(chunk_word(step, *source, *number - source->start));
  if ((flags_of(chunk) & kChunkAway) != 0 && !is_back(step, *source, *number)) {
    ++pass_away_;
    return StepStatus::kDone;  // the draw is used up
  }
  const Word word = weight_word(step, *source, *number);
  if (step.load(word) >> 32 == kWeightUnknown) {
    if (!put_task(step, weigh_, *source, *number)) return StepStatus::kNoRoom;
    step.store(word, std::uint64_t{kWeightAsked} << 32);
  } else {
    step.count(weights_known_);
  }
  step.store(state_.candidates[drawn % kCandidates], *number);
  step.store(state_.drawn, drawn + 1);
  return StepStatus::kDone;
}

StepStatus ChunkWindow::draw_weighted(Step& step) noexcept {
  if (std::exchange(pauses_, false)) return StepStatus::kIdle;
  const StepStatus added = add_candidate(step);
  if (added == StepStatus::kNoRoom) return added;
  const StepStatus decided = decide_one(step);
  if (decided == StepStatus::kNoRoom) return decided;
  return decided == StepStatus::kDone ? decided : added;
}

void ChunkWindow::say(const Step& step) noexcept {
  const bool collecting = step.load(state_.phase) == 0;
  const std::uint64_t chunks = collecting ? collected_extent_.chunks : step.load(state_.total);
  if (chunks < said_at_ + said_at_ / 64 + 1) return;
  said_at_ = chunks;
  const std::uint64_t have = std::min(chunks, limits_.chunks);
  context_.progress(fmt::format("window: {} of {} chunks{}", have, limits_.chunks,
                                collecting ? ", scanning" : ""),
                    have, limits_.chunks);
}

StepStatus ChunkWindow::step(Step& step) noexcept {
  // Rejects first: a reading lane never waits for room there for long.
  if (const std::optional<Record> reject = step.peek(rejects_)) return take_reject(step, *reject);
  if (weighted_) {
    if (const std::optional<Record> weight = step.peek(weights_)) return take_weight(step, *weight);
  }
  if (step.draining()) return StepStatus::kEnd;
  if (const std::optional<Record> record = step.peek(in_)) {
    return record->user == kScanCompleteRecord ? take_marker(step, *record)
                                               : take_source(step, *record);
  }
  if (step.load(state_.phase) != 0) return weighted_ ? draw_weighted(step) : draw_chunk(step);
  if (!step.ended(in_)) return StepStatus::kNoInput;
  return step.load(state_.scanned) != 0 ? begin_drawing(step) : StepStatus::kEnd;
}

namespace {

std::vector<CounterSpec> pool_counters() {
  std::vector<CounterSpec> counters = {
      {"sources_kept", "Sources whose chunks are kept.", kGauge, "chunk_sources"},
      {"gives_nothing", "1: a whole pass refused every chunk, and none has been accepted since.",
       kGauge},
      {"chunks_in_window",
       "Chunks in the window.",
       kGauge,
       "chunks_current",
       {.setting = "chunk_pool_size", .shown_as = "chunks_capacity"}},
      {"chunks_kept", "Chunks of the sources that are kept, in the window or not.", kGauge},
      {"chunks_total", "Chunks that were ever in the window.", kGauge},
      {"chunks_since_anchor", "Chunks that are newer than the anchor.", kGauge},
      {"chunks_dropped", "Chunks that could not be read.", kCounter, "dropped"},
      {"draws", "Draws that were accepted."},
      {"hanse_rejected", "Draws that were refused by the length of the chunk."},
      {"reshuffles", "Passes over the window that started anew."},
      {"epochs", "Of a finite run: passes over the window whose chunks have all been drawn."},
      {"chunks_outside_window", "Chunks that left the window or were never in it."},
      {"positions_in_window", "Positions of the chunks in the window.", kGauge,
       "positions_current"},
      {"bytes_in_window", "Bytes of the chunks in the window.", kGauge, "bytes_current"},
  };
  const std::vector<CounterSpec> of_readers = chunk_reader_counters();
  counters.insert(counters.end(), of_readers.begin(), of_readers.end());
  const std::initializer_list<CounterSpec> of_weights = {
      {"weighted_rejected", "Draws that were refused by the weight of the chunk."},
      {"chunks_weighed", "Chunks that were read for their weight."},
      {"weights_known", "Draws whose weight needed no read."},
      {"chunk_weights", "Draws that were decided by weight."},
      {"chunk_weight_sum_millionths", "Sum of the weights that decided draws, in millionths."},
      {"chunk_weight_min_millionths", "The smallest of these weights, in millionths.", kGauge},
      {"chunk_weight_max_millionths", "The largest of these weights, in millionths.", kGauge},
      {"chunk_weight_latest_millionths", "The latest of these weights, in millionths.", kGauge},
  };
  counters.insert(counters.end(), of_weights);
  return counters;
}

}  // namespace

StageType shuffling_chunk_pool_type() {
  StageType type;
  type.kind = "shuffling_chunk_pool";
  type.inputs = {{"input", "sources"}};
  type.outputs = {{"output", "chunks"}};
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>&,
                       std::vector<PortSpec>& outputs) {
    add_frames_output(stage.config.shuffling_chunk_pool(), outputs);
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    tell_of_frames(stage.config.shuffling_chunk_pool(), outputs);
  };
  type.counters = pool_counters();
  type.texts = {{.name = "anchor",
                 .help = "The sort key that chunks_since_anchor counts from.",
                 .setting = "chunk_anchor",
                 .answer = "chunk_pool_response.chunk_anchor"}};
  type.answers = {"chunk_pool_request"};
  type.problems = [](const StageView& stage) {
    const ShufflingChunkPoolConfig& own = stage.config.shuffling_chunk_pool();
    std::vector<Problem> problems;
    add_choice_problems(own.frames(), "frames", problems);
    if (own.has_hanse_sampling_gamma() && !own.has_hanse_sampling_threshold()) {
      problems.push_back(
          {.field = "hanse_sampling_gamma",
           .text = "hanse_sampling_gamma does nothing without hanse_sampling_threshold, whose "
                   "exponent it is: give both, or remove it",
           .warning = true});
    }
    if (own.has_position_sampling() && own.has_hanse_sampling_threshold()) {
      problems.push_back({"position_sampling",
                          "chunks are accepted by weight or by their number of records "
                          "(hanse_sampling_threshold), not by both: remove one"});
    }
    if (own.has_weighted_sampling_gamma() && !own.has_position_sampling()) {
      problems.push_back({"weighted_sampling_gamma",
                          "weighted_sampling_gamma is the exponent of weights, but there are none: "
                          "give position_sampling, or remove it"});
    }
    if (own.chunk_anchor().size() > ChunkWindow::kAnchorBytes) {
      problems.push_back(
          {"chunk_anchor", fmt::format("chunk_anchor has {} characters; the name of a file has at "
                                       "most {}",
                                       own.chunk_anchor().size(), ChunkWindow::kAnchorBytes)});
    }
    if (own.has_store_directory() && !own.has_store_bytes()) {
      problems.push_back({"store_directory",
                          "store_directory needs store_bytes, which limits what is kept there"});
    }
    return problems;
  };
  type.nodes = [](const StageView& stage) {
    const ShufflingChunkPoolConfig& own = stage.config.shuffling_chunk_pool();
    NodeSpec window;
    StateLayout layout;
    (void)ChunkWindow::State(layout, own.chunk_pool_size());
    window.state_bytes = layout.bytes() + kBankBytesMin;
    window.state_bytes_max = layout.bytes() + kBankBytesMax;
    window.inputs = {{.port = "input", .from = "", .block = 1},
                     {.port = "rejects", .from = "read.rejects", .block = 1}};
    window.outputs = {chunk_tasks_output()};
    if (own.has_position_sampling()) {
      window.inputs.push_back({.port = "weights", .from = "weigh.weights", .block = 1});
      window.outputs.push_back(chunk_tasks_output());
      window.outputs.back().port = "weigh";
    }
    window.state_version = 4;
    window.weight = 0.02;
    window.redraws = true;
    // One: a second call could write a bank that the first one has just left and a dead lane would
    // still need.
    window.steps_per_commit = 1;
    window.entries_per_step = 160;
    window.create = [](const StageContext& context) {
      return std::make_unique<ChunkWindow>(context);
    };

    const NodeSpec read =
        chunk_reader_node(own, stage.links, own.store_bytes(), own.store_directory());
    std::vector<NodeSpec> nodes = {window, read};
    if (own.has_position_sampling()) nodes.push_back(chunk_weigher_node(own));
    return nodes;
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 20000 } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
