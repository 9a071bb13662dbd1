// Data for tests of stages: directories, records that can be told apart, chunks, sources.
#pragma once

#include <fmt/format.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/file.h"
#include "tests/support/rig/lane_rig.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/records.h"
#include "workers/lc0/tensor_generator.h"

namespace ringfeed::testing {

// While it lives this process gets no new descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    // The sanitizer of types asks the kernel about an object of a type that is new to it, and takes
    // descriptors for that: it meets errors here first. What is expected is looked at afterwards.
    static_cast<void>(shm::open_regular("/").error().message().size());
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

// A directory that is removed with its owner.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "ringfeed-stages-XXXXXX").string();
    RF_CHECK(::mkdtemp(name.data()) != nullptr, errno);
    path_ = std::filesystem::canonical(name).string();
    ::chmod(path_.c_str(), 0755);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path(std::string_view name) const {
    return fmt::format("{}/{}", path_, name);
  }
  // Writes and closes a file, making its directories; returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::string file = path(name);
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    RF_CHECK(out.good(), content.size());
    return file;
  }

 private:
  std::string path_;
};

// A record of version 6 that says which one it is.
inline std::string lc0_record(std::uint64_t id, std::size_t policy_entries = 20) {
  std::string record(formats::kV6RecordBytes, '\0');
  const auto put = [&record](std::size_t offset, auto value) {
    std::memcpy(record.data() + offset, &value, sizeof value);
  };
  put(formats::v6::kVersion, std::uint32_t{6});
  put(formats::v6::kInputFormat, std::uint32_t{1});
  for (std::size_t move = 0; move < formats::kPolicyMoves; ++move) {
    const bool legal = move < policy_entries;
    put(formats::v6::kPolicy + 4 * move, legal ? static_cast<float>(move) / 100.0F : -1.0F);
  }
  put(formats::v6::kPlanes, id);
  put(formats::v6::kPliesLeft, static_cast<float>(id % 1000));
  return record;
}

inline std::uint64_t record_id(const std::byte* record) {
  std::uint64_t id = 0;
  std::memcpy(&id, record + formats::v6::kPlanes, sizeof id);
  return id;
}

inline std::string pack_text(const std::string& record) {
  std::string frame(formats::packed_bytes_max, '\0');
  const std::size_t bytes = formats::pack(reinterpret_cast<const std::byte*>(record.data()), 6,
                                          std::as_writable_bytes(std::span(frame)));
  frame.resize(bytes);
  return frame;
}

// The record's number in a packed frame.
inline std::uint64_t frame_id(std::string_view frame) {
  std::vector<std::byte> record(formats::kV7RecordBytes);
  RF_CHECK(formats::unpack(std::as_bytes(std::span(frame)), record.data()) != 0, frame.size());
  return record_id(record.data());
}

inline std::string gzip_text(std::string_view content) {
  libdeflate_compressor* compressor = libdeflate_alloc_compressor(1);
  std::string out(libdeflate_gzip_compress_bound(compressor, content.size()), '\0');
  out.resize(
      libdeflate_gzip_compress(compressor, content.data(), content.size(), out.data(), out.size()));
  libdeflate_free_compressor(compressor);
  return out;
}

// Where the three float32 tensors of a batch of so many rows lie in its slot.
struct BatchOffsets {
  explicit BatchOffsets(std::uint32_t batch_size) {
    TensorGeneratorConfig config;
    config.set_batch_size(batch_size);
    const TensorGenerator::Tensors tensors(config);
    RF_CHECK(tensors.offsets.size() == 3, tensors.offsets.size());
    planes = tensors.offsets[0];
    policy = tensors.offsets[1];
    values = tensors.offsets[2];
  }
  std::uint64_t planes;
  std::uint64_t policy;
  std::uint64_t values;
};

// A game: records first, first + 1, ...
inline std::string game(std::uint64_t first, std::uint64_t count) {
  std::string records;
  for (std::uint64_t i = 0; i < count; ++i) records += lc0_record(first + i);
  return records;
}

// A record of the port "chunks" with the frames first, first + 1, ...
inline RigRecord chunk_record(std::uint64_t identity, std::uint16_t uses, std::uint64_t first,
                              std::uint32_t count) {
  const ChunkRecord head{identity, count, uses, 0, count, 0};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.resize(chunk_head_bytes(head));
  for (std::uint32_t i = 0; i < count; ++i) bytes += pack_text(lc0_record(first + i));
  return {.bytes = std::move(bytes)};
}

// The same with these records, all of one version.
inline RigRecord chunk_of_records(std::uint64_t identity, std::uint16_t uses,
                                  std::span<const std::byte> records, std::uint32_t version = 6) {
  const std::size_t record_bytes = formats::frame_bytes_of_version(version);
  const auto count = static_cast<std::uint32_t>(records.size() / record_bytes);
  const ChunkRecord head{identity, count, uses, 0, count, 0};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.resize(chunk_head_bytes(head));
  std::string frame(formats::packed_bytes_max, '\0');
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t used = formats::pack(records.data() + i * record_bytes, version,
                                           std::as_writable_bytes(std::span(frame)));
    bytes.append(frame, 0, used);
  }
  return {.bytes = std::move(bytes), .tag = {identity, uses}};
}

// The frames of a chunk, each as the record that it is packed from, or for versions below 6 has
// become.
inline std::vector<std::vector<std::byte>> records_of_chunk(const RigRecord& record) {
  ChunkRecord head{};
  RF_CHECK(record.bytes.size() >= sizeof head, record.bytes.size());
  std::memcpy(&head, record.bytes.data(), sizeof head);
  std::vector<std::vector<std::byte>> records;
  auto rest = std::as_bytes(std::span(record.bytes)).subspan(chunk_head_bytes(head));
  while (!rest.empty()) {
    std::vector<std::byte> unpacked(formats::kV7RecordBytes);
    unpacked.resize(formats::unpack(rest, unpacked.data()));
    RF_CHECK(!unpacked.empty(), rest.size());
    rest = rest.subspan(formats::view_packed(rest)->frame_bytes);
    records.push_back(std::move(unpacked));
  }
  return records;
}

// A chunk as it comes out of the pool.
struct SeenChunk {
  std::uint64_t identity;
  std::uint16_t uses;
  std::vector<std::uint64_t> ids;  // of its records
  friend bool operator==(const SeenChunk&, const SeenChunk&) = default;
};
inline SeenChunk see_chunk(const RigRecord& record) {
  ChunkRecord head{};
  RF_CHECK(record.bytes.size() >= sizeof head, record.bytes.size());
  std::memcpy(&head, record.bytes.data(), sizeof head);
  SeenChunk chunk{head.identity, head.uses, {}};
  std::string_view rest = std::string_view(record.bytes).substr(chunk_head_bytes(head));
  while (!rest.empty()) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, rest.data(), sizeof bytes);
    chunk.ids.push_back(frame_id(rest.substr(0, bytes)));
    rest.remove_prefix(bytes);
  }
  RF_CHECK(chunk.ids.size() == head.listed_count, chunk.ids.size(), head.listed_count);
  return chunk;
}

inline RigRecord scan_complete() { return {.user = kScanCompleteRecord}; }

// A record of the port "sources".
inline RigRecord source_record(const std::string& path, const std::vector<ChunkPlace>& places,
                               std::uint64_t first_chunk = 0) {
  const SourceRecord head{first_chunk, static_cast<std::uint32_t>(places.size()),
                          static_cast<std::uint32_t>(path.size())};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  for (std::uint64_t i = 0; i < places.size(); ++i) {
    ChunkPlace place = places[i];
    place.index = static_cast<std::uint32_t>(first_chunk + i);
    bytes.append(reinterpret_cast<const char*>(&place), sizeof place);
  }
  bytes += path;
  return {.bytes = std::move(bytes), .user = kFileRecord};
}

struct SeenSource {
  std::string path;
  std::uint64_t first_chunk = 0;
  std::vector<ChunkPlace> places = {};
};
inline SeenSource see_source(const RigRecord& record) {
  SourceRecord head{};
  RF_CHECK(record.bytes.size() >= sizeof head, record.bytes.size());
  std::memcpy(&head, record.bytes.data(), sizeof head);
  SeenSource source;
  source.first_chunk = head.first_chunk;
  source.places.resize(head.chunk_count);
  if (!source.places.empty()) {
    std::memcpy(source.places.data(), record.bytes.data() + sizeof head,
                head.chunk_count * sizeof(ChunkPlace));
  }
  source.path = record.bytes.substr(sizeof head + head.chunk_count * sizeof(ChunkPlace));
  RF_CHECK(source.path.size() == head.path_bytes, source.path.size(), head.path_bytes);
  return source;
}

// A chunk of raw records.
inline ChunkPlace raw_place(std::uint64_t offset, std::uint64_t bytes) {
  return {.offset = offset,
          .bytes = static_cast<std::uint32_t>(bytes),
          .index = 0,
          .frames = 1,
          .uses = 0,
          .flags = 0};
}

// A file of chunks of one raw record each, numbered from `first_id` on, and its source.
inline RigRecord write_source(const TempDir& directory, std::string_view name,
                              std::uint64_t first_id, std::uint64_t chunks) {
  const std::string path = directory.write(name, game(first_id, chunks));
  std::vector<ChunkPlace> places;
  for (std::uint64_t i = 0; i < chunks; ++i) {
    places.push_back(raw_place(i * formats::kV6RecordBytes, formats::kV6RecordBytes));
  }
  return source_record(path, places);
}

// The numbers begin, begin + 1, ... end - 1.
inline std::vector<std::uint64_t> numbers(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}
template <typename T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace ringfeed::testing
