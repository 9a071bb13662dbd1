#include "supervisor/doctor/texts.h"

#include <algorithm>
#include <charconv>

#include "ringfeed/shm/file.h"

namespace ringfeed::doctor {
namespace {

constexpr std::size_t kTextBytesMax = 1 << 20;
constexpr std::string_view kBlanks = " \t\n\r\v\f";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Calls `take` with each line, without its end, until it returns false.
template <typename Take>
void each_line(std::string_view text, Take&& take) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (!take(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Blanks, backslashes and line ends of paths are in octal there: "\040".
std::string without_octal(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const bool coded = text[i] == '\\' && i + 3 < text.size() &&
                       std::from_chars(text.data() + i + 1, text.data() + i + 4, value, 8).ptr ==
                           text.data() + i + 4 &&
                       value < 256;
    out += coded ? static_cast<char>(value) : text[i];
    if (coded) i += 3;
  }
  return out;
}

// What follows "option=" or stands for itself in a list with commas; nullopt: it is not there.
std::optional<std::string_view> option_in(std::string_view options, std::string_view name) {
  while (!options.empty()) {
    const std::size_t end = std::min(options.find(','), options.size());
    const std::string_view one = options.substr(0, end);
    options.remove_prefix(std::min(end + 1, options.size()));
    if (one == name) return std::string_view();
    if (one.starts_with(name) && one.size() > name.size() && one[name.size()] == '=') {
      return one.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

bool lies_below(std::string_view path, std::string_view point) {
  if (point == "/") return path.starts_with('/');
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::optional<std::string> text_of(const std::string& path) {
  Result<std::string> text = shm::read_file(path, kTextBytesMax);
  if (!text) return std::nullopt;
  return std::move(*text);
}

std::optional<std::string> line_of(const std::string& path) {
  const std::optional<std::string> text = text_of(path);
  if (!text) return std::nullopt;
  return std::string(trimmed(std::string_view(*text).substr(0, text->find('\n'))));
}

std::optional<std::uint64_t> limit_in(std::string_view text) {
  const std::string_view word = trimmed(text);
  if (word == "max" || word == "-1") return kNoLimit;
  return number_in<std::uint64_t>(word);
}

std::string chosen_in(std::string_view text) {
  const std::size_t open = text.find('[');
  if (open == text.npos) return {};
  const std::size_t close = text.find(']', open);
  if (close == text.npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> words;
  while (!(text = trimmed(text)).empty()) {
    const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
    std::string word;
    for (const char c : text.substr(0, end)) {
      if (c != '[' && c != ']') word += c;
    }
    if (!word.empty()) words.push_back(std::move(word));
    text.remove_prefix(end);
  }
  return words;
}

std::optional<std::uint64_t> meminfo_in(std::string_view text, std::string_view key) {
  const std::optional<std::string> value = status_in(text, key);
  if (!value) return std::nullopt;
  const std::vector<std::string> words = words_in(*value);
  if (words.empty() || words.size() > 2 || (words.size() == 2 && words[1] != "kB")) {
    return std::nullopt;
  }
  const std::optional<std::uint64_t> number = number_in<std::uint64_t>(words[0]);
  if (!number || words.size() == 1) return number;
  if (*number > kNoLimit / 1024) return std::nullopt;
  return *number * 1024;
}

std::optional<std::string> status_in(std::string_view text, std::string_view key) {
  std::optional<std::string> found;
  each_line(text, [&](std::string_view line) {
    if (!line.starts_with(key) || line.size() == key.size() || line[key.size()] != ':') return true;
    found = std::string(trimmed(line.substr(key.size() + 1)));
    return false;
  });
  return found;
}

bool has_capability(std::string_view status, std::string_view set, unsigned number) {
  const std::string digits = status_in(status, set).value_or("");
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  return is_number && number < 64 && (bits >> number & 1) != 0;
}

std::optional<std::vector<int>> cpus_in(std::string_view text) {
  constexpr std::size_t kCpusMax = 65'536;
  std::vector<int> cpus;
  text = trimmed(text);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view range = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t dash = range.find('-');
    const std::optional<int> first = number_in<int>(range.substr(0, dash));
    const std::optional<int> last =
        dash == range.npos ? first : number_in<int>(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first) return std::nullopt;
    if (static_cast<std::size_t>(*last - *first) >= kCpusMax - cpus.size()) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<double> processors_in(std::string_view cpu_max) {
  const std::vector<std::string> words = words_in(cpu_max);
  if (words.empty() || words.size() > 2) return std::nullopt;
  if (words[0] == "max" || words[0] == "-1") return kNoShare;
  const std::optional<std::uint64_t> share = number_in<std::uint64_t>(words[0]);
  const std::optional<std::uint64_t> period =
      words.size() == 2 ? number_in<std::uint64_t>(words[1]) : std::uint64_t{100'000};
  if (!share || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*share) / static_cast<double>(*period);
}

bool Mount::has(std::string_view option) const {
  return option_in(options, option) || option_in(super_options, option);
}

std::string Mount::value_of(std::string_view option) const {
  for (const std::string_view list : {std::string_view(options), std::string_view(super_options)}) {
    if (const auto value = option_in(list, option)) return std::string(*value);
  }
  return {};
}

std::vector<Mount> mounts_in(std::string_view mountinfo) {
  std::vector<Mount> mounts;
  each_line(mountinfo, [&](std::string_view line) {
    // number, parent, device, root, point, options, more of them, "-", type, source, options
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) return true;
    const std::vector<std::string> before = words_in(line.substr(0, dash));
    const std::vector<std::string> after = words_in(line.substr(dash + 3));
    if (before.size() < 6 || after.empty()) return true;
    mounts.push_back({without_octal(before[4]), after[0], before[5],
                      after.size() > 2 ? after.back() : std::string()});
    return true;
  });
  return mounts;
}

const Mount* mount_of(const std::vector<Mount>& mounts, std::string_view path) {
  const Mount* found = nullptr;
  for (const Mount& mount : mounts) {
    if (!lies_below(path, mount.point)) continue;
    if (found == nullptr || mount.point.size() >= found->point.size()) found = &mount;
  }
  return found;
}

}  // namespace ringfeed::doctor
