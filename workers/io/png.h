// Pixels as a PNG file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

struct Pixels {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::uint32_t channels = 0;             // 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha
  std::span<const std::byte> bytes = {};  // row by row, the channels of a pixel together
};

// Errors: kInvalidArgument (sizes that do not fit each other), kNoMemory.
[[nodiscard]] Result<std::string> encode_png(const Pixels& pixels);

}  // namespace ringfeed::formats
