// The memory of a worker: maps each segment of its setup once, and hands out addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/ring.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed {

class SegmentSetup;
class WorkerSetup;

class Segments {
 public:
  // `setup` outlives this. Throws Error (kIo) if a descriptor is missing.
  Segments(const WorkerSetup& setup, std::vector<shm::Fd> descriptors);

  // All throw Error (kIo) for what the setup does not name.
  [[nodiscard]] int fd(std::uint32_t id) const;
  [[nodiscard]] const SegmentSetup& spec(std::uint32_t id) const;
  // The only one of its kind.
  [[nodiscard]] std::uint32_t of_kind(shm::SegmentKind kind) const;

  // The whole segment, checked. Not so that of a consumer group: its members may write it all, and
  // what has to be known of it is its size, which is sealed. Throws Error.
  std::byte* map(std::uint32_t id, bool writable);
  [[nodiscard]] std::uint64_t bytes(std::uint32_t id) const { return mapped_.at(id).bytes(); }
  // Everything that is mapped, with its descriptor.
  [[nodiscard]] std::vector<std::pair<std::byte*, int>> all() const;

 private:
  std::vector<shm::Fd> descriptors_;
  shm::FeedIdentity feed_;
  std::map<std::uint32_t, const SegmentSetup*> specs_;
  std::map<std::uint32_t, shm::Mapping> mapped_;
};

// Of a ring that is mapped.
shm::RingGeometry ring_geometry(const std::byte* ring);

}  // namespace ringfeed
