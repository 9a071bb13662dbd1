// The records of a chunk, out of its file: descriptors are kept open, what cannot be used is
// counted by reason.
//
//   skips    skipped_vanished, skipped_unreadable, skipped_damaged (gzip), skipped_empty,
//            skipped_record (size, version, input format)
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workers/io/gzip.h"
#include "workers/kit/cached_files.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/chunk_store.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/records.h"
#include "workers/lc0/weighed_games.h"

namespace ringfeed {

// A task taken apart.
struct ChunkTask {
  Record record;
  TaskRecord words = {};
  std::string path = {};
};
[[nodiscard]] ChunkTask chunk_task(const Record& record);

// Why a chunk cannot be used.
struct ChunkRefusal {
  // None: no descriptor is to be had now, or a cache is fetching the file; it is to be tried again.
  SkipReason* reason = nullptr;
  std::string text = {};
  bool away = false;  // the file cannot be opened or read so far now, which may pass
};

class ChunkFiles {
 public:
  explicit ChunkFiles(const StageContext& context);
  ~ChunkFiles();
  ChunkFiles(const ChunkFiles&) = delete;
  ChunkFiles& operator=(const ChunkFiles&) = delete;

  // What is known of the file now. The copy of a remote object that is not there is asked for.
  [[nodiscard]] std::optional<ChunkRefusal> look(const ChunkTask& task, struct stat& file);
  // A descriptor of the file that was looked at; it may have been replaced since: `file` is then of
  // what was opened. Below 0: `refusal` says why not.
  [[nodiscard]] int open(const ChunkTask& task, struct stat& file, ChunkRefusal& refusal);

  // The chunk's records, until the next call.
  struct Records {
    std::span<const std::byte> raw = {};
    formats::ChunkCheck check = {};
    ChunkRefusal refusal = {};       // with a reason: there are none
    std::size_t trailing_bytes = 0;  // behind the last gzip member, nothing that can be read
  };
  [[nodiscard]] Records read(const ChunkTask& task, int fd);

  [[nodiscard]] static StoreKey key_of(const ChunkTask& task, const struct stat& file) noexcept;

 private:
  struct OpenFile {
    int fd;
    std::uint64_t used_at;
    dev_t device;
    ino_t inode;
  };

  void close_all() noexcept;

  std::function<void(std::string_view)> warn_;
  std::string stage_;
  CachedFiles cached_;
  Occasions starved_;
  SkipReason vanished_;
  SkipReason unreadable_;
  SkipReason damaged_;
  SkipReason empty_;
  SkipReason record_;
  formats::GzipInflater inflater_;
  std::vector<std::byte> stored_;
  // Open files, the least recently used one goes first.
  std::unordered_map<std::string, OpenFile> files_;
  std::uint64_t clock_ = 0;
};

// The store that all lanes of a stage share; none if it keeps nothing.
[[nodiscard]] std::shared_ptr<ChunkStore> store_of(const StageContext& context);
// The games weighed last, likewise; none if there is a store, or nothing is weighed.
[[nodiscard]] std::shared_ptr<WeighedGames> weighed_games_of(const StageContext& context);

}  // namespace ringfeed
