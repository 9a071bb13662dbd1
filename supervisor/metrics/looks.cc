#include "supervisor/metrics/looks.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>

#include "supervisor/metrics/read.h"
#include "supervisor/os/processors.h"

namespace ringfeed::metrics {
namespace {

// Names of threads are cut to so many characters by the kernel.
constexpr std::size_t kThreadNameMax = 15;
constexpr std::uint32_t kSearchesMax = 40;

shm::Fd open_to_read(const std::string& path) {
  return shm::Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// What the file says now; empty: it is gone.
std::string_view read_again(const shm::Fd& file, std::span<char> room) {
  const ssize_t got = ::pread(file.get(), room.data(), room.size() - 1, 0);
  if (got <= 0) return {};
  room[static_cast<std::size_t>(got)] = '\0';
  return {room.data(), static_cast<std::size_t>(got)};
}

// Of a line of /proc/PID/stat: on processors, in nanoseconds, its threads and the children that it
// has waited for together. What ends with the last bracket is a name, which may hold anything.
std::uint64_t process_cpu_ns(std::string_view stat) {
  constexpr int kUserTime = 14;
  constexpr int kChildrenSystemTime = 17;
  static const auto ticks_per_s = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return 0;
  std::uint64_t ticks = 0;
  std::size_t at = name_end;
  for (int field = 3; field <= kChildrenSystemTime; ++field) {
    at = stat.find(' ', at + 1);
    if (at == std::string_view::npos) return 0;
    if (field >= kUserTime) ticks += std::strtoull(stat.data() + at, nullptr, 10);
  }
  return ticks * (1'000'000'000 / ticks_per_s);
}

std::uint64_t grown(std::uint64_t now, std::uint64_t before) { return now - std::min(now, before); }

}  // namespace

FeedShape::FeedShape(const layout::FeedLayout& layout) {
  for (std::uint32_t node = 0; node < layout.nodes.size(); ++node) {
    const layout::NodeLayout& laid_out = layout.nodes[node];
    const std::size_t first_port = ports.size();
    for (std::uint32_t i = 0; i < laid_out.lanes_max; ++i) {
      const layout::LanePlan& lane = layout.lanes[laid_out.first_lane + i];
      for (std::size_t o = 0; o < lane.outputs.size(); ++o) {
        const layout::OutputPlan& output = lane.outputs[o];
        if (i == 0) {
          PortShape port;
          const bool inside = !output.feed && layout.nodes[output.to_node].stage == laid_out.stage;
          port.name =
              inside && !laid_out.name.empty() ? laid_out.name + "." + output.port : output.port;
          port.stage = laid_out.stage;
          port.node = node;
          port.output = output.feed;
          ports.push_back(std::move(port));
        }
        std::vector<std::uint32_t>& rings = ports[first_port + o].rings;
        rings.insert(rings.end(), output.rings.begin(), output.rings.end());
      }
    }
  }
}

std::size_t CounterTable::place(std::uint32_t stage, const std::string& name) {
  return places_.try_emplace({stage, name}, places_.size()).first->second;
}

std::map<std::string, std::size_t> CounterTable::of_stage(std::uint32_t stage) const {
  std::map<std::string, std::size_t> found;
  for (auto at = places_.lower_bound({stage, ""}); at != places_.end(); ++at) {
    if (at->first.first != stage) break;
    found.emplace(at->first.second, at->second);
  }
  return found;
}

ThreadClocks::ThreadClocks(const layout::FeedLayout& layout)
    : layout_(layout), clocks_(layout.lanes.size()), pids_(layout.groups.size(), 0) {}

// Threads are told by their names; where these were cut and are alike, by their numbers: a process
// starts its lanes in their order.
void ThreadClocks::find_threads(std::uint32_t group, pid_t pid,
                                const std::vector<LaneLook>& lanes) {
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  if (layout_.groups[group].lane_process) {
    const std::uint32_t index = layout_.groups[group].lanes.front();
    Clock& clock = clocks_[index];
    clock.file = open_to_read(fmt::format("{}/{}/schedstat", tasks, pid));
    clock.process = open_to_read(fmt::format("/proc/{}/stat", pid));
    clock.cpu_seen = clock.wait_seen = 0;
    clock.searches = clock.file && clock.process ? 0 : clock.searches + 1;
    return;
  }
  std::vector<std::pair<int, std::string>> threads;
  if (DIR* const directory = ::opendir(tasks.c_str())) {
    while (const dirent* const entry = ::readdir(directory)) {
      const int tid = std::atoi(entry->d_name);
      if (tid <= 0 || tid == pid) continue;
      std::ifstream file(fmt::format("{}/{}/comm", tasks, tid));
      std::string name;
      if (std::getline(file, name)) threads.emplace_back(tid, name);
    }
    ::closedir(directory);
  }
  std::sort(threads.begin(), threads.end());
  for (const std::uint32_t index : layout_.groups[group].lanes) {
    if (clocks_[index].file || !lanes[index].at_work) continue;
    ++clocks_[index].searches;
    const std::string name = layout_.lanes[index].name().substr(0, kThreadNameMax);
    const auto found = std::find_if(threads.begin(), threads.end(),
                                    [&](const auto& thread) { return thread.second == name; });
    if (found == threads.end()) continue;
    Clock& clock = clocks_[index];
    clock.file = open_to_read(fmt::format("{}/{}/schedstat", tasks, found->first));
    // What a new life has used was used after the last look; of a process that was there before
    // this supervisor nobody knows when.
    clock.cpu_seen = clock.wait_seen = 0;
    clock.searches = 0;
    threads.erase(found);
  }
}

void ThreadClocks::look(const std::vector<pid_t>& pids, std::vector<LaneLook>& lanes) {
  for (std::uint32_t group = 0; group < pids_.size(); ++group) {
    const pid_t pid = group < pids.size() ? pids[group] : 0;
    const std::vector<std::uint32_t>& members = layout_.groups[group].lanes;
    if (pids_[group] != pid) {
      pids_[group] = pid;
      for (const std::uint32_t index : members) {
        clocks_[index].file.reset();
        clocks_[index].process.reset();
        clocks_[index].searches = 0;
      }
    }
    // A lane has a thread soon after it is at work; where none is found none is looked for for
    // ever.
    const bool any = std::any_of(members.begin(), members.end(), [&](std::uint32_t index) {
      return lanes[index].at_work && !clocks_[index].file && clocks_[index].searches < kSearchesMax;
    });
    if (pid != 0 && any) find_threads(group, pid, lanes);
  }
  for (std::size_t i = 0; i < clocks_.size(); ++i) {
    Clock& clock = clocks_[i];
    if (clock.file) {
      std::array<char, 128> room;
      const std::string_view text = read_again(clock.file, room);
      if (text.empty()) {
        clock.file.reset();  // the thread has ended
      } else {
        char* rest = nullptr;
        std::uint64_t cpu = std::strtoull(text.data(), &rest, 10);
        const std::uint64_t wait = std::strtoull(rest, nullptr, 10);
        if (clock.process) {
          std::array<char, 1024> line;
          cpu = std::max(process_cpu_ns(read_again(clock.process, line)), clock.cpu_seen);
        }
        clock.cpu_ns += grown(cpu, clock.cpu_seen);
        clock.core_wait_ns += grown(wait, clock.wait_seen);
        clock.cpu_seen = cpu;
        clock.wait_seen = wait;
      }
    }
    lanes[i].cpu_ns = clock.cpu_ns;
    lanes[i].core_wait_ns = clock.core_wait_ns;
  }
}

Looker::Looker(const layout::FeedMemory& memory)
    : memory_(memory),
      shape_(memory.layout()),
      known_(memory.layout().lanes.size()),
      clocks_(memory.layout()),
      uptime_(open_to_read("/proc/uptime")) {}

void Looker::look(const std::vector<const control::ConsumerGroups*>& groups,
                  const std::vector<pid_t>& pids, std::uint64_t now_ns, Look& taken) {
  const layout::FeedLayout& layout = memory_.layout();
  taken.time_ns = now_ns;
  taken.lanes.assign(layout.lanes.size(), {});
  taken.ports.assign(shape_.ports.size(), {});

  std::vector<shm::NodeLanes> node_lanes;
  for (std::uint32_t node = 0; node < layout.nodes.size(); ++node) {
    node_lanes.push_back(memory_.node_lanes(node));
  }
  for (const layout::LanePlan& plan : layout.lanes) {
    const shm::LanePage& page = memory_.lane(plan.index);
    LaneLook& lane = taken.lanes[plan.index];
    lane.at_work = read(page.pid) != 0 && !memory_.lane_finished(plan.index) &&
                   plan.number < node_lanes[plan.node_index].now;
    lane.awake = read(page.waiting) == 0;
    lane.busy_ns = read(page.counters.busy_ns);
    lane.starved_ns = read(page.counters.starved_ns);
    lane.blocked_ns = read(page.counters.blocked_ns);
    for (const layout::InputPlan& input : plan.inputs) {
      for (const std::uint32_t ring : input.rings) {
        lane.records_in += read(memory_.head(layout.rings[ring]).head_seq);
      }
    }
  }
  for (std::size_t p = 0; p < shape_.ports.size(); ++p) {
    const PortShape& shape = shape_.ports[p];
    PortLook& port = taken.ports[p];
    for (const std::uint32_t index : shape.rings) {
      const layout::RingPlan& ring = layout.rings[index];
      const shm::QueueView view =
          shm::view_queue(memory_.tail(ring), memory_.head(ring), ring.geometry);
      port.put += view.put_total;
      port.get += view.get_total;
      port.drop += view.drop_total;
      port.put_bytes += read(memory_.tail(ring).tail);
      port.fill += view.size_records;
      const layout::LanePlan& from = layout.lanes[ring.from_lane];
      const layout::LanePlan& to = layout.lanes[ring.to_lane];
      if (from.number < node_lanes[from.node_index].now &&
          to.number < node_lanes[to.node_index].now) {
        port.capacity += view.capacity_records;
      }
      taken.lanes[ring.from_lane].records_out += read(memory_.tail(ring).tail_seq);
    }
    if (!shape.output) continue;
    const layout::OutputMemory memory = memory_.output(*shape.output);
    const layout::OutputLayout& output = memory.layout();
    port.put = memory.batches_published();
    port.fill = groups[*shape.output]->slots_used();
    port.get = grown(port.put, port.fill);
    port.put_bytes = port.put * output.slot_bytes;
    port.capacity = output.geometry.slots;
    port.members = groups[*shape.output]->live_members();
    for (std::uint32_t group = 0; group < shm::kGroupsMax; ++group) {
      const std::uint32_t members = groups[*shape.output]->live_members(group);
      if (members == 0) continue;
      port.waits.push_back({group, members, read(memory.group(group).waits.sum_ns)});
    }
    for (std::uint32_t number = 0; number < output.producing_lanes.size(); ++number) {
      taken.lanes[output.producing_lanes[number]].records_out += memory.published_by(number);
    }
  }

  taken.counters.assign(counters_.size(), 0);
  for (const layout::LanePlan& plan : layout.lanes) {
    std::vector<Known>& known = known_[plan.index];
    const shm::LaneCounters& counters = memory_.lane(plan.index).counters;
    for (std::size_t i = 0; i < shm::kNamedCounters; ++i) {
      const shm::NamedCounter& counter = counters.named[i];
      const std::string_view name(counter.name, ::strnlen(counter.name, sizeof counter.name));
      const bool was_known = i < known.size() && !known[i].name.empty();
      if (name.empty() && !was_known) continue;
      if (known.size() <= i) known.resize(i + 1);
      // A lane that begins a new life writes the names again: one that is half written is known.
      if (known[i].name != name && !(was_known && known[i].name.starts_with(name))) {
        known[i] = {std::string(name), counters_.place(plan.stage, std::string(name))};
        if (taken.counters.size() < counters_.size()) taken.counters.resize(counters_.size(), 0);
      }
      taken.counters[known[i].place] += read(counter.value);
    }
  }

  clocks_.look(pids, taken.lanes);
  if (uptime_) {
    std::array<char, 64> room;
    const std::string_view text = read_again(uptime_, room);
    const std::size_t space = text.find(' ');
    if (space != text.npos) taken.idle_s = std::strtod(text.data() + space, nullptr);
  }
}

double usable_cores() {
  auto cores = static_cast<double>(process::usable_processors().size());
  if (cores == 0) cores = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  // A control group may be given less: "200000 100000" is two processors, "max 100000" no limit.
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  double share = 0;
  double period = 0;
  if (quota >> share >> period && period > 0) cores = std::min(cores, share / period);
  return cores;
}

}  // namespace ringfeed::metrics
