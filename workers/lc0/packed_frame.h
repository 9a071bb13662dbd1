// A packed frame: one training record without what it repeats, about 1.1 KB instead of 8356 bytes,
// and lossless: unpack() gives back the identical bytes of any record of version 6 or 7, also of
// one with NaNs, odd policies or plain noise. Older ones are packed as the records of version 6
// that they become (lc0_record.h, upgrade_record()); a frame says which version it was.
//
// Of 1858 policy entries some thirty are legal moves; the others are exactly -1.0f (bits
// 0xBF800000), or +0.0f in what was version 3: the filler. A packed frame holds only the entries
// whose bits differ from it. Little-endian; n = policy_entries; x = 40 for version 7, otherwise 0.
//
//      offset  size  field           kind packed                             kind raw
//           0     4  frame_bytes     of the whole frame, a multiple of 16    8368
//           4     2  policy_entries  n                                       0
//           6     1  kind            0                                       1
//           7     1  origin          version that the record had, 3 to 7     the same
//           8     8  head            record bytes 0..7: version, format      the same
//          16   832  planes          record bytes 7440..8271                 (16: record bytes 8 to
//         848  84+x  tail            record bytes 8272 to the end            its end)
//       932+x    4n  policy values   bits of the entries, in index order
//    932+x+4n    2n  policy indices  0..1857, strictly ascending
//                <16 padding         zero                                    zero
//
// Frames lie at multiples of 16, as their sizes are: planes can be loaded as vectors. A raw frame
// is what a record becomes whose packed form would be larger than that (more than 1239 entries that
// are not the filler): damage or noise, never a game.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "workers/io/kernel.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed::formats {

enum class PackedKind : std::uint8_t { kPacked = 0, kRaw = 1 };

namespace packed {
inline constexpr std::size_t kHead = 8;
inline constexpr std::size_t kHeadBytes = 8;
inline constexpr std::size_t kPlanes = 16;
inline constexpr std::size_t kTail = kPlanes + kBitPlaneBytes;
inline constexpr std::size_t kTailBytes = kV6RecordBytes - v6::kCastlingUsOoo;
inline constexpr std::size_t kPolicyValues = kTail + kTailBytes;
inline constexpr std::size_t kAlignment = 16;
// Bits of -1.0f, the mark of an illegal move: what a packed frame leaves out.
inline constexpr std::uint32_t kIllegalBits = 0xBF800000;
// Bytes of the tail of version 7 behind those of version 6.
inline constexpr std::size_t kV7TailBytes = kV7RecordBytes - kV6RecordBytes;
constexpr std::size_t tail_bytes(std::uint32_t origin) noexcept {
  return kTailBytes + (origin == 7 ? kV7TailBytes : 0);
}
// What a frame of this origin leaves out.
constexpr std::uint32_t filler_bits(std::uint32_t origin) noexcept {
  return origin == 3 ? 0 : kIllegalBits;
}
static_assert(kTail == 848 && kTailBytes == 84 && kPolicyValues == 932 && kV7TailBytes == 40);
static_assert(kPlanes % kAlignment == 0 && kPolicyValues % 4 == 0);

constexpr std::size_t round_up(std::size_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace packed

// Bytes of a raw frame of what was this version.
constexpr std::size_t raw_bytes(std::uint32_t origin) noexcept {
  return packed::round_up(packed::kHead + (origin == 7 ? kV7RecordBytes : kV6RecordBytes));
}
// The largest packed frame: a raw one. Room for this many bytes is always enough for pack().
// NOLINTNEXTLINE(readability-identifier-naming): stands beside packed_bytes() and raw_bytes()
inline constexpr std::size_t packed_bytes_max = raw_bytes(7);
static_assert(packed_bytes_max == 8416 && raw_bytes(6) == 8368);

// Bytes of a packed frame with so many policy entries of what was this version.
constexpr std::size_t packed_bytes(std::size_t policy_entries, std::uint32_t origin = 6) noexcept {
  return packed::round_up(packed::kPolicyValues + (origin == 7 ? packed::kV7TailBytes : 0) +
                          6 * policy_entries);
}

// Packs the record at `record`, which is of version `origin`, 3 to 7 (RF_CHECK), and of that
// version's size, into the front of `out`. Returns the bytes of the frame, or 0 if `out` is shorter
// than that; then nothing has been written. Allocates nothing; any thread. Same bytes from every
// kernel.
[[nodiscard]] std::size_t pack(const std::byte* record, std::uint32_t origin,
                               std::span<std::byte> out, Kernel kernel = best_kernel()) noexcept;

// Writes bytes 0 to 15 of a frame of kind packed: what is not a part of the record, and its head.
void write_packed_head(std::byte* frame, std::size_t frame_bytes, std::size_t entries,
                       std::uint32_t origin, std::uint32_t input_format) noexcept;

// A packed frame found whole and consistent: where its parts lie. Views into the bytes it was made
// from.
struct PackedFrameView {
  std::size_t frame_bytes;
  PackedKind kind;
  std::uint32_t origin;   // version that the record had in its file
  std::uint32_t version;  // as the head says: of the record that it has become
  std::uint32_t input_format;
  const std::byte* head;            // record bytes 0..7
  const std::byte* planes;          // u64[104]
  const std::byte* tail;            // record bytes from 8272 on
  std::size_t policy_entries;       // kPacked: entries listed
  const std::byte* policy_values;   // kPacked: u32[policy_entries], the bits; kRaw: all 1858
  const std::byte* policy_indices;  // kPacked: u16[policy_entries], ascending, < 1858; kRaw: null
};

// Checks the frame at the front of `frame`, which may be followed by other bytes: sizes, kind,
// reserved bytes, order and range of the indices. Nothing for bytes that no pack() has made; never
// reads outside `frame`. Padding is not looked at.
[[nodiscard]] std::optional<PackedFrameView> view_packed(std::span<const std::byte> frame) noexcept;

// Gives back the record: writes it to `record` and returns its bytes, 8356 or (origin 7) 8396; or
// returns 0, with nothing written, for bytes that view_packed() refuses.
[[nodiscard]] std::size_t unpack(std::span<const std::byte> frame, std::byte* record) noexcept;

// The frame of `view` with another tail, other probabilities and another origin, at the front of
// `out`: its bytes, or 0 if `out` is shorter. `origin` is of the same filler as the view's; `tail`
// is of a record of upgraded_version(origin), `policy_values` are bits in the order of the view's.
// Entries that have become the filler are left out, as pack() does.
[[nodiscard]] std::size_t repack(const PackedFrameView& view, std::uint32_t origin,
                                 const std::byte* tail,
                                 std::span<const std::uint32_t> policy_values,
                                 std::span<std::byte> out) noexcept;

}  // namespace ringfeed::formats
