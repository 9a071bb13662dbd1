// How what is answered later than it was asked reaches who asked.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "supervisor/control/server.h"

namespace ringfeed::process {

// Who waits for an answer.
struct Asker {
  control::ConnectionId connection = 0;
  std::uint64_t request = 0;  // Reply.id
};

struct Answers {
  std::function<void(control::ConnectionId, const Reply&)> send;
  // Says that it cannot be done now, and why. Throws nothing: what goes wrong with that ends the
  // connection.
  std::function<void(const Asker&, const std::exception&)> refuse;

  // What a part of an answer throws is the answer.
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
