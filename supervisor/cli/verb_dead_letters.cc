// ringfeed dead-letters: the records that a feed has set aside.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/letter.h"
#include "supervisor/cli/verbs.h"
#include "supervisor/control/place.h"

namespace ringfeed::cli {
namespace {

// The first line: how the stage ended; the worker's last words follow.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

int dead_letters(const std::string& feed, const std::string& directory, bool json) {
  const std::filesystem::path place =
      control::dead_letter_directory(directory, feed, control::read_environment());
  std::vector<std::filesystem::path> files;
  const Result<std::vector<std::string>> names = shm::names_in(place.string());
  if (!names && names.error().code() != ErrorCode::kNotFound) throw Error(names.error());
  if (names) {
    for (const std::string& name : *names) {
      if (name.ends_with(".json")) files.push_back(place / name);
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    const Result<nlohmann::json> read = read_about(file);
    if (!read) {
      fmt::print(stderr, "{}\n", escaped(read.error().message()));
      continue;
    }
    const nlohmann::json& about = *read;
    std::filesystem::path record = file;
    record.replace_extension(".record");
    if (json) {
      nlohmann::json out = about;
      out["file"] = record.string();
      fmt::print("{}\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      continue;
    }
    try {
      fmt::print("{}  {} bytes, {} deaths, {}\n", escaped(record.string()),
                 about.value("bytes", 0ULL), about.value("deaths", 0U),
                 escaped(first_line(about.value("cause", std::string("unknown")))));
    } catch (const nlohmann::json::exception&) {  // a field that is not what it should be
      fmt::print(stderr, "{}: is damaged\n", escaped(file.string()));
    }
  }
  if (files.empty()) fmt::print(stderr, "no dead letters in {}\n", place.string());
  return kOk;
}

}  // namespace ringfeed::cli
