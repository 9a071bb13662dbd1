// The lane of sample_source that knows the files: it hands out parts of them, epoch by epoch.
//
//   input    files    paths, and the end of the scan
//   parts    FilePart, each a unit (samples/file_parts.h)
//   arena    the files seen; the epoch, and where it is in it
//   at end   after `epochs` epochs; on drain at once
//
// The files of an epoch are those that had come when it began. The first one begins with the end of
// the scan. Of copies in a cache of remote objects, those that come next are wished for, and each
// one is handed out when it is there.
#pragma once

#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/cached_files.h"
#include "workers/kit/file_log.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/file_parts.h"

namespace ringfeed {

class SampleFiles final : public Stage {
 public:
  struct Kept {
    std::uint64_t nothing = 0;
  };
  struct State {
    explicit State(StateLayout& layout)
        : log_bytes(layout.word()),
          known(layout.word()),
          scanned(layout.word()),
          epoch(layout.word()),
          files(layout.word()),
          next(layout.word()),
          begin(layout.word()),
          version(layout.word()),
          log(layout.place(0)) {}
    Word log_bytes;
    Word known;    // files in the log
    Word scanned;  // 1: the scan is complete
    Word epoch;    // under way, from 1; 0: none yet
    Word files;    // of this epoch
    Word next;     // of its files, in its order
    Word begin;    // of the next part of that one
    Word version;  // of that one (FilePart), as its first part was handed out
    Place log;     // to the end of the arena; grows
  };

  explicit SampleFiles(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  [[nodiscard]] StepStatus take_file(Step& step, const Record& record) noexcept;
  [[nodiscard]] bool describes_others(const Step& step, const std::string& path) noexcept;
  void pass_over(Step& step, const std::string& path, std::string_view why) noexcept;
  [[nodiscard]] Result<shm::Fd> open_ready(const std::string& path) noexcept;
  [[nodiscard]] StepStatus hand_out(Step& step) noexcept;
  void ask_ahead(const Step& step) noexcept;
  [[nodiscard]] std::uint64_t file_at(const Step& step, std::uint64_t place) const noexcept;

  StageContext context_;
  State state_;
  FileLog<Kept> log_;
  InPort in_;
  OutPort out_;
  Counter files_;
  Counter files_passed_over_;
  Counter files_begun_;
  Counter files_handed_out_;
  Counter epochs_;
  Counter files_waited_for_;
  std::uint64_t block_bytes_;
  bool shuffles_;
  std::vector<std::string> paths_;
  Occasions passing_over_;
  std::uint64_t beside_epoch_ = 0;  // of which the next one is
  bool are_beside_ = false;
  CachedFiles cached_;
  FileWaits waits_;
  std::uint64_t asked_epoch_ = 0;  // files of this epoch
  std::uint64_t asked_ = 0;        // before this place, in its order, have been asked for
  bool waited_ = false;            // for the one that is handed out next
};

}  // namespace ringfeed
