// Where feeds are found, and what has become of those that are there. Nothing is locked, made or
// removed: a feed that is just being started is not disturbed.
#pragma once

#include <string>
#include <vector>

#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

// The directory in which `ringfeed run` would put a socket, and what has named it: a command that
// sets something which comes after that would mend nothing.
struct SocketPlace {
  enum class Named { kEnvironment, kOption, kConfiguration };
  std::string directory;
  Named named = Named::kEnvironment;
  std::string file = {};  // the configuration; "": none is looked at
};
// `feed`: whose; "": of any feed.
[[nodiscard]] Findings look_at_socket_directory(const SocketPlace& sockets,
                                                const std::string& feed = {});

// All feeds that have left a file in these directories: live, orphaned and dead ones.
[[nodiscard]] Findings look_at_feeds(const std::vector<std::string>& directories);

}  // namespace ringfeed::doctor
