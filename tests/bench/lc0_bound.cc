// lc0_bound: what one thread without any queue can do with the same chunks: read, inflate, pack,
// swap through a reservoir and expand into a ring of 8 batches. The limit that a feed is measured
// against; nothing is shared, nothing survives.
//
//   lc0_bound --reservoir 100000 --batch 1024 --seconds 5 FILE.tar...
// It inflates with libdeflate_gzip_decompress(), as anybody would. Prints one JSON object:
// positions, CPU seconds, positions per CPU second, the share of inflating, and limits in CPU
// microseconds a position: inflating alone, the same with the feed's own inflater (libdeflate with
// another library's CRC-32), and memset of as many bytes as the tensors have.
#include <fcntl.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ringfeed/shm/abi.h"
#include "ringfeed/worker/random.h"
#include "workers/io/gzip.h"
#include "workers/lc0/chunk_index.h"
#include "workers/lc0/lc0_tensors.h"
#include "workers/lc0/packed_frame.h"

namespace {

using namespace ringfeed;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Place {
  int fd;
  formats::Chunk chunk;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One thread, no queues: the bound of the Lc0 pipeline.");
  std::uint64_t reservoir_size = 100000;
  std::uint64_t batch_size = 1024;
  double seconds = 5;
  std::vector<std::string> files;
  app.add_option("--reservoir", reservoir_size);
  app.add_option("--batch", batch_size);
  app.add_option("--seconds", seconds);
  app.add_option("files", files)->required();
  CLI11_PARSE(app, argc, argv);

  std::vector<Place> places;
  for (const std::string& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    const Result<formats::ChunkIndex> index = formats::load_or_build_chunk_index("", fd, file);
    if (!index) {
      std::fprintf(stderr, "lc0_bound: %s\n", index.error().message().c_str());
      return 1;
    }
    for (const formats::Chunk& chunk : index->chunks) places.push_back({fd, chunk});
  }
  if (places.empty()) {
    std::fputs("lc0_bound: no chunks in these files\n", stderr);
    return 1;
  }

  constexpr std::uint64_t kPlaceBytes = 1280;
  constexpr std::uint64_t kBatches = 8;
  const std::uint64_t planes_bytes = batch_size * formats::kPlanesRowFloats * 4;
  const std::uint64_t policy_bytes = shm::align_up(batch_size * formats::kPolicyRowFloats * 4, 64);
  const std::uint64_t slot_bytes =
      shm::align_up(planes_bytes + policy_bytes + batch_size * formats::kValuesRowFloats * 4, 4096);
  const auto map = [](std::uint64_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  };
  std::byte* const ring = map(kBatches * slot_bytes);
  std::byte* const reservoir = map((reservoir_size + 1) * kPlaceBytes);
  if (ring == nullptr || reservoir == nullptr) return 1;

  std::vector<std::byte> stored;
  const auto load = [&stored](const Place& place) {
    if (stored.size() < place.chunk.data_bytes) stored.resize(place.chunk.data_bytes);
    return ::pread(place.fd, stored.data(), place.chunk.data_bytes,
                   static_cast<off_t>(place.chunk.data_offset)) ==
           static_cast<ssize_t>(place.chunk.data_bytes);
  };
  std::vector<std::byte> frame(formats::packed_bytes_max);
  libdeflate_decompressor* const decompressor = libdeflate_alloc_decompressor();
  std::vector<std::byte> inflated(formats::kInflatedBytesMax);
  formats::Lc0TensorWriter writer;
  Random random(1);
  std::uint64_t held = 0;
  std::uint64_t positions = 0;
  std::uint64_t row = 0;
  std::uint64_t batch = 0;
  double begun = 0;
  double inflating = 0;
  std::uint64_t skipped = 0;
  for (bool measuring = false;;) {
    const Place& place = places[random.below(places.size())];
    if (!load(place)) return 1;
    const double before = cpu_seconds();
    std::size_t raw_bytes = 0;
    if (libdeflate_gzip_decompress(decompressor, stored.data(), place.chunk.data_bytes,
                                   inflated.data(), inflated.size(),
                                   &raw_bytes) != LIBDEFLATE_SUCCESS) {
      return 1;
    }
    if (measuring) inflating += cpu_seconds() - before;
    const std::span<const std::byte> raw(inflated.data(), raw_bytes);
    for (std::size_t at = 0; at + formats::kV6RecordBytes <= raw.size();
         at += formats::kV6RecordBytes) {
      const std::size_t bytes = formats::pack(raw.data() + at, 6, frame);
      if (bytes > kPlaceBytes) {
        ++skipped;  // a handful of positions with more than 58 legal moves
        continue;
      }
      if (held < reservoir_size) {
        std::memcpy(reservoir + held++ * kPlaceBytes, frame.data(), bytes);
        continue;
      }
      std::byte* const victim = reservoir + random.below(reservoir_size) * kPlaceBytes;
      std::byte* const slot = ring + batch % kBatches * slot_bytes;
      if (writer.write_row({victim, kPlaceBytes},
                           {.planes = slot,
                            .policy = slot + planes_bytes,
                            .values = slot + planes_bytes + policy_bytes},
                           row) != formats::RowStatus::kWritten) {
        return 1;
      }
      std::memcpy(victim, frame.data(), bytes);
      if (++row == batch_size) {
        formats::store_fence();
        row = 0;
        ++batch;
      }
      if (measuring) ++positions;
    }
    const double now = cpu_seconds();
    if (!measuring && batch >= 2 * kBatches) {
      measuring = true;
      begun = now;
    }
    if (measuring && now - begun > seconds) {
      // The other limit: as many bytes as the tensors have, stored into the same slots.
      const double storing = cpu_seconds();
      std::uint64_t rows = 0;
      for (; cpu_seconds() - storing < seconds / 4; rows += batch_size) {
        std::memset(ring + rows / batch_size % kBatches * slot_bytes,
                    static_cast<int>(rows / batch_size), slot_bytes);
      }
      const double store_us = 1e6 * (cpu_seconds() - storing) / static_cast<double>(rows);
      formats::GzipInflater own;
      double own_inflating = 0;
      std::uint64_t own_positions = 0;
      while (own_inflating < seconds / 4) {
        const Place& any = places[random.below(places.size())];
        if (!load(any)) return 1;
        const double own_before = cpu_seconds();
        std::span<const std::byte> own_raw;
        if (!own.inflate(std::span<const std::byte>(stored.data(), any.chunk.data_bytes), &own_raw)
                 .ok()) {
          return 1;
        }
        own_inflating += cpu_seconds() - own_before;
        own_positions += own_raw.size() / formats::kV6RecordBytes;
      }
      const double count = static_cast<double>(positions);
      fmt::print(
          "{{\"positions\": {}, \"cpu_s\": {:.4f}, \"positions_per_cpu_s\": {:.0f}, "
          "\"inflate_share\": {:.3f}, \"inflate_us\": {:.3f}, "
          "\"own_inflate_us\": {:.3f}, \"store_us\": {:.3f}, "
          "\"oversized_skipped\": {}}}\n",
          positions, now - begun, count / (now - begun), inflating / (now - begun),
          1e6 * inflating / count, 1e6 * own_inflating / static_cast<double>(own_positions),
          store_us, skipped);
      return 0;
    }
  }
}
