// Files of one NumPy array (.npy, versions 1 to 3): what their head says. The data behind it lies
// as in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

struct NpyHead {
  std::string descr;                 // the element as NumPy writes it: "<f4", "|u1"
  bool fortran_order = false;        // columns first
  std::vector<std::uint64_t> shape;  // none: a single number
  std::uint64_t data_at = 0;         // in the file, or in the bytes that were given

  // Numbers in the array; nothing beyond 2^63 - 1.
  [[nodiscard]] Result<std::uint64_t> size() const;
};

// Most that a head may have. What NumPy writes has some hundred bytes.
inline constexpr std::uint64_t kNpyHeadBytesMax = std::uint64_t{1} << 20;

// The head that these bytes begin with. kDamaged: what is wrong with it; an array of records (a
// structured dtype) is refused so, too.
[[nodiscard]] Result<NpyHead> read_npy_head(std::string_view bytes);
// The same of an open file. kIo: the system's reason.
[[nodiscard]] Result<NpyHead> read_npy_head(int fd);

}  // namespace ringfeed::formats
