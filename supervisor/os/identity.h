// Which process is meant: a number alone is reused by the kernel, so a process is its number
// together with the time of its start, and its death is proved by a pidfd and by nothing else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::process {

struct Identity {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // /proc/PID/stat field 22
  friend bool operator==(const Identity&, const Identity&) = default;
};

// nullopt: there is no such process.
[[nodiscard]] std::optional<std::uint64_t> start_ticks(pid_t pid);
// A descriptor that becomes readable when the process has ended; empty if it has been reaped.
[[nodiscard]] shm::Fd open_pidfd(pid_t pid);
// Has the process behind the pidfd ended? (without waiting)
[[nodiscard]] bool has_ended(int pidfd);
// What can be said of a process from here. Unknown: the system refuses a look (no descriptor is to
// be had, or /proc hides it), which proves nothing.
enum class Life { kLives, kGone, kUnknown };
// Lives: it is there, is the one meant, and no zombie.
[[nodiscard]] Life life_of(const Identity& identity);
// It is not proved that the process has ended.
[[nodiscard]] bool is_alive(const Identity& identity);
// A pidfd of the very process that is meant; empty: it has ended. Errors: kIo (it cannot be looked
// at, so it may live).
[[nodiscard]] Result<shm::Fd> open_living(const Identity& identity);
// Kills the process meant, and no other that has got its number: false if it is not there any more.
bool kill_process(const Identity& identity, int signal);
// Name of the executable file, without its directory; "" if it cannot be seen.
[[nodiscard]] std::string executable_name(pid_t pid);
// The program that it is, without directories; of a Python the script or module too: "python3
// train.py". "": that cannot be seen. Never another argument: those may be secrets. The process may
// have written anything there.
[[nodiscard]] std::string program_name(const Identity& identity);
// The same of arguments with a NUL behind each.
[[nodiscard]] std::string program_of(std::string_view arguments);
// Why a living process does nothing: 'T' it is stopped, 't' a debugger holds it; else another
// letter of /proc/PID/stat, or '?'.
[[nodiscard]] char state_letter(const Identity& identity);
// The number that the process has in its own pid namespace; 0 if that cannot be seen.
[[nodiscard]] pid_t pid_in_own_namespace(pid_t pid);

}  // namespace ringfeed::process
