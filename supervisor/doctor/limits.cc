#include "supervisor/doctor/limits.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>

#include "ringfeed/shm/file.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/doctor/control_groups.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

std::uint64_t as_limit(rlim_t value) { return value == RLIM_INFINITY ? kNoLimit : value; }

rlimit limit_of(__rlimit_resource resource) {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(resource, &limit);
  return limit;
}

// In a user namespace root is one of its users, and its capabilities do not count for limits.
bool is_outside_namespaces() {
  return words_in(line_of("/proc/self/uid_map").value_or("")) ==
         std::vector<std::string>{"0", "0", "4294967295"};
}

// Root outside of all user namespaces, whom RLIMIT_NPROC does not count.
bool is_exempt() { return ::getuid() == 0 && is_outside_namespaces(); }

// Whether a hard limit can be raised from this shell: by this process, or else by what sudo starts,
// which has no more capabilities than those of the bounding set. Containers take this one away.
bool can_raise() {
  const std::string status = text_of("/proc/self/status").value_or("");
  const char* const set = ::geteuid() == 0 ? "CapEff" : "CapBnd";
  return is_outside_namespaces() && has_capability(status, set, CAP_SYS_RESOURCE);
}

// Processes and threads of this user that /proc shows.
std::uint64_t tasks_of_user() {
  const std::string uid = std::to_string(::getuid());
  std::uint64_t count = 0;
  const Result<std::vector<std::string>> names = shm::names_in("/proc");
  if (!names) return 0;
  for (const std::string& name : *names) {
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    const std::optional<std::string> status = text_of("/proc/" + name + "/status");
    if (!status) continue;
    const std::vector<std::string> users = words_in(status_in(*status, "Uid").value_or(""));
    if (users.empty() || users[0] != uid) continue;
    count += limit_in(status_in(*status, "Threads").value_or("1")).value_or(1);
  }
  return count;
}

// One supervisor and one worker of each of ten groups, with their lanes; a smaller feed takes less.
constexpr std::uint64_t kFewTasks = 64;
// For a feed of a dozen lanes, its workers' data files and a few trainers.
constexpr std::uint64_t kFewFiles = 1024;
// Measured: the six stages of Lc0 start with 92 if they are one group with two slots (not with 88),
// and with 96 in three groups, whose supervisor has 101 open where it may; at 64 both fail.
constexpr std::uint64_t kFilesMin = 92;
constexpr std::uint64_t kEnoughFiles = 65'536;
constexpr std::uint64_t kUsualStack = std::uint64_t{8} << 20;

// Docker has -1 for no limit, and no option for the address space.
std::string container_option(const std::string& name, const std::string& text) {
  if (name == "as") return {};
  return fmt::format("docker run --ulimit {0}={1}:{1}, ", name, text == "unlimited" ? "-1" : text);
}

// The bit of /proc/self/coredump_filter for shared memory without a file, which a memfd is.
constexpr unsigned long kDumpsSharedMemory = 2;

}  // namespace

std::uint64_t hard_limit(__rlimit_resource resource) {
  return as_limit(limit_of(resource).rlim_max);
}
std::uint64_t soft_limit(__rlimit_resource resource) {
  return as_limit(limit_of(resource).rlim_cur);
}

Remedy raise_limit(const std::string& name, std::uint64_t value, bool beyond_hard) {
  const std::string text = value == kNoLimit ? "unlimited" : std::to_string(value);
  if (beyond_hard && !can_raise()) {
    return {.advice = fmt::format(
                "nobody can raise a hard limit from here (CAP_SYS_RESOURCE is missing): raise it "
                "outside, with a line in /etc/security/limits.d (limits.conf) and a new login, {}"
                "or Limit... in the unit of a service",
                container_option(name, text))};
  }
  const std::string command =
      fmt::format("prlimit --pid $$ --{}={}{}", name, text, beyond_hard ? ":" + text : ":");
  return {beyond_hard ? as_root(command) : command,
          "for this shell and what it starts; /etc/security/limits.d has it for all of a user's, "
          "Limit... lines of a unit for a service"};
}

Remedy TaskRoom::remedy(std::uint64_t more) const {
  const std::uint64_t wanted = limit - std::min(limit, left) + more;
  if (file.empty()) return raise_limit("nproc", wanted, true);
  return {write_line(std::to_string(wanted), file),
          "in a container raise its limit (docker update --pids-limit)"};
}

std::string TaskRoom::text() const {
  return fmt::format("{} more processes and threads can be started ({})", left,
                     file.empty() ? fmt::format("RLIMIT_NPROC is {}", limit)
                                  : fmt::format("the control group's pids.max is {}", limit));
}

std::optional<TaskRoom> task_room() {
  std::optional<TaskRoom> room;
  const std::uint64_t limit = soft_limit(RLIMIT_NPROC);
  if (limit != kNoLimit && !is_exempt()) {
    const std::uint64_t used = tasks_of_user();
    room = TaskRoom{.left = limit > used ? limit - used : 0, .limit = limit};
  }
  const auto group = process_limit(text_of(kGroupsFile).value_or(""), kGroupsRoot);
  if (group && (!room || group->left() < room->left)) {
    room = TaskRoom{group->left(), group->value, group->file};
  }
  return room;
}

Findings look_at_open_files() {
  const std::uint64_t limit = hard_limit(RLIMIT_NOFILE);
  const std::string what =
      limit == kNoLimit ? "a process may have any number of files open"
                        : fmt::format("a process may have {} files open (RLIMIT_NOFILE)", limit);
  if (limit >= kFewFiles) return {fine(what)};
  const std::string cost =
      "a supervisor has one for each queue between two lanes and for each trainer, a worker for "
      "its queues and data files";
  const Remedy remedy = raise_limit("nofile", kEnoughFiles, true);
  if (limit < kFilesMin)
    return {wrong(what, cost + ": the feed of Lc0 does not start, even as a single stage group",
                  remedy)};
  return {better(what, cost + ": a feed of many lanes cannot start, trainers are refused", remedy)};
}

Findings look_at_processes() {
  const std::optional<TaskRoom> room = task_room();
  if (!room) return {fine("the number of processes has no limit for this user")};
  if (room->left >= kFewTasks) return {fine(room->text())};
  const std::string cost =
      "a feed takes a process for each stage group and a thread for each lane: it cannot start, or "
      "a stage that has died is not replaced until there is room";
  const Remedy remedy = room->remedy(16 * kFewTasks);
  return {room->left < kFewTasks / 4 ? wrong(room->text(), cost, remedy)
                                     : better(room->text(), cost, remedy)};
}

Findings look_at_address_space() {
  const std::uint64_t limit = soft_limit(RLIMIT_AS);
  if (limit == kNoLimit) return {fine("a process may map any amount of memory")};
  return {better(
      fmt::format("a process may map {} (RLIMIT_AS, ulimit -v)", shown_bytes(limit)),
      "a supervisor maps all of its feed and a stage group the room that it may grow in: a feed "
      "that maps more is refused at its start",
      raise_limit("as", kNoLimit, hard_limit(RLIMIT_AS) != kNoLimit))};
}

// The program itself has raised the soft limit by now, if that was too low to run at all.
Findings look_at_stack() {
  const std::uint64_t limit = hard_limit(RLIMIT_STACK);
  if (limit >= kUsualStack) return {fine("threads may have the usual stack of 8 MiB")};
  return {better(fmt::format("a thread may have {} of stack (RLIMIT_STACK)", shown_bytes(limit)),
                 "a stage in Python or of a plug-in that calls itself deeply dies of SIGSEGV where "
                 "8 MiB would do",
                 raise_limit("stack", kUsualStack, true))};
}

Findings look_at_file_size() {
  const std::uint64_t limit = soft_limit(RLIMIT_FSIZE);
  if (limit == kNoLimit) return {fine("files may have any size")};
  return {better(
      fmt::format("a file may have {} (RLIMIT_FSIZE, ulimit -f)", shown_bytes(limit)),
      "each segment of a feed is such a file, in memory too: a feed with a larger one ends at its "
      "start, and logs and snapshots end there",
      raise_limit("fsize", kNoLimit, hard_limit(RLIMIT_FSIZE) != kNoLimit))};
}

Findings look_at_core_dumps() {
  const std::optional<std::string> pattern = line_of("/proc/sys/kernel/core_pattern");
  const std::optional<std::string> filter = line_of("/proc/self/coredump_filter");
  if (!pattern || !filter) return {not_known("/proc does not say what becomes of a core dump")};
  // A program that takes dumps gets them whatever the limit is.
  const bool piped = pattern->starts_with('|');
  const bool dumps = piped || (soft_limit(RLIMIT_CORE) != 0 && !pattern->empty());
  if (!dumps) return {fine("a process that crashes leaves no core dump")};
  const unsigned long bits = std::strtoul(filter->c_str(), nullptr, 16);
  if ((bits & kDumpsSharedMemory) == 0) {
    return {fine("a process that crashes leaves a core dump without the shared memory")};
  }
  return {better(
      fmt::format("a process that crashes leaves a core dump with all shared memory that it maps{}",
                  piped ? " (kernel.core_pattern is a program)" : ""),
      "its death is known only when the dump is written, so a stage that crashes is away for as "
      "long as its reservoir and batches take to be written",
      {fmt::format("echo {:#x} > /proc/$$/coredump_filter", bits & ~kDumpsSharedMemory),
       "leaves shared memory out of the dumps of this shell and what it starts"})};
}

Findings look_at_locked_memory() {
  const std::uint64_t limit = soft_limit(RLIMIT_MEMLOCK);
  return {
      fine(fmt::format("{} may be locked; ringfeed locks nothing, and memory pinned for a GPU "
                       "does not count",
                       limit == kNoLimit ? "any amount" : shown_bytes(limit)))};
}

}  // namespace ringfeed::doctor
