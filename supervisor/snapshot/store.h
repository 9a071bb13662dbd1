// Writes a snapshot: a directory with a manifest (proto/snapshot.proto) and a sparse file per
// segment, complete or absent.
//
//   DIR/manifest.textproto     first line: the checksum of the rest
//   DIR/000.segment …          bytes as in memory; runs of zeros are holes
//
// Everything is written to .NAME.partial beside it, synced, and renamed to DIR at the end; a DIR
// that is a snapshot already is replaced in one exchange, and only if nothing is in it but what its
// manifest lists. What a death leaves half done is taken away by the next snapshot to the same
// place. No file is ever removed that has not the name of a snapshot's file.
//
// Segments are copied as often as one likes while others write to them: each time only pages that
// have changed since are written, found by their hash, among those that the caller wants looked at
// (changes.h). The last time, everybody must stand still; what is written then may be kept in
// memory until they go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/shm/segment.h"

namespace ringfeed {
class SnapshotManifest;
}

namespace ringfeed::snapshot {

inline constexpr const char* kManifestFile = "manifest.textproto";

// Pages [first, last) of a segment.
struct PageRange {
  std::size_t first = 0;
  std::size_t last = 0;
};
// What a copy looks at, by segment; nullopt: all of it. Ranges may reach beyond a segment's end.
using Look = std::vector<std::optional<std::vector<PageRange>>>;

// Takes away the snapshot that is there, and nothing else. A death in between leaves what the next
// call of remove_partial() takes away. Errors: kInvalidArgument (something else is there, or beside
// it), kBusy (it is just being replaced), kIo.
[[nodiscard]] Status remove_snapshot(const std::string& directory);
// The same for what a death has left of a snapshot to `directory`, unless it is being written.
void remove_partial(const std::string& directory) noexcept;

class Store {
 public:
  // Errors are thrown, from here and all below: kBusy (another snapshot is on its way to this
  // place), kInvalidArgument (something else is there, or beside the snapshot that is there), kIo,
  // kNoMemory (no room; names the place and what is free).
  explicit Store(std::string directory);
  // Removes what was not published.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Bytes that a copy() is to look at, and those that it has; others may read them meanwhile.
  struct Looks {
    std::atomic<std::uint64_t> done{0};
    std::atomic<std::uint64_t> total{0};
  };
  // Counts there, which outlives this.
  void count_in(Looks& looks) { looks_ = &looks; }

  // Segments get their numbers in this order.
  void add(std::string name, int fd);
  // Brings the files up to what the segments hold now, on `threads` threads; returns the bytes
  // that had changed. Throws kClosed once `cancelled` is set.
  std::uint64_t copy(unsigned threads, const std::atomic<bool>& cancelled, const Look& look = {});
  // Room in memory for what changes until the last copy; what does not fit is written at once.
  void make_room(std::uint64_t bytes);
  // The same as copy(), but into the room that there is; write_kept() writes it.
  std::uint64_t copy_to_room(unsigned threads, const std::atomic<bool>& cancelled,
                             const Look& look = {});
  void write_kept();
  // The contents of segment `number` are these: for what changes even while all lanes stand still.
  void put(std::size_t number, std::vector<std::byte> bytes);

  [[nodiscard]] std::uint64_t bytes() const;
  // Fills in the manifest's number, and sizes, files and digests of its segments, makes all of it
  // durable, and gives it its name.
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
  // Copies of pages on their way to the files.
  struct Block {
    struct Run {
      const Segment* segment;
      std::size_t page;
      std::size_t pages;
    };
    std::unique_ptr<std::byte[]> bytes;
    std::size_t pages = 0;
    std::vector<Run> runs;
  };
  static Block make_block();
  [[nodiscard]] std::string path(const std::string& file) const { return partial_ + "/" + file; }
  void remap(Segment& segment);
  std::uint64_t copy_all(unsigned threads, const std::atomic<bool>& cancelled, const Look& look,
                         bool keep);
  std::uint64_t copy_range(Segment& segment, PageRange range, const std::byte* from, Block& block,
                           bool keep);
  // Writes the block, or keeps it if there is another one; either way it is empty then.
  void put_away(Block& block, bool keep);
  void write_block(Block& block);
  void write_at(const Segment& segment, const std::byte* bytes, std::size_t count,
                std::uint64_t offset);
  void sync_directory(const std::string& directory) const;
  [[noreturn]] void fail(const std::string& what, int error) const;

  Looks* looks_ = nullptr;
  std::string directory_;
  std::string partial_;
  shm::Fd lock_;  // of the partial directory
  std::vector<Segment> segments_;
  std::mutex room_mutex_;
  std::vector<Block> room_;  // empty ones
  std::vector<Block> kept_;
  bool published_ = false;
};

}  // namespace ringfeed::snapshot
