// A dead letter as it lies on disk (workers/runtime/dead_letter.h): the file of a record, and what
// is known about it in the file of the same name with .json.
//
// Files may be damaged, cut short, or of a version that knew less: what is wrong is said with the
// path, and nothing is taken for granted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::cli {

// `about`: a JSON object. Errors: kIo, kDamaged, with the path.
[[nodiscard]] Result<nlohmann::json> read_about(const std::filesystem::path& about);

// What a replay needs of it.
struct Letter {
  std::filesystem::path file;  // of the record
  std::string bytes;           // its
  std::string stage;
  std::string node;  // "": the stage itself
  std::uint32_t lane = 0;
  std::string port;
  std::uint32_t ring = 0;  // of the port, by producing lane
  std::uint64_t lineage[2] = {0, 0};
  std::uint64_t user = 0;
  std::uint32_t deaths = 0;
  std::string cause;
  // Not in letters of versions that could not replay: 0, "".
  std::uint64_t seed = 0;
  std::string config;
};

// What the records hold, as lines, for those that `worker` knows; "" for any other.
[[nodiscard]] std::vector<std::string> describe_records(
    const std::vector<std::filesystem::path>& files, const std::string& worker);

// `file`: either of the two. Errors: kNotFound, kIo, kDamaged, with the path.
[[nodiscard]] Result<Letter> read_letter(const std::filesystem::path& file);

}  // namespace ringfeed::cli
