// Any bytes as a chunk of training records, as a packed frame and as a packed game.
//
// Holds: the records of a usable chunk fill it; each packs and comes back bit by bit, and the chunk
// can be validated, whatever its positions are. What a packed frame says about itself lies inside
// it, and packing its record again makes a frame of the same record. A game gives frames of at most
// packed_bytes_max, and of a record packed into a game the very frame comes out.
#include <array>
#include <cstring>
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/lc0_validate.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/packed_game.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

using Record = std::array<std::byte, kV7RecordBytes>;

class InMemory : public GameBytes {
 public:
  explicit InMemory(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> at(std::size_t offset, std::size_t bytes) noexcept override {
    if (offset > bytes_.size() || bytes > bytes_.size() - offset) return {};
    return bytes_.subspan(offset, bytes);
  }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::byte> packed_record(const std::byte* record, std::uint32_t origin) {
  std::vector<std::byte> frame(packed_bytes_max);
  const std::size_t bytes = pack(record, origin, frame);
  RF_HOLDS(bytes != 0 && bytes % packed::kAlignment == 0, bytes);
  frame.resize(bytes);
  for (const Kernel kernel : kAllKernels) {
    if (!kernel_supported(kernel)) continue;
    std::vector<std::byte> same(bytes);
    RF_HOLDS(pack(record, origin, same, kernel) == bytes && same == frame, kernel_name(kernel));
  }
  return frame;
}

void check_frame(std::span<const std::byte> frame) {
  Record record;
  const std::optional<PackedFrameView> view = view_packed(frame);
  const std::size_t bytes = unpack(frame, record.data());
  RF_HOLDS(view.has_value() == (bytes != 0), bytes);
  if (!view) return;
  RF_HOLDS(view->frame_bytes <= frame.size(), view->frame_bytes, frame.size());
  RF_HOLDS(bytes == (view->origin == 7 ? kV7RecordBytes : kV6RecordBytes), bytes, view->origin);
  // Of an older origin pack() takes the record as it was; what unpack() gives is of version 6.
  const std::uint32_t origin = view->origin == 7 ? 7 : 6;
  const std::vector<std::byte> again = packed_record(record.data(), origin);
  Record twice;
  RF_HOLDS(unpack(again, twice.data()) == bytes, bytes);
  RF_HOLDS(std::memcmp(record.data(), twice.data(), bytes) == 0, bytes);
}

void check_records(std::span<const std::byte> chunk) {
  const ChunkCheck check = formats::check_chunk(chunk);
  RF_HOLDS(!chunk_check_text(check).empty(), chunk.size());
  if (!check.usable()) return;
  RF_HOLDS(check.frame_count * check.frame_bytes == chunk.size() && check.frame_count > 0,
           check.frame_count, check.frame_bytes, chunk.size());
  std::vector<std::vector<std::byte>> frames;
  std::vector<PackedFrameView> views;
  GamePacker packer;
  packer.begin(check.frame_count, check.version, check.input_format);
  for (std::size_t i = 0; i < check.frame_count; ++i) {
    const std::byte* const at = chunk.data() + i * check.frame_bytes;
    frames.push_back(packed_record(at, check.version));
    Record record;
    const std::size_t bytes = unpack(frames.back(), record.data());
    Record expected;
    if (check.version < 6) {
      upgrade_record(at, check.version, expected.data());
    } else {
      std::memcpy(expected.data(), at, check.frame_bytes);
    }
    RF_HOLDS(bytes != 0 && std::memcmp(record.data(), expected.data(), bytes) == 0, i, bytes);
    packer.add(frames.back());
  }
  for (const auto& frame : frames) views.push_back(view_packed(frame).value());
  static_cast<void>(validate_chunk(views));

  InMemory bytes(packer.finish());
  std::optional<PackedGame> game = PackedGame::open(bytes);
  RF_HOLDS(game && game->frame_count() == frames.size(), frames.size());
  std::vector<std::byte> out(packed_bytes_max);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::size_t frame_bytes = game->frame(i, out);
    RF_HOLDS(frame_bytes == frames[i].size() &&
                 std::equal(frames[i].begin(), frames[i].end(), out.begin()),
             i, frame_bytes, frames[i].size());
    RF_HOLDS(!game->tail(i).empty(), i);
  }
}

void check_game(std::span<const std::byte> input) {
  InMemory bytes(input);
  std::optional<PackedGame> game = PackedGame::open(bytes);
  if (!game) return;
  std::vector<std::byte> out(packed_bytes_max);
  for (std::size_t i = 0; i < std::min<std::size_t>(game->frame_count(), 64); ++i) {
    const std::size_t frame_bytes = game->frame(i, out);
    RF_HOLDS(frame_bytes <= out.size(), frame_bytes);
    if (frame_bytes != 0) check_frame(std::span(out).first(frame_bytes));
    const std::span<const std::byte> tail = game->tail(i);
    RF_HOLDS(tail.empty() || tail.size() == packed::tail_bytes(7) ||
                 tail.size() == packed::tail_bytes(6),
             tail.size());
  }
  RF_HOLDS(game->frame(game->frame_count(), out) == 0, game->frame_count());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input = fuzz::bytes_of(data, size);
  check_records(input);
  check_frame(input);
  check_game(input);
  return 0;
}
