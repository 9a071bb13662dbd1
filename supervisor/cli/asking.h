// Questions of verbs to the supervisor of a feed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "supervisor/control/client.h"

namespace ringfeed::cli {

inline constexpr int kReplyMs = 10'000;

// The answer; it has all that the request asks for. Throws Error (kIo) with the reason if the
// supervisor refuses, else as ControlClient::call().
[[nodiscard]] Reply answer_of(control::ControlClient& client, const Request& request,
                              int timeout_ms = kReplyMs,
                              const control::ControlClient::Meanwhile& meanwhile = {});

// The same of the feed of a name. Nothing: nobody answers there. Why has been said then, and
// `status` is the exit status for it.
[[nodiscard]] std::optional<Reply> answer_of_feed(
    const std::vector<std::string>& directories, const std::string& feed, const Request& request,
    int& status, int timeout_ms = kReplyMs,
    const control::ControlClient::Meanwhile& meanwhile = {});

}  // namespace ringfeed::cli
