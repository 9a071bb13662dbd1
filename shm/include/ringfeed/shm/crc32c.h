// CRC-32C (Castagnoli) of payloads, as in RFC 3720: reflected, with all bits inverted at both ends.
// 32 zero bytes give 0x8a9136aa.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringfeed::shm {

// The CRC of bytes in memory. Uses the processor's instruction if there is one. Depends on libc
// alone.
std::uint32_t crc32c(const void* bytes, std::size_t count) noexcept;

// The same without the instruction, for other processors and for tests.
std::uint32_t crc32c_portable(const void* bytes, std::size_t count) noexcept;

}  // namespace ringfeed::shm
