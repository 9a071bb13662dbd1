// Some lanes of a feed, run by workers that belong to this process alone: what `ringfeed try` has
// in front of a stage, and the stage itself if it is not in Python.
//
// The memory has no name, there is no socket and no lock, and the workers die with this process.
// Nobody is restarted. This process plays the lanes that are not there: it takes what goes to them,
// and gives what would come from them. Batches come to nobody, as in replay.h.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ringfeed/shm/ring.h"
#include "supervisor/feed/ring_ends.h"
#include "supervisor/group/log_tail.h"
#include "supervisor/group/spawn.h"
#include "supervisor/layout/feed_layout.h"
#include "supervisor/layout/feed_memory.h"
#include "supervisor/layout/worker_setup.h"

namespace ringfeed::process {

class FeedPart {
 public:
  // `layout` comes from only_lanes(). `on_line` gets what the workers say. Throws Error: kNoMemory,
  // kIo, kNotFound (a program); nothing is left behind then.
  FeedPart(layout::FeedLayout layout, const layout::SetupFacts& facts, const std::string& worker,
           LogTail::Sink on_line);
  // Ends the workers.
  ~FeedPart();
  FeedPart(const FeedPart&) = delete;
  FeedPart& operator=(const FeedPart&) = delete;

  [[nodiscard]] const layout::FeedLayout& layout() const { return memory_.layout(); }

  // The next record that goes to a lane that is not there.
  struct Record {
    std::uint32_t ring = 0;  // in FeedLayout::rings
    std::vector<std::byte> bytes;
    shm::RecordInfo info;
  };
  [[nodiscard]] std::optional<Record> take();
  // A record for one of the rings that come from lanes that are not there. False: there is no room
  // now. Throws Error (kInvalidArgument): it is larger than the ring takes.
  [[nodiscard]] bool give(std::uint32_t ring, std::span<const std::byte> bytes,
                          const shm::RecordInfo& info);
  // Nothing more is given.
  void close_inputs();

  // Adds what can be waited for; then hears what the workers have to say, without waiting.
  void add_watched(std::vector<pollfd>& to) const;
  void attend();
  // All lanes have come to their end, and all that they put out has been taken.
  [[nodiscard]] bool finished();
  // How a worker ended that should not have, with its group; "": none did.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  // Batches that have been written, and their rows.
  struct Batches {
    std::uint64_t count = 0;
    std::uint64_t rows = 0;
  };
  [[nodiscard]] Batches batches();
  [[nodiscard]] bool writes_batches() const { return !outputs_.empty(); }

  // Of the lanes of a stage, added up, without zeros.
  using Counters = std::vector<std::pair<std::string, std::uint64_t>>;
  [[nodiscard]] Counters counters(const std::string& stage) const;
  // Names of its stages, sources first.
  [[nodiscard]] std::vector<std::string> stages() const;
  // Ends the workers now; what they have counted stays.
  void end();

 private:
  struct Worker {
    std::uint32_t group = 0;
    Spawned process;
    LogTail tail;
    std::string failure;    // what it said about its end
    bool finished = false;  // and the process stays, idle
    bool ended = false;
  };
  void start(const layout::SetupFacts& facts, const std::string& binary);
  void open_rings();
  void admit_groups();
  void hear(Worker& worker);
  void read_messages(Worker& worker);
  void read_log(Worker& worker);
  void after_end(Worker& worker);

  layout::FeedMemory memory_;
  LogTail::Sink on_line_;
  std::vector<std::unique_ptr<Worker>> workers_;
  struct Leaving {
    std::uint32_t ring;
    std::unique_ptr<RingTaker> taker;
  };
  struct Entering {
    std::uint32_t ring;
    std::unique_ptr<RingGiver> giver;
  };
  std::vector<Leaving> leaving_;
  std::size_t next_ = 0;  // of leaving_, in turn
  std::vector<Entering> entering_;
  // The lanes that write batches, and the newest of each that has been looked at.
  struct Output {
    std::uint32_t output;
    std::uint32_t number;
    std::uint64_t newest = 0;
  };
  std::vector<Output> outputs_;
  Batches batches_;
  std::string failure_;
};

}  // namespace ringfeed::process
