#include "ringfeed/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <cstring>
#include <fstream>
#include <limits>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/large_pages.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/room.h"

namespace ringfeed::shm {
namespace {

namespace bip = boost::interprocess;

// What boost::interprocess::mapped_region asks of a thing that it can map.
class Mappable {
 public:
  explicit Mappable(int fd) : fd_(fd) {}
  [[nodiscard]] bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd_);
  }

 private:
  int fd_;
};

std::string in_gib(std::uint64_t bytes) {
  if (bytes >= 1ULL << 30)
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1ULL << 30));
  if (bytes >= 1ULL << 20)
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1ULL << 20));
  return fmt::format("{} bytes", bytes);
}

// What is free is looked for in ten files. A feed has dozens of segments that are smaller than this
// when they are made, and their sum has been compared with what is free before.
constexpr std::uint64_t kAskedBytesMin = 1 << 20;

std::uint64_t read_boot_id_lo() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string text;
  in >> text;
  std::uint64_t hash = 0;
  for (const char c : text) {
    if (c == '-') continue;
    hash = hash << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
  }
  return hash;
}

std::uint64_t boot_id_lo() {
  static const std::uint64_t id = read_boot_id_lo();
  return id;
}

// Reserves [from, to) of the file; the file is left as it was if that fails.
// Of the file system that holds the file.
std::uint64_t free_bytes_beside(int fd) {
  struct statvfs info {};
  return ::fstatvfs(fd, &info) == 0 ? std::uint64_t{info.f_bavail} * info.f_frsize : 0;
}

Status reserve(int fd, std::uint64_t from, std::uint64_t to, const std::string& name,
               const Storage& storage) {
  // The kernel would hand out memfd pages until somebody is killed for them, so what is free is
  // asked first.
  const bool memfd = ::fcntl(fd, F_GET_SEALS) >= 0;
  if (RF_FAILPOINT_ERROR("shm.segment.reserve")) {
    return Error{
        ErrorCode::kNoMemory,
        fmt::format("segment {}: needs {}, a test wants none to be free", name, in_gib(to - from))};
  }
  const bool small_new = from == 0 && to < kAskedBytesMin;
  if (memfd && !small_new) {
    const Room room = room_for(storage);
    if (room.bytes < to - from) {
      return Error{ErrorCode::kNoMemory,
                   fmt::format("segment {}: needs {}, {} has {} free: lower the sizes in the "
                               "configuration or make room",
                               name, in_gib(to - from), room.place, in_gib(room.bytes))};
    }
  }
  for (;;) {
    if (::fallocate(fd, 0, static_cast<off_t>(from), static_cast<off_t>(to - from)) == 0) return {};
    if (errno == EINTR) continue;
    const int error = errno;
    if (error == ENOSPC || error == ENOMEM || error == EFBIG) {
      return Error{
          ErrorCode::kNoMemory,
          fmt::format("segment {}: needs {}, {} are free{}: lower the sizes in the configuration "
                      "or make room",
                      name, in_gib(to - from),
                      in_gib(memfd ? available_bytes(storage) : free_bytes_beside(fd)),
                      memfd                       ? ""
                      : storage.directory.empty() ? " in its directory"
                                                  : " in " + storage.directory)};
    }
    return Error{ErrorCode::kIo, fmt::format("segment {}: cannot reserve {}: {}", name,
                                             in_gib(to - from), std::strerror(error))};
  }
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}
int Fd::release() noexcept { return std::exchange(fd_, -1); }
void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::uint64_t available_bytes(const Storage& storage) { return room_for(storage).bytes; }

std::string segment_file_name(const std::string& name) {
  std::string out;
  for (const char c : name) out += (c == '/' || c == ' ' || c == '>') ? '_' : c;
  return out;
}

Result<Fd> create_segment(const SegmentSpec& spec, const Storage& storage,
                          const FeedIdentity& feed) {
  const std::uint64_t bytes = align_up(std::max<std::uint64_t>(spec.bytes, kPageBytes), kPageBytes);
  std::string path;
  Fd fd;
  if (storage.directory.empty()) {
    fd = Fd(::memfd_create(segment_file_name(spec.name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  } else {
    path = storage.directory + "/" + segment_file_name(spec.name) + storage.mark;
    // A new file and not the old one cut to nothing: whoever still maps the old one would die of
    // SIGBUS.
    ::unlink(path.c_str());
    fd = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  }
  if (!fd) {
    return Error{ErrorCode::kIo,
                 fmt::format("segment {}: cannot be created{}: {}", spec.name,
                             path.empty() ? "" : " as " + path, std::strerror(errno))};
  }
  // A memfd is born with mode 0777: whoever is sent a descriptor for reading could open it anew for
  // writing, through /proc, also as another user.
  if (path.empty() && ::fchmod(fd.get(), 0600) != 0) {
    return Error{ErrorCode::kIo, fmt::format("segment {}: its mode cannot be set: {}", spec.name,
                                             std::strerror(errno))};
  }
  // Opened anew: the kernel counts who has opened a file for writing, but not the maker of a memfd,
  // and as long as it counts nobody, whoever may read it can take a lease on it (F_SETLEASE). The
  // next supervisor would wait 45 s for its end.
  if (path.empty()) {
    fd = Fd(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDWR | O_CLOEXEC));
    if (!fd) {
      return Error{ErrorCode::kIo, fmt::format("segment {}: cannot be opened through /proc: {}",
                                               spec.name, std::strerror(errno))};
    }
  }
  if (Status status = reserve(fd.get(), 0, bytes, spec.name, storage); !status) {
    if (!path.empty()) ::unlink(path.c_str());
    return status.error();
  }
  // F_SEAL_SEAL: whoever has a descriptor for writing could add F_SEAL_FUTURE_WRITE, and no process
  // that comes later could map the segment.
  const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | (spec.growable ? 0 : F_SEAL_GROW);
  if (storage.directory.empty() && ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    return Error{ErrorCode::kIo,
                 fmt::format("segment {}: cannot be sealed: {}", spec.name, std::strerror(errno))};
  }
  Result<Mapping> mapping = map_segment(fd.get(), true, 0, kPageBytes);
  if (!mapping) {
    if (!path.empty()) ::unlink(path.c_str());
    return mapping.error();
  }
  auto& header = *reinterpret_cast<SegmentHeader*>(mapping->data());
  header.magic = kMagic;
  header.abi_major = kAbiMajor;
  header.abi_minor = kAbiMinor;
  header.layout_hash = kLayoutHash;
  header.header_bytes = sizeof(SegmentHeader);
  header.kind = static_cast<std::uint32_t>(spec.kind);
  header.total_bytes = bytes;
  std::memcpy(header.feed_id, feed.feed_id.data(), feed.feed_id.size());
  header.config_hash = feed.config_hash;
  header.endian = kEndian;
  header.page_bytes = kPageBytes;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  header.created_ns = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                      static_cast<std::uint64_t>(now.tv_nsec);
  header.boot_id_lo = boot_id_lo();
  header.abi_min_reader = kAbiMinReader;
  std::copy(spec.geometry.begin(), spec.geometry.end(), header.geometry);
  RF_FAILPOINT("shm.segment.header");
  header.crc32c =
      crc32c_small(reinterpret_cast<const std::uint8_t*>(&header), offsetof(SegmentHeader, crc32c));
  // release: the builder's last store; whoever reads `ready` sees the whole header.
  header.state.store(static_cast<std::uint32_t>(SegmentState::kReady), std::memory_order_release);
  return fd;
}

struct Mapping::Region {
  bip::mapped_region region;
};

Mapping::Mapping() noexcept = default;
Mapping::~Mapping() = default;
Mapping::Mapping(Mapping&& other) noexcept
    : region_(std::move(other.region_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}
Mapping& Mapping::operator=(Mapping&& other) noexcept {
  region_ = std::move(other.region_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Result<Mapping> map_segment(int fd, bool writable, std::uint64_t offset, std::uint64_t bytes) {
  try {
    if (bytes == 0) {
      struct stat info {};
      if (::fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) <= offset) {
        return Error{ErrorCode::kDamaged,
                     fmt::format("a segment of {} bytes cannot be mapped from offset {}",
                                 info.st_size, offset)};
      }
      bytes = static_cast<std::uint64_t>(info.st_size) - offset;
    }
    Mapping mapping;
    const auto map_at = [&](const void* place) {
      mapping.region_ = std::make_unique<Mapping::Region>(Mapping::Region{bip::mapped_region(
          Mappable(fd), writable ? bip::read_write : bip::read_only,
          static_cast<bip::offset_t>(offset), static_cast<std::size_t>(bytes), place)});
    };
    void* const place = offset == 0 ? place_for_large_pages(bytes) : nullptr;
    try {
      map_at(place);
    } catch (const bip::interprocess_exception&) {
      if (place == nullptr) throw;
      map_at(nullptr);
    }
    mapping.data_ = static_cast<std::byte*>(mapping.region_->region.get_address());
    mapping.bytes_ = bytes;
    return mapping;
  } catch (const bip::interprocess_exception& error) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("{} of a segment cannot be mapped {}: {}", in_gib(bytes),
                             writable ? "for writing" : "for reading", error.what())};
  }
}

Status check_header(const SegmentHeader& header, SegmentKind kind, const FeedIdentity* feed,
                    std::uint64_t file_bytes, const std::string& name) {
  if (header.magic != kMagic) {
    return Error{
        ErrorCode::kDamaged,
        fmt::format("segment {}: not a ringfeed segment (magic {:#018x})", name, header.magic)};
  }
  if (header.endian != kEndian) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("segment {}: written with another byte order", name)};
  }
  if (header.abi_major != kAbiMajor || header.abi_min_reader > kAbiMinor) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("segment {}: its ABI is {}.{}, but this program reads {}.{}: use the "
                             "same ringfeed version "
                             "for supervisor, workers and trainers",
                             name, header.abi_major, header.abi_minor, kAbiMajor, kAbiMinor)};
  }
  if (header.layout_hash != kLayoutHash || header.header_bytes != sizeof(SegmentHeader)) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("segment {}: its memory layout ({:#018x}) differs from that of this "
                             "program ({:#018x}): use the same "
                             "ringfeed build for supervisor, workers and trainers",
                             name, header.layout_hash, kLayoutHash)};
  }
  if (header.crc32c != crc32c_small(reinterpret_cast<const std::uint8_t*>(&header),
                                    offsetof(SegmentHeader, crc32c))) {
    return Error{ErrorCode::kDamaged,
                 fmt::format("segment {}: its header fails its checksum", name)};
  }
  if (header.features_required != 0) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("segment {}: needs features {:#x} that this program lacks", name,
                             header.features_required)};
  }
  if (header.kind != static_cast<std::uint32_t>(kind)) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("segment {}: has kind {}, expected {}", name, header.kind,
                             static_cast<std::uint32_t>(kind))};
  }
  if (file_bytes < header.total_bytes) {
    return Error{ErrorCode::kDamaged,
                 fmt::format("segment {}: has {} bytes, but its header says {}: it was truncated",
                             name, file_bytes, header.total_bytes)};
  }
  if (feed != nullptr &&
      std::memcmp(header.feed_id, feed->feed_id.data(), feed->feed_id.size()) != 0) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("segment {}: belongs to another feed", name)};
  }
  // acquire, pairs with the builder's release of `ready`.
  const std::uint32_t state = header.state.load(std::memory_order_acquire);
  if (state != static_cast<std::uint32_t>(SegmentState::kReady)) {
    return Error{ErrorCode::kDamaged,
                 fmt::format("segment {}: is {}", name,
                             state == 0 ? "not finished by its builder" : "condemned")};
  }
  return {};
}

Status grow_segment(int fd, std::uint64_t bytes, const std::string& name) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return Error{ErrorCode::kIo, fmt::format("segment {}: {}", name, std::strerror(errno))};
  }
  const auto now = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t wanted = align_up(bytes, kPageBytes);
  if (wanted <= now) return {};
  return reserve(fd, now, wanted, name, {});
}

FeedId random_feed_id() {
  FeedId id{};
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) {
    throw Error(ErrorCode::kIo, "the system provides no random numbers for the identity of a feed");
  }
  return id;
}

}  // namespace ringfeed::shm
