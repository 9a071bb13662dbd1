#include "workers/programs/worker_main.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"
#include "workers/inspect/inspect.h"
#include "workers/inspect/propose.h"
#include "workers/inspect/view.h"
#include "workers/programs/all.h"
#include "workers/programs/show_batch.h"
#include "workers/runtime/worker.h"

namespace ringfeed {
namespace {

int run(int argc, char** argv, std::vector<StageType> stages) {
  inspect::Describers describers;
  register_all_describers(describers);
  // Behind those that know their data.
  std::ranges::stable_sort(describers.kinds, {}, &inspect::DataKind::of_anybody);
  const std::string_view word = argc >= 2 ? argv[1] : "";
  if (argc >= 3 && word == "--inspect") return inspect::run(argc - 2, argv + 2, describers);
  if (argc >= 4 && word == "--try-fd") {
    return inspect::view(std::atoi(argv[2]), std::atoi(argv[3]), describers);
  }
  if (word == "--describe") return inspect::describe_records(describers);
  if (word == "--propose") return inspect::propose_main(argc - 2, argv + 2, describers);
  Registry registry;
  register_all_stages(registry);
  for (StageType& type : stages) registry.add_plugin(std::move(type));
  if (argc == 2 && word == "--plan") return print_plan(registry);
  if (argc == 2 && word == "--look") return print_looks(registry);
  if (argc == 2 && word == "--kinds") return print_kinds(registry);
  if (argc == 2 && word == "--show") return show_batch(registry);
  if (argc == 3 && word == "--setup-fd") return run_worker(std::atoi(argv[2]), registry);
  if (stages.empty()) {
    std::fputs("ringfeed starts ringfeed-worker: see ringfeed --help\n", stderr);
  } else {
    std::fprintf(stderr,
                 "%s is a plug-in of ringfeed, which starts it: ringfeed run --worker %s CONFIG\n",
                 argv[0], argv[0]);
  }
  return 2;
}

}  // namespace

int run_program(int argc, char** argv, std::vector<StageType> stages) noexcept {
  shm::open_standard_streams();
  // `ringfeed` starts a program by its path and gives it the name ringfeed-worker.
  const bool plugged = !stages.empty();
  try {
    return run(argc, argv, std::move(stages));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", plugged ? program_invocation_name : "ringfeed-worker",
                 error.message().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", plugged ? program_invocation_name : "ringfeed-worker",
                 error.what());
  }
  return 1;
}

namespace detail {

int worker_main(int argc, char** argv, std::vector<StageType>* stages,
                std::uint64_t layout) noexcept {
  if (layout != worker_layout()) {
    std::fprintf(stderr,
                 "%s: compiled with headers of another version of ringfeed than %s, whose library "
                 "it runs with, or with another C++ library: compile it again\n",
                 argc > 0 ? argv[0] : "worker", RINGFEED_VERSION);
    return 1;
  }
  return run_program(argc, argv, std::move(*stages));
}

}  // namespace detail
}  // namespace ringfeed
