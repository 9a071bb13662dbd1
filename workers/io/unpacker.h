// What unpacks the members of a packed file, one after the other (byte_stream.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ringfeed/shm/result.h"
#include "workers/io/byte_stream.h"

namespace ringfeed::formats {

class Unpacker {
 public:
  Unpacker() = default;
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;
  virtual ~Unpacker() = default;

  // A member begins with the next bytes.
  [[nodiscard]] virtual Status begin() = 0;
  // Takes some of `in`, which is empty where nothing more comes, and fills some of `out`. It stops
  // behind the member, or if one of the two is used up. An error: the counts are set as well.
  struct Step {
    std::size_t used = 0;
    std::size_t given = 0;
    bool ended = false;  // the member; what it says of itself is right
  };
  [[nodiscard]] virtual Status run(std::span<const std::byte> in, std::span<std::byte> out,
                                   Step& step) = 0;
};

// Not for plain files.
[[nodiscard]] std::unique_ptr<Unpacker> unpacker_of(Packing packing,
                                                    std::uint64_t window_bytes_max);

}  // namespace ringfeed::formats
