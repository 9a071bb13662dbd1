// Snapshots of one feed in one directory, each named after the newest batch when it was begun.
//
//   DIR/lc0-000000012000/      a snapshot (store.h)
//   DIR/.lc0-….partial/        one that is being written, or that a death has left
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringfeed::snapshot {

// A snapshot that can be read.
struct Entry {
  struct Group {
    std::string name;
    std::string output;  // alias
    std::uint64_t next_batch = 0;
  };
  std::string directory;
  std::uint64_t newest_batch = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;  // the newest of the feed in its directory has the highest
  std::string taken_at;
  std::string feed_id;  // hexadecimal
  std::vector<Group> groups;
};

// The path of a snapshot that is begun when this is the newest batch.
[[nodiscard]] std::string series_path(const std::string& directory, const std::string& feed,
                                      std::uint64_t newest_batch);

// What the manifest in the directory says; empty path: there is no snapshot that can be read.
[[nodiscard]] Entry read_entry(const std::string& directory);

// The number of the feed's next snapshot in the directory.
[[nodiscard]] std::uint64_t next_number(const std::string& directory, const std::string& feed);

// The snapshots of that feed in the directory, the oldest first, whatever their clock said. What
// else is there is left out.
[[nodiscard]] std::vector<Entry> read_series(const std::string& directory, const std::string& feed);

// Removes all but the `keep` newest, and what deaths have left of others. Never the newest one that
// can be read. Returns how many were removed; what cannot be removed stays.
std::size_t prune_series(const std::string& directory, const std::string& feed, std::size_t keep);

}  // namespace ringfeed::snapshot
