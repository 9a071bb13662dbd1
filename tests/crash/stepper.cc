#include "tests/crash/stepper.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/ring_layout.h"

namespace ringfeed::crash {
namespace {

using shm::kPageBytes;
using testing::RigSegment;

constexpr greg_t kTrapFlag = 0x100;
// What one act may do at most; the room is only address space until it is used.
constexpr std::size_t kRawStatesMax = 1 << 20;
constexpr std::size_t kRawChangesMax = 1 << 23;
constexpr std::size_t kSegmentsMax = 256;
// An instruction may store into the end of one page and the beginning of the next.
constexpr std::size_t kOpenMax = 4;

// What the handlers work with: they may not allocate, nor call anything that the stepped code may
// be in the middle of.
struct Handlers {
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
  };
  struct Open {
    std::uint64_t page;
    std::uint32_t segment;
    std::uint64_t offset;
    std::byte before[kPageBytes];
  };
  struct RawState {
    std::uint64_t rip;
    std::uint64_t arena_bytes;
    std::uint64_t letters;
    std::uint32_t change_count;
    bool committed;
  };

  // Where the lanes have mapped the segments, in the order of Memory::segments().
  Range ranges[kSegmentsMax];
  std::size_t range_count = 0;
  bool stepping = false;
  bool every_instruction = false;
  std::uint64_t states_max = 0;  // death behind so many
  std::uint64_t instructions = 0;
  std::uint64_t own_letters = 0;
  std::uint64_t* letters = nullptr;
  std::size_t acting = 0;
  const shm::LanePage* page = nullptr;  // of the stepped lane
  std::uint64_t commit_before = 0;
  int arena_fd = -1;
  Open open[kOpenMax];
  std::size_t open_count = 0;
  std::uint64_t rip = 0;
  RawState* states = nullptr;
  std::size_t state_count = 0;
  WordChange* changes = nullptr;
  std::size_t change_count = 0;
};
Handlers now;

greg_t& flags_of(void* context) {
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
  const std::uint64_t page = address & ~(kPageBytes - 1);
  const auto* const range = std::find_if(
      now.ranges, now.ranges + now.range_count,
      [&](const Handlers::Range& each) { return address >= each.begin && address < each.end; });
  if (!now.stepping || info->si_code != SEGV_ACCERR || range == now.ranges + now.range_count ||
      now.open_count == kOpenMax) {
    // A fault of the lane's own: it comes again, and kills.
    ::signal(signal, SIG_DFL);
    return;
  }
  Handlers::Open& open = now.open[now.open_count++];
  open.page = page;
  open.segment = static_cast<std::uint32_t>(range - now.ranges);
  open.offset = page - range->begin;
  std::memcpy(open.before, reinterpret_cast<const std::byte*>(page), kPageBytes);
  ::mprotect(reinterpret_cast<void*>(page), kPageBytes, PROT_READ | PROT_WRITE);
  now.rip =
      static_cast<std::uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  flags_of(context) |= kTrapFlag;
}

void on_trap(int /*signal*/, siginfo_t* /*info*/, void* context) {
  ++now.instructions;
  if (!now.stepping || !now.every_instruction) flags_of(context) &= ~kTrapFlag;
  if (now.open_count == 0) return;
  const std::size_t first = now.change_count;
  for (std::size_t i = 0; i < now.open_count; ++i) {
    const Handlers::Open& open = now.open[i];
    const auto* const after = reinterpret_cast<const std::byte*>(open.page);
    for (std::uint64_t at = 0; at < kPageBytes; at += 8) {
      if (word_at(open.before + at) == word_at(after + at)) continue;
      RF_CHECK(now.change_count < kRawChangesMax, now.change_count);
      now.changes[now.change_count++] = {open.segment, open.offset + at, word_at(open.before + at),
                                         word_at(after + at)};
    }
    ::mprotect(reinterpret_cast<void*>(open.page), kPageBytes, PROT_READ);
  }
  now.open_count = 0;
  if (now.change_count == first) return;
  RF_CHECK(now.state_count < kRawStatesMax, now.state_count);
  // Room is reserved by the kernel and not by a store: it shows by the next store.
  struct stat arena {};
  ::fstat(now.arena_fd, &arena);
  now.states[now.state_count++] = {
      .rip = now.rip,
      .arena_bytes = static_cast<std::uint64_t>(arena.st_size),
      .letters = *now.letters,
      .change_count = static_cast<std::uint32_t>(now.change_count - first),
      .committed = now.page->commit.load() != now.commit_before};
  if (now.state_count == now.states_max) ::kill(::getpid(), SIGKILL);
}

// The trap comes behind the instruction that follows.
void set_trap_flag() { asm volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "cc", "memory"); }
void clear_trap_flag() { asm volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "cc", "memory"); }

template <typename T>
T* reserve(std::size_t count) {
  void* const at = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RF_CHECK(at != MAP_FAILED, errno, count);
  return static_cast<T*>(at);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  RF_CHECK(::sigaction(signal, &action, nullptr) == 0, errno);
}

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

bool Log::add_difference(const Memory& memory, Image& image, std::uint64_t letters) {
  const std::size_t before = states.size();
  for (std::uint32_t i = 0; i < memory.segments().size(); ++i) {
    const std::uint64_t bytes = memory.bytes(i);
    if (bytes != image.segments[i].size()) add_growth(i, bytes, image, letters);
  }
  State state{.first_change = changes.size(), .letters = letters};
  memory.compare(image, changes);
  state.change_count = changes.size() - state.first_change;
  state.hash = image.hash;
  if (state.change_count != 0) states.push_back(state);
  return states.size() != before;
}

void Log::add_growth(std::uint32_t segment, std::uint64_t bytes, Image& image,
                     std::uint64_t letters) {
  Memory::grow(image, segment, bytes);
  states.push_back({.first_change = changes.size(),
                    .grown = segment,
                    .grown_bytes = bytes,
                    .hash = image.hash,
                    .letters = letters});
}

Stepper::Stepper(testing::LaneRig& rig, const Memory& memory) : rig_(rig), memory_(memory) {
  RF_CHECK(memory.segments().size() <= kSegmentsMax, memory.segments().size());
  if (now.states == nullptr) {
    now.states = reserve<Handlers::RawState>(kRawStatesMax);
    now.changes = reserve<WordChange>(kRawChangesMax);
  }
  now.own_letters = 0;
  now.letters = &now.own_letters;
  now.instructions = 0;
  handle(SIGSEGV, on_fault);
  handle(SIGTRAP, on_trap);
  rig_.on_dead_letter([](const DeadLetter&) { *now.letters |= std::uint64_t{1} << now.acting; });
  rig_.on_arena([&memory](const RigSegment& segment) {
    const auto begin = reinterpret_cast<std::uint64_t>(segment.data);
    now.ranges[memory.arena_of(segment.lane)] = {begin, begin + segment.mapped_bytes};
    if (!now.stepping) return;
    RF_CHECK(::mprotect(segment.data, segment.mapped_bytes, PROT_READ) == 0, errno);
  });
}

Stepper::~Stepper() {
  ::signal(SIGSEGV, SIG_DFL);
  ::signal(SIGTRAP, SIG_DFL);
  rig_.on_dead_letter({});
  rig_.on_arena({});
}

std::uint64_t Stepper::instructions() const { return now.instructions; }
std::uint64_t Stepper::letters() const { return *now.letters; }
void Stepper::keep_letters_in(std::uint64_t* shared) { now.letters = shared; }
void Stepper::acting(std::size_t lane) { now.acting = lane; }

void Stepper::run(std::size_t lane, const std::function<void()>& act, bool every_instruction) {
  const std::vector<RigSegment> segments = rig_.segments();
  now.range_count = segments.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto begin = reinterpret_cast<std::uint64_t>(segments[i].data);
    now.ranges[i] = {begin, begin + segments[i].mapped_bytes};
  }
  const auto protect = [&](int protection) {
    for (std::size_t i = 0; i < now.range_count; ++i) {
      const Handlers::Range& range = now.ranges[i];
      RF_CHECK(::mprotect(reinterpret_cast<void*>(range.begin), range.end - range.begin,
                          protection) == 0,
               errno);
    }
  };
  now.acting = lane;
  now.page = &rig_.page(lane);
  now.commit_before = now.page->commit.load();
  now.arena_fd = segments[memory_.arena_of(lane)].fd;
  now.state_count = 0;
  now.change_count = 0;
  now.every_instruction = every_instruction;
  protect(PROT_READ);
  now.stepping = true;
  if (every_instruction) set_trap_flag();
  act();
  clear_trap_flag();
  now.stepping = false;
  protect(PROT_READ | PROT_WRITE);
}

void Stepper::step(std::size_t lane, const std::function<void()>& act, bool every_instruction,
                   Image& image, Log& log) {
  now.states_max = ~std::uint64_t{0};
  run(lane, act, every_instruction);
  const std::uint32_t arena = memory_.arena_of(lane);
  const WordChange* change = now.changes;
  for (std::size_t s = 0; s < now.state_count; ++s) {
    const Handlers::RawState& raw = now.states[s];
    if (raw.arena_bytes != image.segments[arena].size()) {
      log.add_growth(arena, raw.arena_bytes, image, raw.letters);
    }
    State state{.rip = raw.rip,
                .first_change = log.changes.size(),
                .change_count = raw.change_count,
                .letters = raw.letters,
                .grain = Grain::kBulk,
                .committed = raw.committed};
    for (std::uint32_t c = 0; c < raw.change_count; ++c, ++change) {
      memory_.apply(image, *change);
      log.changes.push_back(*change);
      state.grain =
          std::min(state.grain, grain_of(memory_.segments()[change->segment], change->offset));
    }
    // What a committed list stores is never a trifle, wherever it goes.
    if (raw.committed) state.grain = Grain::kWords;
    state.hash = image.hash;
    log.states.push_back(state);
  }
}

void Stepper::step_and_die(std::size_t lane, const std::function<void()>& act,
                           std::uint64_t states) {
  now.states_max = states;
  run(lane, act, false);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

}  // namespace ringfeed::crash
