// A few descriptors kept for bad times: when the process has used up its limit, or the system its
// own, they are given up so that what must not fail (the restart of a stage, an answer to `ringfeed
// status`) has some. They are taken again as soon as there are any.
#pragma once

#include <cstddef>
#include <vector>

#include "ringfeed/shm/segment.h"

namespace ringfeed::process {

// A restart takes eight at a time: setup socket and log pipe with both ends, standard input, the
// process, the setup, a file that is read.
inline constexpr std::size_t kReserveForRestart = 12;
inline constexpr std::size_t kReserveForClients = 4;

// Loads what exceptions need where they pass through the C library: it opens that at the first one,
// and ends the process if no descriptor is to be had then.
void load_unwinder();

// Makes the tables of the control messages now: protobuf makes them at their first use, and a
// process that has no memory then ends by a fault, sooner or later.
void load_messages();

class DescriptorReserve {
 public:
  explicit DescriptorReserve(std::size_t count) : count_(count) { refill(); }

  // Descriptors that were given up for one piece of work, which may borrow further ones on its way.
  // They are taken again when the last loan ends: sooner, the rest of the work would find none.
  class Loan {
   public:
    Loan(DescriptorReserve& reserve, std::size_t count) : reserve_(reserve) {
      ++reserve_.loans_;
      given_ = reserve_.give_up(count);
    }
    ~Loan() {
      --reserve_.loans_;
      reserve_.refill();
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    [[nodiscard]] std::size_t given() const { return given_; }

   private:
    DescriptorReserve& reserve_;
    std::size_t given_ = 0;
  };

  // Gives up to `count` back to the system, but keeps `leave`; how many it were.
  std::size_t give_up(std::size_t count, std::size_t leave = 0);
  // Takes what is missing, as far as there is any; nothing while there is a loan.
  void refill();
  [[nodiscard]] std::size_t size() const { return kept_.size(); }

 private:
  std::size_t count_;
  std::size_t loans_ = 0;
  std::vector<shm::Fd> kept_;
};

}  // namespace ringfeed::process
