// A producing lane's side of the final feed: it finds a slot that nobody needs, lets the stage fill
// it, and publishes it.
//
// Lane l of L (from 0) writes the batches s with (s - 1) mod L = l, into slots i with i mod L = l.
// It publishes s in this order:
//   1. Every consumer group that it respects has finished s - D, whose descriptor s will take.
//   2. It takes a slot of its own whose last batch every such group has finished. Without any group
//      it takes only one that was never used: the first batches wait for the first trainer.
//   3. It stores the slot's last batch in the slot's word of the payload's first page, and
//      retire.store(1 + newest batch given up, release): both before the first byte is written.
//   4. The stage fills the slot, over several steps if need be. The slot's number is a word of the
//      arena.
//   5. The step is committed that stores the descriptor, with descriptor.seq = s.
// The descriptors say what a slot last held, so a restarted lane knows the same.
//
// A member that does not let go (for example because it is stopped) must not stop the others if its
// group gives way. Its slot is never reused while it lives, but after D batches its descriptor is
// needed. Then its group leaves (DRAINING, also with policy skip). The lane's page notes the slot
// as kept, before the descriptor changes, until the group's last member is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/journal.h"

namespace ringfeed::shm {

struct FeedGeometry {
  std::uint32_t lanes = 1;
  std::uint32_t slots = 0;        // of all lanes together; a multiple of lanes
  std::uint32_t descriptors = 0;  // a multiple of lanes, at most kDescriptorsMax
  std::uint64_t slot_bytes = 0;   // a multiple of the page
  bool ordered = true;
  bool checksum = false;  // a CRC-32C of every batch in its descriptor
};

constexpr std::uint64_t payload_bytes(const FeedGeometry& geometry) noexcept {
  return kPageBytes + geometry.slots * geometry.slot_bytes;
}

// As many descriptors as fit. Their number bounds how many batches the feed can go on while a
// member keeps one.
constexpr std::uint32_t descriptor_count(std::uint32_t lanes) noexcept {
  return kDescriptorsMax / lanes * lanes;
}

struct BatchInfo {
  std::uint64_t bytes = 0;
  std::uint32_t rows = 0;
  std::uint32_t layout_id = 0;
  std::uint64_t token[2] = {0, 0};
  std::uint32_t ragged[16] = {};
};

class FeedProducer {
 public:
  struct Memory {
    std::byte* feed_control = nullptr;   // writable
    std::byte* payload = nullptr;        // writable, from the segment's start
    GroupPage* groups[kGroupsMax] = {};  // writable
    LanePage* page = nullptr;            // the lane's own
    WordRef open_slot;                   // arena word: 1 + slot under construction, 0 none
  };
  FeedProducer(const Memory& memory, const FeedGeometry& geometry, std::uint32_t lane) noexcept;

  // The slot for the lane's next batch: the one under construction, or a free one (then listed in
  // the journal). nullopt: none is free; blocked_on() says which groups' bells to wait for.
  std::optional<std::span<std::byte>> open(Journal& journal) noexcept;
  // Lists the batch in the open slot as published, with its checksum if the feed has them.
  void publish(Journal& journal, const BatchInfo& info) noexcept;
  // Lists the end of this lane's batches in the journal.
  void close(Journal& journal) noexcept;
  // After a commit that published or closed: trainers wake up.
  void announce() noexcept;

  // Answers consumer groups that are joining, and closes untaken batches of groups that are
  // leaving. Called between steps, and at least every kSleepMsMax.
  void attend_groups() noexcept;

  // Number of the batch that open() is for.
  [[nodiscard]] std::uint64_t next_batch(const Journal& journal) const noexcept;
  // Bells of the groups that exist; filled into `words`, returns how many.
  std::size_t group_bells(std::span<BellWord> words) const noexcept;
  // The sleeper's look, after it has read its bells: attends to groups that have moved since
  // open(), and says whether open() would succeed now. It takes nothing from a group.
  [[nodiscard]] bool has_room(const Journal& journal) noexcept;
  [[nodiscard]] const FeedGeometry& geometry() const noexcept { return geometry_; }

 private:
  struct Slot {
    std::uint32_t index;
    std::uint64_t last;  // batch that it holds, 0 if never used
  };
  // What the lane demands from groups that give way (policy skip or detach, and all that are
  // leaving).
  enum class Insist {
    kNo,          // nothing: the batch is needed
    kCould,       // nothing, but a batch that nobody holds counts as let go
    kSlot,        // they let the batch go if nobody holds it
    kDescriptor,  // and if a member holds it, they leave; it keeps the slot, not the descriptor
  };
  [[nodiscard]] std::span<std::byte> slot_memory(std::uint64_t slot) const noexcept;
  [[nodiscard]] std::uint64_t& given_up_word(std::uint64_t slot) const noexcept;
  std::optional<Slot> find_slot(std::uint64_t s, Insist insist) noexcept;
  GroupState state_of(std::uint32_t g) const noexcept;
  bool respects(std::uint32_t g) const noexcept;
  bool finished_by_all(std::uint64_t s, Insist insist) noexcept;
  // May batch s take its descriptor: has everybody finished the batch that it describes now, if
  // there is one?
  bool descriptor_free(std::uint64_t s, Insist insist) noexcept;
  // Does a member hold this slot, although no descriptor names it?
  bool is_kept(std::uint32_t slot) noexcept;
  bool is_kept(std::uint64_t s, std::uint32_t g) noexcept;
  bool keep(std::uint64_t s, std::uint32_t g) noexcept;
  std::uint64_t newest(const Journal& journal) const noexcept;
  const ProducerLine& line() const noexcept;
  Descriptor& descriptor(std::uint64_t s) const noexcept;
  std::uint64_t descriptor_offset(std::uint64_t s) const noexcept;

  Memory memory_;
  FeedGeometry geometry_;
  std::uint32_t lane_;
  bool announce_ = false;
  // Policy detach: the batch that a group has not finished and that blocks a slot.
  struct Blocked {
    std::uint64_t batch = 0;
    std::uint64_t epoch = 0;  // of the group: its page may belong to another group by now
    std::uint64_t since_ns = 0;
  };
  Blocked blocked_[kGroupsMax] = {};
};

}  // namespace ringfeed::shm
