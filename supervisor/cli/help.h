// What --help prints of the program and of its verbs, in lines of at most 100 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace ringfeed::cli {

class HelpFormatter final : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_option(const CLI::Option* option, bool argument) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* verb) const override;
  [[nodiscard]] std::string make_footer(const CLI::App* verb) const override;
};

}  // namespace ringfeed::cli
