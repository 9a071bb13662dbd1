// Keeps a window of the newest chunks and draws from it at random, each chunk once per pass.
//
//   input    sources  from the loader
//   output   chunks   packed frames of a game; ChunkRecord tells the use
//   inside   tasks    window lane -> reading lanes; rejects, reading lanes -> window lane
//   arena    (window lane) the stream shuffler, and the table of sources with 32 bytes per chunk;
//   grows in steps; the reading lanes have none: chunk_reader.h
//
// Until the scan is complete, sources are collected; only as many of the newest (by file name) are
// kept as the window needs. The window has as many of the newest chunks as chunk_pool_size,
// window_positions and window_bytes allow, all of them. Then they are numbered oldest first, and
// every chunk of the window is drawn once per pass; sources that arrive later join the pass under
// way and push the oldest out. A file that is output again (rewritten) replaces what it had. In a
// finite run the pool draws when its input has ended (what loaders without an order put behind the
// marker belongs to the scan) and ends after `epochs` passes; chunks outside of the window are not
// used and said so.
//
// The anchor is a sort key; chunks that came behind it are counted, so that a trainer can wait for
// new ones (StageControlRequest). Of the files that are there at the start those with a larger key
// are behind it, and then every one that comes.
//
// With hanse_sampling_threshold a chunk that was drawn is accepted or passed over by its number of
// records; passed over, it has been drawn in this pass, and not used.
//
// A pass in which every chunk was passed over is a state of its own: the pool says why it gives
// nothing, in its note, in the log after 1, 10, 100 ... such passes, and by gives_nothing. Where
// about nothing can be hoped for (less than one chunk in a million passes) it goes on slowly.
//
// A chunk that cannot be used leaves the draws for good. In an endless run one whose file cannot be
// opened or read (a directory that is moved, unmounted or covered, a disk that fails) does not: it
// is passed over, its file is looked at again after half a second, then less and less often, and
// once it is there the chunk is drawn as before. A pass in which all were passed over for that is
// said, as above, and the next one waits.
//
// With position_sampling it is accepted or passed over by what its positions weigh together. Chunks
// are drawn ahead, weighed by lanes of their own (chunk_weigher.h), and decided on in the order in
// which they were drawn, so it does not matter when an answer comes.
//
// One lane owns the window; `threads` lanes behind it read, inflate and pack. What they draw or
// read does not depend on their number.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ringfeed/worker/control.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/sort_key.h"
#include "workers/kit/stream_shuffler.h"
#include "workers/lc0/records.h"
#include "workers/lc0/weighed_games.h"

namespace ringfeed {

StageType shuffling_chunk_pool_type();

// With what probability a chunk of so many records is accepted when it is drawn
// (hanse_sampling_threshold): min(1, frames / threshold)^gamma.
[[nodiscard]] double acceptance(std::uint32_t frames, std::uint64_t threshold,
                                double gamma) noexcept;

// The lane that owns the window.
class ChunkWindow final : public Stage {
 public:
  // The table of sources lies in one contiguous bank of the arena, in the order of arrival (while
  // collecting) or of their numbers (then). A bank that is full is copied, without what is dead, to
  // another place, and one store switches.
  struct State {
    State(StateLayout& layout, std::uint64_t pool_size)
        : shuffler(layout, pool_size),
          phase(layout.word()),
          scanned(layout.word()),
          total(layout.word()),
          lower(layout.word()),
          since_anchor(layout.word()),
          anchor_set(layout.word()),
          anchor_bank(layout.word()),
          anchor_bytes(layout.word()),
          anchors{layout.place(kAnchorBytes), layout.place(kAnchorBytes)},
          control(layout),
          candidates(layout.words(kCandidates)),
          decided(layout.word()),
          drawn(layout.word()),
          largest_weight(layout.word()),
          smallest_weight(layout.word()),
          passes(layout.word()),
          bank(layout.word()),
          bank_bytes(layout.word()),
          front(layout.word()),
          used(layout.word()),
          banks(layout.place(0)) {}
    StreamShuffler shuffler;
    Word phase;         // 0 collecting, 1 drawing
    Word scanned;       // 1 once the scan is complete, in a finite run
    Word total;         // chunks numbered so far
    Word lower;         // number of the oldest chunk in the window
    Word since_anchor;  // chunks that came behind the anchor
    Word anchor_set;    // 1 once it has been set; before that it is the configuration's
    Word anchor_bank;   // where it stands
    Word anchor_bytes;
    Place anchors[2];
    ControlBox control;
    // With weights: the chunks that were drawn and are still to be decided on, in their order.
    Words candidates;      // their numbers; number n of all candidates at n mod kCandidates
    Word decided;          // candidates so far
    Word drawn;            // candidates so far
    Word largest_weight;   // of those that were decided on; a float
    Word smallest_weight;  // the same, in the lower half; 0: none yet
    Word passes;           // exhausted
    Word bank;             // offset of the present bank from `banks`
    Word bank_bytes;       // its size; 0: none yet
    Word front;            // offset in the bank of the oldest source kept
    Word used;             // bytes of the bank in use
    Place banks;           // to the end of the arena
  };

  // Longest name that an anchor keeps.
  static constexpr std::uint64_t kAnchorBytes = 1024;
  // Draws that one step makes at most until it has a chunk that is accepted.
  static constexpr std::uint32_t kDrawsPerStep = 8;
  // Chunks that are weighed ahead; fewer than the queue of the weighing lanes takes.
  static constexpr std::uint64_t kCandidates = WeighedGames::kAhead;

  explicit ChunkWindow(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  [[nodiscard]] int poll_ms() const noexcept override {
    return hopeless_ ? 1000 : all_away_ ? 500 : 50;
  }
  [[nodiscard]] const ControlBox* control_box() const noexcept override { return &state_.control; }
  void control(Step& step, const StageControlRequest& request,
               StageControlResponse& response) noexcept override;

 private:
  // How much some chunks are.
  struct Extent {
    std::uint64_t chunks = 0;
    std::uint64_t positions = 0;
    std::uint64_t bytes = 0;
    void operator+=(const Extent& other) noexcept {
      chunks += other.chunks;
      positions += other.positions;
      bytes += other.bytes;
    }
    void operator-=(const Extent& other) noexcept {
      chunks -= other.chunks;
      positions -= other.positions;
      bytes -= other.bytes;
    }
  };
  // A source as it stands in the bank; its chunks and its path follow.
  struct Entry {
    std::uint64_t entry_bytes;
    std::uint64_t start;        // number of its first chunk; once drawing
    std::uint64_t first_chunk;  // index in the file
    std::uint32_t chunk_count;
    std::uint32_t path_bytes;
    std::uint64_t dead;  // 1: not wanted while collecting
  };
  static_assert(sizeof(Entry) == 40);
  struct Source {
    std::uint64_t offset;  // of its entry from the start of the bank
    std::uint64_t start;
    std::uint32_t chunk_count;
    Extent extent;  // while collecting
  };
  // By sort key, and files of the same name by their paths.
  struct ByKey {
    KeyLess newer;
    bool operator()(const std::string& left, const std::string& right) const noexcept {
      const std::string_view a = sort_key(left);
      const std::string_view b = sort_key(right);
      return a != b ? newer(a, b) : left < right;
    }
  };
  // A file that could not be opened or read, as this process knows it.
  using Clock = std::chrono::steady_clock;
  struct AwayFile {
    bool back = false;
    std::uint64_t bytes = 0;         // it had when it was looked at
    Clock::time_point look_at = {};  // while it is away
    Clock::time_point since = {};    // it is back
    Clock::duration pause = std::chrono::milliseconds(500);
    void wait(Clock::time_point now);
  };
  using Collected = std::multimap<std::string, Source, ByKey>;

  void rebuild(const std::byte* state, std::uint64_t bank, std::uint64_t front, std::uint64_t used);
  StepStatus take_source(Step& step, const Record& record) noexcept;
  StepStatus take_reject(Step& step, const Record& record) noexcept;
  StepStatus take_marker(Step& step, const Record& marker) noexcept;
  StepStatus begin_drawing(Step& step) noexcept;
  StepStatus draw_chunk(Step& step) noexcept;
  StepStatus draw_one(Step& step, bool* passed_over) noexcept;
  // The number of the next chunk; none: returns at once what `status` says. `waits`: others that
  // were drawn before are still to be decided on.
  [[nodiscard]] std::optional<std::uint64_t> next_number(Step& step, bool waits,
                                                         StepStatus& status) noexcept;
  [[nodiscard]] bool put_task(Step& step, OutPort port, const Source& source,
                              std::uint64_t number) noexcept;
  StepStatus give(Step& step, const Source& source, std::uint64_t number) noexcept;
  StepStatus draw_weighted(Step& step) noexcept;
  StepStatus decide_one(Step& step) noexcept;
  StepStatus add_candidate(Step& step) noexcept;
  StepStatus take_weight(Step& step, const Record& record) noexcept;
  [[nodiscard]] Word weight_word(const Step& step, const Source& source,
                                 std::uint64_t number) const noexcept;
  void set_aside(Step& step, const Source& source, std::uint64_t number, bool away) noexcept;
  [[nodiscard]] bool is_back(Step& step, const Source& source, std::uint64_t number) noexcept;
  void say_away(Step& step) noexcept;
  [[nodiscard]] bool accepts(Step& step, std::uint32_t frames) noexcept;
  bool move_bank(Step& step, std::uint64_t extra_bytes) noexcept;
  static std::string entry_path(const std::byte* at, const Entry& entry);
  void forget_path(const std::byte* entry_at, std::uint64_t value) noexcept;
  void append(Step& step, const Record& record) noexcept;
  void prune_collected(Step& step) noexcept;
  bool anything_usable(const Step& step) const noexcept;
  void begin_pass() noexcept;
  void end_pass(Step& step) noexcept;
  void say_barren(const Step& step) noexcept;
  const Source* find(std::uint64_t global_index) const noexcept;
  [[nodiscard]] Word chunk_word(const Step& step, const Source& source,
                                std::uint64_t index) const noexcept;
  static std::uint64_t limit(bool given, std::uint64_t value) noexcept;
  static ChunkPlace place_at(const std::byte* bank, const Source& source,
                             std::uint64_t index) noexcept;
  static Extent extent_of(const ChunkPlace& place) noexcept;
  static Extent extent_of(const std::byte* at, const Entry& entry) noexcept;
  [[nodiscard]] bool fills(const Extent& extent) const noexcept;
  std::uint64_t move_lower(Step& step, std::uint64_t total) noexcept;
  void show_window(Step& step) noexcept;
  void show_weight(Step& step, float weight, float largest) noexcept;
  [[nodiscard]] std::string anchor(const Step& step) const;
  void set_anchor(Step& step, std::string_view key) noexcept;
  void count_since_anchor(Step& step, std::uint64_t chunks) noexcept;
  void say(const Step& step) noexcept;

  StageContext context_;
  Extent limits_;
  std::uint64_t epochs_;
  State state_;
  InPort in_;
  InPort rejects_;
  OutPort tasks_;
  bool weighted_;
  InPort weights_;  // these two only if weighted
  OutPort weigh_;
  Counter sources_kept_;
  Counter chunks_in_window_;
  Counter chunks_kept_;
  Counter chunks_total_;
  Counter chunks_dropped_;
  Counter reshuffles_;
  Counter epochs_ended_;
  Counter chunks_outside_;
  Counter draws_;
  Counter hanse_rejected_;
  Counter weighted_rejected_;
  // Of chunks that were decided on by weight.
  Counter weights_known_;
  Counter chunk_weights_;
  Counter weight_sum_;
  Counter weight_min_;
  Counter weight_max_;
  Counter weight_latest_;
  Counter positions_in_window_;
  Counter bytes_in_window_;
  Counter chunks_since_anchor_;
  Counter gives_nothing_;
  KeyLess newer_;
  // Caches of the bank.
  std::deque<Source> sources_;  // while drawing: by start
  Collected collected_;         // while collecting
  Extent collected_extent_;
  Extent window_;  // while drawing: of the chunks in the window
  std::unordered_multimap<std::string, std::uint64_t>
      by_path_;  // path -> start (drawing) or offset (collecting)
  bool waiting_for_usable_ = false;
  // Of the pass under way, for what is said of it: what is given does not depend on them, so they
  // need not outlive the process.
  bool pass_whole_ = false;  // this process has seen its begin
  std::uint64_t pass_given_ = 0;
  std::uint64_t pass_refused_ = 0;
  std::uint64_t pass_away_ = 0;
  bool all_away_ = false;  // the last pass gave nothing for that
  std::unordered_map<std::string, AwayFile> away_;
  std::uint64_t barren_passes_ = 0;  // in a row
  std::uint64_t barren_passes_ever_ = 0;
  std::uint64_t said_next_ = 0;  // so many of them are to be spoken of again
  bool hopeless_ = false;
  bool pauses_ = false;  // before the next draw
  bool gives_ = false;   // gives_nothing is known to be 0
  std::uint64_t said_at_ = 0;
};

}  // namespace ringfeed
