#include "workers/lc0/chunk_files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/file.h"
#include "workers/kit/shared_by_name.h"

namespace ringfeed {
namespace {

constexpr std::size_t kOpenFilesMax = 128;
// Copies of remote objects: one that is open cannot make room for another in its cache.
constexpr std::size_t kOpenCopiesMax = 2;

std::string not_gzip(std::span<const std::byte> bytes) {
  std::string begin;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(bytes.size(), 4))) {
    begin += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  }
  return "not a gzip file (starts with" + (begin.empty() ? " nothing" : begin) + ")";
}

}  // namespace

ChunkTask chunk_task(const Record& record) {
  ChunkTask task{.record = record};
  RF_CHECK(record.bytes.size() >= sizeof task.words, record.bytes.size());
  std::memcpy(&task.words, record.bytes.data(), sizeof task.words);
  RF_CHECK(record.bytes.size() == sizeof task.words + task.words.path_bytes, record.bytes.size(),
           task.words.path_bytes);
  task.path.assign(reinterpret_cast<const char*>(record.bytes.data()) + sizeof task.words,
                   task.words.path_bytes);
  return task;
}

ChunkFiles::ChunkFiles(const StageContext& context)
    : warn_(context.warn),
      stage_(context.stage),
      vanished_(context, "skipped_vanished"),
      unreadable_(context, "skipped_unreadable"),
      damaged_(context, "skipped_damaged"),
      empty_(context, "skipped_empty"),
      record_(context, "skipped_record") {}

ChunkFiles::~ChunkFiles() { close_all(); }

void ChunkFiles::close_all() noexcept {
  for (const auto& [path, file] : files_) ::close(file.fd);
  files_.clear();
}

std::optional<ChunkRefusal> ChunkFiles::look(const ChunkTask& task, struct stat& file) {
  if (::stat(task.path.c_str(), &file) == 0) return std::nullopt;
  const int error = errno;
  if (error == ENOENT && cached_.is_copy(task.path)) {
    const Result<shm::Fd> fd = cached_.open(task.path, CachedFiles::Wish::kKeep);
    if (fd && ::fstat(fd->get(), &file) == 0) return std::nullopt;
    if (fd || fd.error().code() == ErrorCode::kBusy) {
      close_all();  // they may have to make room
      return ChunkRefusal{};
    }
    return ChunkRefusal{&vanished_, fd.error().message(), true};
  }
  return ChunkRefusal{error == ENOENT ? &vanished_ : &unreadable_, std::strerror(error), true};
}

int ChunkFiles::open(const ChunkTask& task, struct stat& file, ChunkRefusal& refusal) {
  ++clock_;
  if (const auto found = files_.find(task.path); found != files_.end()) {
    OpenFile& known = found->second;
    if (known.device == file.st_dev && known.inode == file.st_ino &&
        !cached_.is_damaged(task.path, file)) {
      known.used_at = clock_;
      return known.fd;
    }
    ::close(known.fd);
    files_.erase(found);
  }
  Result<shm::Fd> opened = cached_.open(task.path);
  if (!opened && opened.error().code() == ErrorCode::kNoMemory) {
    // Those that are kept open are a convenience.
    close_all();
    opened = cached_.open(task.path);
  }
  if (!opened && opened.error().code() == ErrorCode::kNoMemory) {
    if (starved_.speak()) {
      warn_(fmt::format("no_descriptor stage={} count={} path={}: {}; retrying until there is one",
                        stage_, starved_.count(), task.path, opened.error().message()));
    }
    refusal = {nullptr, opened.error().message()};
    return -1;
  }
  if (!opened && opened.error().code() == ErrorCode::kBusy) {
    close_all();
    return -1;
  }
  if (!opened) {
    const bool gone = opened.error().code() == ErrorCode::kNotFound;
    refusal = {gone ? &vanished_ : &unreadable_, opened.error().message(), true};
    return -1;
  }
  const int fd = opened->release();
  ::fstat(fd, &file);
  if (files_.size() >= (cached_.is_copy(task.path) ? kOpenCopiesMax : kOpenFilesMax)) {
    const auto oldest = std::min_element(
        files_.begin(), files_.end(),
        [](const auto& a, const auto& b) { return a.second.used_at < b.second.used_at; });
    ::close(oldest->second.fd);
    files_.erase(oldest);
  }
  files_.emplace(task.path, OpenFile{fd, clock_, file.st_dev, file.st_ino});
  return fd;
}

ChunkFiles::Records ChunkFiles::read(const ChunkTask& task, int fd) {
  const TaskRecord& words = task.words;
  const auto refused = [](SkipReason& reason, std::string text) {
    return Records{.raw = {}, .check = {}, .refusal = {&reason, std::move(text)}};
  };
  if (words.bytes > formats::kInflatedBytesMax) return refused(damaged_, "larger than any chunk");
  if (stored_.size() < words.bytes) stored_.resize(words.bytes);
  std::uint64_t have = 0;
  while (have < words.bytes) {
    const ssize_t got = ::pread(fd, stored_.data() + have, words.bytes - have,
                                static_cast<off_t>(words.offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      Records failed = refused(unreadable_, std::strerror(errno));
      failed.refusal.away = true;
      return failed;
    }
    if (got == 0) {
      // The end of a file that is being copied back is to come.
      Records failed =
          refused(damaged_, fmt::format("the file ends after {} of {} bytes", have, words.bytes));
      failed.refusal.away = true;
      return failed;
    }
    have += static_cast<std::uint64_t>(got);
  }
  Records records{.raw = {stored_.data(), words.bytes}, .check = {}, .refusal = {}};
  const bool gzip = (words.flags & kChunkGzip) != 0;
  if (gzip) {
    const formats::GzipOutcome outcome =
        inflater_.inflate(std::span<const std::byte>(stored_.data(), words.bytes), &records.raw);
    if (!outcome.ok()) {
      return refused(damaged_, fmt::format("{}: {}", formats::gzip_status_name(outcome.status),
                                           formats::gzip_outcome_text(
                                               outcome, inflater_.inflated_bytes_max())));
    }
    records.trailing_bytes = outcome.trailing_bytes;
  }
  records.check = formats::check_chunk(records.raw);
  if (records.check.usable()) return records;
  std::string text = fmt::format("{}: {}", formats::chunk_reason_name(records.check.reason),
                                 formats::chunk_check_text(records.check));
  // What is not gzip is taken for plain records; if it is none of both, the former was meant.
  if (!gzip) text = fmt::format("{}; as plain records: {}", not_gzip(records.raw), text);
  return refused(records.check.reason == formats::ChunkReason::kEmpty ? empty_ : record_,
                 std::move(text));
}

StoreKey ChunkFiles::key_of(const ChunkTask& task, const struct stat& file) noexcept {
  return store_key({.path = task.path,
                    .device = file.st_dev,
                    .inode = file.st_ino,
                    .file_bytes = static_cast<std::uint64_t>(file.st_size),
                    .mtime_ns = static_cast<std::int64_t>(file.st_mtim.tv_sec) * 1'000'000'000 +
                                file.st_mtim.tv_nsec,
                    .offset = task.words.offset,
                    .bytes = task.words.bytes});
}

std::shared_ptr<ChunkStore> store_of(const StageContext& context) {
  const ShufflingChunkPoolConfig& own = context.config.shuffling_chunk_pool();
  if (!own.has_store_bytes()) return nullptr;
  return shared_by_name<ChunkStore>(
      context.stage,
      ChunkStore::Options{.budget_bytes = own.store_bytes(), .directory = own.store_directory()});
}

std::shared_ptr<WeighedGames> weighed_games_of(const StageContext& context) {
  const ShufflingChunkPoolConfig& own = context.config.shuffling_chunk_pool();
  if (own.has_store_bytes() || !own.has_position_sampling()) return nullptr;
  return shared_by_name<WeighedGames>(context.stage, own.threads());
}

}  // namespace ringfeed
