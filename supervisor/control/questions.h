// What whoever shows feeds asks again and again: status and metrics of each, without ever waiting
// for a supervisor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed {
class MetricsReply;
class Reply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::control {

// A connection that does not block, or why there is none: "it ...", one sentence. Nothing: nobody
// listens there.
[[nodiscard]] std::optional<Result<shm::Fd>> connected_to(const std::string& path);

// Sends both questions over it. False: the other end takes none.
[[nodiscard]] bool ask_both(int socket);

struct Answers {
  std::shared_ptr<const StatusReply> status = nullptr;
  std::shared_ptr<const MetricsReply> metrics = nullptr;

  [[nodiscard]] bool both() const { return status && metrics; }
  // Keeps what the packet brings. Of others, and of bytes that are no answer, it keeps nothing.
  // The reason if the supervisor refuses.
  [[nodiscard]] std::optional<std::string> take(const std::string& bytes);
};

}  // namespace ringfeed::control
