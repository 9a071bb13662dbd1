// Lc0TensorWriter: packed frames in, rows of the trainer's three float32 tensors out, written
// straight to their place.
//
//   tensor  row shape  row bytes  content of the row
//   planes  112 x 8x8      28672  ranks 1..8 of the mover's view, files a..h
//                                   0..103  bit planes as 0.0 or 1.0
//                                   104..107  castling us_ooo, us_oo, them_ooo, them_oo; 108 side
//                                   to move: the byte 109  rule50 / 99; 110  0; 111  1
//   policy  1858            7432  the probabilities bit for bit, -1 for illegal moves kept
//   values  6 x 3             72  rows result, best, played, orig, root, st; columns q, d, m; bit
//   for bit.
//                                 st is (q_st, 0, NaN 0x7fc00000): version 6 has no d_st
//
// This is input_format 1 of version 6; other formats are refused. Each tensor begins at a multiple
// of 64 bytes.
//
// The rows are written with streaming stores: a batch is tens of megabytes that this core never
// reads again, and an ordinary store would first read each line from memory. Streaming stores are
// not ordered with later ordinary ones: before a row is announced to anyone (a commit, another
// thread) the writer calls store_fence().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "workers/formats/kernel.h"
#include "workers/formats/lc0_record.h"

namespace ringfeed::formats {

inline constexpr std::size_t kInputPlanes = 112;
inline constexpr std::size_t kPlanesRowFloats = kInputPlanes * 64;
inline constexpr std::size_t kPolicyRowFloats = kPolicyMoves;
inline constexpr std::size_t kValuesRowFloats = 18;
inline constexpr std::size_t kTensorAlignment = 64;
static_assert(kPlanesRowFloats * 4 == 28672 && kPolicyRowFloats * 4 == 7432 &&
              kValuesRowFloats * 4 == 72);

// Where the first rows of the three tensors lie, each at a multiple of kTensorAlignment; row r
// follows r rows later.
struct Lc0Tensors {
  float* planes;
  float* policy;
  float* values;
};

enum class RowStatus : std::uint8_t {
  kWritten,
  kDamagedFrame,            // bytes that no pack() has made
  kUnsupportedVersion,      // not version 6
  kUnsupportedInputFormat,  // not input_format 1
};
[[nodiscard]] const char* row_status_name(RowStatus status) noexcept;

// Orders all rows written so far by this thread before whatever it stores next. Once a step, not
// once a row.
void store_fence() noexcept;

// Writes rows. Each object serves one thread (it holds 7.4 KiB of scratch); it keeps nothing from
// one row to the next.
class Lc0TensorWriter {
 public:
  explicit Lc0TensorWriter(Kernel kernel = best_kernel()) noexcept;

  // Expands the frame at the front of `frame` into row `row_index` of the tensors. Unless kWritten,
  // nothing was written. Touches no byte of other rows. A death in the middle leaves the row in any
  // state: write it again.
  [[nodiscard]] RowStatus write_row(std::span<const std::byte> frame, const Lc0Tensors& tensors,
                                    std::size_t row_index) noexcept;

  [[nodiscard]] Kernel kernel() const noexcept { return kernel_; }

  // The loops, one set per kernel.
  struct Functions {
    // 104 bit planes and the eight planes of one value each, into a 64-byte aligned row.
    void (*expand_planes)(const std::byte* planes, const float (&constants)[8],
                          float* row) noexcept;
    // 1858 floats from anywhere to a row that need not be aligned.
    void (*stream_policy)(const std::byte* source, float* row) noexcept;
  };

 private:
  Functions functions_;
  Kernel kernel_;
  // A row of -1 between calls: the legal entries are written in, the row streamed out, the entries
  // set back.
  alignas(64) float policy_[kPolicyMoves];
};

}  // namespace ringfeed::formats
