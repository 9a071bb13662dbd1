// Reads a snapshot back into segments. What is damaged, or was made for something else, is refused
// before anything is started.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"
#include "supervisor/layout/feed_memory.h"

namespace ringfeed {
class SnapshotManifest;
}

namespace ringfeed::snapshot {

// The manifest as it stands in its file: a line with the checksum, then text format.
[[nodiscard]] std::string manifest_text(const SnapshotManifest& manifest);

// Errors: kNotFound (no snapshot is there), kDamaged, kIncompatible (another format, ABI or memory
// layout), kIo.
[[nodiscard]] Status read_manifest(const std::string& directory, SnapshotManifest& manifest);

// The manifest's segments for a feed that is to be saved: names, kinds, shapes.
void describe_segments(const layout::FeedLayout& layout, SnapshotManifest& manifest);

// Is it the name of a segment's file? A manifest may have been written by anybody.
[[nodiscard]] bool is_segment_file(std::string_view name);

// New segments with what the snapshot holds, in which everyone who was at work then counts as dead:
// for a supervisor that takes them over like those of one that has died. Nothing is left behind
// after an error: kIncompatible (names the segment that this configuration or version makes
// otherwise), kDamaged (names the file), kNoMemory, kIo.
// `looked`, if given, is told now and then how many bytes have been read, of how many.
using Looked = std::function<void(std::uint64_t done, std::uint64_t total)>;
[[nodiscard]] Result<layout::FoundMemory> load(const std::string& directory,
                                               const SnapshotManifest& manifest,
                                               const layout::FeedLayout& layout,
                                               const shm::Storage& storage,
                                               const Looked& looked = {});

}  // namespace ringfeed::snapshot
