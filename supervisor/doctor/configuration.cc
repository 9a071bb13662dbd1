#include "supervisor/doctor/configuration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "proto/config.pb.h"
#include "ringfeed/shm/room.h"
#include "supervisor/doctor/control_groups.h"
#include "supervisor/doctor/feeds.h"
#include "supervisor/doctor/limits.h"
#include "supervisor/doctor/places.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

// Of a supervisor beside what its layout asks for: standard streams, loop, signals, timers, socket,
// lock, log, files of /proc that it keeps open, and those kept in reserve.
constexpr std::uint64_t kOwnFiles = 40;
constexpr std::uint64_t kFilesOfGroup = 8;  // process, setup socket, log; the same of a warm parent
constexpr std::uint64_t kFilesOfOutput = 3;  // opened anew for trainers: control, payload, batches
constexpr std::uint64_t kFilesForTrainers = 64;
constexpr std::uint64_t kFilesWanted = 65'536;
// Threads of a process beside its lanes: the first, large pages, and one that looks for the
// supervisor.
constexpr std::uint64_t kOwnTasks = 3;

std::string run_with(const Planned& planned, const std::string& setting) {
  return fmt::format("ringfeed run {} --set {}", shell_word(planned.file), setting);
}

// "lower reservoir_size_per_thread of sampler, or …", as the refusal of `run` has it.
std::string levers(const Planned& planned, std::uint64_t bytes) {
  layout::MemoryLimits limits;
  limits.available_bytes = bytes;
  limits.place = "it";
  const Status room = layout::check_memory(planned.layout, limits);
  if (room) return {};
  const std::string text = room.error().message().substr(0, room.error().message().find('\n'));
  const std::size_t at = text.find(": lower ");
  return at == text.npos ? std::string() : text.substr(at + 2);
}

struct Need {
  std::uint64_t all = 0;       // as `ringfeed check` says it
  std::uint64_t in_files = 0;  // of it, in storage.directory
  std::uint64_t largest = 0;   // segment
};
Need need_of(const Planned& planned) {
  Need need{.all = layout::memory_sum(planned.layout)};
  for (const layout::SegmentPlan& segment : planned.layout.segments) {
    need.largest = std::max(need.largest, segment.spec.bytes);
    if (!layout::stays_in_memory(segment.spec.kind)) need.in_files += segment.spec.bytes;
  }
  return need;
}

Finding too_much(const Planned& planned, const Need& need, const std::string& there,
                 std::uint64_t bytes, Remedy remedy) {
  const std::string lower = levers(planned, bytes);
  if (!lower.empty()) {
    remedy.advice += remedy.advice.empty() ? lower : "; or " + lower;
  }
  return wrong(
      fmt::format("feed '{}' needs {}, and {}", planned.layout.feed, shown_bytes(need.all), there),
      "it is refused at its start", std::move(remedy));
}

void look_at_storage(const Planned& planned, const Need& need, Findings& findings) {
  const std::string& directory = planned.config.storage().directory();
  const Place place = look_at_place(directory);
  if (place.error != 0 || !place.is_directory) {
    findings.push_back(wrong(fmt::format("storage.directory {} is no directory", directory),
                             "the feed is refused at its start",
                             {fmt::format("mkdir -p {}", shell_word(directory)), ""}));
  } else if (!planned.is_running && place.free_bytes < need.in_files) {
    findings.push_back(too_much(
        planned, need,
        fmt::format("storage.directory {} has {} free", directory, shown_bytes(place.free_bytes)),
        place.free_bytes, make_room(place, need.in_files)));
  }
}

void look_at_groups(const Planned& planned, const Need& need, Findings& findings) {
  const std::string groups = text_of(kGroupsFile).value_or("");
  const auto limit = memory_limit(groups, kGroupsRoot);
  if (limit && limit->left() < need.all) {
    findings.push_back(
        too_much(planned, need,
                 fmt::format("the control group has {} of {} left", shown_bytes(limit->left()),
                             shown_bytes(limit->value)),
                 limit->left(),
                 {write_line(std::to_string(limit->used + need.all + need.all / 8), limit->file),
                  "in a container raise its limit (docker update --memory)"}));
  }
  const auto brake = memory_brake(groups, kGroupsRoot);
  if (brake && brake->left() < need.all) {
    findings.push_back(better(
        fmt::format("feed '{}' needs {}, and its control group is slowed down after {} "
                    "(memory.high)",
                    planned.layout.feed, shown_bytes(need.all), shown_bytes(brake->left())),
        "beyond that each allocation waits until the kernel has taken memory back: stages stand "
        "still",
        {write_line("max", brake->file), ""}));
  }
}

void look_at_machine(const Planned& planned, const Need& need, Findings& findings) {
  const auto free = meminfo_in(text_of("/proc/meminfo").value_or(""), "MemAvailable");
  if (!free) {
    findings.push_back(not_known("/proc/meminfo does not say what memory is free"));
  } else if (*free < need.all) {
    findings.push_back(too_much(
        planned, need, fmt::format("this machine has {} free", shown_bytes(*free)), *free, {}));
  }
}

// Is all of it memory, wherever it lies?
bool is_in_memory(const Planned& planned) {
  const std::string& directory = planned.config.storage().directory();
  return directory.empty() || look_at_place(directory).is_tmpfs;
}

void look_at_memory_of(const Planned& planned, Findings& findings) {
  const Need need = need_of(planned);
  const std::uint64_t budget = planned.config.storage().memory_budget_bytes();
  const std::size_t before = findings.size();
  if (budget != 0 && budget < need.all) {
    findings.push_back(too_much(
        planned, need, fmt::format("storage.memory_budget_bytes allows {}", shown_bytes(budget)),
        budget, {run_with(planned, fmt::format("storage.memory_budget_bytes={}", need.all)), ""}));
  }
  if (!planned.config.storage().directory().empty()) look_at_storage(planned, need, findings);
  if (!planned.is_running && is_in_memory(planned)) {
    look_at_groups(planned, need, findings);
    look_at_machine(planned, need, findings);
  }
  layout::MemoryLimits addresses;
  addresses.available_bytes = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t mapped = soft_limit(RLIMIT_AS);
  addresses.address_bytes = mapped == kNoLimit ? 0 : mapped;
  if (const Status room = layout::check_memory(planned.layout, addresses); !room) {
    findings.push_back(wrong(room.error().message(), "it is refused at its start",
                             raise_limit("as", kNoLimit, hard_limit(RLIMIT_AS) != kNoLimit)));
  }
  if (const std::uint64_t limit = soft_limit(RLIMIT_FSIZE); limit < need.largest) {
    findings.push_back(
        wrong(fmt::format("the largest segment of feed '{}' has {}, and a file may have {} "
                          "(RLIMIT_FSIZE)",
                          planned.layout.feed, shown_bytes(need.largest), shown_bytes(limit)),
              "it ends at its start: segments in memory are files, too",
              raise_limit("fsize", kNoLimit, hard_limit(RLIMIT_FSIZE) != kNoLimit)));
  }
  if (findings.size() != before) return;
  findings.push_back(fine(planned.is_running
                              ? fmt::format("feed '{}' runs already, with {}", planned.layout.feed,
                                            shown_bytes(need.all))
                              : fmt::format("there is room for feed '{}', which needs {}",
                                            planned.layout.feed, shown_bytes(need.all))));
}

void look_at_files_of(const Planned& planned, Findings& findings) {
  const std::uint64_t least = planned.layout.segments.size() +
                              kFilesOfGroup * planned.layout.groups.size() +
                              kFilesOfOutput * planned.layout.outputs.size() + kOwnFiles;
  const std::uint64_t limit = hard_limit(RLIMIT_NOFILE);
  if (limit >= least + kFilesForTrainers) return;
  const std::string what = fmt::format(
      "the supervisor of feed '{}' has {} files open without any trainer, and {} are "
      "possible (RLIMIT_NOFILE)",
      planned.layout.feed, least, limit);
  const Remedy remedy = raise_limit("nofile", std::max(kFilesWanted, 2 * least), true);
  findings.push_back(limit < least
                         ? wrong(what, "it cannot start, or no stage that dies is replaced", remedy)
                         : better(what, "few trainers can attach: others are refused", remedy));
}

void look_at_tasks_of(const Planned& planned, Findings& findings) {
  if (planned.is_running) return;
  std::uint64_t need = kOwnTasks;
  for (const layout::GroupPlan& group : planned.layout.groups) {
    need += group.lanes.size() + kOwnTasks + (group.warm_stage.empty() ? 0 : 1);
  }
  const std::optional<TaskRoom> room = task_room();
  if (!room || room->left >= need) return;
  findings.push_back(wrong(fmt::format("feed '{}' has {} processes and threads, and {}",
                                       planned.layout.feed, need, room->text()),
                           "stages cannot be started until there is room", room->remedy(2 * need)));
}

}  // namespace

Findings look_at_configuration(const Planned& planned) {
  Findings findings;
  look_at_memory_of(planned, findings);
  look_at_files_of(planned, findings);
  look_at_tasks_of(planned, findings);
  for (Finding& one : look_at_paths(planned)) findings.push_back(std::move(one));
  for (Finding& one : look_at_socket_directory(planned.sockets, planned.layout.feed)) {
    if (one.severity != Severity::kFine) findings.push_back(std::move(one));
  }
  return findings;
}

}  // namespace ringfeed::doctor
