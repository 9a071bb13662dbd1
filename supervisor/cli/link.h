// The socket of packets to the program that starts a feed of its own (`run --link-fd`).
//
//   program -> run   the plan of the configuration, as `ringfeed-worker --plan` prints it. It saves
//                    the start of that program. Nothing or an empty packet: the worker is asked.
//   run -> program   kListening, once the feed's socket is there. So nobody has to look for it.
//
// Whoever dies, the other end finds it closed, and goes on without.
#pragma once

#include <optional>
#include <string_view>

#include "ringfeed/shm/segment.h"

namespace ringfeed {
class PipelinePlan;
}

namespace ringfeed::cli {

inline constexpr std::string_view kListening = "listening";

// Takes the descriptor over. Throws Error (kInvalidArgument) if it is no such socket; -1: empty.
[[nodiscard]] shm::Fd take_link(int fd);
// Waits for it, a second at most. nullopt: there is none, or none of this version.
[[nodiscard]] std::optional<PipelinePlan> plan_on(int link);
void say_listening(int link);

}  // namespace ringfeed::cli
