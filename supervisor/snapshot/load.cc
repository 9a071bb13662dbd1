#include "supervisor/snapshot/load.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <vector>

#include "proto/snapshot.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/layout.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/os/text.h"
#include "supervisor/snapshot/pages.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed::snapshot {
namespace {

constexpr std::uint32_t kFormat = 1;
constexpr std::string_view kFirstLine = "# ringfeed snapshot, checksum of what follows: ";

std::string checksum(std::string_view text) {
  return fmt::format("{:016x}", ::XXH3_64bits(text.data(), text.size()));
}

Error damaged(const std::string& directory, const std::string& what) {
  return {ErrorCode::kDamaged, fmt::format("snapshot {} is damaged: {}", escaped(directory), what)};
}

// The file's bytes are put behind the segment's header, page by page; a page of zeros needs no
// store. Returns the hashes of all pages as they were saved.
Result<std::vector<std::uint64_t>> fill(const std::string& path, const SnapshotSegment& saved,
                                        const shm::Mapping& into,
                                        const std::function<void(std::uint64_t)>& reached) {
  const Result<shm::Fd> opened = shm::open_regular(path);
  if (!opened) {
    return Error{opened.error().code(),
                 fmt::format("{}: {}", escaped(path), opened.error().message())};
  }
  const shm::Fd& file = *opened;
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return Error{ErrorCode::kIo, fmt::format("{}: {}", escaped(path), std::strerror(errno))};
  }
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  if (file_bytes > saved.bytes() || file_bytes % shm::kPageBytes != 0) {
    return Error{ErrorCode::kDamaged,
                 fmt::format("{} has {} bytes but should have at most {}", escaped(saved.file()),
                             file_bytes, saved.bytes())};
  }
  std::vector<std::uint64_t> hashes(saved.bytes() / shm::kPageBytes, zero_page_hash());
  std::vector<std::byte> buffer(256 * shm::kPageBytes);
  std::uint64_t at = 0;
  while (at < file_bytes) {
    // Holes are zeros, and so is the new segment. A file system without holes has data everywhere.
    const off_t data = ::lseek(file.get(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data > 0) at = static_cast<std::uint64_t>(data) / shm::kPageBytes * shm::kPageBytes;
    const std::size_t count = std::min<std::uint64_t>(buffer.size(), file_bytes - at);
    for (std::size_t got = 0; got < count;) {
      const ssize_t n =
          ::pread(file.get(), buffer.data() + got, count - got, static_cast<off_t>(at + got));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        return Error{ErrorCode::kIo, fmt::format("{}: {}", escaped(path),
                                                 n < 0 ? std::strerror(errno) : "ends too early")};
      }
      got += static_cast<std::size_t>(n);
    }
    for (std::size_t page = 0; page < count; page += shm::kPageBytes) {
      std::uint64_t& hash = hashes[(at + page) / shm::kPageBytes];
      hash = page_hash(buffer.data() + page);
      if (hash == zero_page_hash()) continue;
      // The header is the new segment's own.
      const std::size_t skip = at + page == 0 ? sizeof(shm::SegmentHeader) : 0;
      std::memcpy(into.data() + at + page + skip, buffer.data() + page + skip,
                  shm::kPageBytes - skip);
    }
    at += count;
    reached(at);
  }
  return hashes;
}

void forget_members(std::byte* group_page) {
  for (shm::Member& member : reinterpret_cast<shm::GroupPage*>(group_page)->members) {
    member.pid = 0;  // of nobody, so that its claims are given back
    member.last_ns.store(0, std::memory_order_relaxed);  // relaxed: nobody else has the segment yet
  }
}

// Nobody who was at work then is at work now, whatever process has his number today; and moments of
// another boot's clock may lie in the future.
void forget_processes(const layout::FeedLayout& layout, std::uint32_t segment,
                      const shm::Mapping& mapping) {
  // relaxed, all: nobody else has the segment yet.
  if (segment == 0) {
    for (const layout::LanePlan& plan : layout.lanes) {
      auto& lane =
          *reinterpret_cast<shm::LanePage*>(mapping.data() + shm::lane_page_offset(plan.index));
      lane.pid.store(0, std::memory_order_relaxed);
      lane.start_ticks.store(0, std::memory_order_relaxed);
      lane.waiting.store(0, std::memory_order_relaxed);
      lane.attempt_key.store(0, std::memory_order_relaxed);
      lane.parked.store(0, std::memory_order_relaxed);
      lane.progress_ns.store(0, std::memory_order_relaxed);
      lane.woke_ns.store(0, std::memory_order_relaxed);
    }
    for (const layout::OutputLayout& output : layout.outputs) {
      for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
        forget_members(mapping.data() + shm::account_offset(layout.lanes.size(), output.index, g));
      }
    }
    return;
  }
  if (layout.segments[segment].spec.kind != shm::SegmentKind::kGroup) return;
  forget_members(mapping.data() + shm::kPageBytes);
}

}  // namespace

std::string manifest_text(const SnapshotManifest& manifest) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string body;
  printer.PrintToString(manifest, &body);
  return fmt::format("{}{}\n{}", kFirstLine, checksum(body), body);
}

Status read_manifest(const std::string& directory, SnapshotManifest& manifest) {
  const std::string path = directory + "/" + kManifestFile;
  const Result<std::string> file = shm::read_regular_file(path);
  if (!file) {
    const bool gone = file.error().code() == ErrorCode::kNotFound;
    return Error{file.error().code(), fmt::format("{} {}: {}", escaped(directory),
                                                  gone ? "is not a snapshot" : "cannot be read",
                                                  escaped(file.error().message()))};
  }
  const std::string& text = *file;
  const std::size_t line = text.find('\n');
  if (line == std::string::npos || !text.starts_with(kFirstLine) ||
      text.substr(kFirstLine.size(), line - kFirstLine.size()) != checksum(text.substr(line + 1))) {
    return damaged(directory, fmt::format("{} fails its checksum", kManifestFile));
  }
  if (!google::protobuf::TextFormat::ParseFromString(text.substr(line + 1), &manifest) ||
      manifest.format() != kFormat) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("snapshot {} has a format that this version ({}) does not know",
                             escaped(directory), RINGFEED_VERSION)};
  }
  if (manifest.abi_major() != shm::kAbiMajor || manifest.layout_hash() != shm::kLayoutHash) {
    return Error{
        ErrorCode::kIncompatible,
        fmt::format("snapshot {} was taken by ringfeed {} with ABI {}.{} and memory layout "
                    "{:#018x}, this is {} with {}.{} and {:#018x}: use that version",
                    escaped(directory), escaped(manifest.ringfeed_version()), manifest.abi_major(),
                    manifest.abi_minor(), manifest.layout_hash(), RINGFEED_VERSION, shm::kAbiMajor,
                    shm::kAbiMinor, shm::kLayoutHash)};
  }
  return {};
}

void describe_segments(const layout::FeedLayout& layout, SnapshotManifest& manifest) {
  manifest.set_format(kFormat);
  manifest.set_ringfeed_version(RINGFEED_VERSION);
  manifest.set_abi_major(shm::kAbiMajor);
  manifest.set_abi_minor(shm::kAbiMinor);
  manifest.set_layout_hash(shm::kLayoutHash);
  for (const layout::SegmentPlan& segment : layout.segments) {
    SnapshotSegment& out = *manifest.add_segments();
    out.set_name(segment.spec.name);
    out.set_kind(static_cast<std::uint32_t>(segment.spec.kind));
    for (const std::uint32_t number : segment.spec.geometry) out.add_geometry(number);
  }
}

bool is_segment_file(std::string_view name) {
  constexpr std::string_view kEnd = ".segment";
  if (!name.ends_with(kEnd)) return false;
  name.remove_suffix(kEnd.size());
  return name.size() >= 3 && name.find_first_not_of("0123456789") == std::string_view::npos;
}

Result<layout::FoundMemory> load(const std::string& directory, const SnapshotManifest& manifest,
                                 const layout::FeedLayout& layout, const shm::Storage& storage,
                                 const Looked& looked) {
  layout::FoundMemory found;
  found.is_copy = true;
  const std::string id = from_hex(manifest.feed_id());
  if (id.size() != found.identity.feed_id.size()) return damaged(directory, "it names no feed");
  std::copy(id.begin(), id.end(), found.identity.feed_id.begin());
  found.identity.config_hash = manifest.config_hash();
  if (static_cast<std::size_t>(manifest.segments_size()) != layout.segments.size()) {
    return Error{ErrorCode::kIncompatible,
                 fmt::format("snapshot {} has {} segments, and this configuration makes {}",
                             escaped(directory), manifest.segments_size(), layout.segments.size())};
  }
  const auto give_up = [&](Error error) -> Result<layout::FoundMemory> {
    for (const std::string& file : found.files) ::unlink(file.c_str());
    return error;
  };
  std::uint64_t total = 0;
  for (const SnapshotSegment& saved : manifest.segments()) total += saved.bytes();
  std::uint64_t before = 0;  // of the segments that are filled
  const auto reached = [&](std::uint64_t at) {
    if (looked) looked(before + at, total);
  };
  for (const layout::SegmentPlan& segment : layout.segments) {
    const SnapshotSegment& saved = manifest.segments(static_cast<int>(segment.id));
    const std::uint64_t planned = shm::align_up(segment.spec.bytes, shm::kPageBytes);
    shm::SegmentSpec spec = segment.spec;
    if (saved.name() != spec.name || saved.kind() != static_cast<std::uint32_t>(spec.kind) ||
        !std::equal(spec.geometry.begin(), spec.geometry.end(), saved.geometry().begin(),
                    saved.geometry().end()) ||
        (spec.growable ? saved.bytes() < planned || saved.bytes() > segment.bytes_max
                       : saved.bytes() != planned)) {
      return give_up(
          {ErrorCode::kIncompatible,
           fmt::format("snapshot {}: its segment {} of {} bytes is not what this configuration or "
                       "version makes there ({} of {} bytes)",
                       escaped(directory), escaped(saved.name()), saved.bytes(), spec.name,
                       planned)});
    }
    if (!is_segment_file(saved.file())) {
      return give_up(damaged(
          directory, fmt::format("'{}' is not the name of a file in it", escaped(saved.file()))));
    }
    spec.bytes = saved.bytes();
    const bool named = !storage.directory.empty() && !layout::stays_in_memory(spec.kind);
    Result<shm::Fd> fd =
        shm::create_segment(spec, named ? storage : shm::Storage(), found.identity);
    if (!fd) return give_up(fd.error());
    if (named) {
      found.files.push_back(storage.directory + "/" + shm::segment_file_name(spec.name) +
                            storage.mark);
    }
    Result<shm::Mapping> mapping = shm::map_segment(fd->get(), true);
    if (!mapping) return give_up(mapping.error());
    Result<std::vector<std::uint64_t>> hashes =
        fill(directory + "/" + saved.file(), saved, *mapping, reached);
    if (!hashes && hashes.error().code() == ErrorCode::kNoMemory) {
      return give_up({ErrorCode::kNoMemory, fmt::format("{} cannot be read: {}", escaped(directory),
                                                        hashes.error().message())});
    }
    if (!hashes) return give_up(damaged(directory, hashes.error().message()));
    if (digest_of(*hashes) != saved.digest()) {
      return give_up(damaged(directory, fmt::format("{} (segment {}) fails its checksum",
                                                    escaped(saved.file()), escaped(saved.name()))));
    }
    forget_processes(layout, segment.id, *mapping);
    found.fds.push_back(std::move(*fd));
  }
  return found;
}

}  // namespace ringfeed::snapshot
