// Processors: how many there are, their clock, their vector units, and which memory is theirs.
#include "supervisor/os/processors.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "supervisor/doctor/checks.h"
#include "supervisor/doctor/control_groups.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

constexpr const char* kClock = "/sys/devices/system/clocksource/clocksource0/";
constexpr const char* kNodes = "/sys/devices/system/node/";

// Clocks that a process reads without the kernel.
constexpr std::string_view kQuickClocks[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page",
                                             "arch_sys_counter"};

std::int64_t clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What it takes to read the clock, at best: others may disturb.
std::int64_t clock_reading_ns() {
  std::int64_t best = std::int64_t{1} << 62;
  for (int round = 0; round < 10; ++round) {
    constexpr int kReadings = 200;
    const std::int64_t before = clock_ns();
    for (int i = 0; i < kReadings; ++i) static_cast<void>(clock_ns());
    best = std::min(best, (clock_ns() - before) / kReadings);
  }
  return best;
}

// Of a node, those that this process may use; the list as the system writes it.
struct Node {
  int number = 0;
  std::string list;
  std::size_t own = 0;
};
std::vector<Node> nodes_of(const std::vector<int>& cpus) {
  std::vector<Node> nodes;
  for (const int number :
       cpus_in(line_of(std::string(kNodes) + "online").value_or("")).value_or(std::vector<int>())) {
    Node node{.number = number,
              .list = line_of(fmt::format("{}node{}/cpulist", kNodes, number)).value_or("")};
    for (const int cpu : cpus_in(node.list).value_or(std::vector<int>())) {
      node.own += std::ranges::count(cpus, cpu);
    }
    if (node.own != 0) nodes.push_back(std::move(node));
  }
  return nodes;
}

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}
#endif

}  // namespace

Findings look_at_clock() {
  const std::optional<std::string> current = line_of(std::string(kClock) + "current_clocksource");
  if (!current) return {not_known(fmt::format("{}current_clocksource cannot be read", kClock))};
  const std::int64_t ns = clock_reading_ns();
  if (std::ranges::count(kQuickClocks, *current) != 0) {
    return {fine(fmt::format("the clock is {}, and takes {} ns to read", *current, ns))};
  }
  const std::vector<std::string> all =
      words_in(text_of(std::string(kClock) + "available_clocksource").value_or(""));
  const auto quick = std::ranges::find_first_of(all, kQuickClocks);
  return {better(
      fmt::format("the clock is {}, and takes {} ns to read", *current, ns),
      "lanes, which measure their time, ask the kernel for it each time",
      quick != all.end()
          ? Remedy{write_line(*quick, std::string(kClock) + "current_clocksource"),
                   "lasts until the next boot; clocksource=tsc on the kernel's command line stays. "
                   "Where the kernel has given the TSC up as unsteady (dmesg), leave it"}
          : Remedy{.advice = "the kernel offers no better one here: dmesg says why it has given "
                             "the TSC up"})};
}

Findings look_at_vector_units() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx512()) return {fine("AVX-512, which stages use")};
  if (__builtin_cpu_supports("avx2") != 0) {
    return {fine("AVX2, which stages use (with AVX-512 they pack frames a third faster)")};
  }
  const std::string cpus = text_of("/proc/cpuinfo").value_or("");
  const bool is_virtual = cpus.find(" hypervisor") != std::string::npos;
  return {better("there are no vector units that stages know (AVX2, AVX-512)",
                 "frames of Lc0 are packed at a quarter of the rate, rows of a batch expanded at "
                 "four tenths",
                 {.advice = is_virtual ? "give the virtual machine the host's processor (qemu -cpu "
                                         "host; libvirt: <cpu mode='host-passthrough'/>)"
                                       : "another processor has them"})};
#else
  return {fine("stages use portable code on this processor")};
#endif
}

Findings look_at_numa() {
  if (!line_of(std::string(kNodes) + "online")) {
    return {fine("the system knows no memory of its own for some processors (NUMA)")};
  }
  const std::vector<Node> nodes = nodes_of(process::usable_processors());
  if (nodes.size() < 2) return {fine("the processors of this process have one memory (NUMA node)")};
  Findings findings;
  const Node& most = *std::ranges::max_element(nodes, {}, &Node::own);
  findings.push_back(better(
      fmt::format("this process may run on {} NUMA nodes", nodes.size()),
      "all memory of a feed is reserved by its supervisor, on the node where that runs; lanes and "
      "trainers on other nodes read it from afar",
      {fmt::format("taskset -cp {} $$", most.list),
       fmt::format("binds this shell, and what it starts, to node {}, which has most of its "
                   "processors; trainers belong there too",
                   most.number)}));
  if (line_of("/proc/sys/kernel/numa_balancing").value_or("0") != "0") {
    findings.push_back(
        better("the kernel moves pages between NUMA nodes (kernel.numa_balancing)",
               "it takes pages away now and then to see who reads them: lanes run into faults",
               {as_root("sysctl kernel.numa_balancing=0"), ""}));
  }
  return findings;
}

Findings look_at_processors() {
  const std::vector<int> cpus = process::usable_processors();
  if (cpus.empty()) return {not_known("the system does not say which processors may be used")};
  const auto limit = processor_limit(text_of(kGroupsFile).value_or(""), kGroupsRoot);
  const double count = static_cast<double>(cpus.size());
  if (!limit || limit->processors >= count) {
    return {
        fine(fmt::format("{} may be used, and no control group limits their time", cpus.size()))};
  }
  // As many as are paid for.
  const auto whole = std::max<std::size_t>(1, static_cast<std::size_t>(limit->processors));
  std::string list;
  for (std::size_t i = 0; i < whole; ++i) list += fmt::format("{}{}", i == 0 ? "" : ",", cpus[i]);
  const Remedy remedy =
      limit->processors < 1
          ? Remedy{write_line(limit->none, limit->file),
                   "no limit; in a container raise it (docker "
                   "update --cpus)"}
          : Remedy{fmt::format("taskset -cp {} $$", list),
                   "binds this shell, and what it starts, to as many; or raise the limit "
                   "(docker update --cpus)"};
  return {
      better(fmt::format("{} processors may be used, but a control group gives time for {:.3g}",
                         cpus.size(), limit->processors),
             "stage groups are formed for all of them, and when the time of a period is used up "
             "all lanes stand still until the next",
             remedy)};
}

}  // namespace ringfeed::doctor
