// Records that workers die on. A record is condemned after `max_attempts` deaths that it certainly
// caused, or twice as many that it may have caused.
//
// When a worker dies, the page of each of its lanes tells which record the lane was working on, if
// any. The blame goes to:
//   a lane faulted or stalled       that lane's record, and no other's
//   a fault that no lane raised     came from outside: nobody's
//   SIGKILL, an exit status         perhaps the record's (no memory was left), perhaps not: each
//                                   record that was being worked on counts half, and at most one
//                                   of them is condemned: that of the lane that has been without a
//                                   step for longest; the others are let go
// A lane may work on several records together, after which it tries them one by one. So they are
// condemned together only after two deaths at least, and deaths that they caused together are those
// of the record that turns out to be the cause.
#pragma once

#include <cstdint>
#include <map>

namespace ringfeed::process {

enum class Blame : std::uint8_t { kNone, kPerhaps, kCertain };

// `lane_faulted`, `lane_stalled`: this very lane; `any`: some lane of the process.
[[nodiscard]] Blame blame_for(bool lane_faulted, bool any_faulted, bool lane_stalled,
                              bool any_stalled, bool fault_signal) noexcept;

class Suspects {
 public:
  explicit Suspects(std::uint32_t max_attempts) : max_attempts_(max_attempts) {}

  struct Verdict {
    bool condemned = false;    // by this death; true only once
    std::uint32_t deaths = 0;  // on this record, in a row, and before that on it and others
  };
  // A worker died while its lane worked on `key`. If the lane's last death was on another record,
  // that one is let go.
  Verdict on_death(std::uint32_t lane, std::uint64_t key, Blame blame);
  // Another record was to blame.
  void acquit(std::uint32_t lane) { by_lane_.erase(lane); }

 private:
  struct Suspect {
    std::uint64_t key = 0;
    std::uint32_t halves = 0;
    std::uint32_t deaths = 0;
  };
  std::uint32_t max_attempts_;
  std::map<std::uint32_t, Suspect> by_lane_;
};

}  // namespace ringfeed::process
