// Why a deflate stream was refused: cut short, or wrong inside. Asked only after the fast decoder
// has given up, which does not say which of the two it was; a log that blames the disk for a
// download that stopped sends people the wrong way.
#pragma once

#include <cstddef>
#include <span>

namespace ringfeed::formats {

enum class DeflateEnd {
  kFinished,  // a valid stream, whole
  kRanOut,    // valid as far as it goes, and its end is missing
  kInvalid,   // a code, a block type or a distance that no encoder writes
};

// Walks the symbols of the stream without producing its output. Allocates nothing; some 30 MB/s.
// Any bytes may be given.
[[nodiscard]] DeflateEnd walk_deflate(std::span<const std::byte> stream) noexcept;

}  // namespace ringfeed::formats
