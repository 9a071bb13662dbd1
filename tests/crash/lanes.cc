#include "tests/crash/lanes.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>

#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/ring_layout.h"

namespace ringfeed::crash {
namespace {

using testing::RigSegment;

constexpr int kWaiting = SIGUSR2;   // the child waits for the next act
constexpr int kBoundary = SIGUSR1;  // an act begins or ends
constexpr std::size_t kLanesMax = 64;

Grain grain_of(const RigSegment& segment, std::uint64_t offset) {
  switch (segment.kind) {
    case shm::SegmentKind::kRing:
      return offset >= shm::kRingDataOffset ? Grain::kBulk : Grain::kWords;
    case shm::SegmentKind::kPayload:
      return Grain::kBulk;
    case shm::SegmentKind::kArena:
      if (offset >= shm::kStateOffset) return Grain::kBulk;
      return offset < shm::kRuntimeWordsOffset ? Grain::kJournal : Grain::kWords;
    default:
      return Grain::kWords;
  }
}

}  // namespace

// Shared with the child, and not part of what is watched.
struct TracedLanes::Mailbox {
  Act act;
  std::size_t lane;
  bool stepped;
  bool moved;
  std::uint64_t letters;
  // Where the child has mapped the arenas.
  std::byte* arenas[kLanesMax];
};

TracedLanes::TracedLanes(testing::LaneRig& rig, const Memory& memory) : rig_(rig), memory_(memory) {
  RF_CHECK(rig.lane_count() <= kLanesMax, rig.lane_count());
  void* const shared =
      ::mmap(nullptr, sizeof(Mailbox), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RF_CHECK(shared != MAP_FAILED, errno);
  mailbox_ = static_cast<Mailbox*>(shared);
  for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
    mailbox_->arenas[lane] = memory.segments()[memory.arena_of(lane)].data;
  }
  tracee_ = std::make_unique<Tracee>([this] { body(); });
  tracee_->run_to(kWaiting);
}

TracedLanes::~TracedLanes() {
  tracee_.reset();
  ::munmap(mailbox_, sizeof(Mailbox));
}

std::uint64_t TracedLanes::letters() const { return mailbox_->letters; }

// ---- in the child

void TracedLanes::protect(int protection) {
  for (const RigSegment& segment : rig_.segments()) {
    RF_CHECK(::mprotect(segment.data, segment.mapped_bytes, protection) == 0, errno);
  }
}

void TracedLanes::body() {
  rig_.on_arena([this](const RigSegment& segment) {
    mailbox_->arenas[segment.lane] = segment.data;
    if (protecting_)
      RF_CHECK(::mprotect(segment.data, segment.mapped_bytes, PROT_READ) == 0, errno);
  });
  std::size_t lane = 0;
  rig_.on_dead_letter([&](const DeadLetter&) { mailbox_->letters |= std::uint64_t{1} << lane; });
  const auto act = [&] {
    if (mailbox_->act == Act::kAttach) {
      rig_.restart(lane);
      mailbox_->moved = true;
    } else {
      const LaneRuntime::Round round = rig_.lane(lane).round();
      mailbox_->moved =
          round == LaneRuntime::Round::kWorked || round == LaneRuntime::Round::kFinished;
    }
  };
  for (;;) {
    Tracee::stop(kWaiting);
    lane = mailbox_->lane;
    protecting_ = mailbox_->stepped;
    if (!protecting_) {
      act();
      continue;
    }
    protect(PROT_READ);
    Tracee::stop(kBoundary);
    act();
    Tracee::stop(kBoundary);
    protect(PROT_READ | PROT_WRITE);
  }
}

// ---- in the tracer

bool TracedLanes::run(Act act, std::size_t lane) {
  mailbox_->act = act;
  mailbox_->lane = lane;
  mailbox_->stepped = false;
  tracee_->run_to(kWaiting);
  return mailbox_->moved;
}

// Adds what the store has changed as a state, if it has changed anything.
void TracedLanes::note(std::size_t lane, const Tracee::Store& store, Image& image, Log& log) const {
  const std::uint32_t arena = memory_.arena_of(lane);
  // Room is reserved by the kernel and not by a store; it shows by the next store at the latest.
  if (const std::uint64_t bytes = memory_.bytes(arena); bytes != image.segments[arena].size()) {
    Memory::grow(image, arena, bytes);
    log.states.push_back({.first_change = log.changes.size(),
                          .arena_bytes = bytes,
                          .hash = image.hash,
                          .letters = mailbox_->letters});
  }
  State state{.rip = store.rip,
              .first_change = log.changes.size(),
              .letters = mailbox_->letters,
              .grain = Grain::kBulk};
  for (const std::uint64_t page : store.pages) {
    bool found = false;
    for (std::uint32_t i = 0; i < memory_.segments().size() && !found; ++i) {
      const RigSegment& segment = memory_.segments()[i];
      const std::byte* const data =
          segment.kind == shm::SegmentKind::kArena ? mailbox_->arenas[segment.lane] : segment.data;
      const std::uint64_t offset = page - reinterpret_cast<std::uint64_t>(data);
      if (offset >= segment.mapped_bytes) continue;
      RF_CHECK(offset < image.segments[i].size(), i, offset, image.segments[i].size());
      memory_.compare_page(image, i, offset, log.changes);
      found = true;
    }
    RF_CHECK(found, page, store.rip);
  }
  state.change_count = log.changes.size() - state.first_change;
  if (state.change_count == 0) return;
  for (std::size_t i = state.first_change; i < log.changes.size(); ++i) {
    const WordChange& change = log.changes[i];
    state.grain =
        std::min(state.grain, grain_of(memory_.segments()[change.segment], change.offset));
  }
  state.committed = rig_.page(lane).commit.load() != commit_before_;
  // What a committed list stores is never a trifle, wherever it goes.
  if (state.committed) state.grain = Grain::kWords;
  state.hash = image.hash;
  log.states.push_back(state);
}

bool TracedLanes::step_to(Act act, std::size_t lane, bool every_instruction, std::uint64_t stores,
                          Image& image, Log& log) {
  mailbox_->act = act;
  mailbox_->lane = lane;
  mailbox_->stepped = true;
  tracee_->run_to(kBoundary);
  commit_before_ = rig_.page(lane).commit.load();
  const std::size_t before = log.states.size();
  Tracee::Store store;
  while (tracee_->next_store(kBoundary, every_instruction, &store)) {
    note(lane, store, image, log);
    if (log.states.size() - before >= stores) return true;
  }
  tracee_->run_to(kWaiting);
  return false;
}

bool TracedLanes::step(Act act, std::size_t lane, bool every_instruction, Image& image, Log& log) {
  (void)step_to(act, lane, every_instruction, ~std::uint64_t{0}, image, log);
  return mailbox_->moved;
}

bool TracedLanes::step_and_kill(Act act, std::size_t lane, std::uint64_t stores, Image& image,
                                Log& log) {
  if (!step_to(act, lane, false, stores, image, log)) return false;
  tracee_->kill();
  return true;
}

}  // namespace ringfeed::crash
