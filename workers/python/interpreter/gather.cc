#include "workers/python/interpreter/gather.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ringfeed::interpreter {
namespace {

#ifdef __SSE2__
constexpr std::size_t kLine = 64;  // four stores fill a line, which then goes out whole

void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t ragged = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = ragged < bytes ? ragged : bytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to, from, bytes);
}
#else
void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace

void gather(std::byte* to, std::span<const std::byte* const> rows, std::size_t row_bytes) noexcept {
  for (const std::byte* row : rows) {
    copy(to, row, row_bytes);
    to += row_bytes;
  }
#ifdef __SSE2__
  // Such stores are not ordered: all of them are seen before the batch is published.
  _mm_sfence();
#endif
}

}  // namespace ringfeed::interpreter
