// Zip files, of which NumPy's .npz are a kind: what their directory says, and members one by one.
// Stored and deflated ones are read, of any size (zip64); what is encrypted or packed otherwise is
// named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

struct ZipMember {
  std::string name;
  std::uint64_t data_at = 0;       // in the file
  std::uint64_t packed_bytes = 0;  // there
  std::uint64_t bytes = 0;         // as it is unpacked
  std::uint32_t crc = 0;           // of that
  bool deflated = false;           // else stored: as it is
  std::string unreadable = {};     // why it cannot be read; empty: it can
};

// A directory takes no more than this.
inline constexpr std::uint64_t kZipDirectoryBytesMax = std::uint64_t{64} << 20;

// The members of an open file, in the order of its directory. Each that is not unreadable lies
// inside of the file. `trailing_bytes`: of the file, behind the zip and its comment. kDamaged: what
// is wrong with the whole; kIo: the system's reason.
[[nodiscard]] Result<std::vector<ZipMember>> read_zip_directory(
    int fd, std::uint64_t* trailing_bytes = nullptr);

// One member from its beginning to its end. The file must stay open as long.
class ZipReader {
 public:
  // RF_CHECK: the member is readable.
  ZipReader(int fd, const ZipMember& member);
  ~ZipReader();
  ZipReader(const ZipReader&) = delete;
  ZipReader& operator=(const ZipReader&) = delete;

  // Fills all of `out`. kDamaged: the member ends before, has another length or checksum than the
  // directory says, or cannot be unpacked; kIo: the system's reason.
  [[nodiscard]] Status read(std::span<std::byte> out);
  // To be called behind the last byte that is wanted: reads what is left, at most so many bytes,
  // and compares length and checksum with the directory's. False: more is left.
  [[nodiscard]] Result<bool> finish(std::uint64_t bytes_max);

 private:
  class Inflate;
  [[nodiscard]] Result<std::size_t> some(std::span<std::byte> out);

  int fd_;
  ZipMember member_;
  std::uint64_t at_ = 0;     // of the packed bytes, read next
  std::uint64_t given_ = 0;  // bytes, unpacked
  std::uint32_t crc_ = 0;    // of those
  std::unique_ptr<Inflate> inflate_;
};

}  // namespace ringfeed::formats
