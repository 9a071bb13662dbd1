// ringfeed inspect: the worker knows the formats, so it is a worker that looks and prints.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/verbs.h"
#include "supervisor/group/spawn.h"

namespace ringfeed::cli {
namespace {

bool is_parquet(const std::string& path) {
  if (path.ends_with(".parquet")) return true;
  // A FIFO would have its first bytes taken, or be waited for.
  const Result<shm::Fd> file = shm::open_regular(path);
  char magic[4] = {};
  return file && ::read(file->get(), magic, sizeof magic) == sizeof magic &&
         std::string_view(magic, sizeof magic) == "PAR1";
}

}  // namespace

int inspect(const InspectOptions& options) {
  std::string binary = process::find_worker_binary();
  // Where it is there, what reads Parquet files too; else the other one says what is missing.
  const std::string parquet = binary.substr(0, binary.rfind('/') + 1) + "ringfeed-worker-parquet";
  if (is_parquet(options.path) && ::access(parquet.c_str(), X_OK) == 0) binary = parquet;
  std::vector<std::string> words{"ringfeed-worker", "--inspect", options.path};
  if (options.record) words.push_back(fmt::format("--record={}", *options.record));
  if (!options.chunk.empty()) words.push_back("--chunk=" + options.chunk);
  if (!options.dictionary.empty()) words.push_back("--dictionary=" + options.dictionary);
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
