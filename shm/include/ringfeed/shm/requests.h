// A table of requests: what a trainer wants of the lanes that make batches for it alone.
//
// It lies in memory that the trainer has made and shares with the lanes' processes. Batch s of the
// feed is what the lane makes of request s.
//
// Layout (bytes from the start, little-endian):
//   offset  size  field        written by  meaning
//        0     8  magic        trainer     kRequestsMagic
//        8     8  entry_count  trainer     K, a multiple of L; fixed before a lane looks
//       16     8  bytes        trainer     of the whole table; fixed, too
//       24     8  lane_count   trainer     L; fixed, too
//       64  64 K  entries      trainer     K / L of each lane, one lane after the other; its requests
//                                          take turns in them
//   64+64K        heap         trainer     the requests' bytes
//
// Entry (64 bytes):
//        0     8  seq          trainer     the request's number, stored last; 0: never used
//        8     8  offset       trainer     of its bytes, from the start of the table
//       16     8  size         trainer     of its bytes
//       24     8  kind         trainer     what it is, for those who made it; kNoMoreRequests
//       32     8  place        lane        1 + the sample that is worked on; for people. The trainer sets
//                                          it to 0 with a new request, before seq says so
//       40     4  bell         trainer     of a lane's first entry: rung when a request has been made
//
// There is one writer, and nothing is taken back: the trainer writes an entry again, or bytes where
// those of s lie, only after it has got batch s. Each lane has entries of its own, so one that
// takes long for a request keeps none of the others from theirs, however many they have. A lane
// reads request s only until the step is committed that publishes batch s. So a lane that has died
// and come back finds the request at hand as it was. The trainer is not believed: find() gives
// nothing that leaves the table.
//
// A lane that waits for a request sleeps on the bell in the first of its entries.
//
// Several trainers cannot share such a table. For them lanes know by themselves what each batch is
// made of, and the table has one entry: its seq is the last batch that is wanted, and may become
// less. Its writer is the warm parent (find_planned()). Lanes sleep on their group's bell.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringfeed::shm {

inline constexpr std::uint64_t kRequestsMagic = 0x3230'7365'7571'6572;  // "reques02"

// RequestEntry::kind: the lane ends.
inline constexpr std::uint64_t kNoMoreRequests = 0;
// A batch of the lane's dataset.
inline constexpr std::uint64_t kPlannedRequest = 1;

struct RequestsHead {
  std::uint64_t magic;
  std::uint64_t entry_count;
  std::uint64_t bytes;
  std::uint64_t lane_count;
  std::uint64_t zero[4];
};
static_assert(sizeof(RequestsHead) == 64);

struct RequestEntry {
  std::atomic<std::uint64_t> seq;
  std::uint64_t offset;
  std::uint64_t size;
  std::uint64_t kind;
  std::atomic<std::uint64_t> place;
  std::atomic<std::uint32_t> bell;
  std::uint32_t zero[5];
};
static_assert(sizeof(RequestEntry) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would live in one process");

// Whether `table` is one, of `bytes` bytes.
inline bool are_requests(const std::byte* table, std::uint64_t bytes) noexcept {
  if (table == nullptr || bytes < sizeof(RequestsHead)) return false;
  const auto* head = reinterpret_cast<const RequestsHead*>(table);
  const std::uint64_t count = head->entry_count;
  const std::uint64_t lanes = head->lane_count;
  return head->magic == kRequestsMagic && head->bytes == bytes && lanes != 0 && count != 0 &&
         count % lanes == 0 && count <= (bytes - sizeof(RequestsHead)) / sizeof(RequestEntry);
}

// Of a table that are_requests() has found to be one; seq >= 1.
inline RequestEntry& request_entry(std::byte* table, std::uint64_t seq) noexcept {
  const auto* head = reinterpret_cast<const RequestsHead*>(table);
  const std::uint64_t lanes = head->lane_count;
  const std::uint64_t of_lane = head->entry_count / lanes;
  const std::uint64_t lane = (seq - 1) % lanes;
  const std::uint64_t place = lane * of_lane + (seq - 1) / lanes % of_lane;
  return reinterpret_cast<RequestEntry*>(table + sizeof(RequestsHead))[place];
}

// Rung for the lane that makes batch `seq`: a futex.
inline std::atomic<std::uint32_t>& request_bell(std::byte* table, std::uint64_t seq) noexcept {
  const std::uint64_t lanes = reinterpret_cast<const RequestsHead*>(table)->lane_count;
  return request_entry(table, (seq - 1) % lanes + 1).bell;
}

// The table of a feed whose lanes know by themselves what batches are made of.
inline bool is_planned(const std::byte* table) noexcept {
  return reinterpret_cast<const RequestsHead*>(table)->entry_count == 1;
}

struct RequestView {
  const std::byte* bytes = nullptr;
  std::uint64_t size = 0;
  std::uint64_t kind = 0;
};

enum class RequestState { kNotYet, kThere, kDamaged };

// The lane's side.
inline RequestState find_request(std::byte* table, std::uint64_t seq, RequestView* view) noexcept {
  const RequestEntry& entry = request_entry(table, seq);
  // acquire, pairs with the release in put_request(): the entry and its bytes are there.
  if (entry.seq.load(std::memory_order_acquire) != seq) return RequestState::kNotYet;
  const std::uint64_t bytes = reinterpret_cast<const RequestsHead*>(table)->bytes;
  const std::uint64_t offset = entry.offset;
  const std::uint64_t size = entry.size;
  if (offset > bytes || size > bytes - offset) return RequestState::kDamaged;
  *view = {table + offset, size, entry.kind};
  return RequestState::kThere;
}

// Of a table with one entry: is batch `seq` wanted? Its bytes are the lane's own affair.
inline RequestState find_planned(std::byte* table, std::uint64_t seq, RequestView* view) noexcept {
  // acquire, pairs with the release in put_request(): what was written before is there.
  if (request_entry(table, 1).seq.load(std::memory_order_acquire) < seq) {
    return RequestState::kNotYet;
  }
  *view = {table, 0, kPlannedRequest};
  return RequestState::kThere;
}

// The trainer's side: the bytes at `offset` have been written.
inline void put_request(std::byte* table, std::uint64_t seq, std::uint64_t offset,
                        std::uint64_t size, std::uint64_t kind) noexcept {
  RequestEntry& entry = request_entry(table, seq);
  entry.offset = offset;
  entry.size = size;
  entry.kind = kind;
  entry.place.store(0, std::memory_order_relaxed);  // the lane sees it with seq
  // release, pairs with find_request().
  entry.seq.store(seq, std::memory_order_release);
  // release: a lane that has read the new value, which will not wake it, sees seq.
  request_bell(table, seq).fetch_add(1, std::memory_order_release);
}

}  // namespace ringfeed::shm
