#include "ringfeed/shm/arena.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "ringfeed/shm/failpoint.h"

namespace ringfeed::shm {

Result<Arena> Arena::map(int fd, std::uint64_t bytes_max, std::string name) {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return Error{ErrorCode::kIo, "arena " + name + ": cannot be looked at"};
  Arena arena;
  arena.reserved_ = static_cast<std::uint64_t>(info.st_size);
  arena.fd_ = fd;
  Result<Mapping> mapping =
      map_segment(fd, true, 0, std::max(arena.reserved_, align_up(bytes_max, kPageBytes)));
  if (!mapping) return mapping.error();
  arena.mapping_ = std::move(*mapping);
  arena.name_ = std::move(name);
  return arena;
}

Status Arena::grow(std::uint64_t state_bytes) noexcept {
  const std::uint64_t wanted = align_up(kStateOffset + state_bytes, kPageBytes);
  if (wanted <= reserved_) return {};
  if (wanted > mapping_.bytes()) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("arena {}: needs {} bytes, but at most {} are possible: lower the "
                             "sizes of the stage, or "
                             "raise the address space that a process may have (ulimit -v)",
                             name_, wanted, mapping_.bytes())};
  }
  if (RF_FAILPOINT_ERROR("shm.arena.grow")) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("arena {}: a test wants no {} bytes to be free", name_, wanted)};
  }
  if (Status status = grow_segment(fd_, wanted, name_); !status) return status;
  RF_FAILPOINT("shm.arena.grown");
  reserved_ = wanted;
  return {};
}

}  // namespace ringfeed::shm
