// Segments: shared memory with a checked header, reserved before anyone touches it.
//
// By default a segment is a memfd: it leaves no name behind, names cannot collide, and a
// container's small /dev/shm does not limit it. With a directory it is a file there (tmpfs, huge
// pages, disk) and outlives all processes. fallocate reserves the space, so that too little memory
// is an error message now and not a SIGBUS later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/result.h"

namespace ringfeed::shm {

using FeedId = std::array<std::uint8_t, 16>;

// A file descriptor; its owner closes it.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// Where segments live: memfds if `directory` is empty, else files there named <segment name><mark>.
// With its own mark a feed replaces no existing file.
struct Storage {
  std::string directory;
  std::string mark = {};
};

struct SegmentSpec {
  std::string name;  // shown in /proc/PID/fd and used in messages: "lc0/ring unpack.0>sample.0"
  SegmentKind kind = SegmentKind::kControl;
  std::uint64_t bytes = 0;  // including the header; rounded up to whole pages
  bool growable = false;    // arenas: not sealed against growing
  std::array<std::uint32_t, 16> geometry{};
};

struct FeedIdentity {
  FeedId feed_id{};
  std::uint64_t config_hash = 0;
};

// Creates, reserves and seals the segment (also against further seals) and writes its header
// (state: ready). Errors: kNoMemory; the text names the segment, what it needs and what is free.
// Nothing is left behind.
Result<Fd> create_segment(const SegmentSpec& spec, const Storage& storage,
                          const FeedIdentity& feed);

// The file name of a segment in its directory and in /proc/PID/fd (`/memfd:<this>`).
std::string segment_file_name(const std::string& name);

// The bytes that a new segment can still get: from the machine and its cgroup for memfds, else from
// the file system.
std::uint64_t available_bytes(const Storage& storage);

// One mapping of a part of a segment; its owner unmaps it.
class Mapping {
 public:
  Mapping() noexcept;
  Mapping(Mapping&&) noexcept;
  Mapping& operator=(Mapping&&) noexcept;
  ~Mapping();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  friend Result<Mapping> map_segment(int fd, bool writable, std::uint64_t offset,
                                     std::uint64_t bytes);
  struct Region;
  std::unique_ptr<Region> region_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Maps `bytes` from `offset` (a multiple of the page); bytes = 0: to the end. A mapping may be
// longer than the segment is now, for arenas that grow; only reserved bytes may be touched.
Result<Mapping> map_segment(int fd, bool writable, std::uint64_t offset = 0,
                            std::uint64_t bytes = 0);

// Is this a ready segment of this kind, ABI, layout and feed? If `feed` is null, any feed is
// accepted. Errors: kIncompatible or kDamaged, in one sentence.
Status check_header(const SegmentHeader& header, SegmentKind kind, const FeedIdentity* feed,
                    std::uint64_t file_bytes, const std::string& name);

// Reserves the segment up to `bytes` from its start. Errors: kNoMemory; the segment is then
// unchanged.
Status grow_segment(int fd, std::uint64_t bytes, const std::string& name);

FeedId random_feed_id();

}  // namespace ringfeed::shm
