#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client.h"
#include "ringfeed/shm/layout.h"

namespace ringfeed::client {
namespace {

// nullptr as feed: a segment is only mapped while attaching, and rf_attach has no handle yet.
rf_status check_header(const shm::SegmentHeader& header, shm::SegmentKind kind, const char* name,
                       const uint8_t* feed_id, uint64_t file_bytes) {
  if (header.magic != shm::kMagic) {
    return fail(nullptr, RF_DAMAGED, "segment %s: not a ringfeed segment (magic %#018llx)", name,
                static_cast<unsigned long long>(header.magic));
  }
  if (header.endian != shm::kEndian) {
    return fail(nullptr, RF_INCOMPATIBLE, "segment %s: written with another byte order", name);
  }
  if (header.abi_major != shm::kAbiMajor || header.abi_min_reader > shm::kAbiMinor) {
    return fail(nullptr, RF_INCOMPATIBLE,
                "segment %s: its ABI is %u.%u, but this library reads %u.%u: use the same ringfeed "
                "version for supervisor and trainers",
                name, header.abi_major, header.abi_minor, shm::kAbiMajor, shm::kAbiMinor);
  }
  if (header.layout_hash != shm::kLayoutHash || header.header_bytes != sizeof(shm::SegmentHeader)) {
    return fail(nullptr, RF_INCOMPATIBLE,
                "segment %s: its memory layout (%#018llx) differs from that of this library "
                "(%#018llx): use "
                "the same ringfeed build for supervisor and trainers",
                name, static_cast<unsigned long long>(header.layout_hash),
                static_cast<unsigned long long>(shm::kLayoutHash));
  }
  if (header.crc32c != shm::crc32c_small(reinterpret_cast<const uint8_t*>(&header),
                                         offsetof(shm::SegmentHeader, crc32c))) {
    return fail(nullptr, RF_DAMAGED, "segment %s: its header fails its checksum", name);
  }
  if (header.features_required != 0) {
    return fail(nullptr, RF_INCOMPATIBLE,
                "segment %s: needs features %#llx that this library lacks: use the same ringfeed "
                "version for supervisor and trainers",
                name, static_cast<unsigned long long>(header.features_required));
  }
  if (header.kind != static_cast<uint32_t>(kind)) {
    return fail(nullptr, RF_INCOMPATIBLE, "segment %s: has kind %u, expected %u", name, header.kind,
                static_cast<unsigned>(kind));
  }
  if (file_bytes < header.total_bytes) {
    return fail(nullptr, RF_DAMAGED,
                "segment %s: has %llu bytes, but its header says %llu: it was truncated", name,
                static_cast<unsigned long long>(file_bytes),
                static_cast<unsigned long long>(header.total_bytes));
  }
  if (memcmp(header.feed_id, feed_id, sizeof header.feed_id) != 0) {
    return fail(nullptr, RF_INCOMPATIBLE, "segment %s: belongs to another feed", name);
  }
  // acquire, pairs with the builder's release of `ready`: the header was written before it.
  const uint32_t state = header.state.load(std::memory_order_acquire);
  if (state != static_cast<uint32_t>(shm::SegmentState::kReady)) {
    return fail(nullptr, RF_DAMAGED, "segment %s: is %s", name,
                state == 0 ? "not finished by its builder" : "condemned");
  }
  return RF_OK;
}

}  // namespace

rf_status map_segment(int fd, shm::SegmentKind kind, const char* name, const uint8_t* feed_id,
                      Access access, Map* map) {
  *map = {nullptr, 0};
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return fail(nullptr, RF_IO, "segment %s: %s", name, strerror(errno));
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes < shm::kPageBytes) {
    return fail(nullptr, RF_DAMAGED, "segment %s: has %llu bytes, less than its header needs", name,
                static_cast<unsigned long long>(bytes));
  }
  // Unreserved: of a private mapping only the pages that are written take memory, and only until
  // their batch is released.
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = access == Access::kPrivate ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  void* data = mmap(nullptr, bytes, protection, flags, fd, 0);
  if (data == MAP_FAILED) {
    return fail(nullptr, errno == EACCES ? RF_PERMISSION : RF_NO_MEMORY,
                "segment %s: its %llu bytes cannot be mapped %s: %s", name,
                static_cast<unsigned long long>(bytes),
                access == Access::kRead ? "for reading" : "for writing", strerror(errno));
  }
  *map = {static_cast<uint8_t*>(data), bytes};
  // A child could release or overwrite in the parent's name; and a forked data-loading helper shall
  // not keep the feed's memory alive.
  rf_status status = RF_OK;
  if (madvise(data, bytes, MADV_DONTFORK) != 0) {
    status =
        fail(nullptr, RF_IO, "segment %s: cannot be kept from children: %s", name, strerror(errno));
  } else if (kind == shm::SegmentKind::kGroup) {
    // Members may write all of it, its header too: nothing is believed there. Its size is sealed.
    if (bytes < shm::kGroupSegmentBytes) {
      status = fail(nullptr, RF_DAMAGED, "segment %s: has %llu bytes but needs %llu", name,
                    static_cast<unsigned long long>(bytes),
                    static_cast<unsigned long long>(shm::kGroupSegmentBytes));
    }
  } else {
    status = check_header(*map->header(), kind, name, feed_id, bytes);
  }
  if (status != RF_OK) unmap(map);
  return status;
}

bool drop_private(uint8_t* data, uint64_t bytes) {
  if (madvise(data, bytes, MADV_DONTNEED) == 0) return true;
  // A program that locks all its memory has locked (and thereby copied) these pages too, and locked
  // pages are not dropped. By number, because sanitizers make the function munlock do nothing.
  return errno == EINVAL && syscall(SYS_munlock, data, bytes) == 0 &&
         madvise(data, bytes, MADV_DONTNEED) == 0;
}

void unmap(Map* map) {
  if (map->data != nullptr) munmap(map->data, map->bytes);
  *map = {nullptr, 0};
}

}  // namespace ringfeed::client
