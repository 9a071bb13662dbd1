// Lc0TensorWriter: packed frames in, rows of the trainer's tensors out, written straight to their
// place.
//
//   tensor   row shape  content of the row
//   planes   112 x 8x8  ranks 1..8 of the mover's view, files a..h; of input_format 1, the others
//                       differ (see below):
//                         0..103    bit planes as 0 or 1
//                         104..107  castling us_ooo, us_oo, them_ooo, them_oo: the byte everywhere
//                         108       side to move: the byte everywhere
//                         109       rule50 / 99
//                         110       0
//                         111       1
//   policy   1858       the probabilities bit for bit, -1 for illegal moves kept
//   values   6 x 3      rows result, best, played, orig, root, st; columns q, d, m; bit for bit.
//                       st is (q_st, d_st, NaN 0x7fc00000), d_st 0 where version 6 has none
//
// Layout kFive gives, in place of values, what a trainer compares with:
//   tensor      row shape  content of the row
//   winner      3          of the game's result: win (1 + q - d) / 2, draw d, loss (1 - q - d) / 2
//   best_q      3          the same of the best move's value
//   plies_left  -          a single number
//
// q is first limited to -1..1 and d to 0..1 - |q|, so that no share is negative; and policy is
// called probabilities.
//
// input_format 2 and higher:
//   104, 105   castling ooo, oo: 1 on the squares of the rooks, ours on rank 1, theirs on rank 8
//   106, 107   0
//   108        2: side to move everywhere; higher: 1 on rank 8 where a pawn may be taken en passant
//   109        rule50 / 99 for 2 and 3, rule50 / 100 for higher ones
//   110        132, 133: 1 if the mover is black (invariance_info from 128 on); otherwise 0
//
// With Lc0Options::classical_planes they are made as those of input_format 1 instead.
//
// Types of planes:
//   float32, float16, bfloat16  a square is 0, 1 or the nearest value
//   uint8                       planes 104..108 the byte, 109 the count of plies, not divided
//   112 uint64 of bits          0..103 as in the record: rank r is byte r, file a its highest bit;
//                               104..108 and 110, 111 the same way (all bits where the byte is
//                               not 0); 109 the float32 of the plane in the lower half
//
// Types of policy:
//   float32
//   float16                     nearest, ties to even
//   sparse                      the entries that are not the filler (-1; +0 in what was version 3,
//                               which does not tell illegal moves), as
//                                 policy_indices  int16 [K]    behind the last entry 1858
//                                 policy_values   float32 [K]  behind the last entry the filler
//                                 policy_lengths  int32        a single number
//                                 policy_filler   float32      a single number
//
// Values that a record does not know are given as they stand in it, as NaN, or as 0: UnknownValues.
//
// The rows are written with streaming stores, which are not ordered with later ordinary ones:
// before a row is announced to anyone (a commit, another thread) the writer calls store_fence().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "workers/io/kernel.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/plane_expansion.h"

namespace ringfeed::formats {

inline constexpr std::size_t kPlanesRowFloats = kInputPlanes * kSquares;
inline constexpr std::size_t kPolicyRowFloats = kPolicyMoves;
inline constexpr std::size_t kValuesRowFloats = 18;
inline constexpr std::size_t kTensorAlignment = 64;
static_assert(kPlanesRowFloats * 4 == 28672 && kPolicyRowFloats * 4 == 7432 &&
              kValuesRowFloats * 4 == 72);

enum class PlanesType : std::uint8_t { kFloat32, kFloat16, kBfloat16, kUint8, kBits };
enum class PolicyType : std::uint8_t { kFloat32, kFloat16, kSparse };
enum class Lc0Layout : std::uint8_t { kThree, kFive };

// What stands where a record has no value. Unknown are: orig_* where it is NaN; played_* where
// visits is 0 (what was version 5 or less); root and best of version 3; all *_m of versions 3 and
// 4, and plies_left where it is 0 in them; q_st and d_st of what is not version 7; the third value
// of st.
enum class UnknownValues : std::uint8_t {
  kAsStored,  // what the record has there: NaN in orig_* and the last of st, else 0
  kNan,
  kZero,
};

struct Lc0Options {
  Lc0Layout layout = Lc0Layout::kThree;
  PlanesType planes = PlanesType::kFloat32;
  PolicyType policy = PolicyType::kFloat32;
  UnknownValues unknown = UnknownValues::kAsStored;
  // Planes 104 to 110 of every input_format as of format 1: a mask of files is a number then, which
  // kBits cannot hold.
  bool classical_planes = false;
  // kSparse: entries of a row, K above. No position has more than 218 legal moves.
  std::uint32_t policy_entries_max = 224;
};

// Where the first row of each tensor lies, at a multiple of kTensorAlignment (a row of planes is a
// multiple of it too); row r follows r rows later. Those that the options leave out are not
// touched.
struct Lc0Tensors {
  void* planes = nullptr;
  void* policy = nullptr;  // dense, or the values of the sparse one
  void* policy_indices = nullptr;
  void* policy_lengths = nullptr;
  void* policy_filler = nullptr;
  void* values = nullptr;
  void* winner = nullptr;
  void* best_q = nullptr;
  void* plies_left = nullptr;
};

// A tensor that the options ask for.
struct Lc0Field {
  const char* name;
  const char* dtype;  // as NumPy names it
  std::vector<std::int64_t> row_shape;
  std::size_t row_bytes;
  void* Lc0Tensors::*place;
};
// All of them, in the order of the table above.
[[nodiscard]] std::vector<Lc0Field> lc0_fields(const Lc0Options& options);

enum class RowStatus : std::uint8_t {
  kWritten,
  kDamagedFrame,            // bytes that no pack() has made
  kUnsupportedInputFormat,  // none of 1 to 5, 132, 133
  kTooManyMoves,            // more entries than a row of the sparse policy takes
};
[[nodiscard]] const char* row_status_name(RowStatus status) noexcept;

// Orders all rows written so far by this thread before whatever it stores next. Once a step, not
// once a row.
void store_fence() noexcept;

// Writes rows. Each object serves one thread (it holds 15 KiB of scratch); it keeps nothing from
// one row to the next.
class Lc0TensorWriter {
 public:
  explicit Lc0TensorWriter(const Lc0Options& options = {}, Kernel kernel = best_kernel()) noexcept;

  // Expands the frame at the front of `frame` into row `row_index` of the tensors. Unless kWritten,
  // nothing was written. Touches no byte of other rows. A death in the middle leaves the row in any
  // state: write it again.
  [[nodiscard]] RowStatus write_row(std::span<const std::byte> frame, const Lc0Tensors& tensors,
                                    std::size_t row_index) noexcept;

  [[nodiscard]] Kernel kernel() const noexcept { return kernel_; }

 private:
  template <typename Bits>
  void write_planes(const PackedFrameView& view, ExpandPlanes<Bits> expand,
                    std::byte* row) noexcept;
  [[nodiscard]] std::byte* scratch(const PackedFrameView& view) noexcept;
  void put_entry(std::byte* row, std::size_t move, std::uint32_t bits) const noexcept;
  void write_dense(const PackedFrameView& view, std::byte* row) noexcept;
  void write_sparse(const PackedFrameView& view, const Lc0Tensors& tensors,
                    std::size_t row_index) noexcept;
  void write_values(const PackedFrameView& view, const Lc0Tensors& tensors,
                    std::size_t row_index) noexcept;

  Lc0Options options_;
  std::size_t planes_row_bytes_;
  std::size_t policy_entry_bytes_;
  PlaneExpansion loops_;
  Kernel kernel_;
  // Rows of the filler between calls, of -1 and of 0: the listed entries are written in, the row
  // streamed out, the entries set back.
  alignas(64) std::byte policy_[2][kPolicyBytes];
};

}  // namespace ringfeed::formats
