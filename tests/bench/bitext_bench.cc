// What it costs to make a batch of parallel text from its plan, on one core, beside a memcpy of the
// same bytes.
//
// Data: 16 directions, of 30 tokens in the mean on both sides, in files that are in memory. A batch
// holds sentences of like lengths from random places of all of them, in a planner's order; eight
// slots take turns, as in a feed. "large": 40,000 sentences each, 150 MB of uint32, which no cache
// holds: the time is that of some ten reads from random places of the memory for each sentence,
// which bitext/reads has alone. "small": 200 each, so that it is that of the instructions. The
// copies come from 400 batches that were made before.
//
// sentences/s is of one thread; bytes are those of the arrays of tokens, padding included.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/makers/bitext_maker.h"
#include "workers/bitext/bitext_collate.h"

namespace ringfeed::formats {
namespace {

using testing::BatchPlanMaker;
using testing::Sentences;

constexpr std::uint32_t kDirections = 16;
constexpr std::size_t kLarge = 40'000;
constexpr std::size_t kSmall = 200;
constexpr std::uint64_t kPlans = 400;
constexpr std::size_t kSlots = 8;
constexpr BitextPadding kPadding;

// Where a sentence is, and how long, with the language's token.
struct Place {
  std::uint32_t direction;
  std::uint64_t index;
  std::size_t lengths[2];  // of the source, of the target

  [[nodiscard]] std::size_t longer() const { return std::max(lengths[0], lengths[1]); }
  // As a planner orders them.
  [[nodiscard]] std::pair<std::size_t, std::size_t> order() const {
    return {lengths[0], lengths[1]};
  }
};

class Corpus {
 public:
  Corpus(TokenCode code, std::size_t sentences) : sentences_(sentences) {
    std::string name = (std::filesystem::temp_directory_path() / "ringfeed-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    std::mt19937_64 random(1);
    std::gamma_distribution<double> length(3.0, 29.0 / 3.0);
    for (std::uint32_t d = 0; d < kDirections; ++d) {
      Sentences sides[2];
      for (std::size_t i = 0; i < sentences_; ++i) {
        const double wanted = length(random);
        Place place{d, i, {}};
        for (Sentences& side : sides) {
          const double own = wanted * (0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000);
          std::vector<std::int64_t>& sentence = side.emplace_back();
          sentence.resize(1 + static_cast<std::size_t>(std::min(own, 250.0)));
          for (std::int64_t& token : sentence)
            token = 4 + static_cast<std::int64_t>(random() % 60000);
          sentence.push_back(2);
          place.lengths[&side - sides] = sentence.size() + 1;
        }
        places_.push_back(place);
      }
      for (int side = 0; side < 2; ++side) {
        const std::string prefix = name + "/" + std::to_string(d) + (side == 0 ? "s" : "t");
        testing::write_token_file(prefix, sides[side], code);
        Result<TokenFile> file = TokenFile::open(prefix);
        if (!file) std::abort();
        file->warm_up();
        opened_.push_back(std::move(*file));
      }
    }
    std::filesystem::remove_all(name);  // what is mapped stays
    for (std::size_t i = 0; i < opened_.size(); i += 2)
      files_.push_back({&opened_[i], &opened_[i + 1]});
    std::shuffle(places_.begin(), places_.end(), random);
    std::ranges::stable_sort(places_, {}, &Place::order);
  }

  [[nodiscard]] const std::vector<BitextFiles>& files() const { return files_; }

  // Batches of at most so many tokens, in a random order.
  [[nodiscard]] std::vector<std::string> plans(std::uint64_t max_tokens) const {
    std::vector<std::string> plans;
    std::mt19937_64 random(2);
    for (std::uint64_t i = 0; i < kPlans; ++i) {
      BatchPlanMaker plan;
      for (std::uint32_t d = 0; d < kDirections; ++d) {
        BatchPlanPart& part = plan.add_part(d, sentences_, "", "");
        part.encoder_token = 70000 + d;
        part.decoder_token = 70100 + d;
      }
      // Of equally many tokens each, so that long sentences have their share.
      std::size_t longest = 0;
      for (std::size_t at = random() % (places_.size() * 7 / 8); at < places_.size(); ++at) {
        longest = std::max(longest, places_[at].longer());
        if ((plan.rows.size() + 1) * longest > max_tokens) break;
        plan.add_row(places_[at].direction, places_[at].index);
      }
      plans.push_back(plan.bytes());
    }
    return plans;
  }

 private:
  std::size_t sentences_;
  std::vector<Place> places_;
  std::vector<TokenFile> opened_;
  std::vector<BitextFiles> files_;
};

const Corpus& corpus(TokenCode code, std::size_t sentences) {
  static std::map<std::pair<TokenCode, std::size_t>, Corpus> made;
  return made.try_emplace({code, sentences}, code, sentences).first->second;
}

// The arrays of a batch, as they lie in a slot.
struct Slot {
  explicit Slot(std::uint64_t max_tokens)
      : id(max_tokens),
        lengths(max_tokens),
        source(max_tokens),
        previous(max_tokens),
        target(max_tokens) {}
  [[nodiscard]] BitextArrays<std::int64_t> arrays() {
    return {.id = id.data(),
            .source = source.data(),
            .source_lengths = lengths.data(),
            .previous = previous.data(),
            .target = target.data()};
  }
  std::vector<std::int64_t> id, lengths, source, previous, target;
};

BatchPlan read_plan(const std::string& bytes) {
  BatchPlan plan;
  if (!plan.read({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()})) std::abort();
  return plan;
}

BitextCollate collate_of(std::uint64_t max_tokens) {
  return BitextCollate(
      kPadding,
      bitext_capacity(
          {.tokens = max_tokens, .rows = 0, .source_positions = 512, .target_positions = 512},
          kPadding));
}

std::uint64_t array_bytes(const BitextCollate& batch) {
  return 8 * std::uint64_t{batch.rows()} * (batch.source_width() + 2 * batch.target_width() + 2);
}

void set_rates(benchmark::State& state, std::uint64_t sentences, std::uint64_t bytes) {
  state.counters["sentences/s"] =
      benchmark::Counter(static_cast<double>(sentences), benchmark::Counter::kIsRate);
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
}

// max_tokens, code, sentences of a direction
void collate(benchmark::State& state) {
  const auto max_tokens = static_cast<std::uint64_t>(state.range(0));
  const auto code = static_cast<TokenCode>(state.range(1));
  const auto size = static_cast<std::size_t>(state.range(2));
  state.SetLabel(std::string(token_code_name(code)) + (size == kLarge ? " large" : " small"));
  const Corpus& from = corpus(code, size);
  const std::vector<std::string> plans = from.plans(max_tokens);
  std::vector<Slot> slots(kSlots, Slot(max_tokens));
  BitextCollate batch = collate_of(max_tokens);
  std::uint64_t sentences = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
  for (auto _ : state) {
    batch.gather(read_plan(plans[number % kPlans]), from.files());
    RF_CHECK(batch.write(slots[number % kSlots].arrays()), number);
    sentences += batch.rows();
    bytes += array_bytes(batch);
    ++number;
  }
  set_rates(state, sentences, bytes);
}

void copy(benchmark::State& state) {
  const auto max_tokens = static_cast<std::uint64_t>(state.range(0));
  const std::vector<std::string> plans = corpus(TokenCode::kUint32, kLarge).plans(max_tokens);
  std::vector<Slot> slots(kSlots, Slot(max_tokens));
  std::vector<Slot> made;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sizes;  // rows, bytes
  std::vector<std::array<std::size_t, 3>> counts;              // rows, source and target tokens
  for (const std::string& plan : plans) {
    BitextCollate batch = collate_of(max_tokens);
    batch.gather(read_plan(plan), corpus(TokenCode::kUint32, kLarge).files());
    Slot slot(max_tokens);
    RF_CHECK(batch.write(slot.arrays()), max_tokens);
    const std::size_t rows = batch.rows();
    counts.push_back({rows, rows * batch.source_width(), rows * batch.target_width()});
    for (auto* array : {&slot.id, &slot.lengths}) array->resize(rows);
    slot.source.resize(counts.back()[1]);
    for (auto* array : {&slot.previous, &slot.target}) array->resize(counts.back()[2]);
    sizes.emplace_back(rows, array_bytes(batch));
    made.push_back(slot);
  }
  std::uint64_t sentences = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
  for (auto _ : state) {
    const Slot& from = made[number % kPlans];
    Slot& to = slots[number % kSlots];
    for (auto array : {&Slot::id, &Slot::lengths, &Slot::source, &Slot::previous, &Slot::target}) {
      std::memcpy((to.*array).data(), (from.*array).data(), 8 * (from.*array).size());
    }
    benchmark::ClobberMemory();
    sentences += sizes[number % kPlans].first;
    bytes += sizes[number % kPlans].second;
    ++number;
  }
  set_rates(state, sentences, bytes);
}

// Each sentence's bytes are copied from where they lie in the files, as they are stored, with no
// index to look at: the places are known beforehand. The target's twice, as a batch has it.
// max_tokens, code
void copy_sentences(benchmark::State& state) {
  const auto max_tokens = static_cast<std::uint64_t>(state.range(0));
  const auto code = static_cast<TokenCode>(state.range(1));
  state.SetLabel(std::string(token_code_name(code)));
  const Corpus& from = corpus(code, kLarge);
  const std::size_t width = token_bytes(code);
  std::vector<std::vector<SentenceBytes>> places(kPlans);
  const std::vector<std::string> plans = from.plans(max_tokens);
  for (std::uint64_t i = 0; i < kPlans; ++i) {
    const BatchPlan plan = read_plan(plans[i]);
    for (const BatchPlanRow& row : plan.rows()) {
      for (const TokenFile* file : {from.files()[row.part].source, from.files()[row.part].target}) {
        places[i].push_back(*file->sentence(row.index));
      }
    }
  }
  std::vector<Slot> slots(kSlots, Slot(max_tokens));
  std::uint64_t sentences = 0;
  std::uint64_t number = 0;
  for (auto _ : state) {
    Slot& slot = slots[number % kSlots];
    const std::vector<SentenceBytes>& these = places[number++ % kPlans];
    auto* source = reinterpret_cast<std::byte*>(slot.source.data());
    auto* target = reinterpret_cast<std::byte*>(slot.target.data());
    auto* previous = reinterpret_cast<std::byte*>(slot.previous.data());
    for (std::size_t i = 0; i < these.size(); i += 2) {
      const std::size_t source_bytes = width * these[i].tokens;
      const std::size_t target_bytes = width * these[i + 1].tokens;
      std::memcpy(std::exchange(source, source + source_bytes), these[i].data, source_bytes);
      std::memcpy(std::exchange(target, target + target_bytes), these[i + 1].data, target_bytes);
      std::memcpy(std::exchange(previous, previous + target_bytes), these[i + 1].data,
                  target_bytes);
    }
    benchmark::ClobberMemory();
    sentences += these.size() / 2;
  }
  set_rates(state, sentences, 0);
}

// Of each sentence the entries of both indices and the first token of both sides are read, and
// nothing is done with them. max_tokens
void reads(benchmark::State& state) {
  const Corpus& from = corpus(TokenCode::kUint32, kLarge);
  const std::vector<std::string> plans = from.plans(static_cast<std::uint64_t>(state.range(0)));
  std::uint64_t sentences = 0;
  std::uint64_t number = 0;
  std::uint64_t sum = 0;
  std::vector<const std::byte*> begins;
  for (auto _ : state) {
    const BatchPlan plan = read_plan(plans[number++ % kPlans]);
    begins.clear();
    for (const BatchPlanRow& row : plan.rows()) {
      for (const TokenFile* file : {from.files()[row.part].source, from.files()[row.part].target}) {
        begins.push_back(file->sentence(row.index)->data);
      }
    }
    for (const std::byte* begin : begins) sum += std::to_integer<unsigned>(*begin);
    sentences += plan.rows().size();
  }
  benchmark::DoNotOptimize(sum);
  set_rates(state, sentences, 0);
}

BENCHMARK(collate)
    ->Name("bitext/collate")
    ->ArgsProduct({{4096, 16384},
                   {static_cast<int>(TokenCode::kUint16), static_cast<int>(TokenCode::kUint32)},
                   {kSmall, kLarge}});
BENCHMARK(reads)->Name("bitext/reads")->Arg(4096)->Arg(16384);
BENCHMARK(copy_sentences)
    ->Name("bitext/memcpy_sentences")
    ->ArgsProduct({{4096, 16384},
                   {static_cast<int>(TokenCode::kUint16), static_cast<int>(TokenCode::kUint32)}});
BENCHMARK(copy)->Name("bitext/memcpy")->Arg(4096)->Arg(16384);

}  // namespace
}  // namespace ringfeed::formats
