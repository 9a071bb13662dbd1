// Games for tests of validator and rescorer: played by the rules from any position, written as
// records of version 6 of any input format.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "tests/support/rig/lc0_sample.h"
#include "tests/unit/workers/lc0/fen.h"
#include "workers/lc0/lc0_moves.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/packed_frame.h"

namespace ringfeed::formats::test_games {

using ringfeed::testing::Bytes;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
void put(Bytes& records, std::size_t frame, std::size_t offset, T value) {
  std::memcpy(records.data() + frame * kV6RecordBytes + offset, &value, sizeof value);
}
template <typename T>
T get(const Bytes& records, std::size_t frame, std::size_t offset) {
  T value;
  std::memcpy(&value, records.data() + frame * kV6RecordBytes + offset, sizeof value);
  return value;
}

// Packed frames of records of one version, and views of them.
class PackedRecords {
 public:
  explicit PackedRecords(std::span<const std::byte> records, std::uint32_t version = 6) {
    const std::size_t record_bytes = frame_bytes_of_version(version);
    const std::size_t count = records.size() / record_bytes;
    frames_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      frames_[i].resize(packed_bytes_max);
      frames_[i].resize(pack(records.data() + i * record_bytes, version, frames_[i]));
      views_.push_back(view_packed(frames_[i]).value());
    }
  }
  [[nodiscard]] const std::vector<PackedFrameView>& views() const { return views_; }

 private:
  std::vector<Bytes> frames_;
  std::vector<PackedFrameView> views_;
};

// The bits of each rank the other way round, one by one: a plane has file a at the highest bit.
inline std::uint64_t plane_of(Squares squares) {
  std::uint64_t plane = 0;
  for (unsigned square = 0; square < 64; ++square) {
    if ((squares >> square & 1) != 0) plane |= std::uint64_t{1} << (square ^ 7);
  }
  return plane;
}

class GameMaker {
 public:
  GameMaker(const ChessBoard& start, std::uint32_t input_format)
      : board_(start), input_format_(input_format) {}

  [[nodiscard]] const ChessBoard& board() const { return board_; }
  [[nodiscard]] const Bytes& records() const { return records_; }
  [[nodiscard]] std::size_t count() const { return records_.size() / kV6RecordBytes; }
  // Records from now on are written turned so, where the position allows it.
  void turn(unsigned transform) { transform_ = transform; }

  // Writes the position with this move and makes it, legal or not. `move` is of the board as it is
  // written, turned.
  void play(Move move) {
    const unsigned transform = allowed_transform();
    ChessBoard written = turned_so(transform);
    const std::size_t frame = count();
    records_.resize(records_.size() + kV6RecordBytes);
    put(records_, frame, v6::kVersion, std::uint32_t{6});
    put(records_, frame, v6::kInputFormat, input_format_);
    std::vector<Move> moves = legal_moves(written);
    if (std::find(moves.begin(), moves.end(), move) == moves.end()) moves.push_back(move);
    for (std::size_t i = 0; i < kPolicyMoves; ++i) put(records_, frame, v6::kPolicy + 4 * i, -1.0F);
    for (const Move each : moves) {
      put(records_, frame, v6::kPolicy + 4 * policy_index(each).value(),
          1.0F / static_cast<float>(moves.size()));
    }
    put_board(frame, 0, written);
    if (frame > 0) put_board(frame, 1, transformed(last_.turned(), transform));
    put_rights(frame, written);
    const std::uint8_t black = frame % 2 == 0 ? 0 : 128;
    const bool canonical = input_format_ >= input_format::kCanonical;
    put(records_, frame, v6::kInvarianceInfo,
        static_cast<std::uint8_t>(32 | (canonical ? transform | black : 0U)));
    const std::uint16_t index = policy_index(move).value();
    put(records_, frame, v6::kVisits, std::uint32_t{400});
    put(records_, frame, v6::kPlayedIdx, index);
    put(records_, frame, v6::kBestIdx, index);
    put(records_, frame, v6::kPliesLeft, 30.0F);
    // On to the next one.
    last_ = board_;
    ChessBoard after = after_move(written, move);
    const Squares behind = after.en_passant;
    const Squares our_castling = after.our_castling;
    const Squares their_castling = after.their_castling;
    after = untransformed(after, transform);
    // Where there are rights nothing is turned; a file that is flipped is flipped back.
    after.our_castling = transform == 0 ? our_castling : 0;
    after.their_castling = transform == 0 ? their_castling : board_.their_castling;
    after.en_passant = turned_squares(behind, transform);
    board_ = after.turned();
  }

  // Plays legal moves by chance; stops where there is none.
  void play_random(std::mt19937_64& random, std::size_t plies, bool turns = false) {
    for (std::size_t ply = 0; ply < plies; ++ply) {
      if (turns) turn(static_cast<unsigned>(random() % 8));
      const std::vector<Move> moves = legal_moves(turned_so(allowed_transform()));
      if (moves.empty()) return;
      // Pawns and castling come first now and then, so that games get to where few pieces are.
      play(moves[random() % moves.size()]);
    }
  }

 private:
  // As the format says: nothing is turned while anyone may castle, and only flipped while there are
  // pawns.
  [[nodiscard]] unsigned allowed_transform() const {
    if (input_format_ < input_format::kCanonical || board_.our_castling != 0 ||
        board_.their_castling != 0) {
      return 0;
    }
    return (board_.ours[kPawn] | board_.theirs[kPawn]) != 0 ? transform_ & 1 : transform_;
  }
  [[nodiscard]] static Squares turned_squares(Squares squares, unsigned transform) {
    ChessBoard only;
    only.ours[kPawn] = squares;
    return transformed(only, transform & 1).ours[kPawn];
  }
  [[nodiscard]] ChessBoard turned_so(unsigned transform) const {
    if (transform == 0) return board_;
    ChessBoard written = transformed(board_, transform);
    written.en_passant = turned_squares(board_.en_passant, transform);
    return written;
  }
  void put_board(std::size_t frame, std::size_t step, const ChessBoard& board) {
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
      const std::size_t at = v6::kPlanes + 8 * (13 * step + piece);
      put(records_, frame, at, plane_of(board.ours[piece]));
      put(records_, frame, at + 8 * kPieces, plane_of(board.theirs[piece]));
    }
  }
  void put_rights(std::size_t frame, const ChessBoard& written) {
    const Squares king = written.ours[kKing];
    const Squares their_king = written.theirs[kKing];
    const Squares masks[] = {written.our_castling & (king - 1), written.our_castling & ~(king - 1),
                             (written.their_castling & (their_king - 1)) >> 56,
                             (written.their_castling & ~(their_king - 1)) >> 56};
    for (std::size_t i = 0; i < 4; ++i) {
      const bool classical = input_format_ == input_format::kClassical;
      put(records_, frame, v6::kCastlingUsOoo + i,
          static_cast<std::uint8_t>(classical ? masks[i] != 0 : masks[i]));
    }
    const bool canonical = input_format_ >= input_format::kCanonical;
    put(records_, frame, v6::kSideToMove,
        static_cast<std::uint8_t>(canonical ? written.en_passant >> 40 : frame % 2));
  }

  ChessBoard board_;
  ChessBoard last_;
  std::uint32_t input_format_;
  unsigned transform_ = 0;
  Bytes records_;
};

}  // namespace ringfeed::formats::test_games
