#include "workers/lc0/packed_frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ringfeed/shm/result.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfeed::formats {

namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

// One bit a policy entry, set where the entry is not the filler: 29 words of 64 entries, and one of
// the last two.
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
std::uint64_t mask_of_entries(const std::byte* policy, std::size_t first, std::size_t count,
                              std::uint32_t filler) noexcept {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool listed = load<std::uint32_t>(policy + 4 * (first + i)) != filler;
    mask |= static_cast<std::uint64_t>(listed) << i;
  }
  return mask;
}

// Each of these fills the full words of the mask and returns how many bits are set in them.
std::size_t mask_policy_portable(const std::byte* policy, std::uint32_t filler,
                                 PolicyMask& mask) noexcept {
  std::size_t entries = 0;
  for (std::size_t word = 0; word < kMaskWordsFull; ++word) {
    mask[word] = mask_of_entries(policy, 64 * word, 64, filler);
    entries += static_cast<std::size_t>(std::popcount(mask[word]));
  }
  return entries;
}

#if defined(__x86_64__)
__attribute__((target("avx2,popcnt"))) std::size_t mask_policy_avx2(const std::byte* policy,
                                                                    std::uint32_t filler,
                                                                    PolicyMask& mask) noexcept {
  std::size_t entries = 0;
  const __m256i fillers = _mm256_set1_epi32(static_cast<int>(filler));
  for (std::size_t word = 0; word < kMaskWordsFull; ++word) {
    std::uint64_t equal = 0;
    for (std::size_t part = 0; part < 8; ++part) {
      const auto* at = reinterpret_cast<const __m256i*>(policy + 256 * word + 32 * part);
      const __m256i same = _mm256_cmpeq_epi32(_mm256_loadu_si256(at), fillers);
      const auto bits = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
      equal |= static_cast<std::uint64_t>(bits) << (8 * part);
    }
    mask[word] = ~equal;
    entries += static_cast<std::size_t>(std::popcount(mask[word]));
  }
  return entries;
}

__attribute__((target("avx512f,avx512bw,avx512vl,popcnt"))) std::size_t mask_policy_avx512(
    const std::byte* policy, std::uint32_t filler, PolicyMask& mask) noexcept {
  std::size_t entries = 0;
  const __m512i fillers = _mm512_set1_epi32(static_cast<int>(filler));
  for (std::size_t word = 0; word < kMaskWordsFull; ++word) {
    std::uint64_t listed = 0;
    for (std::size_t part = 0; part < 4; ++part) {
      const __m512i values = _mm512_loadu_si512(policy + 256 * word + 64 * part);
      const __mmask16 bits = _mm512_cmpneq_epi32_mask(values, fillers);
      listed |= static_cast<std::uint64_t>(bits) << (16 * part);
    }
    mask[word] = listed;
    entries += static_cast<std::size_t>(std::popcount(listed));
  }
  return entries;
}
#endif

// The entries that a packed frame holds, as bits, and how many they are.
std::size_t mask_policy(const std::byte* policy, std::uint32_t filler, PolicyMask& mask,
                        Kernel kernel) noexcept {
  const std::uint64_t last = mask_of_entries(policy, 64 * kMaskWordsFull, 2, filler);
  mask[kMaskWordsFull] = last;
  const std::size_t in_last = (last & 1) + (last >> 1);
  switch (kernel) {
#if defined(__x86_64__)
    case Kernel::kAvx512:
      return in_last + mask_policy_avx512(policy, filler, mask);
    case Kernel::kAvx2:
      return in_last + mask_policy_avx2(policy, filler, mask);
#endif
    default:
      return in_last + mask_policy_portable(policy, filler, mask);
  }
}

// The eight bytes before everything else.
void put_head(std::byte* frame, std::size_t frame_bytes, std::size_t entries, PackedKind kind,
              std::uint32_t origin) noexcept {
  store(frame, static_cast<std::uint32_t>(frame_bytes));
  store(frame + 4, static_cast<std::uint16_t>(entries));
  frame[6] = std::byte{static_cast<std::uint8_t>(kind)};
  frame[7] = static_cast<std::byte>(origin);
}

std::size_t record_bytes(std::uint32_t origin) noexcept {
  return origin == 7 ? kV7RecordBytes : kV6RecordBytes;
}

std::size_t pack_raw(const std::byte* record, std::uint32_t origin,
                     std::span<std::byte> out) noexcept {
  const std::size_t frame_bytes = raw_bytes(origin);
  if (out.size() < frame_bytes) return 0;
  put_head(out.data(), frame_bytes, 0, PackedKind::kRaw, origin);
  std::memcpy(out.data() + packed::kHead, record, record_bytes(origin));
  const std::size_t end = packed::kHead + record_bytes(origin);
  std::memset(out.data() + end, 0, frame_bytes - end);
  return frame_bytes;
}

// `record` is of version 6, or of 7 if that is its origin.
std::size_t pack_upgraded(const std::byte* record, std::uint32_t origin, std::span<std::byte> out,
                          Kernel kernel) noexcept {
  const std::byte* policy = record + v6::kPolicy;
  PolicyMask mask;
  const std::size_t entries = mask_policy(policy, packed::filler_bits(origin), mask, kernel);
  const std::size_t frame_bytes = packed_bytes(entries, origin);
  if (frame_bytes > raw_bytes(origin)) return pack_raw(record, origin, out);
  if (out.size() < frame_bytes) return 0;

  std::byte* frame = out.data();
  // The padding is inside the last 16 bytes; what belongs there is written over the zeros below.
  std::memset(frame + frame_bytes - packed::kAlignment, 0, packed::kAlignment);
  put_head(frame, frame_bytes, entries, PackedKind::kPacked, origin);
  std::memcpy(frame + packed::kHead, record, packed::kHeadBytes);
  std::memcpy(frame + packed::kPlanes, record + v6::kPlanes, kBitPlaneBytes);
  std::memcpy(frame + packed::kTail, record + v6::kCastlingUsOoo, packed::tail_bytes(origin));
  std::byte* value = frame + packed::kTail + packed::tail_bytes(origin);
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

}  // namespace

std::size_t pack(const std::byte* record, std::uint32_t origin, std::span<std::byte> out,
                 Kernel kernel) noexcept {
  RF_CHECK(upgraded_version(origin) != 0, origin);
  if (origin >= 6) return pack_upgraded(record, origin, out, kernel);
  std::byte upgraded[kV6RecordBytes];
  upgrade_record(record, origin, upgraded);
  return pack_upgraded(upgraded, origin, out, kernel);
}

void write_packed_head(std::byte* frame, std::size_t frame_bytes, std::size_t entries,
                       std::uint32_t origin, std::uint32_t input_format) noexcept {
  put_head(frame, frame_bytes, entries, PackedKind::kPacked, origin);
  store(frame + packed::kHead + v6::kVersion, upgraded_version(origin));
  store(frame + packed::kHead + v6::kInputFormat, input_format);
}

std::optional<PackedFrameView> view_packed(std::span<const std::byte> frame) noexcept {
  if (frame.size() < packed::kPlanes) return std::nullopt;
  const std::byte* at = frame.data();
  const std::size_t frame_bytes = load<std::uint32_t>(at);
  const std::size_t entries = load<std::uint16_t>(at + 4);
  const std::uint32_t origin = std::to_integer<std::uint32_t>(at[7]);
  if (frame_bytes > frame.size() || upgraded_version(origin) == 0) return std::nullopt;
  PackedFrameView view{};
  view.frame_bytes = frame_bytes;
  view.origin = origin;
  view.head = at + packed::kHead;
  view.version = load<std::uint32_t>(view.head + v6::kVersion);
  view.input_format = load<std::uint32_t>(view.head + v6::kInputFormat);
  switch (std::to_integer<std::uint8_t>(at[6])) {
    case static_cast<std::uint8_t>(PackedKind::kPacked): {
      if (entries > kPolicyMoves || frame_bytes != packed_bytes(entries, origin))
        return std::nullopt;
      view.kind = PackedKind::kPacked;
      view.planes = at + packed::kPlanes;
      view.tail = at + packed::kTail;
      view.policy_entries = entries;
      view.policy_values = view.tail + packed::tail_bytes(origin);
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
      if (entries != 0 || frame_bytes != raw_bytes(origin)) return std::nullopt;
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

std::size_t unpack(std::span<const std::byte> frame, std::byte* record) noexcept {
  const std::optional<PackedFrameView> view = view_packed(frame);
  if (!view) return 0;
  const std::size_t bytes = record_bytes(view->origin);
  if (view->kind == PackedKind::kRaw) {
    std::memcpy(record, view->head, bytes);
    return bytes;
  }
  std::memcpy(record, view->head, packed::kHeadBytes);
  for (std::size_t move = 0; move < kPolicyMoves; ++move) {
    store(record + v6::kPolicy + 4 * move, packed::filler_bits(view->origin));
  }
  for (std::size_t i = 0; i < view->policy_entries; ++i) {
    const std::size_t move = load<std::uint16_t>(view->policy_indices + 2 * i);
    std::memcpy(record + v6::kPolicy + 4 * move, view->policy_values + 4 * i, 4);
  }
  std::memcpy(record + v6::kPlanes, view->planes, kBitPlaneBytes);
  std::memcpy(record + v6::kCastlingUsOoo, view->tail, packed::tail_bytes(view->origin));
  return bytes;
}

std::size_t repack(const PackedFrameView& view, std::uint32_t origin, const std::byte* tail,
                   std::span<const std::uint32_t> policy_values,
                   std::span<std::byte> out) noexcept {
  const std::uint32_t filler = packed::filler_bits(origin);
  RF_CHECK(upgraded_version(origin) != 0 && filler == packed::filler_bits(view.origin), origin,
           view.origin);
  RF_CHECK(policy_values.size() == view.policy_entries, policy_values.size(), view.policy_entries);
  if (view.kind == PackedKind::kRaw) {
    std::byte record[kV7RecordBytes];
    std::memcpy(record, view.head, v6::kPolicy);
    store(record + v6::kVersion, upgraded_version(origin));
    std::memcpy(record + v6::kPolicy, policy_values.data(), policy_values.size_bytes());
    std::memcpy(record + v6::kPlanes, view.planes, kBitPlaneBytes);
    std::memcpy(record + v6::kCastlingUsOoo, tail, packed::tail_bytes(origin));
    return pack_upgraded(record, origin, out, Kernel::kPortable);
  }
  const auto entries =
      policy_values.size() -
      static_cast<std::size_t>(std::count(policy_values.begin(), policy_values.end(), filler));
  const std::size_t frame_bytes = packed_bytes(entries, origin);
  if (out.size() < frame_bytes) return 0;
  std::byte* frame = out.data();
  std::memset(frame + frame_bytes - packed::kAlignment, 0, packed::kAlignment);
  write_packed_head(frame, frame_bytes, entries, origin, view.input_format);
  std::memcpy(frame + packed::kPlanes, view.planes, kBitPlaneBytes);
  std::memcpy(frame + packed::kTail, tail, packed::tail_bytes(origin));
  std::byte* value = frame + packed::kTail + packed::tail_bytes(origin);
  std::byte* index = value + 4 * entries;
  for (std::size_t i = 0; i < policy_values.size(); ++i) {
    if (policy_values[i] == filler) continue;
    store(value, policy_values[i]);
    std::memcpy(index, view.policy_indices + 2 * i, 2);
    value += 4;
    index += 2;
  }
  return frame_bytes;
}

}  // namespace ringfeed::formats
