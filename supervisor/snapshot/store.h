// Writes a snapshot: a directory with a manifest (proto/snapshot.proto) and a sparse file per
// segment, complete or absent.
//
//   DIR/manifest.textproto     first line: the checksum of the rest
//   DIR/000.segment …          bytes as in memory; runs of zeros are holes
//
// Everything is written to .NAME.partial beside it, synced, and renamed to DIR at the end; a DIR
// that is a snapshot already is replaced in one exchange. What a death leaves half done is taken
// away by the next snapshot to the same place.
//
// Segments are copied as often as one likes while others write to them: each time only pages that
// have changed since are written, found by their hash. The last time, everybody must stand still.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "ringfeed/shm/segment.h"

namespace ringfeed {
class SnapshotManifest;
}

namespace ringfeed::snapshot {

inline constexpr const char* kManifestFile = "manifest.textproto";

class Store {
 public:
  // Errors are thrown, from here and all below: kBusy (another snapshot is on its way to this
  // place), kInvalidArgument (something else is there), kIo, kNoMemory (no room; names the place
  // and what is free).
  explicit Store(std::string directory);
  // Removes what was not published.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Segments get their numbers in this order.
  void add(std::string name, int fd);
  // Brings the files up to what the segments hold now, on `threads` threads; returns the bytes
  // written. Throws kClosed once `cancelled` is set.
  std::uint64_t copy(unsigned threads, const std::atomic<bool>& cancelled);
  // The contents of segment `number` are these: for what changes even while all lanes stand still.
  void put(std::size_t number, std::vector<std::byte> bytes);

  [[nodiscard]] std::uint64_t bytes() const;
  // Fills in sizes, files and digests of the manifest's segments, makes all of it durable, and
  // gives it its name.
  void publish(SnapshotManifest& manifest);

 private:
  struct Segment {
    std::string name;
    int source = -1;  // whoever added it keeps it open
    shm::Fd file;
    shm::Mapping mapping;
    std::vector<std::uint64_t> hashes;  // of the pages in the file
    bool given = false;                 // by put()
  };
  [[nodiscard]] std::string path(const std::string& file) const { return partial_ + "/" + file; }
  void remap(Segment& segment);
  std::uint64_t copy_range(Segment& segment, std::size_t first, std::size_t last,
                           const std::byte* from);
  void write_at(const Segment& segment, const std::byte* bytes, std::size_t count,
                std::uint64_t offset);
  void sync_directory(const std::string& directory) const;
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string directory_;
  std::string partial_;
  shm::Fd lock_;  // of the partial directory
  std::vector<Segment> segments_;
  bool published_ = false;
};

}  // namespace ringfeed::snapshot
