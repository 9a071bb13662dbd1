// A claim word says which member of one consumer group has one batch. One compare-and-swap passes
// it on.
//
//   word.seq < s, or AVAIL(s)       may be taken, once s is published and s >= start;
//        |                          in a ranked group (s - 1) mod world = rank
//        |  member m, acq_rel
//        v
//   TAKEN(s, m) --member m, release--> DONE(s)
//        |  whoever has proof of m's death, acq_rel
//        +--> AVAIL(s, tries + 1)   redeliver, and tries < max_tries
//        +--> SKIPPED(s)            at_most_once, or too many tries
//
//   may be taken --producing lane, acq_rel--> SKIPPED(s)   policy skip, or the group is draining
//
// Word, from the lowest bit: state 8, tries 8, member 8, seq 40. Every transition is a
// compare-and-swap from the exact old value, and seq never decreases. So there is no ABA problem,
// and a recovery may run twice or beside another one. Modelled in tests/model/claims.pml.
#pragma once

#include "ringfeed/shm/abi.h"

namespace ringfeed::shm {

enum class ClaimState : std::uint8_t { kNone = 0, kTaken = 1, kDone = 2, kAvail = 3, kSkipped = 4 };

struct Claim {
  std::uint64_t seq = 0;
  std::uint8_t member = 0;
  std::uint8_t tries = 0;
  ClaimState state = ClaimState::kNone;

  friend constexpr bool operator==(const Claim&, const Claim&) = default;
};

inline constexpr std::uint64_t kBatchSeqMax = (std::uint64_t{1} << 40) - 1;

constexpr std::uint64_t encode_claim(const Claim& claim) noexcept {
  return claim.seq << 24 | std::uint64_t{claim.member} << 16 | std::uint64_t{claim.tries} << 8 |
         static_cast<std::uint64_t>(claim.state);
}
constexpr Claim decode_claim(std::uint64_t word) noexcept {
  return {.seq = word >> 24,
          .member = static_cast<std::uint8_t>(word >> 16),
          .tries = static_cast<std::uint8_t>(word >> 8),
          .state = static_cast<ClaimState>(word & 0xff)};
}

// May batch s, once published, be taken by a member?
constexpr bool claim_open(const Claim& claim, std::uint64_t s) noexcept {
  return claim.seq < s || (claim.seq == s && claim.state == ClaimState::kAvail);
}
// Has the group finished batch s, so that its slot and its descriptor may be reused?
constexpr bool claim_finished(const Claim& claim, std::uint64_t s) noexcept {
  return claim.seq > s || (claim.seq == s && (claim.state == ClaimState::kDone ||
                                              claim.state == ClaimState::kSkipped));
}

// Gives the batch to `member`; false if it was not open in `seen`, or if somebody was quicker (the
// caller then loads the word again).
inline bool claim_take(std::atomic<std::uint64_t>& word, std::uint64_t seen, std::uint64_t s,
                       std::uint8_t member) noexcept {
  const Claim old = decode_claim(seen);
  if (!claim_open(old, s)) return false;  // seq never decreases, whatever the caller has seen
  const std::uint8_t tries = old.seq == s ? old.tries : std::uint8_t{0};
  const std::uint64_t taken =
      encode_claim({.seq = s, .member = member, .tries = tries, .state = ClaimState::kTaken});
  // acq_rel: acquire pairs with the release of the member that gave the batch back. release
  // publishes none of our data, but keeps our reads of the slot after the claim for anyone who
  // inspects the word.
  return word.compare_exchange_strong(seen, taken, std::memory_order_acq_rel,
                                      std::memory_order_relaxed);
}

// The holder has finished batch s; false if the claim is no longer its own (its group was recovered
// or left).
inline bool claim_finish(std::atomic<std::uint64_t>& word, std::uint64_t s,
                         std::uint8_t member) noexcept {
  // relaxed: only the holder itself and the recovery after its death change a TAKEN word; the
  // exchange below decides.
  std::uint64_t seen = word.load(std::memory_order_relaxed);
  const Claim old = decode_claim(seen);
  if (old.seq != s || old.member != member || old.state != ClaimState::kTaken) return false;
  const std::uint64_t done =
      encode_claim({.seq = s, .member = member, .tries = old.tries, .state = ClaimState::kDone});
  // release, pairs with the producing lane's acquire before it reuses the slot: all reads of the
  // batch are over by then.
  return word.compare_exchange_strong(seen, done, std::memory_order_release,
                                      std::memory_order_relaxed);
}

// Gives back the claim of a dead member on this word. Anyone with proof of its death may call it,
// any number of times. Returns true if this call changed the word.
inline bool claim_recover(std::atomic<std::uint64_t>& word, std::uint8_t member, bool redeliver,
                          std::uint32_t tries_max) noexcept {
  // acquire: the member's last writes to the word are seen before it is judged.
  std::uint64_t seen = word.load(std::memory_order_acquire);
  const Claim old = decode_claim(seen);
  if (old.member != member || old.state != ClaimState::kTaken) return false;
  const bool again = redeliver && old.tries < tries_max;
  const Claim next = {.seq = old.seq,
                      .member = member,
                      .tries = static_cast<std::uint8_t>(old.tries == 255 ? 255 : old.tries + 1),
                      .state = again ? ClaimState::kAvail : ClaimState::kSkipped};
  // acq_rel: as in claim_take; the member's reads are over because it is proved dead.
  return word.compare_exchange_strong(seen, encode_claim(next), std::memory_order_acq_rel,
                                      std::memory_order_relaxed);
}

// Closes the word if nobody has taken batch s, so that nobody can. An unclaimed word may never be
// treated as finished without this, because a claim could be under way.
inline bool claim_close(std::atomic<std::uint64_t>& word, std::uint64_t s) noexcept {
  // acquire: pairs with the release of the last change.
  std::uint64_t seen = word.load(std::memory_order_acquire);
  const Claim old = decode_claim(seen);
  if (!claim_open(old, s)) return false;
  const std::uint64_t closed = encode_claim({.seq = s,
                                             .member = 0,
                                             .tries = old.seq == s ? old.tries : std::uint8_t{0},
                                             .state = ClaimState::kSkipped});
  // acq_rel: as in claim_take.
  return word.compare_exchange_strong(seen, closed, std::memory_order_acq_rel,
                                      std::memory_order_relaxed);
}

}  // namespace ringfeed::shm
