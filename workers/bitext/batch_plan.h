// What is to become one batch of parallel text: which sentences of which files, in which order. It
// says all that is needed, so that whoever reads it keeps nothing from one to the next but open
// files. Little-endian, 8-byte aligned; made by write_batch_plan, looked at by BatchPlan, which
// trusts nothing.
//
//   offset  size         field
//        0  64           BatchPlanHead
//       64  72 x parts   BatchPlanPart: the files that it takes sentences from
//           16 x rows    BatchPlanRow
//           text         the files' paths, up to a multiple of 8
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace ringfeed::formats {

// No token stands there.
inline constexpr std::uint32_t kNoToken = 0xffffffffU;

enum class BatchKind : std::uint32_t {
  kBatch = 0,
  kStandIn = 1,  // for a rank that has no batch left: the epoch's first batch before the shuffle
  kFirstStandIn = 2,  // the same at the begin of an epoch, so that trainers have it
};

// Whether tokens stand in the places of `</s>`.
enum ReplacesEos : std::uint16_t {
  kEosStays = 0,
  kEosByDirection = 1,  // each direction is collated by itself, and then all of them together
  kEosOfOne = 2,        // there is one direction, which is collated once
};

struct BatchPlanHead {
  std::uint64_t epoch;  // from 1
  std::uint64_t batch;  // of the epoch, over all ranks, from 0; of a stand-in: as many as there are
  std::uint64_t batches;  // of the epoch, over all ranks, without stand-ins
  std::uint32_t generation;
  std::uint32_t world_size;
  BatchKind kind;
  std::uint32_t rows;
  std::uint32_t parts;
  std::uint32_t text_bytes;
  std::uint64_t chain_epoch;  // with which the chain of epochs began (bitext_sampling.h)
  std::uint64_t chain_pass;
};
static_assert(sizeof(BatchPlanHead) == 64);

struct BatchPlanPart {
  std::uint64_t first;      // number, in its direction, of the first sentence of the files
  std::uint64_t sentences;  // in each of the two files; numbers beyond run through them again
  std::uint32_t number;     // of the pair of files, the same in all plans of a feed
  std::uint32_t direction;
  std::uint32_t encoder_token;  // kNoToken: none
  std::uint32_t decoder_token;
  std::uint32_t source_tag;
  std::uint32_t truncate_source;  // tokens, `</s>` included; 0: not
  std::uint32_t source_lang_id;
  std::uint32_t target_lang_id;
  std::uint16_t replaces_eos;  // a ReplacesEos
  std::uint16_t source_bytes;  // of its paths, without .bin and .idx
  std::uint16_t target_bytes;
  std::uint16_t reserved;
  std::uint32_t source_at;  // where they begin in the text
  std::uint32_t target_at;
  std::uint32_t source_symbols;  // ids in the files are below this; 0: any may stand there
  std::uint32_t target_symbols;
};
static_assert(sizeof(BatchPlanPart) == 72);

struct BatchPlanRow {
  std::uint64_t index;  // of the sentence in its direction
  std::uint32_t part;   // of this plan
  std::uint32_t reserved;
};
static_assert(sizeof(BatchPlanRow) == 16);

[[nodiscard]] constexpr std::uint64_t batch_plan_bytes(std::uint64_t parts, std::uint64_t rows,
                                                       std::uint64_t text_bytes) noexcept {
  return sizeof(BatchPlanHead) + parts * sizeof(BatchPlanPart) + rows * sizeof(BatchPlanRow) +
         (text_bytes + 7) / 8 * 8;
}

// Writes a plan into room of batch_plan_bytes() (RF_CHECK); rows, parts and text_bytes of the head
// are set here.
void write_batch_plan(std::span<std::byte> out, BatchPlanHead head,
                      std::span<const BatchPlanPart> parts, std::span<const BatchPlanRow> rows,
                      std::string_view text) noexcept;

// A plan in a record, which must outlive it and is 8-byte aligned.
class BatchPlan {
 public:
  // False: it is no plan, or one of its parts lies outside of it, or a row's sentence is not in its
  // part's files.
  [[nodiscard]] bool read(std::span<const std::byte> record) noexcept;

  [[nodiscard]] const BatchPlanHead& head() const noexcept { return *head_; }
  [[nodiscard]] std::span<const BatchPlanPart> parts() const noexcept { return parts_; }
  [[nodiscard]] std::span<const BatchPlanRow> rows() const noexcept { return rows_; }
  [[nodiscard]] std::string_view source(const BatchPlanPart& part) const noexcept {
    return text_.substr(part.source_at, part.source_bytes);
  }
  [[nodiscard]] std::string_view target(const BatchPlanPart& part) const noexcept {
    return text_.substr(part.target_at, part.target_bytes);
  }
  // The row's sentence in the files of its part.
  [[nodiscard]] std::uint64_t sentence(const BatchPlanRow& row) const noexcept {
    const BatchPlanPart& part = parts_[row.part];
    return (row.index - part.first) % part.sentences;
  }

 private:
  const BatchPlanHead* head_ = nullptr;
  std::span<const BatchPlanPart> parts_;
  std::span<const BatchPlanRow> rows_;
  std::string_view text_;
};

}  // namespace ringfeed::formats
