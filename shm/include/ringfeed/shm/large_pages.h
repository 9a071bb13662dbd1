// Large pages under memory that is in use.
//
// The kernel takes a dead process apart page by page before anybody learns of its death. For a
// reservoir of a gigabyte, all of it touched, this takes a tenth of a second, in which the stage
// stands still. With pages of 2 MiB it takes a millisecond (bench/deaths_bench).
//
// memfds get small pages by default (shmem_enabled: never), but a process may ask for large ones
// for its own memory (from Linux 6.1 on; before that nothing happens). Contents do not change;
// whoever reads or writes a page that is being moved waits for it. Gathering needs at most 2 MiB
// more at a time, and keeps none of it. What the system refuses stays as it is. See
// docs/decisions/0012.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringfeed::shm {

inline constexpr std::uint64_t kLargePageBytes = std::uint64_t{2} << 20;

// An address where `bytes` can be mapped so that large pages fit: a hint for mmap(). nullptr:
// anywhere.
[[nodiscard]] void* place_for_large_pages(std::uint64_t bytes) noexcept;

// Asks for large pages under [at, at + bytes), both multiples of kLargePageBytes, all of it
// reserved. False: the system cannot do that, or has no large pages now.
bool gather_pages(std::byte* at, std::uint64_t bytes) noexcept;

}  // namespace ringfeed::shm
