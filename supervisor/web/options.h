// The options of `ringfeed web`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ringfeed::web {

struct Options {
  std::string listen = "127.0.0.1:9464";
  std::string directory = {};
  std::string token_file = {};
  std::vector<std::string> hosts = {};
};
void add_options(CLI::App& app, Options& options);

}  // namespace ringfeed::web
