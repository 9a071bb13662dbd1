#include "workers/runtime/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "proto/worker.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/result.h"

namespace ringfeed {

Segments::Segments(const WorkerSetup& setup, std::vector<shm::Fd> descriptors)
    : descriptors_(std::move(descriptors)) {
  std::memcpy(feed_.feed_id.data(), setup.feed_id().data(),
              std::min<std::size_t>(16, setup.feed_id().size()));
  for (const SegmentSetup& segment : setup.segments()) {
    if (segment.fd_index() >= descriptors_.size()) {
      throw Error(ErrorCode::kIo, fmt::format("segment {}: its descriptor {} did not arrive",
                                              segment.id(), segment.fd_index()));
    }
    specs_[segment.id()] = &segment;
  }
}

int Segments::fd(std::uint32_t id) const { return descriptors_[spec(id).fd_index()].get(); }

const SegmentSetup& Segments::spec(std::uint32_t id) const {
  const auto at = specs_.find(id);
  if (at == specs_.end())
    throw Error(ErrorCode::kIo, fmt::format("segment {} is not part of the setup", id));
  return *at->second;
}

std::uint32_t Segments::of_kind(shm::SegmentKind kind) const {
  for (const auto& [id, segment] : specs_) {
    if (segment->kind() == static_cast<std::uint32_t>(kind)) return id;
  }
  throw Error(ErrorCode::kIo,
              fmt::format("the setup has no segment of kind {}", static_cast<std::uint32_t>(kind)));
}

std::byte* Segments::map(std::uint32_t id, bool writable) {
  const auto found = mapped_.find(id);
  if (found != mapped_.end()) return found->second.data();
  if (RF_FAILPOINT_ERROR("runtime.worker.map")) {
    throw Error(ErrorCode::kNoMemory, fmt::format("segment {}: a test wants no mapping", id));
  }
  shm::Mapping mapping = shm::map_segment(fd(id), writable).value_or_throw();
  const SegmentSetup& segment = spec(id);
  if (segment.kind() == static_cast<std::uint32_t>(shm::SegmentKind::kGroup)) {
    if (mapping.bytes() < shm::kGroupSegmentBytes) {
      throw Error(ErrorCode::kDamaged, fmt::format("segment {}: has {} bytes but needs {}", id,
                                                   mapping.bytes(), shm::kGroupSegmentBytes));
    }
  } else {
    shm::check_header(*reinterpret_cast<const shm::SegmentHeader*>(mapping.data()),
                      static_cast<shm::SegmentKind>(segment.kind()), &feed_, mapping.bytes(),
                      fmt::format("{}", id))
        .or_throw();
  }
  return mapped_.emplace(id, std::move(mapping)).first->second.data();
}

std::vector<std::pair<std::byte*, int>> Segments::all() const {
  std::vector<std::pair<std::byte*, int>> found;
  for (const auto& [id, mapping] : mapped_) found.emplace_back(mapping.data(), fd(id));
  return found;
}

shm::RingGeometry ring_geometry(const std::byte* ring) {
  const auto& header = *reinterpret_cast<const shm::SegmentHeader*>(ring);
  return {.capacity_bytes = header.total_bytes - shm::kRingDataOffset,
          .records_max = header.geometry[0],
          .overflow = static_cast<shm::Overflow>(header.geometry[1])};
}

}  // namespace ringfeed
