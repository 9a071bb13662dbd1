#include "workers/formats/bitext_collate.h"

#include <algorithm>
#include <bit>
#include <cstring>
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

// Tokens that one turn of a loop takes: a fixed number, so that it becomes a few vectors without
// anything before or behind. What is left over is taken by a last turn that begins earlier.
constexpr std::size_t kTurn = 8;

template <typename Stored, typename Token>
struct Convert {
  const std::byte* from;
  Token* to;
  Token* also;  // the same again; nullptr: nowhere
  Token less;

  inline void turn(std::size_t i) const noexcept {
    Token tokens[kTurn];
    for (std::size_t j = 0; j < kTurn; ++j) {
      // Unsigned: an id that is no Token is cut to its bits.
      using Bits = std::make_unsigned_t<Token>;
      tokens[j] =
          static_cast<Token>(static_cast<Bits>(load<Stored>(from + (i + j) * sizeof(Stored))) -
                             static_cast<Bits>(less));
    }
    std::memcpy(to + i, tokens, sizeof tokens);
    if (also != nullptr) std::memcpy(also + i, tokens, sizeof tokens);
  }
  inline void run(std::size_t count) const noexcept {
    if (count < kTurn) {
      for (std::size_t i = 0; i < count; ++i) {
        using Bits = std::make_unsigned_t<Token>;
        const auto token = static_cast<Token>(
            static_cast<Bits>(load<Stored>(from + i * sizeof(Stored))) - static_cast<Bits>(less));
        to[i] = token;
        if (also != nullptr) also[i] = token;
      }
      return;
    }
    for (std::size_t i = 0; i + kTurn <= count; i += kTurn) turn(i);
    if (count % kTurn != 0) turn(count - kTurn);
  }
};

template <typename Token>
inline void convert(const BitextCollate::Sentence& from, std::size_t first, std::size_t count,
                    Token* to, Token* also) noexcept {
  const Token less = from.minus_one ? 1 : 0;
  switch (from.code) {
    case TokenCode::kUint8:
      return Convert<std::uint8_t, Token>{from.data + first, to, also, less}.run(count);
    case TokenCode::kInt8:
      return Convert<std::int8_t, Token>{from.data + first, to, also, less}.run(count);
    case TokenCode::kInt16:
      return Convert<std::int16_t, Token>{from.data + 2 * first, to, also, less}.run(count);
    case TokenCode::kUint16:
      return Convert<std::uint16_t, Token>{from.data + 2 * first, to, also, less}.run(count);
    case TokenCode::kInt32:
      return Convert<std::int32_t, Token>{from.data + 4 * first, to, also, less}.run(count);
    case TokenCode::kUint32:
      return Convert<std::uint32_t, Token>{from.data + 4 * first, to, also, less}.run(count);
    case TokenCode::kInt64:
      return Convert<std::int64_t, Token>{from.data + 8 * first, to, also, less}.run(count);
    case TokenCode::kUint64:
      return Convert<std::uint64_t, Token>{from.data + 8 * first, to, also, less}.run(count);
  }
}

// How often the bits of a token stand among others of the same width.
template <typename Stored>
inline std::size_t count_equal(const std::byte* from, std::size_t count,
                               std::uint64_t token) noexcept {
  constexpr std::size_t kBlock = 32 / sizeof(Stored);
  const auto wanted = static_cast<Stored>(token);
  // Padding does not stand in sentences, but for mistakes: whether there is any comes first.
  Stored any = 0;
  const auto look = [&](std::size_t i) {
    Stored here = 0;
    for (std::size_t j = 0; j < kBlock; ++j) {
      here = static_cast<Stored>(here |
                                 (load<Stored>(from + (i + j) * sizeof(Stored)) == wanted ? 1 : 0));
    }
    any = static_cast<Stored>(any | here);
  };
  if (count >= kBlock) {
    for (std::size_t i = 0; i + kBlock <= count; i += kBlock) look(i);
    if (count % kBlock != 0) look(count - kBlock);
    if (any == 0) return 0;
  }
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found += load<Stored>(from + i * sizeof(Stored)) == wanted ? 1 : 0;
  }
  return found;
}

inline std::size_t count_stored(const BitextCollate::Sentence& in, std::uint32_t token) noexcept {
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
inline std::uint32_t length_of(const BitextCollate::Sentence& sentence) noexcept {
  std::size_t pads = count_stored(sentence, kPadId);
  for (const std::uint32_t token : sentence.prefix) pads += token == kPadId ? 1 : 0;
  return sentence.tokens - static_cast<std::uint32_t>(pads);
}

template <typename Token>
inline Token* put(Token* at, std::uint32_t token) noexcept {
  if (token == kNoToken) return at;
  *at = static_cast<Token>(token);
  return at + 1;
}

template <typename Token>
inline void pad(Token* at, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) at[i] = kPadId;
}

template <typename Token>
inline void write_source(const BitextCollate::Sentence& sentence, Token* row, std::size_t width,
                         bool left) noexcept {
  const std::size_t padding = width - sentence.tokens;
  pad(left ? row : row + sentence.tokens, padding);
  Token* at = left ? row + padding : row;
  Token* const end = at + sentence.tokens;
  for (const std::uint32_t token : sentence.prefix) at = put(at, token);
  convert<Token>(sentence, 0, sentence.stored, at, nullptr);
  if (sentence.ends) at[sentence.stored] = kEosId;
  if (sentence.last != kNoToken && sentence.tokens != 0) {
    end[-1] = static_cast<Token>(sentence.last);
  }
}

template <typename Token>
inline void write_target(const BitextCollate::Row& from, Token* row, Token* previous,
                         std::size_t width, bool left) noexcept {
  const BitextCollate::Sentence& sentence = from.target;
  const std::size_t padding = width - sentence.tokens;
  pad(left ? row : row + sentence.tokens, padding);
  pad(left ? previous : previous + sentence.tokens, padding);
  if (sentence.tokens == 0) return;
  Token* at = left ? row + padding : row;
  Token* also = left ? previous + padding : previous;
  *also++ = static_cast<Token>(from.previous_first);
  if (sentence.stored == 0) {  // the language token alone
    put(at, sentence.prefix[0]);
    return;
  }
  if (sentence.prefix[0] != kNoToken) {
    at = put(at, sentence.prefix[0]);
    also = put(also, sentence.prefix[0]);
  }
  // The last token is in the target only: behind it `previous` has padding, or the next row.
  const std::size_t both = sentence.stored - 1;
  convert<Token>(sentence, 0, both, at, also);
  convert<Token>(sentence, both, 1, at + both, nullptr);
}

template <typename Token>
inline void write_rows(std::span<const BitextCollate::Row> rows,
                       std::span<const std::uint32_t> order, const BitextPadding& padding,
                       std::size_t source_width, std::size_t target_width,
                       const BitextArrays<Token>& to) noexcept {
  for (std::size_t k = 0; k < order.size(); ++k) {
    const BitextCollate::Row& row = rows[order[k]];
    to.id[k] = static_cast<std::int64_t>(row.id);
    to.source_lengths[k] = row.source_length;
    if (to.source_lang_id != nullptr) {
      to.source_lang_id[k] = row.part->source_lang_id;
      to.target_lang_id[k] = row.part->target_lang_id;
    }
    if (to.direction != nullptr) to.direction[k] = static_cast<std::int32_t>(row.part->direction);
    write_source(row.source, to.source + k * source_width, source_width, padding.left_source);
    write_target(row, to.target + k * target_width, to.previous + k * target_width, target_width,
                 padding.left_target);
  }
}

// ---- sentences

std::uint64_t token_at(const BitextCollate::Sentence& sentence, std::uint32_t at) noexcept {
  std::int64_t token = 0;
  convert<std::int64_t>(sentence, at, 1, &token, nullptr);
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

BitextCollate::Sentence sentence_of(const TokenFile& file, const SentenceBytes& bytes) noexcept {
  return {.data = bytes.data,
          .stored = bytes.tokens,
          .tokens = 0,
          .prefix = {kNoToken, kNoToken},
          .last = kNoToken,
          .code = file.code(),
          .minus_one = file.kind() == TokenFile::Kind::kLegacy,
          .ends = false};
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
    by_direction_ = by_direction_ || parts[p].replaces_eos != 0;
  }
  const auto rows = static_cast<std::uint32_t>(plan.rows().size());
  for (std::uint32_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    look_up(plan, files, begin, std::min(begin + kRowsAtOnce, rows));
    for (const Found& found : found_) {
      const BatchPlanRow& row = plan.rows()[found.plan_row];
      add_row(found, row, parts[row.part], files[row.part]);
    }
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
  Row row{.source = sentence_of(*files.source, found.source),
          .target = sentence_of(*files.target, found.target),
          .previous_first = kEosId,
          .source_length = 0,
          .target_length = 0,
          .part = &part,
          .id = planned.index};
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
  const std::uint64_t rows = rows_.size() + 1;
  if (source > capacity_.source_positions || target > capacity_.target_positions ||
      rows > capacity_.rows ||
      rows * width_of(source_longest, padding_.source_least, padding_.multiple) >
          capacity_.source_tokens ||
      rows * width_of(target_longest, padding_.target_least, padding_.multiple) >
          capacity_.target_tokens) {
    skipped_.push_back({found.plan_row, Skip::kTooLarge, target > capacity_.target_positions});
    return;
  }
  source_longest_ = source_longest;
  target_longest_ = target_longest;
  row.source.tokens = static_cast<std::uint32_t>(source);
  row.target.tokens = static_cast<std::uint32_t>(target);
  row.source_length = length_of(row.source);
  row.target_length = length_of(row.target);
  source_tokens_ += row.source_length;
  target_tokens_ += row.target_length;
  rows_.push_back(row);
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

template <typename Token>
void BitextCollate::write(const BitextArrays<Token>& to) const noexcept {
  write_rows<Token>(rows_, order_, padding_, source_width_, target_width_, to);
}

template void BitextCollate::write(const BitextArrays<std::int64_t>&) const noexcept;
template void BitextCollate::write(const BitextArrays<std::int32_t>&) const noexcept;

}  // namespace ringfeed::formats
