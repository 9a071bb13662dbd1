#include "ringfeed/shm/result.h"

#include <cstdio>
#include <cstdlib>

namespace ringfeed::detail {

void check_failed(const char* condition, const char* file, int line,
                  const std::string& values) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s [%s]\n", file, line, condition, values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace ringfeed::detail
