#include "workers/lc0/chunk_store.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "ringfeed/shm/abi.h"

namespace ringfeed {

namespace {

constexpr std::uint64_t kMagic = 0x31656d6167006672;  // "rf\0game1"
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kSegmentBytesMax = 32ULL << 20;
constexpr std::uint64_t kSegmentBytesMin = 1ULL << 20;
constexpr const char* kExtension = ".games";

struct EntryHeader {
  std::uint64_t magic;
  StoreKey key;
  std::uint64_t bytes;     // of the game behind it
  std::uint64_t checksum;  // XXH3-64 of the game, seeded with the key
  std::uint64_t reserved[3];
};
static_assert(sizeof(EntryHeader) == 64 && sizeof(EntryHeader) % kAlignment == 0);

std::uint64_t checksum_of(const StoreKey& key, std::span<const std::byte> game) noexcept {
  return ::XXH3_64bits_withSeed(game.data(), game.size(), key.words[0]);
}

bool read_all(int fd, std::byte* to, std::uint64_t bytes, std::uint64_t offset) noexcept {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool write_all(int fd, const std::byte* from, std::uint64_t bytes, std::uint64_t offset) noexcept {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t put = ::pwrite(fd, from + done, bytes - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<std::uint64_t>(put);
  }
  return true;
}

// A tenth of the budget, so that one that goes does not empty the store; in powers of two.
std::uint64_t segment_bytes_of(std::uint64_t budget) noexcept {
  std::uint64_t bytes = kSegmentBytesMax;
  while (bytes > kSegmentBytesMin && bytes > budget / 10) bytes /= 2;
  return bytes;
}

}  // namespace

// Games one after the other, in memory or in a file.
class StoreSegment {
 public:
  StoreSegment(std::uint32_t number, std::uint64_t bytes, std::byte* memory, int fd,
               std::string path) noexcept
      : number_(number), bytes_(bytes), memory_(memory), fd_(fd), path_(std::move(path)) {}
  ~StoreSegment() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
    if (fd_ >= 0) ::close(fd_);
    if (unwanted_) ::unlink(path_.c_str());
  }
  StoreSegment(const StoreSegment&) = delete;
  StoreSegment& operator=(const StoreSegment&) = delete;

  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const std::byte* memory() const noexcept { return memory_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  bool write(std::uint64_t offset, std::span<const std::byte> from) noexcept {
    if (memory_ == nullptr) return write_all(fd_, from.data(), from.size(), offset);
    std::memcpy(memory_ + offset, from.data(), from.size());
    return true;
  }
  // Its file goes with the last who reads it.
  void abandon() noexcept { unwanted_ = fd_ >= 0; }

  // Guarded by the store.
  std::uint64_t used = 0;
  std::vector<StoreKey> keys;  // of the games in it, and of some that were forgotten

 private:
  std::uint32_t number_;
  std::uint64_t bytes_;
  std::byte* memory_;
  int fd_;
  std::string path_;
  bool unwanted_ = false;
};

StoreKey store_key(const ChunkOrigin& origin) noexcept {
  const ::XXH128_hash_t path = ::XXH3_128bits(origin.path.data(), origin.path.size());
  const std::uint64_t numbers[] = {path.low64,        path.high64,
                                   origin.device,     origin.inode,
                                   origin.file_bytes, static_cast<std::uint64_t>(origin.mtime_ns),
                                   origin.offset,     origin.bytes};
  const ::XXH128_hash_t hash = ::XXH3_128bits(numbers, sizeof numbers);
  return {{hash.low64, hash.high64}};
}

std::span<const std::byte> ChunkStore::Lease::at(std::size_t offset, std::size_t bytes) noexcept {
  if (offset > bytes_ || bytes > bytes_ - offset) return {};
  const std::uint64_t from = offset_ + offset;
  if (segment_->memory() != nullptr) return {segment_->memory() + from, bytes};
  if (scratch_->size() < bytes) scratch_->resize(bytes);
  if (!read_all(segment_->fd(), scratch_->data(), bytes, from)) return {};
  return {scratch_->data(), bytes};
}

ChunkStore::ChunkStore(Options options)
    : options_(std::move(options)), segment_bytes_(segment_bytes_of(options_.budget_bytes)) {
  if (!options_.directory.empty()) open_directory();
}

ChunkStore::~ChunkStore() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
  if (directory_fd_ >= 0) ::close(directory_fd_);
}

void ChunkStore::say(std::string text) noexcept {
  if (problem_.empty()) problem_ = std::move(text);
}

std::optional<std::string> ChunkStore::problem() noexcept {
  const std::lock_guard lock(mutex_);
  if (problem_ == said_) return std::nullopt;
  said_ = problem_;
  return said_;
}

// Takes the lock and lists what is there. Whatever goes wrong leaves a store that keeps nothing.
void ChunkStore::open_directory() {
  usable_ = false;
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  directory_fd_ = ::open(options_.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd_ < 0) {
    return say(fmt::format("{}: cannot be used: {}; games are not stored", options_.directory,
                           ::strerrordesc_np(errno)));
  }
  lock_fd_ = ::openat(directory_fd_, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0 || ::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return say(fmt::format("{}: {}; games are not stored", options_.directory,
                           lock_fd_ >= 0 && errno == EWOULDBLOCK
                               ? "another process uses it: give each feed its own directory"
                               : ::strerrordesc_np(errno)));
  }
  usable_ = true;
  std::vector<std::pair<std::uint32_t, std::string>> names;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    const std::string name = entry.path().filename();
    unsigned number = 0;
    int end = 0;
    if (std::sscanf(name.c_str(), "%8u.games%n", &number, &end) == 1 &&
        static_cast<std::size_t>(end) == name.size()) {
      names.emplace_back(number, name);
    }
  }
  std::sort(names.begin(), names.end());
  for (const auto& [number, name] : names) read_segment(name, number);
}

void ChunkStore::read_segment(const std::string& name, std::uint32_t number) {
  next_segment_ = std::max(next_segment_, number + 1);
  const std::string path = options_.directory + "/" + name;
  const int fd = ::openat(directory_fd_, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    if (fd >= 0) ::close(fd);
    return;
  }
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  auto segment = std::make_shared<StoreSegment>(number, bytes, nullptr, fd, path);
  // A budget that became smaller: the newest segments stay.
  while (figures_.bytes + bytes > options_.budget_bytes && !segments_.empty()) {
    drop_segment(
        std::min_element(segments_.begin(), segments_.end(), [](const auto& a, const auto& b) {
          return a.first < b.first;
        })->first);
  }
  if (figures_.bytes + bytes > options_.budget_bytes) {
    segment->abandon();
    return;
  }
  segments_.emplace(number, segment);
  figures_.bytes += bytes;
  for (std::uint64_t at = 0; at + sizeof(EntryHeader) <= bytes;) {
    EntryHeader header;
    if (!read_all(fd, reinterpret_cast<std::byte*>(&header), sizeof header, at)) break;
    const std::uint64_t room = bytes - at - sizeof header;
    if (header.magic != kMagic || header.bytes == 0 || header.bytes > room) break;
    // Of games that were stored twice the later one counts.
    if (places_
            .insert_or_assign(header.key, Place{number, static_cast<std::uint32_t>(header.bytes),
                                                at + sizeof header, 0, false})
            .second) {
      ++figures_.games;
    }
    segment->keys.push_back(header.key);
    at += sizeof header + shm::align_up(header.bytes, kAlignment);
  }
  // What an interrupted write left behind the last game stays unused.
  segment->used = bytes;
}

std::optional<ChunkStore::Lease> ChunkStore::find(const StoreKey& key, std::uint64_t number,
                                                  std::vector<std::byte>& scratch) noexcept {
  Lease lease;
  bool checked = true;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return std::nullopt;
    found->second.number = number;
    checked = found->second.checked;
    lease.segment_ = segments_.at(found->second.segment);
    lease.offset_ = found->second.offset;
    lease.bytes_ = found->second.bytes;
  }
  lease.scratch_ = &scratch;
  if (checked) return lease;
  EntryHeader header;
  const std::span<const std::byte> game = lease.at(0, lease.bytes_);
  if (game.size() != lease.bytes_ ||
      !read_all(lease.segment_->fd(), reinterpret_cast<std::byte*>(&header), sizeof header,
                lease.offset_ - sizeof header) ||
      header.checksum != checksum_of(key, game)) {
    forget(key);
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  if (const auto found = places_.find(key); found != places_.end()) found->second.checked = true;
  return lease;
}

void ChunkStore::forget(const StoreKey& key) noexcept {
  const std::lock_guard lock(mutex_);
  figures_.games -= places_.erase(key);
}

std::shared_ptr<StoreSegment> ChunkStore::new_segment() noexcept {
  const std::uint32_t number = next_segment_;
  if (options_.directory.empty()) {
    void* memory = ::mmap(nullptr, segment_bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      say(fmt::format("no memory for {} more MiB of stored games: {}", segment_bytes_ >> 20,
                      ::strerrordesc_np(errno)));
      return nullptr;
    }
    ::madvise(memory, segment_bytes_, MADV_HUGEPAGE);
    ++next_segment_;
    return std::make_shared<StoreSegment>(number, segment_bytes_, static_cast<std::byte*>(memory),
                                          -1, "");
  }
  const std::string name = fmt::format("{:08}{}", number, kExtension);
  const int fd = ::openat(directory_fd_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  // With its room, so that a full disk is noticed here.
  const int error = fd < 0 ? errno : ::posix_fallocate(fd, 0, static_cast<off_t>(segment_bytes_));
  if (error != 0) {
    if (fd >= 0) {
      ::unlinkat(directory_fd_, name.c_str(), 0);
      ::close(fd);
    }
    say(fmt::format("{}: no room for {} more MiB of stored games: {}", options_.directory,
                    segment_bytes_ >> 20, ::strerrordesc_np(error)));
    return nullptr;
  }
  ++next_segment_;
  return std::make_shared<StoreSegment>(number, segment_bytes_, nullptr, fd,
                                        options_.directory + "/" + name);
}

void ChunkStore::drop_segment(std::uint32_t number) noexcept {
  const auto found = segments_.find(number);
  for (const StoreKey& key : found->second->keys) {
    const auto place = places_.find(key);
    if (place == places_.end() || place->second.segment != number) continue;
    places_.erase(place);
    --figures_.games;
    ++figures_.evicted;
  }
  figures_.bytes -= found->second->bytes();
  found->second->abandon();
  if (open_ == found->second) open_.reset();
  segments_.erase(found);
}

// Lets the segment go that has the least of what is wanted; false if each has half of it or more.
// That can only change as the window moves on, and is looked at again when it has by a hundredth.
bool ChunkStore::make_room(std::uint64_t window_lower) noexcept {
  if (looked_at_lower_ && window_lower < *looked_at_lower_ + figures_.games / 128 + 1) return false;
  looked_at_lower_ = window_lower;
  std::unordered_map<std::uint32_t, std::uint64_t> wanted;
  for (const auto& [key, place] : places_) {
    // An unchecked one is of an earlier run, and nobody has asked for it yet.
    if (place.checked && place.number >= window_lower) wanted[place.segment] += place.bytes;
  }
  std::uint32_t least = 0;
  std::uint64_t least_bytes = ~std::uint64_t{0};
  for (const auto& [number, segment] : segments_) {
    const std::uint64_t bytes = wanted[number];
    if (2 * bytes < segment->bytes() && bytes < least_bytes) {
      least = number;
      least_bytes = bytes;
    }
  }
  if (least_bytes == ~std::uint64_t{0}) return false;
  drop_segment(least);
  looked_at_lower_.reset();
  return true;
}

void ChunkStore::put(const StoreKey& key, std::span<const std::byte> game, std::uint64_t number,
                     std::uint64_t window_lower) noexcept {
  const std::uint64_t entry_bytes = sizeof(EntryHeader) + shm::align_up(game.size(), kAlignment);
  std::shared_ptr<StoreSegment> segment;
  std::uint64_t at = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!usable_ || places_.contains(key)) return;
    if (entry_bytes > segment_bytes_) {
      ++figures_.refused;
      return;
    }
    if (open_ == nullptr || open_->used + entry_bytes > open_->bytes()) {
      if (figures_.bytes + segment_bytes_ > options_.budget_bytes && !make_room(window_lower)) {
        ++figures_.refused;
        return;
      }
      std::shared_ptr<StoreSegment> fresh = new_segment();
      if (fresh == nullptr) {
        usable_ = false;  // what is there is still read
        ++figures_.refused;
        return;
      }
      figures_.bytes += fresh->bytes();
      segments_.emplace(fresh->number(), fresh);
      open_ = std::move(fresh);
    }
    segment = open_;
    at = segment->used;
    segment->used += entry_bytes;
  }
  EntryHeader header{kMagic, key, game.size(), 0, {}};
  header.checksum = options_.directory.empty() ? 0 : checksum_of(key, game);
  if (!segment->write(at + sizeof header, game) ||
      !segment->write(at, std::as_bytes(std::span(&header, 1)))) {
    const std::lock_guard lock(mutex_);
    return say(
        fmt::format("{}: cannot be written to: {}", options_.directory, ::strerrordesc_np(errno)));
  }
  const std::lock_guard lock(mutex_);
  if (!segments_.contains(segment->number())) return;  // it went meanwhile
  if (places_
          .emplace(key, Place{segment->number(), static_cast<std::uint32_t>(game.size()),
                              at + sizeof header, number, true})
          .second) {
    ++figures_.games;
    segment->keys.push_back(key);
  }
}

ChunkStore::Figures ChunkStore::figures() const noexcept {
  const std::lock_guard lock(mutex_);
  return figures_;
}

}  // namespace ringfeed
