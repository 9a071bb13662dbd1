// Files of one NumPy array (.npy, versions 1 to 3): what their head says. The data behind it lies
// as in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

// A member of the records that an array has as elements. One of a record in a record has the name
// "outer.inner".
struct NpyMember {
  std::string name;                  // none: bytes that are there for alignment
  std::string descr;                 // as that of an array
  std::vector<std::uint64_t> shape;  // of an array in the record; none: a single one
};

struct NpyHead {
  std::string
      descr;  // the element as NumPy writes it: "<f4", "|u1", "[('x', '<f4'), ('y', '<i8')]"
  std::vector<NpyMember> members;    // of an element that is a record
  bool fortran_order = false;        // columns first
  std::vector<std::uint64_t> shape;  // none: a single number
  std::uint64_t data_at = 0;         // in the file, or in the bytes that were given

  // Numbers in the array; nothing beyond 2^63 - 1.
  [[nodiscard]] Result<std::uint64_t> size() const;
};

// Most that a head may have. What NumPy writes has some hundred bytes.
inline constexpr std::uint64_t kNpyHeadBytesMax = std::uint64_t{1} << 20;

// The head that these bytes begin with. kDamaged: what is wrong with it.
[[nodiscard]] Result<NpyHead> read_npy_head(std::string_view bytes);
// The same of an open file. kIo: the system's reason.
[[nodiscard]] Result<NpyHead> read_npy_head(int fd);

}  // namespace ringfeed::formats
