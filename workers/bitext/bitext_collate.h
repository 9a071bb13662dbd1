// Sentences of parallel text to the arrays of one batch, as fairseq collates them.
//
//   source row  [language token] [tag] tokens of the file, </s> included
//   target row  [language token] tokens of the file, </s> included
//   previous    </s>, then the target without its last token, whatever that is
//
// A row begins at the left of its array, or, with padding on the left, ends at its right; the rest
// is padding (id 1). Padding on the left pads `previous` alike: its </s> stands right before the
// sentence, in the column where the target has its first token, not in the first column.
//
// Rows come in the order of their lengths, longest source first. A length is the number of tokens
// that are not padding. Rows of equal length come in the order that fairseq's sort leaves them in
// (sort_rows).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "workers/bitext/batch_plan.h"
#include "workers/io/kernel.h"
#include "workers/io/large_vector.h"
#include "workers/io/token_file.h"

namespace ringfeed::formats {

inline constexpr std::uint32_t kPadId = 1;
inline constexpr std::uint32_t kEosId = 2;

// order[k]: which of the rows comes k-th; the longest first. order.size() == lengths.size().
//
// Not stable: PyTorch's sort on the CPU is std::sort of GNU's library, whose result depends on
// nothing but the lengths: an insertion sort, and so stable, up to 16 rows; from 17 on quicksort by
// the median of three, heapsort where that degenerates, and an insertion sort at the end. This is
// the same algorithm step by step, whatever library ringfeed is built with.
// `scratch` is room that is used again.
void sort_rows(std::span<const std::uint32_t> lengths, std::vector<std::uint64_t>& scratch,
               std::span<std::uint32_t> order) noexcept;

// How rows are padded.
struct BitextPadding {
  bool left_source = true;
  bool left_target = false;
  std::uint32_t multiple = 1;      // widths are multiples of it
  std::uint32_t source_least = 0;  // widths are at least these
  std::uint32_t target_least = 0;
};

// What bounds a planned batch: its rows times its longest sentence of either side, or its rows, or
// both; 0: this does not. A sentence has at least one token.
struct BitextLimits {
  std::uint64_t tokens = 0;
  std::uint64_t rows = 0;
  std::uint64_t source_positions = 0;  // of one sentence
  std::uint64_t target_positions = 0;
};

// The largest that arrays can become within the limits.
struct BitextCapacity {
  std::uint64_t rows = 0;
  std::uint64_t source_tokens = 0;  // of the array, padding included
  std::uint64_t target_tokens = 0;
  std::uint64_t source_positions = 0;  // of one sentence
  std::uint64_t target_positions = 0;
};
[[nodiscard]] BitextCapacity bitext_capacity(const BitextLimits& limits,
                                             const BitextPadding& padding) noexcept;

// The files of a plan's part; nullptr: not at hand, its rows are left out without a word.
struct BitextFiles {
  const TokenFile* source = nullptr;
  const TokenFile* target = nullptr;
};

// Where the arrays of a batch are written to. Optional ones: nullptr.
template <typename Token>
struct BitextArrays {
  std::int64_t* id;
  Token* source;  // [rows, source width]
  std::int64_t* source_lengths;
  Token* previous;  // [rows, target width]
  Token* target;
  std::int64_t* source_lang_id = nullptr;
  std::int64_t* target_lang_id = nullptr;
  std::int32_t* direction = nullptr;
};

// Makes one batch after the other; keeps nothing from one to the next but memory.
class BitextCollate {
 public:
  enum class Skip : std::uint8_t {
    kOutOfBounds,  // the sentence does not lie where the index says
    kTooLarge,     // it is longer than planned, or the batch is
    kNoSymbol,     // an id in it is none of the dictionary's
  };
  struct Skipped {
    std::uint32_t row;  // of the plan
    Skip why;
    bool target;  // of which side
  };

  // kernel: whatever is more than AVX2 counts as that.
  BitextCollate(const BitextPadding& padding, const BitextCapacity& capacity,
                Kernel kernel = best_kernel())
      : padding_(padding), capacity_(capacity), kernel_(kernel) {}

  // Looks the plan's sentences up, in `files` by part (RF_CHECK: as many as parts, and with as many
  // sentences as the part says), and settles which rows the batch has and in which order.
  void gather(const BatchPlan& plan, std::span<const BitextFiles> files) noexcept;

  // Of what has been gathered:
  [[nodiscard]] std::uint32_t rows() const noexcept {
    return static_cast<std::uint32_t>(rows_.size());
  }
  [[nodiscard]] std::uint32_t source_width() const noexcept { return source_width_; }
  [[nodiscard]] std::uint32_t target_width() const noexcept { return target_width_; }
  // Tokens that are not padding.
  [[nodiscard]] std::uint64_t source_tokens() const noexcept { return source_tokens_; }
  [[nodiscard]] std::uint64_t target_tokens() const noexcept { return target_tokens_; }
  [[nodiscard]] std::span<const Skipped> skipped() const noexcept { return skipped_; }

  // Writes it. The arrays have room for rows() rows of these widths, which is within the capacity.
  // For std::int64_t and std::int32_t.
  //
  // Ids are looked at as they are written, for files may change at any time. False: some rows have
  // one that is none of the dictionary's; they are left out of what has been gathered (rows(),
  // widths and skipped() are others), and the rest is to be written.
  template <typename Token>
  [[nodiscard]] bool write(const BitextArrays<Token>& to) noexcept;

  // One side of a row.
  struct Sentence {
    const std::byte* data;    // of its first token that is taken from the file
    std::uint32_t stored;     // tokens that are taken from there
    std::uint32_t tokens;     // of the row
    std::uint32_t prefix[2];  // before them; kNoToken: none
    std::uint32_t last;       // the row's last token, whatever stands there; kNoToken: as it is
    TokenCode code;
    bool minus_one;         // stored ids are one higher
    bool ends;              // </s> is appended
    std::uint32_t symbols;  // ids are below this; 0: any may stand there
  };
  struct Row {
    Sentence source;
    Sentence target;
    std::uint32_t previous_first;  // what `previous` begins with
    std::uint32_t source_length;
    std::uint32_t target_length;
    const BatchPlanPart* part;
    std::uint64_t id;
    std::uint32_t plan_row;
  };

  // A row of which a side has an id that is none.
  struct Foreign {
    std::uint32_t row;  // of what has been gathered
    bool target;
  };

 private:
  // Where a planned row lies.
  struct Found {
    SentenceBytes source;
    SentenceBytes target;
    std::uint32_t plan_row;
  };
  // bench/bitext_bench: with many more, pages have to be looked up twice.
  static constexpr std::uint32_t kRowsAtOnce = 256;

  // Rows [begin, end) of the plan, to found_.
  void look_up(const BatchPlan& plan, std::span<const BitextFiles> files, std::uint32_t begin,
               std::uint32_t end) noexcept;
  void add_row(const Found& found, const BatchPlanRow& planned, const BatchPlanPart& part,
               const BitextFiles& files) noexcept;
  void settle() noexcept;
  void settle_order() noexcept;
  void leave_out_foreign() noexcept;

  BitextPadding padding_;
  BitextCapacity capacity_;
  Kernel kernel_;
  LargeVector<Row> rows_;             // in the plan's order
  std::vector<std::uint32_t> order_;  // of rows_
  std::vector<Skipped> skipped_;
  std::uint64_t source_longest_ = 0;  // tokens
  std::uint64_t target_longest_ = 0;
  std::uint32_t source_width_ = 0;
  std::uint32_t target_width_ = 0;
  std::uint64_t source_tokens_ = 0;
  std::uint64_t target_tokens_ = 0;
  bool by_direction_ = false;

  // Room for one call.
  std::vector<Found> found_;
  std::vector<std::uint32_t> lengths_;
  std::vector<std::uint32_t> grouped_;
  std::vector<std::uint32_t> part_order_;
  std::vector<std::uint64_t> scratch_;
  std::vector<Foreign> foreign_;
};

}  // namespace ringfeed::formats
