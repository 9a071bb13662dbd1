#include "workers/lc0/weighed_games.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "workers/lc0/packed_frame.h"

namespace ringfeed {

std::span<const std::byte> WeighedGames::Game::at(std::size_t index) const noexcept {
  const std::uint32_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::span(frames_).subspan(begin, ends_[index] - begin);
}

std::size_t WeighedGames::Game::frame(std::size_t index, std::span<std::byte> out) const noexcept {
  const std::span<const std::byte> from = at(index);
  if (out.size() < from.size()) return 0;
  std::memcpy(out.data(), from.data(), from.size());
  return from.size();
}

std::span<const std::byte> WeighedGames::Game::tail(std::size_t index) const noexcept {
  const std::optional<formats::PackedFrameView> view = formats::view_packed(at(index));
  if (!view) return {};
  return {view->tail, formats::packed::tail_bytes(view->origin)};
}

void WeighedGames::put(const StoreKey& key, std::span<const std::byte> frames,
                       std::span<const std::uint32_t> ends) noexcept {
  if (frames.size() > kBytes) return;
  const std::lock_guard lock(mutex_);
  try {
    entries_.push_back({key, frames.size(), std::make_shared<const Game>(frames, ends)});
  } catch (const std::bad_alloc&) {
    return;
  }
  bytes_ += frames.size();
  while (entries_.size() > games_ || bytes_ > kBytes) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
}

std::shared_ptr<const WeighedGames::Game> WeighedGames::find(const StoreKey& key) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  return found == entries_.end() ? nullptr : found->game;
}

}  // namespace ringfeed
