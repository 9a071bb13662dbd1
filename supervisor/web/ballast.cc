#include "supervisor/web/ballast.h"

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

namespace ringfeed::web {
namespace {

// A tree of a feed with a hundred lanes takes a few KiB on that stack, far less than either.
constexpr std::size_t kFirstBytes = 256 << 10;
constexpr std::size_t kLastBytes = 1 << 20;

// The server has one thread.
void* first = nullptr;
void* last = nullptr;

void give_up() {
  if (void* const block = std::exchange(first, nullptr)) return std::free(block);
  if (std::uncaught_exceptions() > 0) {
    if (void* const block = std::exchange(last, nullptr)) return std::free(block);
  }
  throw std::bad_alloc();
}

}  // namespace

bool take_ballast() noexcept {
  if (first == nullptr) first = std::malloc(kFirstBytes);
  if (last == nullptr) last = std::malloc(kLastBytes);
  std::set_new_handler(give_up);
  return first != nullptr && last != nullptr;
}

}  // namespace ringfeed::web
