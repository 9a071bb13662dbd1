// Any bytes as a gzip file; any bytes as a deflate stream, alone and inside a gzip file whose sums
// are right, which mutations alone would never find.
//
// Holds: a first member that zlib inflates is inflated, to the same bytes, into room of its own and
// into room that is just enough; room for one byte less is too small; nothing grows beyond the
// limit; offsets, padding and lengths add up to the input. The walk that tells why a stream was
// refused says "finished" of those that were not.
#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/io/deflate_walk.h"
#include "workers/io/gzip.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

constexpr std::size_t kLimit = std::size_t{1} << 16;
using Bytes = std::vector<std::byte>;

// What zlib makes of a stream: of a gzip member with window bits of 16 + MAX_WBITS, of a bare one
// with -MAX_WBITS. Its status, and what it has inflated, good until the next call.
struct Theirs {
  int status;
  std::span<const std::byte> inflated;
  std::size_t used;  // bytes of the input
};
Theirs zlib_inflated(std::span<const std::byte> input, int window_bits) {
  static Bytes out(kLimit);
  z_stream stream{};
  RF_HOLDS(::inflateInit2(&stream, window_bits) == Z_OK, input.size());
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(input.data()));
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = ::inflate(&stream, Z_FINISH);
  const std::span<const std::byte> inflated(out.data(), stream.total_out);
  const std::size_t used = stream.total_in;
  ::inflateEnd(&stream);
  return {status, inflated, used};
}

void check_file(std::span<const std::byte> file) {
  static GzipInflater inflater(kLimit);
  std::span<const std::byte> inflated;
  const GzipOutcome outcome = inflater.inflate(file, &inflated);
  RF_HOLDS(inflater.buffer_bytes() <= kLimit, inflater.buffer_bytes());
  RF_HOLDS(outcome.input_offset <= file.size(), outcome.input_offset, file.size());
  RF_HOLDS(!gzip_outcome_text(outcome, kLimit).empty(), file.size());
  const Theirs theirs = zlib_inflated(file, 16 + MAX_WBITS);
  const bool they_take_it = is_gzip(file) && theirs.status == Z_STREAM_END;
  if (!outcome.ok()) {
    RF_HOLDS(inflated.empty(), inflated.size());
    RF_HOLDS(!they_take_it || outcome.member_count > 0 || outcome.status == GzipStatus::kTooLarge,
             gzip_status_name(outcome.status));
    return;
  }
  RF_HOLDS(outcome.member_count > 0 && inflated.size() == outcome.inflated_bytes, inflated.size(),
           outcome.inflated_bytes);
  // Between the last member and what is no member there are zeros.
  RF_HOLDS(outcome.input_offset + outcome.trailing_bytes <= file.size(), outcome.input_offset,
           outcome.trailing_bytes, file.size());
  const std::size_t padded = file.size() - outcome.input_offset - outcome.trailing_bytes;
  const auto padding = file.subspan(outcome.input_offset, padded);
  RF_HOLDS(std::ranges::count(padding, std::byte{0}) == std::ssize(padding), padded);

  const Bytes kept(inflated.begin(), inflated.end());
  Bytes exact(kept.size());
  const GzipOutcome into = inflater.inflate_into(file, exact);
  RF_HOLDS(into.ok() && exact == kept, gzip_status_name(into.status));
  if (!kept.empty()) {
    Bytes less(kept.size() - 1);
    const GzipOutcome tight = inflater.inflate_into(file, less);
    RF_HOLDS(tight.status == GzipStatus::kTooLarge, gzip_status_name(tight.status));
  }
  RF_HOLDS(
      !they_take_it || (theirs.inflated.size() <= kept.size() &&
                        std::equal(theirs.inflated.begin(), theirs.inflated.end(), kept.begin())),
      kept.size());
}

// A gzip file of one member with this stream, `bytes` of which are used.
Bytes wrapped(std::span<const std::byte> stream, std::span<const std::byte> content) {
  Bytes file(10);
  constexpr unsigned char kHead[] = {0x1f, 0x8b, 8};
  std::copy_n(reinterpret_cast<const std::byte*>(kHead), sizeof kHead, file.begin());
  file.insert(file.end(), stream.begin(), stream.end());
  for (const std::uint32_t word : {::libdeflate_crc32(0, content.data(), content.size()),
                                   static_cast<std::uint32_t>(content.size())}) {
    const auto* at = reinterpret_cast<const std::byte*>(&word);
    file.insert(file.end(), at, at + sizeof word);
  }
  return file;
}

void check_stream(std::span<const std::byte> stream) {
  static const std::unique_ptr<libdeflate_decompressor, void (*)(libdeflate_decompressor*)> plain(
      ::libdeflate_alloc_decompressor(), ::libdeflate_free_decompressor);
  static Bytes room(kLimit);
  std::size_t used = 0;
  std::size_t produced = 0;
  const libdeflate_result result = ::libdeflate_deflate_decompress_ex(
      plain.get(), stream.data(), stream.size(), room.data(), room.size(), &used, &produced);
  if (result == LIBDEFLATE_SUCCESS)
    check_file(wrapped(stream.first(used), {room.data(), produced}));
  // zlib is the judge of what is valid. The walk may be more lenient: it refuses what is missing in
  // a code only when it is met.
  const DeflateEnd end = walk_deflate(stream);
  const Theirs theirs = zlib_inflated(stream, -MAX_WBITS);
  if (theirs.status != Z_STREAM_END) return;
  RF_HOLDS(end == DeflateEnd::kFinished, static_cast<int>(end));
  // Whatever a whole stream is cut off of, it has run out.
  for (const std::size_t rest : {theirs.used / 2, theirs.used - 1}) {
    const DeflateEnd cut = walk_deflate(stream.first(rest));
    RF_HOLDS(cut == DeflateEnd::kRanOut, static_cast<int>(cut), rest, theirs.used);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input = fuzz::bytes_of(data, size);
  check_file(input);
  if (size != 0) check_stream(input);
  return 0;
}
