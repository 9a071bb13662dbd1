#include "supervisor/feed/losses.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "supervisor/metrics/log_line.h"

namespace ringfeed::process {
namespace {

constexpr std::string_view kSkipped = "skipped_";
// Sums of others, and files that were not meant to be read.
constexpr std::array<std::string_view, 2> kNoLosses = {"skipped_files", "skipped_extension"};
// Losses by another name.
constexpr std::array<std::string_view, 8> kLosses = {
    "chunks_damaged", "directions_missing", "frames_skipped",    "plans_damaged",
    "rows_damaged",   "rows_too_large",     "sequences_skipped", "tar_problems"};
constexpr std::string_view kOther = "skipped_other_exceptions";
constexpr std::size_t kTracebackBytes = 4096;
constexpr std::size_t kFirstBytes = 500;

// What a stage counts of that which came: the first of these that it has. `inputs` have those that
// are left out too. Rows are samples, but for those that games are made of.
struct Came {
  std::string_view counter;
  std::string_view unit;
};
constexpr std::array<Came, 9> kCame = {{{"inputs", "samples"},
                                        {"samples", "samples"},
                                        {"sequences", "sequences"},
                                        {"rows", "samples"},
                                        {"chunks_read", "chunks"},
                                        {"directions", "directions"},
                                        {"sentences_kept", "samples"},
                                        {"sources", "files"},
                                        {"frames", "positions"}}};

bool is_loss(std::string_view counter) {
  if (std::ranges::find(kLosses, counter) != kLosses.end()) return true;
  return counter.starts_with(kSkipped) && std::ranges::find(kNoLosses, counter) == kNoLosses.end();
}

std::string reason_name(std::string_view counter) {
  return std::string(counter.substr(counter.starts_with(kSkipped) ? kSkipped.size() : 0));
}

std::string value_of(const metrics::LogLine& line, std::string_view name) {
  for (const metrics::LogField& field : metrics::split_values(line.values).first) {
    if (field.name == name) return field.value;
  }
  return {};
}

// "skipped stage=lines reason=skipped_no_json count=1 path=/data/a.jsonl offset=17: a sentence"
std::string place_of(const metrics::LogLine& line) {
  std::string place;
  for (const metrics::LogField& field : metrics::split_values(line.values).first) {
    if (field.name == "stage" || field.name == "reason" || field.name == "count") continue;
    if (field.name == "path") {
      place = field.value + (place.empty() ? "" : ", " + place);
    } else {
      place += fmt::format("{}{} {}", place.empty() ? "" : ", ", field.name, field.value);
    }
  }
  return place;
}

// That of a stage's own settings, if its kind has any.
const SkipLimitConfig* limit_of(const StageConfig& stage) {
  const google::protobuf::Reflection* const reflection = stage.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> set;
  reflection->ListFields(stage, &set);
  for (const google::protobuf::FieldDescriptor* const field : set) {
    if (field->message_type() == nullptr || field->is_repeated()) continue;
    const google::protobuf::FieldDescriptor* const limit =
        field->message_type()->FindFieldByName("skip_limit");
    const google::protobuf::Message& own = reflection->GetMessage(stage, field);
    if (limit == nullptr || !own.GetReflection()->HasField(own, limit)) continue;
    return dynamic_cast<const SkipLimitConfig*>(&own.GetReflection()->GetMessage(own, limit));
  }
  return nullptr;
}

bool exceeds(const Losses::Share& share, const SkipLimitConfig& limit) {
  return share.all() >= limit.after() && share.value() > limit.share();
}

}  // namespace

void Losses::note(const std::string& group, std::string_view text) {
  const std::size_t printed = text.find(" | ");
  if (const auto told = told_.find(group); told != told_.end()) {
    // "2026-07-01T12:30:00.123 warning worker/items |   File ..."
    if (printed != std::string_view::npos) {
      std::string& traceback = first_[told->second].traceback;
      if (traceback.size() < kTracebackBytes) {
        traceback += fmt::format("\n    {}", text.substr(printed + 3));
      }
      return;
    }
    told_.erase(told);
  }
  const bool exception = text.find(" exception stage=") != std::string_view::npos;
  if (!exception && text.find(" skipped stage=") == std::string_view::npos) return;
  const metrics::LogLine line = metrics::worker_line(text, 0);
  const std::string stage = line.stage.empty() ? value_of(line, "stage") : line.stage;
  if (line.event == "exception") {
    std::pair<std::string, std::string> key = {stage,
                                               std::string(kSkipped) + value_of(line, "type")};
    if (!first_.contains(key)) key.second = kOther;
    if (const auto known = first_.find(key); known != first_.end()) {
      if (known->second.traceback.empty()) told_[group] = key;
    }
    return;
  }
  if (line.event != "skipped") return;
  const auto [at, is_new] = first_.try_emplace({stage, value_of(line, "reason")});
  if (!is_new) return;
  const std::string sentence =
      line.message.empty() ? metrics::split_values(line.values).second : line.message;
  at->second.text = fmt::format("{}: {}", place_of(line), sentence).substr(0, kFirstBytes);
}

void Losses::count(const StatusReply& status) {
  left_out_ = 0;
  rows_ = rows_dropped_ = 0;
  stages_.clear();
  units_.clear();
  reasons_.clear();
  std::map<std::string_view, std::uint64_t> all;  // by unit, the most that any stage had
  for (const StageStatus& stage : status.stages()) {
    Share& share = stages_[stage.name()];
    std::map<std::string_view, std::uint64_t> counters;
    for (const CounterStatus& counter : stage.counters()) {
      counters[counter.name()] = counter.value();
      if (counter.value() == 0 || !is_loss(counter.name())) continue;
      share.left_out += counter.value();
      Reason reason{stage.name(), reason_name(counter.name()), counter.value(), {}, {}};
      if (const auto first = first_.find({stage.name(), counter.name()}); first != first_.end()) {
        reason.first = first->second.text;
        reason.traceback = first->second.traceback;
      }
      reasons_.push_back(std::move(reason));
    }
    const auto* const came = std::ranges::find_if(
        kCame, [&](const Came& one) { return counters.contains(one.counter); });
    if (came != kCame.end()) {
      share.unit = came->unit;
      share.came = counters[came->counter];
      // Of a pool, those that it had kept.
      if (counters.contains("store_hits")) share.came += counters["store_hits"];
    }
    if (came == kCame.begin()) share.came -= std::min(share.came, share.left_out);
    if (counters.contains("batches") && counters.contains("rows")) {
      rows_ += counters["rows"];
      rows_dropped_ += counters.contains("rows_dropped") ? counters["rows_dropped"] : 0;
    }
    left_out_ += share.left_out;
    const auto at = std::ranges::find(units_, share.unit, &Share::unit);
    Share& unit = at != units_.end() ? *at : units_.emplace_back(Share{share.unit});
    unit.left_out += share.left_out;
    all[share.unit] = std::max(all[share.unit], share.all());
  }
  for (Share& unit : units_) unit.came = all[unit.unit] - std::min(all[unit.unit], unit.left_out);
  std::ranges::stable_sort(reasons_, std::greater<>(), &Reason::count);
}

const Losses::Share* Losses::of_stage(const std::string& stage) const {
  const auto found = stages_.find(stage);
  return found == stages_.end() ? nullptr : &found->second;
}

std::string Losses::stage_text(const std::string& stage) const {
  const Share* const share = of_stage(stage);
  if (share == nullptr) return {};
  std::string counts;
  std::string first;
  for (const Reason& reason : reasons_) {
    if (reason.stage != stage) continue;
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", reason.count, reason.name);
    if (first.empty() && !reason.first.empty()) first = "; the first: " + reason.first;
  }
  return fmt::format("{} of {} {} ({}){}", share->left_out, share->all(), share->unit, counts,
                     first);
}

const Losses::Share* Losses::largest(std::uint64_t after) const {
  const Share* largest = nullptr;
  for (const Share& unit : units_) {
    if (unit.all() < after || (largest != nullptr && unit.value() <= largest->value())) continue;
    largest = &unit;
  }
  return largest;
}

std::string Losses::counts_text() const {
  std::string text;
  for (const Reason& reason : reasons_) {
    text += fmt::format("{}{}: {} {}", text.empty() ? "" : ", ", reason.stage, reason.count,
                        reason.name);
  }
  return text;
}

std::string Losses::first_text() const {
  std::string text;
  for (const Reason& reason : reasons_) {
    if (reason.first.empty()) continue;
    text += fmt::format("\n  {}: {}, the first of {}: {}{}", reason.stage, reason.name,
                        reason.count, reason.first, reason.traceback);
  }
  return text;
}

std::string Losses::text_of(const Share& share) const {
  std::string text =
      fmt::format("{:.3g} % of all {} are left out ({} of {}): {}", 100 * share.value(), share.unit,
                  share.left_out, share.all(), counts_text());
  const auto known =
      std::ranges::find_if(reasons_, [](const Reason& reason) { return !reason.first.empty(); });
  if (known != reasons_.end()) text += fmt::format("; the first: {}", known->first);
  return text;
}

std::string Losses::over_limit(const DataLoaderConfig& config) const {
  const auto says = [this](std::string_view who, const Share& share, const SkipLimitConfig& limit) {
    return fmt::format("{} of {} {}{} were left out, more than skip_limit allows ({:g} %): {}{}",
                       share.left_out, share.all(), share.unit, who, 100 * limit.share(),
                       counts_text(), first_text());
  };
  if (config.has_skip_limit()) {
    const Share* const whole = largest(config.skip_limit().after());
    if (whole != nullptr && exceeds(*whole, config.skip_limit())) {
      return says("", *whole, config.skip_limit());
    }
  }
  for (const StageConfig& stage : config.stages()) {
    const SkipLimitConfig* const limit = limit_of(stage);
    const auto share = stages_.find(stage.name());
    if (limit == nullptr || share == stages_.end() || !exceeds(share->second, *limit)) continue;
    return says(fmt::format(" of stage '{}'", stage.name()), share->second, *limit);
  }
  return {};
}

}  // namespace ringfeed::process
