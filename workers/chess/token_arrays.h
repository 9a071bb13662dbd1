// A token sequence spread over the arrays of one row of a batch (token_sequence.h says what follows
// from what). Allocates nothing; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ringfeed/shm/result.h"
#include "workers/chess/token_sequence.h"

namespace ringfeed::formats {

// Where the row's elements go, `length` of each. A null pointer: the batch does not have that
// array.
template <typename Id, typename BoardTarget, typename MoveTarget, typename BlockId>
struct TokenRow {
  Id* input_ids;
  BoardTarget* board_target_ids;
  MoveTarget* move_target_ids;
  std::uint8_t* move_mask;
  std::uint8_t* thinking_move_mask;
  std::uint8_t* wl_positions;
  std::uint8_t* d_positions;
  float* wl_targets;
  float* d_targets;
  std::uint8_t* wdl_valid;
  BlockId* block_id;
  std::uint8_t* continue_var_mask;
  std::uint8_t* new_variation_mask;
  std::uint8_t* end_var_max_depth_mask = nullptr;
  std::uint8_t* end_think_max_var_mask = nullptr;
};
// As the original has them, and as small as they can be; which of both a feed has is in its schema.
using WideTokenRow = TokenRow<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using CompactTokenRow = TokenRow<std::int16_t, std::int8_t, std::int16_t, std::int16_t>;

// RF_CHECK: the sequence has at most `length` tokens. Block ids go up to `length` and the number of
// blocks together, which must fit their type.
template <typename Row>
void write_tokens(const TokenSequence& sequence, std::uint32_t length, const Row& row) noexcept {
  RF_CHECK(sequence.tokens.size() <= length, sequence.tokens.size(), length);
  const auto count = static_cast<std::uint32_t>(sequence.tokens.size());
  std::copy(sequence.tokens.begin(), sequence.tokens.end(), row.input_ids);
  std::fill(row.input_ids + count, row.input_ids + length, kPadToken);
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    const std::int8_t id = board_id(sequence.tokens[i + 1]);
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): its sign is kept on purpose
    row.board_target_ids[i] = id < 0 ? static_cast<std::int8_t>(kIgnored) : id;
  }
  const std::uint32_t targeted = count == 0 ? 0 : count - 1;
  std::fill(row.board_target_ids + targeted, row.board_target_ids + length,
            static_cast<std::int8_t>(kIgnored));
  std::fill_n(row.move_target_ids, length, kIgnored);
  for (std::uint8_t* mask :
       {row.move_mask, row.thinking_move_mask, row.wl_positions, row.d_positions, row.wdl_valid,
        row.continue_var_mask, row.new_variation_mask, row.end_var_max_depth_mask,
        row.end_think_max_var_mask}) {
    if (mask != nullptr) std::fill_n(mask, length, std::uint8_t{0});
  }
  std::fill_n(row.wl_targets, length, 0.0F);
  std::fill_n(row.d_targets, length, 0.0F);

  for (const TokenSequence::Target& target : sequence.targets) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): its sign is kept on purpose
    row.board_target_ids[target.at] = target.board;
    row.move_target_ids[target.at] = target.move;
    const auto mark = [&target](std::uint8_t* mask, TokenSequence::Mask which) {
      if (mask != nullptr && (target.masks & which) != 0) mask[target.at] = 1;
    };
    mark(row.move_mask, TokenSequence::kMove);
    mark(row.thinking_move_mask, TokenSequence::kThinking);
    mark(row.continue_var_mask, TokenSequence::kContinueVar);
    mark(row.new_variation_mask, TokenSequence::kNewVariation);
    mark(row.end_var_max_depth_mask, TokenSequence::kEndVarMaxDepth);
    mark(row.end_think_max_var_mask, TokenSequence::kEndThinkMaxVar);
  }
  for (const TokenSequence::Value& value : sequence.values) {
    if ((value.uses & TokenSequence::kWl) != 0) row.wl_targets[value.at] = value.wl;
    if ((value.uses & TokenSequence::kD) != 0) row.d_targets[value.at] = value.d;
    if ((value.uses & TokenSequence::kWlPosition) != 0) row.wl_positions[value.at] = 1;
    if ((value.uses & TokenSequence::kDPosition) != 0) row.d_positions[value.at] = 1;
    row.wdl_valid[value.at] = (value.uses & TokenSequence::kKnown) != 0 ? 1 : 0;
  }

  using Block = std::remove_reference_t<decltype(row.block_id[0])>;
  const auto blocks = static_cast<std::uint32_t>(sequence.blocks.size());
  for (std::uint32_t i = 0; i < length; ++i) row.block_id[i] = static_cast<Block>(i + blocks);
  for (std::uint32_t b = 0; b < blocks; ++b) {
    const auto& [begin, end] = sequence.blocks[b];
    std::fill(row.block_id + begin, row.block_id + end, static_cast<Block>(b));
  }
}

}  // namespace ringfeed::formats
