// Whether a configuration fits this machine: its memory, descriptors, processes and directories.
#pragma once

#include <string>

#include "ringfeed/shm/result.h"
#include "supervisor/doctor/feeds.h"
#include "supervisor/doctor/finding.h"
#include "supervisor/layout/feed_layout.h"
#include "supervisor/layout/memory.h"

namespace ringfeed {
class DataLoaderConfig;
}

namespace ringfeed::doctor {

// A configuration without mistakes, and what it becomes.
struct Planned {
  const DataLoaderConfig& config;
  const layout::FeedLayout& layout;
  std::string file;  // as it was given, for commands
  SocketPlace sockets;
  bool is_running = false;  // a feed of that name is there, with its memory and processes
};

[[nodiscard]] Findings look_at_configuration(const Planned& planned);

// Directories and files that it reads, and those that it writes.
[[nodiscard]] Findings look_at_paths(const Planned& planned);

}  // namespace ringfeed::doctor
