#include "ringfeed/shm/large_pages.h"

#include <sys/mman.h>

#include "ringfeed/shm/abi.h"

namespace ringfeed::shm {
namespace {

// asm-generic/mman-common.h; the C library's header does not have it yet.
constexpr int kMadvCollapse = 25;

}  // namespace

void* place_for_large_pages(std::uint64_t bytes) noexcept {
  if (bytes < kLargePageBytes) return nullptr;
  // Room for a shift. It is given back at once: if somebody else takes it meanwhile, the kernel
  // chooses another place, and small pages do as well.
  const std::uint64_t room = align_up(bytes, kLargePageBytes) + kLargePageBytes;
  void* const free =
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (free == MAP_FAILED) return nullptr;
  ::munmap(free, room);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address is what is asked for
  return reinterpret_cast<void*>(align_up(reinterpret_cast<std::uintptr_t>(free), kLargePageBytes));
}

bool gather_pages(std::byte* at, std::uint64_t bytes) noexcept {
  return ::madvise(at, bytes, kMadvCollapse) == 0;
}

}  // namespace ringfeed::shm
