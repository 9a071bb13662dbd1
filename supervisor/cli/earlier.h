// What of an earlier run can be gone on with: the memory of a feed whose supervisor has died, or a
// snapshot.
#pragma once

#include <optional>
#include <string>

#include "supervisor/cli/prepare.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/layout/feed_memory.h"
#include "supervisor/snapshot/load.h"

namespace ringfeed {
class SnapshotManifest;
}

namespace ringfeed::cli {

// The stage groups as a configuration says them.
[[nodiscard]] DataLoaderConfig formed_groups(const Prepared& prepared);

[[nodiscard]] bool anything_lives(const control::LockRecord& left);

// In what the configuration of the feed that was left differs from this one, a line each; empty if
// it can be taken over with it, or there is none. What only the supervisor follows may differ.
[[nodiscard]] std::string left_unlike(const control::LockRecord& left, const DataLoaderConfig& now);
// The same for a snapshot, whose memory may lie elsewhere now.
[[nodiscard]] std::string saved_unlike(const SnapshotManifest& saved, const DataLoaderConfig& now);

// What names the batches of a feed that can begin with any of them: a hash of its stages,
// epochs, drop_remainder and seed, whatever the run. "": another feed.
[[nodiscard]] std::string lineage_of(const Prepared& prepared, std::uint64_t seed);

// What has become of the feed that was left.
struct Left {
  std::optional<layout::FoundMemory> memory = {};  // it can be taken over
  bool ended = false;                              // or had come to its end
  std::string gone = {};                           // or has died with its memory: how
};
// With memory, the groups and so the layout of `prepared` become what they were. Throws Error for
// whatever is neither: something lives or is left and cannot be taken over, or cannot be looked at.
[[nodiscard]] Left look_for_feed(const control::LockRecord& left, Prepared& prepared);

// New memory with what the snapshot holds; the layout of `prepared` becomes what it was. Errors:
// those of snapshot::load(), kNoMemory.
[[nodiscard]] Result<layout::FoundMemory> load_snapshot(const std::string& directory,
                                                        const SnapshotManifest& manifest,
                                                        Prepared& prepared,
                                                        const shm::Storage& storage,
                                                        const snapshot::Looked& looked);

}  // namespace ringfeed::cli
