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
#include <thread>

#include "proto/snapshot.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/pages.h"

namespace ringfeed::snapshot {
namespace {

namespace fs = std::filesystem;

// What a thread copies at a time, and writes with one call at most.
constexpr std::size_t kRangePages = 1024;
constexpr std::size_t kRunPages = 256;

std::string segment_file(std::size_t number) { return fmt::format("{:03}.segment", number); }

}  // namespace

void Store::fail(const std::string& what, int error) const {
  std::string room;
  struct statvfs info {};
  const bool full = error == ENOSPC || error == EDQUOT;
  if (full && ::statvfs(fs::path(directory_).parent_path().c_str(), &info) == 0) {
    room = fmt::format(" ({} bytes are free, the feed has {})", info.f_bavail * info.f_frsize,
                       bytes());
  }
  throw Error(full ? ErrorCode::kNoMemory : ErrorCode::kIo,
              fmt::format("snapshot {}: {}: {}{}", directory_, what, std::strerror(error), room));
}

Store::Store(std::string directory) : directory_(std::move(directory)) {
  while (directory_.size() > 1 && directory_.ends_with('/')) directory_.pop_back();
  const fs::path place(directory_);
  if (!place.is_absolute() || place.filename().empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no place for a snapshot: give the path of a directory that "
                            "is to be made",
                            directory_));
  }
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(place, ignored)) && !fs::is_empty(place, ignored) &&
      !fs::exists(place / kManifestFile, ignored)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is there already and is no snapshot: give another path", directory_));
  }
  partial_ = (place.parent_path() / fmt::format(".{}.partial", place.filename().string())).string();
  if (::mkdir(partial_.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(fmt::format("{} cannot be made", partial_), errno);
  }
  lock_ = shm::Fd(::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!lock_) fail(partial_, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    lock_.reset();
    throw Error(ErrorCode::kBusy,
                fmt::format("another snapshot is being written to {}", directory_));
  }
  // What a death has left.
  for (const fs::directory_entry& entry : fs::directory_iterator(partial_)) {
    fs::remove_all(entry.path(), ignored);
  }
}

Store::~Store() {
  if (published_ || !lock_) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
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

// Pages [first, last): those that differ from the file are copied before they are hashed for good,
// so that file and hash agree whoever writes to the page meanwhile.
std::uint64_t Store::copy_range(Segment& segment, std::size_t first, std::size_t last,
                                const std::byte* from) {
  thread_local std::vector<std::byte> run(kRunPages * shm::kPageBytes);
  std::size_t run_pages = 0;
  std::uint64_t written = 0;
  const auto flush = [&](std::size_t end) {
    if (run_pages == 0) return;
    write_at(segment, run.data(), run_pages * shm::kPageBytes, (end - run_pages) * shm::kPageBytes);
    written += run_pages * shm::kPageBytes;
    run_pages = 0;
  };
  for (std::size_t page = first; page < last; ++page) {
    const std::byte* const source = from + page * shm::kPageBytes;
    if (page_hash(source) == segment.hashes[page]) {
      flush(page);
      continue;
    }
    std::byte* const copy = run.data() + run_pages * shm::kPageBytes;
    std::memcpy(copy, source, shm::kPageBytes);
    segment.hashes[page] = page_hash(copy);
    if (++run_pages == kRunPages) flush(page + 1);
  }
  flush(last);
  return written;
}

std::uint64_t Store::copy(unsigned threads, const std::atomic<bool>& cancelled) {
  struct Range {
    Segment* segment;
    std::size_t first;
    std::size_t last;
  };
  std::vector<Range> ranges;
  for (Segment& segment : segments_) {
    if (segment.given) continue;
    remap(segment);
    for (std::size_t page = 0; page < segment.hashes.size(); page += kRangePages) {
      ranges.push_back({&segment, page, std::min(page + kRangePages, segment.hashes.size())});
    }
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> written{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      // relaxed, all: numbers; what the threads wrote is ordered by their join.
      for (;;) {
        const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
        if (i >= ranges.size()) return;
        if (cancelled.load(std::memory_order_relaxed)) {
          throw Error(ErrorCode::kClosed, fmt::format("snapshot {}: given up", directory_));
        }
        const Range& range = ranges[i];
        written.fetch_add(
            copy_range(*range.segment, range.first, range.last, range.segment->mapping.data()),
            std::memory_order_relaxed);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next.store(ranges.size(), std::memory_order_relaxed);
    }
  };
  std::vector<std::thread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  return written.load(std::memory_order_relaxed);
}

void Store::put(std::size_t number, std::vector<std::byte> bytes) {
  Segment& segment = segments_[number];
  bytes.resize(shm::align_up(bytes.size(), shm::kPageBytes));
  segment.given = true;
  segment.hashes.resize(bytes.size() / shm::kPageBytes, zero_page_hash());
  copy_range(segment, 0, segment.hashes.size(), bytes.data());
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
  const std::string text = manifest_text(manifest);
  Segment file;
  file.name = kManifestFile;
  file.file =
      shm::Fd(::open(path(kManifestFile).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.file) fail(kManifestFile, errno);
  write_at(file, reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
  if (::fsync(file.file.get()) != 0) fail(kManifestFile, errno);
  sync_directory(partial_);

  const std::string parent = fs::path(directory_).parent_path().string();
  bool replaced = false;
  // An empty directory is replaced by rename() itself.
  if (::rename(partial_.c_str(), directory_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail("cannot be given its name", errno);
    if (::syscall(SYS_renameat2, AT_FDCWD, partial_.c_str(), AT_FDCWD, directory_.c_str(),
                  RENAME_EXCHANGE) != 0) {
      fail("cannot take the place of the one before", errno);
    }
    replaced = true;
  }
  published_ = true;
  sync_directory(parent);
  std::error_code ignored;
  if (replaced) fs::remove_all(partial_, ignored);  // now the one before
}

}  // namespace ringfeed::snapshot
