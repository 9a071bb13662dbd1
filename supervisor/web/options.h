// The options of `ringfeed web`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::web {

struct Options {
  std::string listen = "127.0.0.1:9464";
  std::string directory = {};
  std::string token_file = {};
  std::vector<std::string> hosts = {};
  int parent = 0;  // ends when this process, which has started it, does
};
// What the line begins with that says where it listens.
inline constexpr std::string_view kScheme = "http://";
void add_options(CLI::App& app, Options& options);

}  // namespace ringfeed::web
