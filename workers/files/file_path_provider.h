// Finds files and outputs their paths: those of the lists, then a scan of the directories in order
// of names, as far as the patterns want them; a record that says that the scan is complete, and
// then, in an endless run, whatever is closed after writing or moved in.
//
//   out      files    one path a record; a marker record after the scan
//   arena    length of the log (8 bytes), marker sent (8), the log: {size, mtime_ns, path} of every
//            file output
//   at end   in a finite run it ends after the marker; on drain at once
//   skips    names that begin with a dot; directories that cannot be read
//            (directories_unreadable) and names that cannot be looked at (files_unreadable: no
//            permission, a path that is too long, a link to nothing, a failing disk), each counted
//            once and logged; an endless run tries them again, less and less often
//
// What has been output is in the arena, so a restart scans again and compares: an event that was
// missed while dead, or that the kernel dropped (queue overflow), is found by comparison. A file
// that was rewritten (another size or time) is output again. One that is open for writing is left
// until it is closed; a finite run, which does not wait, counts it in files_still_open.
//
// The kernel reports nothing of a directory that was removed and made again while files in it are
// open, nor of one that was unmounted or mounted over: once a second the device and inode of the
// directory, and of some of those below it in turn, are compared with those that are watched.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/files/wanted_paths.h"
#include "workers/kit/file_log.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

StageType file_path_provider_type();

class FilePathProvider final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : log_bytes(layout.word()), marker_sent(layout.word()), log(layout.place(0)) {}
    Word log_bytes;
    Word marker_sent;
    Place log;  // to the end of the arena; grows
  };

  explicit FilePathProvider(const StageContext& context);
  ~FilePathProvider() override;
  StepStatus step(Step& step) noexcept override;

 private:
  struct Version {
    std::uint64_t bytes;
    std::uint64_t mtime_ns;
    friend bool operator==(const Version&, const Version&) = default;
  };
  static_assert(sizeof(Version) == 16, "another log needs another state_version");
  struct Found {
    std::string path;
    Version version;
  };
  // A directory as it was when the kernel was asked to report on it.
  struct Watched {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
  };
  using Clock = std::chrono::steady_clock;

  void scan();
  void scan_list(const std::string& path);
  [[nodiscard]] bool is_root(const std::string& path) const;
  void scan_directory(const std::string& path);
  void consider_file(const std::string& path);
  void report_directory(const std::string& path, int error);
  void report_file(const std::string& path, int error);
  void report_missing(const std::string& path, int error);
  [[nodiscard]] std::string files_text() const;
  void look_again();
  [[nodiscard]] bool is_what_is_watched(const std::string& path) const;
  void forget_directory(const std::string& path);
  void read_events();
  bool put_out(Step& step, const Found& found, bool* no_room) noexcept;

  StageContext context_;
  State state_;
  FileLog<Version> log_;
  OutPort out_;
  Counter files_found_;
  Counter directories_unreadable_;
  Counter files_unreadable_;
  Counter files_still_open_;
  WantedPaths wanted_;
  bool finite_;

  int inotify_ = -1;
  bool rescan_ = true;
  std::unordered_map<std::string, Version> seen_;  // the arena's log, by path
  std::unordered_map<int, Watched> watches_;
  std::unordered_map<std::string, int> watch_of_;
  std::unordered_set<std::string>
      visited_;  // device and inode of directories, against cycles of links
  std::deque<Found> pending_;
  std::unordered_set<std::string> waiting_for_close_;
  std::uint64_t unreadable_directories_ = 0;  // since the last step
  std::uint64_t unreadable_ = 0;              // names, since the last step
  std::set<std::string> reported_;            // what could not be read, and was counted
  bool faults_ = false;                       // there is something that could not be read
  Occasions file_occasions_;
  Occasions starved_occasions_;
  std::vector<std::string> to_compare_;  // watched directories that are still to be looked at
  Clock::time_point look_at_;            // when they are looked at next
  Clock::time_point retry_at_;           // when what could not be read is tried again
  Clock::duration retry_after_;
  std::uint64_t still_open_ = 0;
  std::set<std::string> missing_;  // roots that are not there, and were said
};

}  // namespace ringfeed
