#include "workers/formats/lc0_tensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "ringfeed/shm/result.h"
#include "workers/formats/packed_frame.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfeed::formats {

namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::uint32_t kNoMovesLeftBits =
    0x7fc00000;  // the quiet NaN of the st row's third column

// Byte b of a plane is a rank, its most significant bit file a: eight floats a byte value, 8 KiB,
// at home in L1.
struct alignas(32) RankFloats {
  float file[8];
};
constexpr std::array<RankFloats, 256> kRanks = [] {
  std::array<RankFloats, 256> ranks{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    for (std::size_t file = 0; file < 8; ++file) {
      ranks[bits].file[file] = ((bits >> (7 - file)) & 1) != 0 ? 1.0F : 0.0F;
    }
  }
  return ranks;
}();

void expand_planes_portable(const std::byte* planes, const float (&constants)[8],
                            float* row) noexcept {
  for (std::size_t rank = 0; rank < kBitPlaneBytes; ++rank) {
    std::memcpy(row + 8 * rank, kRanks[std::to_integer<std::size_t>(planes[rank])].file, 32);
  }
  float* at = row + 64 * kBitPlanes;
  for (const float constant : constants) at = std::fill_n(at, 64, constant);
}

void stream_policy_portable(const std::byte* source, float* row) noexcept {
  std::memcpy(row, source, kPolicyBytes);
}

// A row of 7432 bytes begins and ends inside a line that it shares with its neighbours. Those two
// pieces are written with ordinary stores, and only the whole lines between them are streamed.
struct Pieces {
  std::size_t head_bytes;
  std::size_t lines;
  std::size_t tail_bytes;
};
Pieces pieces_of(const float* row) noexcept {
  const std::size_t head = (-reinterpret_cast<std::uintptr_t>(row)) % kLineBytes;
  const std::size_t lines = (kPolicyBytes - head) / kLineBytes;
  return {
      .head_bytes = head, .lines = lines, .tail_bytes = kPolicyBytes - head - lines * kLineBytes};
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void expand_planes_avx2(const std::byte* planes,
                                                        const float (&constants)[8],
                                                        float* row) noexcept {
  for (std::size_t rank = 0; rank < kBitPlaneBytes; ++rank) {
    const float* files = kRanks[std::to_integer<std::size_t>(planes[rank])].file;
    _mm256_stream_ps(row + 8 * rank, _mm256_load_ps(files));
  }
  float* at = row + 64 * kBitPlanes;
  for (const float constant : constants) {
    const __m256 value = _mm256_set1_ps(constant);
    for (std::size_t part = 0; part < 8; ++part, at += 8) _mm256_stream_ps(at, value);
  }
}

__attribute__((target("avx2"))) void stream_policy_avx2(const std::byte* source,
                                                        float* row) noexcept {
  const Pieces pieces = pieces_of(row);
  auto* to = reinterpret_cast<std::byte*>(row);
  std::memcpy(to, source, pieces.head_bytes);
  to += pieces.head_bytes;
  source += pieces.head_bytes;
  for (std::size_t line = 0; line < pieces.lines; ++line, to += 64, source += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
  }
  std::memcpy(to, source, pieces.tail_bytes);
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) void expand_planes_avx512(
    const std::byte* planes, const float (&constants)[8], float* row) noexcept {
  // A masked move takes file a from the lowest bit of its mask, a plane has it in the highest bit
  // of each byte: turn the bits of every byte around, a nibble at a time, 64 bytes at once.
  alignas(64) std::uint16_t masks[kBitPlaneBytes / 2];
  // The masked form, all lanes on: GCC 12 warns of an uninitialised operand in the plain one.
  const __m512i reversed_nibbles = _mm512_maskz_broadcast_i32x4(
      0xFFFF, _mm_setr_epi8(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15));
  const __m512i low_nibble = _mm512_set1_epi8(0x0F);
  const __m512i high_nibble = _mm512_set1_epi8(static_cast<char>(0xF0));
  for (std::size_t block = 0; block < kBitPlaneBytes / 64; ++block) {
    const __m512i bytes = _mm512_loadu_si512(planes + 64 * block);
    const __m512i low = _mm512_shuffle_epi8(reversed_nibbles, _mm512_and_si512(bytes, low_nibble));
    const __m512i high = _mm512_shuffle_epi8(
        reversed_nibbles, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_nibble));
    const __m512i turned =
        _mm512_or_si512(_mm512_and_si512(_mm512_slli_epi16(low, 4), high_nibble), high);
    _mm512_store_si512(masks + 32 * block, turned);
  }
  const __m512 ones = _mm512_set1_ps(1.0F);
  for (std::size_t part = 0; part < kBitPlaneBytes / 2; ++part) {
    _mm512_stream_ps(row + 16 * part, _mm512_maskz_mov_ps(masks[part], ones));
  }
  float* at = row + 64 * kBitPlanes;
  for (const float constant : constants) {
    const __m512 value = _mm512_set1_ps(constant);
    for (std::size_t part = 0; part < 4; ++part, at += 16) _mm512_stream_ps(at, value);
  }
}
static_assert(kBitPlaneBytes % 64 == 0);

__attribute__((target("avx512f,avx512bw,avx512vl"))) void stream_policy_avx512(
    const std::byte* source, float* row) noexcept {
  const Pieces pieces = pieces_of(row);
  auto* to = reinterpret_cast<std::byte*>(row);
  std::memcpy(to, source, pieces.head_bytes);
  to += pieces.head_bytes;
  source += pieces.head_bytes;
  for (std::size_t line = 0; line < pieces.lines; ++line, to += 64, source += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(source));
  }
  std::memcpy(to, source, pieces.tail_bytes);
}
#endif

Lc0TensorWriter::Functions functions_of(Kernel kernel) noexcept {
  switch (kernel) {
#if defined(__x86_64__)
    case Kernel::kAvx512:
      return {.expand_planes = expand_planes_avx512, .stream_policy = stream_policy_avx512};
    case Kernel::kAvx2:
      return {.expand_planes = expand_planes_avx2, .stream_policy = stream_policy_avx2};
#endif
    default:
      return {.expand_planes = expand_planes_portable, .stream_policy = stream_policy_portable};
  }
}

// The 18 values of a row as offsets in the record; 0 where the record has none (q_st's neighbours).
constexpr std::size_t kValueOffsets[kValuesRowFloats] = {
    v6::kResultQ,
    v6::kResultD,
    v6::kPliesLeft,  // result
    v6::kBestQ,
    v6::kBestD,
    v6::kBestM,  // best
    v6::kPlayedQ,
    v6::kPlayedD,
    v6::kPlayedM,  // played
    v6::kOrigQ,
    v6::kOrigD,
    v6::kOrigM,  // orig
    v6::kRootQ,
    v6::kRootD,
    v6::kRootM,  // root
    v6::kQSt,
    0,
    0,  // st
};

// As bits and not as floats: a NaN keeps its payload.
void write_values(const std::byte* tail, float* row) noexcept {
  std::uint32_t bits[kValuesRowFloats];
  for (std::size_t i = 0; i < kValuesRowFloats - 2; ++i) {
    std::memcpy(&bits[i], tail + (kValueOffsets[i] - v6::kCastlingUsOoo), 4);
  }
  bits[kValuesRowFloats - 2] = 0;
  bits[kValuesRowFloats - 1] = kNoMovesLeftBits;
  std::memcpy(row, bits, sizeof bits);
}

float byte_as_float(const std::byte* tail, std::size_t offset) noexcept {
  return static_cast<float>(std::to_integer<std::uint8_t>(tail[offset - v6::kCastlingUsOoo]));
}

void prefetch_for_writing(const void* line) noexcept { __builtin_prefetch(line, 1); }

}  // namespace

const char* row_status_name(RowStatus status) noexcept {
  switch (status) {
    case RowStatus::kWritten:
      return "written";
    case RowStatus::kDamagedFrame:
      return "damaged_frame";
    case RowStatus::kUnsupportedVersion:
      return "unsupported_version";
    case RowStatus::kUnsupportedInputFormat:
      return "unsupported_input_format";
  }
  return "unknown";
}

void store_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

Lc0TensorWriter::Lc0TensorWriter(Kernel kernel) noexcept
    : functions_(functions_of(kernel)), kernel_(kernel) {
  RF_CHECK(kernel_supported(kernel), static_cast<int>(kernel));
  std::fill(std::begin(policy_), std::end(policy_), -1.0F);
}

RowStatus Lc0TensorWriter::write_row(std::span<const std::byte> frame, const Lc0Tensors& tensors,
                                     std::size_t row_index) noexcept {
  const std::optional<PackedFrameView> view = view_packed(frame);
  if (!view) return RowStatus::kDamagedFrame;
  if (view->version != 6) return RowStatus::kUnsupportedVersion;
  if (view->input_format != 1) return RowStatus::kUnsupportedInputFormat;

  float* planes_row = tensors.planes + kPlanesRowFloats * row_index;
  float* policy_row = tensors.policy + kPolicyRowFloats * row_index;
  float* values_row = tensors.values + kValuesRowFloats * row_index;
  RF_CHECK(reinterpret_cast<std::uintptr_t>(planes_row) % kTensorAlignment == 0,
           reinterpret_cast<std::uintptr_t>(planes_row));
  // The lines that take ordinary stores: asked for here, they arrive while the planes are written.
  prefetch_for_writing(policy_row + kPolicyRowFloats - 1);
  prefetch_for_writing(values_row + kValuesRowFloats - 1);

  const bool packed = view->kind == PackedKind::kPacked;
  if (packed) {
    // Before the planes, so that these small stores have left the store buffer when wide loads read
    // them back.
    for (std::size_t i = 0; i < view->policy_entries; ++i) {
      std::uint16_t move = 0;
      std::memcpy(&move, view->policy_indices + 2 * i, 2);
      std::memcpy(&policy_[move], view->policy_values + 4 * i, 4);
    }
  }
  const float constants[8] = {byte_as_float(view->tail, v6::kCastlingUsOoo),
                              byte_as_float(view->tail, v6::kCastlingUsOo),
                              byte_as_float(view->tail, v6::kCastlingThemOoo),
                              byte_as_float(view->tail, v6::kCastlingThemOo),
                              byte_as_float(view->tail, v6::kSideToMove),
                              byte_as_float(view->tail, v6::kRule50) / 99.0F,
                              0.0F,
                              1.0F};
  functions_.expand_planes(view->planes, constants, planes_row);
  if (packed) {
    functions_.stream_policy(reinterpret_cast<const std::byte*>(policy_), policy_row);
    for (std::size_t i = 0; i < view->policy_entries; ++i) {
      std::uint16_t move = 0;
      std::memcpy(&move, view->policy_indices + 2 * i, 2);
      policy_[move] = -1.0F;
    }
  } else {
    functions_.stream_policy(view->policy_values, policy_row);
  }
  write_values(view->tail, values_row);
  return RowStatus::kWritten;
}

}  // namespace ringfeed::formats
