// The four real games of tests/data/lc0, found by hand in the tar: nothing here goes through the
// code under test but inflating, which has tests of its own.
#pragma once

#include <cstddef>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "workers/io/gzip.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed::testing {

using Bytes = std::vector<std::byte>;

inline Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string sample_tar_path() {
  return RINGFEED_SOURCE_DIR "/tests/data/lc0/lc0-data-sample.tar";
}

// A game as it lies in the tar.
struct SampleGame {
  const char* name;
  std::size_t data_offset;
  std::size_t data_bytes;
  std::size_t frame_count;
};
inline constexpr SampleGame kSampleGames[] = {
    {"lc0-data-sample/training.1387366601.gz", 5120, 5644, 26},
    {"lc0-data-sample/training.1387366590.gz", 13824, 18521, 89},
    {"lc0-data-sample/training.1387368810.gz", 35328, 16774, 76},
    {"lc0-data-sample/training.1387357298.gz", 54784, 26248, 133},
};

// The gzip member of a game.
inline Bytes sample_gzip(const SampleGame& game) {
  const Bytes tar = read_file(sample_tar_path());
  if (tar.size() < game.data_offset + game.data_bytes) return {};
  const auto begin = tar.begin() + static_cast<std::ptrdiff_t>(game.data_offset);
  return {begin, begin + static_cast<std::ptrdiff_t>(game.data_bytes)};
}

// The records of a game.
inline Bytes sample_records(const SampleGame& game) {
  formats::GzipInflater inflater;
  std::span<const std::byte> records;
  const Bytes packed = sample_gzip(game);
  if (!inflater.inflate(packed, &records).ok()) return {};
  return {records.begin(), records.end()};
}

// The records of all four games, in tar order: 324.
inline Bytes all_sample_records() {
  Bytes all;
  for (const SampleGame& game : kSampleGames) {
    const Bytes records = sample_records(game);
    all.insert(all.end(), records.begin(), records.end());
  }
  return all;
}

}  // namespace ringfeed::testing
