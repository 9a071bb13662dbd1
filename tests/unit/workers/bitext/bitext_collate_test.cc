// The specification of bitext_collate.h: random batches beside a slow and obvious collation of the
// same sentences, and the few that can be checked by eye.
#include "workers/bitext/bitext_collate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "tests/support/makers/bitext_maker.h"
#include "tests/support/rig/sha256.h"

namespace ringfeed::formats {
namespace {

using ringfeed::testing::BatchPlanMaker;
using ringfeed::testing::Sentences;
using ringfeed::testing::write_token_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::uint32_t> sorted(const std::vector<std::uint32_t>& lengths) {
  std::vector<std::uint64_t> scratch;
  std::vector<std::uint32_t> order(lengths.size());
  sort_rows(lengths, scratch, order);
  return order;
}

TEST(SortRows, LongestFirstAndStableUpToSixteen) {
  EXPECT_THAT(sorted({}), IsEmpty());
  EXPECT_THAT(sorted({7}), ElementsAre(0));
  EXPECT_THAT(sorted({3, 5, 3, 5, 4}), ElementsAre(1, 3, 4, 0, 2));
  std::vector<std::uint32_t> in_order(16);
  std::iota(in_order.begin(), in_order.end(), 0U);
  EXPECT_EQ(sorted(std::vector<std::uint32_t>(16, 5)), in_order);
}

// As torch.sort(descending=True) of PyTorch 1.13 orders them.
TEST(SortRows, SeventeenEqualLengthsAreNotLeftInTheirOrder) {
  EXPECT_THAT(sorted(std::vector<std::uint32_t>(17, 5)),
              ElementsAre(8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1));
}

#ifdef __GLIBCXX__
// What the original calls.
std::vector<std::uint32_t> library_sorted(const std::vector<std::uint32_t>& lengths) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> rows;
  for (std::uint32_t i = 0; i < lengths.size(); ++i) rows.emplace_back(lengths[i], i);
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::uint32_t> order;
  for (const auto& row : rows) order.push_back(row.second);
  return order;
}

TEST(SortRows, IsStdSortOfTheGnuLibrary) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 4000; ++i) {
    std::vector<std::uint32_t> lengths(1 + random() % (i % 10 == 0 ? 3000 : 300));
    const std::uint64_t values = 1 + random() % (1 + random() % 200);
    for (std::uint32_t& length : lengths) length = static_cast<std::uint32_t>(random() % values);
    if (i % 7 == 0) std::ranges::sort(lengths);
    if (i % 7 == 1) std::ranges::sort(lengths, std::greater<>());
    ASSERT_EQ(sorted(lengths), library_sorted(lengths)) << "case " << i;
  }
}

// An order of lengths that has the median of three choose badly each time, so that both end up with
// heapsort: made by sorting with a comparison that decides only when it must (McIlroy's adversary).
TEST(SortRows, IsStdSortWhereQuicksortDegenerates) {
  for (const std::size_t rows : {50U, 1000U, 1001U, 4096U}) {
    constexpr std::uint32_t kGas = 1 << 30;
    std::vector<std::uint32_t> lengths(rows, kGas);
    std::vector<std::uint32_t> places(rows);
    std::iota(places.begin(), places.end(), 0U);
    std::uint32_t solid = 0;
    std::uint32_t candidate = 0;
    std::sort(places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (lengths[a] == kGas && lengths[b] == kGas) lengths[a == candidate ? a : b] = solid++;
      if (lengths[a] == kGas) candidate = a;
      if (lengths[b] == kGas) candidate = b;
      return lengths[a] < lengths[b];
    });
    for (std::uint32_t& length : lengths) length = kGas - length;  // descending
    ASSERT_EQ(sorted(lengths), library_sorted(lengths)) << rows;
    for (std::uint32_t& length : lengths) length /= 5;  // with ties
    ASSERT_EQ(sorted(lengths), library_sorted(lengths)) << rows;
  }
}
#endif

// ---- capacities

// By trying all.
BitextCapacity tried(const BitextLimits& limits, const BitextPadding& padding) {
  BitextCapacity most;
  const auto width = [&](std::uint64_t longest, std::uint64_t least) {
    std::uint64_t at = std::max(longest, least);
    while (at % padding.multiple != 0) ++at;
    return at;
  };
  for (std::uint64_t source = 1; source <= limits.source_positions; ++source) {
    for (std::uint64_t target = 1; target <= limits.target_positions; ++target) {
      for (std::uint64_t rows = 1; rows <= 200; ++rows) {
        if (limits.tokens != 0 && rows * std::max(source, target) > limits.tokens) break;
        if (limits.rows != 0 && rows > limits.rows) break;
        most.rows = std::max(most.rows, rows);
        most.source_tokens =
            std::max(most.source_tokens, rows * width(source, padding.source_least));
        most.target_tokens =
            std::max(most.target_tokens, rows * width(target, padding.target_least));
        most.source_positions = std::max(most.source_positions, source);
        most.target_positions = std::max(most.target_positions, target);
      }
    }
  }
  return most;
}

TEST(BitextCapacity, IsTheLargestThatTheLimitsAllow) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 500; ++i) {
    BitextLimits limits{.tokens = random() % 3 == 0 ? 0 : 1 + random() % 200,
                        .rows = random() % 3 == 0 ? 0 : 1 + random() % 50,
                        .source_positions = 1 + random() % 40,
                        .target_positions = 1 + random() % 40};
    if (limits.tokens == 0 && limits.rows == 0) limits.rows = 7;
    BitextPadding padding{
        .multiple = 1 + static_cast<std::uint32_t>(random() % 3 == 0 ? 0 : random() % 70)};
    if (random() % 4 == 0) {
      padding.source_least = static_cast<std::uint32_t>(limits.source_positions);
      padding.target_least = static_cast<std::uint32_t>(limits.target_positions);
    }
    const BitextCapacity most = bitext_capacity(limits, padding);
    const BitextCapacity expected = tried(limits, padding);
    ASSERT_EQ(most.rows, expected.rows) << i;
    ASSERT_EQ(most.source_tokens, expected.source_tokens) << i;
    ASSERT_EQ(most.target_tokens, expected.target_tokens) << i;
    ASSERT_EQ(most.source_positions, expected.source_positions) << i;
    ASSERT_EQ(most.target_positions, expected.target_positions) << i;
  }
}

TEST(BitextCapacity, DoesNotOverflowAtTheEndsOfTheRanges) {
  const BitextCapacity most = bitext_capacity(
      {.tokens = 1U << 24, .rows = 0, .source_positions = 65534, .target_positions = 65534},
      {.multiple = 65536, .source_least = 65534, .target_least = 65534});
  EXPECT_EQ(most.rows, 1U << 24);
  EXPECT_EQ(most.source_tokens, std::uint64_t{1} << 40);
}

// ---- batches

class TempFiles {
 public:
  TempFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "ringfeed-bitext-XXXXXX").string();
    RF_CHECK(::mkdtemp(name.data()) != nullptr, errno);
    path_ = name;
  }
  TempFiles(const TempFiles&) = delete;
  TempFiles& operator=(const TempFiles&) = delete;
  ~TempFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A batch as lists.
struct Lists {
  std::vector<std::int64_t> id;
  std::vector<std::int64_t> source;
  std::vector<std::int64_t> source_lengths;
  std::vector<std::int64_t> previous;
  std::vector<std::int64_t> target;
  std::vector<std::int64_t> source_lang_id;
  std::vector<std::int64_t> target_lang_id;
  std::vector<std::int32_t> direction;
  std::uint64_t source_tokens = 0;
  std::uint64_t target_tokens = 0;
  std::uint32_t source_width = 0;
  std::uint32_t target_width = 0;
  friend bool operator==(const Lists&, const Lists&) = default;
};

// A pair of files with what they hold.
struct Pair {
  Sentences source;
  Sentences target;
  TokenFile source_file;
  TokenFile target_file;
};

Pair make_pair_of_files(const TempFiles& files, const std::string& name, Sentences source,
                        Sentences target, TokenCode code = TokenCode::kUint16,
                        bool legacy = false) {
  write_token_file(files.path(name + ".s"), source, code, legacy);
  write_token_file(files.path(name + ".t"), target, code, legacy);
  Result<TokenFile> source_file = TokenFile::open(files.path(name + ".s"));
  Result<TokenFile> target_file = TokenFile::open(files.path(name + ".t"));
  RF_CHECK(source_file.ok() && target_file.ok(), source.size());
  return {std::move(source), std::move(target), std::move(*source_file), std::move(*target_file)};
}

constexpr BitextCapacity kWide{.rows = 1 << 20,
                               .source_tokens = 1 << 24,
                               .target_tokens = 1 << 24,
                               .source_positions = 4096,
                               .target_positions = 4096};

template <typename Token>
Lists written(BitextCollate& batch) {
  // What is not written shows, and so does what is written behind an array.
  constexpr std::int64_t kUnwritten = -7;
  const std::uint64_t rows = batch.rows();
  std::vector<Token> source(rows * batch.source_width() + 1, kUnwritten);
  std::vector<Token> previous(rows * batch.target_width() + 1, kUnwritten);
  std::vector<Token> target(rows * batch.target_width() + 1, kUnwritten);
  Lists lists;
  lists.id.resize(rows);
  lists.source_lengths.resize(rows);
  lists.source_lang_id.resize(rows);
  lists.target_lang_id.resize(rows);
  lists.direction.resize(rows);
  // A row that is left out makes the others be written anew.
  if (!batch.write<Token>({.id = lists.id.data(),
                           .source = source.data(),
                           .source_lengths = lists.source_lengths.data(),
                           .previous = previous.data(),
                           .target = target.data(),
                           .source_lang_id = lists.source_lang_id.data(),
                           .target_lang_id = lists.target_lang_id.data(),
                           .direction = lists.direction.data()})) {
    return written<Token>(batch);
  }
  for (const auto* array : {&source, &previous, &target}) EXPECT_EQ(array->back(), kUnwritten);
  lists.source.assign(source.begin(), source.end() - 1);
  lists.previous.assign(previous.begin(), previous.end() - 1);
  lists.target.assign(target.begin(), target.end() - 1);
  lists.source_tokens = batch.source_tokens();
  lists.target_tokens = batch.target_tokens();
  lists.source_width = batch.source_width();
  lists.target_width = batch.target_width();
  return lists;
}

BatchPlan read_plan(const std::string& bytes) {
  BatchPlan plan;
  RF_CHECK(plan.read({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}),
           bytes.size());
  return plan;
}

std::vector<BitextFiles> files_of(const std::vector<Pair>& pairs) {
  std::vector<BitextFiles> files;
  for (const Pair& pair : pairs) files.push_back({&pair.source_file, &pair.target_file});
  return files;
}

// ---- the obvious collation

using Row = std::vector<std::int64_t>;
struct PlainRow {
  std::int64_t id;
  Row source;
  Row target;
  const BatchPlanPart* part;
};

std::int64_t length(const Row& row) {
  return static_cast<std::int64_t>(row.size()) - std::ranges::count(row, 1);
}

Row padded(const Row& row, std::size_t width, bool left) {
  Row whole(width - row.size(), 1);
  whole.insert(left ? whole.end() : whole.begin(), row.begin(), row.end());
  return whole;
}

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::vector<std::uint32_t> order_of(const std::vector<std::int64_t>& lengths) {
  return sorted({lengths.begin(), lengths.end()});
}

// One call of the collation of some rows, in order.
Lists collated(const std::vector<PlainRow>& rows, const BitextPadding& padding,
               std::size_t source_width, std::size_t target_width) {
  std::vector<std::int64_t> lengths;
  for (const PlainRow& row : rows) lengths.push_back(length(row.source));
  Lists lists;
  for (const std::uint32_t i : order_of(lengths)) {
    const PlainRow& row = rows[i];
    lists.id.push_back(row.id);
    Row source = row.source;
    Row previous = row.target;
    if (!previous.empty()) {
      previous.pop_back();
      previous.insert(previous.begin(), 2);
    }
    if (row.part->replaces_eos != 0) {
      if (row.part->encoder_token != kNoToken && !source.empty()) {
        source.back() = row.part->encoder_token;
      }
      if (row.part->decoder_token != kNoToken && !previous.empty()) {
        previous.front() = row.part->decoder_token;
      }
    }
    append(lists.source, padded(source, source_width, padding.left_source));
    append(lists.previous, padded(previous, target_width, padding.left_target));
    append(lists.target, padded(row.target, target_width, padding.left_target));
    lists.source_lengths.push_back(lengths[i]);
    lists.source_tokens += static_cast<std::uint64_t>(lengths[i]);
    lists.target_tokens += static_cast<std::uint64_t>(length(row.target));
    lists.source_lang_id.push_back(row.part->source_lang_id);
    lists.target_lang_id.push_back(row.part->target_lang_id);
    lists.direction.push_back(static_cast<std::int32_t>(row.part->direction));
  }
  return lists;
}

// Rows of `lists` in another order.
Lists reordered(const Lists& lists, const std::vector<std::uint32_t>& order) {
  Lists result = lists;
  const auto take = [&order](auto& to, const auto& from, std::size_t width) {
    to.clear();
    for (const std::uint32_t row : order) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(row * width),
                from.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    }
  };
  take(result.id, lists.id, 1);
  take(result.source, lists.source, lists.source_width);
  take(result.source_lengths, lists.source_lengths, 1);
  take(result.previous, lists.previous, lists.target_width);
  take(result.target, lists.target, lists.target_width);
  take(result.source_lang_id, lists.source_lang_id, 1);
  take(result.target_lang_id, lists.target_lang_id, 1);
  take(result.direction, lists.direction, 1);
  return result;
}

Lists plainly_collated(const BatchPlan& plan, const std::vector<Pair>& pairs,
                       const BitextPadding& padding) {
  std::vector<PlainRow> rows;
  std::size_t source_width = padding.source_least;
  std::size_t target_width = padding.target_least;
  bool by_direction = false;
  for (const BatchPlanRow& row : plan.rows()) {
    const BatchPlanPart& part = plan.parts()[row.part];
    Row source = pairs[row.part].source[plan.sentence(row)];
    Row target = pairs[row.part].target[plan.sentence(row)];
    if (part.truncate_source != 0) {
      while (!source.empty() && source.back() == 2) source.pop_back();
      while (!source.empty() && source.front() == 2) source.erase(source.begin());
      if (source.size() > part.truncate_source - 1) source.resize(part.truncate_source - 1);
      source.push_back(2);
    }
    if (part.source_tag != kNoToken) source.insert(source.begin(), part.source_tag);
    if (part.replaces_eos == 0) {
      if (part.encoder_token != kNoToken) source.insert(source.begin(), part.encoder_token);
      if (part.decoder_token != kNoToken) target.insert(target.begin(), part.decoder_token);
    }
    by_direction = by_direction || part.replaces_eos == kEosByDirection;
    source_width = std::max(source_width, source.size());
    target_width = std::max(target_width, target.size());
    rows.push_back({static_cast<std::int64_t>(row.index), source, target, &part});
  }
  while (source_width % padding.multiple != 0) ++source_width;
  while (target_width % padding.multiple != 0) ++target_width;
  Lists all;
  if (by_direction) {
    std::map<std::uint32_t, std::vector<PlainRow>> directions;
    for (const PlainRow& row : rows) directions[row.part->direction].push_back(row);
    for (const auto& [number, own] : directions) {
      const Lists part = collated(own, padding, source_width, target_width);
      append(all.id, part.id);
      append(all.source, part.source);
      append(all.source_lengths, part.source_lengths);
      append(all.previous, part.previous);
      append(all.target, part.target);
      append(all.source_lang_id, part.source_lang_id);
      append(all.target_lang_id, part.target_lang_id);
      append(all.direction, part.direction);
      all.source_tokens += part.source_tokens;
      all.target_tokens += part.target_tokens;
    }
  } else {
    all = collated(rows, padding, source_width, target_width);
  }
  all.source_width = static_cast<std::uint32_t>(source_width);
  all.target_width = static_cast<std::uint32_t>(target_width);
  return by_direction ? reordered(all, order_of(all.source_lengths)) : all;
}

// ---- random batches

Sentences some_sentences(std::mt19937_64& random, std::size_t count, std::int64_t token_max,
                         std::size_t longest) {
  Sentences sentences(count);
  for (auto& sentence : sentences) {
    sentence.resize(random() % (longest + 1));
    for (std::int64_t& token : sentence) {
      // Many special ones: padding and </s> in the middle of sentences too.
      token = random() % 6 == 0
                  ? static_cast<std::int64_t>(random() % 4)
                  : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(token_max));
    }
    if (!sentence.empty() && random() % 8 != 0) sentence.back() = 2;
  }
  return sentences;
}

TEST(BitextCollate, GivesWhatAnObviousCollationGives) {
  constexpr std::pair<TokenCode, std::int64_t> kCodesAndLargest[] = {
      {TokenCode::kUint8, 255},         {TokenCode::kInt8, 127},
      {TokenCode::kUint16, 65535},      {TokenCode::kInt16, 32767},
      {TokenCode::kUint32, 2147483647}, {TokenCode::kInt32, 2147483646},
      {TokenCode::kUint64, 2147483646}, {TokenCode::kInt64, 2147483646}};
  std::mt19937_64 random(3);
  const TempFiles files;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    const bool replaces = random() % 4 == 0;
    const bool once = random() % 2 == 0;
    std::vector<Pair> pairs;
    BatchPlanMaker maker;
    const std::uint64_t parts = 1 + random() % 5;
    for (std::uint32_t p = 0; p < parts; ++p) {
      const auto [code, token_max] = kCodesAndLargest[random() % std::size(kCodesAndLargest)];
      const bool legacy = random() % 4 == 0;
      const std::size_t count = 1 + random() % 30;
      const std::size_t longest = random() % 4 == 0 ? 3 : 70;
      pairs.push_back(make_pair_of_files(
          files, "part" + std::to_string(p), some_sentences(random, count, token_max - 1, longest),
          some_sentences(random, count, token_max - 1, longest), code, legacy));
      BatchPlanPart& part = maker.add_part(p, count, "", "");
      const auto maybe = [&random](std::uint32_t token) {
        return random() % 2 == 0 ? kNoToken : token;
      };
      part.first = random() % 3 == 0 ? 0 : random() % 1000;
      part.direction = static_cast<std::uint32_t>(random() % 3);
      part.encoder_token = maybe(random() % 9 == 0 ? 1 : 70000 + p);
      part.decoder_token = maybe(random() % 9 == 0 ? 1 : 80000 + p);
      part.source_tag = random() % 4 == 0 ? 90000 : kNoToken;
      part.replaces_eos = replaces ? once ? kEosOfOne : kEosByDirection : kEosStays;
      part.truncate_source = random() % 4 == 0 ? 2 + static_cast<std::uint32_t>(random() % 20) : 0;
      part.source_lang_id = 1 + p;
      part.target_lang_id = 100 + p;
    }
    const std::uint64_t rows = random() % (i % 5 == 0 ? 300 : 40);
    for (std::uint64_t r = 0; r < rows; ++r) {
      const auto p = static_cast<std::uint32_t>(random() % parts);
      maker.add_row(p, maker.parts[p].first + random() % (2 * maker.parts[p].sentences));
    }
    BitextPadding padding{
        .left_source = random() % 2 == 0,
        .left_target = random() % 2 == 0,
        .multiple = random() % 2 == 0 ? 1 : 1 + static_cast<std::uint32_t>(random() % 16)};
    if (random() % 4 == 0) padding.source_least = padding.target_least = 60;
    const std::string bytes = maker.bytes();
    const BatchPlan plan = read_plan(bytes);
    const Lists expected = plainly_collated(plan, pairs, padding);
    for (const Kernel kernel : kAllKernels) {
      if (!kernel_supported(kernel)) continue;
      SCOPED_TRACE(kernel_name(kernel));
      BitextCollate batch(padding, kWide, kernel);
      batch.gather(plan, files_of(pairs));
      ASSERT_THAT(batch.skipped(), IsEmpty());
      ASSERT_EQ(written<std::int64_t>(batch), expected);
      ASSERT_EQ(written<std::int32_t>(batch), expected);
    }
  }
}

// ---- by eye

struct Small {
  TempFiles files;
  std::vector<Pair> pairs;
  BatchPlanMaker maker;
  BitextPadding padding;
  BitextCapacity capacity = kWide;

  Small(Sentences source, Sentences target) {
    const std::size_t count = source.size();
    pairs.push_back(make_pair_of_files(files, "small", std::move(source), std::move(target)));
    maker.add_part(0, count, "", "");
    for (std::uint64_t i = 0; i < count; ++i) maker.add_row(0, i);
  }
  BatchPlanPart& part() { return maker.parts[0]; }
  Lists collated() {
    const std::string bytes = maker.bytes();
    BitextCollate batch(padding, capacity);
    batch.gather(read_plan(bytes), files_of(pairs));
    Lists lists = written<std::int64_t>(batch);
    skipped.assign(batch.skipped().begin(), batch.skipped().end());
    return lists;
  }
  std::vector<BitextCollate::Skipped> skipped = {};
};

TEST(BitextCollate, PutsTokensOfLanguagesBeforeSentencesAndPadsSourcesOnTheLeft) {
  Small small({{10, 11, 2}, {12, 13, 14, 2}}, {{20, 2}, {21, 22, 2}});
  small.part().encoder_token = 504;
  small.part().decoder_token = 505;
  const Lists lists = small.collated();
  EXPECT_THAT(lists.id, ElementsAre(1, 0));
  EXPECT_THAT(lists.source, ElementsAre(504, 12, 13, 14, 2, 1, 504, 10, 11, 2));
  EXPECT_THAT(lists.source_lengths, ElementsAre(5, 4));
  EXPECT_THAT(lists.target, ElementsAre(505, 21, 22, 2, 505, 20, 2, 1));
  EXPECT_THAT(lists.previous, ElementsAre(2, 505, 21, 22, 2, 505, 20, 1));
  EXPECT_EQ(lists.target_tokens, 7U);
}

TEST(BitextCollate, LeftPaddedTargetsHaveTheirEosRightBeforeTheSentence) {
  Small small({{10, 2}, {11, 2}}, {{20, 2}, {21, 22, 23, 2}});
  small.padding = {.left_source = false, .left_target = true};
  const Lists lists = small.collated();
  EXPECT_THAT(lists.target, ElementsAre(1, 1, 20, 2, 21, 22, 23, 2));
  EXPECT_THAT(lists.previous, ElementsAre(1, 1, 2, 20, 2, 21, 22, 23));
}

TEST(BitextCollate, TheLastTargetTokenIsDroppedWhateverItIs) {
  Small small({{10, 2}}, {{20, 21, 22}});
  EXPECT_THAT(small.collated().previous, ElementsAre(2, 20, 21));
}

TEST(BitextCollate, TruncationStripsEveryEosFromBothEndsFirst) {
  Small small({{2, 2, 10, 2, 11, 12, 2, 2}, {2, 2}, {10, 11}}, {{20, 2}, {20, 2}, {20, 2}});
  small.part().truncate_source = 4;
  const Lists lists = small.collated();
  EXPECT_THAT(lists.id, ElementsAre(0, 2, 1));
  EXPECT_THAT(lists.source, ElementsAre(10, 2, 11, 2, 1, 10, 11, 2, 1, 1, 1, 2));
}

TEST(BitextCollate, TokensInThePlacesOfEosStandLastInTheSourceAndFirstBeforeTheTarget) {
  Small small({{10, 11, 2}, {12, 2}}, {{20, 2}, {21, 22, 2}});
  small.part().replaces_eos = 1;
  small.part().encoder_token = 504;
  small.part().decoder_token = 505;
  const Lists lists = small.collated();
  EXPECT_THAT(lists.source, ElementsAre(10, 11, 504, 1, 12, 504));
  EXPECT_THAT(lists.target, ElementsAre(20, 2, 1, 21, 22, 2));
  EXPECT_THAT(lists.previous, ElementsAre(505, 20, 1, 505, 21, 22));
}

// A row is as long as its tokens that are not padding, and as wide as all of them.
TEST(BitextCollate, PaddingInsideASentenceCountsForItsWidthAndNotForItsLength) {
  Small small({{10, 1, 1, 2}, {11, 12, 2}}, {{20, 1, 2}, {21, 2}});
  const Lists lists = small.collated();
  EXPECT_THAT(lists.id, ElementsAre(1, 0));
  EXPECT_THAT(lists.source, ElementsAre(1, 11, 12, 2, 10, 1, 1, 2));
  EXPECT_THAT(lists.source_lengths, ElementsAre(3, 2));
  EXPECT_EQ(lists.target_tokens, 4U);
}

TEST(BitextCollate, WidthsAreRoundedUpAfterTheLeastWidth) {
  Small small({{10, 2}}, {{20, 21, 22, 23, 2}});
  small.padding = {.multiple = 4, .source_least = 5, .target_least = 3};
  const Lists lists = small.collated();
  EXPECT_EQ(lists.source_width, 8U);
  EXPECT_EQ(lists.target_width, 8U);
}

TEST(BitextCollate, NoRowsAreABatchToo) {
  Small small({{10, 2}}, {{20, 2}});
  small.maker.rows.clear();
  const Lists lists = small.collated();
  EXPECT_THAT(lists.id, IsEmpty());
  EXPECT_EQ(lists.source_width, 0U);
  EXPECT_EQ(lists.target_width, 0U);
}

// ---- ids that are none

TEST(BitextCollate, ARowWithAnIdBeyondTheDictionaryIsLeftOut) {
  Small small({{10, 2}, {10, 11, 100, 2}, {11, 2}, {99, 2}},
              {{20, 2}, {20, 2}, {20, 21, 22, 23, 120, 2}, {20, 119, 2}});
  small.part().source_symbols = 100;
  small.part().target_symbols = 120;
  const Lists lists = small.collated();
  EXPECT_THAT(lists.id, ElementsAre(0, 3));
  EXPECT_THAT(lists.source, ElementsAre(10, 2, 99, 2));
  EXPECT_THAT(lists.target, ElementsAre(20, 2, 1, 20, 119, 2));
  EXPECT_EQ(lists.target_tokens, 5U);
  ASSERT_THAT(small.skipped, SizeIs(2));
  EXPECT_EQ(small.skipped[0].row, 1U);
  EXPECT_EQ(small.skipped[0].why, BitextCollate::Skip::kNoSymbol);
  EXPECT_FALSE(small.skipped[0].target);
  EXPECT_EQ(small.skipped[1].row, 2U);
  EXPECT_TRUE(small.skipped[1].target);
}

TEST(BitextCollate, ABatchOfNothingButIdsBeyondTheDictionaryIsEmpty) {
  Small small({{10, 2}, {11, 2}}, {{20, 2}, {21, 2}});
  small.part().source_symbols = 5;
  EXPECT_THAT(small.collated().id, IsEmpty());
  EXPECT_THAT(small.skipped, SizeIs(2));
}

// Wherever it stands in a sentence of whatever type, for all kernels.
TEST(BitextCollate, OneIdBeyondTheDictionaryIsFoundAnywhere) {
  constexpr std::pair<TokenCode, std::int64_t> kCodesAndForeign[] = {
      {TokenCode::kUint8, 255},
      {TokenCode::kInt8, -1},
      {TokenCode::kUint16, 65535},
      {TokenCode::kInt16, -7},
      {TokenCode::kUint32, 5000},
      {TokenCode::kInt32, -2147483647},
      {TokenCode::kUint64, std::int64_t{1} << 40},
      {TokenCode::kInt64, (std::int64_t{1} << 32) + 5}};
  const TempFiles files;
  for (const auto& [code, foreign] : kCodesAndForeign) {
    for (std::size_t length = 1; length <= 40; ++length) {
      const std::size_t at = length * 7 % length;
      for (const std::size_t place : {std::size_t{0}, at, length / 2, length - 1}) {
        Sentences sources(2, std::vector<std::int64_t>(length, 99));
        sources[1][place] = foreign;
        std::vector<Pair> pairs;
        pairs.push_back(make_pair_of_files(files, "pair", sources, sources, code));
        BatchPlanMaker maker;
        BatchPlanPart& part = maker.add_part(0, 2, "", "");
        maker.add_row(0, 0);
        maker.add_row(0, 1);
        for (const bool target : {false, true}) {
          part.source_symbols = target ? 0 : 100;
          part.target_symbols = target ? 100 : 0;
          const std::string bytes = maker.bytes();
          for (const Kernel kernel : kAllKernels) {
            if (!kernel_supported(kernel)) continue;
            for (const bool compact : {false, true}) {
              BitextCollate batch({}, kWide, kernel);
              batch.gather(read_plan(bytes), files_of(pairs));
              const Lists lists =
                  compact ? written<std::int32_t>(batch) : written<std::int64_t>(batch);
              ASSERT_THAT(lists.id, ElementsAre(0)) << length << " " << place << " " << target;
              ASSERT_EQ(batch.skipped()[0].target, target);
            }
          }
        }
      }
    }
  }
}

// ---- what does not fit

TEST(BitextCollate, ASentenceLongerThanPlannedIsLeftOut) {
  Small small({{10, 2}, {10, 11, 12, 2}, {11, 2}, {12, 2}},
              {{20, 2}, {20, 2}, {20, 21, 22, 23, 2}, {20, 21, 22, 2}});
  small.capacity.source_positions = 3;
  small.capacity.target_positions = 4;
  EXPECT_THAT(small.collated().id, ElementsAre(0, 3));
  ASSERT_THAT(small.skipped, SizeIs(2));
  EXPECT_EQ(small.skipped[0].row, 1U);
  EXPECT_EQ(small.skipped[0].why, BitextCollate::Skip::kTooLarge);
  EXPECT_FALSE(small.skipped[0].target);
  EXPECT_EQ(small.skipped[1].row, 2U);
  EXPECT_TRUE(small.skipped[1].target);
}

TEST(BitextCollate, RowsThatTheArraysHaveNoRoomForAreLeftOut) {
  const Sentences short_and_long = {{10, 2}, {10, 11, 12, 2}, {11, 2}, {12, 2}};
  {
    Small small(short_and_long, short_and_long);
    small.capacity.rows = 2;
    EXPECT_THAT(small.collated().id, ElementsAre(1, 0));
    EXPECT_THAT(small.skipped, SizeIs(2));
  }
  for (std::uint64_t BitextCapacity::*tokens :
       {&BitextCapacity::source_tokens, &BitextCapacity::target_tokens}) {
    Small small(short_and_long, short_and_long);
    small.capacity.*tokens = 7;  // row 1 would make two rows of four
    EXPECT_THAT(small.collated().id, ElementsAre(0, 2, 3));
    EXPECT_THAT(small.skipped, SizeIs(1));
  }
}

TEST(BitextCollate, RowsOfFilesThatAreNotAtHandAreLeftOutSilently) {
  Small small({{10, 2}}, {{20, 2}});
  const std::string bytes = small.maker.bytes();
  BitextCollate batch(small.padding, kWide);
  const BitextFiles none[1] = {{&small.pairs[0].source_file, nullptr}};
  batch.gather(read_plan(bytes), none);
  EXPECT_EQ(batch.rows(), 0U);
  EXPECT_THAT(batch.skipped(), IsEmpty());
}

// The index is taken at its word only within PREFIX.bin.
TEST(BitextCollate, ASentenceThatLiesOutsideOfItsFileIsLeftOut) {
  const TempFiles files;
  const Sentences sentences = {{10, 2}, {11, 12, 13, 2}};
  write_token_file(files.path("s"), sentences);
  write_token_file(files.path("t"), sentences);
  std::filesystem::resize_file(files.path("t.bin"), 8);
  Result<TokenFile> source = TokenFile::open(files.path("s"));
  Result<TokenFile> target = TokenFile::open(files.path("t"));
  ASSERT_TRUE(source.ok() && target.ok());
  BatchPlanMaker maker;
  maker.add_part(0, 2, "", "");
  for (const std::uint64_t i : {1, 0, 1}) maker.add_row(0, i);
  const std::string bytes = maker.bytes();
  BitextCollate batch({}, kWide);
  const BitextFiles pair[1] = {{&*source, &*target}};
  batch.gather(read_plan(bytes), pair);
  EXPECT_THAT(written<std::int64_t>(batch).id, ElementsAre(0));
  ASSERT_THAT(batch.skipped(), SizeIs(2));
  EXPECT_EQ(batch.skipped()[1].row, 2U);
  EXPECT_EQ(batch.skipped()[1].why, BitextCollate::Skip::kOutOfBounds);
  EXPECT_TRUE(batch.skipped()[1].target);
}

// ---- the original

using Json = nlohmann::json;
const std::string kExamples = RINGFEED_SOURCE_DIR "/tests/data/fairseq/";

// As the examples have it: of each array the shape, then the values, all as int64.
std::string digest_of(const Lists& lists) {
  std::vector<std::int64_t> all;
  const auto add = [&all, &lists](const std::vector<std::int64_t>& values, std::uint32_t width) {
    all.push_back(static_cast<std::int64_t>(lists.id.size()));
    if (width != 0) all.push_back(width);
    append(all, values);
  };
  add(lists.source, lists.source_width);
  add(lists.source_lengths, 0);
  add(lists.previous, lists.target_width);
  add(lists.target, lists.target_width);
  return ringfeed::testing::sha256(std::as_bytes(std::span(all)));
}

class OriginalBatches : public ::testing::TestWithParam<const char*> {};

// Of each epoch the batches before they are shuffled are known, and of those that came out the
// digest; which is which follows from the sentences' numbers.
TEST_P(OriginalBatches, AreCollatedBitForBit) {
  const Json example = Json::parse(std::ifstream(kExamples + "outputs/" + GetParam() + ".json"));
  const Json& symbols = example["symbols_tail"];
  std::size_t compared = 0;
  std::size_t unstable = 0;
  for (const Json& epoch : example["epochs"]) {
    // A direction's folds, one pair of files each, and the parts of a plan that they are.
    BatchPlanMaker parts;
    std::vector<TokenFile> opened;
    std::vector<std::vector<std::uint32_t>> parts_of_direction;
    for (std::uint32_t d = 0; d < epoch["files"].size(); ++d) {
      const auto names = [&](int side) {
        const Json& files = epoch["files"][d][side];
        return files.is_array() ? files.get<std::vector<std::string>>()
                                : std::vector<std::string>{files.get<std::string>()};
      };
      std::uint64_t first = 0;
      parts_of_direction.emplace_back();
      for (std::size_t fold = 0; fold < names(0).size(); ++fold) {
        for (int side = 0; side < 2; ++side) {
          Result<TokenFile> file =
              TokenFile::open(kExamples + "inputs/data_bin/" + names(side)[fold]);
          ASSERT_TRUE(file.ok()) << file.error().message();
          opened.push_back(std::move(*file));
        }
        const auto language = [](const std::string& name) {
          return name.substr(name.rfind('.') + 1);
        };
        BatchPlanPart& part = parts.add_part(static_cast<std::uint32_t>(parts.parts.size()),
                                             opened.back().sentences(), "", "");
        part.first = first;
        part.direction = d;
        part.encoder_token = symbols["__" + language(names(0)[fold]) + "__"];
        part.decoder_token = symbols["__" + language(names(1)[fold]) + "__"];
        if (names(0)[fold].find("train_mining") != std::string::npos) {
          part.source_tag = symbols["<MINED_DATA>"];
        }
        first += opened.back().sentences();
        parts_of_direction.back().push_back(static_cast<std::uint32_t>(parts.parts.size() - 1));
      }
    }
    std::vector<BitextFiles> files;
    for (std::size_t i = 0; i < opened.size(); i += 2)
      files.push_back({&opened[i], &opened[i + 1]});

    std::map<std::vector<std::uint64_t>, BatchPlanMaker>
        plans;  // by the sorted numbers of sentences
    for (const Json& frozen : epoch["frozen_batches"]) {
      BatchPlanMaker plan = parts;
      for (const Json& place : frozen) {
        std::uint64_t drawn = place;
        if (epoch.contains("global_indices")) {
          drawn = epoch["global_indices"][epoch["start"].get<std::uint64_t>() + drawn];
        }
        std::size_t d = 0;
        while (drawn >= epoch["cumulated"][d]) ++d;
        const std::uint64_t index = epoch["cur_indices"][drawn];
        for (const std::uint32_t p : parts_of_direction[d]) {
          if (index >= parts.parts[p].first + parts.parts[p].sentences) continue;
          plan.add_row(p, index);
          break;
        }
      }
      std::vector<std::uint64_t> key;
      for (const BatchPlanRow& row : plan.rows) key.push_back(row.index);
      std::ranges::sort(key);
      plans[key] = plan;
    }

    const auto compare = [&](const Json& wanted) {
      auto key = wanted["id"].get<std::vector<std::uint64_t>>();
      std::ranges::sort(key);
      ASSERT_TRUE(plans.contains(key)) << wanted["id"];
      const std::string bytes = plans[key].bytes();
      BitextCollate batch({}, kWide);
      batch.gather(read_plan(bytes), files);
      const Lists lists = written<std::int64_t>(batch);
      EXPECT_EQ(lists.id, wanted["id"].get<std::vector<std::int64_t>>());
      EXPECT_EQ(lists.source_lengths, wanted["src_lengths"].get<std::vector<std::int64_t>>());
      EXPECT_EQ(lists.target_tokens, wanted["ntokens"].get<std::uint64_t>());
      EXPECT_EQ(digest_of(lists), wanted["sha256"].get<std::string>());
      ++compared;
      unstable += lists.id.size() > 16 ? 1 : 0;
    };
    compare(epoch["dummy_batch"]);
    for (const Json& rank : epoch["ranks"]) {
      for (const Json& update : rank["batches"]) {
        if (update.is_object()) compare(update);
        if (!update.is_array()) continue;
        for (const Json& batch : update) {
          if (batch.is_object()) compare(batch);
        }
      }
    }
  }
  EXPECT_GE(compared, 100U);
  EXPECT_GE(unstable, 4U) << "batches whose order a stable sort would not give";
}
INSTANTIATE_TEST_SUITE_P(Examples, OriginalBatches,
                         ::testing::Values("a_concat", "b_nllb", "d_virtual_epochs", "f_weights"));

}  // namespace
}  // namespace ringfeed::formats
