// Any bytes as a packed file, of each packing, read in pieces of several sizes.
//
// Holds: however it is read, the same bytes come, and the same end; nothing is given twice; what is
// checked has been given; the window stays within its limit.
#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/io/byte_stream.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

constexpr std::uint64_t kWindowMax = std::uint64_t{8} << 20;
constexpr std::size_t kUnpackedMax = std::size_t{4} << 20;

struct Unpacked {
  std::vector<std::byte> bytes;
  std::uint64_t checked = 0;
  std::uint64_t trailing = 0;
  std::optional<ErrorCode> fault;
  bool whole = false;
};

Unpacked unpack(int fd, Packing packing, std::size_t piece) {
  ByteStream stream(shm::Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), packing, 0, kWindowMax);
  Unpacked unpacked;
  std::vector<std::byte> room(piece);
  while (unpacked.bytes.size() < kUnpackedMax) {
    const Result<std::size_t> got = stream.read(room);
    unpacked.checked = stream.checked();
    if (!got) {
      unpacked.fault = got.error().code();
      const Result<std::size_t> again = stream.read(room);
      RF_HOLDS(!again.ok() && again.error().code() == got.error().code(), piece);
      break;
    }
    unpacked.whole = *got == 0;
    if (unpacked.whole) break;
    unpacked.bytes.insert(unpacked.bytes.end(), room.begin(),
                          room.begin() + static_cast<std::ptrdiff_t>(*got));
    RF_HOLDS(stream.offset() == unpacked.bytes.size(), stream.offset(), unpacked.bytes.size());
  }
  unpacked.trailing = stream.trailing_bytes();
  return unpacked;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile file;
  const std::span<const std::byte> bytes = fuzz::bytes_of(data, size);
  const Packing packing = packing_of(bytes);
  if (packing == Packing::kPlain) return 0;
  const int fd = file.with(bytes);
  const Unpacked large = unpack(fd, packing, std::size_t{256} << 10);
  const Unpacked small = unpack(fd, packing, 1000);
  RF_HOLDS(large.fault == small.fault || large.bytes.size() >= kUnpackedMax ||
               small.bytes.size() >= kUnpackedMax,
           size);
  // Of a member that fails, small pieces have more out by then.
  const std::size_t both = std::min(large.bytes.size(), small.bytes.size());
  RF_HOLDS(std::equal(large.bytes.begin(), large.bytes.begin() + static_cast<std::ptrdiff_t>(both),
                      small.bytes.begin()),
           both);
  RF_HOLDS(large.checked <= large.bytes.size(), large.checked, large.bytes.size());
  if (!large.whole || !small.whole) return 0;
  RF_HOLDS(large.bytes == small.bytes && large.trailing == small.trailing &&
               large.checked == large.bytes.size(),
           large.bytes.size(), small.bytes.size());
  RF_HOLDS(large.trailing < size, large.trailing, size);
  return 0;
}
