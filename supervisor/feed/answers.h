// How a later answer reaches the client that asked.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "supervisor/control/server.h"

namespace ringfeed::process {

// A client that waits for an answer.
struct Asker {
  control::ConnectionId connection = 0;
  std::uint64_t request = 0;  // Reply.id
};

struct Answers {
  std::function<void(control::ConnectionId, const Reply&)> send;
  // Says that it cannot be done now, and why. Throws nothing: if the refusal itself fails, the
  // connection ends.
  std::function<void(const Asker&, const std::exception&)> refuse;

  // Runs a part of an answer. If it throws, the error becomes the answer.
  template <typename Part>
  void or_refuse(const Asker& asker, const Part& part) const {
    try {
      part();
    } catch (const std::exception& error) {
      refuse(asker, error);
    }
  }
};

}  // namespace ringfeed::process
