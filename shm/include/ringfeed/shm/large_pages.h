// Large pages under memory that is in use.
//
// The kernel takes a dead process apart page by page, before anybody may know of its death: a
// reservoir of a gigabyte that its worker has touched all over costs a tenth of a second, in which
// the stage stands still. In pages of 2 MiB it costs a millisecond. (bench/deaths_bench)
//
// memfds get small pages by default (shmem_enabled: never), but a process may ask for its own
// memory (Linux 6.1; nothing happens before it). Contents stay what they are; whoever reads or
// writes a page that is being moved waits for it. Memory is neither needed nor kept beyond 2 MiB at
// a time. What the system refuses stays as it is. docs/decisions/0012.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringfeed::shm {

inline constexpr std::uint64_t kLargePageBytes = std::uint64_t{2} << 20;

// Where `bytes` can be mapped so that large pages fit: for mmap(), as a hint. nullptr: anywhere.
[[nodiscard]] void* place_for_large_pages(std::uint64_t bytes) noexcept;

// Asks for large pages under [at, at + bytes), both multiples of kLargePageBytes, all of it
// reserved. False: the system does not know of that, or has just none to give.
bool gather_pages(std::byte* at, std::uint64_t bytes) noexcept;

}  // namespace ringfeed::shm
