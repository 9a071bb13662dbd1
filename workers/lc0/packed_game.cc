#include "workers/lc0/packed_game.h"

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

namespace {

struct Header {
  std::uint32_t game_bytes;
  std::uint32_t frame_count;
  std::uint32_t origin;
  std::uint32_t input_format;
};
static_assert(sizeof(Header) == 16);

enum class Kept : std::uint16_t {
  kBoard,    // the history is that of the frames before
  kHistory,  // a history of its own
  kWhole,    // a packed frame as it was
};
struct RestHead {
  std::uint16_t policy_entries;
  Kept kind;
};
static_assert(sizeof(RestHead) == 4);

constexpr std::size_t kHistoryBytes = kBitPlaneBytes - kBoardBytes;
// Frames of a game; the offsets are of 32 bits.
constexpr std::size_t kFramesMax = 1U << 20;

using Planes = std::array<Board, kHistorySteps>;
static_assert(sizeof(Planes) == kBitPlaneBytes);

std::size_t boards_offset(std::size_t frame_count) noexcept {
  return (sizeof(Header) + 4 * (frame_count + 1) + 7) / 8 * 8;
}
std::size_t indices_bytes(std::size_t entries) noexcept { return (2 * entries + 3) / 4 * 4; }

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), at, at + sizeof value);
}

}  // namespace

Board seen_by_other_side(const Board& board) noexcept {
  Board other;
  for (std::size_t piece = 0; piece < 12; ++piece) {
    other[piece] = __builtin_bswap64(board[piece < 6 ? piece + 6 : piece - 6]);
  }
  other[12] = board[12];
  return other;
}

void GamePacker::begin(std::size_t frame_count, std::uint32_t origin, std::uint32_t input_format) {
  RF_CHECK(frame_count > 0 && frame_count <= kFramesMax, frame_count);
  frame_count_ = frame_count;
  added_ = 0;
  boards_at_ = boards_offset(frame_count);
  bytes_.assign(boards_at_ + kBoardBytes * frame_count, std::byte{0});
  const Header header{0, static_cast<std::uint32_t>(frame_count), origin, input_format};
  std::memcpy(bytes_.data(), &header, sizeof header);
}

void GamePacker::add(std::span<const std::byte> frame) {
  const std::optional<PackedFrameView> view = view_packed(frame);
  RF_CHECK(view && added_ < frame_count_, frame.size(), added_, frame_count_);
  Planes planes;
  std::memcpy(planes.data(), view->planes, sizeof planes);
  recent_[added_ % kHistorySteps] = planes[0];
  std::memcpy(bytes_.data() + boards_at_ + kBoardBytes * added_, planes[0].data(), kBoardBytes);
  const auto offset = static_cast<std::uint32_t>(bytes_.size());
  std::memcpy(bytes_.data() + sizeof(Header) + 4 * added_, &offset, sizeof offset);

  bool follows = true;
  for (std::size_t h = 1; h < kHistorySteps && follows; ++h) {
    Board before{};
    if (h <= added_) {
      before = recent_[(added_ - h) % kHistorySteps];
      if (h % 2 == 1) before = seen_by_other_side(before);
    }
    follows = planes[h] == before;
  }
  std::uint32_t input_format = 0;
  std::memcpy(&input_format, bytes_.data() + offsetof(Header, input_format), sizeof input_format);
  const bool other_head =
      view->version != upgraded_version(view->origin) || view->input_format != input_format;
  if (view->kind == PackedKind::kRaw || other_head) {
    append(bytes_, RestHead{0, Kept::kWhole});
    bytes_.insert(bytes_.end(), frame.begin(),
                  frame.begin() + static_cast<std::ptrdiff_t>(view->frame_bytes));
  } else {
    const std::size_t entries = view->policy_entries;
    append(bytes_,
           RestHead{static_cast<std::uint16_t>(entries), follows ? Kept::kBoard : Kept::kHistory});
    bytes_.insert(bytes_.end(), view->tail, view->tail + packed::tail_bytes(view->origin));
    bytes_.insert(bytes_.end(), view->policy_values, view->policy_values + 4 * entries);
    bytes_.insert(bytes_.end(), view->policy_indices, view->policy_indices + 2 * entries);
    bytes_.resize((bytes_.size() + 3) / 4 * 4);
    if (!follows) {
      bytes_.insert(bytes_.end(), view->planes + kBoardBytes, view->planes + kBitPlaneBytes);
    }
  }
  ++added_;
}

std::span<const std::byte> GamePacker::finish() {
  RF_CHECK(added_ == frame_count_, added_, frame_count_);
  const auto end = static_cast<std::uint32_t>(bytes_.size());
  std::memcpy(bytes_.data() + sizeof(Header) + 4 * frame_count_, &end, sizeof end);
  std::memcpy(bytes_.data() + offsetof(Header, game_bytes), &end, sizeof end);
  return bytes_;
}

std::optional<PackedGame> PackedGame::open(GameBytes& bytes) noexcept {
  const std::span<const std::byte> at = bytes.at(0, sizeof(Header));
  if (at.size() != sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, at.data(), sizeof header);
  if (header.frame_count == 0 || header.frame_count > kFramesMax ||
      upgraded_version(header.origin) == 0 ||
      header.game_bytes < boards_offset(header.frame_count) + kBoardBytes * header.frame_count) {
    return std::nullopt;
  }
  PackedGame game;
  game.bytes_ = &bytes;
  game.game_bytes_ = header.game_bytes;
  game.frame_count_ = header.frame_count;
  game.origin_ = header.origin;
  game.input_format_ = header.input_format;
  return game;
}

// Where the rest of a frame lies: offset and end, or two zeros where the game is damaged.
std::array<std::size_t, 2> PackedGame::ends(std::size_t index) noexcept {
  if (index >= frame_count_) return {};
  std::uint32_t ends[2];
  const std::span<const std::byte> offsets = bytes_->at(sizeof(Header) + 4 * index, sizeof ends);
  if (offsets.size() != sizeof ends) return {};
  std::memcpy(ends, offsets.data(), sizeof ends);
  const std::size_t begin = ends[0];
  const std::size_t end = ends[1];
  const std::size_t rests_at = boards_offset(frame_count_) + kBoardBytes * frame_count_;
  if (begin < rests_at || end < begin + sizeof(RestHead) || end > game_bytes_) return {};
  return {begin, end};
}

std::span<const std::byte> PackedGame::tail(std::size_t index) noexcept {
  const auto [begin, end] = ends(index);
  const std::size_t bytes = packed::tail_bytes(origin_);
  RestHead head;
  const std::span<const std::byte> seen = bytes_->at(begin, sizeof head);
  if (end == 0 || seen.size() != sizeof head) return {};
  std::memcpy(&head, seen.data(), sizeof head);
  // A frame that was kept whole: of two kinds, which have their tails in different places.
  std::size_t at = begin + sizeof head;
  if (head.kind == Kept::kWhole) {
    const std::span<const std::byte> frame = bytes_->at(at, end - at);
    const auto view = view_packed(frame);
    if (!view) return {};
    at += static_cast<std::size_t>(view->tail - frame.data());
  }
  return at + bytes > end ? std::span<const std::byte>{} : bytes_->at(at, bytes);
}

std::size_t PackedGame::frame(std::size_t index, std::span<std::byte> out) noexcept {
  const auto [begin, end] = ends(index);
  if (end == 0) return 0;
  const std::size_t boards_at = boards_offset(frame_count_);

  // The boards first: a view ends with the next one.
  Planes planes{};
  const std::size_t oldest = index < kHistorySteps - 1 ? 0 : index - (kHistorySteps - 1);
  const std::size_t boards = index - oldest + 1;
  const std::span<const std::byte> seen =
      bytes_->at(boards_at + kBoardBytes * oldest, kBoardBytes * boards);
  if (seen.size() != kBoardBytes * boards) return 0;
  for (std::size_t h = 0; h < boards; ++h) {
    Board board;
    std::memcpy(board.data(), seen.data() + kBoardBytes * (boards - 1 - h), kBoardBytes);
    planes[h] = h % 2 == 1 ? seen_by_other_side(board) : board;
  }

  const std::span<const std::byte> rest = bytes_->at(begin, end - begin);
  if (rest.size() != end - begin) return 0;
  RestHead head;
  std::memcpy(&head, rest.data(), sizeof head);
  const std::byte* from = rest.data() + sizeof head;
  const std::size_t from_bytes = rest.size() - sizeof head;
  if (head.kind == Kept::kWhole) {
    const auto view = view_packed({from, from_bytes});
    if (!view || view->frame_bytes != from_bytes || out.size() < from_bytes) return 0;
    std::memcpy(out.data(), from, from_bytes);
    return from_bytes;
  }
  const std::size_t entries = head.policy_entries;
  const std::size_t tail = packed::tail_bytes(origin_);
  const std::size_t history = head.kind == Kept::kHistory ? kHistoryBytes : 0;
  if (head.kind > Kept::kHistory || entries > kPolicyMoves ||
      from_bytes != tail + 4 * entries + indices_bytes(entries) + history) {
    return 0;
  }
  if (history != 0) std::memcpy(&planes[1], from + from_bytes - history, history);
  const std::size_t frame_bytes = packed_bytes(entries, origin_);
  if (out.size() < frame_bytes) return 0;
  std::memset(out.data() + frame_bytes - packed::kAlignment, 0, packed::kAlignment);
  write_packed_head(out.data(), frame_bytes, entries, origin_, input_format_);
  std::memcpy(out.data() + packed::kPlanes, planes.data(), kBitPlaneBytes);
  std::memcpy(out.data() + packed::kTail, from, tail + 6 * entries);
  return frame_bytes;
}

}  // namespace ringfeed::formats
