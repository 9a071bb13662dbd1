#include "workers/bitext/bitext_source.h"

#include <algorithm>
#include <cstring>

#include "proto/stages/bitext.pb.h"
#include "workers/bitext/batch_plan.h"
#include "workers/bitext/bitext_facts.h"
#include "workers/bitext/corpus_example.h"
#include "workers/io/token_file.h"

namespace ringfeed {
namespace {

using formats::kNoToken;
using formats::TokenFile;

constexpr std::uint64_t kQueueBytes = kMiB;

}  // namespace

BitextSource::State::State(StateLayout& layout, std::uint64_t pairs)
    : laid(layout.word()),
      next(layout.word()),
      plan(layout.place(sizeof(PlanHead) + pairs * sizeof(PlanEntry))) {}

BitextSource::BitextSource(const StageContext& context)
    : context_(context),
      pairs_(bitext_pairs(context.config.bitext_source())),
      state_([this] {
        StateLayout layout;
        return State(layout, pairs_.size());
      }()),
      out_(context.output("output")),
      waits_(context.feed.epochs() == 0),
      directions_(context.counter("directions")),
      sentences_(context.counter("sentences")),
      directions_missing_(context.counter("directions_missing")),
      unreadable_(context, "skipped_unreadable"),
      damaged_(context, "skipped_damaged"),
      unequal_(context, "skipped_unequal") {
  if (context.load(state_.laid) == 0) return;
  Plan plan;
  const std::byte* at = context.state + state_.plan.offset;
  std::memcpy(&plan.head, at, sizeof plan.head);
  plan.entries.resize(pairs_.size());
  if (!pairs_.empty()) {
    std::memcpy(plan.entries.data(), at + sizeof plan.head, pairs_.size() * sizeof(PlanEntry));
  }
  take_plan(std::move(plan));
}

void BitextSource::take_plan(Plan plan) {
  plan_ = std::move(plan);
  laid_ = true;
  count_ = 0;
  numbers_.clear();
  std::uint32_t shards = 0;
  for (const PlanEntry& entry : plan_.entries) {
    numbers_.push_back(count_);
    count_ += entry.shards != 0 ? 1 : 0;
    shards = std::max(shards, entry.shards);
  }
  tasks_.clear();
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    for (std::uint32_t pair = 0; pair < plan_.entries.size(); ++pair) {
      if (shard < plan_.entries[pair].shards) tasks_.push_back({pair, shard});
    }
  }
}

StepStatus BitextSource::wait(const Problem& problem) noexcept {
  const std::string text =
      fmt::format("{}{}{}", problem.field, problem.field.empty() ? "" : ": ", problem.text);
  context_.note(fmt::format("{} {}", waits_ ? "waiting:" : "ended without data:", text));
  if (waiting_.speak()) {
    context_.warn(fmt::format("{} stage={} count={}: {}", waits_ ? "waiting" : "no_data",
                              context_.stage, waiting_.count(), text));
  }
  return waits_ ? StepStatus::kIdle : StepStatus::kEnd;
}

// What there is, once and for all.
StepStatus BitextSource::lay(Step& step) noexcept {
  const BitextSourceConfig& config = context_.config.bitext_source();
  listing_.emplace(config);
  if (!listing_->problems().empty()) return wait(listing_->problems().front());
  std::vector<Problem> problems;
  const BitextVocabulary vocabulary = read_bitext_vocabulary(config, pairs_, problems);
  if (!problems.empty()) return wait(problems.front());
  Plan plan;
  std::copy(vocabulary.tags.begin(), vocabulary.tags.end(), plan.head.tags);
  plan.head.source_symbols = vocabulary.source_symbols;
  plan.head.target_symbols = vocabulary.target_symbols;
  std::uint64_t missing = 0;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const BitextTokens& tokens = vocabulary.of_pair[i];
    PlanEntry entry{};
    entry.shards = listing_->shards(pairs_[i]);
    entry.encoder_token = tokens.encoder.value_or(kNoToken);
    entry.decoder_token = tokens.decoder.value_or(kNoToken);
    entry.source_lang_id = tokens.source_lang_id;
    entry.target_lang_id = tokens.target_lang_id;
    plan.entries.push_back(entry);
    if (entry.shards != 0) continue;
    ++missing;
    if (missing_.speak()) {
      context_.warn(fmt::format("direction_missing stage={} count={}: {}", context_.stage,
                                missing_.count(), listing_->missing(pairs_[i])));
    }
  }
  std::vector<std::byte> bytes(state_.plan.bytes);
  std::memcpy(bytes.data(), &plan.head, sizeof plan.head);
  if (!plan.entries.empty()) {
    std::memcpy(bytes.data() + sizeof plan.head, plan.entries.data(),
                plan.entries.size() * sizeof(PlanEntry));
  }
  step.fill(state_.plan, bytes);
  step.store(state_.laid, 1);
  step.count(directions_missing_, missing);
  take_plan(std::move(plan));
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const PlanEntry& entry = plan_.entries[i];
    if (entry.shards == 0) continue;
    const auto token = [](std::uint32_t id) {
      return id == kNoToken ? std::string("none") : std::to_string(id);
    };
    context_.info(fmt::format(
        "direction stage={} number={} key={} shards={} encoder_token={} decoder_token={}",
        context_.stage, numbers_[i], pairs_[i].key(), entry.shards, token(entry.encoder_token),
        token(entry.decoder_token)));
  }
  return StepStatus::kDone;
}

void BitextSource::add_part(Made& made, const BitextFold& fold, BitextDirection& to) {
  const auto fail = [&](SkipReason& reason, const std::string& place, std::string text) {
    made.skip = &reason;
    made.place = place;
    made.text = std::move(text);
  };
  std::uint64_t sentences[2] = {};
  for (int side = 0; side < 2; ++side) {
    const std::string& prefix = side == 0 ? fold.source : fold.target;
    const Result<TokenFile> file = TokenFile::open(prefix);
    if (!file) {
      return fail(file.error().code() == ErrorCode::kIo ? unreadable_ : damaged_, prefix,
                  file.error().message());
    }
    sentences[side] = file->sentences();
    if (context_.config.bitext_source().warm_up()) file->warm_up();
  }
  if (sentences[0] != sentences[1]) {
    return fail(unequal_, fold.source, bitext_unequal(fold, sentences[0], sentences[1]));
  }
  if (sentences[0] == 0) return;
  made.sentences += sentences[0] * fold.repeat;
  BitextPart& part = *to.add_parts();
  part.set_source(fold.source);
  part.set_target(fold.target);
  part.set_sentences(sentences[0]);
  part.set_repeat(fold.repeat);
  if (fold.tag >= 0) part.set_source_tag(plan_.head.tags[fold.tag]);
}

BitextSource::Made BitextSource::make(const Task& task, std::uint64_t bytes_max) {
  const BitextSourceConfig& config = context_.config.bitext_source();
  const BitextPair& pair = pairs_[task.pair];
  const PlanEntry& entry = plan_.entries[task.pair];
  BitextDirection record;
  record.set_number(numbers_[task.pair]);
  record.set_directions(count_);
  record.set_key(pair.key());
  record.set_shard(task.shard);
  record.set_shards(entry.shards);
  if (entry.encoder_token != kNoToken) record.set_encoder_token(entry.encoder_token);
  if (entry.decoder_token != kNoToken) record.set_decoder_token(entry.decoder_token);
  if (config.lang_tok_replacing_bos_eos()) record.set_replaces_eos(true);
  record.set_source_lang_id(entry.source_lang_id);
  record.set_target_lang_id(entry.target_lang_id);
  if (config.has_truncate_source()) record.set_truncate_source(config.truncate_source());
  if (plan_.head.source_symbols != 0) record.set_source_symbols(plan_.head.source_symbols);
  if (plan_.head.target_symbols != 0) record.set_target_symbols(plan_.head.target_symbols);
  Made made;
  if (!listing_) listing_.emplace(config);
  const std::vector<BitextFold> folds = listing_->folds(pair, task.shard);
  for (const BitextFold& fold : folds) {
    add_part(made, fold, record);
    if (made.skip != nullptr) break;
  }
  if (folds.empty()) {
    made.text = listing_->missing(pair, task.shard);
  } else if (made.skip == nullptr && record.ByteSizeLong() > bytes_max) {
    made.skip = &unreadable_;
    made.place = folds.front().source;
    made.text = fmt::format(
        "its description takes {} bytes, but a record has at most {}; raise queue_bytes to {}",
        record.ByteSizeLong(), bytes_max, std::bit_ceil(2 * record.ByteSizeLong() + 256));
  }
  if (made.skip != nullptr) {
    record.clear_parts();
    made.sentences = 0;
  }
  made.bytes = record.SerializeAsString();
  return made;
}

StepStatus BitextSource::step(Step& step) noexcept {
  if (step.draining()) return StepStatus::kEnd;
  if (!laid_) return lay(step);
  const std::uint64_t next = step.load(state_.next);
  RF_CHECK(next <= tasks_.size(), next, tasks_.size());
  if (next == tasks_.size()) {
    listing_.reset();
    context_.note("");
    return StepStatus::kEnd;
  }
  const Task task = tasks_[next];
  const BitextPair& pair = pairs_[task.pair];
  if (!made_ || made_number_ != next) {
    context_.note(fmt::format("shard {} of {}", task.shard + 1, pair.key()));
    made_ = make(task, step.record_bytes_max(out_));
    made_number_ = next;
  }
  if (!step.put(out_, std::as_bytes(std::span(made_->bytes)),
                {.tag = {numbers_[task.pair], task.shard}})) {
    return StepStatus::kNoRoom;
  }
  step.store(state_.next, next + 1);
  step.count(directions_);
  step.count(sentences_, made_->sentences);
  if (made_->skip != nullptr) {
    made_->skip->skip(step, made_->place, 0, made_->text);
  } else if (!made_->text.empty()) {
    step.count(directions_missing_);
    if (missing_.speak()) {
      context_.warn(fmt::format("direction_missing stage={} count={}: {}", context_.stage,
                                missing_.count(), made_->text));
    }
  }
  made_.reset();
  return StepStatus::kDone;
}

// ---- the kind of stage

namespace {

// What the configuration tells of the text.
void say_of_corpus(const StageView& stage, PortFacts& outputs) {
  const BitextSourceConfig& own = stage.config.bitext_source();
  Facts& said = outputs["output"];
  said.set(kBitextCompat, BitextCompat_Name(own.compat()));
  BitextDirections named;
  const auto add = [&named](const std::string& category, const auto& pairs) {
    for (const std::string& pair : pairs) named.keys.push_back(category + ":" + pair);
  };
  if (!own.ignore_main_data()) add("main", own.lang_pairs());
  bool sharded = own.directory_size() > 1;
  auto pairs = static_cast<std::uint64_t>(own.lang_pairs_size());
  const auto longest = [](const auto& texts) {
    std::uint64_t bytes = 0;
    for (const std::string& text : texts) bytes = std::max<std::uint64_t>(bytes, text.size());
    return bytes;
  };
  std::uint64_t directory_bytes = longest(own.directory());
  std::uint64_t pair_bytes = longest(own.lang_pairs());
  for (const auto& extra : own.extra_data()) {
    add(extra.category(), extra.lang_pairs());
    sharded = sharded || extra.directory_size() > 1;
    pairs += static_cast<std::uint64_t>(extra.lang_pairs_size());
    directory_bytes = std::max(directory_bytes, longest(extra.directory()));
    pair_bytes = std::max(pair_bytes, longest(extra.lang_pairs()));
  }
  said.set(kBitextDirections, std::move(named));
  said.set(kBitextSharded, sharded);
  // With combine there may be more of them than there are names.
  const auto subsets =
      static_cast<std::uint64_t>(std::max(own.combine() ? 16 : 1, own.subsets_size()));
  said.set(kBitextPartsMax, std::max<std::uint64_t>(1, pairs * subsets));
  // DIRECTORY/SUBSET.SRC-TGT.LANG
  said.set(kBitextPathBytesMax, directory_bytes + longest(own.subsets()) + 2 * pair_bytes + 32);
  if (own.lang_tok_replacing_bos_eos()) said.set(kBosEosReplacedBy, stage.config.name());
}

}  // namespace

StageType bitext_source_type() {
  StageType type;
  type.kind = "bitext_source";
  type.outputs = {{"output", "bitext"}};
  type.counters = {
      {"directions", "Directions output, one for each direction and shard."},
      {"sentences", "Sentences of all shards; repeated parts count each time."},
      {"directions_missing", "Directions without files."},
      {"skipped_unreadable", "Directions in a shard that could not be opened or read."},
      {"skipped_damaged", "Directions in a shard whose files are not token files, or are damaged."},
      {"skipped_unequal", "Directions in a shard with source and target of different length."},
  };
  type.problems = [](const StageView& stage) {
    return bitext_problems(stage.config.bitext_source());
  };
  type.facts = say_of_corpus;
  type.nodes = [](const StageView& stage) {
    NodeSpec node;
    StateLayout layout;
    (void)BitextSource::State(layout, bitext_pairs(stage.config.bitext_source()).size());
    node.state_bytes = layout.bytes();
    node.state_version = 2;
    node.outputs = {
        output_spec(stage.config.bitext_source(), "bitext", kQueueBytes, UnitRule::kRecord)};
    node.weight = 0.1;
    // A record opens files, which may take their time: it is not to wait for others.
    node.steps_per_commit = 1;
    node.create = [](const StageContext& context) {
      return std::make_unique<BitextSource>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = corpus_example();
  return type;
}

}  // namespace ringfeed
