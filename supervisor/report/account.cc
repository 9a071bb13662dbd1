#include "supervisor/report/account.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "proto/metrics.pb.h"

namespace ringfeed::report {
namespace {

// What is said of the start and the end of processes as a matter of course.
constexpr std::array<std::string_view, 6> kOfCourse{"worker_started",  "worker_ready",
                                                    "worker_finished", "worker_stopped",
                                                    "observer_joined", "signal_ignored"};

std::string cut(std::string_view text) {
  if (text.size() <= Account::kTextBytes) return std::string(text);
  return fmt::format("{}… ({} bytes)", text.substr(0, Account::kTextBytes), text.size());
}

}  // namespace

std::string value_of(std::string_view values, std::string_view key) {
  const std::vector<metrics::LogField> fields = metrics::split_values(values).first;
  const auto found = std::ranges::find(fields, key, &metrics::LogField::name);
  return found == fields.end() ? std::string() : found->value;
}

void Account::happened(std::uint64_t now_ms, metrics::Level level, std::string_view name,
                       std::string_view values) {
  const double at_s = seconds(now_ms);
  if (name.starts_with("trainer_")) note_fate(at_s, name, values);
  if (std::ranges::count(kOfCourse, name) != 0) return;
  Happening one{at_s, level, std::string(name), cut(values), {}};
  if (first_.size() < kFirst) return first_.push_back(std::move(one));
  last_.push_back(std::move(one));
  if (last_.size() <= kLast) return;
  last_.pop_front();
  ++left_out_;
}

void Account::last_words(std::string words) {
  Happening* const one = !last_.empty()    ? &last_.back()
                         : !first_.empty() ? &first_.back()
                                           : nullptr;
  if (one != nullptr) one->words = cut(words);
}

void Account::line(std::string_view text) {
  // Time, level, process, what happened: warnings and errors alone.
  const std::size_t level = text.find(' ');
  if (level == text.npos) return;
  const std::string_view rest = text.substr(level + 1);
  if (!rest.starts_with("warn") && !rest.starts_with("error")) return;
  if (lines_.size() >= kLines) {
    ++lines_left_out_;
    return;
  }
  lines_.push_back(cut(text));
}

void Account::note_fate(double at_s, std::string_view name, std::string_view values) {
  if (name != "trainer_died" && name != "trainer_left") return;
  const std::string output = value_of(values, "output");
  const std::string group = value_of(values, "group");
  const std::string pid = value_of(values, "pid");
  const std::string member = value_of(values, "member");
  for (auto& [key, note] : trainers_) {
    if (key.output == output && key.group == group && fmt::to_string(key.pid) == pid &&
        fmt::to_string(key.member) == member && note.fate.empty()) {
      note.fate = name;
      note.last_s = at_s;
    }
  }
}

std::uint64_t Account::trainer(std::uint64_t now_ms, const TrainerKey& key,
                               const TrainerNote& now) {
  const double at_s = seconds(now_ms);
  const auto found = trainers_.find(key);
  if (found == trainers_.end()) {
    if (trainers_.size() >= kTrainersMax) {
      // The one that has been gone for longest makes room.
      const auto oldest = std::ranges::min_element(trainers_, {}, [](const auto& one) {
        return one.second.fate.empty() ? 1e300 : one.second.last_s;
      });
      others_.taken += oldest->second.taken;
      others_.done += oldest->second.done;
      others_.waited_ns += oldest->second.waited_ns;
      ++trainers_left_out_;
      trainers_.erase(oldest);
    }
    TrainerNote& note = trainers_[key] = now;
    note.first_s = note.last_s = at_s;
    return 0;  // of an adopted one it was long ago
  }
  // A page that its trainer may write: what falls is not believed.
  TrainerNote& note = found->second;
  const std::uint64_t grown = now.waited_ns - std::min(now.waited_ns, note.waited_ns);
  note.taken = std::max(note.taken, now.taken);
  note.done = std::max(note.done, now.done);
  note.waited_ns = std::max(note.waited_ns, now.waited_ns);
  if (!now.client.empty()) note.client = now.client;
  if (note.fate.empty()) note.last_s = at_s;
  return grown;
}

void Account::limit(const std::string& output, const BottleneckProto& found, double seconds) {
  LimitNote& note = limits_[{output, static_cast<int>(found.kind()),
                             found.kind() == BottleneckProto::TRAINERS ? "" : found.stage()}];
  note.seconds += seconds;
  note.sentence = cut(found.sentence());
}

void Account::epochs(std::uint64_t now_ms, const std::string& stage, std::uint64_t ended,
                     const std::vector<std::uint64_t>& batches) {
  const auto [seen, is_new] = epochs_seen_.try_emplace(stage, fresh_ ? 0 : ended);
  if (is_new) epochs_before_[stage] = seen->second;
  // The counter is the stage's to write, so it may be anything.
  for (; seen->second < ended && epochs_.size() < kEpochsMax; ++seen->second) {
    epochs_.push_back({stage, seen->second + 1, seconds(now_ms), batches});
  }
  if (seen->second < ended) epochs_left_out_ += ended - seen->second;
  seen->second = std::max(seen->second, ended);
}

void Account::point(std::uint64_t begin_ms, std::uint64_t end_ms,
                    const std::vector<double>& values) {
  curves_.add(seconds(begin_ms), seconds(end_ms) - seconds(begin_ms), values);
}

}  // namespace ringfeed::report
