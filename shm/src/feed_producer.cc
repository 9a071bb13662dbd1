#include "ringfeed/shm/feed_producer.h"

#include <time.h>

#include <algorithm>
#include <iterator>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/crc32c.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/result.h"

namespace ringfeed::shm {
namespace {

std::uint64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

FeedProducer::FeedProducer(const Memory& memory, const FeedGeometry& geometry,
                           std::uint32_t lane) noexcept
    : memory_(memory), geometry_(geometry), lane_(lane) {
  RF_CHECK(geometry.lanes > 0 && geometry.slots % geometry.lanes == 0 &&
               geometry.slots >= geometry.lanes,
           geometry.lanes, geometry.slots);
  RF_CHECK(geometry.descriptors % geometry.lanes == 0 && geometry.descriptors <= kDescriptorsMax &&
               geometry.descriptors >= geometry.slots,
           geometry.descriptors, geometry.lanes, geometry.slots);
}

std::uint64_t FeedProducer::descriptor_offset(std::uint64_t s) const noexcept {
  return descriptors_offset(geometry_.lanes) + s % geometry_.descriptors * sizeof(Descriptor);
}
Descriptor& FeedProducer::descriptor(std::uint64_t s) const noexcept {
  return *reinterpret_cast<Descriptor*>(memory_.feed_control + descriptor_offset(s));
}

const ProducerLine& FeedProducer::line() const noexcept {
  return reinterpret_cast<const ProducerLine*>(memory_.feed_control + kProducerLinesOffset)[lane_];
}

std::uint64_t FeedProducer::newest(const Journal& journal) const noexcept {
  return journal.load(word_ref(
      kFeedControlSegment,
      kProducerLinesOffset + lane_ * sizeof(ProducerLine) + offsetof(ProducerLine, newest)));
}

std::uint64_t FeedProducer::next_batch(const Journal& journal) const noexcept {
  const std::uint64_t last = newest(journal);
  return last == 0 ? lane_ + 1 : last + geometry_.lanes;
}

// Any value can stand there: the group's members may write to its page, and one of them may do so
// for ever. What the supervisor bars is as if it were not there.
GroupState FeedProducer::state_of(std::uint32_t g) const noexcept {
  // acquire, pairs with the supervisor's release: what was written before the bar was lifted is
  // seen.
  if ((memory_.page->groups_barred.load(std::memory_order_acquire) >> g & 1) != 0) {
    return GroupState::kUnused;
  }
  // acquire, pairs with the supervisor's release: the head of the group page was written before its
  // state.
  return static_cast<GroupState>(memory_.groups[g]->head.state.load(std::memory_order_acquire));
}

// Groups whose claims this lane must wait for: all that have joined, and those that it has
// answered. Modelled in tests/model/claims.pml, as are finished_by_all(), find_slot(), open(),
// publish() and attend_groups() below.
bool FeedProducer::respects(std::uint32_t g) const noexcept {
  const GroupPage& group = *memory_.groups[g];
  switch (state_of(g)) {
    case GroupState::kActive:
    case GroupState::kDraining:
      return true;
    case GroupState::kJoining:
      // relaxed: both are ordered by the load of state, and the answer is this lane's own.
      return memory_.page->answers[g].epoch.load(std::memory_order_relaxed) ==
             static_cast<std::uint32_t>(group.head.epoch.load(std::memory_order_relaxed));
    case GroupState::kUnused:
      return false;
  }
  return false;
}

// A group is made to give way only if nobody else stands in the way: a batch is not taken from one
// group while another still needs its slot.
bool FeedProducer::finished_by_all(std::uint64_t s, Insist insist) noexcept {
  bool finished = true;
  bool anyone = false;
  struct Closing {
    std::uint32_t group;
    bool skips;  // it stays, and this is a loss to it
  };
  Closing closing[kGroupsMax];
  std::size_t closing_count = 0;
  std::uint32_t keeping[kGroupsMax];
  std::size_t keeping_count = 0;
  for (std::uint32_t g = 0; g < kGroupsMax; ++g) {
    if (!respects(g)) continue;
    anyone = true;
    GroupPage& group = *memory_.groups[g];
    const GroupState state = state_of(g);
    // relaxed, both: ordered by the load of state; the answer is this lane's own.
    const std::uint64_t from = state == GroupState::kJoining
                                   ? memory_.page->answers[g].from.load(std::memory_order_relaxed)
                                   : group.head.start.load(std::memory_order_relaxed);
    std::atomic<std::uint64_t>& word = group.words[s % geometry_.descriptors];
    // acquire, pairs with the release of claim_finish: the holder's reads of the slot are over.
    const Claim claim = decode_claim(word.load(std::memory_order_acquire));
    // While a group joins, its words are those of the group that had this page before: nobody can
    // have finished anything.
    if (s < from || (state != GroupState::kJoining && claim_finished(claim, s))) {
      continue;
    }
    if (is_kept(s, g)) continue;
    if (insist != Insist::kNo && state != GroupState::kJoining) {
      const auto policy = static_cast<GroupPolicy>(group.head.policy);
      if ((policy == GroupPolicy::kSkip || state == GroupState::kDraining) &&
          claim_open(claim, s)) {
        closing[closing_count++] = {g, state == GroupState::kActive};
        continue;
      }
      const auto leave = [&group] {
        auto expected = static_cast<std::uint32_t>(GroupState::kActive);
        // release: nothing of ours is published by it; the supervisor and the members read it
        // with acquire.
        group.head.state.compare_exchange_strong(
            expected, static_cast<std::uint32_t>(GroupState::kDraining), std::memory_order_release,
            std::memory_order_relaxed);
      };
      if (insist == Insist::kDescriptor && state == GroupState::kDraining) {
        keeping[keeping_count++] = g;
        continue;
      }
      if (insist == Insist::kDescriptor && policy == GroupPolicy::kSkip) leave();
      if (insist >= Insist::kSlot && policy == GroupPolicy::kDetach &&
          state == GroupState::kActive) {
        const std::uint64_t now = now_ns();
        const std::uint64_t epoch = group.head.epoch.load(std::memory_order_relaxed);  // as above
        Blocked& blocked = blocked_[g];
        // Patience begins anew only with a batch that the group has finished; others that are tried
        // meanwhile do not count.
        if (blocked.since_ns == 0 || blocked.epoch != epoch ||
            group_finished(group, blocked.batch, geometry_.descriptors)) {
          blocked = {s, epoch, now};
        }
        if (now - blocked.since_ns > std::uint64_t{group.head.stall_ms} * 1'000'000) leave();
      }
    }
    finished = false;
  }
  if (!finished || !anyone) return false;
  if (insist < Insist::kSlot) return true;
  for (std::size_t i = 0; i < closing_count; ++i) {
    // A member may have taken the batch since: then it is his.
    const auto [g, skips] = closing[i];
    RF_FAILPOINT("shm.feed.giving_up");
    if (!claim_close(memory_.groups[g]->words[s % geometry_.descriptors], s)) return false;
    if (!skips) continue;
    // relaxed, both: own word, a count for people.
    std::atomic<std::uint32_t>& skipped = memory_.page->answers[g].skipped;
    skipped.store(skipped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < keeping_count; ++i) {
    if (!keep(s, keeping[i])) return false;
  }
  return true;
}

bool FeedProducer::descriptor_free(std::uint64_t s, Insist insist) noexcept {
  if (s <= geometry_.descriptors) return true;
  // Of a feed that did not begin with batch 1 it may never have held one. relaxed: written by this
  // lane only.
  if (descriptor(s).seq.load(std::memory_order_relaxed) == 0) return true;
  return finished_by_all(s - geometry_.descriptors, insist);
}

bool FeedProducer::is_kept(std::uint32_t slot) noexcept {
  bool found = false;
  for (std::atomic<std::uint64_t>& word : memory_.page->kept_slots) {
    // relaxed: own word.
    const std::uint64_t value = word.load(std::memory_order_relaxed);
    if (value == 0) continue;
    const Kept kept = decode_kept(value);
    RF_CHECK(kept.group < kGroupsMax, kept.group, kept.slot);
    if (kept.slot != slot) continue;
    // relaxed: written before the state, which is read with acquire: no member of that epoch is
    // left.
    if (state_of(kept.group) == GroupState::kUnused ||
        (memory_.groups[kept.group]->head.epoch.load(std::memory_order_relaxed) & kKeptEpochMask) !=
            kept.epoch) {
      word.store(0, std::memory_order_relaxed);  // relaxed: own word
    } else {
      found = true;
    }
  }
  return found;
}

// Is the group's hold on batch s noted already?
bool FeedProducer::is_kept(std::uint64_t s, std::uint32_t g) noexcept {
  const Descriptor& batch = descriptor(s);
  // relaxed, both: own words.
  if (batch.seq.load(std::memory_order_relaxed) != s) return false;
  return std::any_of(std::begin(memory_.page->kept_slots), std::end(memory_.page->kept_slots),
                     [&](const std::atomic<std::uint64_t>& word) {
                       const std::uint64_t value = word.load(std::memory_order_relaxed);
                       return value != 0 && decode_kept(value).slot == batch.slot &&
                              decode_kept(value).group == g;
                     });
}

bool FeedProducer::keep(std::uint64_t s, std::uint32_t g) noexcept {
  const Descriptor& batch = descriptor(s);
  if (batch.seq.load(std::memory_order_relaxed) != s) return false;  // relaxed: own word
  for (std::atomic<std::uint64_t>& word : memory_.page->kept_slots) {
    if (word.load(std::memory_order_relaxed) != 0) continue;  // relaxed: own word
    // relaxed: only the members of that group could change it, to their own harm.
    const std::uint64_t epoch = memory_.groups[g]->head.epoch.load(std::memory_order_relaxed);
    // release, before the step that gives the descriptor away: this lane's next incarnation, after
    // the kernel has seen the end of this one, finds one of the two.
    word.store(encode_kept({.slot = batch.slot, .group = g, .epoch = epoch & kKeptEpochMask}),
               std::memory_order_release);
    return true;
  }
  return false;  // so many are held that the feed has to wait
}

// The own slot with the oldest batch that nobody needs, for batch s.
std::optional<FeedProducer::Slot> FeedProducer::find_slot(std::uint64_t s, Insist insist) noexcept {
  const std::uint32_t own = geometry_.slots / geometry_.lanes;
  std::uint64_t last[kDescriptorsMax] = {};
  // Newest first: the first descriptor that names a slot says what it holds.
  std::uint32_t named = 0;
  for (std::uint64_t back = geometry_.lanes;
       back <= geometry_.descriptors && back < s && named < own; back += geometry_.lanes) {
    const Descriptor& batch = descriptor(s - back);
    // relaxed: written by this lane only.
    if (batch.seq.load(std::memory_order_relaxed) != s - back) continue;
    const std::uint32_t index = batch.slot / geometry_.lanes;
    RF_CHECK(index < own, batch.slot, geometry_.slots);
    if (last[index] == 0) {
      last[index] = s - back;
      ++named;
    }
  }
  std::optional<Slot> best;
  for (std::uint32_t i = 0; i < own; ++i) {
    if (best && last[i] >= best->last) continue;
    if (is_kept(i * geometry_.lanes + lane_)) continue;
    if (last[i] == 0 || finished_by_all(last[i], Insist::kNo))
      best = Slot{i * geometry_.lanes + lane_, last[i]};
  }
  if (best) return best;
  // Nothing is free: the oldest batches that their groups can be made to give up, oldest first.
  for (std::uint64_t t = s > geometry_.descriptors ? s - geometry_.descriptors
                                                   : (s - 1) % geometry_.lanes + 1;
       t < s; t += geometry_.lanes) {
    for (std::uint32_t i = 0; i < own; ++i) {
      if (last[i] == t && !is_kept(i * geometry_.lanes + lane_) && finished_by_all(t, insist))
        return Slot{i * geometry_.lanes + lane_, t};
    }
  }
  return std::nullopt;
}

std::optional<std::span<std::byte>> FeedProducer::open(Journal& journal) noexcept {
  if (const std::uint64_t open = journal.load(memory_.open_slot); open != 0)
    return slot_memory(open - 1);
  // A batch published by this very step is not in its descriptor yet, so its slot would look free:
  // after the commit. relaxed: written by this lane only.
  if (newest(journal) != line().newest.load(std::memory_order_relaxed)) return std::nullopt;
  const std::uint64_t s = next_batch(journal);
  RF_CHECK(s <= kBatchSeqMax, s);
  attend_groups();
  // The descriptor's last batch must be over for everyone; before that its slot need not even be
  // looked for.
  if (!descriptor_free(s, Insist::kDescriptor)) return std::nullopt;
  const std::optional<Slot> slot = find_slot(s, Insist::kSlot);
  if (!slot) return std::nullopt;
  const std::uint64_t given_up =
      std::max(slot->last, s > geometry_.descriptors ? s - geometry_.descriptors : 0);
  RF_FAILPOINT("shm.feed.retiring");
  // seq_cst, pairs with the loads of an observer (pyclient/src/observe.cc): the first byte, which
  // may be a streaming store, is written after it. A full barrier, once a batch.
  std::atomic_ref(given_up_word(slot->index)).store(slot->last, std::memory_order_seq_cst);
  // relaxed: written by this lane only.
  if (given_up + 1 > memory_.page->retire.load(std::memory_order_relaxed)) {
    // release, pairs with the supervisor's acquire of an answer: a group that joins later learns a
    // `from` behind it.
    memory_.page->retire.store(given_up + 1, std::memory_order_release);
  }
  RF_FAILPOINT("shm.feed.retired");
  journal.store(memory_.open_slot, slot->index + 1);
  return slot_memory(slot->index);
}

std::span<std::byte> FeedProducer::slot_memory(std::uint64_t slot) const noexcept {
  return {memory_.payload + kPageBytes + slot * geometry_.slot_bytes, geometry_.slot_bytes};
}

std::uint64_t& FeedProducer::given_up_word(std::uint64_t slot) const noexcept {
  return reinterpret_cast<std::uint64_t*>(memory_.payload + kGivenUpOffset)[slot];
}

void FeedProducer::publish(Journal& journal, const BatchInfo& info) noexcept {
  const std::uint64_t open = journal.load(memory_.open_slot);
  RF_CHECK(open != 0, open);
  const std::uint64_t s = next_batch(journal);
  const std::uint64_t slot = open - 1;
  // Word by word through the journal: the old descriptor stays whole until the step happens.
  const std::uint64_t at = descriptor_offset(s);
  const auto word = [&](std::uint64_t offset, std::uint64_t value) {
    journal.store(word_ref(kFeedControlSegment, at + offset), value);
  };
  const auto pair = [](std::uint32_t low, std::uint32_t high) {
    return std::uint64_t{high} << 32 | low;
  };
  word(offsetof(Descriptor, slot), pair(static_cast<std::uint32_t>(slot), info.layout_id));
  word(offsetof(Descriptor, offset), kPageBytes + slot * geometry_.slot_bytes);
  word(offsetof(Descriptor, bytes), info.bytes);
  word(offsetof(Descriptor, token), info.token[0]);
  word(offsetof(Descriptor, token) + 8, info.token[1]);
  // 0 says that there is none, and one batch in four thousand million has no other.
  const std::uint32_t checksum =
      geometry_.checksum ? crc32c(slot_memory(slot).data(), info.bytes) : 0;
  word(offsetof(Descriptor, rows), pair(info.rows, checksum));
  word(offsetof(Descriptor, published_ns), now_ns());
  for (std::size_t i = 0; i < 16; i += 2) {
    word(offsetof(Descriptor, ragged) + 4 * i, pair(info.ragged[i], info.ragged[i + 1]));
  }
  word(offsetof(Descriptor, seq), s);
  journal.store(word_ref(kFeedControlSegment, kProducerLinesOffset + lane_ * sizeof(ProducerLine) +
                                                  offsetof(ProducerLine, newest)),
                s);
  RF_FAILPOINT("shm.feed.publishing");
  journal.store(memory_.open_slot, 0);
  announce_ = true;
}

void FeedProducer::close(Journal& journal) noexcept {
  RF_FAILPOINT("shm.feed.ending");
  journal.store(word_ref(kFeedControlSegment, kProducerLinesOffset + lane_ * sizeof(ProducerLine) +
                                                  offsetof(ProducerLine, closed)),
                1);
  announce_ = true;
}

// Modelled in tests/model/wakeup_feed.pml.
void FeedProducer::announce() noexcept {
  if (!announce_) return;
  announce_ = false;
  RF_FAILPOINT("shm.feed.announcing");
  ring(reinterpret_cast<Bell*>(memory_.feed_control + kFeedBellOffset)->rings);
}

void FeedProducer::attend_groups() noexcept {
  // A lane at its end is asked no more, so nothing keeps a page that it looks at from being given
  // to the next group before it closes a batch there. relaxed: own line.
  if (line().closed.load(std::memory_order_relaxed) != 0) return;
  for (std::uint32_t g = 0; g < kGroupsMax; ++g) {
    GroupPage& group = *memory_.groups[g];
    const GroupState state = state_of(g);
    if (state == GroupState::kJoining) {
      // relaxed: ordered by the acquire of state.
      const auto epoch =
          static_cast<std::uint32_t>(group.head.epoch.load(std::memory_order_relaxed));
      AdmissionAnswer& answer = memory_.page->answers[g];
      if (answer.epoch.load(std::memory_order_relaxed) == epoch) continue;  // relaxed: own word
      // relaxed: retire is this lane's own word; `from` is published by the release of epoch.
      answer.from.store(
          std::max<std::uint64_t>(1, memory_.page->retire.load(std::memory_order_relaxed)),
          std::memory_order_relaxed);
      answer.skipped.store(0, std::memory_order_relaxed);  // relaxed: a count for people
      RF_FAILPOINT("shm.feed.answering");
      // release, pairs with the supervisor's acquire: from now on this lane respects the group.
      answer.epoch.store(epoch, std::memory_order_release);
      RF_FAILPOINT("shm.feed.answered");
    } else if (state == GroupState::kDraining) {
      // relaxed: own line.
      const std::uint64_t last = line().newest.load(std::memory_order_relaxed);
      for (std::uint64_t back = 0; back < geometry_.descriptors && back < last;
           back += geometry_.lanes) {
        RF_FAILPOINT("shm.feed.closing");
        claim_close(group.words[(last - back) % geometry_.descriptors], last - back);
      }
    }
  }
}

// Modelled in tests/model/wakeup_feed.pml.
bool FeedProducer::has_room(const Journal& journal) noexcept {
  // One that began to join or to leave since the round may have rung before the bells were read.
  attend_groups();
  if (journal.load(memory_.open_slot) != 0) return true;
  const std::uint64_t s = next_batch(journal);
  if (!descriptor_free(s, Insist::kCould)) return false;
  return find_slot(s, Insist::kCould).has_value();
}

std::size_t FeedProducer::group_bells(std::span<BellWord> words) const noexcept {
  std::size_t count = 0;
  for (std::uint32_t g = 0; g < kGroupsMax && count < words.size(); ++g) {
    if (state_of(g) == GroupState::kUnused) continue;
    words[count++] = {&memory_.groups[g]->bell, 0};
  }
  return count;
}

}  // namespace ringfeed::shm
