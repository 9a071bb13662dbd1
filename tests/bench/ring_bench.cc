// What a ring costs: throughput, round trip and wake-up between two processes, beside a bare ring,
// boost::interprocess::message_queue, a pipe and memcpy in the same run. Prints one JSON object.
//
//   ring_bench [--rounds N] [--cpus A,B] [--scale F] [--only SUBSTRING]
//
// The producer copies every record in, the consumer reads every byte (it sums them up, and the sum
// is checked). Each measurement is a pair of processes of its own, fixed to two CPUs; all peers
// take turns in each round, and what is reported is the median over the rounds. A ratio is the
// median of the rounds' ratios, so that what else the machine does hits both sides of it.
//
// Our lanes wait as they do in a worker: they sleep when there is nothing to do and are woken late
// (ring.h, worth_taking). `ringfeed_16_awake` is the same with two ends that look all the time, as
// the bare ring's do.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/journal.h"
#include "ringfeed/shm/ring.h"

namespace ringfeed::shm {
namespace {

namespace bip = boost::interprocess;

struct Options {
  int rounds = 5;
  std::array<int, 2> cpus{-1, -1};
  double scale = 1.0;  // of the number of records
  std::string only;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "ring_bench: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) die(fmt::format("CPU {}", cpu));
}

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Shared with the child, reserved and touched.
class Shared {
 public:
  explicit Shared(std::size_t bytes) : bytes_(bytes) {
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (data == MAP_FAILED) die("mmap");
    data_ = static_cast<std::byte*>(data);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// Every byte, eight at a time; bytes is a multiple of 8.
std::uint64_t sum_of(const std::byte* data, std::size_t bytes) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, 8);
    sum += word;
  }
  return sum;
}

struct Load {
  std::size_t record_bytes;
  std::uint64_t records;
  std::uint64_t ring_bytes;
  int per_step;
};

// A source that stays in the cache, so that what is measured is the way and not where it begins.
std::vector<std::byte> source_of(std::size_t bytes) {
  std::vector<std::byte> source(bytes);
  for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(i * 131 + 7);
  return source;
}

void check_sum(std::uint64_t sum, std::uint64_t expected) {
  if (sum == expected) return;
  std::fprintf(stderr, "ring_bench: the consumer read other bytes than were sent\n");
  std::exit(1);
}

// Records that each end moves before the other has its turn, where one thread does both.
constexpr int kTurn = 256;

// ---- two processes ------------------------------------------------------------------------------

struct Meeting {
  std::atomic<std::uint32_t> ready;
  std::atomic<std::uint32_t> go;
  std::atomic<std::uint32_t> done;
  std::atomic<std::uint64_t> sum;
};

// Seconds from the start of both until the consumer has seen the last byte. The consumer returns
// the sum of what it read.
double seconds_of(const Options& options, std::uint64_t sum_expected,
                  const std::function<void()>& produce,
                  const std::function<std::uint64_t()>& consume) {
  const Shared memory(kPageBytes);
  auto& meeting = *reinterpret_cast<Meeting*>(memory.data());
  const pid_t child = ::fork();
  if (child < 0) die("fork");
  if (child == 0) {
    run_on(options.cpus[1]);
    meeting.ready = 1;
    while (meeting.go.load() == 0) pause();
    meeting.sum = consume();
    meeting.done = 1;
    ::_exit(0);
  }
  run_on(options.cpus[0]);
  while (meeting.ready.load() == 0) ::sched_yield();  // the child may have begun on this CPU
  const std::uint64_t start = now_ns();
  meeting.go = 1;
  produce();
  while (meeting.done.load() == 0) pause();
  const std::uint64_t end = now_ns();
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) die("the consumer");
  check_sum(meeting.sum.load(), sum_expected);
  return static_cast<double>(end - start) * 1e-9;
}

// ---- this protocol ------------------------------------------------------------------------------

struct LaneParts {
  LanePage page;
  Bell bell;
  alignas(kPageBytes) JournalEntry areas[2][256];
  alignas(kPageBytes) std::uint64_t words[512];
};

// Two lanes and a ring each way.
class TwoLanes {
 public:
  explicit TwoLanes(std::uint64_t ring_bytes)
      : geometry_{.capacity_bytes = ring_bytes, .records_max = std::uint64_t{1} << 40},
        lanes_(2 * sizeof(LaneParts)),
        heads_{std::make_unique<Shared>(2 * kPageBytes), std::make_unique<Shared>(2 * kPageBytes)},
        rings_{std::make_unique<Shared>(kRingDataOffset + ring_bytes),
               std::make_unique<Shared>(kRingDataOffset + ring_bytes)} {}

  // Lane i puts into ring i and takes from the other.
  class Lane {
   public:
    Lane(const TwoLanes& all, std::size_t index)
        : all_(all),
          index_(index),
          segments_(kFirstRingSegment + 1),
          journal(all.parts(index).page, all.parts(index).areas[0], all.parts(index).areas[1], 256,
                  fill()),
          out(*reinterpret_cast<TailLine*>(all.rings_[index]->data() + kTailLineOffset),
              all.rings_[index]->data() + kRingDataOffset,
              *reinterpret_cast<HeadLine*>(all.heads_[1 - index]->data() + kHeadLinesOffset),
              all.geometry_, kFirstRingSegment),
          in(*reinterpret_cast<TailLine*>(all.rings_[1 - index]->data() + kTailLineOffset),
             all.rings_[1 - index]->data() + kRingDataOffset,
             *reinterpret_cast<HeadLine*>(all.heads_[index]->data() + kHeadLinesOffset),
             all.geometry_, kHeadLinesOffset) {
      journal.recover();
      out.attach();
      in.attach();
    }
    void commit() {
      const bool put = out.touched();
      const bool got = in.touched();
      if (!put && !got) return;
      if (put) out.stage(journal);
      if (got) in.stage(journal);
      journal.commit();
      out.settle();
      in.settle();
      owes_ = true;
      if (!neighbour().seems_asleep()) return;
      if (late_ && !(put && out.worth_taking()) && !(got && in.worth_refilling())) return;
      settle_debt();
    }
    void settle_debt() {
      if (owes_) {
        in.wake(neighbour());
        out.wake(neighbour());
      }
      owes_ = false;
    }
    // From now on the neighbour is woken only for what is worth it, and this lane sleeps at once.
    void wake_late() { late_ = true; }
    [[nodiscard]] Neighbour neighbour() const {
      return {&all_.parts(1 - index_).page, &all_.parts(1 - index_).bell};
    }
    template <typename Ready>
    void wait(Ready&& ready) {
      for (int looks = 0; !late_ && looks < kLooksBeforeSleep; ++looks) {
        if (ready()) return;
        pause();
      }
      sleep_until(ready);
    }
    template <typename Ready>
    void sleep_until(Ready&& ready) {
      std::array<BellWord, 1> words{};
      while (!ready()) {
        sleep(all_.parts(index_).page, all_.parts(index_).bell, words, kSleepMsMax, ready,
              [&] { settle_debt(); });
      }
    }

   private:
    static constexpr int kLooksBeforeSleep = 20'000;
    std::span<const WritableSegment> fill() {
      segments_[kArenaSegment] = {reinterpret_cast<std::byte*>(all_.parts(index_).words),
                                  kPageBytes};
      segments_[kHeadsSegment] = {all_.heads_[index_]->data(), all_.heads_[index_]->bytes()};
      segments_[kFirstRingSegment] = {all_.rings_[index_]->data(), all_.rings_[index_]->bytes()};
      return segments_;
    }
    const TwoLanes& all_;
    std::size_t index_;
    std::vector<WritableSegment> segments_;
    bool late_ = false;
    bool owes_ = false;  // a wake-up for what has been committed

   public:
    Journal journal;
    RingProducer out;
    RingConsumer in;
  };

 private:
  [[nodiscard]] LaneParts& parts(std::size_t index) const {
    return reinterpret_cast<LaneParts*>(lanes_.data())[index];
  }
  RingGeometry geometry_;
  Shared lanes_;
  std::array<std::unique_ptr<Shared>, 2> heads_;
  std::array<std::unique_ptr<Shared>, 2> rings_;
};

template <bool kAwake>
double run_ringfeed(const Options& options, const Load& load) {
  const TwoLanes lanes(load.ring_bytes);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  return seconds_of(
      options, sum_of(source.data(), source.size()) * load.records,
      [&] {
        TwoLanes::Lane lane(lanes, 0);
        if (!kAwake) lane.wake_late();
        int in_step = 0;
        for (std::uint64_t i = 0; i < load.records; ++i) {
          std::byte* room = lane.out.reserve(load.record_bytes);
          while (room == nullptr) {
            lane.commit();
            in_step = 0;
            lane.wait([&] { return lane.out.head_moved(); });
            room = lane.out.reserve(load.record_bytes);
          }
          std::memcpy(room, source.data(), load.record_bytes);
          lane.out.put(load.record_bytes, {});
          if (++in_step == load.per_step) {
            lane.commit();
            in_step = 0;
          }
        }
        lane.commit();
        lane.settle_debt();
      },
      [&] {
        TwoLanes::Lane lane(lanes, 1);
        if (!kAwake) lane.wake_late();
        std::uint64_t sum = 0;
        int in_step = 0;
        for (std::uint64_t i = 0; i < load.records;) {
          const std::optional<RecordView> record = lane.in.peek();
          if (!record) {
            lane.commit();
            in_step = 0;
            lane.wait([&] { return lane.in.tail_moved(); });
            continue;
          }
          sum += sum_of(record->bytes.data(), record->bytes.size());
          lane.in.consume();
          ++i;
          if (++in_step == load.per_step) {
            lane.commit();
            in_step = 0;
          }
        }
        lane.commit();
        return sum;
      });
}

// ---- the limit: a bare ring ---------------------------------------------------------------------

// Length, payload, two cursors on lines of their own, each end remembering where it last saw the
// other: nothing that survives a death, nothing that is checked.
struct BareCursors {
  alignas(128) std::atomic<std::uint64_t> tail;
  alignas(128) std::atomic<std::uint64_t> head;
};
class BareRing {
 public:
  explicit BareRing(std::uint64_t bytes)
      : bytes_(bytes), cursors_(kPageBytes), data_(std::make_unique<Shared>(bytes)) {}

  // What one end remembers. An object belongs to one side, which only puts or only gets.
  class End {
   public:
    explicit End(const BareRing& ring)
        : bytes_(ring.bytes_),
          cursors_(reinterpret_cast<BareCursors*>(ring.cursors_.data())),
          data_(ring.data_->data()) {}
    void put(const std::byte* record, std::uint64_t bytes) {
      const std::uint64_t need = 8 + (bytes + 7) / 8 * 8;
      std::uint64_t offset = tail_ % bytes_;
      const std::uint64_t skip = offset + need > bytes_ ? bytes_ - offset : 0;
      while (tail_ + skip + need - head_ > bytes_) {
        head_ = cursors_->head.load(std::memory_order_acquire);
        if (tail_ + skip + need - head_ > bytes_) pause();
      }
      if (skip != 0) {
        length_at(offset) = kSkip;
        offset = 0;
      }
      length_at(offset) = bytes;
      std::memcpy(data_ + offset + 8, record, bytes);
      tail_ += skip + need;
      cursors_->tail.store(tail_, std::memory_order_release);
    }
    // Calls `use` on the next record and then gives its room back.
    template <typename Use>
    void get(Use&& use) {
      wait_for_record();
      if (length_at(head_ % bytes_) == kSkip) {
        head_ += bytes_ - head_ % bytes_;
        wait_for_record();
      }
      const std::uint64_t bytes = length_at(head_ % bytes_);
      use(data_ + head_ % bytes_ + 8, bytes);
      head_ += 8 + (bytes + 7) / 8 * 8;
      cursors_->head.store(head_, std::memory_order_release);
    }

   private:
    static constexpr std::uint64_t kSkip = ~std::uint64_t{0};
    void wait_for_record() {
      while (tail_ == head_) {
        tail_ = cursors_->tail.load(std::memory_order_acquire);
        if (tail_ == head_) pause();
      }
    }
    std::uint64_t& length_at(std::uint64_t offset) {
      return *reinterpret_cast<std::uint64_t*>(data_ + offset);
    }
    std::uint64_t bytes_;
    BareCursors* cursors_;
    std::byte* data_;
    std::uint64_t tail_ = 0;
    std::uint64_t head_ = 0;
  };

 private:
  std::uint64_t bytes_;
  Shared cursors_;
  std::unique_ptr<Shared> data_;
};

double run_bare(const Options& options, const Load& load) {
  const BareRing ring(load.ring_bytes);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  return seconds_of(
      options, sum_of(source.data(), source.size()) * load.records,
      [&] {
        BareRing::End end(ring);
        for (std::uint64_t i = 0; i < load.records; ++i) end.put(source.data(), source.size());
      },
      [&] {
        BareRing::End end(ring);
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < load.records; ++i) {
          end.get([&](const std::byte* data, std::uint64_t bytes) { sum += sum_of(data, bytes); });
        }
        return sum;
      });
}

// ---- both ends on one thread

// Puts some records, takes them, and so on, on one CPU: what the two ends cost together. Siblings
// of one core share its units and its first-level cache, so there this is what decides.
double run_ringfeed_one_cpu(const Options& options, const Load& load) {
  run_on(options.cpus[0]);
  const TwoLanes lanes(load.ring_bytes);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  TwoLanes::Lane producer(lanes, 0);
  TwoLanes::Lane consumer(lanes, 1);
  producer.wake_late();
  consumer.wake_late();
  std::uint64_t sum = 0;
  const std::uint64_t turns = load.records / kTurn;
  const std::uint64_t start = now_ns();
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    for (int i = 0, in_step = 0; i < kTurn; ++i) {
      std::memcpy(producer.out.reserve(load.record_bytes), source.data(), load.record_bytes);
      producer.out.put(load.record_bytes, {});
      if (++in_step == load.per_step) {
        producer.commit();
        in_step = 0;
      }
    }
    for (int i = 0, in_step = 0; i < kTurn; ++i) {
      const std::optional<RecordView> record = consumer.in.peek();
      sum += sum_of(record->bytes.data(), record->bytes.size());
      consumer.in.consume();
      if (++in_step == load.per_step) {
        consumer.commit();
        in_step = 0;
      }
    }
  }
  const std::uint64_t end = now_ns();
  check_sum(sum, sum_of(source.data(), source.size()) * turns * kTurn);
  return static_cast<double>(end - start) * 1e-9;
}

double run_bare_one_cpu(const Options& options, const Load& load) {
  run_on(options.cpus[0]);
  BareRing there(load.ring_bytes);
  BareRing::End producer(there);
  BareRing::End consumer(there);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  std::uint64_t sum = 0;
  const std::uint64_t turns = load.records / kTurn;
  const std::uint64_t start = now_ns();
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    for (int i = 0; i < kTurn; ++i) producer.put(source.data(), source.size());
    for (int i = 0; i < kTurn; ++i) {
      consumer.get([&](const std::byte* data, std::uint64_t bytes) { sum += sum_of(data, bytes); });
    }
  }
  const std::uint64_t end = now_ns();
  check_sum(sum, sum_of(source.data(), source.size()) * turns * kTurn);
  return static_cast<double>(end - start) * 1e-9;
}

// ---- peers --------------------------------------------------------------------------------------

double run_message_queue(const Options& options, const Load& load) {
  const std::string name = fmt::format("ringfeed_bench_{}", ::getpid());
  bip::message_queue::remove(name.c_str());
  const std::size_t places =
      std::max<std::size_t>(16, std::min<std::size_t>(4096, (1U << 20) / load.record_bytes));
  bip::message_queue queue(bip::create_only, name.c_str(), places, load.record_bytes);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  const double seconds = seconds_of(
      options, sum_of(source.data(), source.size()) * load.records,
      [&] {
        for (std::uint64_t i = 0; i < load.records; ++i) {
          queue.send(source.data(), source.size(), 0);
        }
      },
      [&] {
        std::vector<std::byte> record(load.record_bytes);
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < load.records; ++i) {
          bip::message_queue::size_type bytes = 0;
          unsigned priority = 0;
          queue.receive(record.data(), record.size(), bytes, priority);
          sum += sum_of(record.data(), bytes);
        }
        return sum;
      });
  bip::message_queue::remove(name.c_str());
  return seconds;
}

double run_pipe(const Options& options, const Load& load) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) die("pipe");
  ::fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  const double seconds = seconds_of(
      options, sum_of(source.data(), source.size()) * load.records,
      [&] {
        for (std::uint64_t i = 0; i < load.records; ++i) {
          for (std::size_t at = 0; at < source.size();) {
            const ssize_t wrote = ::write(ends[1], source.data() + at, source.size() - at);
            if (wrote <= 0) die("write");
            at += static_cast<std::size_t>(wrote);
          }
        }
      },
      [&] {
        std::vector<std::byte> buffer(std::max<std::size_t>(load.record_bytes, 1 << 16));
        std::uint64_t sum = 0;
        std::uint64_t left = load.records * load.record_bytes;
        std::size_t kept = 0;  // bytes at the front that are not a whole word yet
        while (left > 0) {
          const ssize_t got = ::read(ends[0], buffer.data() + kept, buffer.size() - kept);
          if (got <= 0) die("read");
          left -= static_cast<std::uint64_t>(got);
          const std::size_t here = kept + static_cast<std::size_t>(got);
          sum += sum_of(buffer.data(), here / 8 * 8);
          kept = here % 8;
          std::memmove(buffer.data(), buffer.data() + here / 8 * 8, kept);
        }
        return sum;
      });
  ::close(ends[0]);
  ::close(ends[1]);
  return seconds;
}

// One process, no other side: the copy alone, into as much memory as the ring has.
double run_memcpy(const Options& options, const Load& load) {
  run_on(options.cpus[0]);
  const Shared memory(load.ring_bytes);
  const std::vector<std::byte> source = source_of(load.record_bytes);
  const std::uint64_t places = load.ring_bytes / load.record_bytes;
  const std::uint64_t start = now_ns();
  for (std::uint64_t i = 0; i < load.records; ++i) {
    std::memcpy(memory.data() + i % places * load.record_bytes, source.data(), load.record_bytes);
    asm volatile("" ::: "memory");  // the copy happens
  }
  return static_cast<double>(now_ns() - start) * 1e-9;
}

// ---- latency ------------------------------------------------------------------------------------

constexpr std::size_t kTripBytes = 64;

// Nanoseconds per round trip, both sides awake.
double trip_ringfeed(const Options& options, std::uint64_t trips) {
  const TwoLanes lanes(1 << 16);
  const std::vector<std::byte> source = source_of(kTripBytes);
  const auto forward = [&](TwoLanes::Lane& lane, const std::byte* record) {
    std::memcpy(lane.out.reserve(kTripBytes), record, kTripBytes);
    lane.out.put(kTripBytes, {});
    lane.commit();
  };
  const auto await = [](TwoLanes::Lane& lane) {
    for (;;) {
      if (const std::optional<RecordView> record = lane.in.peek()) return *record;
      pause();
    }
  };
  const double seconds = seconds_of(
      options, sum_of(source.data(), source.size()) * trips,
      [&] {
        TwoLanes::Lane lane(lanes, 0);
        forward(lane, source.data());
        for (std::uint64_t i = 1; i < trips; ++i) {
          const RecordView record = await(lane);
          lane.in.consume();
          forward(lane, record.bytes.data());  // one step: consumed and put
        }
        await(lane);
        lane.in.consume();
        lane.commit();
      },
      [&] {
        TwoLanes::Lane lane(lanes, 1);
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < trips; ++i) {
          const RecordView record = await(lane);
          sum += sum_of(record.bytes.data(), record.bytes.size());
          lane.in.consume();
          forward(lane, record.bytes.data());
        }
        return sum;
      });
  return seconds * 1e9 / static_cast<double>(trips);
}

double trip_bare(const Options& options, std::uint64_t trips) {
  const BareRing forth(1 << 16);
  const BareRing back_ring(1 << 16);
  const std::vector<std::byte> source = source_of(kTripBytes);
  const double seconds = seconds_of(
      options, sum_of(source.data(), source.size()) * trips,
      [&] {
        BareRing::End there(forth);
        BareRing::End back(back_ring);
        for (std::uint64_t i = 0; i < trips; ++i) {
          there.put(source.data(), source.size());
          back.get([](const std::byte*, std::uint64_t) {});
        }
      },
      [&] {
        BareRing::End there(forth);
        BareRing::End back(back_ring);
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < trips; ++i) {
          there.get([&](const std::byte* data, std::uint64_t bytes) {
            sum += sum_of(data, bytes);
            back.put(data, bytes);
          });
        }
        return sum;
      });
  return seconds * 1e9 / static_cast<double>(trips);
}

// Nanoseconds from the commit until a sleeping consumer has the record; the median of `times`.
double wake_ringfeed(const Options& options, std::uint64_t times) {
  const TwoLanes lanes(1 << 16);
  const Shared results(times * 8);
  auto* const latencies = reinterpret_cast<std::uint64_t*>(results.data());
  seconds_of(
      options, times,
      [&] {
        TwoLanes::Lane lane(lanes, 0);
        for (std::uint64_t i = 0; i < times; ++i) {
          // It says that it sleeps a moment before it does; a while later it does.
          while (lane.neighbour().page->waiting.load() == 0) pause();
          for (const std::uint64_t until = now_ns() + 50'000; now_ns() < until;) pause();
          std::byte* const room = lane.out.reserve(8);
          const std::uint64_t start = now_ns();
          std::memcpy(room, &start, 8);
          lane.out.put(8, {});
          lane.commit();
          while (lane.out.pending_records() != 0) pause();
        }
      },
      [&] {
        TwoLanes::Lane lane(lanes, 1);
        for (std::uint64_t i = 0; i < times; ++i) {
          std::optional<RecordView> record;
          while (!(record = lane.in.peek())) {
            lane.sleep_until([&] { return lane.in.tail_moved(); });
          }
          std::uint64_t start = 0;
          std::memcpy(&start, record->bytes.data(), 8);
          latencies[i] = now_ns() - start;
          lane.in.consume();
          lane.commit();
        }
        return times;
      });
  std::nth_element(latencies, latencies + times / 2, latencies + times);
  return static_cast<double>(latencies[times / 2]);  // NOLINT(bugprone-integer-division): an index
}

// ---- the run ------------------------------------------------------------------------------------

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string first_line_with(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "";
}

struct Bar {
  const char* what;
  std::string of;
  std::string to;
  double factor;  // of is at least factor times to; for times: at most
  bool at_most = false;
};

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--rounds") options.rounds = std::stoi(value);
    if (name == "--scale") options.scale = std::stod(value);
    if (name == "--only") options.only = value;
    if (name == "--cpus") {
      options.cpus[0] = std::stoi(value);
      options.cpus[1] = std::stoi(value.substr(value.find(',') + 1));
    }
  }
  if (argc % 2 == 0) {
    std::fprintf(stderr,
                 "usage: ring_bench [--rounds N] [--cpus A,B] [--scale F] [--only SUBSTRING]\n");
    return 2;
  }
  if (options.cpus[0] < 0) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) die("sched_getaffinity");
    std::size_t found = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) options.cpus[found++] = cpu;
    }
    if (found < 2) die("two CPUs are needed, one is allowed");
  }

  struct Size {
    const char* name;
    std::size_t bytes;
    std::uint64_t ring_bytes;
    std::uint64_t records;        // through a ring
    std::uint64_t records_peers;  // through the kernel or a lock
  };
  // The bare ring is as large as ours. At 64 B much depends on it: in 1 MiB the consumer keeps up
  // and both ends fight over the same lines, in 4 MiB it may fall behind and read at leisure.
  const Size sizes[] = {{"64B", 64, 1 << 20, 4'000'000, 500'000},
                        {"1KB", 1024, 4 << 20, 1'000'000, 300'000},
                        {"8KB", 8192, 4 << 20, 200'000, 100'000},
                        {"1MB", 1 << 20, 64 << 20, 1'500, 1'000}};

  // name → one value per round: bytes per second, or nanoseconds
  std::map<std::string, std::vector<double>> rates;
  std::map<std::string, std::vector<double>> times;
  const auto scaled = [&](std::uint64_t count) {
    return std::max<std::uint64_t>(
        100, static_cast<std::uint64_t>(static_cast<double>(count) * options.scale));
  };
  std::string load_average;
  std::getline(std::ifstream("/proc/loadavg"), load_average);
  for (int round = 0; round < options.rounds; ++round) {
    for (const Size& size : sizes) {
      const auto measure = [&](const std::string& who, std::uint64_t records, int per_step,
                               double (*runner)(const Options&, const Load&)) {
        const std::string name = who + "/" + size.name;
        if (name.find(options.only) == std::string::npos) return;
        const Load load{size.bytes, scaled(records), size.ring_bytes, per_step};
        rates[name].push_back(static_cast<double>(load.records) / runner(options, load));
      };
      measure("ringfeed_16_per_step", size.records, 16, run_ringfeed<false>);
      measure("ringfeed_16_awake", size.records, 16, run_ringfeed<true>);
      measure("bare_ring", size.records, 1, run_bare);
      measure("ringfeed_1_per_step", size.records, 1, run_ringfeed<false>);
      if (size.bytes == 64) {
        measure("one_cpu_ringfeed_16", size.records, 16, run_ringfeed_one_cpu);
        measure("one_cpu_ringfeed_1", size.records, 1, run_ringfeed_one_cpu);
        measure("one_cpu_bare_ring", size.records, 1, run_bare_one_cpu);
      }
      measure("message_queue", size.records_peers, 1, run_message_queue);
      measure("pipe", size.records_peers, 1, run_pipe);
      measure("memcpy", size.records, 1, run_memcpy);
    }
    const auto time = [&](const std::string& name, const std::function<double()>& runner) {
      if (name.find(options.only) != std::string::npos) times[name].push_back(runner());
    };
    time("round_trip/ringfeed", [&] { return trip_ringfeed(options, scaled(300'000)); });
    time("round_trip/bare_ring", [&] { return trip_bare(options, scaled(300'000)); });
    time("wake_up/ringfeed", [&] { return wake_ringfeed(options, scaled(2'000)); });
  }

  const std::vector<Bar> bars = {
      {"records/s, 16 a step", "ringfeed_16_per_step/64B", "message_queue/64B", 5.0},
      {"bytes/s, 16 a step", "ringfeed_16_per_step/8KB", "message_queue/8KB", 3.0},
      {"bytes/s, 16 a step", "ringfeed_16_per_step/1MB", "message_queue/1MB", 1.8},
      {"records/s, 16 a step", "ringfeed_16_per_step/64B", "bare_ring/64B", 1.0},
      {"bytes/s, 16 a step", "ringfeed_16_per_step/8KB", "bare_ring/8KB", 0.5},
      {"bytes/s, 16 a step", "ringfeed_16_per_step/1MB", "bare_ring/1MB", 2.0 / 3},
      {"records/s, 1 a step", "ringfeed_1_per_step/64B", "bare_ring/64B", 0.25},
      {"records/s, 16 a step, both ends on one CPU", "one_cpu_ringfeed_16/64B",
       "one_cpu_bare_ring/64B", 0.6},
      {"records/s, 1 a step, both ends on one CPU", "one_cpu_ringfeed_1/64B",
       "one_cpu_bare_ring/64B", 0.15},
      {"round trip", "round_trip/ringfeed", "round_trip/bare_ring", 3.0, true},
  };

  std::string json = "{\n";
  utsname system{};
  ::uname(&system);
  json += fmt::format(
      "  \"machine\": {{\"cpu\": \"{}\", \"kernel\": \"{}\", \"cpus\": [{}, {}], "
      "\"load_average\": \"{}\"}},\n",
      first_line_with("/proc/cpuinfo", "model name"), system.release, options.cpus[0],
      options.cpus[1], load_average);
  json += fmt::format("  \"rounds\": {},\n  \"throughput\": {{\n", options.rounds);
  bool first = true;
  for (const auto& [name, values] : rates) {
    const std::string size_name = name.substr(name.find('/') + 1);
    double bytes = 0;
    std::uint64_t ring_bytes = 0;
    for (const Size& size : sizes) {
      if (size_name != size.name) continue;
      bytes = static_cast<double>(size.bytes);
      ring_bytes = size.ring_bytes;
    }
    json += fmt::format(
        "{}    \"{}\": {{\"records_per_s\": {:.0f}, \"bytes_per_s\": {:.0f}, \"ring_bytes\": {}, "
        "\"least\": {:.0f}, "
        "\"most\": {:.0f}}}",
        first ? "" : ",\n", name, median(values), median(values) * bytes, ring_bytes,
        *std::min_element(values.begin(), values.end()),
        *std::max_element(values.begin(), values.end()));
    first = false;
  }
  json += "\n  },\n  \"latency_ns\": {\n";
  first = true;
  for (const auto& [name, values] : times) {
    json += fmt::format("{}    \"{}\": {:.0f}", first ? "" : ",\n", name, median(values));
    first = false;
  }
  json += "\n  },\n  \"bars\": [\n";
  first = true;
  for (const Bar& bar : bars) {
    const auto& of = bar.at_most ? times[bar.of] : rates[bar.of];
    const auto& to = bar.at_most ? times[bar.to] : rates[bar.to];
    if (of.empty() || to.empty()) continue;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
    const double ratio = median(ratios);
    json += fmt::format(
        "{}    {{\"what\": \"{}: {} / {}\", \"ratio\": {:.2f}, \"{}\": {:.2f}, \"met\": {}}}",
        first ? "" : ",\n", bar.what, bar.of, bar.to, ratio, bar.at_most ? "at_most" : "at_least",
        bar.factor, bar.at_most ? ratio <= bar.factor : ratio >= bar.factor);
    first = false;
  }
  json += "\n  ]\n}\n";
  std::fputs(json.c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace ringfeed::shm

int main(int argc, char** argv) { return ringfeed::shm::run(argc, argv); }
