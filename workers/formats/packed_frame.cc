#include "workers/formats/packed_frame.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfeed::formats {

namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

// One bit a policy entry, set where the entry is not -1.0f: 29 words of 64 entries, and one of the
// last two.
constexpr std::size_t kMaskWordsFull = kPolicyMoves / 64;
constexpr std::size_t kMaskWords = kMaskWordsFull + 1;
static_assert(kPolicyMoves - 64 * kMaskWordsFull == 2);

using PolicyMask = std::uint64_t[kMaskWords];

template <typename T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

// Entries [first, first + count) as bits 0..count-1.
std::uint64_t mask_of_entries(const std::byte* policy, std::size_t first,
                              std::size_t count) noexcept {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool legal = load<std::uint32_t>(policy + 4 * (first + i)) != packed::kIllegalBits;
    mask |= static_cast<std::uint64_t>(legal) << i;
  }
  return mask;
}

void mask_policy_portable(const std::byte* policy, PolicyMask& mask) noexcept {
  for (std::size_t word = 0; word < kMaskWordsFull; ++word) {
    mask[word] = mask_of_entries(policy, 64 * word, 64);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void mask_policy_avx2(const std::byte* policy,
                                                      PolicyMask& mask) noexcept {
  const __m256i illegal = _mm256_set1_epi32(static_cast<int>(packed::kIllegalBits));
  for (std::size_t word = 0; word < kMaskWordsFull; ++word) {
    std::uint64_t equal = 0;
    for (std::size_t part = 0; part < 8; ++part) {
      const auto* at = reinterpret_cast<const __m256i*>(policy + 256 * word + 32 * part);
      const __m256i same = _mm256_cmpeq_epi32(_mm256_loadu_si256(at), illegal);
      const auto bits = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
      equal |= static_cast<std::uint64_t>(bits) << (8 * part);
    }
    mask[word] = ~equal;
  }
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) void mask_policy_avx512(
    const std::byte* policy, PolicyMask& mask) noexcept {
  const __m512i illegal = _mm512_set1_epi32(static_cast<int>(packed::kIllegalBits));
  for (std::size_t word = 0; word < kMaskWordsFull; ++word) {
    std::uint64_t legal = 0;
    for (std::size_t part = 0; part < 4; ++part) {
      const __m512i entries = _mm512_loadu_si512(policy + 256 * word + 64 * part);
      const __mmask16 bits = _mm512_cmpneq_epi32_mask(entries, illegal);
      legal |= static_cast<std::uint64_t>(bits) << (16 * part);
    }
    mask[word] = legal;
  }
}
#endif

void mask_policy(const std::byte* policy, PolicyMask& mask, Kernel kernel) noexcept {
  switch (kernel) {
#if defined(__x86_64__)
    case Kernel::kAvx512:
      mask_policy_avx512(policy, mask);
      break;
    case Kernel::kAvx2:
      mask_policy_avx2(policy, mask);
      break;
#endif
    default:
      mask_policy_portable(policy, mask);
      break;
  }
  mask[kMaskWordsFull] = mask_of_entries(policy, 64 * kMaskWordsFull, 2);
}

std::size_t pack_raw(const std::byte* record, std::span<std::byte> out) noexcept {
  if (out.size() < packed_bytes_max) return 0;
  store<std::uint32_t>(out.data(), packed_bytes_max);
  store<std::uint16_t>(out.data() + 4, 0);
  out[6] = std::byte{static_cast<std::uint8_t>(PackedKind::kRaw)};
  out[7] = std::byte{0};
  std::memcpy(out.data() + packed::kHead, record, kV6RecordBytes);
  const std::size_t end = packed::kHead + kV6RecordBytes;
  std::memset(out.data() + end, 0, packed_bytes_max - end);
  return packed_bytes_max;
}

}  // namespace

std::size_t pack(const std::byte* record, std::span<std::byte> out) noexcept {
  return pack(record, out, best_kernel());
}

std::size_t pack(const std::byte* record, std::span<std::byte> out, Kernel kernel) noexcept {
  const std::byte* policy = record + v6::kPolicy;
  PolicyMask mask;
  mask_policy(policy, mask, kernel);
  std::size_t entries = 0;
  for (const std::uint64_t word : mask) entries += static_cast<std::size_t>(std::popcount(word));
  const std::size_t frame_bytes = packed_bytes(entries);
  if (frame_bytes > packed_bytes_max) return pack_raw(record, out);
  if (out.size() < frame_bytes) return 0;

  std::byte* frame = out.data();
  // The padding is inside the last 16 bytes; what belongs there is written over the zeros below.
  std::memset(frame + frame_bytes - packed::kAlignment, 0, packed::kAlignment);
  store(frame, static_cast<std::uint32_t>(frame_bytes));
  store(frame + 4, static_cast<std::uint16_t>(entries));
  frame[6] = std::byte{static_cast<std::uint8_t>(PackedKind::kPacked)};
  frame[7] = std::byte{0};
  std::memcpy(frame + packed::kHead, record, packed::kHeadBytes);
  std::memcpy(frame + packed::kPlanes, record + v6::kPlanes, kBitPlaneBytes);
  std::memcpy(frame + packed::kTail, record + v6::kCastlingUsOoo, packed::kTailBytes);
  std::byte* value = frame + packed::kPolicyValues;
  std::byte* index = value + 4 * entries;
  for (std::size_t word = 0; word < kMaskWords; ++word) {
    for (std::uint64_t rest = mask[word]; rest != 0; rest &= rest - 1) {
      const std::size_t move = 64 * word + static_cast<std::size_t>(std::countr_zero(rest));
      std::memcpy(value, policy + 4 * move, 4);
      store(index, static_cast<std::uint16_t>(move));
      value += 4;
      index += 2;
    }
  }
  return frame_bytes;
}

std::optional<PackedFrameView> view_packed(std::span<const std::byte> frame) noexcept {
  if (frame.size() < packed::kPlanes) return std::nullopt;
  const std::byte* at = frame.data();
  const std::size_t frame_bytes = load<std::uint32_t>(at);
  const std::size_t entries = load<std::uint16_t>(at + 4);
  if (frame_bytes > frame.size() || at[7] != std::byte{0}) return std::nullopt;
  PackedFrameView view{};
  view.frame_bytes = frame_bytes;
  view.head = at + packed::kHead;
  view.version = load<std::uint32_t>(view.head + v6::kVersion);
  view.input_format = load<std::uint32_t>(view.head + v6::kInputFormat);
  switch (std::to_integer<std::uint8_t>(at[6])) {
    case static_cast<std::uint8_t>(PackedKind::kPacked): {
      if (entries > kPolicyMoves || frame_bytes != packed_bytes(entries)) return std::nullopt;
      view.kind = PackedKind::kPacked;
      view.planes = at + packed::kPlanes;
      view.tail = at + packed::kTail;
      view.policy_entries = entries;
      view.policy_values = at + packed::kPolicyValues;
      view.policy_indices = view.policy_values + 4 * entries;
      // One past the previous index is the least that the next may be: no branch an entry.
      std::uint32_t least = 0;
      bool ascending = true;
      for (std::size_t i = 0; i < entries; ++i) {
        const std::uint32_t index = load<std::uint16_t>(view.policy_indices + 2 * i);
        ascending &= index >= least;
        least = index + 1;
      }
      if (!ascending || least > kPolicyMoves) return std::nullopt;
      return view;
    }
    case static_cast<std::uint8_t>(PackedKind::kRaw):
      if (entries != 0 || frame_bytes != packed_bytes_max) return std::nullopt;
      view.kind = PackedKind::kRaw;
      view.planes = view.head + v6::kPlanes;
      view.tail = view.head + v6::kCastlingUsOoo;
      view.policy_entries = kPolicyMoves;
      view.policy_values = view.head + v6::kPolicy;
      view.policy_indices = nullptr;
      return view;
    default:
      return std::nullopt;
  }
}

bool unpack(std::span<const std::byte> frame, std::byte* record) noexcept {
  const std::optional<PackedFrameView> view = view_packed(frame);
  if (!view) return false;
  if (view->kind == PackedKind::kRaw) {
    std::memcpy(record, view->head, kV6RecordBytes);
    return true;
  }
  std::memcpy(record, view->head, packed::kHeadBytes);
  for (std::size_t move = 0; move < kPolicyMoves; ++move) {
    store(record + v6::kPolicy + 4 * move, packed::kIllegalBits);
  }
  for (std::size_t i = 0; i < view->policy_entries; ++i) {
    const std::size_t move = load<std::uint16_t>(view->policy_indices + 2 * i);
    std::memcpy(record + v6::kPolicy + 4 * move, view->policy_values + 4 * i, 4);
  }
  std::memcpy(record + v6::kPlanes, view->planes, kBitPlaneBytes);
  std::memcpy(record + v6::kCastlingUsOoo, view->tail, packed::kTailBytes);
  return true;
}

}  // namespace ringfeed::formats
