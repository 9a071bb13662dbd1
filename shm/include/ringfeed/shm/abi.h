// The first 256 bytes of every segment. All layouts share them: version, identity, the hash of the
// layout.
//
// This header includes nothing that needs the C++ runtime, because the client library depends on
// libc alone and reads the same structs.
//
// SegmentHeader, ABI 2 (bytes from the segment's start, little-endian; written by the builder, then
// fixed):
//   offset  size  field              meaning
//        0     8  magic              "RINGFEED"
//        8     4  abi_major          must be equal
//       12     4  abi_minor          of the writer; a reader needs at least abi_min_reader
//       16     8  layout_hash        FNV-1a 64 over "struct:field:offset:size;" of all shared
//                                    structs (layout.h)
//       24     4  header_bytes       256
//       28     4  kind               SegmentKind
//       32     8  total_bytes        size at creation; a growing arena may be larger later
//       40    16  feed_id            random, one per feed
//       56     8  config_hash        of the configuration that the feed was laid out from
//       64     4  endian             0x01020304
//       68     4  page_bytes         of the machine that built it
//       72     8  features_required  a reader that does not know one of these bits leaves
//       80     8  features_optional
//       88     8  created_ns         CLOCK_REALTIME
//       96     8  boot_id_lo         low half of the kernel's boot id
//      104     4  abi_min_reader
//      108     4  reserved
//      112    64  geometry           16 counts and strides, which each kind of segment says itself
//      176     4  crc32c             of bytes 0..175
//      180     4  state              building 0, ready 1 (the builder's last store, release),
//                                    condemned 2
//      184    72  reserved
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringfeed::shm {

inline constexpr std::uint64_t kMagic = 0x44454546'474e4952;  // "RINGFEED", lowest byte first
inline constexpr std::uint32_t kAbiMajor = 2;
inline constexpr std::uint32_t kAbiMinor = 0;
inline constexpr std::uint32_t kAbiMinReader = 0;
inline constexpr std::uint32_t kEndian = 0x01020304;

// 128 and not 64: x86 fetches lines in pairs, and some arm64 lines are 128 bytes long. Fields of
// different writers that are 64 bytes apart would still share.
inline constexpr std::size_t kLineBytes = 128;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kRecordAlign = 64;

enum class SegmentKind : std::uint32_t {
  kControl = 1,
  kRing = 2,
  kHeads = 3,
  kArena = 4,
  kFeedControl = 5,
  kGroup = 6,
  kPayload = 7,
  kLocks = 8,  // nobody maps it: supervisor and workers lock its bytes
};

enum class SegmentState : std::uint32_t { kBuilding = 0, kReady = 1, kCondemned = 2 };

struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t abi_major;
  std::uint32_t abi_minor;
  std::uint64_t layout_hash;
  std::uint32_t header_bytes;
  std::uint32_t kind;
  std::uint64_t total_bytes;
  std::uint8_t feed_id[16];
  std::uint64_t config_hash;
  std::uint32_t endian;
  std::uint32_t page_bytes;
  std::uint64_t features_required;
  std::uint64_t features_optional;
  std::uint64_t created_ns;
  std::uint64_t boot_id_lo;
  std::uint32_t abi_min_reader;
  std::uint32_t reserved0;
  std::uint32_t geometry[16];
  std::uint32_t crc32c;
  std::atomic<std::uint32_t> state;
  std::uint8_t reserved1[72];
};
static_assert(sizeof(SegmentHeader) == 256 && offsetof(SegmentHeader, geometry) == 112);
static_assert(offsetof(SegmentHeader, crc32c) == 176 && offsetof(SegmentHeader, state) == 180);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would live in one process");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would live in one process");

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) noexcept {
  return (value + alignment - 1) / alignment * alignment;
}

// CRC-32C (Castagnoli) of bytes, bit by bit over a small table: for headers, not for payloads.
constexpr std::uint32_t crc32c_small(const std::uint8_t* bytes, std::size_t count) noexcept {
  std::uint32_t crc = 0xffffffffU;
  for (std::size_t i = 0; i < count; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

}  // namespace ringfeed::shm
