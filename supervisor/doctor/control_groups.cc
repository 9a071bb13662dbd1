#include "supervisor/doctor/control_groups.h"

#include <functional>

#include "supervisor/doctor/texts.h"

namespace ringfeed::doctor {
namespace {

using TakeGroup = std::function<void(const std::string& directory, bool version_1)>;

// From the group up to the root. In a container the path may be that of the machine outside, and
// nothing is found there: the root is the own group then.
void climb(const std::string& base, std::string path, bool version_1, const TakeGroup& look) {
  for (;;) {
    look(base + (path == "/" ? "" : path) + "/", version_1);
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos || path == "/") return;
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
}

// All groups that may limit what `controller` controls.
void each_group(std::string_view groups, const std::string& root, const std::string& controller,
                const TakeGroup& look) {
  while (!groups.empty()) {
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    const std::string_view line = groups.substr(0, end);
    groups.remove_prefix(std::min(end + 1, groups.size()));
    // "0::/path" of version 2, "4:cpu,memory:/path" of version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string path(line.substr(second + 1));
    const std::string names = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (names == ",,") {
      climb(root, path, false, look);
    } else if (names.find("," + controller + ",") != std::string::npos) {
      climb(root + "/" + controller, path, true, look);
    }
  }
}

std::optional<std::uint64_t> number_of(const std::string& file) {
  const std::optional<std::string> text = text_of(file);
  return text ? limit_in(*text) : std::nullopt;
}

struct Names {
  const char* limit = nullptr;
  const char* used = nullptr;
};

// Version 1 writes a number near 2^63 for "no limit".
constexpr std::uint64_t kLimitMax = std::uint64_t{1} << 62;

std::optional<GroupLimit> least_left(std::string_view groups, const std::string& root,
                                     const std::string& controller, Names version_2,
                                     Names version_1) {
  std::optional<GroupLimit> least;
  each_group(groups, root, controller, [&](const std::string& directory, bool old) {
    const Names names = old ? version_1 : version_2;
    if (names.limit == nullptr) return;
    GroupLimit limit;
    limit.file = directory + names.limit;
    const std::optional<std::uint64_t> value = number_of(limit.file);
    if (!value || *value >= kLimitMax) return;
    limit.value = *value;
    limit.used = number_of(directory + names.used).value_or(0);
    if (!least || limit.left() < least->left()) least = std::move(limit);
  });
  return least;
}

}  // namespace

std::optional<GroupLimit> memory_limit(std::string_view groups, const std::string& root) {
  return least_left(groups, root, "memory", {"memory.max", "memory.current"},
                    {"memory.limit_in_bytes", "memory.usage_in_bytes"});
}

std::optional<GroupLimit> memory_brake(std::string_view groups, const std::string& root) {
  return least_left(groups, root, "memory", {"memory.high", "memory.current"}, {});
}

std::optional<GroupLimit> process_limit(std::string_view groups, const std::string& root) {
  return least_left(groups, root, "pids", {"pids.max", "pids.current"},
                    {"pids.max", "pids.current"});
}

std::optional<ProcessorLimit> processor_limit(std::string_view groups, const std::string& root) {
  std::optional<ProcessorLimit> least;
  each_group(groups, root, "cpu", [&](const std::string& directory, bool old) {
    ProcessorLimit limit{.file = directory + (old ? "cpu.cfs_quota_us" : "cpu.max"),
                         .none = old ? "-1" : "max"};
    std::optional<std::string> text = text_of(limit.file);
    if (!text) return;
    if (old) *text += " " + text_of(directory + "cpu.cfs_period_us").value_or("100000");
    const std::optional<double> processors = processors_in(*text);
    if (!processors || *processors == kNoShare) return;
    limit.processors = *processors;
    if (!least || limit.processors < least->processors) least = std::move(limit);
  });
  return least;
}

}  // namespace ringfeed::doctor
