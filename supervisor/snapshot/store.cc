#include "supervisor/snapshot/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "proto/snapshot.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/pages.h"
#include "supervisor/snapshot/series.h"

namespace ringfeed::snapshot {
namespace {

namespace fs = std::filesystem;

// What a thread takes on at a time, and writes with one call at most.
constexpr std::size_t kPartPages = 64;
constexpr std::size_t kPartsAtOnce = 16;
constexpr std::size_t kBlockPages = 256;

std::string segment_file(std::size_t number) { return fmt::format("{:03}.segment", number); }

Error not_ours(const std::string& directory, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} already exists and {}: nothing was touched; give another path",
                      escaped(directory), what)};
}

// May a snapshot take the place of what is there? Nothing, an empty directory, and a snapshot of
// ringfeed's with nothing beside it, whatever version wrote it.
Status check_replaceable(const std::string& directory) {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(directory, failed);
  if (status.type() == fs::file_type::not_found) return {};
  if (failed) {
    return Error{ErrorCode::kIo, fmt::format("{}: {}", escaped(directory), failed.message())};
  }
  if (!fs::is_directory(status)) return not_ours(directory, "is not a directory");
  const Result<std::vector<std::string>> names = shm::names_in(directory);
  if (!names) return names.error();
  if (names->empty()) return {};
  SnapshotManifest manifest;
  const Status readable = read_manifest(directory, manifest);
  if (!readable && readable.error().code() == ErrorCode::kNoMemory) return readable.error();
  // Of another version: whole, and ringfeed's.
  if (!readable && readable.error().code() != ErrorCode::kIncompatible) {
    return not_ours(directory, fmt::format("is not a snapshot ({})", readable.error().message()));
  }
  std::set<std::string> listed;
  for (const SnapshotSegment& segment : manifest.segments()) listed.insert(segment.file());
  for (const std::string& name : *names) {
    if (name == kManifestFile) continue;
    if (is_segment_file(name) && (listed.empty() || listed.contains(name))) continue;
    return not_ours(directory, fmt::format("holds '{}', which is not part of the snapshot in it",
                                           escaped(name)));
  }
  return {};
}

// Takes the files of a snapshot away, and nothing else.
void remove_files(const std::string& directory) noexcept {
  try {
    const Result<std::vector<std::string>> names = shm::names_in(directory);
    if (!names) return;
    for (const std::string& name : *names) {
      if (name == kManifestFile || is_segment_file(name)) {
        ::unlink((directory + '/' + name).c_str());
      }
    }
  } catch (const std::exception&) {
    // No memory: the next snapshot to this place takes it away.
  }
}

std::string partial_of(const std::string& directory) {
  const fs::path place(directory);
  return (place.parent_path() / fmt::format(".{}.partial", place.filename().string())).string();
}

}  // namespace

void remove_partial(const std::string& directory) noexcept {
  try {
    const std::string partial = partial_of(directory);
    const shm::Fd lock(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
    remove_files(partial);
    ::rmdir(partial.c_str());  // stays if somebody's own files are in it
  } catch (const std::exception&) {
    // No memory: the next one takes it away.
  }
}

Status remove_snapshot(const std::string& directory) {
  if (Status ours = check_replaceable(directory); !ours) return ours;
  remove_partial(directory);
  const std::string partial = partial_of(directory);
  if (::rename(directory.c_str(), partial.c_str()) != 0) {
    if (errno == ENOENT) return {};
    const bool busy = errno == ENOTEMPTY || errno == EEXIST;
    return Error{
        busy ? ErrorCode::kBusy : ErrorCode::kIo,
        fmt::format("snapshot {} cannot be removed: {}", escaped(directory), std::strerror(errno))};
  }
  remove_partial(directory);
  return {};
}

void Store::fail(const std::string& what, int error) const {
  const std::string parent = fs::path(directory_).parent_path().string();
  std::string more;
  struct statvfs info {};
  const bool full = error == ENOSPC || error == EDQUOT;
  if (full && ::statvfs(parent.c_str(), &info) == 0) {
    more = fmt::format(" ({} bytes are free, the feed has {})", info.f_bavail * info.f_frsize,
                       bytes());
  } else if (error == ENOENT || error == ENOTDIR) {
    const std::string gone = ::access(parent.c_str(), F_OK) != 0 ? parent : partial_;
    if (::access(gone.c_str(), F_OK) != 0) {
      more =
          fmt::format(" ({} does not exist{})", escaped(gone),
                      lock_ ? ": somebody has moved or removed it meanwhile" : ": make it first");
    }
  }
  throw Error(full ? ErrorCode::kNoMemory : ErrorCode::kIo,
              fmt::format("snapshot {}: {}: {}{}", escaped(directory_), escaped(what),
                          std::strerror(error), more));
}

Store::Store(std::string directory) : directory_(std::move(directory)) {
  while (directory_.size() > 1 && directory_.ends_with('/')) directory_.pop_back();
  const fs::path place(directory_);
  if (!place.is_absolute() || place.filename().empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "'{}' is not a usable path for a snapshot: give the path of a directory to create",
            escaped(directory_)));
  }
  check_replaceable(directory_).or_throw();
  partial_ = partial_of(directory_);
  if (::mkdir(partial_.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(fmt::format("{} cannot be created", partial_), errno);
  }
  lock_ = shm::Fd(::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!lock_) fail(partial_, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    lock_.reset();
    throw Error(ErrorCode::kBusy,
                fmt::format("another snapshot is being written to {}", escaped(directory_)));
  }
  // What a death has left, and nothing else: somebody's own directory may have that name.
  for (const std::string& name : shm::names_in(partial_).value_or_throw()) {
    if (name == kManifestFile || is_segment_file(name)) continue;
    lock_.reset();
    throw not_ours(partial_,
                   fmt::format("holds '{}', which no snapshot left there", escaped(name)));
  }
  remove_files(partial_);
}

Store::~Store() {
  if (published_ || !lock_) return;
  remove_files(partial_);
  ::rmdir(partial_.c_str());
}

void Store::add(std::string name, int fd) {
  Segment segment;
  segment.name = std::move(name);
  segment.source = fd;
  const std::string file = path(segment_file(segments_.size()));
  segment.file = shm::Fd(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!segment.file) fail(file, errno);
  segments_.push_back(std::move(segment));
}

std::uint64_t Store::bytes() const {
  std::uint64_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.hashes.size() * shm::kPageBytes;
  return sum;
}

// An arena may have grown since.
void Store::remap(Segment& segment) {
  struct stat info {};
  if (::fstat(segment.source, &info) != 0) fail(segment.name, errno);
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (segment.mapping && segment.mapping.bytes() == bytes) return;
  segment.mapping = shm::map_segment(segment.source, false).value_or_throw();
  segment.hashes.resize(segment.mapping.bytes() / shm::kPageBytes, zero_page_hash());
}

void Store::write_at(const Segment& segment, const std::byte* bytes, std::size_t count,
                     std::uint64_t offset) {
  if (RF_FAILPOINT_ERROR("supervisor.snapshot.write")) {
    fail(fmt::format("segment {}", segment.name), ENOSPC);
  }
  while (count > 0) {
    const ssize_t wrote = ::pwrite(segment.file.get(), bytes, count, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail(fmt::format("segment {}", segment.name), errno);
    bytes += wrote;
    offset += static_cast<std::uint64_t>(wrote);
    count -= static_cast<std::size_t>(wrote);
  }
}

Store::Block Store::make_block() {
  Block block;
  block.bytes = std::make_unique<std::byte[]>(kBlockPages * shm::kPageBytes);  // zeroed: touched
  return block;
}

void Store::write_block(Block& block) {
  const std::byte* at = block.bytes.get();
  for (const Block::Run& run : block.runs) {
    write_at(*run.segment, at, run.pages * shm::kPageBytes, run.page * shm::kPageBytes);
    at += run.pages * shm::kPageBytes;
  }
  block.runs.clear();
  block.pages = 0;
}

void Store::put_away(Block& block, bool keep) {
  if (block.pages == 0) return;
  if (keep) {
    const std::lock_guard lock(room_mutex_);
    if (!room_.empty()) {
      kept_.push_back(std::exchange(block, std::move(room_.back())));
      room_.pop_back();
      return;
    }
  }
  write_block(block);
}

// A page is copied before it is hashed, so that file and hash agree whoever writes to it meanwhile.
// A page that has not changed is overwritten in the block by the next.
std::uint64_t Store::copy_range(Segment& segment, PageRange range, const std::byte* from,
                                Block& block, bool keep) {
  std::uint64_t changed = 0;
  for (std::size_t page = range.first; page < range.last; ++page) {
    if (block.pages == kBlockPages) put_away(block, keep);
    std::byte* const copy = block.bytes.get() + block.pages * shm::kPageBytes;
    std::memcpy(copy, from + page * shm::kPageBytes, shm::kPageBytes);
    const std::uint64_t hash = page_hash(copy);
    if (hash == segment.hashes[page]) continue;
    segment.hashes[page] = hash;
    changed += shm::kPageBytes;
    ++block.pages;
    if (!block.runs.empty() && block.runs.back().segment == &segment &&
        block.runs.back().page + block.runs.back().pages == page) {
      ++block.runs.back().pages;
    } else {
      block.runs.push_back({&segment, page, 1});
    }
  }
  return changed;
}

std::uint64_t Store::copy(unsigned threads, const std::atomic<bool>& cancelled, const Look& look) {
  return copy_all(threads, cancelled, look, false);
}

void Store::make_room(std::uint64_t bytes) {
  while (room_.size() * kBlockPages * shm::kPageBytes < bytes) room_.push_back(make_block());
}

std::uint64_t Store::copy_to_room(unsigned threads, const std::atomic<bool>& cancelled,
                                  const Look& look) {
  return copy_all(threads, cancelled, look, true);
}

void Store::write_kept() {
  for (Block& block : kept_) write_block(block);
  kept_.clear();
  room_.clear();
}

std::uint64_t Store::copy_all(unsigned threads, const std::atomic<bool>& cancelled,
                              const Look& look, bool keep) {
  struct Part {
    Segment* segment;
    PageRange pages;
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = segments_[i];
    if (segment.given) continue;
    remap(segment);
    const std::size_t end = segment.hashes.size();
    const auto add = [&](PageRange range) {
      const std::size_t last = std::min(range.last, end);
      for (std::size_t page = range.first; page < last; page += kPartPages) {
        parts.push_back({&segment, {page, std::min(page + kPartPages, last)}});
      }
    };
    if (i < look.size() && look[i]) {
      for (const PageRange& range : *look[i]) add(range);
    } else {
      add({0, end});
    }
  }
  if (looks_ != nullptr) {
    std::size_t pages = 0;
    for (const Part& part : parts) pages += part.pages.last - part.pages.first;
    // relaxed, here and below: numbers to look at.
    looks_->done.store(0, std::memory_order_relaxed);
    looks_->total.store(pages * shm::kPageBytes, std::memory_order_relaxed);
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> changed{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      Block block = make_block();
      std::size_t pages = 0;  // since it last took parts
      std::size_t first = 0;
      std::size_t last = 0;
      // relaxed, all: numbers; what the threads wrote is ordered by their join.
      for (;; ++first) {
        if (first == last) {
          // Small parts are taken by the dozen.
          first = next.fetch_add(kPartsAtOnce, std::memory_order_relaxed);
          last = std::min(first + kPartsAtOnce, parts.size());
          if (first >= parts.size()) break;
        }
        pages += parts[first].pages.last - parts[first].pages.first;
        if (pages >= kPartPages) {
          pages = 0;
          if (cancelled.load(std::memory_order_relaxed)) {
            throw Error(ErrorCode::kClosed,
                        fmt::format("snapshot {}: abandoned", escaped(directory_)));
          }
        }
        const Part& part = parts[first];
        changed.fetch_add(
            copy_range(*part.segment, part.pages, part.segment->mapping.data(), block, keep),
            std::memory_order_relaxed);
        if (looks_ != nullptr) {
          looks_->done.fetch_add((part.pages.last - part.pages.first) * shm::kPageBytes,
                                 std::memory_order_relaxed);
        }
      }
      put_away(block, keep);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next.store(parts.size(), std::memory_order_relaxed);
    }
  };
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(threads);
    for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  } catch (const std::exception&) {
    // No thread is to be had: those that there are do all of it.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  return changed.load(std::memory_order_relaxed);
}

void Store::put(std::size_t number, std::vector<std::byte> bytes) {
  Segment& segment = segments_[number];
  bytes.resize(shm::align_up(bytes.size(), shm::kPageBytes));
  segment.given = true;
  segment.hashes.resize(bytes.size() / shm::kPageBytes, zero_page_hash());
  Block block = make_block();
  copy_range(segment, {0, segment.hashes.size()}, bytes.data(), block, false);
  put_away(block, false);
}

void Store::sync_directory(const std::string& directory) const {
  const shm::Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail(directory, errno);
}

void Store::publish(SnapshotManifest& manifest) {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    SnapshotSegment& out = *manifest.mutable_segments(static_cast<int>(i));
    out.set_bytes(segment.hashes.size() * shm::kPageBytes);
    out.set_file(segment_file(i));
    out.set_digest(digest_of(segment.hashes));
    if (::fdatasync(segment.file.get()) != 0) fail(out.file(), errno);
  }
  const std::string parent = fs::path(directory_).parent_path().string();
  manifest.set_number(next_number(parent, manifest.feed()));
  const std::string text = manifest_text(manifest);
  Segment file;
  file.name = kManifestFile;
  file.file =
      shm::Fd(::open(path(kManifestFile).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.file) fail(kManifestFile, errno);
  write_at(file, reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
  if (::fsync(file.file.get()) != 0) fail(kManifestFile, errno);
  sync_directory(partial_);

  bool replaced = false;
  // An empty directory is replaced by rename() itself.
  if (::rename(partial_.c_str(), directory_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail("cannot be renamed to its final name", errno);
    // Somebody may have put something there while it was written.
    check_replaceable(directory_).or_throw();
    if (::syscall(SYS_renameat2, AT_FDCWD, partial_.c_str(), AT_FDCWD, directory_.c_str(),
                  RENAME_EXCHANGE) != 0) {
      fail("cannot replace the previous snapshot", errno);
    }
    replaced = true;
  }
  published_ = true;
  sync_directory(parent);
  if (!replaced) return;
  remove_files(partial_);  // now the one before
  ::rmdir(partial_.c_str());
}

}  // namespace ringfeed::snapshot
