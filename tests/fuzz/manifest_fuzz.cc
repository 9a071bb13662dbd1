// Any bytes as the manifest of a snapshot, with a first line that fits them, which mutations alone
// would never find, and LAYOUT replaced by the number of the layout; and any bytes as they are.
//
// Holds: what is read is written as it would be, and read again as the same; what is refused has a
// message that can be shown.
#include <google/protobuf/stubs/logging.h>
#include <xxhash.h>

#include "proto/snapshot.pb.h"
#include "ringfeed/shm/layout.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/store.h"
#include "tests/fuzz/input.h"

using namespace ringfeed;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void check(const std::string& text) {
  static const fuzz::Directory directory;
  directory.put(snapshot::kManifestFile, bytes_of(text));
  SnapshotManifest manifest;
  const Status read = snapshot::read_manifest(directory.path(), manifest);
  if (!read) {
    RF_HOLDS(fuzz::is_printable(read.error().message()), read.error().message());
    return;
  }
  directory.put(snapshot::kManifestFile, bytes_of(snapshot::manifest_text(manifest)));
  SnapshotManifest again;
  const Status read_again = snapshot::read_manifest(directory.path(), again);
  RF_HOLDS(read_again.ok(), read_again.ok() ? "" : read_again.error().message());
  RF_HOLDS(again.SerializeAsString() == manifest.SerializeAsString(), manifest.ShortDebugString());
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check(std::string(fuzz::text_of(data, size)));
  const std::string text = fuzz::with(std::string(fuzz::text_of(data, size)), "LAYOUT",
                                      std::to_string(shm::kLayoutHash));
  check(fmt::format("# ringfeed snapshot, checksum of what follows: {:016x}\n{}",
                    ::XXH3_64bits(text.data(), text.size()), text));
  return 0;
}
