#include "supervisor/snapshot/series.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "proto/snapshot.pb.h"
#include "ringfeed/shm/file.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed::snapshot {
namespace {

constexpr std::string_view kPartialEnd = ".partial";
constexpr std::size_t kDigits = 12;

// A name that series_path() gives for this feed.
bool is_series_name(std::string_view name, const std::string& feed) {
  if (!name.starts_with(feed) || name.size() < feed.size() + 1 + kDigits) return false;
  name.remove_prefix(feed.size());
  return name.front() == '-' &&
         name.substr(1).find_first_not_of("0123456789") == std::string_view::npos;
}

std::string in(const std::string& directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

}  // namespace

std::string series_path(const std::string& directory, const std::string& feed,
                        std::uint64_t newest_batch) {
  return in(directory, fmt::format("{}-{:0{}}", feed, newest_batch, kDigits));
}

Entry read_entry(const std::string& directory) {
  SnapshotManifest manifest;
  Entry entry;
  if (!read_manifest(directory, manifest)) return entry;
  entry.directory = directory;
  entry.newest_batch = manifest.newest_batch();
  for (const SnapshotSegment& segment : manifest.segments()) entry.bytes += segment.bytes();
  entry.number = manifest.number();
  entry.taken_at = manifest.taken_at();
  entry.feed_id = manifest.feed_id();
  for (const SnapshotGroup& group : manifest.groups()) {
    entry.groups.push_back({group.name(), group.output(), group.next_batch()});
  }
  return entry;
}

std::uint64_t next_number(const std::string& directory, const std::string& feed) {
  std::uint64_t newest = 0;
  const Result<std::vector<std::string>> names = shm::names_in(directory);
  if (!names) return 1;
  for (const std::string& name : *names) {
    if (name.starts_with('.')) continue;
    SnapshotManifest manifest;
    // Also of another version, which fills it in.
    static_cast<void>(read_manifest(in(directory, name), manifest));
    if (manifest.feed() == feed) newest = std::max(newest, manifest.number());
  }
  return newest + 1;
}

std::vector<Entry> read_series(const std::string& directory, const std::string& feed) {
  std::vector<Entry> found;
  const Result<std::vector<std::string>> names = shm::names_in(directory);
  if (!names) return found;
  for (const std::string& name : *names) {
    if (!is_series_name(name, feed)) continue;
    Entry entry = read_entry(in(directory, name));
    if (!entry.directory.empty()) found.push_back(std::move(entry));
  }
  // A feed that was started anew counts its batches from 1 again. Those without a number are older.
  std::ranges::sort(found, {}, [](const Entry& entry) {
    return std::tuple(entry.number, entry.taken_at, entry.directory);
  });
  return found;
}

std::size_t prune_series(const std::string& directory, const std::string& feed, std::size_t keep) {
  std::size_t removed = 0;
  const std::vector<Entry> entries = read_series(directory, feed);
  const std::size_t stay = std::max<std::size_t>(keep, 1);
  for (std::size_t i = 0; i + stay < entries.size(); ++i) {
    removed += remove_snapshot(entries[i].directory).ok() ? 1 : 0;
  }
  const Result<std::vector<std::string>> names = shm::names_in(directory);
  if (!names) return removed;
  for (const std::string& name : *names) {
    if (!name.starts_with('.') || !name.ends_with(kPartialEnd)) continue;
    const std::string whole = name.substr(1, name.size() - 1 - kPartialEnd.size());
    if (is_series_name(whole, feed)) remove_partial(in(directory, whole));
  }
  return removed;
}

}  // namespace ringfeed::snapshot
