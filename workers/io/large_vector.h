// A vector for millions of numbers: on large pages where the system has them, so that looking one
// up anywhere costs no walk through page tables, and without writing zeros where something else is
// written anyway.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace ringfeed::formats {

template <typename T>
class LargeAllocator {
 public:
  using value_type = T;
  LargeAllocator() = default;
  template <typename U>
  explicit LargeAllocator(const LargeAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T) - kLargePage) {
      throw std::bad_array_new_length();
    }
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kLargePage) return static_cast<T*>(::operator new(bytes));
    void* memory = nullptr;
    if (::posix_memalign(&memory, kLargePage, bytes) != 0) throw std::bad_alloc();
    // A wish; without it everything works, slower.
    static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    if (count * sizeof(T) < kLargePage) {
      ::operator delete(memory);
    } else {
      std::free(memory);
    }
  }
  // resize(n) leaves new numbers as they are; resize(n, 0) and assign() do not.
  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
  friend bool operator==(const LargeAllocator&, const LargeAllocator&) noexcept { return true; }

 private:
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;
};

// Numbers that resize() adds have no value yet.
template <typename T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace ringfeed::formats
