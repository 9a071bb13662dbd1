// ringfeed web: becomes the program ringfeed-web.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"
#include "supervisor/cli/verb.h"
#include "supervisor/web/options.h"

namespace ringfeed::cli {
namespace {

[[noreturn]] void become_web(const web::Options& options) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("ringfeed-web").string();
  std::vector<std::string> words = options.words();
  words.insert(words.begin(), "ringfeed-web");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw Error(ErrorCode::kIo, fmt::format("{} cannot be started: {}: it comes with ringfeed, and "
                                          "lies beside it",
                                          program, std::strerror(errno)));
}

}  // namespace

void add_web(CLI::App& verb, int&) {
  const auto options = std::make_shared<web::Options>();
  web::add_options(verb, *options);
  verb.footer(
      "It prints its address. There: the page, /metrics for Prometheus, /healthz, /readyz,\n"
      "/api/v1/feeds. It can read and change nothing.\n"
      "Example: ringfeed web --listen 127.0.0.1:9464");
  verb.callback([options] { become_web(*options); });
}

}  // namespace ringfeed::cli
