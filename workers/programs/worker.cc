// ringfeed-worker: runs the lanes of one stage group, tells what the stages of a configuration
// need, says what a file is, or makes a configuration for a directory. ringfeed-worker-parquet: the
// same, and reads Parquet files.
#include "workers/runtime/worker.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ringfeed/shm/result.h"
#include "workers/inspect/inspect.h"
#include "workers/inspect/propose.h"
#include "workers/programs/all.h"
#ifdef RINGFEED_PARQUET
#include "workers/io/parquet_file.h"
#endif

int main(int argc, char** argv) {
  try {
#ifdef RINGFEED_PARQUET
    ringfeed::formats::set_parquet_opener(&ringfeed::formats::open_parquet_file);
#endif
    ringfeed::inspect::Describers describers;
    ringfeed::register_all_describers(describers);
    if (argc >= 3 && std::string_view(argv[1]) == "--inspect") {
      return ringfeed::inspect::run(argc - 2, argv + 2, describers);
    }
    if (argc >= 2 && std::string_view(argv[1]) == "--propose") {
      return ringfeed::inspect::propose_main(argc - 2, argv + 2, describers);
    }
    ringfeed::Registry registry;
    ringfeed::register_all_stages(registry);
    if (argc == 2 && std::string_view(argv[1]) == "--plan") return ringfeed::print_plan(registry);
    if (argc == 2 && std::string_view(argv[1]) == "--kinds") return ringfeed::print_kinds(registry);
    if (argc == 3 && std::string_view(argv[1]) == "--setup-fd") {
      return ringfeed::run_worker(std::atoi(argv[2]), registry);
    }
    std::fputs("ringfeed starts ringfeed-worker: see ringfeed --help\n", stderr);
    return 2;
  } catch (const ringfeed::Error& error) {
    std::fprintf(stderr, "ringfeed-worker: %s\n", error.message().c_str());
    return 1;
  }
}
