// Texts packed as files are.
#pragma once

#include <zstd.h>

#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"

namespace ringfeed::testing {

inline std::string zstd_text(std::string_view content) {
  std::string out(::ZSTD_compressBound(content.size()), '\0');
  const std::size_t bytes =
      ::ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 3);
  RF_CHECK(::ZSTD_isError(bytes) == 0, bytes);
  out.resize(bytes);
  return out;
}

}  // namespace ringfeed::testing
