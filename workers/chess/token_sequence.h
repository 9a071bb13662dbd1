// One sample of a token pipeline before it is spread over arrays: what is said about few of its
// positions, in lists. Stages that make samples write it, the batcher reads it.
//
// Where it came from and what is said of all of it goes along. Stages pass it on as one record:
//
//   offset  size      field
//        0  16        lineage       file, game or row, start, epoch of the variations
//       16  4 x 4     counts        tokens, targets, values, blocks
//       32  4         flags         1: the first line is not the best move
//       36  12        reserved, zero
//       48            values (16 bytes each), targets (8), blocks (8), tokens (2)
//
// Arrays of `length` elements follow from it in this order, so that later lists win:
//   defaults       pad, ignore (-100), false, 0.0
//   tokens         input_ids; the board target of a position is the board id of the token behind it
//   targets        in order: board target, move target, masks
//   values         in order: value targets, their positions, whether they are known
//   blocks         block_id: the number of the block that a position is in, else one that nobody
//                  else in the sample has
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "workers/chess/chess_vocabulary.h"

namespace ringfeed::formats {

inline constexpr std::int16_t kIgnored = -100;

struct TokenSequence {
  struct Block {
    std::uint32_t begin;
    std::uint32_t end;
  };
  enum Mask : std::uint8_t {
    kMove = 1,
    kThinking = 2,
    kContinueVar = 4,
    kNewVariation = 8,
    kEndVarMaxDepth = 16,
    kEndThinkMaxVar = 32,
  };
  struct Target {
    std::uint32_t at;
    std::int16_t move;   // move id, or kIgnored
    std::int8_t board;   // board id
    std::uint8_t masks;  // which of the mask arrays are true here
  };
  enum Use : std::uint8_t { kWl = 1, kWlPosition = 2, kD = 4, kDPosition = 8, kKnown = 16 };
  struct Value {
    std::uint32_t at;
    std::uint32_t uses;  // which arrays get something here; kKnown: what wdl_valid becomes
    float wl;
    float d;
  };

  [[nodiscard]] static constexpr std::uint32_t known(bool is_known) noexcept {
    return is_known ? std::uint32_t{kKnown} : 0U;
  }
  struct Lineage {
    std::uint32_t file = 0;   // number of the file among those of the directory
    std::uint32_t game = 0;   // number of the game, or of the row, in the file
    std::uint32_t start = 0;  // token of the game that the window begins with
    std::uint32_t variation_epoch = 0;
  };

  void clear() noexcept {
    lineage = {};
    first_is_not_best = false;
    tokens.clear();
    targets.clear();
    values.clear();
    blocks.clear();
  }

  Lineage lineage;
  bool first_is_not_best = false;
  std::vector<Token> tokens;
  std::vector<Target> targets;
  std::vector<Value> values;
  std::vector<Block> blocks;
};

// Bytes of the record.
[[nodiscard]] std::size_t packed_bytes(const TokenSequence& sequence) noexcept;
// Writes it; RF_CHECK: there is room for packed_bytes().
void pack(const TokenSequence& sequence, std::span<std::byte> out) noexcept;
// Reads what pack() wrote; false: it is no such record, or one of its positions lies outside.
[[nodiscard]] bool unpack(std::span<const std::byte> record, TokenSequence& sequence);

// The lineage of a packed sequence; zero of what is none. In a batch and as the tag of records it
// says where a sample came from.
[[nodiscard]] TokenSequence::Lineage packed_lineage(std::span<const std::byte> record) noexcept;
// Puts another epoch of the variations into a packed sequence.
void set_variation_epoch(std::span<std::byte> record, std::uint32_t epoch) noexcept;

}  // namespace ringfeed::formats
