#include "workers/bitext/bitext_collate.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

// ---- the order of rows

namespace {

// A row as it is sorted: its length in the upper half, its number in the lower one. Only lengths
// are compared; where they are equal, the sequence of comparisons and moves decides, so nothing
// below may be exchanged for what sorts as well.
using Key = std::uint64_t;
constexpr bool before(Key a, Key b) noexcept { return a >> 32 > b >> 32; }

constexpr std::ptrdiff_t kInsertionRows = 16;

// Moves *at to its place among those before it, one of which does not come after it.
void insert_unguarded(Key* at) noexcept {
  const Key key = *at;
  for (; before(key, at[-1]); --at) *at = at[-1];
  *at = key;
}

void insertion_sort(Key* begin, Key* end) noexcept {
  if (begin == end) return;
  for (Key* at = begin + 1; at < end; ++at) {
    if (before(*at, *begin)) {
      const Key key = *at;
      std::move_backward(begin, at, at + 1);
      *begin = key;
    } else {
      insert_unguarded(at);
    }
  }
}

Key* median(Key* a, Key* b, Key* c) noexcept {
  if (before(*a, *b)) return before(*b, *c) ? b : before(*a, *c) ? c : a;
  return before(*a, *c) ? a : before(*b, *c) ? c : b;
}

// The first element is the pivot; returns where the second part begins. Both ends stop at what is
// equal to the pivot, which keeps them in bounds.
Key* partition(Key* begin, Key* end) noexcept {
  const Key* const pivot = begin;
  Key* low = begin + 1;
  Key* high = end;
  for (;;) {
    while (before(*low, *pivot)) ++low;
    --high;
    while (before(*pivot, *high)) --high;
    if (low >= high) return low;
    std::swap(*low, *high);
    ++low;
  }
}

// Fills the hole at the top of a heap: down along the later children to a leaf, then the key up
// from there.
void refill_heap(Key* heap, std::ptrdiff_t hole, std::ptrdiff_t size, Key key) noexcept {
  const std::ptrdiff_t top = hole;
  std::ptrdiff_t child = hole;
  while (child < (size - 1) / 2) {
    child = 2 * (child + 1);
    if (before(heap[child], heap[child - 1])) --child;
    heap[hole] = heap[child];
    hole = child;
  }
  if (size % 2 == 0 && child == (size - 2) / 2) {
    child = 2 * child + 1;
    heap[hole] = heap[child];
    hole = child;
  }
  while (hole > top && before(heap[(hole - 1) / 2], key)) {
    heap[hole] = heap[(hole - 1) / 2];
    hole = (hole - 1) / 2;
  }
  heap[hole] = key;
}

void heap_sort(Key* begin, Key* end) noexcept {
  const std::ptrdiff_t size = end - begin;
  for (std::ptrdiff_t parent = (size - 2) / 2; parent >= 0; --parent) {
    refill_heap(begin, parent, size, begin[parent]);
  }
  for (std::ptrdiff_t left = size - 1; left > 0; --left) {
    const Key key = begin[left];
    begin[left] = *begin;
    refill_heap(begin, 0, left, key);
  }
}

// Leaves runs of at most kInsertionRows that are in no order themselves, but among each other.
void sort_roughly(Key* begin, Key* end, int depth) noexcept {
  while (end - begin > kInsertionRows) {
    if (depth-- == 0) {
      heap_sort(begin, end);
      return;
    }
    std::swap(*begin, *median(begin + 1, begin + (end - begin) / 2, end - 1));
    Key* const cut = partition(begin, end);
    sort_roughly(cut, end, depth);
    end = cut;
  }
}

}  // namespace

void sort_rows(std::span<const std::uint32_t> lengths, std::vector<std::uint64_t>& scratch,
               std::span<std::uint32_t> order) noexcept {
  RF_CHECK(order.size() == lengths.size(), order.size(), lengths.size());
  const std::size_t rows = lengths.size();
  scratch.resize(rows);
  for (std::size_t i = 0; i < rows; ++i) scratch[i] = Key{lengths[i]} << 32 | i;
  Key* const begin = scratch.data();
  Key* const end = begin + rows;
  if (end - begin <= kInsertionRows) {
    insertion_sort(begin, end);
  } else {
    sort_roughly(begin, end, 2 * (static_cast<int>(std::bit_width(rows)) - 1));
    insertion_sort(begin, begin + kInsertionRows);
    for (Key* at = begin + kInsertionRows; at < end; ++at) insert_unguarded(at);
  }
  for (std::size_t i = 0; i < rows; ++i) order[i] = static_cast<std::uint32_t>(scratch[i]);
}

// ---- widths

namespace {

std::uint64_t width_of(std::uint64_t longest, std::uint64_t least,
                       std::uint64_t multiple) noexcept {
  const std::uint64_t width = std::max(longest, least);
  if (multiple == 1) return width;  // a division for every row would show
  return (width + multiple - 1) / multiple * multiple;
}

// The largest array of one side. The longest sentence of a batch decides how many rows it may have
// at most, and how wide they are; within a width the shortest longest one allows the most rows.
std::uint64_t array_tokens(const BitextLimits& limits, std::uint64_t rows, std::uint64_t positions,
                           std::uint64_t least, std::uint64_t multiple) noexcept {
  std::uint64_t most = 0;
  for (std::uint64_t longest = 1; longest <= positions;) {
    const std::uint64_t width = width_of(longest, least, multiple);
    const std::uint64_t fit = limits.tokens == 0 ? rows : std::min(rows, limits.tokens / longest);
    most = std::max(most, fit * width);
    longest = width + 1;
  }
  return most;
}

}  // namespace

BitextCapacity bitext_capacity(const BitextLimits& limits, const BitextPadding& padding) noexcept {
  BitextCapacity most;
  most.rows = limits.tokens == 0 || limits.rows == 0 ? std::max(limits.tokens, limits.rows)
                                                     : std::min(limits.tokens, limits.rows);
  const auto positions = [&limits](std::uint64_t own) {
    return limits.tokens == 0 ? own : std::min(own, limits.tokens);
  };
  most.source_positions = positions(limits.source_positions);
  most.target_positions = positions(limits.target_positions);
  most.source_tokens = array_tokens(limits, most.rows, most.source_positions, padding.source_least,
                                    padding.multiple);
  most.target_tokens = array_tokens(limits, most.rows, most.target_positions, padding.target_least,
                                    padding.multiple);
  return most;
}

// ---- hot loops

namespace {

template <typename T>
inline T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// What the loops below are made of has to become part of each of their kernels.
#define RINGFEED_IN_KERNEL __attribute__((always_inline)) inline

// Tokens that one turn of a loop takes: a fixed number, so that it becomes a few vectors without
// anything before or behind. What is left over is taken by a last turn that begins earlier.
constexpr std::size_t kTurn = 8;

template <typename T, std::size_t kCount>
struct VectorOf {
  using Type __attribute__((vector_size(kCount * sizeof(T)))) = T;
};
template <typename T>
using Whole = typename VectorOf<T, kTurn>::Type;
template <typename T>
using Half = typename VectorOf<T, kTurn / 2>::Type;

// Turns of a loop may take tokens twice, and gather in their places whether one was none.
template <typename Stored, typename Token>
struct Convert {
  using Bits = std::make_unsigned_t<Token>;
  using Unsigned = std::make_unsigned_t<Stored>;
  const std::byte* from;
  Bits less;
  Unsigned last;             // the largest id there is, as it would be stored without `less`
  Whole<Unsigned>* foreign;  // not 0: an id beyond it

  // Unsigned: an id that is no Token is cut to its bits.
  RINGFEED_IN_KERNEL Token one(std::size_t i) const noexcept {
    const auto stored = load<Stored>(from + i * sizeof(Stored));
    const auto id = static_cast<Unsigned>(static_cast<Unsigned>(stored) - less);
    (*foreign)[0] = static_cast<Unsigned>((*foreign)[0] | (id > last ? 1 : 0));
    return static_cast<Token>(static_cast<Bits>(stored) - less);
  }
  // To one place or two.
  template <typename... To>
  RINGFEED_IN_KERNEL void turn(std::size_t i, To*... to) const noexcept {
    Whole<Stored> stored;
    std::memcpy(&stored, from + i * sizeof(Stored), sizeof stored);
    Whole<Unsigned> ids;
    std::memcpy(&ids, &stored, sizeof ids);
    const auto beyond = (ids - static_cast<Unsigned>(less)) > last;
    Whole<Unsigned> found;
    std::memcpy(&found, &beyond, sizeof found);
    *foreign |= found;
    if constexpr (sizeof(Token) == 8 && sizeof(Stored) <= 4) {
      // In steps, and the last one by halves: a compiler does not find them by itself.
      using Wide = std::conditional_t<std::is_signed_v<Stored>, std::int32_t, std::uint32_t>;
      const auto wide = __builtin_convertvector(stored, Whole<Wide>);
      const Half<Wide> halves[2] = {__builtin_shufflevector(wide, wide, 0, 1, 2, 3),
                                    __builtin_shufflevector(wide, wide, 4, 5, 6, 7)};
      for (std::size_t half = 0; half < 2; ++half) {
        const auto tokens = __builtin_convertvector(halves[half], Half<Bits>) - less;
        (std::memcpy(to + i + 4 * half, &tokens, sizeof tokens), ...);
      }
    } else {
      const auto tokens = __builtin_convertvector(stored, Whole<Bits>) - less;
      (std::memcpy(to + i, &tokens, sizeof tokens), ...);
    }
  }
  RINGFEED_IN_KERNEL void run(std::size_t count, Token* to) const noexcept {
    if (count < kTurn) {
      for (std::size_t i = 0; i < count; ++i) to[i] = one(i);
      return;
    }
    for (std::size_t i = 0; i + kTurn <= count; i += kTurn) turn(i, to);
    if (count % kTurn != 0) turn(count - kTurn, to);
  }
  // `also` gets all but the last token. count > 0.
  RINGFEED_IN_KERNEL void run(std::size_t count, Token* to, Token* also) const noexcept {
    const std::size_t both = count - 1;
    if (both < kTurn) {
      for (std::size_t i = 0; i < both; ++i) to[i] = also[i] = one(i);
    } else {
      for (std::size_t i = 0; i + kTurn <= both; i += kTurn) turn(i, to, also);
      if (both % kTurn != 0) turn(both - kTurn, to, also);
    }
    to[both] = one(both);
  }
};

// The largest stored value that is no id beyond the dictionary, of an unsigned type as wide as what
// is stored; negative ones are beyond.
template <typename Stored>
RINGFEED_IN_KERNEL std::make_unsigned_t<Stored> last_of(std::uint32_t symbols) noexcept {
  using Unsigned = std::make_unsigned_t<Stored>;
  if (symbols == 0) return std::numeric_limits<Unsigned>::max();
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<Stored>::max());
  return static_cast<Unsigned>(std::min<std::uint64_t>(most, symbols - 1));
}

template <typename Stored, typename Token, typename Work>
RINGFEED_IN_KERNEL bool convert_as(const BitextCollate::Sentence& from, std::size_t first,
                                   const Work& work) noexcept {
  Whole<std::make_unsigned_t<Stored>> foreign{};
  work(Convert<Stored, Token>{from.data + first * sizeof(Stored),
                              static_cast<std::make_unsigned_t<Token>>(from.minus_one ? 1 : 0),
                              last_of<Stored>(from.symbols), &foreign});
  for (std::size_t i = 1; i < kTurn; ++i) {
    foreign[0] = static_cast<std::make_unsigned_t<Stored>>(foreign[0] | foreign[i]);
  }
  return foreign[0] == 0;
}

// Calls work with the Convert of the sentence's code, and its tokens from `first` on. False: one of
// those that it took is no id.
template <typename Token, typename Work>
RINGFEED_IN_KERNEL bool converted(const BitextCollate::Sentence& from, std::size_t first,
                                  const Work& work) noexcept {
  switch (from.code) {
    case TokenCode::kUint8:
      return convert_as<std::uint8_t, Token>(from, first, work);
    case TokenCode::kInt8:
      return convert_as<std::int8_t, Token>(from, first, work);
    case TokenCode::kInt16:
      return convert_as<std::int16_t, Token>(from, first, work);
    case TokenCode::kUint16:
      return convert_as<std::uint16_t, Token>(from, first, work);
    case TokenCode::kInt32:
      return convert_as<std::int32_t, Token>(from, first, work);
    case TokenCode::kUint32:
      return convert_as<std::uint32_t, Token>(from, first, work);
    case TokenCode::kInt64:
      return convert_as<std::int64_t, Token>(from, first, work);
    case TokenCode::kUint64:
      return convert_as<std::uint64_t, Token>(from, first, work);
  }
  return true;
}

// How often the bits of a token stand among others of the same width.
template <typename Stored>
RINGFEED_IN_KERNEL std::uint32_t count_equal(const std::byte* from, std::size_t count,
                                             std::uint64_t token) noexcept {
  constexpr std::size_t kBlock = 32 / sizeof(Stored);
  const auto wanted = static_cast<Stored>(token);
  if (count >= kBlock) {
    // Padding does not stand in sentences, but for mistakes: whether there is any comes first.
    Stored any[kBlock] = {};
    const auto look = [&](std::size_t i) __attribute__((always_inline)) {
      for (std::size_t j = 0; j < kBlock; ++j) {
        any[j] = static_cast<Stored>(
            any[j] | (load<Stored>(from + (i + j) * sizeof(Stored)) == wanted ? 1 : 0));
      }
    };
    for (std::size_t i = 0; i + kBlock <= count; i += kBlock) look(i);
    look(count - kBlock);
    std::uint64_t words[4];
    std::memcpy(words, any, sizeof words);
    if ((words[0] | words[1] | words[2] | words[3]) == 0) return 0;
  }
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found += load<Stored>(from + i * sizeof(Stored)) == wanted ? 1 : 0;
  }
  return found;
}

RINGFEED_IN_KERNEL std::uint32_t count_stored(const BitextCollate::Sentence& in,
                                              std::uint32_t token) noexcept {
  const std::uint64_t stored = token + (in.minus_one ? 1 : 0);
  switch (token_bytes(in.code)) {
    case 1:
      return count_equal<std::uint8_t>(in.data, in.stored, stored);
    case 2:
      return count_equal<std::uint16_t>(in.data, in.stored, stored);
    case 4:
      return count_equal<std::uint32_t>(in.data, in.stored, stored);
    default:
      return count_equal<std::uint64_t>(in.data, in.stored, stored);
  }
}

// Tokens of the row that are not padding.
RINGFEED_IN_KERNEL std::uint32_t length_of(const BitextCollate::Sentence& sentence) noexcept {
  std::uint32_t pads = count_stored(sentence, kPadId);
  for (const std::uint32_t token : sentence.prefix) pads += token == kPadId ? 1 : 0;
  return sentence.tokens - pads;
}

RINGFEED_IN_KERNEL void measure_rows(std::span<BitextCollate::Row> rows) noexcept {
  for (BitextCollate::Row& row : rows) {
    row.source_length = length_of(row.source);
    row.target_length = length_of(row.target);
  }
}

template <typename Token>
RINGFEED_IN_KERNEL Token* put(Token* at, std::uint32_t token) noexcept {
  if (token == kNoToken) return at;
  *at = static_cast<Token>(token);
  return at + 1;
}

// Padding on one side of a row of `width`; a little more than `count` where what comes behind it in
// time overwrites that.
template <typename Token>
RINGFEED_IN_KERNEL void pad(Token* row, std::size_t width, std::size_t count, bool left) noexcept {
  if (count == 0) return;
  Token pads[kTurn];
  for (Token& token : pads) token = kPadId;
  if (width >= kTurn && count <= kTurn) {
    std::memcpy(left ? row : row + width - kTurn, pads, sizeof pads);
    return;
  }
  Token* const at = left ? row : row + width - count;
  for (std::size_t i = 0; i < count; ++i) at[i] = kPadId;
}

// False: an id in it is none.
template <typename Token>
RINGFEED_IN_KERNEL bool write_source(const BitextCollate::Sentence& sentence, Token* row,
                                     std::size_t width, bool left) noexcept {
  const std::size_t padding = width - sentence.tokens;
  pad(row, width, padding, left);
  Token* at = left ? row + padding : row;
  Token* const end = at + sentence.tokens;
  for (const std::uint32_t token : sentence.prefix) at = put(at, token);
  const bool known = converted<Token>(
      sentence, 0, [&](const auto& convert) __attribute__((always_inline)) {
        convert.run(sentence.stored, at);
      });
  if (sentence.ends) at[sentence.stored] = kEosId;
  if (sentence.last != kNoToken && sentence.tokens != 0) {
    end[-1] = static_cast<Token>(sentence.last);
  }
  return known;
}

template <typename Token>
RINGFEED_IN_KERNEL bool write_target(const BitextCollate::Row& from, Token* row, Token* previous,
                                     std::size_t width, bool left) noexcept {
  const BitextCollate::Sentence& sentence = from.target;
  const std::size_t padding = width - sentence.tokens;
  pad(row, width, padding, left);
  pad(previous, width, padding, left);
  if (sentence.tokens == 0) return true;
  Token* at = left ? row + padding : row;
  Token* also = left ? previous + padding : previous;
  *also++ = static_cast<Token>(from.previous_first);
  if (sentence.stored == 0) {  // the language token alone
    put(at, sentence.prefix[0]);
    return true;
  }
  if (sentence.prefix[0] != kNoToken) {
    at = put(at, sentence.prefix[0]);
    also = put(also, sentence.prefix[0]);
  }
  // The last token is in the target only: behind it `previous` has padding, or the next row.
  return converted<Token>(
      sentence, 0, [&](const auto& convert) __attribute__((always_inline)) {
        convert.run(sentence.stored, at, also);
      });
}

template <typename Token>
struct Rows {
  std::span<const BitextCollate::Row> rows;
  std::span<const std::uint32_t> order;
  const BitextPadding& padding;
  std::size_t source_width;
  std::size_t target_width;
  const BitextArrays<Token>& to;
  std::vector<BitextCollate::Foreign>& foreign;
};

template <typename Token>
RINGFEED_IN_KERNEL void write_rows(const Rows<Token>& all) noexcept {
  const auto& [rows, order, padding, source_width, target_width, to, foreign] = all;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const BitextCollate::Row& row = rows[order[k]];
    to.id[k] = static_cast<std::int64_t>(row.id);
    to.source_lengths[k] = row.source_length;
    if (to.source_lang_id != nullptr) {
      to.source_lang_id[k] = row.part->source_lang_id;
      to.target_lang_id[k] = row.part->target_lang_id;
    }
    if (to.direction != nullptr) to.direction[k] = static_cast<std::int32_t>(row.part->direction);
    const bool source =
        write_source(row.source, to.source + k * source_width, source_width, padding.left_source);
    const bool target =
        write_target(row, to.target + k * target_width, to.previous + k * target_width,
                     target_width, padding.left_target);
    if (!source || !target) foreign.push_back({order[k], source});
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void measure_avx2(std::span<BitextCollate::Row> rows) noexcept {
  measure_rows(rows);
}
template <typename Token>
__attribute__((target("avx2"))) void write_avx2(const Rows<Token>& rows) noexcept {
  write_rows(rows);
}
#endif

void measure(Kernel kernel, std::span<BitextCollate::Row> rows) noexcept {
#if defined(__x86_64__)
  if (kernel != Kernel::kPortable) return measure_avx2(rows);
#endif
  measure_rows(rows);
}

#undef RINGFEED_IN_KERNEL

// ---- sentences

std::uint64_t token_at(const BitextCollate::Sentence& sentence, std::uint32_t at) noexcept {
  std::int64_t token = 0;
  (void)converted<std::int64_t>(sentence, at, [&](const auto& convert) { token = convert.one(0); });
  return static_cast<std::uint64_t>(token);
}

// Cuts to `most` tokens, `</s>` included: first all of these go from the end, then from the begin,
// then the first tokens are kept and one `</s>` follows.
void truncate(BitextCollate::Sentence& sentence, std::uint32_t most) noexcept {
  while (sentence.stored != 0 && token_at(sentence, sentence.stored - 1) == kEosId) {
    --sentence.stored;
  }
  while (sentence.stored != 0 && token_at(sentence, 0) == kEosId) {
    sentence.data += token_bytes(sentence.code);
    --sentence.stored;
  }
  sentence.stored = std::min(sentence.stored, most - 1);
  sentence.ends = true;
}

void set_sentence(BitextCollate::Sentence& to, const TokenFile& file, const SentenceBytes& bytes,
                  std::uint32_t symbols) noexcept {
  to.data = bytes.data;
  to.stored = bytes.tokens;
  to.prefix[0] = to.prefix[1] = kNoToken;
  to.last = kNoToken;
  to.code = file.code();
  to.minus_one = file.kind() == TokenFile::Kind::kLegacy;
  to.ends = false;
  to.symbols = symbols;
}

// Brings a sentence into the cache; of a long one the begin, the processor finds the rest itself.
// The first byte is read, not only asked for: where its page has to be looked up first, processors
// may drop what is only asked for.
std::uint8_t fetch(const SentenceBytes& sentence, std::uint32_t width) noexcept {
  constexpr std::uint64_t kLine = 64;
  const std::uint64_t bytes = std::min<std::uint64_t>(std::uint64_t{sentence.tokens} * width, 512);
  if (bytes == 0) return 0;
  for (std::uint64_t at = kLine; at < bytes; at += kLine) __builtin_prefetch(sentence.data + at);
  __builtin_prefetch(sentence.data + bytes - 1);
  return std::to_integer<std::uint8_t>(*sentence.data);
}

std::uint64_t tokens_of(const BitextCollate::Sentence& sentence) noexcept {
  std::uint64_t tokens = std::uint64_t{sentence.stored} + (sentence.ends ? 1 : 0);
  for (const std::uint32_t token : sentence.prefix) tokens += token == kNoToken ? 0 : 1;
  return tokens;
}

}  // namespace

// ---- a batch

void BitextCollate::gather(const BatchPlan& plan, std::span<const BitextFiles> files) noexcept {
  const std::span<const BatchPlanPart> parts = plan.parts();
  RF_CHECK(files.size() == parts.size(), files.size(), parts.size());
  rows_.clear();
  skipped_.clear();
  by_direction_ = false;
  source_longest_ = target_longest_ = 0;
  source_tokens_ = target_tokens_ = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const BitextFiles& of = files[p];
    if (of.source == nullptr || of.target == nullptr) continue;
    RF_CHECK(of.source->sentences() == parts[p].sentences, of.source->sentences(), p);
    RF_CHECK(of.target->sentences() == parts[p].sentences, of.target->sentences(), p);
    by_direction_ = by_direction_ || parts[p].replaces_eos == kEosByDirection;
  }
  const auto rows = static_cast<std::uint32_t>(plan.rows().size());
  for (std::uint32_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    look_up(plan, files, begin, std::min(begin + kRowsAtOnce, rows));
    const std::size_t before = rows_.size();
    for (const Found& found : found_) {
      const BatchPlanRow& row = plan.rows()[found.plan_row];
      add_row(found, row, parts[row.part], files[row.part]);
    }
    measure(kernel_, std::span(rows_).subspan(before));
  }
  settle();
}

// What follows from the rows.
void BitextCollate::settle() noexcept {
  source_tokens_ = target_tokens_ = 0;
  for (const Row& row : rows_) {
    source_tokens_ += row.source_length;
    target_tokens_ += row.target_length;
  }
  source_width_ = static_cast<std::uint32_t>(
      width_of(source_longest_, padding_.source_least, padding_.multiple));
  target_width_ = static_cast<std::uint32_t>(
      width_of(target_longest_, padding_.target_least, padding_.multiple));
  settle_order();
}

// Hardly anything here is in the cache, and much of it would have to be waited for one by one. So
// each thing is asked for of many rows before it is looked at of the first: their entries of the
// indices, then their sentences. Short loops, for a processor looks ahead over so many
// instructions; and of so many rows at once that their pages are still known when they are read.
void BitextCollate::look_up(const BatchPlan& plan, std::span<const BitextFiles> files,
                            std::uint32_t begin, std::uint32_t end) noexcept {
  const std::span<const BatchPlanPart> parts = plan.parts();
  const std::span<const BatchPlanRow> rows = plan.rows();
  const auto sentence = [&parts](const BatchPlanRow& row) {
    const std::uint64_t number = row.index - parts[row.part].first;
    return number < parts[row.part].sentences ? number : number % parts[row.part].sentences;
  };
  const auto at_hand = [&files](const BatchPlanRow& row) {
    return files[row.part].source != nullptr && files[row.part].target != nullptr;
  };
  for (const BatchPlanRow& row : rows.subspan(begin, end - begin)) {
    if (!at_hand(row)) continue;
    files[row.part].source->fetch(sentence(row));
    files[row.part].target->fetch(sentence(row));
  }
  found_.clear();
  for (std::uint32_t r = begin; r < end; ++r) {
    const BatchPlanRow& row = rows[r];
    if (!at_hand(row)) continue;
    const std::optional<SentenceBytes> source = files[row.part].source->sentence(sentence(row));
    const std::optional<SentenceBytes> target = files[row.part].target->sentence(sentence(row));
    if (source && target) {
      found_.push_back({*source, *target, r});
    } else {
      skipped_.push_back({r, Skip::kOutOfBounds, source.has_value()});
    }
  }
  std::uint32_t read = 0;
  for (const Found& found : found_) {
    const BitextFiles& of = files[rows[found.plan_row].part];
    read += fetch(found.source, token_bytes(of.source->code()));
    read += fetch(found.target, token_bytes(of.target->code()));
  }
  asm volatile("" : : "r"(read));  // so that the compiler does not leave the reads out
}

void BitextCollate::add_row(const Found& found, const BatchPlanRow& planned,
                            const BatchPlanPart& part, const BitextFiles& files) noexcept {
  const std::uint64_t before = rows_.size();
  // In its place: a row that is copied right behind being made is waited for.
  Row& row = rows_.emplace_back();
  set_sentence(row.source, *files.source, found.source, part.source_symbols);
  set_sentence(row.target, *files.target, found.target, part.target_symbols);
  row.plan_row = found.plan_row;
  row.previous_first = kEosId;
  row.part = &part;
  row.id = planned.index;
  if (part.truncate_source != 0) truncate(row.source, part.truncate_source);
  if (part.replaces_eos != 0) {
    row.source.last = part.encoder_token;
    if (part.decoder_token != kNoToken) row.previous_first = part.decoder_token;
  } else {
    row.source.prefix[0] = part.encoder_token;
    row.target.prefix[0] = part.decoder_token;
  }
  row.source.prefix[1] = part.source_tag;
  const std::uint64_t source = tokens_of(row.source);
  const std::uint64_t target = tokens_of(row.target);
  const std::uint64_t source_longest = std::max(source_longest_, source);
  const std::uint64_t target_longest = std::max(target_longest_, target);
  const std::uint64_t rows = before + 1;
  if (source > capacity_.source_positions || target > capacity_.target_positions ||
      rows > capacity_.rows ||
      rows * width_of(source_longest, padding_.source_least, padding_.multiple) >
          capacity_.source_tokens ||
      rows * width_of(target_longest, padding_.target_least, padding_.multiple) >
          capacity_.target_tokens) {
    skipped_.push_back({found.plan_row, Skip::kTooLarge, target > capacity_.target_positions});
    rows_.pop_back();
    return;
  }
  source_longest_ = source_longest;
  target_longest_ = target_longest;
  row.source.tokens = static_cast<std::uint32_t>(source);
  row.target.tokens = static_cast<std::uint32_t>(target);
}

void BitextCollate::settle_order() noexcept {
  const std::size_t rows = rows_.size();
  order_.resize(rows);
  lengths_.resize(rows);
  if (!by_direction_) {
    for (std::size_t i = 0; i < rows; ++i) lengths_[i] = rows_[i].source_length;
    sort_rows(lengths_, scratch_, order_);
    return;
  }
  // With language tokens in the places of `</s>` fairseq collates each direction by itself, and
  // then sorts all rows again. Neither sort is stable, so both are done.
  grouped_.resize(rows);
  for (std::uint32_t i = 0; i < rows; ++i) grouped_[i] = i;
  const auto direction = [this](std::uint32_t row) { return rows_[row].part->direction; };
  std::ranges::sort(grouped_, [&direction](std::uint32_t a, std::uint32_t b) {
    return std::pair(direction(a), a) < std::pair(direction(b), b);
  });
  for (std::size_t begin = 0, end = 0; begin < rows; begin = end) {
    while (end < rows && direction(grouped_[end]) == direction(grouped_[begin])) ++end;
    const std::span<std::uint32_t> group = std::span(grouped_).subspan(begin, end - begin);
    const std::span<std::uint32_t> lengths = std::span(lengths_).first(group.size());
    part_order_.resize(group.size());
    for (std::size_t i = 0; i < group.size(); ++i) lengths[i] = rows_[group[i]].source_length;
    sort_rows(lengths, scratch_, part_order_);
    for (std::uint32_t& row : part_order_) row = group[row];
    std::ranges::copy(part_order_, group.begin());
  }
  for (std::size_t i = 0; i < rows; ++i) lengths_[i] = rows_[grouped_[i]].source_length;
  sort_rows(lengths_, scratch_, order_);
  for (std::uint32_t& row : order_) row = grouped_[row];
}

void BitextCollate::leave_out_foreign() noexcept {
  std::ranges::sort(foreign_, std::ranges::less(), &Foreign::row);
  auto next = foreign_.begin();
  std::size_t kept = 0;
  source_longest_ = target_longest_ = 0;
  for (std::uint32_t i = 0; i < rows_.size(); ++i) {
    if (next != foreign_.end() && next->row == i) {
      skipped_.push_back({rows_[i].plan_row, Skip::kNoSymbol, next->target});
      ++next;
      continue;
    }
    rows_[kept] = rows_[i];
    source_longest_ = std::max<std::uint64_t>(source_longest_, rows_[kept].source.tokens);
    target_longest_ = std::max<std::uint64_t>(target_longest_, rows_[kept].target.tokens);
    ++kept;
  }
  rows_.resize(kept);
  // What has changed may also have other numbers of padding.
  measure(kernel_, std::span(rows_));
  settle();
}

template <typename Token>
bool BitextCollate::write(const BitextArrays<Token>& to) noexcept {
  foreign_.clear();
  const Rows<Token> rows{rows_, order_, padding_, source_width_, target_width_, to, foreign_};
#if defined(__x86_64__)
  if (kernel_ != Kernel::kPortable) {
    write_avx2(rows);
  } else {
    write_rows(rows);
  }
#else
  write_rows(rows);
#endif
  if (foreign_.empty()) return true;
  leave_out_foreign();
  return false;
}

template bool BitextCollate::write(const BitextArrays<std::int64_t>&) noexcept;
template bool BitextCollate::write(const BitextArrays<std::int32_t>&) noexcept;

}  // namespace ringfeed::formats
