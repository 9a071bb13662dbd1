// Opens files and lists the chunks in them: a .gz is one chunk, a .tar one chunk per regular
// member.
//
//   input    files    paths
//   output   sources  where the chunks of a file lie; a tar of very many chunks comes in several
//                     records
//   arena    chunks of the present file already output (8 bytes)
//   skips    other extensions (skipped_extension), files that are gone (skipped_vanished) or cannot
//            be read (skipped_unreadable), empty ones (skipped_empty), tars without a chunk
//            (skipped_no_chunks); damaged places in a tar are counted in tar_problems and logged
//            with their offset, what is whole around them is used
//
// The number of frames of a chunk is what its gzip trailer claims; nothing is inflated here. With a
// cache_directory the list of a tar's chunks is kept there by path, size and modification time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/cached_files.h"
#include "workers/kit/resumed_split.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/chunk_index.h"
#include "workers/lc0/records.h"

namespace ringfeed {

StageType chunk_source_loader_type();

class ChunkSourceLoader final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : split(layout) {}
    ResumedSplit split;  // chunks of the file at hand
  };

  explicit ChunkSourceLoader(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  bool open_source(Step& step, const std::string& path) noexcept;
  bool open_tar(Step& step, const std::string& path, int fd) noexcept;
  void count_index(Step& step) noexcept;
  bool open_gzip(Step& step, const std::string& path, int fd, std::uint64_t bytes) noexcept;

  StageContext context_;
  State state_;
  InPort in_;
  OutPort out_;
  Counter sources_;
  Counter chunks_;
  Counter index_cache_hits_;
  Counter tar_problems_;
  SkipReason extension_;
  SkipReason vanished_;
  SkipReason unreadable_;
  SkipReason empty_;
  SkipReason no_chunks_;
  Occasions problem_occasions_;
  Occasions starved_occasions_;
  bool starved_ = false;  // no descriptor, or no file yet: it is still to be opened
  CachedFiles cached_;
  std::string cache_directory_;
  // The chunks of the file at the input's head, rebuilt after a restart.
  std::string path_;
  bool opened_ = false;
  std::vector<ChunkPlace> places_;
  // Counted with its first record: it may be opened again for the others.
  std::uint64_t problem_count_ = 0;
  bool from_cache_ = false;
};

}  // namespace ringfeed
