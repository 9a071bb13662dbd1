// All that a stage author reads.
//
// A stage is a class with one method, step(): it looks at records of its inputs, outputs records,
// changes words of its lasting memory, and says what came of it. The runtime makes all of that
// happen at once, or, if the process is killed, not at all: then the next process finds everything
// as before and calls step() again.
//
// So a step must be replayable. It may not have effects outside of what Step offers, and whatever
// it must remember lives in the lane's arena: single words that step.store() changes, and bulk
// bytes that no word refers to yet (step.fill). Private members are caches: they must be
// rebuildable from the arena in the constructor.
//
//   StepStatus Doubler::step(Step& step) noexcept {
//     const std::optional<Record> record = step.peek(in_);
//     if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
//     if (!step.put(out_, record->bytes) || !step.put(out_, record->bytes)) {
//       return StepStatus::kNoRoom;
//     }
//     step.store(seen_, step.load(seen_) + 1);
//     return step.consume(*record);
//   }
//
// A step that returns anything but kDone leaves no trace, whatever it did before it noticed.
// Several calls of step() may share one commit (NodeSpec::steps_per_commit): bulk bytes that one
// call gave up must not be written by another call of the same commit, so a pool keeps at least
// steps_per_commit spare places and takes them in turn.
//
// Order. The records between two stages form *units*; unit u goes to consuming lane u mod C and
// comes from producing lane u mod P, so any number of lanes gives one order (dispatch ORDERED). A
// stage that turns each input unit into one output unit (UnitRule::kFollow) need not do anything
// about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/ring.h"
#include "ringfeed/worker/counters.h"
#include "ringfeed/worker/facts.h"
#include "ringfeed/worker/options.h"

namespace ringfeed {

class DataLoaderConfig;
class StageConfig;
class StageControlRequest;
class StageControlResponse;
class ControlBox;
class BatchSchema;
class BatchView;
struct BatchLayout;

enum class StepStatus {
  kDone,     // something was consumed, output or stored: commit it
  kNoInput,  // nothing to work on now
  kNoRoom,   // an output has no room now
  kIdle,     // a source with nothing to do now: call again after poll_ms
  kAgain,    // take this step back and call again at once: what is private knows better now
  kEnd,      // this lane will never output anything again: commit, and close the outputs
};

struct InPort {
  std::uint32_t index = 0;
};
struct OutPort {
  std::uint32_t index = 0;
};

// A record at the head of an input; its bytes stay readable until the step's end.
struct Record {
  std::span<const std::byte> bytes;
  std::uint64_t tag[2];  // lineage: where it came from
  std::uint64_t user;    // a number for the stages' own use
  InPort port;
};
using RecordInfo = shm::RecordInfo;

// A 64-bit word of the arena. Its value is 0 in a new feed.
struct Word {
  std::uint64_t offset = 0;  // from the start of the stage's state
};
// A row of words.
struct Words {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  Word operator[](std::uint64_t index) const noexcept {
    RF_CHECK(index < count, index, count);
    return {offset + 8 * index};
  }
};
// Bulk bytes of the arena.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Lays out a stage's state: the same calls give the same places in every incarnation, and tell how
// much memory a stage needs before there is any.
class StateLayout {
 public:
  Word word() noexcept { return {take(8, 8)}; }
  Words words(std::uint64_t count) noexcept { return {take(8 * count, 8), count}; }
  Place place(std::uint64_t bytes, std::uint64_t alignment = 64) noexcept {
    return {take(bytes, alignment), bytes};
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::uint64_t take(std::uint64_t bytes, std::uint64_t alignment) noexcept {
    const std::uint64_t at = shm::align_up(bytes_, alignment);
    bytes_ = at + bytes;
    return at;
  }
  std::uint64_t bytes_ = 0;
};

struct Counter {
  std::uint32_t index = 0;
};

class LaneRuntime;

// See Step::works_on(): or'ed to the number of a record.
inline constexpr std::uint64_t kManyRecords = shm::kManyRecords;

// One step of one lane.
class Step {
 public:
  explicit Step(LaneRuntime& lane) noexcept : lane_(lane) {}

  // ---- inputs
  // The next record of the port, in the order of the feed; nullopt: nothing there now. Consumed
  // records are followed by the next one, so a step may gather many.
  std::optional<Record> peek(InPort port) noexcept;
  // Moves past the record that peek() returned last for its port. kDone; or kNoRoom if the unit
  // that it ends could not be ended downstream: return it.
  StepStatus consume(const Record& record) noexcept;
  // Has this port come to its end, with everything consumed?
  bool ended(InPort port) noexcept;

  // ---- records that the stage has consumed and keeps in its lasting memory
  // A death is the fault of the record at which peek() looked last. A stage that works on records
  // of its own memory names them: by the number that key() gave when they were at the head of a
  // port. It is one of its record's alone as long as the feed lives, and never 0.
  [[nodiscard]] std::uint64_t key(const Record& record) noexcept;  // peek() returned it last
  // A death from here to the end of the step is this record's fault; with kManyRecords: of several
  // together, of which it is the first.
  void works_on(std::uint64_t key) noexcept;
  // Such a number that has killed the worker too often; 0: there is none. The stage lets go of the
  // record, or of all of them, in a step of its own, and gives each to set_aside(). Numbers that it
  // does not have any more are to be ignored.
  [[nodiscard]] std::uint64_t condemned() const noexcept;
  // The record becomes a dead letter with this step.
  void set_aside(const Record& record, std::uint64_t key) noexcept;

  // ---- outputs
  // Copies the bytes into a new record; false: no room now, return kNoRoom.
  bool put(OutPort port, std::span<const std::byte> bytes, const RecordInfo& info = {}) noexcept;
  // Room to write a record of up to `bytes_max` in place, or an empty span: no room now. Then
  // put_reserved().
  std::span<std::byte> reserve(OutPort port, std::uint64_t bytes_max) noexcept;
  void put_reserved(OutPort port, std::uint64_t bytes, const RecordInfo& info = {}) noexcept;
  // Ends the unit under way (UnitRule::kExplicit only); false: no room now.
  bool end_unit(OutPort port) noexcept;
  // The largest record that the port takes, in bytes.
  std::uint64_t record_bytes_max(OutPort port) const noexcept;

  // ---- batches (the stage whose output is the feed)
  // The slot for this lane's next batch: the one under construction, or a free one; empty: none is
  // free, return kNoRoom. Its bytes may be written over several steps, each of which asks for it
  // anew; keep in a word how far.
  std::span<std::byte> open_batch() noexcept;
  // The batch in the slot is complete: trainers get it when this step is committed. Once a step,
  // and no open_batch() after it: the next slot is opened by the next step.
  // `ragged`: the lengths that vary from batch to batch, at most 16 (TensorSpec.shape).
  void publish_batch(std::uint32_t rows, std::uint64_t bytes, const std::uint64_t (&token)[2],
                     std::span<const std::uint32_t> ragged = {}) noexcept;
  // Number of the batch that open_batch() is for, from 1.
  std::uint64_t batch_number() const noexcept;
  // Of the slot that open_batch() has given, among all of the feed, from 0.
  [[nodiscard]] std::uint32_t batch_slot() const noexcept;

  // ---- lasting memory
  std::uint64_t load(Word word) const noexcept;
  void store(Word word, std::uint64_t value) noexcept;
  [[nodiscard]] const std::byte* bytes(std::uint64_t state_offset) const noexcept;
  // Bulk bytes: may be written only where no word refers to before this step, and only those that
  // are named here, in this step.
  [[nodiscard]] std::byte* bytes_to_write(std::uint64_t state_offset, std::uint64_t bytes) noexcept;
  void fill(Place place, std::span<const std::byte> from) noexcept;
  // At least this much state may be touched afterwards, `rather` if there is so much. False: there
  // is no room for it now; return kNoRoom. The runtime logs it once, shows it, counts it
  // (growths_refused) and calls the step again: the feed stands still until somebody makes room.
  bool grow(std::uint64_t state_bytes, std::uint64_t rather = 0) noexcept;
  std::uint64_t state_bytes() const noexcept;

  // ---- chance, counting, circumstances
  // Uniform in [0, bound). Draws are part of the step: one that is done again draws the same.
  std::uint64_t draw(std::uint64_t bound) noexcept;
  // What draw(bound) will give when `ahead` numbers have been drawn before it; in the rare case
  // that one of them has to be drawn again, something else. For fetching memory early, not for
  // decisions.
  [[nodiscard]] std::uint64_t foresee(std::uint64_t bound, std::uint64_t ahead) const noexcept;
  // A counter of the lane changes with the step, exactly.
  void count(Counter counter, std::uint64_t by = 1) noexcept;
  void gauge(Counter counter, std::uint64_t value) noexcept;
  // The feed is asked to end: a source outputs nothing new.
  [[nodiscard]] bool draining() const noexcept;

 private:
  LaneRuntime& lane_;
};

class Stage {
 public:
  virtual ~Stage() = default;
  virtual StepStatus step(Step& step) noexcept = 0;
  // The record will not come again: it has killed the worker too often and is set aside. A stage
  // that keeps in words how far it has come with a record puts them back to where a new one begins;
  // the runtime consumes it.
  virtual void forget(Step& step, const Record& record) noexcept {
    static_cast<void>(step);
    static_cast<void>(record);
  }
  // Of a stage that answers messages (`ringfeed control`): where its answers are kept.
  [[nodiscard]] virtual const ControlBox* control_box() const noexcept { return nullptr; }
  // Answers a message, between two calls of step() and as a step of its own: what it stores is
  // committed together with the answer, so that a message takes effect exactly once. A request that
  // is for another kind of stage alone is not answered: the response stays empty.
  virtual void control(Step& step, const StageControlRequest& request,
                       StageControlResponse& response) noexcept {
    static_cast<void>(step);
    static_cast<void>(request);
    static_cast<void>(response);
  }
  // After kIdle, of a stage that a trainer asks for batches (ringfeed/shm/requests.h): has it
  // asked? Looked at once more before the lane sleeps.
  [[nodiscard]] virtual bool is_asked() const noexcept { return false; }
  // Then: the word that whoever asks changes, and wakes; null: he rings his consumer group's bell.
  [[nodiscard]] virtual const std::atomic<std::uint32_t>* asked_word() const noexcept {
    return nullptr;
  }
  // After kIdle: how long to wait before step() is called again, unless input comes.
  [[nodiscard]] virtual int poll_ms() const noexcept { return 50; }
};

// A configured stage, as the functions of its kind see it.
struct StageView {
  const StageConfig& config;
  const DataLoaderConfig& feed;
  const Links& links;  // to the stages before and behind it, with what they say
};

// What a stage's constructor gets.
struct StageContext {
  const StageConfig& config;
  const DataLoaderConfig& feed;
  const Links& links;
  std::string stage;       // its name in the configuration
  std::uint32_t lane = 0;  // number among the lanes of its node
  std::uint32_t lanes = 1;
  std::uint64_t seed = 0;  // of the feed; for stages that must draw as another program does
  std::uint64_t key = 0;   // of random numbers: from the feed's seed and the stage's name, the same
                           // for all its lanes
  std::uint64_t feed_id = 0;  // tells this feed from all others, also from those of its name
  // The key of another stage of the feed, by its name.
  std::function<std::uint64_t(std::string_view)> key_of = {};
  const std::byte* state =
      nullptr;  // the arena's state, for rebuilding caches; committed values only
  std::uint64_t state_bytes = 0;
  std::function<InPort(std::string_view)> input = {};  // ports by name
  std::function<OutPort(std::string_view)> output = {};
  // A counter of the lane, by the name under which the kind of stage declares it
  // (StageType::counters). A stage that has input and gives nothing of it, by its own rules, sets
  // one named gives_nothing to 1 and says why in its note: `ringfeed why` then gives that as the
  // reason.
  std::function<Counter(std::string_view)> counter = {};
  std::function<void(std::string_view)> note =
      {};  // what a person should know now; shown by `ringfeed status`
  // The same of something that has an end: how much of it is done. Who waits for it sees how far it
  // is and how long it will take.
  std::function<void(std::string_view, std::uint64_t done, std::uint64_t total)> progress = {};
  // One line in the worker's log: "event key=value ...". Events, never traffic.
  std::function<void(std::string_view)> info = {};
  std::function<void(std::string_view)> warn = {};
  // Ends the feed, and does not return: what the stage has met needs a person. Every trainer gets
  // the text. What the step at hand did is not committed.
  std::function<void(std::string_view)> fail = {};

  [[nodiscard]] StageView view() const noexcept { return {config, feed, links}; }
  [[nodiscard]] std::uint64_t load(Word word) const noexcept {
    return reinterpret_cast<const std::atomic<std::uint64_t>*>(state + word.offset)
        ->load(std::memory_order_relaxed);
  }
};

enum class UnitRule {
  kFollow,    // each input unit becomes one output unit, ended by the runtime with it
  kRecord,    // every record that is put is a unit
  kExplicit,  // the stage calls end_unit()
};

struct InputSpec {
  std::string port;
  std::string from;         // "": the stage's own input port; else "node.port" inside the stage
  std::uint64_t block = 1;  // units that one lane takes before the next lane's turn
};
struct OutputSpec {
  std::string port;
  std::string record_type;
  bool exported = true;
  std::uint64_t queue_capacity = 16;
  std::uint64_t queue_bytes = 0;
  int overflow = 0;  // OverflowBehavior
  UnitRule units = UnitRule::kFollow;
};

// NodeSpec::more_lanes of a node that has as many lanes as its stage's `threads` say.
inline constexpr std::string_view kMoreThreads =
    "set threads: {} in the configuration and start a new feed with --fresh";

// A part of a stage that has lanes of its own; most stages are one node.
struct NodeSpec {
  std::string name;  // "" for the stage itself
  std::uint32_t lanes = 1;
  // The most lanes that the node may be scaled to while it runs; 0: their number is fixed. Only for
  // a node with inputs of blocks of 1 whose outputs follow (UnitRule::kFollow, or an edge that may
  // drop), and whose state says nothing but how far the lane is with the record at hand: any lane
  // must make the same of a unit.
  std::uint32_t lanes_max = 0;
  std::uint64_t state_bytes = 0;
  std::uint64_t state_bytes_max = 0;  // 0: does not grow
  // Of what the bytes of the state mean: raise it when that changes, so that no other version of
  // the stage takes them over.
  std::uint32_t state_version = 1;
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  std::uint64_t private_bytes = 0;  // memory that the process takes beside the feed's, at most
  double weight = 1;                // CPU time per record of the feed, relative to other stages
  // Puts out what it holds again and again: its output does not wait for its input, once it is
  // full.
  bool redraws = false;
  // Its output has one unit for each batch of the feed, in order, and it can begin with any of
  // them; DataLoaderConfig.from_batch says with which.
  bool begins_anywhere = false;
  // Name of the counter of messages that change later batches; above 0 they are no function of the
  // configuration.
  std::string steered_counter = {};
  std::uint32_t steps_per_commit = 16;  // calls of step() that may share one commit
  std::uint32_t entries_per_step = 32;  // words that one call may store, at most
  // Each lane has a process of its own, and shares it with no other stage.
  bool process_per_lane = false;
  // What its processes load takes long: the program can be a warm parent of them
  // (supervisor/group/warm_parent.h). Only with process_per_lane.
  bool warm_parent = false;
  // The same, where the warm parent has been started by whoever runs the feed and listens on this
  // Unix socket: no process is started in another way.
  std::string parent_socket = {};
  // Other processes need it as long as the feed runs: a process that replaces one whose lanes had
  // ended makes their stages all the same. They make no step.
  bool serves_when_over = false;
  // Beside ringfeed-worker, what runs the node, with the whole stage group it is in; "": that does.
  std::string program = {};
  // How its user gives it more lanes, for `ringfeed why`; "{}" stands for their number. "": their
  // number cannot be chosen.
  std::string_view more_lanes = {};
  // What else makes it faster, a sentence.
  std::string_view if_slow = {};
  // Of lanes that work when the trainers ask for something: how these ask for more ahead. "": they
  // work on their own.
  std::string_view on_request = {};
  // Empty: this program can tell what the node needs, but not run it.
  std::function<std::unique_ptr<Stage>(const StageContext&)> create;
};

struct PortSpec {
  std::string name;
  std::string record_type;
  // Of an input that no field of the configuration wires: "stage.port". It carries requests back to
  // a stage before, whose output then is the answer; the only way to close a circle.
  std::string from = {};
};
struct Problem {
  std::string field;  // path inside the stage's configuration, "" for the stage as a whole
  std::string text;   // what is wrong; what to do
  // The stage runs all the same: it is allowed, and probably not meant.
  bool warning = false;
};

// What the first of a stage's data is like, for `ringfeed check`.
struct DataLook {
  std::uint64_t files = 0;      // found, those that are passed over among them
  bool files_are_more = false;  // the search ended before it had found all
  std::uint64_t files_passed_over = 0;
  std::uint64_t files_looked_at = 0;
  std::uint64_t samples = 0;           // their first ones
  std::uint64_t samples_left_out = 0;  // of these
  std::vector<Problem> warnings = {};
};

// Stages as people would write them, for its page of the reference and for tests that are the same
// for all kinds.
struct StageExample {
  // A configuration in text format: the stage and what stands before it. Its data is below /data.
  std::string text;
  std::string maker;  // what makes such data: a function of tests/conformance/makers.h
};

// What a kind of stage registers: the field of StageConfig that configures it, its ports, and how
// it is built. The settings that texts and capacities refer to are, in a plug-in, its options.
struct StageType {
  std::string kind;  // name of the field in StageConfig; of a plug-in's stage, its own name
  // Of a plug-in's stage (ringfeed/worker/main.h): what `ringfeed stages` says of it, and its
  // options. Of any other the schema says both.
  std::string text = {};
  std::vector<OptionSpec> options = {};
  std::vector<PortSpec> inputs;
  std::vector<PortSpec> outputs;
  // Adds the ports that follow from the configuration or from what the stages beside it say; may be
  // empty. An input "name[2]" is wired by the third element of the repeated field `name`. Asked
  // twice: before anything is said, for the ports that the configuration wires, and after it.
  std::function<void(const StageView&, std::vector<PortSpec>& inputs,
                     std::vector<PortSpec>& outputs)>
      more_ports;
  // What it says of the records that it outputs, by port; `links` has what is said of its inputs.
  // May be empty.
  std::function<void(const StageView&, PortFacts& outputs)> facts;
  // What it wishes of the records that it reads, by port; `links` has all facts of its inputs, and
  // what is wished of its outputs. May be empty.
  std::function<void(const StageView&, PortFacts& inputs)> wishes;
  std::function<std::vector<NodeSpec>(const StageView&)> nodes;
  // All counters that a lane of it may ask for, in the order in which they are shown.
  std::vector<CounterSpec> counters;
  // Adds those that follow from the configuration; may be empty.
  std::function<void(const StageConfig&, std::vector<CounterSpec>&)> more_counters;
  std::vector<MetricText> texts;                                   // shown beside them
  std::function<std::vector<Problem>(const StageView&)> problems;  // may be empty
  // Reads the first of its data, and no more than takes some seconds. Asked only of a stage that
  // runs. Nothing: its data is elsewhere. May be empty.
  std::function<std::optional<DataLook>(const StageView&)> look;
  // Only of a stage that outputs batches; of a plug-in's stage the second.
  std::function<void(const StageView&, BatchSchema&)> batch;
  std::function<BatchLayout(const StageView&)> batch_layout;
  // Of the same stages: a row of a batch as people read it, for `ringfeed peek`; several lines if
  // it must be. May be empty, and may return nothing (ringfeed/worker/batch_view.h).
  std::function<std::string(const BatchView& batch, std::uint64_t row)> show_row;
  // The fields of StageControlRequest that it answers.
  std::vector<std::string> answers;
  StageExample example;
};

}  // namespace ringfeed
