// A plug-in as if it had been compiled with other headers than those of the library that it runs
// with. Its stages are no vector, so whoever looks at them dies.
#include "ringfeed/worker/main.h"

int main(int argc, char** argv) {
  auto* const stages = reinterpret_cast<std::vector<ringfeed::StageType>*>(16);
  return ringfeed::detail::worker_main(argc, argv, stages, ringfeed::worker_layout() + 1);
}
