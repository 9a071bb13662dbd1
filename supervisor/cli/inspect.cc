// ringfeed inspect: the worker knows the formats, so it is a worker that looks and prints.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ringfeed/shm/result.h"
#include "supervisor/cli/verbs.h"
#include "supervisor/process/spawn.h"

namespace ringfeed::cli {

int inspect(const InspectOptions& options) {
  const std::string binary = process::find_worker_binary();
  std::vector<std::string> words{"ringfeed-worker", "--inspect", options.path};
  if (options.record) words.push_back(fmt::format("--record={}", *options.record));
  if (!options.chunk.empty()) words.push_back("--chunk=" + options.chunk);
  words.push_back(fmt::format("--top={}", options.top));
  if (options.all) words.emplace_back("--all");
  if (options.json) words.emplace_back("--json");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  // It takes this process's place: its output and exit status are those of the command.
  ::execv(binary.c_str(), argv.data());
  throw Error(ErrorCode::kIo,
              fmt::format("worker binary {} cannot be started: {}", binary, std::strerror(errno)));
}

}  // namespace ringfeed::cli
