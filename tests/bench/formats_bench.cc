// What the formats cost on one core: inflating beside zlib, packing, and expanding a batch beside a
// plain loop and beside a bare streaming fill of the same bytes, which is what the machine's memory
// allows.
//
// Data: the four real games of tests/data/lc0 (324 records). rows/s, bytes/s and records/s are
// rates of one thread; "bytes" are those that come out.
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/rig/lc0_sample.h"
#include "workers/io/kernel.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/lc0_tensors.h"
#include "workers/lc0/packed_frame.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfeed::formats {
namespace {

using testing::Bytes;

constexpr std::size_t kBatchRows = 1024;
constexpr std::size_t kRowBytes = 4 * (kPlanesRowFloats + kPolicyRowFloats + kValuesRowFloats);

// The tensors of one batch in memory that has been touched; 37 MB, in huge pages where the system
// gives them.
class BatchMemory {
 public:
  BatchMemory() {
    memory_ = static_cast<float*>(std::aligned_alloc(kHugePage, kBytes));
    if (memory_ == nullptr) std::abort();
    ::madvise(memory_, kBytes, MADV_HUGEPAGE);
    std::memset(memory_, 1, kBytes);
  }
  ~BatchMemory() { std::free(memory_); }
  BatchMemory(const BatchMemory&) = delete;
  BatchMemory& operator=(const BatchMemory&) = delete;

  [[nodiscard]] Lc0Tensors tensors() const {
    float* policy = memory_ + kBatchRows * kPlanesRowFloats;
    return {.planes = memory_, .policy = policy, .values = policy + kBatchRows * kPolicyRowFloats};
  }
  [[nodiscard]] float* floats() const { return memory_; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static constexpr std::size_t kBytes =
      (kBatchRows * kRowBytes + kHugePage - 1) / kHugePage * kHugePage;
  float* memory_;
};

// The sample's records, packed, one after the other as a ring holds them.
struct PackedFrames {
  Bytes bytes;
  std::vector<std::span<const std::byte>> frames;
};
PackedFrames packed_sample() {
  const Bytes records = testing::all_sample_records();
  PackedFrames packed;
  const std::size_t count = records.size() / kV6RecordBytes;
  packed.bytes.resize(count * packed_bytes_max);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes =
        pack(records.data() + i * kV6RecordBytes, 6, std::span(packed.bytes).subspan(at));
    packed.frames.push_back(std::span(packed.bytes).subspan(at, bytes));
    at += bytes;
  }
  return packed;
}

void count_records(benchmark::State& state, std::size_t records, std::size_t bytes) {
  const auto rounds = static_cast<double>(state.iterations());
  state.counters["records"] =
      benchmark::Counter(rounds * static_cast<double>(records), benchmark::Counter::kIsRate);
  state.counters["bytes"] =
      benchmark::Counter(rounds * static_cast<double>(bytes), benchmark::Counter::kIsRate,
                         benchmark::Counter::OneK::kIs1000);
}

std::vector<Bytes> gzip_games() {
  std::vector<Bytes> games;
  for (const testing::SampleGame& game : testing::kSampleGames) {
    games.push_back(testing::sample_gzip(game));
  }
  return games;
}
constexpr std::size_t kSampleRecords = 324;

void inflate_libdeflate(benchmark::State& state) {
  const std::vector<Bytes> games = gzip_games();
  GzipInflater inflater;
  for (auto _ : state) {
    for (const Bytes& game : games) {
      std::span<const std::byte> records;
      if (!inflater.inflate(game, &records).ok()) state.SkipWithError("refused");
      benchmark::DoNotOptimize(records.data());
    }
  }
  count_records(state, kSampleRecords, kSampleRecords * kV6RecordBytes);
}
BENCHMARK(inflate_libdeflate);

void inflate_zlib(benchmark::State& state) {
  std::vector<Bytes> games = gzip_games();
  std::vector<Bytef> output(2 << 20);
  z_stream stream{};
  inflateInit2(&stream, 15 + 16);
  for (auto _ : state) {
    for (Bytes& game : games) {
      inflateReset(&stream);
      stream.next_in = reinterpret_cast<Bytef*>(game.data());
      stream.avail_in = static_cast<uInt>(game.size());
      stream.next_out = output.data();
      stream.avail_out = static_cast<uInt>(output.size());
      if (inflate(&stream, Z_FINISH) != Z_STREAM_END) state.SkipWithError("refused");
      benchmark::DoNotOptimize(output.data());
    }
  }
  inflateEnd(&stream);
  count_records(state, kSampleRecords, kSampleRecords * kV6RecordBytes);
}
BENCHMARK(inflate_zlib);

void pack_frames(benchmark::State& state, Kernel kernel) {
  if (!kernel_supported(kernel)) return state.SkipWithError("not on this machine");
  const Bytes records = testing::all_sample_records();
  Bytes ring(kSampleRecords * packed_bytes_max);
  std::size_t out_bytes = 0;
  for (auto _ : state) {
    out_bytes = 0;
    for (std::size_t i = 0; i < kSampleRecords; ++i) {
      out_bytes +=
          pack(records.data() + i * kV6RecordBytes, 6, std::span(ring).subspan(out_bytes), kernel);
    }
    benchmark::DoNotOptimize(ring.data());
  }
  count_records(state, kSampleRecords, out_bytes);
}
BENCHMARK_CAPTURE(pack_frames, portable, Kernel::kPortable);
BENCHMARK_CAPTURE(pack_frames, avx2, Kernel::kAvx2);
BENCHMARK_CAPTURE(pack_frames, avx512, Kernel::kAvx512);

void unpack_frames(benchmark::State& state) {
  const PackedFrames packed = packed_sample();
  Bytes record(kV6RecordBytes);
  for (auto _ : state) {
    for (const std::span<const std::byte> frame : packed.frames) {
      if (unpack(frame, record.data()) == 0) state.SkipWithError("refused");
      benchmark::DoNotOptimize(record.data());
    }
  }
  count_records(state, kSampleRecords, kSampleRecords * kV6RecordBytes);
}
BENCHMARK(unpack_frames);

// One batch: 1024 rows from packed frames, then the fence that a commit needs.
void expand_batch(benchmark::State& state, Kernel kernel) {
  if (!kernel_supported(kernel)) return state.SkipWithError("not on this machine");
  const PackedFrames packed = packed_sample();
  const BatchMemory memory;
  Lc0TensorWriter writer({}, kernel);
  const Lc0Tensors tensors = memory.tensors();
  for (auto _ : state) {
    for (std::size_t row = 0; row < kBatchRows; ++row) {
      if (writer.write_row(packed.frames[row % kSampleRecords], tensors, row) !=
          RowStatus::kWritten) {
        state.SkipWithError("refused");
      }
    }
    store_fence();
  }
  count_records(state, kBatchRows, kBatchRows * kRowBytes);
}
BENCHMARK_CAPTURE(expand_batch, portable, Kernel::kPortable);
BENCHMARK_CAPTURE(expand_batch, avx2, Kernel::kAvx2);
BENCHMARK_CAPTURE(expand_batch, avx512, Kernel::kAvx512);

// How one would write it down first: from the record, a float at a time.
void expand_batch_plain_loop(benchmark::State& state) {
  const Bytes records = testing::all_sample_records();
  const BatchMemory memory;
  const Lc0Tensors tensors = memory.tensors();
  for (auto _ : state) {
    for (std::size_t row = 0; row < kBatchRows; ++row) {
      const std::byte* record = records.data() + (row % kSampleRecords) * kV6RecordBytes;
      float* planes = static_cast<float*>(tensors.planes) + row * kPlanesRowFloats;
      for (std::size_t plane = 0; plane < kBitPlanes; ++plane) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, record + v6::kPlanes + 8 * plane, 8);
        for (std::size_t square = 0; square < 64; ++square) {
          planes[64 * plane + square] = static_cast<float>((bits >> (square ^ 7U)) & 1U);
        }
      }
      for (std::size_t plane = kBitPlanes; plane < kInputPlanes; ++plane) {
        for (std::size_t square = 0; square < 64; ++square) planes[64 * plane + square] = 1.0F;
      }
      std::memcpy(static_cast<float*>(tensors.policy) + row * kPolicyRowFloats,
                  record + v6::kPolicy, kPolicyBytes);
      std::memcpy(static_cast<float*>(tensors.values) + row * kValuesRowFloats, record + v6::kRootQ,
                  72);
    }
    benchmark::ClobberMemory();
  }
  count_records(state, kBatchRows, kBatchRows * kRowBytes);
}
BENCHMARK(expand_batch_plain_loop);

#if defined(__x86_64__)
// A streaming store for every line of `to`, zeros or ones as `lines` says, and nothing else.
__attribute__((target("avx512f"))) void fill_lines(float* to, const std::vector<__mmask16>& lines) {
  const __m512 ones = _mm512_set1_ps(1.0F);
  for (std::size_t line = 0; line < lines.size(); ++line) {
    _mm512_stream_ps(to + 16 * line, _mm512_maskz_mov_ps(lines[line], ones));
  }
  _mm_sfence();
}

// What the machine's memory allows: the lines of a real batch, streamed. Zero lines and others are
// told apart because some processors (AMD Zen 4: 89 against 28 GB/s) write lines of zeros several
// times as fast, and a batch is half zeros.
void fill_batch_streaming_same_lines(benchmark::State& state) {
  if (!kernel_supported(Kernel::kAvx512)) return state.SkipWithError("not on this machine");
  const BatchMemory memory;
  const PackedFrames packed = packed_sample();
  Lc0TensorWriter writer;
  for (std::size_t row = 0; row < kBatchRows; ++row) {
    if (writer.write_row(packed.frames[row % kSampleRecords], memory.tensors(), row) !=
        RowStatus::kWritten) {
      state.SkipWithError("refused");
    }
  }
  store_fence();
  std::vector<__mmask16> lines(kBatchRows * kRowBytes / 64);
  std::size_t zero_lines = 0;
  for (std::size_t line = 0; line < lines.size(); ++line) {
    bool zero = true;
    for (std::size_t i = 0; i < 16; ++i) zero &= memory.floats()[16 * line + i] == 0.0F;
    zero_lines += zero ? 1 : 0;
    lines[line] = zero ? __mmask16{0} : __mmask16{0xFFFF};
  }
  for (auto _ : state) fill_lines(memory.floats(), lines);
  count_records(state, kBatchRows, kBatchRows * kRowBytes);
  state.counters["zero_lines"] =
      static_cast<double>(zero_lines) / static_cast<double>(lines.size());
}
BENCHMARK(fill_batch_streaming_same_lines);

void fill_batch_streaming_ones(benchmark::State& state) {
  if (!kernel_supported(Kernel::kAvx512)) return state.SkipWithError("not on this machine");
  const BatchMemory memory;
  const std::vector<__mmask16> lines(kBatchRows * kRowBytes / 64, __mmask16{0xFFFF});
  for (auto _ : state) fill_lines(memory.floats(), lines);
  count_records(state, kBatchRows, kBatchRows * kRowBytes);
}
BENCHMARK(fill_batch_streaming_ones);
#endif

void fill_batch_memset(benchmark::State& state) {
  const BatchMemory memory;
  for (auto _ : state) {
    std::memset(memory.floats(), 1, kBatchRows * kRowBytes);
    benchmark::ClobberMemory();
  }
  count_records(state, kBatchRows, kBatchRows * kRowBytes);
}
BENCHMARK(fill_batch_memset);

}  // namespace
}  // namespace ringfeed::formats

BENCHMARK_MAIN();
