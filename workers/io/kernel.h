// Kernel: which instructions the hot loops of this room use. Every kernel gives the same bits;
// tests hold them to it.
//
// The choice is made once, from the processor the worker runs on, so one binary serves all
// machines. Functions with a hot loop take a Kernel that defaults to best_kernel(); tests and
// benchmarks name one.
#pragma once

#include <cstdint>

namespace ringfeed::formats {

enum class Kernel : std::uint8_t {
  kPortable,  // plain C++; whatever the compiler's base instruction set makes of it
  kAvx2,      // 32-byte vectors, streaming stores
  kAvx512,    // 64-byte vectors with masks (F, BW, VL), streaming stores
};

inline constexpr Kernel kAllKernels[] = {Kernel::kPortable, Kernel::kAvx2, Kernel::kAvx512};

// Whether this machine and its operating system can run the kernel. Any thread.
[[nodiscard]] bool kernel_supported(Kernel kernel) noexcept;

// The fastest kernel that this machine can run. Any thread; asked of the processor once.
[[nodiscard]] Kernel best_kernel() noexcept;

// "portable", "avx2", "avx512": for logs, benchmarks and test names.
[[nodiscard]] const char* kernel_name(Kernel kernel) noexcept;

}  // namespace ringfeed::formats
