// Whether the system refused only because it has run out of something: of descriptors, processes,
// threads, kernel memory, buffers. That says nothing about what was asked for, and the same may
// succeed in a moment: it is waited out with backoff or refused, and never read as "not there".
#pragma once

#include <cerrno>

#include "ringfeed/shm/result.h"

namespace ringfeed {

[[nodiscard]] inline bool is_starvation(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
         error == EAGAIN || error == ETOOMANYREFS;
}

// The code for a call that failed with this errno: kNoMemory for starvation, else kIo.
[[nodiscard]] inline ErrorCode system_code(int error) noexcept {
  return is_starvation(error) ? ErrorCode::kNoMemory : ErrorCode::kIo;
}

}  // namespace ringfeed
