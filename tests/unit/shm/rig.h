// What the tests of shm/ share: memory that forked children see, and a ring with a lane at each
// end.
//
// A lane here is an incarnation: making one attaches (recover, take up the cursors), dropping it
// without a commit is its death. What survives it lies in RingMemory.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/journal.h"
#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/ring.h"

namespace ringfeed::shm::testing {

// Zeroed pages that children of fork() share with their parent.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    void* const data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RF_CHECK(data != MAP_FAILED, bytes);
    data_ = static_cast<std::byte*>(data);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { ::munmap(data_, bytes_); }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(data_ + offset);
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

inline constexpr std::uint32_t kTestJournalEntries = 64;

// A lane's lasting memory: its page, its bell, two journal areas, a page of arena words.
class LaneMemory {
 public:
  LaneMemory() : memory_(kAreasOffset + 2 * kAreaBytes + kPageBytes) {}

  [[nodiscard]] LanePage& page() const { return memory_.at<LanePage>(0); }
  [[nodiscard]] Bell& bell() const { return memory_.at<Bell>(kPageBytes); }
  [[nodiscard]] JournalEntry* area(std::size_t index) const {
    return &memory_.at<JournalEntry>(kAreasOffset + index * kAreaBytes);
  }
  [[nodiscard]] WritableSegment arena() const {
    return {memory_.data() + kAreasOffset + 2 * kAreaBytes, kPageBytes};
  }
  [[nodiscard]] std::uint64_t arena_word(std::size_t index) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(arena().data)[index].load();
  }
  [[nodiscard]] Neighbour as_neighbour() const { return {&page(), &bell()}; }

 private:
  static constexpr std::size_t kAreaBytes = kTestJournalEntries * sizeof(JournalEntry);
  static constexpr std::size_t kAreasOffset = 2 * kPageBytes;
  SharedMemory memory_;
};

inline WordRef arena_word_ref(std::size_t index) { return word_ref(kArenaSegment, index * 8); }

// One ring, the lane before it and the lane behind it.
struct RingMemory {
  explicit RingMemory(RingGeometry ring_geometry)
      : geometry(ring_geometry),
        ring(kRingDataOffset + ring_geometry.capacity_bytes),
        heads(kHeadLinesOffset + kPageBytes) {}

  [[nodiscard]] TailLine& tail() const { return ring.at<TailLine>(kTailLineOffset); }
  [[nodiscard]] HeadLine& head() const { return heads.at<HeadLine>(kHeadLinesOffset); }
  [[nodiscard]] std::byte* data() const { return ring.data() + kRingDataOffset; }
  [[nodiscard]] RecordHeader& record(std::uint64_t stream_offset) const {
    return ring.at<RecordHeader>(kRingDataOffset + stream_offset % geometry.capacity_bytes);
  }
  [[nodiscard]] QueueView view() const { return view_queue(tail(), head(), geometry); }

  RingGeometry geometry;
  SharedMemory ring;
  SharedMemory heads;
  LaneMemory producer;
  LaneMemory consumer;
};

// The producing lane, one incarnation of it.
class PutLane {
 public:
  explicit PutLane(const RingMemory& memory)
      : segments_(kFirstRingSegment + 1),
        journal(memory.producer.page(), memory.producer.area(0), memory.producer.area(1),
                kTestJournalEntries, fill(memory)),
        ring(memory.tail(), memory.data(), memory.head(), memory.geometry, kFirstRingSegment) {
    journal.recover();
    ring.attach();
  }
  PutLane(const PutLane&) = delete;
  PutLane& operator=(const PutLane&) = delete;

  // False: no room, or dropped.
  bool put(std::string_view record, const RecordInfo& info = {}) {
    std::byte* const room = ring.reserve(record.size());
    if (room == nullptr) return false;
    std::memcpy(room, record.data(), record.size());
    ring.put(record.size(), info);
    return true;
  }
  void commit() {
    ring.stage(journal);
    journal.commit();
    ring.settle();
  }
  bool put_and_commit(std::string_view record) {
    const bool done = put(record);
    commit();
    return done;
  }
  void close_and_commit() {
    ring.stage(journal);
    ring.close(journal);
    commit();
  }

 private:
  std::span<const WritableSegment> fill(const RingMemory& memory) {
    segments_[kArenaSegment] = memory.producer.arena();
    segments_[kFirstRingSegment] = {memory.ring.data(), memory.ring.bytes()};
    return segments_;
  }
  std::vector<WritableSegment> segments_;

 public:
  Journal journal;
  RingProducer ring;
};

// The consuming lane, one incarnation of it.
class GetLane {
 public:
  explicit GetLane(const RingMemory& memory)
      : segments_(kFirstRingSegment),
        journal(memory.consumer.page(), memory.consumer.area(0), memory.consumer.area(1),
                kTestJournalEntries, fill(memory)),
        ring(memory.tail(), memory.data(), memory.head(), memory.geometry, kHeadLinesOffset) {
    journal.recover();
    ring.attach();
  }
  GetLane(const GetLane&) = delete;
  GetLane& operator=(const GetLane&) = delete;

  std::optional<std::string> peek() {
    const std::optional<RecordView> record = ring.peek();
    if (!record) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(record->bytes.data()), record->bytes.size());
  }
  std::optional<std::string> get() {
    std::optional<std::string> record = peek();
    if (record) ring.consume();
    return record;
  }
  void commit() {
    ring.stage(journal);
    journal.commit();
    ring.settle();
  }
  // Everything that is there, in one step.
  std::vector<std::string> drain() {
    std::vector<std::string> records;
    while (std::optional<std::string> record = get()) records.push_back(*record);
    commit();
    return records;
  }

 private:
  std::span<const WritableSegment> fill(const RingMemory& memory) {
    segments_[kArenaSegment] = memory.consumer.arena();
    segments_[kHeadsSegment] = {memory.heads.data(), memory.heads.bytes()};
    return segments_;
  }
  std::vector<WritableSegment> segments_;

 public:
  Journal journal;
  RingConsumer ring;
};

// A record of `bytes` whose content follows from its number, so that a mix-up cannot go unseen.
inline std::string numbered_record(std::uint64_t number, std::size_t bytes) {
  std::string record(bytes, '\0');
  std::uint64_t state = number * 0x9e3779b97f4a7c15 + bytes;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005 + 1442695040888963407;
    record[i] = static_cast<char>(state >> (8 * (i % 8)));
  }
  return record;
}

// A small generator whose whole state is its seed, which a failing test prints.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint64_t below(std::uint64_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 11) % bound;
  }

 private:
  std::uint64_t state_;
};

}  // namespace ringfeed::shm::testing
