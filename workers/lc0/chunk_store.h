// A store of games that were inflated once, so that the next use of one costs a small read.
//
// A cache and nothing else: what comes out is what the file would give (keys name the state of the
// file), so that a feed's content and order are the same with it and without. It lives outside of
// the lanes' lasting memory: a process that dies loses what it had in memory, and nothing else.
//
// Games lie one after the other in segments, in memory or in files of a directory. Files survive
// the process; each game there has a checksum, which is looked at before its first use in a
// process. When the budget is spent, the segment with the least that is still wanted goes, if that
// is less than half of it; if there is none, games are not taken in. Games are wanted as long as
// their number in the pool's window is not below the window's lower end; those of an earlier run
// until somebody asks for them anew are not.
//
// A file of the directory, "NNNNNNNN.games": entries at multiples of 64, each a header (64 bytes:
// magic, key, bytes, checksum) and a game (lc0/packed_game.h). The header is written last. One
// process uses a directory (flock on the file `lock` in it); the next waits for nobody and does
// without.
//
// Any thread. Nothing here throws or ends the process: what cannot be kept is not kept, and
// problem() says why, once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "workers/lc0/packed_game.h"

namespace ringfeed {

// Names one chunk of one state of a file.
struct StoreKey {
  std::array<std::uint64_t, 2> words;
  friend bool operator==(const StoreKey&, const StoreKey&) = default;
};
// What tells a state of a file from every other, and a chunk in it.
struct ChunkOrigin {
  std::string_view path;
  std::uint64_t device;
  std::uint64_t inode;
  std::uint64_t file_bytes;
  std::int64_t mtime_ns;
  std::uint64_t offset;
  std::uint64_t bytes;
};
[[nodiscard]] StoreKey store_key(const ChunkOrigin& origin) noexcept;

class StoreSegment;

class ChunkStore {
 public:
  struct Options {
    std::uint64_t budget_bytes = 0;  // of all segments together
    std::string directory;           // empty: memory
  };
  explicit ChunkStore(Options options);
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // A game to be read; while it lives, its bytes stay.
  class Lease final : public formats::GameBytes {
   public:
    std::span<const std::byte> at(std::size_t offset, std::size_t bytes) noexcept override;

   private:
    friend class ChunkStore;
    std::shared_ptr<const StoreSegment> segment_;
    std::uint64_t offset_ = 0;
    std::uint64_t bytes_ = 0;
    std::vector<std::byte>* scratch_ = nullptr;
  };

  // The game of this key, whose number in the window is `number`. `scratch` is where bytes of a
  // file go; it must outlive the lease.
  [[nodiscard]] std::optional<Lease> find(const StoreKey& key, std::uint64_t number,
                                          std::vector<std::byte>& scratch) noexcept;
  // Keeps a game, if there is room. `window_lower`: games of lower numbers are no longer wanted.
  void put(const StoreKey& key, std::span<const std::byte> game, std::uint64_t number,
           std::uint64_t window_lower) noexcept;
  // What was found damaged is not found again.
  void forget(const StoreKey& key) noexcept;

  struct Figures {
    std::uint64_t bytes = 0;  // of segments
    std::uint64_t games = 0;
    std::uint64_t evicted = 0;  // games that went with their segments
    std::uint64_t refused = 0;  // games for which there was no room
  };
  [[nodiscard]] Figures figures() const noexcept;
  // Something that a person should know, once: a directory that cannot be used, a full disk.
  [[nodiscard]] std::optional<std::string> problem() noexcept;

 private:
  struct Place {
    std::uint32_t segment;
    std::uint32_t bytes;
    std::uint64_t offset;  // of the game in the segment
    std::uint64_t number;
    bool checked;  // its checksum
  };
  struct KeyHash {
    std::size_t operator()(const StoreKey& key) const noexcept { return key.words[0]; }
  };

  void open_directory();
  void read_segment(const std::string& name, std::uint32_t number);
  [[nodiscard]] std::shared_ptr<StoreSegment> new_segment() noexcept;
  [[nodiscard]] bool make_room(std::uint64_t window_lower) noexcept;
  void drop_segment(std::uint32_t segment) noexcept;
  void say(std::string text) noexcept;

  const Options options_;
  const std::uint64_t segment_bytes_;
  mutable std::mutex mutex_;
  int directory_fd_ = -1;
  int lock_fd_ = -1;
  bool usable_ = true;
  std::unordered_map<StoreKey, Place, KeyHash> places_;
  std::unordered_map<std::uint32_t, std::shared_ptr<StoreSegment>> segments_;
  std::shared_ptr<StoreSegment> open_;  // that takes new games
  std::uint32_t next_segment_ = 0;
  std::optional<std::uint64_t> looked_at_lower_;  // make_room() found nothing for this one
  Figures figures_;
  std::string problem_;
  std::string said_;
};

}  // namespace ringfeed
