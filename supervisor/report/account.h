// What a supervisor notes while a feed runs, for the report at its end: who trained and waited,
// what limited, when epochs ended, what happened, and curves. All of it is bounded, however long
// the run.
//
// Totals are none of this: counters in shared memory have them, also of the time before this
// supervisor took the feed over. Times are seconds since it began.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/metrics/talk.h"
#include "supervisor/report/curves.h"

namespace ringfeed {
class BottleneckProto;
}

namespace ringfeed::report {

// Something that happened, as it stands in the log.
struct Happening {
  double at_s = 0;
  metrics::Level level = metrics::Level::kInfo;
  std::string name;    // "worker_died"
  std::string values;  // "group=pool signal=9 …"
  std::string words;   // of a process that died: the last that it said
};
// "9" of "group=pool signal=9"; without its quotation marks; "" if there is no such key.
[[nodiscard]] std::string value_of(std::string_view values, std::string_view key);

// A trainer, from its joining to its leaving. One that comes back is another one.
struct TrainerKey {
  std::string output;  // alias
  std::string group;
  std::uint32_t member = 0;
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;
  friend auto operator<=>(const TrainerKey&, const TrainerKey&) = default;
};
struct TrainerNote {
  std::string client;
  std::uint64_t taken = 0;
  std::uint64_t done = 0;
  std::uint64_t waited_ns = 0;
  double first_s = 0;
  double last_s = 0;
  std::string fate;  // event of its leaving; "": it was there to the end
};

struct EpochNote {
  std::string stage;
  std::uint64_t number = 0;
  double at_s = 0;
  std::vector<std::uint64_t> batches;  // published by then, of each output
};

struct LimitKey {
  std::string output;
  int kind = 0;  // BottleneckProto::Kind
  std::string stage;
  friend auto operator<=>(const LimitKey&, const LimitKey&) = default;
};
struct LimitNote {
  double seconds = 0;
  std::string sentence;  // of the last time
};

class Account {
 public:
  // The first and the last that happened stay; between them they are counted.
  static constexpr std::size_t kFirst = 150;
  static constexpr std::size_t kLast = 350;
  static constexpr std::size_t kTrainersMax = 1'000;
  static constexpr std::size_t kEpochsMax = 2'000;
  static constexpr std::size_t kLines = 60;
  static constexpr std::size_t kTextBytes = 2'000;  // longer texts are cut

  // The curves are, in this order: batches a second of each output; the share of their time that
  // its trainers waited; the share of its slots in use; bytes of the processes.
  // `fresh`: the feed begins with it, and no epoch has ended yet.
  Account(std::vector<std::string> outputs, std::uint64_t begun_ms, bool fresh)
      : outputs_(std::move(outputs)),
        begun_ms_(begun_ms),
        fresh_(fresh),
        curves_(3 * outputs_.size() + 1) {}

  [[nodiscard]] std::size_t rate_of(std::size_t output) const { return output; }
  [[nodiscard]] std::size_t waits_of(std::size_t output) const { return outputs_.size() + output; }
  [[nodiscard]] std::size_t slots_of(std::size_t output) const {
    return 2 * outputs_.size() + output;
  }
  [[nodiscard]] std::size_t memory() const { return 3 * outputs_.size(); }

  // ---- what is noted; `now_ms` never falls
  void happened(std::uint64_t now_ms, metrics::Level level, std::string_view name,
                std::string_view values);
  // Of the process whose death happened last.
  void last_words(std::string words);
  // A line of a worker's log.
  void line(std::string_view text);
  // The numbers of a trainer's page as they are now. Returns what its waiting has grown by.
  std::uint64_t trainer(std::uint64_t now_ms, const TrainerKey& key, const TrainerNote& now);
  void limit(const std::string& output, const BottleneckProto& found, double seconds);
  // Epochs that the stage has ended by now. What it had ended before it was first asked is no news,
  // unless the feed is fresh: a short epoch is over before the first look.
  void epochs(std::uint64_t now_ms, const std::string& stage, std::uint64_t ended,
              const std::vector<std::uint64_t>& batches);
  void point(std::uint64_t begin_ms, std::uint64_t end_ms, const std::vector<double>& values);

  // ---- what is known
  [[nodiscard]] double seconds(std::uint64_t at_ms) const {
    return static_cast<double>(at_ms - std::min(at_ms, begun_ms_)) / 1e3;
  }
  [[nodiscard]] const std::vector<std::string>& outputs() const { return outputs_; }
  [[nodiscard]] const std::deque<Happening>& first() const { return first_; }
  [[nodiscard]] const std::deque<Happening>& last() const { return last_; }
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }
  [[nodiscard]] std::uint64_t lines_left_out() const { return lines_left_out_; }
  [[nodiscard]] const std::map<TrainerKey, TrainerNote>& trainers() const { return trainers_; }
  // Those for whom there was no place in the list, together.
  [[nodiscard]] const TrainerNote& other_trainers() const { return others_; }
  [[nodiscard]] std::uint64_t trainers_left_out() const { return trainers_left_out_; }
  [[nodiscard]] const std::map<LimitKey, LimitNote>& limits() const { return limits_; }
  [[nodiscard]] const std::vector<EpochNote>& epochs() const { return epochs_; }
  [[nodiscard]] std::uint64_t epochs_left_out() const { return epochs_left_out_; }
  // Epochs that had ended before, by stage.
  [[nodiscard]] const std::map<std::string, std::uint64_t>& epochs_before() const {
    return epochs_before_;
  }
  [[nodiscard]] const Curves& curves() const { return curves_; }

 private:
  void note_fate(double at_s, std::string_view name, std::string_view values);

  std::vector<std::string> outputs_;
  std::uint64_t begun_ms_;
  bool fresh_;
  std::deque<Happening> first_;
  std::deque<Happening> last_;
  std::uint64_t left_out_ = 0;
  std::deque<std::string> lines_;
  std::uint64_t lines_left_out_ = 0;
  std::map<TrainerKey, TrainerNote> trainers_;
  TrainerNote others_;
  std::uint64_t trainers_left_out_ = 0;
  std::map<LimitKey, LimitNote> limits_;
  std::vector<EpochNote> epochs_;
  std::uint64_t epochs_left_out_ = 0;
  std::map<std::string, std::uint64_t> epochs_before_;
  std::map<std::string, std::uint64_t> epochs_seen_;
  Curves curves_;
};

}  // namespace ringfeed::report
