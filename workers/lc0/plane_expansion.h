// Bit planes to one element a square: the loop that writes most of a batch's bytes.
//
// Elements are given as bits (of a float32, float16, bfloat16 or uint8): a square has `one` where
// its bit is set, and zero otherwise. Rank r of a plane is its byte r, file a the highest bit of
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/io/kernel.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed::formats {

inline constexpr std::size_t kInputPlanes = 112;
inline constexpr std::size_t kSquares = 64;
// Planes that a record has not as bits.
inline constexpr std::size_t kMadePlanes = kInputPlanes - kBitPlanes;

// The planes behind those of the record: where the bit of a square is set, it has the plane's
// value.
template <typename Bits>
struct MadePlanes {
  alignas(64) std::uint64_t squares[kMadePlanes];
  Bits values[kMadePlanes];
};

// Writes 112 planes of 64 elements to a row that is aligned to 64 bytes. `planes` has 104 planes of
// eight bytes.
template <typename Bits>
using ExpandPlanes = void (*)(const std::byte* planes, Bits one, const MadePlanes<Bits>& made,
                              Bits* row) noexcept;
// Copies bytes to where they are not read again by this core; neither need be aligned.
using StreamBytes = void (*)(const std::byte* from, std::size_t bytes, std::byte* to) noexcept;

// The functions of a kernel. The vector ones write past the cache (streaming stores): a batch is
// tens of megabytes, and an ordinary store would first read each line from memory.
struct PlaneExpansion {
  ExpandPlanes<std::uint32_t> expand32;
  ExpandPlanes<std::uint16_t> expand16;
  ExpandPlanes<std::uint8_t> expand8;
  StreamBytes stream;
};
[[nodiscard]] PlaneExpansion plane_expansion(Kernel kernel) noexcept;

// Bits of the float16 (IEEE 754 binary16) and bfloat16 nearest to the value, ties to even; a NaN
// stays one, and what is too large becomes infinite.
[[nodiscard]] std::uint16_t float16_bits(float value) noexcept;
[[nodiscard]] std::uint16_t bfloat16_bits(float value) noexcept;

}  // namespace ringfeed::formats
