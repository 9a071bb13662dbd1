#include "workers/files/file_path_provider.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/starvation.h"
#include "workers/files/file_facts.h"
#include "workers/files/file_records.h"
#include "workers/files/find_files.h"
#include "workers/files/remote_kind.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {
namespace {

constexpr std::uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE |
                                  IN_DELETE_SELF | IN_MOVED_FROM | IN_MOVE_SELF;
constexpr std::uint64_t kLogGrowth = 1 * kMiB;
// How often directories are compared with those that are watched, and how many at a time.
constexpr std::chrono::seconds kLookEvery(1);
constexpr std::size_t kLooksMax = 64;
// Millions of files take a while: how often a scan says how many it has found.
constexpr std::size_t kFilesPerNote = 1'000;
// What could not be read is tried again after so long; a scan of millions of files takes seconds.
constexpr std::chrono::seconds kRetryMin(10);
constexpr std::chrono::seconds kRetryMax(600);
constexpr std::uint64_t kLogBytesMax = 16ULL << 30;

// Is somebody writing it? A read lease is refused as long as the file is open for writing. Where
// leases are not to be had (another owner, some file systems) the answer is no, as if it had been
// closed.
bool open_for_writing(const std::string& path) noexcept {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  // Somebody who opens it for writing just now is told of the lease, and its holder by a signal:
  // one that is ignored unless caught, where the usual one (SIGIO) would end this process.
  ::fcntl(fd, F_SETSIG, SIGURG);
  const bool busy = ::fcntl(fd, F_SETLEASE, F_RDLCK) != 0 && errno == EAGAIN;
  if (!busy) ::fcntl(fd, F_SETLEASE, F_UNLCK);
  ::close(fd);
  return busy;
}

}  // namespace

FilePathProvider::FilePathProvider(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      log_(state_.log_bytes, state_.log, kLogGrowth),
      out_(context.output("output")),
      files_found_(context.counter("files_found")),
      directories_unreadable_(context.counter("directories_unreadable")),
      files_unreadable_(context.counter("files_unreadable")),
      files_still_open_(context.counter("files_still_open")),
      wanted_(context.config.file_path_provider()),
      finite_(context.feed.epochs() > 0),
      look_at_(Clock::now() + kLookEvery),
      retry_after_(kRetryMin) {
  log_.read(context,
            [this](const Version& version, std::string path) { seen_[std::move(path)] = version; });
  if (!finite_) {
    inotify_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (inotify_ < 0)
      context_.warn(fmt::format("no_inotify stage={}: {}; files are found by scanning every {} ms",
                                context_.stage, std::strerror(errno), poll_ms()));
  }
}

FilePathProvider::~FilePathProvider() {
  if (inotify_ >= 0) ::close(inotify_);
}

void FilePathProvider::scan() {
  rescan_ = false;
  faults_ = false;
  visited_.clear();
  for (const std::string& list : wanted_.lists()) scan_list(list);
  std::size_t missing = 0;
  std::string fault;  // of the last that is missing
  for (const std::string& root : wanted_.roots()) {
    struct stat info {};
    const int error = ::stat(root.c_str(), &info) != 0 ? errno : 0;
    if (error == 0 && S_ISDIR(info.st_mode)) {
      scan_directory(root);
      if (missing_.erase(root) != 0) {
        context_.info(fmt::format("directory_back stage={} path={}", context_.stage, root));
      }
      continue;
    }
    ++missing;
    const char* const what = error == ENOENT ? "no such directory"
                             : error != 0    ? std::strerror(error)
                                             : "it is not a directory";
    if (missing_.insert(root).second) {
      context_.warn(fmt::format("directory_missing stage={} path={}: {}; {}", context_.stage, root,
                                what, finite_ ? "the run has no data of it" : "waiting for it"));
    }
    fault = fmt::format("{}: {}", root, what);
  }
  // With others to read it is tried again now and then.
  if (missing != 0 && missing == wanted_.roots().size()) rescan_ = !finite_;
  if (missing != 0) faults_ = true;
  context_.note(missing != 0 ? fault : files_text());
  retry_at_ = Clock::now() + retry_after_;
}

std::string FilePathProvider::files_text() const {
  return fmt::format("{}: {} files", wanted_.shown(), seen_.size() + pending_.size());
}

bool FilePathProvider::is_root(const std::string& path) const {
  return std::ranges::find(wanted_.roots(), path) != wanted_.roots().end();
}

void FilePathProvider::scan_list(const std::string& path) {
  const Result<std::vector<std::string>> paths = read_list(path);
  if (!paths) {
    faults_ = true;
    if (!reported_.insert(path).second) return;
    ++unreadable_;
    context_.warn(fmt::format("list_unreadable stage={} path={}: {}", context_.stage, path,
                              paths.error().message()));
    return;
  }
  for (const std::string& file : *paths) {
    // Here what is not there is a fault: somebody has written that it is.
    struct stat info {};
    if (::stat(file.c_str(), &info) != 0) {
      report_missing(file, errno);
    } else {
      consider_file(file);
    }
  }
}

// Said and counted once, however often it is looked at. What is gone is no fault.
void FilePathProvider::report_directory(const std::string& path, int error) {
  if (error == ENOENT) return;
  faults_ = true;
  if (is_starvation(error)) {
    // The scan is not complete before there is a descriptor for it.
    if (starved_occasions_.speak()) {
      context_.warn(fmt::format(
          "no_descriptor stage={} count={} path={}: {}; scanning again until there is one",
          context_.stage, starved_occasions_.count(), path, std::strerror(error)));
    }
    rescan_ = true;
    return;
  }
  if (!reported_.insert(path).second) return;
  ++unreadable_directories_;
  context_.warn(fmt::format("directory_unreadable stage={} path={}: {}", context_.stage, path,
                            std::strerror(error)));
}

// The same of a name in a directory; there may be a hundred thousand of them, so not each is said.
void FilePathProvider::report_file(const std::string& path, int error) {
  struct stat link {};
  if (error == ENOENT && ::lstat(path.c_str(), &link) != 0) return;
  report_missing(path, error == ENOENT ? ELOOP : error);
}

void FilePathProvider::report_missing(const std::string& path, int error) {
  faults_ = true;
  if (!reported_.insert(path).second) return;
  ++unreadable_;
  if (!file_occasions_.speak()) return;
  context_.warn(fmt::format("file_unreadable stage={} count={} path={}: {}", context_.stage,
                            file_occasions_.count(), path,
                            is_url(path) ? "a list of this host may not name URLs: give the list "
                                           "by URL as well, as file:///data/list.txt"
                            : error == ELOOP ? "a link to nothing"
                                             : std::strerror(error)));
}

// Watches first, lists second: what appears in between is seen twice and output once.
void FilePathProvider::scan_directory(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return report_directory(path, errno);
  if (!visited_.insert(fmt::format("{}:{}", info.st_dev, info.st_ino)).second) return;
  if (inotify_ >= 0) {
    const int watch = ::inotify_add_watch(inotify_, path.c_str(), kEvents | IN_ONLYDIR);
    if (watch >= 0) {
      watches_[watch] = {path, info.st_dev, info.st_ino};
      watch_of_[path] = watch;
    } else if (errno == ENOSPC) {
      context_.warn(fmt::format(
          "watch_limit stage={} path={}: the system's limit of watches is reached; raise "
          "fs.inotify.max_user_watches; scanning instead",
          context_.stage, path));
      ::close(inotify_);
      inotify_ = -1;
    }
  }
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return report_directory(path, errno);
  std::vector<std::string> files;
  std::vector<std::string> directories;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(directory);
    if (entry == nullptr) {
      // What comes behind the fault is not known.
      if (errno != 0) report_directory(path, errno);
      break;
    }
    if (entry->d_name[0] == '.') continue;
    std::string child = path + "/" + entry->d_name;
    unsigned char type = entry->d_type;
    if (type == DT_UNKNOWN || type == DT_LNK) {
      struct stat target {};
      if (::stat(child.c_str(), &target) != 0) {
        report_file(child, errno);
        continue;
      }
      type = S_ISDIR(target.st_mode) ? DT_DIR : S_ISREG(target.st_mode) ? DT_REG : DT_UNKNOWN;
    }
    if (type == DT_REG) {
      if (wanted_.wants(child)) files.push_back(std::move(child));
    } else if (type == DT_DIR) {
      if (wanted_.reaches(child)) directories.push_back(std::move(child));
    }
  }
  ::closedir(directory);
  std::sort(files.begin(), files.end());
  std::sort(directories.begin(), directories.end());
  for (const std::string& file : files) consider_file(file);
  for (const std::string& child : directories) scan_directory(child);
}

void FilePathProvider::consider_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return report_file(path, errno);
  if (!S_ISREG(info.st_mode)) return;
  const Version version{static_cast<std::uint64_t>(info.st_size),
                        static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
                            static_cast<std::uint64_t>(info.st_mtim.tv_nsec)};
  const auto known = seen_.find(path);
  if (known != seen_.end() && known->second == version) return;
  if (open_for_writing(path)) {
    // Its CLOSE_WRITE brings it back; without inotify the next scan does.
    if (waiting_for_close_.insert(path).second) {
      ++still_open_;
      context_.info(
          fmt::format("file_open stage={} path={}: being written; {}", context_.stage, path,
                      finite_ ? "left out of this finite run" : "taken when it is closed"));
    }
    return;
  }
  waiting_for_close_.erase(path);
  pending_.push_back({path, version});
  if (pending_.size() % kFilesPerNote == 0) context_.note(files_text() + " so far");
}

void FilePathProvider::forget_directory(const std::string& path) {
  for (auto it = watch_of_.begin(); it != watch_of_.end();) {
    if (it->first == path || it->first.starts_with(path + "/")) {
      ::inotify_rm_watch(inotify_, it->second);
      watches_.erase(it->second);
      it = watch_of_.erase(it);
    } else {
      ++it;
    }
  }
}

bool FilePathProvider::is_what_is_watched(const std::string& path) const {
  const auto number = watch_of_.find(path);
  if (number == watch_of_.end()) return true;
  const auto watch = watches_.find(number->second);
  if (watch == watches_.end()) return true;
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && info.st_dev == watch->second.device &&
         info.st_ino == watch->second.inode;
}

// What no event tells: directories that are others now, and what can be read since.
void FilePathProvider::look_again() {
  const Clock::time_point now = Clock::now();
  if (inotify_ < 0 || now < look_at_) return;
  look_at_ = now + kLookEvery;
  for (const std::string& root : wanted_.roots()) {
    if (is_what_is_watched(root)) continue;
    context_.warn(
        fmt::format("directory_replaced stage={} path={}: another directory is there now; "
                    "scanning it",
                    context_.stage, root));
    forget_directory(root);
    rescan_ = true;
    return;
  }
  if (to_compare_.empty()) {
    for (const auto& [path, watch] : watch_of_) to_compare_.push_back(path);
  }
  for (std::size_t i = 0; i < kLooksMax && !to_compare_.empty(); ++i) {
    const std::string path = std::move(to_compare_.back());
    to_compare_.pop_back();
    if (is_what_is_watched(path)) continue;
    forget_directory(path);
    visited_.clear();
    scan_directory(path);
  }
  if (faults_ && now >= retry_at_) {
    retry_after_ = std::min<Clock::duration>(2 * retry_after_, kRetryMax);
    rescan_ = true;
  }
}

void FilePathProvider::read_events() {
  if (inotify_ < 0) {
    rescan_ = !finite_;
    return;
  }
  alignas(inotify_event) char buffer[64 * 1024];
  for (;;) {
    const ssize_t got = ::read(inotify_, buffer, sizeof buffer);
    if (got <= 0) return;
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        context_.warn(
            fmt::format("events_lost stage={}: too many at once; scanning again", context_.stage));
        rescan_ = true;
        continue;
      }
      const auto watch = watches_.find(event->wd);
      if (watch == watches_.end()) continue;
      const std::string parent = watch->second.path;
      if ((event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT)) != 0) {
        // A directory that was moved within the tree is found under its new name by its parent's
        // event.
        forget_directory(parent);
        if (is_root(parent)) rescan_ = true;
        continue;
      }
      if (event->len == 0 || event->name[0] == '.') continue;
      const std::string path = parent + "/" + event->name;
      if ((event->mask & IN_ISDIR) != 0) {
        if ((event->mask & (IN_CREATE | IN_MOVED_TO)) != 0) {
          visited_.clear();
          if (wanted_.reaches(path)) scan_directory(path);
        } else if ((event->mask & (IN_DELETE | IN_MOVED_FROM)) != 0) {
          forget_directory(path);
        }
      } else if ((event->mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) != 0) {
        if (wanted_.wants(path)) consider_file(path);
      } else if ((event->mask & IN_CREATE) != 0) {
        // A link to a file (hard or symbolic) is never closed after writing; a new file is still
        // open.
        struct stat info {};
        if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
          if (wanted_.reaches(path)) scan_directory(path);
        } else if (info.st_size > 0 && wanted_.wants(path)) {
          consider_file(path);
        }
      }
    }
  }
}

// Puts the path out and into the log, in one step. False and *no_room: later.
bool FilePathProvider::put_out(Step& step, const Found& found, bool* no_room) noexcept {
  const auto known = seen_.find(found.path);
  if (known != seen_.end() && known->second == found.version) return false;
  FileLog<Version>::Entries entry;
  entry.add(found.version, found.path);
  if (!log_.append(step, entry) ||
      !step.put(out_, std::as_bytes(std::span(found.path)), {.user = kFileRecord})) {
    *no_room = true;
    return false;
  }
  step.count(files_found_);
  return true;
}

StepStatus FilePathProvider::step(Step& step) noexcept {
  if (step.draining() || (finite_ && step.load(state_.marker_sent) != 0)) return StepStatus::kEnd;
  if (unreadable_directories_ != 0 || unreadable_ != 0) {
    step.count(directories_unreadable_, std::exchange(unreadable_directories_, 0));
    step.count(files_unreadable_, std::exchange(unreadable_, 0));
    return StepStatus::kDone;
  }
  if (still_open_ != 0) {
    if (finite_) step.count(files_still_open_, still_open_);
    still_open_ = 0;
    if (finite_) return StepStatus::kDone;
  }
  if (pending_.empty() && rescan_) {
    scan();
    // Before the marker: with it a finite run is over.
    if (unreadable_directories_ != 0 || unreadable_ != 0 || still_open_ != 0) {
      return this->step(step);
    }
    if (rescan_ && pending_.empty()) return StepStatus::kIdle;
  }
  while (!pending_.empty()) {
    bool no_room = false;
    const bool put = put_out(step, pending_.front(), &no_room);
    if (no_room) return StepStatus::kNoRoom;
    if (put) seen_[pending_.front().path] = pending_.front().version;
    pending_.pop_front();
    if (put && pending_.empty()) context_.note(files_text());
    // One file a call: a call that finds no room afterwards then takes back nothing that seen_ has
    // already.
    if (put) return StepStatus::kDone;
  }
  if (step.load(state_.marker_sent) == 0 && !rescan_) {
    if (!step.put(out_, {}, {.user = kScanCompleteRecord})) return StepStatus::kNoRoom;
    step.store(state_.marker_sent, 1);
    context_.note(files_text());
    return StepStatus::kDone;
  }
  read_events();
  look_again();
  if (!pending_.empty() || unreadable_directories_ != 0 || unreadable_ != 0)
    return this->step(step);
  return StepStatus::kIdle;
}

StageType file_path_provider_type() {
  StageType type;
  type.kind = "file_path_provider";
  type.outputs = {{"output", "files"}};
  type.counters = {
      {"files_found", "Files found."},
      {"directories_unreadable", "Directories that could not be read."},
      {"files_still_open", "Files left out of a finite run: they were still being written."},
      {"files_unreadable", "Names of files that could not be examined."},
      {"listing_failed", "Of URLs: times in a row that the store could not be listed.", kGauge},
  };
  type.problems = [](const StageView& stage) {
    const FilePathProviderConfig& own = stage.config.file_path_provider();
    std::vector<Problem> problems;
    if (url_settings(stage.config)) {
      if (!remote_kind().problems) {
        problems.push_back({"", "it has URLs; this build has no stages in Python to fetch them"});
        return problems;
      }
      problems = url_problems(stage.config);
      std::ranges::move(remote_kind().problems(stage), std::back_inserter(problems));
      return problems;
    }
    if (own.has_cache() || own.has_cache_bytes() || own.has_storage_options() ||
        own.has_give_up_after_s()) {
      const char* const given = own.has_cache()             ? "cache"
                                : own.has_cache_bytes()     ? "cache_bytes"
                                : own.has_storage_options() ? "storage_options"
                                                            : "give_up_after_s";
      problems.push_back({given, fmt::format("{} is for URLs, and there is none: files of this "
                                             "host are read where they are",
                                             given)});
    }
    if (own.directory().empty() && own.pattern_size() == 0 && own.list_size() == 0) {
      problems.push_back({"directory",
                          "no directory is given; set it to the place of the training files, or "
                          "give a pattern or a list"});
    }
    for (int i = 0; i < own.pattern_size(); ++i) {
      const Result<std::vector<std::string>> plain = expand_braces(own.pattern(i));
      if (!plain) problems.push_back({fmt::format("pattern[{}]", i), plain.error().message()});
    }
    return problems;
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    const FilePathProviderConfig& own = stage.config.file_path_provider();
    if (!url_settings(stage.config)) outputs["output"].set(kFileFinder, file_finder(own));
    // Lists name files without a pattern.
    if (own.pattern_size() == 0 || own.list_size() != 0) return;
    outputs["output"].set(kFilePatterns, fmt::format("{}", fmt::join(own.pattern(), "\n")));
  };
  type.nodes = [](const StageView& stage) {
    OutputSpec output =
        output_spec(stage.config.file_path_provider(), "files", 256 * kKiB, UnitRule::kRecord);
    if (url_settings(stage.config) && remote_kind().nodes) return remote_kind().nodes(output);
    NodeSpec node;
    StateLayout layout;
    (void)FilePathProvider::State(layout);
    node.state_bytes = layout.bytes() + kLogGrowth;
    node.state_bytes_max = kLogBytesMax;
    node.outputs = {std::move(output)};
    node.weight = 0.01;
    node.steps_per_commit = 16;
    node.create = [](const StageContext& context) {
      return std::make_unique<FilePathProvider>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
