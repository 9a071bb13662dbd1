// What the kernel says in /proc and /sys, as values. Whatever the text, nothing here throws: what
// cannot be understood is nullopt, or left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::doctor {

// A file of /proc or /sys; at most a mebibyte. nullopt: it cannot be read.
[[nodiscard]] std::optional<std::string> text_of(const std::string& path);
// Its first line, without blanks around it.
[[nodiscard]] std::optional<std::string> line_of(const std::string& path);

// A number alone, with blanks around it; "max" and "-1" are no limit, which is kNoLimit.
inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
[[nodiscard]] std::optional<std::uint64_t> limit_in(std::string_view text);

// The choice among several: "always [madvise] never" is "madvise"; "": none is chosen.
[[nodiscard]] std::string chosen_in(std::string_view text);
// All words of it, without the brackets.
[[nodiscard]] std::vector<std::string> words_in(std::string_view text);

// "MemAvailable:  1024 kB" of /proc/meminfo, in bytes; the key without its colon.
[[nodiscard]] std::optional<std::uint64_t> meminfo_in(std::string_view text, std::string_view key);

// What stands behind "Key:" in /proc/PID/status.
[[nodiscard]] std::optional<std::string> status_in(std::string_view text, std::string_view key);

// Whether a set of /proc/PID/status ("CapEff") has a capability, by its number.
[[nodiscard]] bool has_capability(std::string_view status, std::string_view set, unsigned number);

// "0-3,8" is 0, 1, 2, 3, 8. nullopt: not such a list, or one of more than 65,536.
[[nodiscard]] std::optional<std::vector<int>> cpus_in(std::string_view text);

// Processors that "200000 100000" (cpu.max) allows; kNoShare: "max 100000".
inline constexpr double kNoShare = -1;
[[nodiscard]] std::optional<double> processors_in(std::string_view cpu_max);

// A line of /proc/self/mountinfo.
struct Mount {
  std::string point;
  std::string type;
  std::string options;        // of this mount
  std::string super_options;  // of the file system
  [[nodiscard]] bool has(std::string_view option) const;
  // "hidepid=2": "2"; "": it has no such option.
  [[nodiscard]] std::string value_of(std::string_view option) const;
};
[[nodiscard]] std::vector<Mount> mounts_in(std::string_view mountinfo);
// Where `path` (absolute, without links) lies: the last of those with the longest point.
[[nodiscard]] const Mount* mount_of(const std::vector<Mount>& mounts, std::string_view path);

}  // namespace ringfeed::doctor
