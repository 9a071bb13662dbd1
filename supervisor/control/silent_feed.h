// A feed on whose socket nobody answers: what can be told of it from here.
//
// Its record says it, which root may read of any user; and the kernel, which shows every user who
// keeps locks on which file (/proc/locks): the supervisor as long as it lives, and its workers.
// What another user has written is shown, and nothing is done because of it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "supervisor/control/feed_lock.h"

namespace ringfeed::control {

struct SilentFeed {
  // STARTING: a supervisor has taken its name; ORPHANED: it is dead, and workers go on; FAILED;
  // DEAD: all its processes have died; NO_ANSWER: it cannot be told from here whether any lives.
  std::string state;
  std::string reason;      // of that, and what to do
  pid_t supervisor = 0;    // 0: not known
  uid_t owner = 0;         // of its files
  LockRecord record = {};  // empty: it cannot be read
};

// nullopt: there is none, or nothing of it but an empty lock. Takes no lock, so it is in nobody's
// way.
[[nodiscard]] std::optional<SilentFeed> find_silent(const std::string& directory,
                                                    const std::string& feed);

// Who keeps locks on a feed's lock file, of whatever user.
struct LockHolders {
  bool known = false;  // false: this system does not say it here
  pid_t supervisor = 0;
  bool workers = false;
};
[[nodiscard]] LockHolders holders_of(const std::string& lock_path);

}  // namespace ringfeed::control
