// Did the system refuse only because it has run out of something: descriptors, processes, threads,
// kernel memory, buffers, locks? Such a refusal says nothing about the thing that was asked for,
// and the same call may succeed in a moment. Callers wait with backoff or refuse the request; they
// never read it as "not there".
#pragma once

#include <cerrno>

#include "ringfeed/shm/result.h"

namespace ringfeed {

[[nodiscard]] inline bool is_starvation(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
         error == EAGAIN || error == ETOOMANYREFS || error == ENOLCK;
}

// The code for a call that failed with this errno: kNoMemory for starvation, else kIo.
[[nodiscard]] inline ErrorCode system_code(int error) noexcept {
  return is_starvation(error) ? ErrorCode::kNoMemory : ErrorCode::kIo;
}

}  // namespace ringfeed
