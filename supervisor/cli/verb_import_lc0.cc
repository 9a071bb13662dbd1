// ringfeed import-lc0: a configuration of lczero-training becomes one of ours.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "ringfeed/shm/result.h"
#include "supervisor/cli/verb.h"
#include "supervisor/config/read.h"
#include "supervisor/import/lczero_config.h"

namespace ringfeed::cli {
namespace {

struct ImportOptions {
  std::string file = {};                // a configuration of lczero-training; - is standard input
  std::vector<std::string> added = {};  // files whose stages are added
  std::string out = {};                 // empty: standard output
};

imports::LczeroSource read_source(const std::string& file) {
  imports::LczeroSource source{
      .name = file == "-" ? "stdin" : file, .content = {}, .format = config::format_of(file)};
  source.content = config::read_config_file(file);
  return source;
}

void write_whole(const std::string& path, const std::string& text) {
  const auto refused = [&path](int error) {
    return Error(ErrorCode::kIo, fmt::format("{}: cannot be written: {}: give another file with -o",
                                             path, std::strerror(error)));
  };
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) throw refused(errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (std::fclose(file) != 0) throw refused(errno);
  if (!written) throw refused(error);
}

int import_lc0(const ImportOptions& options) {
  std::vector<imports::LczeroSource> sources{read_source(options.file)};
  for (const std::string& file : options.added) sources.push_back(read_source(file));
  std::error_code ignored;
  for (const imports::LczeroSource& source : sources) {
    if (!options.out.empty() && std::filesystem::equivalent(options.out, source.name, ignored)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} would be overwritten: choose another file with -o", source.name));
    }
  }
  const imports::Imported imported = imports::import_lczero(sources);
  if (!imported.problems.empty()) {
    fmt::print(stderr, "{}", config::problem_report(imported.problems, imported.problems_left_out));
    return kInvalidConfiguration;
  }
  for (const config::Problem& note : imported.notes) {
    fmt::print(stderr, "{}\n", note.message());
  }
  if (options.out.empty()) {
    fmt::print("{}", imported.text);
  } else {
    write_whole(options.out, imported.text);
  }
  return kOk;
}

}  // namespace

void add_import_lc0(CLI::App& verb, int& result) {
  struct Given {
    ImportOptions options;
  };
  const auto given = std::make_shared<Given>();
  verb.add_option("FILE", given->options.file,
                  "a RootConfig with a data_loader, or a DataLoaderConfig: .textproto, .json or "
                  ".binpb; - is standard input")
      ->required();
  verb.add_option("--add", given->options.added,
                  "add the stages of this file, but not its outputs; may be given several times")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  verb.add_option("-o,--out", given->options.out, "file to write; default: standard output")
      ->type_name("FILE");
  verb.footer(
      "Settings without an equivalent are reported on standard error, and in comments at their "
      "place.\n"
      "Example: ringfeed import-lc0 train.textproto -o lc0.textproto");
  verb.callback([=, &result] { result = import_lc0(given->options); });
}

}  // namespace ringfeed::cli
