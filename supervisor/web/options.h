// The options of ringfeed-web, which `ringfeed web` has as well.
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

  // As they are typed.
  [[nodiscard]] std::vector<std::string> words() const;
};
void add_options(CLI::App& app, Options& options);

}  // namespace ringfeed::web
