// A lane: one thread that runs one stage, step by step, over its rings and its arena.
//
// The loop: call the stage, up to steps_per_commit times; commit; wake the neighbours for whom
// enough has gathered; and if the stage has nothing to do, ring everybody who is still owed a
// wake-up and sleep.
//
// Poison. While the stage is in step(), the page names the input record that it looked at last. If
// the worker dies there too often, the supervisor condemns the record (quarantine_key), and the
// next incarnation sets it aside, in a step of its own: what was done before it is committed first,
// so that no death on another record can bring it back.
//
// How far it is stands in the runtime words of its arena (arena.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/feed_producer.h"
#include "ringfeed/shm/journal.h"
#include "ringfeed/worker/random.h"
#include "ringfeed/worker/stage.h"
#include "workers/runtime/ports.h"

namespace ringfeed {

using shm::kDrawsWord;
using shm::kFinishedWord;
using shm::kInputWords;
using shm::kOpenSlotWord;
using shm::kOutputWords;
using shm::kPortsMax;

constexpr shm::WordRef runtime_word(std::uint64_t offset) noexcept {
  return shm::word_ref(shm::kArenaSegment, shm::kRuntimeWordsOffset + offset);
}

// A record that is set aside.
struct DeadLetter {
  std::string input;  // the port
  std::uint64_t key = 0;
  shm::RecordView record;
};

// Everything that a lane is made of, gathered by whoever maps the memory (worker.cc, tests).
struct LaneParts {
  std::string name;  // "pool.read.1"
  shm::LanePage* page = nullptr;
  shm::Bell* bell = nullptr;
  shm::Arena* arena = nullptr;
  shm::Stamps stamps;
  std::vector<shm::WritableSegment>
      segments;  // by shm::LaneSegment; kLanePageSegment is the page alone
  std::vector<InputPort> inputs;
  std::vector<std::string> input_names;
  std::vector<OutputPort> outputs;
  std::vector<std::string> output_names;
  std::vector<std::string> counters;        // names that the stage may ask for
  std::unique_ptr<shm::FeedProducer> feed;  // only if an output is the feed
  std::uint64_t random_key = 0;
  std::uint32_t steps_per_commit = 1;
  std::uint32_t entries_per_step = 32;
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;
  // Keeps a condemned record for people, before the step that sets it aside is committed; may be
  // called again for the same record after a death.
  std::function<void(const DeadLetter&)> keep_dead_letter;
  std::function<void(std::string_view)> warn;  // one line in the worker's log; may be empty
};

// What a process tells its lanes while they run; read between two steps.
struct LaneOrders {
  std::atomic<bool> leave{false};
  std::atomic<bool> alone{false};  // without a supervisor: nobody would end a lane's parking
};

// A message for a lane's stage.
struct LaneMessage {
  std::uint64_t key = 0;  // the same when it is sent again; not 0
  std::string request;    // a serialized StageControlRequest
  // Called once, by the lane's thread or by post(), with a serialized StageControlResponse once
  // what it says is committed; with nothing if the lane has ended, or cannot read the request.
  std::function<void(std::optional<std::string>)> answer;
};

class LaneRuntime {
 public:
  explicit LaneRuntime(LaneParts parts);
  // Counters that a lane of any stage may have beside those of its stage.
  [[nodiscard]] static const std::vector<CounterSpec>& own_counters();

  // Carries out what the last incarnation committed, takes up its cursors, and tells the
  // neighbours. Before the stage is made: its constructor reads committed state.
  void attach();
  // The context that the stage is made with; complete it with configuration and logging.
  void describe(StageContext& context);
  void set_stage(std::unique_ptr<Stage> stage) {
    stage_ = std::move(stage);
    takes_messages_ = stage_->control_box() != nullptr;
  }

  // Runs until the lane has finished, or is told to stop or to leave. True: finished for good.
  bool run(const LaneOrders& orders);
  // One round: as many calls as one commit takes. For tests that interleave lanes by hand.
  enum class Round { kWorked, kWaits, kIdle, kFinished };
  Round round() noexcept;

  [[nodiscard]] const std::string& name() const noexcept { return parts_.name; }
  [[nodiscard]] bool finished() const noexcept;
  // Does the stage answer messages? Before run() and while it runs, any thread.
  [[nodiscard]] bool takes_messages() const noexcept { return takes_messages_; }
  // Has the lane answer a message between two steps; any thread. A parked lane does so when it goes
  // on.
  void post(LaneMessage message);
  // Takes up how many lanes the nodes have, which changes only while all lanes stand still.
  void follow_lanes() noexcept;
  void note(std::string_view text, std::uint64_t done = 0, std::uint64_t total = 0) noexcept;

 private:
  friend class Step;

  bool skip_empty_units() noexcept;
  bool pass_by(InputPort& port, const shm::RecordView& record) noexcept;
  void keep_dead_letter(std::uint32_t port, std::uint64_t key,
                        const shm::RecordView& record) noexcept;
  bool set_aside() noexcept;
  void begin_record(std::uint64_t key) noexcept;
  void begin_attempt() noexcept;
  void roll_back() noexcept;
  bool commit(std::uint64_t now, bool closing = false) noexcept;
  void abandon() noexcept;
  void finish() noexcept;
  void wake_neighbours(std::uint64_t now) noexcept;
  void settle_debts() noexcept;
  // `desired`: what the round that found nothing to do was asked for.
  void sleep(int timeout_ms, bool idle, std::uint32_t desired) noexcept;
  void park(const LaneOrders& orders) noexcept;
  bool end_followers() noexcept;
  void answer_messages() noexcept;
  void refuse_messages() noexcept;
  Counter counter(std::string_view name) noexcept;
  Counter late_counter(std::string_view name) noexcept;
  Status grow(std::uint64_t state_bytes) noexcept;

  template <typename Ring>
  void touch(Ring& ring) noexcept;

  LaneParts parts_;
  shm::Journal journal_;
  std::unique_ptr<Stage> stage_;
  Random random_;
  Random foresight_;  // the same sequence, for Step::foresee()
  std::uint64_t committed_draws_ = 0;
  std::uint64_t saved_draws_ = 0;
  std::uint64_t attempt_ = 1;
  std::vector<InputPort::Ring*> touched_inputs_;
  std::vector<OutputPort::Ring*> touched_outputs_;
  shm::Journal::Savepoint saved_{};
  std::uint32_t counters_ = 0;
  std::optional<Counter> dead_letters_;
  std::uint64_t growths_refused_ = 0;  // in a row
  bool feed_full_ = false;
  std::uint64_t quarantine_ = 0;  // the condemned record, 0: none
  bool condemned_met_ = false;    // it is at the head of its port
  bool aside_in_step_ = false;    // it stands behind others that the stage takes in one step
  bool skipped_ = false;
  bool published_ = false;  // a batch, in this commit
  // Where a record is written that an edge which may drop has no room for (one output at a time).
  std::vector<std::byte> discarded_;
  bool owes_ = false;
  std::uint64_t owes_since_ns_ = 0;
  std::uint64_t last_ns_ = 0;
  // Messages that came and were not answered yet.
  bool takes_messages_ = false;
  std::atomic<bool> posted_{false};
  std::mutex messages_mutex_;
  std::vector<LaneMessage> messages_;
  bool over_ = false;  // nobody answers any more
};

}  // namespace ringfeed
