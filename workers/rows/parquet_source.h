// Reads Parquet files: row group by row group, only the columns that are asked for, in passes over
// all files (epochs) or as the stage behind it asks for files (EXACT).
//
//   in       requests  only with EXACT: FileRequest, one for each file to be read
//   out      rows      RowBatch records, and those that say what became of a file (row_records.h)
//   arena    where it is: epoch, place in the epoch's order, row group, row; which version of the
//            file it has begun; then the log of files: {bytes, mtime_ns, inode, own, path}
//   at end   after `epochs` passes, or when "requests" has ended; on drain at once
//   skips    files that have vanished, cannot be read, are written to while they are read, lack a
//            column or have one of another type (each counted for itself); the rest of a row group
//            from where it is damaged; rows that do not fit into a record
//
// A file's number is its place among this rank's files in the log, which only grows, so numbers
// stay. The order of an epoch follows from the numbers and the key, and where a record ends from
// the rows alone: after a death the next process decodes again and goes on with the same records.
//
// What reads the format is loaded when the stage is planned (io/arrow_readers.h).
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/io/row_file.h"
#include "workers/kit/file_log.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

StageType parquet_source_type();

class ParquetSource final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : log_bytes(layout.word()),
          scanned(layout.word()),
          epoch(layout.word()),
          epoch_open(layout.word()),
          epoch_files(layout.word()),
          epoch_rows(layout.word()),
          position(layout.word()),
          begun(layout.word()),
          begun_bytes(layout.word()),
          begun_mtime_ns(layout.word()),
          begun_inode(layout.word()),
          row_group(layout.word()),
          row(layout.word()),
          announced(layout.word()),
          forgotten(layout.word()),
          log(layout.place(0)) {}
    Word log_bytes;
    Word scanned;      // a scan has found files
    Word epoch;        // from 0
    Word epoch_open;   // it is under way
    Word epoch_files;  // files of the epoch: those that were known when it began
    Word epoch_rows;   // 1: some of its rows have been output
    Word position;     // in the epoch's order
    Word begun;        // the file at hand has been opened, and was then of this version:
    Word begun_bytes;
    Word begun_mtime_ns;
    Word begun_inode;
    Word row_group;  // of the file at hand; the next record's
    Word row;        // of the row group
    Word announced;  // EXACT: the list of files has been output
    Word forgotten;  // EXACT: 1 + the file of a request that was set aside, which still is to fail
    Place log;       // to the end of the arena; grows
  };

  explicit ParquetSource(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;
  [[nodiscard]] int poll_ms() const noexcept override { return 250; }

 private:
  struct Listed {
    std::string path;
    formats::FileVersion version;
    friend bool operator==(const Listed&, const Listed&) = default;
  };
  // Of a file in the log.
  struct Logged {
    formats::FileVersion version;
    std::uint64_t own;  // of this rank
  };
  static_assert(sizeof(Logged) == 32, "another log needs another state_version");
  struct Task {
    std::uint32_t file = 0;
    std::uint32_t epoch = 0;
  };

  void take_up(std::string path, bool own);
  [[nodiscard]] std::vector<Listed> list_files();  // sets starved_
  void report_starved(const std::string& path, std::string_view text);
  // Adds the files that are new to the log, in a step that does nothing else. kIdle: none is.
  StepStatus add_files(Step& step, const std::vector<Listed>& listed) noexcept;

  StepStatus step_epochs(Step& step) noexcept;
  StepStatus begin_epoch(Step& step, std::uint64_t epoch) noexcept;
  [[nodiscard]] std::uint32_t file_at(std::uint64_t epoch, std::uint64_t files,
                                      std::uint64_t position);
  StepStatus step_requests(Step& step) noexcept;
  StepStatus announce(Step& step) noexcept;

  // Puts out what comes next of a file; `over`: that was the last of it.
  StepStatus step_file(Step& step, const Task& task, bool& over) noexcept;
  StepStatus reach_file(Step& step, const Task& task, bool& over) noexcept;
  StepStatus open_file(Step& step, const Task& task, bool& over) noexcept;
  // Is another file at the path now than the one that is open?
  [[nodiscard]] bool other_at_path(const Task& task) const noexcept;
  [[nodiscard]] bool seek(std::uint64_t group, std::uint64_t row) noexcept;
  void go_on_from(Step& step, std::uint64_t next) noexcept;
  StepStatus put_rows(Step& step, const Task& task, const formats::RowFile::Next& next) noexcept;
  StepStatus row_too_large(Step& step, const Task& task, std::uint64_t bytes,
                           std::uint64_t bytes_max, bool& over) noexcept;
  StepStatus damaged(Step& step, const Task& task, const std::string& text, bool& over) noexcept;
  [[nodiscard]] bool put_mark(Step& step, const Task& task, std::uint64_t user) noexcept;
  // The file is given up: `gap`: after some of it may have been output.
  StepStatus fail(Step& step, const Task& task, bool gap, SkipReason& reason, std::string_view text,
                  bool& over, std::uint64_t lost = 1) noexcept;
  void leave_file(Step& step) noexcept;
  [[nodiscard]] std::uint64_t row_of_file() const noexcept;
  [[nodiscard]] std::string unfit() const;  // what is wrong with the columns of file_, for people

  StageContext context_;
  State state_;
  FileLog<Logged> log_;
  OutPort out_;
  InPort requests_{};
  bool exact_;
  bool waits_;    // for files, and for ever: the run is endless
  bool repeats_;  // after the last epoch comes another one
  std::vector<formats::ColumnWish> wishes_;

  Counter files_found_;
  Counter files_read_;
  Counter row_groups_;
  Counter row_groups_damaged_;
  Counter rows_;
  Counter epochs_;
  SkipReason vanished_;
  SkipReason unreadable_;
  SkipReason changed_;
  SkipReason missing_column_;
  SkipReason wrong_type_;
  SkipReason rows_damaged_;
  SkipReason row_too_large_;
  Occasions absent_;
  Occasions unlisted_;
  Occasions starved_occasions_;
  bool starved_ = false;  // no descriptor was to be had for the directory

  std::vector<std::string> files_;  // this rank's, by number
  std::unordered_set<std::string> known_;
  std::vector<Listed> last_list_;  // at the begin of the epoch before
  std::vector<std::uint32_t> order_;
  std::uint64_t order_epoch_ = 0;

  std::unique_ptr<formats::RowFile> file_;
  Task open_task_;
  bool sought_ = false;  // file_ is at these:
  std::uint64_t row_group_ = 0;
  std::uint64_t row_ = 0;
};

}  // namespace ringfeed
