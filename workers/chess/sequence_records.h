// What travels between the stages that make sequences of tokens and those that put them together,
// by the record's `user`. Little-endian.
//
//   sequences a packed TokenSequence (chess/token_sequence.h); or one of the words below
//   turns     TurnRecord: who asked for a sample next (EXACT)
#pragma once

#include <cstdint>
#include <span>

#include "ringfeed/worker/stage.h"
#include "workers/chess/token_sequence.h"

namespace ringfeed {

// ---- sequences
inline constexpr std::uint64_t kSequenceRecord = 0;
// No bytes. The samples of an epoch are complete.
inline constexpr std::uint64_t kSequencesEndRecord = 1;
// No bytes. The batch under way is complete, however short (EXACT).
inline constexpr std::uint64_t kBatchEndRecord = 2;
// TurnRecord. There was no sample (EXACT, the answer to a turn).
inline constexpr std::uint64_t kNoSampleRecord = 3;

// The tag of a packed sequence's record is its lineage.
[[nodiscard]] inline RecordInfo sequence_info(std::span<const std::byte> packed) noexcept {
  const formats::TokenSequence::Lineage lineage = formats::packed_lineage(packed);
  return {.tag = {std::uint64_t{lineage.file} << 32 | lineage.game,
                  std::uint64_t{lineage.start} << 32 | lineage.variation_epoch},
          .user = kSequenceRecord};
}

// ---- turns
// Where the two random streams of a worker of the original are: how many words of 32 bits each has
// given since it was seeded.
struct RandomPlace {
  std::uint64_t python = 0;
  std::uint64_t numpy = 0;
};
struct TurnRecord {
  RandomPlace random;
  std::uint32_t worker;
  std::uint32_t workers;
  std::uint32_t epoch;
  std::uint32_t restart;  // 1: from the first sample on
};
static_assert(sizeof(TurnRecord) == 32);

}  // namespace ringfeed
