#include "workers/python/object_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ringfeed {
namespace {

// Exceptions that have a counter of their own.
constexpr std::array<std::string_view, 12> kKnownErrors = {
    "ArithmeticError", "AssertionError",     "AttributeError", "IndexError",
    "KeyError",        "MemoryError",        "OSError",        "RuntimeError",
    "TypeError",       "UnicodeDecodeError", "ValueError",     "ZeroDivisionError"};
constexpr std::string_view kOtherErrors = "other_exceptions";
constexpr std::size_t kSaidBytes = 400;

// Of a traceback, whose frames come first, what was said: "ValueError: no such label". Of one
// without it the type alone.
std::string_view said_in(std::string_view traceback, std::string_view error) {
  std::string_view said = error;
  while (!traceback.empty()) {
    const std::size_t end = std::min(traceback.find('\n'), traceback.size());
    const std::string_view line = traceback.substr(0, end);
    if (!line.starts_with(' ') && line.find(error) != std::string_view::npos) said = line;
    traceback.remove_prefix(std::min(end + 1, traceback.size()));
  }
  return said.substr(0, kSaidBytes);
}

std::string counter_of(std::string_view error) { return fmt::format("skipped_{}", error); }

}  // namespace

ObjectErrors::ObjectErrors(const StageContext& context, bool stops,
                           std::span<const std::string_view> faults)
    : context_(context),
      stops_(stops),
      names_(kKnownErrors.begin(), kKnownErrors.end()),
      other_(context, counter_of(kOtherErrors)) {
  names_.insert(names_.end(), faults.begin(), faults.end());
  for (const std::string& name : names_) known_.emplace_back(context, counter_of(name));
}

void ObjectErrors::count(Step& step, std::string_view error, std::string_view traceback,
                         const std::uint64_t (&tag)[2]) noexcept {
  stop(error, traceback, tag, "the sample");
  const auto known = std::ranges::find(names_, error);
  SkipReason& reason =
      known == names_.end() ? other_ : known_[static_cast<std::size_t>(known - names_.begin())];
  reason.skip(step, fmt::format("sample:{:016x}", tag[0]), tag[1], said_in(traceback, error));
  if (told_.contains(error)) return;
  told_.emplace(error);
  tell(error, traceback, tag);
}

void ObjectErrors::stop(std::string_view error, std::string_view traceback,
                        const std::uint64_t (&tag)[2], std::string_view what) const noexcept {
  if (!stops_) return;
  tell(error, traceback, tag);
  context_.fail(fmt::format("stage '{}': {} for {} of lineage {:016x}:{}:\n{}", context_.stage,
                            error, what, tag[0], tag[1], traceback));
}

void ObjectErrors::tell(std::string_view error, std::string_view traceback,
                        const std::uint64_t (&tag)[2]) const noexcept {
  context_.warn(fmt::format("exception stage={} type={} lineage={:016x}:{}", context_.stage, error,
                            tag[0], tag[1]));
  while (!traceback.empty()) {
    const std::size_t end = std::min(traceback.find('\n'), traceback.size());
    if (end != 0) context_.warn(fmt::format("| {}", traceback.substr(0, end)));
    traceback.remove_prefix(std::min(end + 1, traceback.size()));
  }
}

void ObjectErrors::declare(std::vector<CounterSpec>& counters) {
  for (const std::string_view error : kKnownErrors) {
    counters.push_back({.name = counter_of(error),
                        .help = fmt::format("Samples for which the object raised {}.", error)});
  }
  counters.push_back(
      {.name = counter_of(kOtherErrors), .help = "The same of any other exception."});
}

}  // namespace ringfeed
