// The members of a tar, one after the other, and everything in it that could not be understood:
// TarWalk, of a file as it lies there or of one that is unpacked meanwhile. index_tar() makes a
// list of where the members lie, by positional reads of the headers alone.
//
// Understood: v7, ustar (prefix field), GNU (long names L and K, sparse S), pax (x, X and g: path,
// size, sparse), star; sizes in octal ended by a space, a NUL or nothing, or in base-256, also
// beyond 8 GiB; header sums signed or unsigned. An archive ends at two zero blocks, at one that no
// header follows, or at the end of the file; another one may follow behind the zeros, as `cat a.tar
// b.tar` makes it.
//
// Damage costs what it hit and nothing more: a header that is none is reported, and the search goes
// on block by block for the next one; a tar cut short keeps its whole members. Any bytes may be
// given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/io/byte_stream.h"

namespace ringfeed::formats {

inline constexpr std::size_t kTarBlockBytes = 512;

// Bytes of a member that lie together; around them it has holes, which are zeros.
struct TarPiece {
  std::uint64_t at = 0;           // in the member
  std::uint64_t data_offset = 0;  // in the tar
  std::uint64_t bytes = 0;
};

// A regular member. Those of an index lie whole in the file.
struct TarMember {
  std::string name;  // with its directories, as the archive gives it
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
  // The last four bytes of the data, zeros if it has fewer: for a gzip member the claim of its
  // uncompressed length, read together with the header that follows.
  std::array<std::byte, 4> last_bytes{};
  // Not empty: it is stored sparse, and data_bytes counts its holes. None are in an index.
  std::vector<TarPiece> pieces = {};
};

enum class TarReason : std::uint8_t {
  kDamagedHeader,     // no header where one belongs; the search went on from the next block
  kDamagedExtension,  // a pax or long-name payload that cannot be read; the member after it goes by
                      // its own header
  kCutShort,          // the file ends inside a member or a header
  kSparseMember,  // stored with its holes left out, and where they are cannot be read; of an index:
                  // its bytes do not lie in the file as they are
  kNameless,      // a regular member whose name is empty: what it is cannot be told
  kUnreadable,    // the system refused a read, or what unpacks the file did
  kTrailing,      // behind the archive's end there are bytes that are no archive
};
// A word for counters and logs: "damaged_header", ...
[[nodiscard]] const char* tar_reason_name(TarReason reason) noexcept;

struct TarProblem {
  std::uint64_t offset = 0;  // of the header concerned
  TarReason reason = TarReason::kDamagedHeader;
  std::string text;       // what is wrong, with the numbers
  std::string name = {};  // of the member concerned, as far as it can be told
  bool alone = false;     // no other member can be lost with it
};

// Of a hopeless file only so many problems are kept with their texts; all are counted.
inline constexpr std::size_t kTarProblemsKept = 64;

struct TarIndex {
  std::vector<TarMember> members;  // in file order
  std::vector<TarProblem> problems;
  std::uint64_t problem_count = 0;
  // Members that are well understood and carry no data for us.
  std::uint64_t directory_count = 0;
  std::uint64_t link_count = 0;   // hard and symbolic
  std::uint64_t other_count = 0;  // devices, fifos, volume labels, types of later dialects
};

// What comes next in a tar.
struct TarEntry {
  enum class Kind : std::uint8_t {
    kMember,
    kProblem,
    kDirectory,
    kLink,   // hard or symbolic
    kOther,  // a device, a fifo, a volume label, a type of a later dialect
  };
  Kind kind = Kind::kMember;
  std::uint64_t offset = 0;   // of its header
  std::uint32_t archive = 0;  // of those that the file joins, from 0
  TarMember member = {};      // of all but kProblem; then last_bytes is not set
  TarProblem problem = {};    // of kProblem
};

class TarBytes;
class TarSteps;

// Serves one thread. Members of a plain file may be read at any time, those of a packed one before
// the next call of next().
class TarWalk {
 public:
  // A file as it lies there, of which the descriptor stays open meanwhile.
  TarWalk(int fd, std::uint64_t file_bytes);
  explicit TarWalk(std::unique_ptr<ByteStream> stream);
  ~TarWalk();
  TarWalk(const TarWalk&) = delete;
  TarWalk& operator=(const TarWalk&) = delete;

  // Nothing: the end. Errors are those of the file or of what unpacks it; nothing more can be read.
  [[nodiscard]] Result<std::optional<TarEntry>> next();
  // What a member holds. kNotFound: the file ends in it, before so many of its bytes.
  [[nodiscard]] Status read(const TarMember& member, std::vector<std::byte>& content);
  // Of a packed file; else null.
  [[nodiscard]] const ByteStream* stream() const noexcept;

 private:
  std::unique_ptr<TarBytes> bytes_;
  std::unique_ptr<TarSteps> steps_;
};

// Indexes the tar behind a descriptor, from its beginning, whatever the descriptor's position,
// which stays as it is. Any thread; several may read one descriptor. An error only if the size of
// the file cannot be learned.
[[nodiscard]] Result<TarIndex> index_tar(int fd) noexcept;

// The same for a tar in memory.
[[nodiscard]] TarIndex index_tar(std::span<const std::byte> tar) noexcept;

// What a member is to a loader of training data, by its name.
enum class MemberUse : std::uint8_t {
  kGzipChunk,  // ends in .gz: one gzip chunk
  kRawChunk,   // any other: records as they are
  kNotAChunk,  // the data licence, or an AppleDouble companion (._name) that macOS adds to archives
};
[[nodiscard]] MemberUse member_use(std::string_view member_name) noexcept;

}  // namespace ringfeed::formats
