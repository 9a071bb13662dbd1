// Any bytes as a tar, in memory and behind a descriptor.
//
// Holds: both give the same index; every member lies whole in the file, in file order, and none
// inside another; all problems are counted, and the first are kept.
#include "tests/fuzz/input.h"
#include "workers/io/tar.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

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
  return 0;
}
