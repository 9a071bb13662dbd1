// The command line of a ringfeed-worker whose stages a test has changed.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "ringfeed/shm/result.h"
#include "workers/programs/all.h"
#include "workers/runtime/registry.h"
#include "workers/runtime/worker.h"

namespace ringfeed::testing {

// All stages, each as `change` leaves it; `program` is the name in messages. The exit status.
inline int run_test_worker(int argc, char** argv, const char* program,
                           const std::function<void(StageType&)>& change) {
  Registry all;
  register_all_stages(all);
  Registry registry;
  for (StageType type : all.types()) {
    change(type);
    registry.add(std::move(type));
  }
  try {
    if (argc == 2 && std::string_view(argv[1]) == "--plan") return print_plan(registry);
    if (argc == 3 && std::string_view(argv[1]) == "--setup-fd") {
      return run_worker(std::atoi(argv[2]), registry);
    }
    return 2;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.message().c_str());
    return 1;
  }
}

}  // namespace ringfeed::testing
