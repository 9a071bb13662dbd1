#include "workers/bitext/bitext_collator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "workers/bitext/bitext_facts.h"
#include "workers/bitext/corpus_example.h"
#include "workers/bitext/row_sentences.h"
#include "workers/bitext/shared_token_files.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kSlotBytesMax = std::uint64_t{1} << 30;
// Pairs of files that all lanes together hold open, about: each is four mappings, of which a
// process may have 65530.
constexpr std::size_t kPairsOpen = 6144;
constexpr std::size_t kPairsOpenOfLane = 128;
// What collation takes for a row beside the slot.
constexpr std::uint64_t kRowPrivateBytes = 184;

// Of the plans that come in; all 0 if nobody says them.
formats::BitextLimits limits_of(const StageView& stage) {
  return stage.links.input("input").said.get(kPlanLimits);
}

formats::BitextPadding padding_of(const StageView& stage) {
  const BitextCollatorConfig& own = stage.config.bitext_collator();
  const formats::BitextLimits* const plans = stage.links.input("input").said.find(kPlanLimits);
  formats::BitextPadding padding{.left_source = own.left_pad_source(),
                                 .left_target = own.left_pad_target(),
                                 .multiple = own.pad_to_multiple()};
  if (own.pad_to_fixed_length() && plans != nullptr) {
    const auto least = [](bool given, std::uint32_t length, std::uint64_t positions) {
      return given ? length : static_cast<std::uint32_t>(positions);
    };
    padding.source_least =
        least(own.has_fixed_source_length(), own.fixed_source_length(), plans->source_positions);
    padding.target_least =
        least(own.has_fixed_target_length(), own.fixed_target_length(), plans->target_positions);
  }
  return padding;
}

BitextCollator::BatchPosition position_of(const formats::BatchPlanHead& head) noexcept {
  return {head.epoch,      head.batch,      head.batches,     static_cast<std::uint64_t>(head.kind),
          head.generation, head.world_size, head.chain_epoch, head.chain_pass};
}

}  // namespace

BitextCollator::Slot::Slot(const StageView& stage)
    : padding(padding_of(stage)), capacity(formats::bitext_capacity(limits_of(stage), padding)) {
  const BitextCollatorConfig& own = stage.config.bitext_collator();
  SlotLayout layout;
  const auto add = [this, &layout](const char* name, const char* dtype,
                                   std::vector<std::int64_t> shape, std::uint64_t bytes) {
    const std::uint64_t offset = layout.place(bytes);
    arrays.push_back({name, dtype, std::move(shape), bytes, offset});
    return offset;
  };
  constexpr std::int64_t kRows = -1;
  constexpr std::int64_t kSourceWidth = -2;
  constexpr std::int64_t kTargetWidth = -3;
  const char* const token = own.compact() ? "int32" : "int64";
  const std::uint64_t token_bytes = own.compact() ? 4 : 8;
  id = add("id", "int64", {kRows}, 8 * capacity.rows);
  source = add("src_tokens", token, {kRows, kSourceWidth}, token_bytes * capacity.source_tokens);
  source_lengths = add("src_lengths", "int64", {kRows}, 8 * capacity.rows);
  previous =
      add("prev_output_tokens", token, {kRows, kTargetWidth}, token_bytes * capacity.target_tokens);
  target = add("target", token, {kRows, kTargetWidth}, token_bytes * capacity.target_tokens);
  ntokens = add("ntokens", "int64", {1}, 8);
  nsentences = add("nsentences", "int64", {1}, 8);
  position = add("position", "int64", {static_cast<std::int64_t>(kPositions)}, 8 * kPositions);
  if (own.enable_lang_ids()) {
    source_lang_id = add("src_lang_id", "int64", {kRows, 1}, 8 * capacity.rows);
    target_lang_id = add("tgt_lang_id", "int64", {kRows, 1}, 8 * capacity.rows);
  }
  if (own.lineage()) direction = add("direction", "int32", {kRows}, 4 * capacity.rows);
  end = layout.end();
}

BitextCollator::BitextCollator(const StageContext& context)
    : compact_(context.config.bitext_collator().compact()),
      slot_(context.view()),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      rows_(context.counter("rows")),
      batches_(context.counter("batches")),
      tokens_(context.counter("tokens")),
      padding_(context.counter("padding")),
      out_of_bounds_(context, "skipped_out_of_bounds"),
      unreadable_(context, "skipped_unreadable"),
      changed_(context, "skipped_changed"),
      too_large_(context, "skipped_too_large"),
      no_symbol_(context, "skipped_no_symbol"),
      damaged_(context, "plans_damaged"),
      files_max_(std::max(kPairsOpenOfLane, kPairsOpen / context.lanes)),
      collate_(slot_.padding, slot_.capacity) {}

template <typename Token>
formats::BitextArrays<Token> BitextCollator::arrays(std::byte* slot) const noexcept {
  const auto at = [slot]<typename T>(std::uint64_t offset, T*) {
    return offset == Slot::kNone ? nullptr : reinterpret_cast<T*>(slot + offset);
  };
  constexpr std::int64_t* kInt64 = nullptr;
  constexpr std::int32_t* kInt32 = nullptr;
  constexpr Token* kToken = nullptr;
  return {.id = at(slot_.id, kInt64),
          .source = at(slot_.source, kToken),
          .source_lengths = at(slot_.source_lengths, kInt64),
          .previous = at(slot_.previous, kToken),
          .target = at(slot_.target, kToken),
          .source_lang_id = at(slot_.source_lang_id, kInt64),
          .target_lang_id = at(slot_.target_lang_id, kInt64),
          .direction = at(slot_.direction, kInt32)};
}

// ---- files

// What has not been used for longest is closed. What the plan at hand uses stays, even if that is
// more than may be open.
void BitextCollator::make_room() noexcept {
  while (files_.size() > files_max_) {
    const auto oldest =
        std::ranges::min_element(files_, {}, [](const auto& entry) { return entry.second.used; });
    if (oldest->second.used == plans_) return;
    files_.erase(oldest);
  }
}

// False, and a reason in missing_: they cannot be used now.
bool BitextCollator::open(const formats::BatchPlan& plan, std::size_t part, Files& files) noexcept {
  const formats::BatchPlanPart& wanted = plan.parts()[part];
  // First, so that what is opened is what is there now, unless another lane still reads the old
  // one.
  files.source.reset();
  files.target.reset();
  for (const bool target : {false, true}) {
    const std::string_view path = target ? plan.target(wanted) : plan.source(wanted);
    SharedFile& file = target ? files.target : files.source;
    (target ? files.target_path : files.source_path) = path;
    Result<SharedFile> opened = open_shared_token_file(std::string(path));
    if (!opened) {
      missing_.push_back({part, &unreadable_, std::string(path), opened.error().message()});
      return false;
    }
    file = std::move(*opened);
    if (file->sentences() != wanted.sentences) {
      missing_.push_back({part, &changed_, std::string(path),
                          fmt::format("it has {} sentences, but had {} when the epoch was planned; "
                                      "restore the previous file, or start a new feed",
                                      file->sentences(), wanted.sentences)});
      return false;
    }
  }
  return true;
}

void BitextCollator::find_files(const formats::BatchPlan& plan) noexcept {
  ++plans_;
  at_hand_.clear();
  missing_.clear();
  for (std::size_t p = 0; p < plan.parts().size(); ++p) {
    const formats::BatchPlanPart& part = plan.parts()[p];
    const auto [at, added] = files_.try_emplace(part.number);
    Files& files = at->second;
    const bool others = added || files.source_path != plan.source(part) ||
                        files.target_path != plan.target(part) ||
                        files.source->sentences() != part.sentences;
    // What the plan's parts before this one use stays as it is: two of one number contradict each
    // other.
    const bool contradicts = !added && others && files.used == plans_;
    if (contradicts) {
      missing_.push_back({p, &changed_, std::string(plan.source(part)),
                          "the plan gives one number to two pairs of files"});
    }
    if (contradicts || (others && !open(plan, p, files))) {
      at_hand_.push_back({});
      // It is tried again for the next batch.
      if (!contradicts) files_.erase(at);
      continue;
    }
    files.used = plans_;
    at_hand_.push_back({files.source.get(), files.target.get()});
  }
  make_room();
}

void BitextCollator::count_skips(Step& step, const formats::BatchPlan& plan) noexcept {
  for (const Missing& missing : missing_) {
    for (const formats::BatchPlanRow& row : plan.rows()) {
      if (row.part != missing.part) continue;
      missing.why->skip_sentence(step, missing.path, plan.sentence(row), missing.text);
    }
  }
  for (const formats::BitextCollate::Skipped& skipped : collate_.skipped()) {
    const formats::BatchPlanRow& row = plan.rows()[skipped.row];
    const formats::BatchPlanPart& part = plan.parts()[row.part];
    const std::string_view path = skipped.target ? plan.target(part) : plan.source(part);
    if (skipped.why == formats::BitextCollate::Skip::kOutOfBounds) {
      out_of_bounds_.skip_sentence(
          step, path, plan.sentence(row),
          "the index places the sentence outside of the .bin file: they do not belong together, or "
          "one has been truncated; copy both again");
    } else if (skipped.why == formats::BitextCollate::Skip::kNoSymbol) {
      no_symbol_.skip_sentence(
          step, path, plan.sentence(row),
          fmt::format("an id in it is not one of the {} of the dictionary: the file is damaged, is "
                      "being written to, or belongs to another dictionary; put the right one there",
                      skipped.target ? part.target_symbols : part.source_symbols));
    } else {
      too_large_.skip_sentence(
          step, path, plan.sentence(row),
          "the sentence is longer than planned, or its batch is: the file has changed since the "
          "epoch was planned; restore the previous file, or start a new feed");
    }
  }
}

// ---- batches

void BitextCollator::publish(Step& step, std::byte* slot, const BatchPosition& position,
                             std::uint64_t rows, std::uint32_t source_width,
                             std::uint32_t target_width) noexcept {
  std::memcpy(slot + slot_.nsentences, &rows, sizeof rows);
  std::memcpy(slot + slot_.position, position.data(), sizeof position);
  const std::uint32_t ragged[2] = {source_width, target_width};
  step.publish_batch(static_cast<std::uint32_t>(rows), slot_.end,
                     {position[kEpoch], position[kBatch]}, ragged);
  step.count(batches_);
}

void BitextCollator::publish_empty(Step& step, std::byte* slot,
                                   const BatchPosition& position) noexcept {
  const std::uint64_t none = 0;
  std::memcpy(slot + slot_.ntokens, &none, sizeof none);
  publish(step, slot, position, 0, 0, 0);
}

void BitextCollator::forget(Step& step, const Record& record) noexcept {
  // Of a record that has killed, no more is looked at than its head.
  formats::BatchPlanHead head;
  BatchPosition position{};
  if (record.bytes.size() >= sizeof head) {
    std::memcpy(&head, record.bytes.data(), sizeof head);
    if (head.kind <= formats::BatchKind::kFirstStandIn) position = position_of(head);
  }
  step.store(state_.owed, 1);
  for (std::size_t i = 0; i < kPositions; ++i) step.store(state_.position[i], position[i]);
}

StepStatus BitextCollator::step(Step& step) noexcept {
  // A look at the next record may set one aside, so what is owed is known behind it; what was owed
  // before goes first, so that it is not the next record that is blamed for a death meanwhile.
  std::optional<Record> record;
  if (step.load(state_.owed) == 0) record = step.peek(in_);
  const bool owed = step.load(state_.owed) != 0;
  if (!owed && !record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const std::span<std::byte> slot = step.open_batch();
  if (slot.empty()) return StepStatus::kNoRoom;
  if (owed) {
    BatchPosition position;
    for (std::size_t i = 0; i < kPositions; ++i) position[i] = step.load(state_.position[i]);
    step.store(state_.owed, 0);
    publish_empty(step, slot.data(), position);
    return StepStatus::kDone;
  }

  formats::BatchPlan plan;
  if (!plan.read(record->bytes)) {
    damaged_.skip(step, "plan", record->tag[0],
                  fmt::format("{} bytes are not a batch plan", record->bytes.size()));
    publish_empty(step, slot.data(), {});
    return step.consume(*record);
  }
  find_files(plan);
  collate_.gather(plan, at_hand_);
  // Each turn leaves rows out.
  while (compact_ ? !collate_.write(arrays<std::int32_t>(slot.data()))
                  : !collate_.write(arrays<std::int64_t>(slot.data()))) {
  }
  count_skips(step, plan);
  const std::uint64_t tokens = collate_.source_tokens() + collate_.target_tokens();
  const std::uint64_t places = collate_.rows() * (std::uint64_t{collate_.source_width()} +
                                                  std::uint64_t{collate_.target_width()});
  const std::uint64_t target_tokens = collate_.target_tokens();
  std::memcpy(slot.data() + slot_.ntokens, &target_tokens, sizeof target_tokens);
  step.count(rows_, collate_.rows());
  step.count(tokens_, tokens);
  step.count(padding_, places - tokens);
  publish(step, slot.data(), position_of(plan.head()), collate_.rows(), collate_.source_width(),
          collate_.target_width());
  return step.consume(*record);
}

// ---- the type

StageType bitext_collator_type() {
  StageType type;
  type.kind = "bitext_collator";
  type.inputs = {{"input", "batch_plans"}};
  type.outputs = {{"output", "batches"}};
  type.counters = {
      {"rows", "Rows written to batches."},
      {"batches", "Batches published, including stand-ins."},
      {"tokens", "Tokens of both sides, without padding."},
      {"padding", "Padding of both sides, in tokens."},
      {"skipped_out_of_bounds", "Sentences that are not where the index says."},
      {"skipped_unreadable", "Sentences whose file can no longer be opened or read."},
      {"skipped_changed", "Sentences whose file has changed since it was planned."},
      {"skipped_too_large", "Sentences that are longer than planned."},
      {"plans_damaged", "Records that are not batch plans."},
      {"skipped_no_symbol", "Sentences with an id that the dictionary does not have."},
  };
  type.problems = [](const StageView& stage) {
    const BitextCollatorConfig& own = stage.config.bitext_collator();
    std::vector<Problem> problems;
    const Facts& plans = stage.links.input("input").said;
    if (plans.find(kPlanLimits) == nullptr) return problems;  // which the wiring says
    const BitextCollator::Slot slot(stage);
    if (slot.end > kSlotBytesMax) {
      problems.push_back(
          {own.pad_to_fixed_length()   ? "pad_to_fixed_length"
           : own.pad_to_multiple() > 1 ? "pad_to_multiple"
                                       : "input",
           fmt::format("the largest batch of {} sentences, {} source and {} target tokens, with "
                       "padding, takes {} bytes, but a slot has at most {}; lower max_tokens, "
                       "batch_size, max_source_positions or max_target_positions of {}{}",
                       slot.capacity.rows, slot.capacity.source_tokens, slot.capacity.target_tokens,
                       slot.end, kSlotBytesMax, own.input(),
                       own.compact() ? "" : ", or set compact")});
    }
    const std::string* const replaced_by = plans.find(kBosEosReplacedBy);
    if (own.left_pad_target() && replaced_by != nullptr) {
      problems.push_back({"left_pad_target",
                          fmt::format("with lang_tok_replacing_bos_eos of {} targets are padded on "
                                      "the right; remove one of the two",
                                      *replaced_by)});
    }
    return problems;
  };
  type.show_row = &bitext_row_text;
  type.batch = [](const StageView& stage, BatchSchema& schema) {
    const BitextCollator::Slot slot(stage);
    describe_batch(slot.arrays, slot.capacity.rows, slot.end, schema);
  };
  type.nodes = [](const StageView& stage) {
    const BitextCollatorConfig& own = stage.config.bitext_collator();
    const BitextCollator::Slot slot(stage);
    NodeSpec node;
    node.lanes = own.threads();
    node.more_lanes = kMoreThreads;
    StateLayout layout;
    (void)BitextCollator::State(layout);
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "batches", 0, UnitRule::kExplicit)};
    node.private_bytes = kRowPrivateBytes * slot.capacity.rows;
    node.weight = 0.3;
    node.steps_per_commit = 1;
    node.entries_per_step = 64;
    node.create = [](const StageContext& context) {
      return std::make_unique<BitextCollator>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = corpus_example(
      "stages { name: \"planner\" epoch_planner { input: \"bitext\" max_tokens: 600 } }\n"
      "stages { name: \"batches\" bitext_collator { input: \"planner\" compact: true } }\n");
  return type;
}

}  // namespace ringfeed
