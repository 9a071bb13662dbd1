// The games that were weighed last, for the lanes that read: a draw is decided soon after its chunk
// has been weighed, and a chunk that is accepted then need not be inflated again.
//
// This is only a cache: the output is the same as from the file. If the stage has a store
// (lc0/chunk_store.h), the store is used instead. Each process has its own, of bounded size; a game
// that does not fit, or for which there is no memory, is not kept. Any thread may call it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "workers/lc0/chunk_store.h"

namespace ringfeed {

class WeighedGames {
 public:
  static constexpr std::uint64_t kBytes = 32ULL << 20;

  // Packed frames, one after the other, to be read as a PackedGame. Several threads may.
  class Game {
   public:
    Game(std::span<const std::byte> frames, std::span<const std::uint32_t> ends)
        : frames_(frames.begin(), frames.end()), ends_(ends.begin(), ends.end()) {}
    [[nodiscard]] std::size_t frame_count() const noexcept { return ends_.size(); }
    // Copies frame `index`; its bytes, or 0: `out` is too short.
    [[nodiscard]] std::size_t frame(std::size_t index, std::span<std::byte> out) const noexcept;
    // Record bytes from 8272 on of frame `index`.
    [[nodiscard]] std::span<const std::byte> tail(std::size_t index) const noexcept;

   private:
    [[nodiscard]] std::span<const std::byte> at(std::size_t index) const noexcept;

    const std::vector<std::byte> frames_;
    const std::vector<std::uint32_t> ends_;  // of each frame
  };

  // Has room for every game that is drawn ahead or on its way to one of so many reading lanes,
  // times two, because some are refused.
  explicit WeighedGames(std::uint32_t lanes) : games_(2 * (kAhead + kUnderWay * lanes)) {}
  static constexpr std::size_t kAhead = 32;     // that the window draws ahead
  static constexpr std::size_t kUnderWay = 64;  // tasks in the queue of a reading lane

  // Keeps a game, given its packed frames and where each ends; the oldest games are dropped to make
  // room. A game larger than kBytes is not kept.
  void put(const StoreKey& key, std::span<const std::byte> frames,
           std::span<const std::uint32_t> ends) noexcept;
  // The game of this key; nullptr: it has left, or was never here.
  [[nodiscard]] std::shared_ptr<const Game> find(const StoreKey& key) noexcept;

 private:
  struct Entry {
    StoreKey key;
    std::uint64_t bytes;
    std::shared_ptr<const Game> game;
  };

  const std::size_t games_;
  std::mutex mutex_;
  std::deque<Entry> entries_;  // the oldest first
  std::uint64_t bytes_ = 0;
};

}  // namespace ringfeed
