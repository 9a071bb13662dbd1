#include "workers/lc0/chunk_index.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "workers/io/gzip.h"

namespace ringfeed::formats {

namespace {

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t checksum;
  std::uint64_t tar_bytes;
  std::int64_t mtime_ns;
  std::uint64_t problem_count;
  std::uint64_t chunk_count;
  std::uint64_t path_bytes;
  std::uint64_t reserved;
};
static_assert(sizeof(FileHeader) == 64 && offsetof(FileHeader, tar_bytes) == 16,
              "changes only with the header's table and kVersion");

constexpr char kIndexMagic[8] = {'r', 'f', 'c', 'h', 'u', 'n', 'k', 's'};
// 2: members without a name are counted as problems. 3: tars that are joined are one.
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kChecksummedFrom = offsetof(FileHeader, tar_bytes);
// Ten million games; a file that claims more is none of ours.
constexpr std::uint64_t kCacheFileBytesMax = std::uint64_t{1} << 29;

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool open() const noexcept { return fd_ >= 0; }

 private:
  int fd_;
};

// FNV-1a, 64 bits: spreads paths over names. Paths that collide share a name and take turns in it.
std::uint64_t hash_of(const std::string& text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

std::uint32_t checksum_of(const std::vector<std::byte>& file) noexcept {
  return libdeflate_crc32(0, file.data() + kChecksummedFrom, file.size() - kChecksummedFrom);
}

std::optional<std::vector<std::byte>> read_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < sizeof(FileHeader) || size > kCacheFileBytesMax) return std::nullopt;
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

bool write_all(int fd, const std::vector<std::byte>& bytes) noexcept {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<std::size_t>(put);
  }
  return true;
}

}  // namespace

Result<TarIdentity> identify_tar(int fd, const std::string& path) noexcept {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return Error{ErrorCode::kIo, fmt::format("{}: its size and time are unknown: {}", path,
                                             strerrordesc_np(errno))};
  }
  const std::unique_ptr<char, decltype(&std::free)> canonical(::realpath(path.c_str(), nullptr),
                                                              &std::free);
  return TarIdentity{.path = canonical != nullptr ? std::string(canonical.get()) : path,
                     .tar_bytes = static_cast<std::uint64_t>(status.st_size),
                     .mtime_ns = static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                                 status.st_mtim.tv_nsec};
}

Result<ChunkIndex> build_chunk_index(int fd) noexcept {
  Result<TarIndex> tar = index_tar(fd);
  if (!tar) return tar.error();
  ChunkIndex index;
  index.problem_count = tar->problem_count;
  index.problems = std::move(tar->problems);
  index.chunks.reserve(tar->members.size());
  for (const TarMember& member : tar->members) {
    const MemberUse use = member_use(member.name);
    if (use == MemberUse::kNotAChunk) continue;
    const bool is_gzip = use == MemberUse::kGzipChunk;
    index.chunks.push_back({.data_offset = member.data_offset,
                            .data_bytes = member.data_bytes,
                            .uncompressed_bytes = is_gzip
                                                      ? gzip_uncompressed_bytes(member.last_bytes)
                                                      : member.data_bytes,
                            .is_gzip = is_gzip ? 1U : 0U,
                            .reserved = 0});
  }
  return index;
}

std::string chunk_index_path(const std::string& cache_directory,
                             const std::string& tar_path) noexcept {
  return fmt::format("{}/{:016x}.chunks", cache_directory, hash_of(tar_path));
}

bool is_chunk_index(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= sizeof kIndexMagic &&
         std::memcmp(bytes.data(), kIndexMagic, sizeof kIndexMagic) == 0;
}

Result<KeptChunkIndex> read_chunk_index(const std::string& cache_file) noexcept {
  const auto damaged = [&cache_file](const std::string& what) {
    return Error{ErrorCode::kDamaged, fmt::format("{}: {}", cache_file, what)};
  };
  const std::optional<std::vector<std::byte>> file = read_file(cache_file);
  if (!file) {
    return Error{
        ErrorCode::kIo,
        fmt::format("{}: cannot be read, or does not have the size of an index", cache_file)};
  }
  FileHeader header;
  std::memcpy(&header, file->data(), sizeof header);
  if (!is_chunk_index(*file)) return damaged("it does not begin like an index");
  if (header.version != kVersion) {
    return damaged(
        fmt::format("an index of version {}, but this program uses {}", header.version, kVersion));
  }
  if (header.checksum != checksum_of(*file)) {
    return damaged("it fails its checksum: it is rebuilt when its tar is used next");
  }
  // Sizes first in this order: neither the product nor the sum can overflow once the count is
  // bounded by the file.
  const std::uint64_t body_bytes = file->size() - sizeof header;
  if (header.chunk_count > body_bytes / sizeof(Chunk) ||
      header.path_bytes != body_bytes - header.chunk_count * sizeof(Chunk)) {
    return damaged("its length differs from that in its header");
  }
  const auto chunk_count = static_cast<std::size_t>(header.chunk_count);
  const std::byte* path = file->data() + sizeof header + chunk_count * sizeof(Chunk);
  KeptChunkIndex kept;
  kept.identity.path.assign(reinterpret_cast<const char*>(path),
                            static_cast<std::size_t>(header.path_bytes));
  kept.identity.tar_bytes = header.tar_bytes;
  kept.identity.mtime_ns = header.mtime_ns;
  kept.index.from_cache = true;
  kept.index.problem_count = header.problem_count;
  kept.index.chunks.resize(chunk_count);
  if (chunk_count != 0) {
    std::memcpy(kept.index.chunks.data(), file->data() + sizeof header,
                chunk_count * sizeof(Chunk));
  }
  // A checksum tells accidents, not intentions: nothing is believed that would read outside the
  // tar.
  for (const Chunk& chunk : kept.index.chunks) {
    if (chunk.data_offset > header.tar_bytes ||
        chunk.data_bytes > header.tar_bytes - chunk.data_offset || chunk.is_gzip > 1) {
      return damaged("a chunk is outside of its tar");
    }
  }
  return kept;
}

std::optional<ChunkIndex> load_chunk_index(const std::string& cache_directory,
                                           const TarIdentity& identity) noexcept {
  Result<KeptChunkIndex> kept = read_chunk_index(chunk_index_path(cache_directory, identity.path));
  if (!kept || !(kept->identity == identity)) return std::nullopt;
  return std::move(kept->index);
}

bool save_chunk_index(const std::string& cache_directory, const TarIdentity& identity,
                      const ChunkIndex& index) noexcept {
  FileHeader header{.magic = {},
                    .version = kVersion,
                    .checksum = 0,
                    .tar_bytes = identity.tar_bytes,
                    .mtime_ns = identity.mtime_ns,
                    .problem_count = index.problem_count,
                    .chunk_count = index.chunks.size(),
                    .path_bytes = identity.path.size(),
                    .reserved = 0};
  std::memcpy(header.magic, kIndexMagic, sizeof kIndexMagic);
  const std::size_t chunks_bytes = index.chunks.size() * sizeof(Chunk);
  std::vector<std::byte> file(sizeof header + chunks_bytes + identity.path.size());
  std::memcpy(file.data(), &header, sizeof header);
  if (chunks_bytes != 0) {
    std::memcpy(file.data() + sizeof header, index.chunks.data(), chunks_bytes);
  }
  std::memcpy(file.data() + sizeof header + chunks_bytes, identity.path.data(),
              identity.path.size());
  header.checksum = checksum_of(file);
  std::memcpy(file.data() + offsetof(FileHeader, checksum), &header.checksum,
              sizeof header.checksum);

  const std::string final_path = chunk_index_path(cache_directory, identity.path);
  // A name nobody else has, also in another container with the same process numbers.
  std::string own_path = fmt::format("{}.{}.XXXXXX", final_path, ::getpid());
  const Descriptor own(::mkostemp(own_path.data(), O_CLOEXEC));
  if (!own.open()) return false;
  // No fsync: after a power cut a file may be empty or torn, and the checksum makes that "absent".
  if (!write_all(own.get(), file) || ::rename(own_path.c_str(), final_path.c_str()) != 0) {
    ::unlink(own_path.c_str());
    return false;
  }
  return true;
}

Result<ChunkIndex> load_or_build_chunk_index(const std::string& cache_directory, int fd,
                                             const std::string& path) noexcept {
  Result<TarIdentity> before = identify_tar(fd, path);
  if (!before) return before.error();
  if (!cache_directory.empty()) {
    if (std::optional<ChunkIndex> kept = load_chunk_index(cache_directory, *before)) {
      return std::move(*kept);
    }
  }
  Result<ChunkIndex> built = build_chunk_index(fd);
  if (!built) {
    return Error{built.error().code(), fmt::format("{}: {}", path, built.error().message())};
  }
  if (cache_directory.empty()) return built;
  const Result<TarIdentity> after = identify_tar(fd, path);
  // What the disk refused once it may give next time, so such an index is not kept either.
  bool unreadable = false;
  for (const TarProblem& problem : built->problems) {
    unreadable |= problem.reason == TarReason::kUnreadable;
  }
  if (after && *after == *before && !unreadable) {
    static_cast<void>(save_chunk_index(cache_directory, *before, *built));
  }
  return built;
}

}  // namespace ringfeed::formats
