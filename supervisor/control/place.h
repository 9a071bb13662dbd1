// Where a feed is found: its socket and its lock file, side by side in one directory.
//
//   <directory>/<feed>.sock   SOCK_SEQPACKET, mode 0600
//   <directory>/<feed>.lock   held (flock) by the supervisor for as long as it lives; says who it
//                             is, who its workers are, which files it has (feed_lock.h)
// Directory: control.directory of the configuration, else $RINGFEED_SOCKET_DIR, else
// $XDG_RUNTIME_DIR/ringfeed, else /run/ringfeed. Clients look by the same rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::control {

struct Environment {
  std::string socket_dir;       // $RINGFEED_SOCKET_DIR
  std::string runtime_dir;      // $XDG_RUNTIME_DIR
  std::string state_home = {};  // $XDG_STATE_HOME, or ~/.local/state
};
[[nodiscard]] Environment read_environment();

inline constexpr std::string_view kSystemDirectory = "/run/ringfeed";

// The directory for a feed's own socket.
[[nodiscard]] std::string socket_directory(const std::string& configured, const Environment& env);
// Where a client looks for feeds, in this order: a given directory alone; else
// $RINGFEED_SOCKET_DIR alone; else $XDG_RUNTIME_DIR/ringfeed and /run/ringfeed.
[[nodiscard]] std::vector<std::string> search_directories(const std::string& given,
                                                          const Environment& env);

// Where a feed keeps the records that it has set aside: the configured directory, else
// $XDG_STATE_HOME/ringfeed/<feed>/dead-letters, else ~/.local/state/ringfeed/<feed>/dead-letters.
[[nodiscard]] std::string dead_letter_directory(const std::string& configured,
                                                const std::string& feed, const Environment& env);

[[nodiscard]] std::string socket_path(const std::string& directory, const std::string& feed);
[[nodiscard]] std::string lock_path(const std::string& directory, const std::string& feed);

// Creates the directory (0700) if it is missing. Throws Error (kIo) that says what to set, also if
// it belongs to another user (who could put his socket in place of ours) or if the socket's path
// would be too long for the system.
void prepare_directory(const std::string& directory, const std::string& feed);

// Names of the feeds that have a lock file or a socket there, sorted.
[[nodiscard]] std::vector<std::string> feeds_in(const std::string& directory);

}  // namespace ringfeed::control
