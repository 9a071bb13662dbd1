// Where the members of a tar lie, and everything in it that could not be understood: an index, made
// by positional reads of the headers alone.
//
// Understood: v7, ustar (prefix field), GNU (long names L and K, sparse S), pax (x, X and g: path,
// size), star; sizes in octal ended by a space, a NUL or nothing, or in base-256, also beyond 8
// GiB; header sums signed or unsigned. The archive ends at two zero blocks, at one that no header
// follows, or at the end of the file.
//
// Damage costs what it hit and nothing more: a header that is none is reported, and the search goes
// on block by block for the next one; a tar cut short keeps its whole members. Any bytes may be
// given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

inline constexpr std::size_t kTarBlockBytes = 512;

// A regular member whose data lies whole in the file.
struct TarMember {
  std::string name;  // with its directories, as the archive gives it
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
  // The last four bytes of the data, zeros if it has fewer: for a gzip member the claim of its
  // uncompressed length, read together with the header that follows.
  std::array<std::byte, 4> last_bytes{};
};

enum class TarReason : std::uint8_t {
  kDamagedHeader,     // no header where one belongs; the search went on from the next block
  kDamagedExtension,  // a pax or long-name payload that cannot be read; the member after it goes by
                      // its own header
  kCutShort,          // the file ends inside a member or a header
  kSparseMember,  // stored with its holes left out: its bytes do not lie in the file as they are
  kNameless,      // a regular member whose name is empty: what it is cannot be told
  kUnreadable,    // the system refused a read
};
// A word for counters and logs: "damaged_header", ...
[[nodiscard]] const char* tar_reason_name(TarReason reason) noexcept;

struct TarProblem {
  std::uint64_t offset = 0;  // of the header concerned
  TarReason reason = TarReason::kDamagedHeader;
  std::string text;  // what is wrong, with the numbers
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
