// Texts packed as files are.
#pragma once

#include <bzlib.h>
#include <lzma.h>
#include <zstd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"

namespace ringfeed::testing {

// A frame with a checksum.
inline std::string zstd_text(std::string_view content) {
  std::string out(::ZSTD_compressBound(content.size()), '\0');
  ZSTD_CCtx* const context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  const std::size_t bytes =
      ::ZSTD_compress2(context, out.data(), out.size(), content.data(), content.size());
  ::ZSTD_freeCCtx(context);
  RF_CHECK(::ZSTD_isError(bytes) == 0, bytes);
  out.resize(bytes);
  return out;
}

// A frame that readers pass over.
inline std::string zstd_skippable(std::string_view content) {
  const auto size = static_cast<std::uint32_t>(content.size());
  std::string out = "\x5f\x2a\x4d\x18";
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(size >> shift & 0xFF);
  return out.append(content);
}

inline std::string bzip2_text(std::string_view content) {
  auto bytes = static_cast<unsigned>(content.size() + content.size() / 100 + 600);
  std::string out(bytes, '\0');
  const int status =
      ::BZ2_bzBuffToBuffCompress(out.data(), &bytes, const_cast<char*>(content.data()),
                                 static_cast<unsigned>(content.size()), 1, 0, 0);
  RF_CHECK(status == BZ_OK, status);
  out.resize(bytes);
  return out;
}

inline std::string xz_text(std::string_view content) {
  std::string out(::lzma_stream_buffer_bound(content.size()), '\0');
  std::size_t bytes = 0;
  const lzma_ret status = ::lzma_easy_buffer_encode(
      1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(content.data()),
      content.size(), reinterpret_cast<std::uint8_t*>(out.data()), &bytes, out.size());
  RF_CHECK(status == LZMA_OK, static_cast<int>(status));
  out.resize(bytes);
  return out;
}

}  // namespace ringfeed::testing
