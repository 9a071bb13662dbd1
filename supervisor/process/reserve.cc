#include "supervisor/process/reserve.h"

#include <execinfo.h>
#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace ringfeed::process {

void load_unwinder() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);
}

std::size_t DescriptorReserve::give_up(std::size_t count, std::size_t leave) {
  const std::size_t given = std::min(count, kept_.size() - std::min(kept_.size(), leave));
  kept_.resize(kept_.size() - given);
  return given;
}

void DescriptorReserve::refill() {
  while (loans_ == 0 && kept_.size() < count_) {
    shm::Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) return;
    kept_.push_back(std::move(fd));
  }
}

}  // namespace ringfeed::process
