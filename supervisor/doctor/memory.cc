// Memory: large pages, what is free, and what mounts of shared memory have to do with it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ringfeed/shm/large_pages.h"
#include "ringfeed/shm/room.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/doctor/control_groups.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

constexpr const char* kLargePages = "/sys/kernel/mm/transparent_hugepage/";

// 0, or why the kernel gives memory of a feed no large page, found out with one.
int try_large_page() {
  constexpr std::size_t kBytes = 2 * shm::kLargePageBytes;
  const shm::Fd fd(::memfd_create("ringfeed doctor", MFD_CLOEXEC));
  if (!fd || ::fallocate(fd.get(), 0, 0, kBytes) != 0) return errno;
  void* const place = ::mmap(shm::place_for_large_pages(kBytes), kBytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED, fd.get(), 0);
  if (place == MAP_FAILED) return errno;
  auto* const bytes = static_cast<std::byte*>(place);
  const std::size_t skew = reinterpret_cast<std::uintptr_t>(bytes) % shm::kLargePageBytes;
  std::byte* const at = bytes + (skew == 0 ? 0 : shm::kLargePageBytes - skew);
  *at = std::byte{1};
  const int error = shm::gather_pages(at, shm::kLargePageBytes) ? 0 : errno;
  ::munmap(place, kBytes);
  return error;
}

Finding no_large_pages(int error) {
  constexpr const char* kCost =
      "memory stays in small pages, which the kernel takes apart one by one: a stage with a "
      "reservoir of a million frames is back 150 ms after its death and not after 23";
  const std::string what =
      fmt::format("memory of a feed gets no large pages ({})", std::strerror(error));
  if (error == ENOMEM || error == EAGAIN || error == EBUSY) {
    return better(what, kCost,
                  {as_root("sysctl vm.compact_memory=1"), "gathers free memory into large pages"});
  }
  const std::string status = text_of("/proc/self/status").value_or("");
  if (status_in(status, "THP_enabled").value_or("1") == "0") {
    return better(what + ": this process may have none (PR_SET_THP_DISABLE)", kCost,
                  {.advice = "it is inherited: start ringfeed from another program, or mend the "
                             "one that has set it"});
  }
  const std::string file = std::string(kLargePages) + "shmem_enabled";
  const std::string chosen = chosen_in(text_of(file).value_or(""));
  if (chosen == "deny") {
    return better(what + ": shmem_enabled is deny", kCost,
                  {write_line("never", file),
                   "lasts until "
                   "the next boot"});
  }
  return better(what, kCost,
                {.advice = "Linux 6.1 or newer gives them (CONFIG_SHMEM, "
                           "CONFIG_TRANSPARENT_HUGEPAGE)"});
}

// With strict accounting more than this is refused, whatever is free.
std::optional<std::uint64_t> commit_left(const std::string& meminfo) {
  if (line_of("/proc/sys/vm/overcommit_memory").value_or("0") != "2") return std::nullopt;
  const auto limit = meminfo_in(meminfo, "CommitLimit");
  const auto used = meminfo_in(meminfo, "Committed_AS");
  if (!limit || !used) return std::nullopt;
  return *limit > *used ? *limit - *used : 0;
}

// The smallest feed that a person would run takes some; a reservoir takes gigabytes.
constexpr std::uint64_t kLittleMemory = std::uint64_t{256} << 20;

}  // namespace

Findings look_at_large_pages() {
  Findings findings;
  const int error = try_large_page();
  findings.push_back(error != 0 ? no_large_pages(error)
                                : fine("memory of a feed gets large pages when it is in use"));
  const std::string file = std::string(kLargePages) + "enabled";
  const std::optional<std::string> text = text_of(file);
  if (!text) {
    findings.push_back(not_known(fmt::format("{} cannot be read", file)));
  } else if (chosen_in(*text) == "never") {
    findings.push_back(better(
        "the system gives private memory no large pages (transparent_hugepage/enabled is never)",
        "a store of inflated games (store_bytes) and the lists of translation's sentences lie in "
        "small pages",
        {write_line("madvise", file), "lasts until the next boot"}));
  }
  return findings;
}

Findings look_at_memory() {
  const std::optional<std::string> meminfo = text_of("/proc/meminfo");
  if (!meminfo) return {not_known("/proc/meminfo cannot be read")};
  const auto free = meminfo_in(*meminfo, "MemAvailable");
  const auto total = meminfo_in(*meminfo, "MemTotal");
  if (!free || !total) return {not_known("/proc/meminfo does not say what is free")};
  Findings findings;
  const std::string groups = text_of(kGroupsFile).value_or("");
  const std::optional<GroupLimit> limit = memory_limit(groups, kGroupsRoot);
  if (limit && limit->left() < kLittleMemory) {
    findings.push_back(wrong(
        fmt::format("the control group has {} of {} left", shown_bytes(limit->left()),
                    shown_bytes(limit->value)),
        "a feed that needs more is refused at its start; page cache counts as used",
        {write_line(std::to_string(limit->used + 4 * kLittleMemory), limit->file),
         "gives it a gibibyte more; in a container raise its limit (docker update --memory)"}));
  } else if (*free < kLittleMemory) {
    findings.push_back(
        wrong(fmt::format("{} of {} are free", shown_bytes(*free), shown_bytes(*total)),
              "a feed that needs more is refused at its start",
              {.advice = "end what takes it: ps -eo rss,pid,args --sort=-rss | head"}));
  }
  if (const auto brake = memory_brake(groups, kGroupsRoot);
      brake && brake->left() < kLittleMemory) {
    findings.push_back(better(
        fmt::format("the control group is slowed down when it takes {} more (memory.high)",
                    shown_bytes(brake->left())),
        "beyond that each allocation waits until the kernel has taken memory back: stages stand "
        "still",
        {write_line("max", brake->file), ""}));
  }
  if (const auto left = commit_left(*meminfo); left && *left < kLittleMemory) {
    findings.push_back(
        wrong(fmt::format("the system promises no more than {} more (vm.overcommit_memory=2)",
                          shown_bytes(*left)),
              "memory of a feed cannot be reserved, although it is free",
              {as_root("sysctl vm.overcommit_memory=0"), ""}));
  }
  if (!findings.empty()) return findings;
  return {fine(limit ? fmt::format("{} of {} are free, {} of {} in the control group",
                                   shown_bytes(*free), shown_bytes(*total),
                                   shown_bytes(limit->left()), shown_bytes(limit->value))
                     : fmt::format("{} of {} are free, and no control group limits them",
                                   shown_bytes(*free), shown_bytes(*total)))};
}

Findings look_at_shared_memory_mount() {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0) return {fine("there is no /dev/shm, and feeds need none")};
  return {fine(fmt::format("/dev/shm has {}; feeds are not in it, unless storage.directory is",
                           shown_bytes(std::uint64_t{info.f_blocks} * info.f_frsize)))};
}

}  // namespace ringfeed::doctor
