#include "workers/bitext/epoch_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "proto/control.pb.h"
#include "proto/stages/bitext.pb.h"
#include "ringfeed/shm/lane_page.h"
#include "workers/bitext/bitext_facts.h"
#include "workers/bitext/corpus_example.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {
namespace {

using formats::BatchKind;
using formats::BitextRules;
using formats::SamplingMethod;

// Address space for plans.
constexpr std::uint64_t kCatalogueGrowth = 256 * kKiB;
// Of a plan, at a time: about a millisecond.
constexpr std::uint64_t kSomeBytes = 4 * kMiB;
constexpr int kWaitMs = 20;
constexpr int kLookWaitMs = 5;
constexpr std::uint64_t kPlanTurn = 16;
constexpr std::uint64_t kEpochMax = 10'000'000;              // as start_epoch of the configuration
constexpr std::uint64_t kWorldMax = shm::kMembersMax;        // the ranks are members of one group
constexpr std::uint64_t kBatchMax = std::uint64_t{1} << 48;  // numbers of batches, beyond any epoch
constexpr std::size_t kErrorBytesMax = 1000;                 // of an answer (ControlBox)
constexpr double kWeightMax = 1e12;                          // as SamplingWeight.weight
constexpr std::chrono::seconds kTryAgain{1};
// So long a plan that somebody has looked at is kept for him.
constexpr std::chrono::seconds kLooked{3};

// Weights by the keys of directions. Throws Error.
std::vector<std::pair<std::string, double>> configured_weights(const EpochPlannerConfig& own) {
  const auto full = [](const std::string& key) {
    return key.find(':') == std::string::npos ? "main:" + key : key;
  };
  std::vector<std::pair<std::string, double>> weights;
  if (!own.has_sampling_weights_file()) {
    for (const SamplingWeight& weight : own.sampling_weights()) {
      weights.emplace_back(full(weight.key()), weight.weight());
    }
    return weights;
  }
  const std::string& path = own.sampling_weights_file();
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::kIo, path + ": cannot be opened");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) {
    throw Error(ErrorCode::kConfiguration,
                path + ": not a JSON object; write {\"main:SRC-TGT\": weight, ...}");
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > 1e12) {
      throw Error(ErrorCode::kConfiguration,
                  fmt::format("{}: the weight of {} is not a number from 0 to 1e12", path, key));
    }
    weights.emplace_back(full(key), value.get<double>());
  }
  return weights;
}

bool has_weights(const EpochPlannerConfig& own) {
  return own.has_sampling_weights_file() || own.sampling_weights_size() > 0;
}

// The weights in the order of the directions. A text: what is wrong with them.
std::string order_weights(const std::vector<std::pair<std::string, double>>& given,
                          const BitextCatalogue& catalogue, std::vector<double>& weights) {
  weights.clear();
  double sum = 0;
  for (const CorpusDirection& direction : catalogue.directions) {
    const auto found =
        std::ranges::find(given, direction.key, [](const auto& w) { return w.first; });
    if (found == given.end()) {
      return fmt::format("{} has no weight; give every direction a weight, 0 to leave it out",
                         direction.key);
    }
    weights.push_back(found->second);
    sum += found->second;
  }
  if (!(sum > 0)) return "all weights are 0; give at least one direction a larger one";
  return {};
}

// The same for the directions that the configuration names.
std::string weights_problem(const std::vector<std::pair<std::string, double>>& given,
                            const BitextDirections& named) {
  if (named.keys.empty()) return {};
  BitextCatalogue told;
  for (const std::string& key : named.keys) told.directions.push_back({.key = key});
  std::vector<double> weights;
  return order_weights(given, told, weights);
}

BitextRules rules_of(BitextCompat compat) {
  switch (compat) {
    case NLLB:
      return BitextRules::kNllb;
    case MAIN:
      return BitextRules::kMain;
    default:
      return BitextRules::kOurs;
  }
}

SamplingMethod method_of(const EpochPlannerConfig& own) {
  if (own.validation()) return SamplingMethod::kConcat;
  if (has_weights(own)) return SamplingMethod::kWeights;
  switch (own.sampling_method()) {
    case EpochPlannerConfig::UNIFORM:
      return SamplingMethod::kUniform;
    case EpochPlannerConfig::TEMPERATURE:
      return SamplingMethod::kTemperature;
    default:
      return SamplingMethod::kConcat;
  }
}

PlanSettings plan_settings(const StageView& stage, std::uint64_t feed_seed) {
  const EpochPlannerConfig& own = stage.config.epoch_planner();
  PlanSettings settings;
  settings.sampling.rules = rules_of(own.compat());
  settings.sampling.method = method_of(own);
  settings.sampling.temperature = own.sampling_temperature();
  if (!own.validation()) {
    if (own.has_virtual_data_size()) settings.sampling.virtual_data_size = own.virtual_data_size();
    if (own.has_virtual_epoch_size()) {
      settings.sampling.virtual_epoch_size = own.virtual_epoch_size();
    }
  }
  settings.sampling.first_shards = own.validation();
  settings.sampling.use_local_shard_size = own.use_local_shard_size();
  settings.sampling.sharded = stage.links.input("input").said.get(kBitextSharded);
  settings.batches.max_tokens = own.max_tokens();
  settings.batches.batch_size = own.batch_size();
  settings.batches.multiple = own.required_batch_size_multiple();
  settings.batches.drop_odd_last = own.compat() == MAIN;
  const auto limit = [&](std::uint32_t positions) {
    return own.has_max_tokens() ? std::min(positions, own.max_tokens()) : positions;
  };
  settings.max_source_positions = limit(own.max_source_positions());
  settings.max_target_positions = limit(own.max_target_positions());
  settings.seed = own.has_seed() ? own.seed() : own.compat() == NONE ? feed_seed : 1;
  settings.update_ordered_indices_seed = own.update_ordered_indices_seed();
  settings.one_dataset_per_batch = own.one_dataset_per_batch();
  settings.curriculum = own.curriculum();
  settings.validation = own.validation();
  settings.single_direction = own.single_direction();
  settings.cut_once = own.compat() == MAIN && !has_weights(own) &&
                      own.sampling_method() == EpochPlannerConfig::ROUND_ROBIN;
  return settings;
}

// Bytes of the largest plan, about: how many files there are is not known before they are found.
std::uint64_t plan_bytes_max(const StageView& stage) {
  const EpochPlannerConfig& own = stage.config.epoch_planner();
  std::uint64_t rows = own.has_max_tokens() ? own.max_tokens() : own.batch_size();
  if (own.has_batch_size()) rows = std::min<std::uint64_t>(rows, own.batch_size());
  const Facts& corpus = stage.links.input("input").said;
  const std::uint64_t parts = std::min(corpus.get(kBitextPartsMax, 1), rows);
  return formats::batch_plan_bytes(parts, rows, parts * 2 * corpus.get(kBitextPathBytesMax, 256));
}

// Of a queue in which several of the largest plans find room.
std::uint64_t plan_queue_bytes(const StageView& stage) {
  return shm::align_up(4 * plan_bytes_max(stage) + 64 * kKiB, 64 * kKiB);
}

// Of one in which a plan finds room at all: it has half of it.
constexpr std::uint64_t queue_bytes_for(std::uint64_t plan_bytes) noexcept {
  return 2 * plan_bytes + 4096;
}

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t to) noexcept {
  return (value + to - 1) / to * to;
}

}  // namespace

EpochPlanner::EpochPlanner(const StageContext& context, std::uint64_t narrow_max)
    : context_(context),
      settings_(plan_settings(context.view(), context.seed)),
      update_freq_(context.config.epoch_planner().update_freq().begin(),
                   context.config.epoch_planner().update_freq().end()),
      epoch_remainder_(context.config.epoch_planner().epoch_remainder_batch()),
      stand_in_first_(context.config.epoch_planner().stand_in_first()),
      last_epoch_(context.feed.epochs() == 0
                      ? 0
                      : context.config.epoch_planner().start_epoch() - 1 + context.feed.epochs()),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      out_(context.output("output")),
      epochs_(context.counter("epochs")),
      batches_(context.counter("batches")),
      stand_ins_(context.counter("stand_ins")),
      messages_followed_(context.counter("messages_followed")),
      plans_(context.counter("plans")),
      sentences_(context.counter("sentences")),
      kept_(context.counter("sentences_kept")),
      too_long_(context.counter("skipped_too_long")),
      empty_(context.counter("skipped_empty")),
      batches_dropped_(context.counter("batches_dropped")),
      sentences_dropped_(context.counter("sentences_dropped")),
      repeated_(context.counter("sentences_repeated")),
      epoch_(context.counter("epoch")),
      epoch_batches_(context.counter("epoch_batches")),
      epoch_batch_(context.counter("epoch_batch")),
      plan_percent_(context.counter("plan_percent")) {
  settings_.narrow_max = narrow_max;
  const std::uint64_t used = context.load(state_.catalogue_bytes);
  RF_CHECK(state_.rest.offset + used <= context.state_bytes, used, context.state_bytes);
  const std::byte* at = context.state + state_.rest.offset;
  for (std::uint64_t offset = 0; offset < used;) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, at + offset, sizeof bytes);
    RF_CHECK(bytes <= used - offset - sizeof bytes, bytes, offset, used);
    RF_CHECK(catalogue_.add({at + offset + sizeof bytes, bytes}), offset, bytes);
    offset += sizeof bytes + shm::align_up(bytes, 8);
  }
  catalogue_bytes_ = used;
  if (context.load(state_.complete) != 0) {
    read_weights(context.state, 1);
    read_weights(context.state, context.load(state_.weights));
    if (const std::uint64_t coming = context.load(state_.coming_weights); coming != 0) {
      read_weights(context.state, coming);
    }
  }
}

// ---- what there is

StepStatus EpochPlanner::gather(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) {
    if (!step.ended(in_)) return StepStatus::kNoInput;
    if (catalogue_.complete()) return begin_run(step);
    context_.note("no direction has arrived; the log of the previous stage says why");
    return StepStatus::kEnd;
  }
  const std::uint64_t used = step.load(state_.catalogue_bytes);
  const std::uint64_t bytes = record->bytes.size();
  const std::uint64_t needed = state_.rest.offset + used + 8 + shm::align_up(bytes, 8);
  if (!step.grow(needed, needed + kCatalogueGrowth)) return StepStatus::kNoRoom;
  // Private memory knows what has been committed, and what is about to be.
  if (!catalogue_.add(record->bytes)) {
    context_.warn(
        fmt::format("stage={}: a record that describes no direction is skipped", context_.stage));
    return step.consume(*record);
  }
  std::byte* at = step.bytes_to_write(state_.rest.offset + used, 8 + bytes);
  std::memcpy(at, &bytes, sizeof bytes);
  std::memcpy(at + sizeof bytes, record->bytes.data(), bytes);
  catalogue_bytes_ = used + 8 + shm::align_up(bytes, 8);
  step.store(state_.catalogue_bytes, catalogue_bytes_);
  return step.consume(*record);
}

std::uint64_t EpochPlanner::weights_offset(std::uint64_t place) const noexcept {
  return state_.rest.offset + shm::align_up(catalogue_bytes_, 64) +
         place * 8 * catalogue_.directions.size();
}

std::uint64_t EpochPlanner::plans_offset() const noexcept {
  return shm::align_up(weights_offset(kWeightsKept), shm::kPageBytes);
}

std::uint64_t EpochPlanner::keep_weights(Step& step, const std::vector<double>& weights,
                                         std::uint64_t besides) noexcept {
  if (!step.grow(plans_offset())) return 0;
  // A number that no plan has been made with, and a place that no word refers to.
  const std::array kept = {step.load(state_.weights), step.load(state_.coming_weights), besides};
  const auto is_taken = [&](std::uint64_t version) {
    return std::ranges::any_of(kept, [version](std::uint64_t other) {
      return other != 0 && place_of_weights(other) == place_of_weights(version);
    });
  };
  std::uint64_t version = step.load(state_.weights_made) + 1;
  while (version != 1 && is_taken(version)) ++version;
  const std::uint64_t place = place_of_weights(version);
  step.fill({weights_offset(place), 8 * weights.size()}, std::as_bytes(std::span(weights)));
  step.store(state_.weights_made, version);
  weights_[place] = weights;
  return version;
}

void EpochPlanner::read_weights(const std::byte* state, std::uint64_t version) {
  const std::uint64_t place = place_of_weights(version);
  weights_[place].resize(catalogue_.directions.size());
  std::memcpy(weights_[place].data(), state + weights_offset(place), 8 * weights_[place].size());
}

PlanSettings EpochPlanner::settings_of(const PlanTask& task) const {
  PlanSettings settings = settings_;
  const std::vector<double>& weights = weights_[place_of_weights(task.weights_version)];
  if (!std::isnan(weights.front())) {
    settings.sampling.method = SamplingMethod::kWeights;
    settings.sampling.weights = weights;
  }
  return settings;
}

StepStatus EpochPlanner::begin_run(Step& step) noexcept {
  const EpochPlannerConfig& own = context_.config.epoch_planner();
  std::vector<double> weights(catalogue_.directions.size(), std::nan(""));
  if (settings_.sampling.method == SamplingMethod::kWeights) {
    std::string problem;
    try {
      problem = order_weights(configured_weights(own), catalogue_, weights);
    } catch (const Error& error) {
      problem = error.message();
    }
    if (!problem.empty()) {
      complain("sampling_weights: " + problem);
      return StepStatus::kIdle;
    }
  }
  const std::uint64_t version = keep_weights(step, weights);
  if (version == 0) return StepStatus::kNoRoom;
  step.store(state_.weights, version);
  step.store(state_.complete, 1);
  step.store(state_.chain_epoch, 1);
  step.store(state_.epoch, own.start_epoch());
  step.store(state_.begin, own.start_batch());
  step.store(state_.next, own.start_batch());
  step.store(state_.world, own.world_size());
  return StepStatus::kDone;
}

void EpochPlanner::complain(const std::string& text) noexcept {
  if (text == complaint_) return;
  complaint_ = text;
  context_.note(text);
  if (!text.empty()) context_.warn(fmt::format("stage={}: {}", context_.stage, text));
}

// ---- plans

bool EpochPlanner::planned(const Step& step) const noexcept {
  const std::uint64_t epoch = step.load(state_.epoch);
  // 0: the directions are not known yet.
  return epoch != 0 && step.load(current(step).epoch) == epoch;
}

PlanTask EpochPlanner::task_of(const Step& step, std::uint64_t epoch) const noexcept {
  const std::uint64_t coming = step.load(state_.coming);
  if (coming != 0 && epoch >= coming) {
    return {.chain = {coming, step.load(state_.coming_pass)},
            .epoch = epoch,
            .weights_version = step.load(state_.coming_weights)};
  }
  return {.chain = {step.load(state_.chain_epoch), step.load(state_.chain_pass)},
          .epoch = epoch,
          .weights_version = step.load(state_.weights)};
}

bool EpochPlanner::is_of(const Step& step, const PlanWords& plan,
                         const PlanTask& task) const noexcept {
  return step.load(plan.epoch) == task.epoch && step.load(plan.chain_epoch) == task.chain.epoch &&
         step.load(plan.chain_pass) == task.chain.pass &&
         step.load(plan.weights) == task.weights_version;
}

StepStatus EpochPlanner::attend_plans(Step& step) noexcept {
  const bool have = planned(step);
  const std::uint64_t epoch = step.load(state_.epoch) + (have ? 1 : 0);
  if (looked_for_) {
    if (std::chrono::steady_clock::now() < look_until_) return StepStatus::kIdle;
    looked_for_.reset();
  }
  if (last_epoch_ != 0 && epoch > last_epoch_) return StepStatus::kIdle;
  const PlanTask task = task_of(step, epoch);
  if (is_of(step, other(step), task)) {
    if (have) return StepStatus::kIdle;
    step.store(state_.current, 1 - step.load(state_.current));
    return StepStatus::kDone;
  }
  if (made_ != nullptr && !(made_->task == task)) made_.reset();
  if (made_ != nullptr) return store_plan(step);
  if (!maker_.task() || !(*maker_.task() == task)) {
    const auto now = std::chrono::steady_clock::now();
    if (now < again_at_) return StepStatus::kIdle;
    maker_.begin(settings_of(task), task);
    return StepStatus::kIdle;
  }
  // Somebody who has nothing else to do waits for it.
  if (!maker_.wait(have ? 0 : kWaitMs)) {
    if (have || percent_ == maker_.percent()) return StepStatus::kIdle;
    percent_ = maker_.percent();
    step.gauge(plan_percent_, percent_);
    context_.progress(fmt::format("the plan of epoch {} is being made: {} %", epoch, percent_),
                      percent_, 100);
    return StepStatus::kDone;
  }
  made_ = maker_.take();
  const std::string error = maker_.error();
  maker_.forget();  // whoever wants the same plan later begins anew
  if (made_ == nullptr) {
    complain(error);
    again_at_ = std::chrono::steady_clock::now() + kTryAgain;
    return StepStatus::kIdle;
  }
  complaint_.clear();
  context_.note("");
  report(*made_);
  made_stored_ = 0;
  return store_plan(step);
}

void EpochPlanner::report(const MadePlan& plan) {
  std::uint64_t kept = plan.sentences().size() / (plan.is_wide ? 8 : 4);
  context_.info(fmt::format(
      "planned epoch={} sentences={} kept={} too_long={} empty={} repeated={} batches={} "
      "seconds={:.2f}",
      plan.task.epoch, plan.drawn, kept, plan.too_long(), plan.without_tokens(), plan.repeated,
      plan.batches(), plan.seconds));
}

StepStatus EpochPlanner::store_plan(Step& step) noexcept {
  const std::array<std::span<const std::byte>, 4> parts = {
      std::as_bytes(std::span<const std::uint32_t>(made_->shape.shards)), made_->sentences(),
      made_->ends(), made_->order()};
  std::uint64_t bytes = 0;
  for (const auto& part : parts) bytes += shm::align_up(part.size(), 8);
  const PlanWords& into = other(step);
  if (made_stored_ == 0) {
    // In front of the plan at hand if there is room, else behind it.
    made_offset_ = plans_offset();
    if (planned(step)) {
      const std::uint64_t taken = step.load(current(step).offset);
      if (made_offset_ + bytes > taken) {
        made_offset_ = shm::align_up(taken + step.load(current(step).bytes), shm::kPageBytes);
      }
    }
    // A word may still call what lies there a plan.
    if (step.load(into.epoch) != 0) {
      step.store(into.epoch, 0);
      return StepStatus::kDone;
    }
  }
  if (!step.grow(made_offset_ + bytes)) return StepStatus::kNoRoom;
  std::uint64_t left = kSomeBytes;
  std::uint64_t begin = 0;  // of the part
  for (const auto& part : parts) {
    if (made_stored_ < begin + part.size() && left > 0) {
      const std::uint64_t from = made_stored_ - begin;
      const std::uint64_t some = std::min<std::uint64_t>(left, part.size() - from);
      step.fill({made_offset_ + begin + from, some}, part.subspan(from, some));
      left -= some;
      made_stored_ += some;
    }
    if (made_stored_ == begin + part.size()) made_stored_ = begin + shm::align_up(part.size(), 8);
    begin += shm::align_up(part.size(), 8);
  }
  step.store(state_.stored, made_stored_);  // a step that does something
  if (made_stored_ < bytes) return StepStatus::kDone;
  step.store(into.epoch, made_->task.epoch);
  step.store(into.offset, made_offset_);
  step.store(into.bytes, bytes);
  step.store(into.sentences, made_->sentences().size() / (made_->is_wide ? 8 : 4));
  step.store(into.batches, made_->batches());
  step.store(into.wide, made_->is_wide ? 1 : 0);
  step.store(into.chain_epoch, made_->task.chain.epoch);
  step.store(into.chain_pass, made_->task.chain.pass);
  step.store(into.weights, made_->task.weights_version);
  step.count(plans_);
  step.count(sentences_, made_->drawn);
  step.count(kept_, step.load(into.sentences));
  step.count(too_long_, made_->too_long());
  step.count(empty_, made_->without_tokens());
  step.count(repeated_, made_->repeated);
  step.gauge(plan_percent_, 100);
  made_.reset();
  looked_at_ = 0;  // this may be the place of one that was looked at
  return StepStatus::kDone;
}

// ---- the epoch at hand

std::uint64_t EpochPlanner::number_at(const Step& step, std::uint64_t offset,
                                      std::uint64_t index) const noexcept {
  if (wide_) {
    std::uint64_t number = 0;
    std::memcpy(&number, step.bytes(offset + 8 * index), sizeof number);
    return number;
  }
  std::uint32_t number = 0;
  std::memcpy(&number, step.bytes(offset + 4 * index), sizeof number);
  return number;
}

void EpochPlanner::look_at_plan(const Step& step) {
  const PlanWords& plan = current(step);
  const std::uint64_t offset = step.load(plan.offset);
  if (looked_at_ == offset) return;
  wide_ = step.load(plan.wide) != 0;
  const std::uint64_t width = wide_ ? 8 : 4;
  const std::size_t directions = catalogue_.directions.size();
  sentences_at_ = offset + shm::align_up(4 * directions, 8);
  ends_at_ = sentences_at_ + shm::align_up(width * step.load(plan.sentences), 8);
  order_at_ = ends_at_ + shm::align_up(width * step.load(plan.batches), 8);
  sections_.clear();
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < directions; ++i) {
    std::uint32_t shard = 0;
    std::memcpy(&shard, step.bytes(offset + 4 * i), sizeof shard);
    const std::uint64_t first_of_direction = first;
    for (const BitextFiles& files : catalogue_.directions[i].shards[shard]) {
      if (files.counted() == 0) continue;
      sections_.push_back({.first = first,
                           .first_of_direction = first_of_direction,
                           .direction = static_cast<std::uint32_t>(i),
                           .files = &files});
      first += files.counted();
    }
  }
  looked_at_ = offset;
}

EpochPlanner::Range EpochPlanner::sentences_of(const Step& step,
                                               std::uint64_t frozen) const noexcept {
  return {frozen == 0 ? 0 : number_at(step, ends_at_, frozen - 1),
          number_at(step, ends_at_, frozen)};
}

// Those that are handed out: fairseq drops some of the last.
std::uint64_t EpochPlanner::used_batches(const Step& step) const noexcept {
  const std::uint64_t all = step.load(current(step).batches);
  if (settings_.sampling.rules == BitextRules::kOurs || settings_.validation) return all;
  const bool drop = settings_.sampling.rules == BitextRules::kNllb && !epoch_remainder_;
  const std::uint64_t world = step.load(state_.world);
  const std::uint64_t of_rank = rounded_up(all, world) / world;
  const std::uint64_t epoch = step.load(state_.epoch);
  const std::uint64_t frequency =
      update_freq_.empty()
          ? 1
          : std::max(1U, update_freq_[std::min<std::uint64_t>(epoch, update_freq_.size()) - 1]);
  const std::uint64_t last = drop ? of_rank - std::min<std::uint64_t>(of_rank, 1) : of_rank;
  const std::uint64_t from = step.load(state_.updates_from);
  if (!drop && from == 0) return all;
  std::uint64_t updates = drop ? last / frequency : rounded_up(last, frequency) / frequency;
  if (from == 0) return std::min(all, updates * frequency * world);
  // Updates done count as many as are begun, and the next one begins with the next batch.
  const std::uint64_t done = (from - 1) / world;
  updates -= std::min(updates, rounded_up(done, frequency) / frequency);
  return std::min(all, (done + updates * frequency) * world);
}

std::uint64_t EpochPlanner::cut_of_epoch(const Step& step) const noexcept {
  return step.load(state_.cut_epoch) == step.load(state_.epoch) ? step.load(state_.cut) : 0;
}

std::uint64_t EpochPlanner::sentences_from(const Step& step, std::uint64_t batch,
                                           std::uint64_t end) const noexcept {
  std::uint64_t sum = 0;
  for (; batch < end; ++batch) {
    const Range these = sentences_of(step, number_at(step, order_at_, batch));
    sum += these.end - these.begin;
  }
  return sum;
}

// As if they had been put; what they would be, nobody needs to know.
std::uint64_t EpochPlanner::to_pass(const Step& step) const noexcept {
  const std::uint64_t before = context_.feed.from_batch() - 1;
  const std::uint64_t put = step.load(state_.put);
  return before > put ? before - put : 0;
}

// False: no room, and nothing has changed.
bool EpochPlanner::put(Step& step, BatchKind kind, std::uint64_t batch) noexcept {
  if (to_pass(step) != 0) {
    step.store(state_.put, step.load(state_.put) + 1);
    return true;
  }
  const std::uint64_t frozen =
      kind == BatchKind::kBatch ? number_at(step, order_at_, batch) : std::uint64_t{0};
  // An epoch without a batch, or without a plan, has a stand-in without a row.
  const bool none = !planned(step) || step.load(current(step).batches) == 0;
  const Range these = none ? Range{0, 0} : sentences_of(step, frozen);
  ++use_;
  parts_.clear();
  rows_.clear();
  text_.clear();
  for (std::uint64_t i = these.begin; i < these.end; ++i) {
    const std::uint64_t sentence = number_at(step, sentences_at_, i);
    Section& section = *(std::ranges::upper_bound(sections_, sentence, {}, &Section::first) - 1);
    if (section.used_in != use_) {
      section.used_in = use_;
      section.part = static_cast<std::uint32_t>(parts_.size());
      add_part(section);
    }
    rows_.push_back({sentence - section.first_of_direction, section.part, 0});
  }
  formats::BatchPlanHead head{};
  head.epoch = step.load(state_.epoch);
  head.batches = handed_out(step);
  head.batch = kind == BatchKind::kBatch ? batch : head.batches;
  head.generation = static_cast<std::uint32_t>(step.load(state_.generation));
  head.world_size = static_cast<std::uint32_t>(step.load(state_.world));
  head.kind = kind;
  head.chain_epoch = step.load(current(step).chain_epoch);
  head.chain_pass = step.load(current(step).chain_pass);
  const std::uint64_t bytes = formats::batch_plan_bytes(parts_.size(), rows_.size(), text_.size());
  if (bytes > step.record_bytes_max(out_)) {
    complain(
        fmt::format("queue_bytes: a batch plan of {} bytes does not fit half of the queue; "
                    "give at least {}",
                    bytes, queue_bytes_for(bytes)));
    return false;
  }
  const std::span<std::byte> room = step.reserve(out_, bytes);
  if (room.empty()) return false;
  formats::write_batch_plan(room, head, parts_, rows_, text_);
  step.put_reserved(out_, bytes, {.tag = {head.epoch, head.batch}});
  step.store(state_.put, step.load(state_.put) + 1);
  step.count(kind == BatchKind::kBatch ? batches_ : stand_ins_);
  return true;
}

void EpochPlanner::add_part(const Section& section) {
  const BitextFiles& files = *section.files;
  formats::BatchPlanPart part{};
  part.first = section.first - section.first_of_direction;
  part.sentences = files.sentences;
  part.number = files.number;
  part.direction = section.direction;
  part.encoder_token = files.encoder_token;
  part.decoder_token = files.decoder_token;
  part.source_tag = files.source_tag;
  part.truncate_source = files.truncate_source;
  // fairseq takes those of the first direction for all that are collated at once.
  const bool own = settings_.sampling.rules == BitextRules::kOurs || files.replaces_eos;
  const CorpusDirection& named = catalogue_.directions[own ? section.direction : 0];
  part.source_lang_id = named.source_lang_id;
  part.target_lang_id = named.target_lang_id;
  part.replaces_eos = !files.replaces_eos          ? formats::kEosStays
                      : settings_.single_direction ? formats::kEosOfOne
                                                   : formats::kEosByDirection;
  part.source_symbols = files.source_symbols;
  part.target_symbols = files.target_symbols;
  part.source_at = static_cast<std::uint32_t>(text_.size());
  part.source_bytes = static_cast<std::uint16_t>(files.source.size());
  text_ += files.source;
  part.target_at = static_cast<std::uint32_t>(text_.size());
  part.target_bytes = static_cast<std::uint16_t>(files.target.size());
  text_ += files.target;
  parts_.push_back(part);
}

std::uint64_t EpochPlanner::handed_out(const Step& step) const noexcept {
  const std::uint64_t cut = cut_of_epoch(step);
  const std::uint64_t used = used_batches(step);
  return cut == 0 ? used : std::min(used, cut - 1);
}

StepStatus EpochPlanner::hand_out(Step& step) noexcept {
  look_at_plan(step);
  const std::uint64_t world = step.load(state_.world);
  if (step.load(state_.seek) != 0) {
    if (step.load(state_.put) % step.load(state_.seek_world) != 0) {
      return put(step, BatchKind::kStandIn, 0) ? StepStatus::kDone : StepStatus::kNoRoom;
    }
    carry_out_seek(step);
    return StepStatus::kDone;
  }
  const std::uint64_t used = handed_out(step);
  const std::uint64_t begin = step.load(state_.begin);
  const std::uint64_t next = step.load(state_.next);
  step.gauge(epoch_, step.load(state_.epoch));
  step.gauge(epoch_batches_, used);
  step.gauge(epoch_batch_, std::min(next, used));
  const std::uint64_t end = begin < used ? begin + rounded_up(used - begin, world) : begin;
  const std::uint64_t firsts = step.load(state_.firsts);
  // Once begun they are put for all ranks, whatever becomes of the epoch.
  if (stand_in_first_ && (begin < used || firsts != 0) && firsts < world) {
    if (!put(step, BatchKind::kFirstStandIn, 0)) return StepStatus::kNoRoom;
    step.store(state_.firsts, firsts + 1);
    return StepStatus::kDone;
  }
  if (next >= end) return end_epoch(step);
  if (const std::uint64_t passed = std::min(to_pass(step), end - next); passed != 0) {
    context_.note(passed == to_pass(step)
                      ? std::string()
                      : fmt::format("on the way to batch {}: epoch {}", context_.feed.from_batch(),
                                    step.load(state_.epoch)));
    step.store(state_.put, step.load(state_.put) + passed);
    step.store(state_.next, next + passed);
    return StepStatus::kDone;
  }
  if (!put(step, next < used ? BatchKind::kBatch : BatchKind::kStandIn, next)) {
    return StepStatus::kNoRoom;
  }
  step.store(state_.next, next + 1);
  return StepStatus::kDone;
}

StepStatus EpochPlanner::end_epoch(Step& step) noexcept {
  const std::uint64_t epoch = step.load(state_.epoch);
  const std::uint64_t all = step.load(current(step).batches);
  const std::uint64_t used = handed_out(step);
  const std::uint64_t begin = step.load(state_.begin);
  step.count(epochs_);
  if (used < all) {
    step.count(batches_dropped_, all - used);
    step.count(sentences_dropped_, sentences_from(step, used, all));
  }
  empty_epochs_ = begin >= used ? empty_epochs_ + 1 : 0;
  if (begin > used) {
    context_.warn(fmt::format("stage={}: epoch {} has {} batches, not {}; the next one begins",
                              context_.stage, epoch, used, begin));
  }
  step.store(current(step).epoch, 0);
  begin_epoch(step, epoch + 1);
  return StepStatus::kDone;
}

void EpochPlanner::begin_epoch(Step& step, std::uint64_t epoch) noexcept {
  if (step.load(state_.coming) == epoch) begin_chain(step);
  step.store(state_.epoch, epoch);
  step.store(state_.begin, 0);
  step.store(state_.next, 0);
  step.store(state_.firsts, 0);
  step.store(state_.updates_from, 0);
}

// With the weights that were to come.
void EpochPlanner::begin_chain(Step& step) noexcept {
  step.store(state_.chain_epoch, step.load(state_.coming));
  step.store(state_.chain_pass, step.load(state_.coming_pass));
  step.store(state_.weights, step.load(state_.coming_weights));
  step.store(state_.coming, 0);
  step.store(state_.coming_weights, 0);
}

// An epoch ends before a batch, and the next one has other weights.
void EpochPlanner::end_before(Step& step, std::uint64_t epoch, std::uint64_t batch,
                              std::uint64_t version) {
  const PlanTask task = task_of(step, epoch);
  step.store(state_.cut, batch + 1);
  step.store(state_.cut_epoch, epoch);
  step.store(state_.coming, epoch + 1);
  step.store(
      state_.coming_pass,
      formats::epoch_shape(settings_of(task).sampling, catalogue_.sizes(), task.chain, epoch).pass +
          1);
  step.store(state_.coming_weights, version);
}

bool EpochPlanner::is_over(const Step& step) {
  if (last_epoch_ != 0 && step.load(state_.epoch) > last_epoch_) return true;
  std::size_t shards = 0;
  for (const CorpusDirection& direction : catalogue_.directions) {
    shards = std::max(shards, direction.shards.size());
  }
  // Each of them in all its slices.
  std::uint64_t slices = 1;
  if (const auto& slice = settings_.sampling.virtual_epoch_size) {
    std::uint64_t sentences = 0;
    for (const formats::ShardSizes& sizes : catalogue_.sizes()) {
      sentences = std::accumulate(sizes.begin(), sizes.end(), sentences);
    }
    sentences = std::max(2 * sentences, settings_.sampling.virtual_data_size.value_or(0));
    slices += sentences / *slice;
  }
  if (empty_epochs_ <= shards * slices) return false;
  complain(
      "no batch in any shard: there are no sentences within max_source_positions, "
      "max_target_positions and max_tokens, or too few for one batch of each rank");
  return true;
}

bool EpochPlanner::is_stranded(const Step& step) const noexcept {
  return step.load(state_.generation) != 0 &&
         (last_epoch_ == 0 || step.load(state_.epoch) <= last_epoch_);
}

StepStatus EpochPlanner::step(Step& step) noexcept {
  if (step.load(state_.complete) == 0) {
    return step.draining() ? StepStatus::kEnd : gather(step);
  }
  const bool in_step = step.load(state_.put) % step.load(state_.world) == 0;
  if (step.draining()) {
    // No rank is left waiting for the others.
    if (in_step || !planned(step)) return StepStatus::kEnd;
    look_at_plan(step);
    return put(step, BatchKind::kStandIn, 0) ? StepStatus::kDone : StepStatus::kNoRoom;
  }
  if (step.load(state_.seek) != 0 && !planned(step)) {
    if (step.load(state_.put) % step.load(state_.seek_world) == 0) {
      carry_out_seek(step);
      return StepStatus::kDone;
    }
    // No plan will come out of which a stand-in could be.
    if (is_over(step)) {
      return put(step, BatchKind::kStandIn, 0) ? StepStatus::kDone : StepStatus::kNoRoom;
    }
  }
  if (is_over(step) && step.load(state_.generation) == 0 && context_.feed.from_batch() > 1 &&
      step.load(state_.put) < context_.feed.from_batch()) {
    complain(fmt::format("from_batch is {}, but the feed has only {} batches",
                         context_.feed.from_batch(), step.load(state_.put)));
  }
  // A message may have moved it to where there is nothing, and the next one may move it elsewhere.
  if (is_over(step)) return is_stranded(step) ? StepStatus::kIdle : StepStatus::kEnd;
  // An epoch that ends where it begins needs no plan.
  if (const std::uint64_t cut = cut_of_epoch(step);
      cut != 0 && cut - 1 <= step.load(state_.begin) && !planned(step)) {
    begin_epoch(step, step.load(state_.epoch) + 1);
    return StepStatus::kDone;
  }
  // Now and then the next plan has its turn, however fast batches are taken; while it is being
  // stored, every other time.
  const bool plan_first = ++turn_ % (made_ != nullptr ? 2 : kPlanTurn) == 0;
  StepStatus handed = StepStatus::kIdle;
  if (planned(step) && !plan_first) {
    handed = hand_out(step);
    if (handed == StepStatus::kDone) return handed;
  }
  const StepStatus plans = attend_plans(step);
  if (plan_first && plans != StepStatus::kDone && planned(step)) return hand_out(step);
  return plans == StepStatus::kIdle ? handed : plans;
}

// ---- messages

void EpochPlanner::carry_out_seek(Step& step) noexcept {
  looked_for_.reset();
  step.store(state_.seek, 0);
  step.store(state_.generation, step.load(state_.generation) + 1);
  step.store(state_.world, step.load(state_.seek_world));
  step.store(state_.epoch, step.load(state_.seek_epoch));
  step.store(state_.begin, step.load(state_.seek_batch));
  step.store(state_.next, step.load(state_.seek_batch));
  step.store(state_.firsts, 0);
  step.store(state_.updates_from, step.load(state_.seek_updates_from));
  step.store(state_.cut, 0);
  step.store(state_.chain_epoch, step.load(state_.seek_chain_epoch));
  step.store(state_.chain_pass, step.load(state_.seek_chain_pass));
  step.store(state_.coming, 0);
  if (step.load(state_.seek_cut) != 0) {
    end_before(step, step.load(state_.seek_cut_epoch), step.load(state_.seek_cut) - 1,
               step.load(state_.coming_weights));
  } else {
    step.store(state_.coming_weights, 0);
  }
  // What has been planned may be of use.
  const PlanTask task = task_of(step, step.load(state_.epoch));
  if (!is_of(step, current(step), task)) step.store(current(step).epoch, 0);
}

void EpochPlanner::seek(Step& step, const EpochPlannerControlRequest& request,
                        EpochPlannerControlResponse& answer) noexcept {
  const EpochPlannerControlRequest::Seek& to = request.seek();
  const bool known = step.load(state_.complete) != 0;
  const std::uint64_t world = to.has_world_size() ? to.world_size()
                              : known             ? step.load(state_.world)
                                                  : context_.config.epoch_planner().world_size();
  const std::uint64_t coming_epoch = to.has_coming_epoch() ? to.coming_epoch() : to.epoch();
  std::vector<double> weights;
  std::vector<double> coming;
  std::string problem;
  if (to.epoch() < 1 || to.epoch() > kEpochMax) {
    problem =
        fmt::format("epoch {} does not exist; epochs count from 1 to {}", to.epoch(), kEpochMax);
  } else if (last_epoch_ != 0 && to.epoch() > last_epoch_) {
    problem = fmt::format("epoch {} is after the last one, {}", to.epoch(), last_epoch_);
  } else if (world < 1 || world > kWorldMax) {
    problem = fmt::format("world_size {} is not 1 to {}", world, kWorldMax);
  } else if (std::max({to.batch(), to.updates_from_batch(), to.coming_from_batch()}) > kBatchMax) {
    problem = fmt::format("no epoch has a batch beyond {}", kBatchMax);
  } else if (to.chain_epoch() > to.epoch()) {
    problem = fmt::format("chain_epoch {} is after epoch {}", to.chain_epoch(), to.epoch());
  } else if (to.weights_size() + to.coming_weights_size() > 0 &&
             settings_.sampling.rules != BitextRules::kOurs) {
    problem = "weights can be given only with compat NONE";
  } else if (to.coming_weights_size() > 0 &&
             (coming_epoch < to.epoch() || coming_epoch > kEpochMax)) {
    problem = fmt::format("coming_epoch {} is before epoch {}, or beyond {}", coming_epoch,
                          to.epoch(), kEpochMax);
  }
  if (problem.empty() && to.weights_size() > 0) problem = take_weights(to.weights(), weights);
  if (problem.empty() && to.coming_weights_size() > 0) {
    problem = take_weights(to.coming_weights(), coming);
  }
  if (problem.empty() && !(weights.empty() && coming.empty()) && !step.grow(plans_offset())) {
    problem = "no room for weights now; send the message again";
  }
  std::uint64_t chain_epoch = std::max<std::uint64_t>(1, to.chain_epoch());
  const bool forgetful = to.forgetful() && settings_.sampling.rules != BitextRules::kOurs;
  if (forgetful) chain_epoch = to.epoch();
  if (problem.empty() && known && weights.empty()) {
    const PlanTask task{.chain = {chain_epoch, to.chain_pass()},
                        .epoch = to.epoch(),
                        .weights_version = to.configured_weights() ? 1 : step.load(state_.weights)};
    if (to.only_look()) return look(step, task, answer);
    const std::optional<std::uint64_t> batches = batches_of(step, task);
    if (batches && to.batch() > 0 && to.batch() >= rounded_up(*batches, world)) {
      problem = fmt::format(
          "epoch {} has {} batches, and batch {} is beyond them: the state belongs to other data "
          "or other settings",
          to.epoch(), *batches, to.batch());
    }
  }
  if (!problem.empty()) {
    answer.set_error(problem);
    return;
  }
  if (to.only_look()) return;
  step.count(messages_followed_);
  // Whoever says where to go on need not wait for the way to where it would have begun.
  step.store(state_.put, step.load(state_.put) + to_pass(step));
  // Both before a word refers to them: what the step's words refer to now is not overwritten.
  const std::uint64_t version = weights.empty() ? 0 : keep_weights(step, weights);
  const std::uint64_t coming_version = coming.empty() ? 0 : keep_weights(step, coming, version);
  if (version != 0) {
    step.store(state_.weights, version);
  } else if (to.configured_weights() && known) {
    step.store(state_.weights, 1);
  }
  step.store(state_.seek, 1);
  step.store(state_.seek_cut, 0);
  if (coming_version != 0) {
    step.store(state_.coming_weights, coming_version);
    step.store(state_.coming, 0);
    step.store(state_.seek_cut, to.coming_from_batch() + 1);
    step.store(state_.seek_cut_epoch, coming_epoch);
  }
  step.store(state_.seek_epoch, to.epoch());
  step.store(state_.seek_batch, to.batch());
  step.store(state_.seek_world, world);
  const bool counts_anew =
      settings_.sampling.rules != BitextRules::kOurs && (forgetful || to.has_updates_from_batch());
  const std::uint64_t updates_from = forgetful ? to.batch() : to.updates_from_batch();
  step.store(state_.seek_updates_from, counts_anew ? updates_from + 1 : 0);
  step.store(state_.seek_chain_epoch, chain_epoch);
  step.store(state_.seek_chain_pass, to.chain_pass());
  empty_epochs_ = 0;
}

std::optional<std::uint64_t> EpochPlanner::batches_of(const Step& step,
                                                      const PlanTask& task) const noexcept {
  for (const PlanWords& plan : state_.plans) {
    if (is_of(step, plan, task)) return step.load(plan.batches);
  }
  if (made_ != nullptr && made_->task == task) return made_->batches();
  return std::nullopt;
}

// Has the plan of a task made, and says how many batches it has, once it is.
void EpochPlanner::look(Step& step, const PlanTask& task,
                        EpochPlannerControlResponse& answer) noexcept {
  std::optional<std::uint64_t> batches = batches_of(step, task);
  if (!batches) {
    // What is half stored begins anew, if it is wanted again.
    if (made_ != nullptr) made_.reset();
    if (!maker_.task() || !(*maker_.task() == task)) {
      maker_.begin(settings_of(task), task);
    }
    looked_for_ = task;
    look_until_ = std::chrono::steady_clock::now() + kLooked;
    if (maker_.wait(kLookWaitMs)) {
      made_ = maker_.take();
      made_stored_ = 0;
      const std::string error = maker_.error();
      maker_.forget();
      if (made_ == nullptr) {
        answer.set_error(fmt::format("epoch {}: {}", task.epoch, error));
        looked_for_.reset();
        return;
      }
      report(*made_);
      batches = made_->batches();
    }
  }
  if (batches) answer.set_epoch_batches(*batches);
}

void EpochPlanner::change_weights(Step& step, const EpochPlannerControlRequest& request,
                                  EpochPlannerControlResponse& answer) noexcept {
  std::vector<double> weights;
  std::string problem;
  const bool seeks = step.load(state_.seek) != 0;
  const bool has_plan = !seeks && planned(step);
  const std::uint64_t used = has_plan ? used_batches(step) : 0;
  if (settings_.sampling.rules != BitextRules::kOurs || settings_.validation) {
    problem = "weights can be changed only with compat NONE, and not in validation";
  } else if (has_plan && request.has_from_batch() && request.from_batch() > used) {
    problem = fmt::format("epoch {} has {} batches, not {}", step.load(state_.epoch), used,
                          request.from_batch());
  } else if (request.from_batch() > kBatchMax) {
    problem = fmt::format("no epoch has a batch beyond {}", kBatchMax);
  } else {
    problem = take_weights(request.weights(), weights);
  }
  const std::uint64_t version = problem.empty() ? keep_weights(step, weights) : 0;
  if (problem.empty() && version == 0) problem = "no room for weights now; send the message again";
  if (!problem.empty()) {
    answer.set_error(problem);
    return;
  }
  const std::uint64_t next = step.load(seeks ? state_.seek_batch : state_.next);
  std::uint64_t from = std::max(next, request.from_batch());
  if (has_plan) {
    look_at_plan(step);
    from = std::min(from, used);
    answer.set_sentences_left(sentences_from(step, from, used));
  }
  answer.set_from_batch(from);
  step.count(messages_followed_);
  if (seeks) {
    // Of the epoch to come: carry_out_seek() goes on with it.
    step.store(state_.seek_cut, from + 1);
    step.store(state_.seek_cut_epoch, step.load(state_.seek_epoch));
    step.store(state_.coming_weights, version);
    step.store(state_.coming, 0);
  } else {
    end_before(step, step.load(state_.epoch), from, version);
  }
}

std::string EpochPlanner::take_weights(
    const google::protobuf::RepeatedPtrField<SamplingWeight>& given,
    std::vector<double>& weights) const {
  EpochPlannerConfig as_configured;
  *as_configured.mutable_sampling_weights() = given;
  for (const SamplingWeight& weight : given) {
    if (!(weight.weight() >= 0 && weight.weight() <= kWeightMax)) {
      return fmt::format("the weight of {:.100} is not in 0 to {}", weight.key(), kWeightMax);
    }
  }
  return order_weights(configured_weights(as_configured), catalogue_, weights);
}

void EpochPlanner::control(Step& step, const StageControlRequest& request,
                           StageControlResponse& response) noexcept {
  if (!request.has_epoch_planner_request()) return;
  const EpochPlannerControlRequest& asked = request.epoch_planner_request();
  EpochPlannerControlResponse& answer = *response.mutable_epoch_planner_response();
  // Where to go on can be said beforehand, weights only of directions that are known.
  if (step.load(state_.complete) == 0 &&
      (asked.weights_size() > 0 || asked.seek().weights_size() > 0 ||
       asked.seek().coming_weights_size() > 0)) {
    answer.set_error("the directions are not known yet; send the message again in a moment");
    return;
  }
  if (!asked.has_seek() && asked.weights_size() > 0 && to_pass(step) != 0) {
    answer.set_error(
        fmt::format("the feed has not reached batch {} yet: send the message again, "
                    "with another attempt, when it has",
                    context_.feed.from_batch()));
    return;
  }
  if (asked.has_seek()) {
    seek(step, asked, answer);
  } else if (asked.weights_size() > 0) {
    change_weights(step, asked, answer);
  }
  if (answer.error().size() > kErrorBytesMax) answer.mutable_error()->resize(kErrorBytesMax);
  const bool seeks = step.load(state_.seek) != 0;
  answer.set_epoch(step.load(seeks ? state_.seek_epoch : state_.epoch));
  answer.set_batch(step.load(seeks ? state_.seek_batch : state_.next));
  answer.set_batches(!seeks && planned(step) ? handed_out(step) : 0);
  answer.set_generation(step.load(state_.generation) + (seeks ? 1 : 0));
  answer.set_world_size(
      static_cast<std::uint32_t>(step.load(seeks ? state_.seek_world : state_.world)));
  answer.set_chain_epoch(step.load(seeks ? state_.seek_chain_epoch : state_.chain_epoch));
  answer.set_chain_pass(step.load(seeks ? state_.seek_chain_pass : state_.chain_pass));
}

// ---- the kind of stage

namespace {

std::vector<CounterSpec> planner_counters() {
  return {
      {"epochs", "Epochs handed out in full."},
      {"batches", "Plans of batches output, without stand-ins."},
      {"stand_ins", "Stand-ins output where a rank has no batch."},
      {"plans", "Epochs planned."},
      {"sentences", "Sentences planned, counted again in every epoch."},
      {"sentences_kept", "Planned sentences that are within the limits."},
      {"skipped_too_long", "Planned sentences that are beyond the limits."},
      {"skipped_empty", "Planned sentences left out: neither side has a token."},
      {"batches_dropped", "Planned batches that were not output."},
      {"sentences_dropped", "Sentences of the batches that were not output."},
      {"sentences_repeated", "Sentences that were drawn again within an epoch."},
      {"epoch", "The current epoch, from 1.", kGauge},
      {"epoch_batches", "Batches of the current epoch.", kGauge},
      {"epoch_batch", "Batches of the current epoch that were output.", kGauge},
      {"plan_percent", "How much of the next plan is made, in percent.", kGauge},
      {"messages_followed", "Messages that moved the planner or changed its weights."},
  };
}

NodeSpec planner_node(const StageView& stage) {
  NodeSpec node;
  StateLayout layout;
  (void)EpochPlanner::State(layout);
  node.state_bytes = layout.bytes();
  node.state_bytes_max = kGrowsWithData;
  node.inputs = {{.port = "input", .from = ""}};
  node.outputs = {output_spec(stage.config.epoch_planner(), "batch_plans", plan_queue_bytes(stage),
                              UnitRule::kRecord)};
  node.weight = 0.1;
  node.begins_anywhere = true;
  node.steered_counter = "messages_followed";
  // Memory that one step gives up may be written by the next one.
  node.steps_per_commit = 1;
  node.entries_per_step = 64;
  node.create = [](const StageContext& context) { return std::make_unique<EpochPlanner>(context); };
  return node;
}

void say_of_plans(const StageView& stage, PortFacts& outputs) {
  const EpochPlannerConfig& own = stage.config.epoch_planner();
  Facts& plans = outputs["output"];
  plans.set(kPlanLimits, {.tokens = own.max_tokens(),
                          .rows = own.batch_size(),
                          .source_positions = own.max_source_positions(),
                          .target_positions = own.max_target_positions()});
  const Facts& corpus = stage.links.input("input").said;
  if (const std::string* const replaced_by = corpus.find(kBosEosReplacedBy)) {
    plans.set(kBosEosReplacedBy, *replaced_by);
  }
}

}  // namespace

StageType epoch_planner_type() {
  StageType type;
  type.kind = "epoch_planner";
  type.inputs = {{"input", "bitext"}};
  type.outputs = {{"output", "batch_plans"}};
  type.counters = planner_counters();
  type.answers = {"epoch_planner_request"};
  type.problems = [](const StageView& stage) {
    const EpochPlannerConfig& own = stage.config.epoch_planner();
    std::vector<Problem> problems;
    const auto add = [&](std::string_view field, std::string text) {
      problems.push_back({std::string(field), std::move(text)});
    };
    const bool ours = own.compat() == NONE;
    if (!own.has_max_tokens() && !own.has_batch_size()) {
      add("max_tokens", "the size of a batch is not set; give max_tokens, batch_size, or both");
    }
    if (own.overflow_behavior() != BLOCK) {
      add("overflow_behavior", "batches must not be dropped; leave it at BLOCK");
    }
    if (own.world_size() > kWorldMax) {
      add("world_size", fmt::format("world_size is {}, but a consumer group has at most {} ranks; "
                                    "give a number from 1 to {}",
                                    own.world_size(), kWorldMax, kWorldMax));
    }
    if (own.use_local_shard_size() && own.compat() != NLLB) {
      add("use_local_shard_size", "use_local_shard_size belongs to compat NLLB; remove it");
    }
    if (own.one_dataset_per_batch() && own.compat() == MAIN) {
      add("one_dataset_per_batch", "fairseq's branch main does not have this; remove it");
    }
    if (own.epoch_remainder_batch() && own.compat() != NLLB) {
      add("epoch_remainder_batch", "only compat NLLB drops batches at the end; remove it");
    }
    if (own.update_ordered_indices_seed() && ours) {
      add("update_ordered_indices_seed",
          "with compat NONE every epoch has its own order; remove it");
    }
    const bool round_robin = own.sampling_method() == EpochPlannerConfig::ROUND_ROBIN;
    if (round_robin && own.compat() == MAIN && own.has_virtual_epoch_size()) {
      add("virtual_epoch_size",
          "with RoundRobin fairseq's branch main cuts batches for the first virtual epoch and "
          "keeps them for all, including the last, shorter one; remove it, or give sampling_method "
          "CONCAT");
    }
    if (own.single_direction() && !(own.validation() && own.compat() == NLLB)) {
      add("single_direction", "belongs to validation with compat NLLB; remove it");
    }
    if (own.validation() && (own.has_virtual_epoch_size() || own.has_virtual_data_size() ||
                             has_weights(own) || (own.has_sampling_method() && !round_robin))) {
      add("validation", "validation takes every sentence once; remove the settings of sampling");
    }
    const std::uint64_t plan = plan_bytes_max(stage);
    if (own.has_queue_bytes() && own.queue_bytes() < queue_bytes_for(plan)) {
      problems.push_back(
          {.field = "queue_bytes",
           .text = fmt::format("a batch plan may take {} bytes, and a plan that does not fit half "
                               "of the queue stops the feed; give at least {}, or remove it",
                               plan, queue_bytes_for(plan)),
           .warning = true});
    }
    const Link& corpus = stage.links.input("input");
    const BitextDirections directions = corpus.said.get(kBitextDirections);
    if (own.single_direction() && directions.keys.size() > 1) {
      add("single_direction",
          fmt::format("stage {} has {} directions; give each its own source, or remove it",
                      corpus.stage, directions.keys.size()));
    }
    if (const std::string* const compat = corpus.said.find(kBitextCompat);
        compat != nullptr && *compat != BitextCompat_Name(own.compat())) {
      add("compat", fmt::format("compat is {}, but that of stage {} is {}; give both the same",
                                BitextCompat_Name(own.compat()), corpus.stage, *compat));
    }
    if (has_weights(own)) {
      const char* const weights_field =
          own.has_sampling_weights_file() ? "sampling_weights_file" : "sampling_weights";
      try {
        const std::string problem = weights_problem(configured_weights(own), directions);
        if (!problem.empty()) add(weights_field, problem);
      } catch (const Error& error) {
        add(weights_field, error.message());
      }
    }
    return problems;
  };
  type.facts = say_of_plans;
  type.nodes = [](const StageView& stage) { return std::vector<NodeSpec>{planner_node(stage)}; };
  type.example = corpus_example(
      "stages { name: \"planner\" epoch_planner { input: \"bitext\" max_tokens: 600 } }\n");
  return type;
}

}  // namespace ringfeed
