#include "workers/chess/variation_mixer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "workers/chess/sequence_facts.h"
#include "workers/chess/sequence_pool.h"
#include "workers/chess/sequence_records.h"
#include "workers/chess/token_sequence.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {
namespace {

// A uniform number has so many values.
constexpr std::uint64_t kUniform = std::uint64_t{1} << 53;
constexpr std::uint64_t kSamplesPerNote = 256;  // a note is for people, who look now and then

// Passes a sample on with another epoch of the variations. False: no room now.
bool put_sample(Step& step, OutPort out, const Record& record, std::uint64_t epoch) noexcept {
  const std::span<std::byte> room = step.reserve(out, record.bytes.size());
  if (room.empty()) return false;
  std::memcpy(room.data(), record.bytes.data(), record.bytes.size());
  const std::span<std::byte> sample = room.first(record.bytes.size());
  formats::set_variation_epoch(sample, static_cast<std::uint32_t>(epoch));
  step.put_reserved(out, sample.size(), sequence_info(sample));
  return true;
}

}  // namespace

// ---- BETTER

VariationMixer::VariationMixer(const StageContext& context)
    : ratio_(context.config.variation_mixer().variation_ratio()),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      games_in_(context.input("input")),
      variations_in_(context.input("variations")),
      out_(context.output("output")),
      games_(context.counter("games")),
      variations_(context.counter("variations")),
      variation_epochs_(context.counter("variation_epochs")),
      games_instead_(context.counter("games_instead")),
      stage_(context.stage),
      warn_(context.warn),
      note_(context.note) {}

StepStatus VariationMixer::pass_on(Step& step, const Record& record, bool variation) noexcept {
  if (!put_sample(step, out_, record, step.load(state_.variation_epoch))) {
    return StepStatus::kNoRoom;
  }
  step.count(variation ? variations_ : games_);
  const std::uint64_t samples = step.load(state_.samples) + 1;
  step.store(state_.samples, samples);
  if (variation) step.store(state_.variations, step.load(state_.variations) + 1);
  if (samples % kSamplesPerNote == 0) note_(ratios(step));
  return step.consume(record);
}

std::string VariationMixer::ratios(const Step& step) const {
  const std::uint64_t samples = step.load(state_.samples);
  const std::uint64_t variations = step.load(state_.variations);
  return fmt::format(
      "{:.3f} of {} samples are variations, {:.3f} is configured",
      static_cast<double>(variations) / static_cast<double>(std::max<std::uint64_t>(samples, 1)),
      samples, ratio_);
}

void VariationMixer::give_up_variations(Step& step, std::string_view why) noexcept {
  warn_(fmt::format("no_variations stage={}: {}; {}; only games from here on", stage_, why,
                    ratios(step)));
  step.store(state_.no_variations, 1);
}

// A step that found nothing to take draws the same number again, and the end of an epoch is met
// where a variation is wanted: nothing hangs on what has arrived already.
StepStatus VariationMixer::step(Step& step) noexcept {
  const bool wants_variation =
      static_cast<double>(step.draw(kUniform)) < ratio_ * static_cast<double>(kUniform);
  if (wants_variation && step.load(state_.no_variations) == 0) {
    const std::optional<Record> variation = step.peek(variations_in_);
    if (!variation && !step.ended(variations_in_)) return StepStatus::kNoInput;
    if (variation && variation->user == kSequenceRecord) {
      step.store(state_.epoch_variations, 1);
      return pass_on(step, *variation, true);
    }
    if (variation) {
      if (step.load(state_.epoch_variations) == 0) {
        give_up_variations(step, "not one in a whole epoch");
      }
      step.store(state_.epoch_variations, 0);
      step.store(state_.variation_epoch, step.load(state_.variation_epoch) + 1);
      step.count(variation_epochs_);
      return step.consume(*variation);
    }
  }
  const std::optional<Record> game = step.peek(games_in_);
  if (!game) {
    if (!step.ended(games_in_)) return StepStatus::kNoInput;
    note_(ratios(step));
    return StepStatus::kEnd;
  }
  if (game->user != kSequenceRecord) return step.consume(*game);
  if (wants_variation) {
    step.count(games_instead_);
    if (step.load(state_.no_variations) == 0) {
      give_up_variations(step, "they have ended (their source of rows does not have repeat: true)");
    }
  }
  return pass_on(step, *game, false);
}

// ---- EXACT

ExactMixer::State::Worker::Worker(StateLayout& layout)
    : python(layout.word()),
      numpy(layout.word()),
      variation_epoch(layout.word()),
      games_begun(layout.word()),
      variations_begun(layout.word()) {}

ExactMixer::State::State(StateLayout& layout, std::uint32_t worker_count)
    : asked(layout.word()), turns(layout, worker_count) {
  for (std::uint32_t i = 0; i < worker_count; ++i) workers.emplace_back(layout);
}

ExactMixer::ExactMixer(const StageContext& context)
    : context_(context),
      ratio_(context.config.variation_mixer().variation_ratio()),
      rank_(static_cast<std::uint32_t>(context.links.input("input").said.get(kRank))),
      state_([&context] {
        StateLayout layout;
        return State(layout, std::max(context.config.variation_mixer().workers(), 1U));
      }()),
      turns_(state_.turns, exact_batch_size(context.view())),
      games_in_(context.input("input")),
      variations_in_(context.input("variations")),
      out_(context.output("output")),
      game_turns_(context.output("game_turns")),
      variation_turns_(context.output("variation_turns")),
      games_(context.counter("games")),
      variations_(context.counter("variations")),
      variation_epochs_(context.counter("variation_epochs")),
      games_instead_(context.counter("games_instead")),
      random_(state_.workers.size()) {}

StepStatus ExactMixer::step(Step& step) noexcept {
  const std::uint64_t asked = step.load(state_.asked);
  if (asked != kNobody) {
    const InPort from = asked == kGame ? games_in_ : variations_in_;
    const std::optional<Record> answer = step.peek(from);
    if (answer) return take(step, *answer, asked);
    return step.ended(from) ? StepStatus::kEnd : StepStatus::kNoInput;
  }
  const std::uint32_t number = turns_.worker(step);
  const State::Worker& worker = state_.workers[number];
  std::optional<RandomStreams>& random = random_[number];
  if (!random || !random->is_of(turns_.epoch(step))) {
    random.emplace(context_.seed, turns_.epoch(step), number, rank_);
  }
  random->go_to({step.load(worker.python), step.load(worker.numpy)});
  const bool wants_variation = random->python.uniform() < ratio_;
  return ask(step, wants_variation ? kVariation : kGame, random->place());
}

// An answer that is set aside: the sample is lost, and the streams go on behind it.
void ExactMixer::forget(Step& step, const Record& record) noexcept {
  const State::Worker& worker = state_.workers[turns_.worker(step)];
  step.store(worker.python, record.tag[0]);
  step.store(worker.numpy, record.tag[1]);
  step.store(state_.asked, kNobody);
}

StepStatus ExactMixer::ask(Step& step, std::uint64_t whom, const RandomPlace& place) {
  const std::uint32_t number = turns_.worker(step);
  const State::Worker& worker = state_.workers[number];
  const Word begun = whom == kGame ? worker.games_begun : worker.variations_begun;
  const TurnRecord turn{.random = place,
                        .worker = number,
                        .workers = static_cast<std::uint32_t>(state_.workers.size()),
                        .epoch = turns_.epoch(step),
                        .restart = step.load(begun) == 0 || whom == kVariationAgain ? 1U : 0U};
  const OutPort out = whom == kGame ? game_turns_ : variation_turns_;
  if (!step.put(out, std::as_bytes(std::span(&turn, 1)))) return StepStatus::kNoRoom;
  step.store(begun, 1);
  step.store(worker.python, place.python);
  step.store(worker.numpy, place.numpy);
  step.store(state_.asked, whom);
  return StepStatus::kDone;
}

StepStatus ExactMixer::take(Step& step, const Record& answer, std::uint64_t asked) {
  const State::Worker& worker = state_.workers[turns_.worker(step)];
  const RandomPlace place{answer.tag[0], answer.tag[1]};
  step.store(worker.python, place.python);
  step.store(worker.numpy, place.numpy);
  step.store(state_.asked, kNobody);
  if (answer.user != kNoSampleRecord) {
    if (!put_sample(step, out_, answer, step.load(worker.variation_epoch))) {
      return StepStatus::kNoRoom;
    }
    step.count(asked == kGame ? games_ : variations_);
    turns_.sample(step);
    return step.consume(answer);
  }
  if (asked == kVariation) {
    step.store(worker.variation_epoch, step.load(worker.variation_epoch) + 1);
    step.count(variation_epochs_);
    const StepStatus status = ask(step, kVariationAgain, place);
    return status == StepStatus::kDone ? step.consume(answer) : status;
  }
  if (asked == kVariationAgain) {
    step.count(games_instead_);
    const StepStatus status = ask(step, kGame, place);
    return status == StepStatus::kDone ? step.consume(answer) : status;
  }
  switch (turns_.worker_done(step, out_)) {
    case ExactTurns::Then::kNoRoom:
      return StepStatus::kNoRoom;
    case ExactTurns::Then::kNextWorker:
      return step.consume(answer);
    case ExactTurns::Then::kNothing:
      context_.warn(fmt::format("no_samples stage={}: not one in a whole epoch", context_.stage));
      return StepStatus::kEnd;
    case ExactTurns::Then::kNextEpoch:
      break;
  }
  if (turns_.epoch(step) == context_.feed.epochs()) return StepStatus::kEnd;
  for (const State::Worker& each : state_.workers) {
    for (const Word word :
         {each.python, each.numpy, each.variation_epoch, each.games_begun, each.variations_begun}) {
      step.store(word, 0);
    }
  }
  return step.consume(answer);
}

// ---- the stage

namespace {

// Of the longest sequence that comes in.
std::uint64_t length_of(const StageView& stage) {
  return std::max(stage.links.input("input").said.get(kLengthMax),
                  stage.links.input("variations").said.get(kLengthMax));
}

void say_of_mix(const StageView& stage, PortFacts& outputs) {
  Facts& said = outputs["output"];
  const Facts& games = stage.links.input("input").said;
  const Facts& variations = stage.links.input("variations").said;
  said.set(kLengthMax, length_of(stage));
  said.set(kHasVariations, games.get(kHasVariations) || variations.get(kHasVariations));
  said.set(kExactOrder, stage.config.variation_mixer().order() == EXACT);
}

void ask_of_sequences(const StageView& stage, PortFacts& inputs) {
  const VariationMixerConfig& own = stage.config.variation_mixer();
  for (const char* port : {"input", "variations"}) {
    Facts& wishes = inputs[port];
    wishes.set(kMixed, true);
    wishes.set(kExactOrder, own.order() == EXACT);
    wishes.set(kTurnWorkers, own.workers());
  }
}

}  // namespace

StageType variation_mixer_type() {
  StageType type;
  type.kind = "variation_mixer";
  type.inputs = {{"input", "sequences"}, {"variations", "sequences"}};
  type.outputs = {{"output", "sequences"}};
  type.counters = {
      {"games", "Sequences of games output."},
      {"variations", "Sequences of variations output."},
      {"variation_epochs", "Epochs of the variations that have ended."},
      {"games_instead", "Games output where a variation was drawn but none was left."},
  };
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>&,
                       std::vector<PortSpec>& outputs) {
    if (stage.config.variation_mixer().order() != EXACT) return;
    outputs.push_back({"game_turns", "turns"});
    outputs.push_back({"variation_turns", "turns"});
  };
  type.problems = [](const StageView& stage) {
    const VariationMixerConfig& own = stage.config.variation_mixer();
    const Link& games = stage.links.input("input");
    const Link& variations = stage.links.input("variations");
    const SequenceQueue queue{
        .bytes = own.has_queue_bytes() ? std::optional(own.queue_bytes()) : std::nullopt,
        .exact = own.order() == EXACT,
        .may_drop = own.overflow_behavior() != BLOCK};
    std::vector<Problem> problems = sequence_queue_problems(stage, queue, length_of(stage));
    const auto check = [&](const Link& link, bool fits, const char* field, const char* kind) {
      if (own.order() != EXACT || !link.linked() || fits) return;
      problems.push_back({field, fmt::format("with order EXACT it must be a {}, which '{}' is not",
                                             kind, link.stage)});
    };
    const bool searched = variations.said.get(kFromRows) && variations.said.get(kHasVariations);
    check(games, games.said.get(kFromRows) && !games.said.get(kHasVariations), "input",
          "chess_games");
    if (own.order() != EXACT && stage.feed.epochs() > 0 && own.variation_ratio() > 0 && searched &&
        !variations.said.get(kRepeat)) {
      problems.push_back(
          {.field = "variation_ratio",
           .text = fmt::format("variation_ratio {} holds only as long as there are variations: "
                               "stage '{}' ends with epoch {}; if that is before the end of the "
                               "games, only games follow; give it repeat: true",
                               own.variation_ratio(), variations.said.get(kRowsFrom),
                               stage.feed.epochs()),
           .warning = true});
    }
    check(variations, searched, "variations", "chess_variations");
    return problems;
  };
  type.facts = say_of_mix;
  type.wishes = ask_of_sequences;
  type.nodes = [](const StageView& stage) {
    const VariationMixerConfig& own = stage.config.variation_mixer();
    NodeSpec node;
    StateLayout layout;
    node.inputs = {{.port = "input", .from = "", .block = 1},
                   {.port = "variations", .from = "", .block = 1}};
    node.outputs = {
        output_spec(own, "sequences", sequence_queue_bytes(length_of(stage)), UnitRule::kRecord)};
    node.weight = 0.1;
    if (own.order() != EXACT) {
      (void)VariationMixer::State(layout);
      node.state_bytes = layout.bytes();
      node.state_version = 2;
      node.steps_per_commit = 64;
      node.create = [](const StageContext& context) {
        return std::make_unique<VariationMixer>(context);
      };
      return std::vector<NodeSpec>{node};
    }
    const std::uint32_t workers = std::max(own.workers(), 1U);
    (void)ExactMixer::State(layout, workers);
    node.state_bytes = layout.bytes();
    node.steps_per_commit = 1;
    node.entries_per_step = 32 + 8 * workers;
    for (const char* port : {"game_turns", "variation_turns"}) {
      node.outputs.push_back({.port = port,
                              .record_type = "turns",
                              .exported = true,
                              .queue_capacity = 16,
                              .queue_bytes = 64 * kKiB,
                              .overflow = BLOCK,
                              .units = UnitRule::kRecord});
    }
    node.create = [](const StageContext& context) { return std::make_unique<ExactMixer>(context); };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "rows" parquet_source { directory: "/data/games" } }
stages { name: "games" chess_games { input: "rows" pool_size: 2000 } }
stages { name: "searched" parquet_source { directory: "/data/variations" repeat: true } }
stages { name: "variations" chess_variations { input: "searched" max_variations: 2 } }
stages {
  name: "mixer"
  variation_mixer { input: "games" variations: "variations" variation_ratio: 0.3 }
}
)",
                  .maker = "chess_tables"};
  return type;
}

}  // namespace ringfeed
