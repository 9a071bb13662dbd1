// Any bytes as a tar, in memory, behind a descriptor, and as they come out of a packed file.
//
// Holds: memory and descriptor give the same index; every member lies whole in the file, in file
// order, and none inside another; all problems are counted, and the first are kept. A walk through
// the packed tar meets the same members, with the same bytes, and those that are sparse.
#include <fcntl.h>

#include <memory>
#include <optional>
#include <vector>

#include "tests/fuzz/input.h"
#include "tests/support/makers/packed_text.h"
#include "workers/io/tar.h"

using namespace ringfeed;
using namespace ringfeed::formats;
using ringfeed::testing::zstd_text;

namespace {

constexpr std::uint64_t kContentMax = std::uint64_t{16} << 20;

void check(const TarIndex& index, std::span<const std::byte> tar) {
  std::uint64_t end = 0;
  for (const TarMember& member : index.members) {
    RF_HOLDS(member.data_offset >= end + kTarBlockBytes, member.data_offset, end);
    RF_HOLDS(member.data_offset % kTarBlockBytes == 0, member.data_offset);
    RF_HOLDS(
        member.data_offset <= tar.size() && member.data_bytes <= tar.size() - member.data_offset,
        member.data_offset, member.data_bytes, tar.size());
    RF_HOLDS(!member.name.empty(), member.data_offset);
    end = member.data_offset + member.data_bytes;
    if (member.data_bytes >= 4) {
      RF_HOLDS(std::equal(member.last_bytes.begin(), member.last_bytes.end(),
                          tar.begin() + static_cast<std::ptrdiff_t>(end - 4)),
               member.data_offset, member.data_bytes);
    }
    static_cast<void>(member_use(member.name));
  }
  RF_HOLDS(index.problems.size() == std::min<std::uint64_t>(index.problem_count, kTarProblemsKept),
           index.problems.size(), index.problem_count);
  for (const TarProblem& problem : index.problems) {
    RF_HOLDS(problem.offset <= tar.size(), problem.offset, tar.size());
    RF_HOLDS(!problem.text.empty() && problem.text.size() < tar.size() + 1024, problem.text);
  }
}

struct Met {
  TarEntry entry;
  std::vector<std::byte> content;
};

// The next entry whose bytes are all there; nothing: the end.
std::optional<Met> meet(TarWalk& walk) {
  for (;;) {
    Result<std::optional<TarEntry>> entry = walk.next();
    RF_HOLDS(entry.ok(), entry.ok());
    if (!*entry) return std::nullopt;
    Met met{.entry = std::move(**entry), .content = {}};
    const TarMember& member = met.entry.member;
    const bool reads =
        met.entry.kind == TarEntry::Kind::kMember && member.data_bytes <= kContentMax;
    if (reads && !walk.read(member, met.content)) continue;
    RF_HOLDS(!reads || met.content.size() == member.data_bytes, member.name, member.data_bytes);
    return met;
  }
}

// The same entries of both. How long a packed file is is known at its end alone, so from a cut on
// they may differ.
void check_walks(int plain_fd, std::span<const std::byte> tar) {
  static fuzz::MemoryFile packed;
  const std::string text = zstd_text({reinterpret_cast<const char*>(tar.data()), tar.size()});
  shm::Fd fd(::fcntl(packed.with(std::as_bytes(std::span(text))), F_DUPFD_CLOEXEC, 0));
  TarWalk stream(std::make_unique<ByteStream>(std::move(fd), Packing::kZstd));
  TarWalk file(plain_fd, tar.size());
  for (;;) {
    const std::optional<Met> one = meet(file);
    const std::optional<Met> other = meet(stream);
    if (!one || !other) return;
    if (one->entry.kind == TarEntry::Kind::kProblem &&
        one->entry.problem.reason == TarReason::kCutShort) {
      return;
    }
    RF_HOLDS(
        one->entry.kind == other->entry.kind && one->entry.offset == other->entry.offset &&
            one->entry.member.name == other->entry.member.name && one->content == other->content,
        one->entry.offset, other->entry.offset, one->entry.member.name, other->entry.member.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> tar = fuzz::bytes_of(data, size);
  const TarIndex in_memory = index_tar(tar);
  check(in_memory, tar);

  static fuzz::MemoryFile file;
  const Result<TarIndex> in_file = index_tar(file.with(tar));
  RF_HOLDS(in_file.ok(), size);
  RF_HOLDS(in_file->members.size() == in_memory.members.size(), in_file->members.size(),
           in_memory.members.size());
  for (std::size_t i = 0; i < in_memory.members.size(); ++i) {
    const TarMember& one = in_memory.members[i];
    const TarMember& other = in_file->members[i];
    RF_HOLDS(one.name == other.name && one.data_offset == other.data_offset &&
                 one.data_bytes == other.data_bytes && one.last_bytes == other.last_bytes,
             i, one.name, other.name);
  }
  RF_HOLDS(in_file->problem_count == in_memory.problem_count, in_file->problem_count,
           in_memory.problem_count);
  RF_HOLDS(in_file->directory_count == in_memory.directory_count &&
               in_file->link_count == in_memory.link_count &&
               in_file->other_count == in_memory.other_count,
           in_file->directory_count, in_memory.directory_count);
  check_walks(file.with(tar), tar);
  return 0;
}
