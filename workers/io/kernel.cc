#include "workers/io/kernel.h"

namespace ringfeed::formats {

bool kernel_supported(Kernel kernel) noexcept {
  switch (kernel) {
    case Kernel::kPortable:
      return true;
#if defined(__x86_64__)
    case Kernel::kAvx2:
      return __builtin_cpu_supports("avx2") != 0;
    case Kernel::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0;
#else
    case Kernel::kAvx2:
    case Kernel::kAvx512:
      return false;
#endif
  }
  return false;
}

Kernel best_kernel() noexcept {
  static const Kernel best = [] {
    if (kernel_supported(Kernel::kAvx512)) return Kernel::kAvx512;
    if (kernel_supported(Kernel::kAvx2)) return Kernel::kAvx2;
    return Kernel::kPortable;
  }();
  return best;
}

const char* kernel_name(Kernel kernel) noexcept {
  switch (kernel) {
    case Kernel::kPortable:
      return "portable";
    case Kernel::kAvx2:
      return "avx2";
    case Kernel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace ringfeed::formats
