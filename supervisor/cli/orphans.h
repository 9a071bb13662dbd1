// Feeds as verbs look for them: those that answer, and those whose workers go on without a
// supervisor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "supervisor/control/client.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/metrics/json.h"

namespace ringfeed::cli {

// The directories in which a feed is looked for.
std::vector<std::string> look_in(const std::string& directory);
// They, for a message.
std::string places_text(const std::vector<std::string>& directories);
using ringfeed::metrics::json_text;

// A feed whose workers go on without a supervisor.
struct Orphan {
  std::string feed;
  std::string directory;
  control::LockRecord record;

  // "mix (4711), out (4712)"
  [[nodiscard]] std::string workers() const;
};
// `says`: which records cannot be read.
std::optional<Orphan> find_orphan(const std::vector<std::string>& directories,
                                  const std::string& feed, bool says = false);
std::vector<Orphan> find_orphans(const std::vector<std::string>& directories);
std::string orphan_text(const Orphan& orphan);
std::string orphan_json(const Orphan& orphan);

// Says that there is none, and which there are; the exit status for it.
int no_such_feed(const std::vector<std::string>& directories, const std::string& feed);
// The same where no name was given, and there is no feed at all.
int no_feed_at_all(const std::vector<std::string>& directories);

// Nothing: nobody answers. Why has been said then, and `status` is the exit status for it.
std::optional<control::ControlClient> find_feed(const std::vector<std::string>& directories,
                                                const std::string& feed, int& status);

}  // namespace ringfeed::cli
