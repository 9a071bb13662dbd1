#include "workers/rows/parquet_source.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/starvation.h"
#include "ringfeed/worker/random.h"
#include "workers/io/arrow_readers.h"
#include "workers/rows/row_facts.h"
#include "workers/rows/row_records.h"

namespace ringfeed {
namespace {

using formats::ColumnType;
using formats::FileVersion;
using formats::RowFile;

// Large enough that what a record costs is not felt, small enough that it stays in a core's cache
// from the page to the next stage.
constexpr std::uint64_t kRecordBytes = 128 * kKiB;
constexpr std::uint32_t kRecordRows = 16384;
constexpr std::uint64_t kLogGrowth = 256 * kKiB;
constexpr std::uint64_t kLogBytesMax = 1ULL << 30;
// Of the word `begun`: the file is read no further; that it failed is still to be said.
constexpr std::uint64_t kGivenUp = 2;

// What lies at the path now; no version, but something: it cannot be looked at, or is no file,
// which is said when it is opened. nullopt: nothing is there, or a directory.
std::optional<FileVersion> version_at(const std::string& path) noexcept {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return std::nullopt;
    return S_ISREG(info.st_mode) ? formats::version_of(info) : FileVersion{};
  }
  if (errno == ENOENT && ::lstat(path.c_str(), &info) != 0) return std::nullopt;
  return FileVersion{};
}

std::string_view name_of(ColumnType type) noexcept {
  switch (type) {
    case ColumnType::kText:
      return "text";
    case ColumnType::kNumber:
      return "a number";
    default:
      return "a string or a number";
  }
}

// The names of a file, as many as a line of the log bears.
std::string shown(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 40;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text.empty() ? "no columns" : text;
}

std::vector<std::byte> mark(std::uint64_t first_row, std::uint32_t file, std::uint32_t epoch,
                            std::string_view path) {
  formats::RowBatchHead head{};
  head.first_row = first_row;
  head.file = file;
  head.epoch = epoch;
  head.path_bytes = static_cast<std::uint32_t>(path.size());
  std::vector<std::byte> bytes(formats::RowBatchWriter::head_bytes(0, path.size()));
  static_cast<void>(formats::RowBatchWriter(bytes, head, path));
  return bytes;
}

// The configured columns, or else those that the reader wishes for.
std::vector<formats::ColumnWish> columns_to_read(const StageView& stage) {
  const ParquetSourceConfig& own = stage.config.parquet_source();
  if (own.columns().empty()) return stage.links.output("output").said.get(kRowColumns);
  std::vector<formats::ColumnWish> columns;
  for (const std::string& name : own.columns()) columns.push_back({name, ColumnType::kAny, true});
  return columns;
}

}  // namespace

ParquetSource::ParquetSource(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      log_(state_.log_bytes, state_.log, kLogGrowth),
      out_(context.output("output")),
      exact_(context.links.output("output").said.get(kFilesOnRequest)),
      waits_(context.feed.epochs() == 0),
      repeats_(waits_ || context.config.parquet_source().repeat()),
      wishes_(columns_to_read(context.view())),
      files_found_(context.counter("files_found")),
      files_read_(context.counter("files_read")),
      row_groups_(context.counter("row_groups")),
      row_groups_damaged_(context.counter("row_groups_damaged")),
      rows_(context.counter("rows")),
      epochs_(context.counter("epochs")),
      vanished_(context, "skipped_vanished"),
      unreadable_(context, "skipped_unreadable"),
      changed_(context, "skipped_changed"),
      missing_column_(context, "skipped_missing_column"),
      wrong_type_(context, "skipped_wrong_type"),
      rows_damaged_(context, "rows_damaged"),
      row_too_large_(context, "rows_too_large") {
  if (exact_) requests_ = context.input("requests");
  log_.read(context, [this](const Logged& logged, std::string path) {
    take_up(std::move(path), logged.own != 0);
  });
}

// ---- files

void ParquetSource::take_up(std::string path, bool own) {
  if (own) files_.push_back(path);
  known_.insert(std::move(path));
}

void ParquetSource::report_starved(const std::string& path, std::string_view text) {
  if (!starved_occasions_.speak()) return;
  context_.warn(
      fmt::format("no_descriptor stage={} count={} path={}: {}; retrying until there is one",
                  context_.stage, starved_occasions_.count(), path, text));
}

std::vector<ParquetSource::Listed> ParquetSource::list_files() {
  starved_ = false;
  const ParquetSourceConfig& config = context_.config.parquet_source();
  std::vector<Listed> listed;
  if (config.files_size() != 0) {
    for (const std::string& path : config.files()) {
      listed.push_back({path, version_at(path).value_or(FileVersion{})});
    }
    return listed;
  }
  std::string directory = config.directory();
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  DIR* entries = ::opendir(directory.c_str());
  const auto report = [&](int error) {
    starved_ = is_starvation(error);
    if (starved_) return report_starved(directory, std::strerror(error));
    context_.note(fmt::format("{}: {}", directory, std::strerror(error)));
    if (!unlisted_.speak()) return;
    context_.warn(fmt::format("directory_unreadable stage={} count={} path={}: {}", context_.stage,
                              unlisted_.count(), directory, std::strerror(error)));
  };
  if (entries == nullptr) {
    report(errno);
    return listed;
  }
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(entries);
    if (entry == nullptr) {
      if (errno != 0) report(errno);
      break;
    }
    const std::string_view name = entry->d_name;
    if (name.front() == '.' || !name.ends_with(".parquet")) continue;
    std::string path = directory + (directory == "/" ? "" : "/");
    path += name;
    if (const auto version = version_at(path)) listed.push_back({std::move(path), *version});
  }
  ::closedir(entries);
  std::sort(listed.begin(), listed.end(),
            [](const Listed& a, const Listed& b) { return a.path < b.path; });
  if (listed.empty()) context_.note(fmt::format("{}: no *.parquet files", directory));
  return listed;
}

StepStatus ParquetSource::add_files(Step& step, const std::vector<Listed>& listed) noexcept {
  const ParquetSourceConfig& config = context_.config.parquet_source();
  const bool first = step.load(state_.scanned) == 0;
  std::vector<std::pair<std::string, bool>> fresh;
  FileLog<Logged>::Entries entries;
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const auto& [path, version] = listed[i];
    if (known_.contains(path) && !(first && config.files_size() != 0)) continue;
    // Those that appear later are not numbered alike by all ranks, which need not see them at the
    // same time: their names decide.
    const std::uint64_t share = first ? i : mix(std::string_view(path).substr(path.rfind('/') + 1));
    const bool own = share % config.world_size() == config.rank();
    entries.add({version, own ? std::uint64_t{1} : 0}, path);
    fresh.emplace_back(path, own);
  }
  if (fresh.empty()) return StepStatus::kIdle;
  if (!log_.append(step, entries)) return StepStatus::kNoRoom;
  step.store(state_.scanned, 1);
  for (auto& [path, own] : fresh) take_up(std::move(path), own);
  step.gauge(files_found_, files_.size());
  return StepStatus::kDone;
}

// ---- epochs

StepStatus ParquetSource::step(Step& step) noexcept {
  if (step.draining()) return StepStatus::kEnd;
  return exact_ ? step_requests(step) : step_epochs(step);
}

StepStatus ParquetSource::step_epochs(Step& step) noexcept {
  const std::uint64_t epoch = step.load(state_.epoch);
  if (step.load(state_.epoch_open) == 0) {
    if (!repeats_ && epoch >= context_.feed.epochs()) return StepStatus::kEnd;
    return begin_epoch(step, epoch);
  }
  const std::uint64_t files = step.load(state_.epoch_files);
  const std::uint64_t position = step.load(state_.position);
  const auto number = static_cast<std::uint32_t>(epoch);
  if (position == files) {
    if (!step.put(out_, mark(0, 0, number, {}), {.user = kEpochEndRecord})) {
      return StepStatus::kNoRoom;
    }
    step.store(state_.epoch, epoch + 1);
    step.store(state_.epoch_open, 0);
    step.count(epochs_);
    return StepStatus::kDone;
  }
  bool over = false;
  const StepStatus status = step_file(step, {file_at(epoch, files, position), number}, over);
  if (status == StepStatus::kDone && over) step.store(state_.position, position + 1);
  return status;
}

StepStatus ParquetSource::begin_epoch(Step& step, std::uint64_t epoch) noexcept {
  std::vector<Listed> listed = list_files();
  if (starved_) return StepStatus::kIdle;
  if (epoch > 0 && repeats_ && step.load(state_.epoch_rows) == 0) {
    // Nothing of it could be used. Once more at once would be the same.
    if (!waits_) {
      context_.warn(
          fmt::format("no_rows stage={}: no file can be used; the stage ends", context_.stage));
      return StepStatus::kEnd;
    }
    if (listed == last_list_) {
      context_.note("no file can be used: waiting for others");
      return StepStatus::kIdle;
    }
  }
  if (const StepStatus added = add_files(step, listed); added != StepStatus::kIdle) return added;
  if (files_.empty()) {
    const ParquetSourceConfig& config = context_.config.parquet_source();
    const std::string what =
        step.load(state_.scanned) != 0
            ? fmt::format("rank {} of {} gets none of the {} files", config.rank(),
                          config.world_size(), known_.size())
            : fmt::format("there are no files *.parquet in {}", config.directory());
    if (waits_) {
      context_.note(what + ": waiting for some");
      return StepStatus::kIdle;
    }
    context_.warn(fmt::format("no_files stage={}: {}; the run has no data", context_.stage, what));
    return StepStatus::kEnd;
  }
  last_list_ = std::move(listed);
  step.store(state_.epoch_files, files_.size());
  step.store(state_.epoch_open, 1);
  step.store(state_.epoch_rows, 0);
  step.store(state_.position, 0);
  return StepStatus::kDone;
}

std::uint32_t ParquetSource::file_at(std::uint64_t epoch, std::uint64_t files,
                                     std::uint64_t position) {
  if (!context_.config.parquet_source().shuffle_files()) {
    return static_cast<std::uint32_t>(position);
  }
  if (order_.size() != files || order_epoch_ != epoch) {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> keys(files);
    for (std::uint32_t i = 0; i < files; ++i) {
      keys[i] = {mix(mix(context_.key, epoch), i), i};
    }
    std::sort(keys.begin(), keys.end());
    order_.resize(files);
    for (std::size_t i = 0; i < files; ++i) order_[i] = keys[i].second;
    order_epoch_ = epoch;
  }
  return order_[position];
}

// ---- requests

StepStatus ParquetSource::announce(Step& step) noexcept {
  const std::vector<Listed> listed = list_files();
  if (starved_) return StepStatus::kIdle;
  if (listed.empty() && waits_) return StepStatus::kIdle;
  if (const StepStatus added = add_files(step, listed); added != StepStatus::kIdle) return added;
  if (files_.empty()) {
    context_.warn(fmt::format("no_files stage={}: rank {} gets none of {} files", context_.stage,
                              context_.config.parquet_source().rank(), listed.size()));
  }
  const FileList list{static_cast<std::uint32_t>(files_.size()), 0};
  if (!step.put(out_, std::as_bytes(std::span(&list, 1)), {.user = kFilesRecord})) {
    return StepStatus::kNoRoom;
  }
  step.store(state_.announced, 1);
  return StepStatus::kDone;
}

StepStatus ParquetSource::step_requests(Step& step) noexcept {
  if (step.load(state_.announced) == 0) return announce(step);
  if (const std::uint64_t forgotten = step.load(state_.forgotten); forgotten != 0) {
    const Task task{static_cast<std::uint32_t>(forgotten - 1),
                    static_cast<std::uint32_t>(step.load(state_.epoch))};
    if (!put_mark(step, task, kFileFailedRecord)) return StepStatus::kNoRoom;
    step.store(state_.forgotten, 0);
    return StepStatus::kDone;
  }
  const std::optional<Record> record = step.peek(requests_);
  if (!record) return step.ended(requests_) ? StepStatus::kEnd : StepStatus::kNoInput;
  FileRequest request{};
  RF_CHECK(record->bytes.size() == sizeof request, record->bytes.size());
  std::memcpy(&request, record->bytes.data(), sizeof request);
  RF_CHECK(request.file < files_.size(), request.file, files_.size());
  bool over = false;
  const StepStatus status = step_file(step, {request.file, request.epoch}, over);
  return status == StepStatus::kDone && over ? step.consume(*record) : status;
}

void ParquetSource::forget(Step& step, const Record& record) noexcept {
  FileRequest request{};
  if (record.bytes.size() == sizeof request) {
    std::memcpy(&request, record.bytes.data(), sizeof request);
  }
  leave_file(step);
  step.store(state_.forgotten, std::uint64_t{request.file} + 1);
  step.store(state_.epoch, request.epoch);
}

// ---- one file

std::uint64_t ParquetSource::row_of_file() const noexcept {
  const std::vector<std::uint64_t>& groups = file_->row_groups();
  const auto before =
      static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(row_group_, groups.size()));
  return std::accumulate(groups.begin(), groups.begin() + before, row_);
}

bool ParquetSource::put_mark(Step& step, const Task& task, std::uint64_t user) noexcept {
  const std::uint64_t row = file_ != nullptr && sought_ ? row_of_file() : 0;
  return step.put(out_, mark(row, task.file, task.epoch, files_[task.file]), {.user = user});
}

void ParquetSource::leave_file(Step& step) noexcept {
  step.store(state_.begun, 0);
  step.store(state_.row_group, 0);
  step.store(state_.row, 0);
  file_.reset();
  sought_ = false;
}

StepStatus ParquetSource::fail(Step& step, const Task& task, bool gap, SkipReason& reason,
                               std::string_view text, bool& over, std::uint64_t lost) noexcept {
  if (!put_mark(step, task, gap ? kRowsGapRecord : kFileFailedRecord)) return StepStatus::kNoRoom;
  reason.skip(step, files_[task.file], file_ != nullptr && sought_ ? row_of_file() : 0, text, lost);
  if (gap) {
    // A step of its own for the other record: the queue may have room for one only.
    step.store(state_.begun, kGivenUp);
    return StepStatus::kDone;
  }
  leave_file(step);
  over = true;
  return StepStatus::kDone;
}

std::string ParquetSource::unfit() const {
  std::string text;
  for (std::size_t i = 0; i < wishes_.size(); ++i) {
    const formats::ColumnFound& found = file_->columns()[i];
    if (!found.there || found.fits) continue;
    text += fmt::format("{}column {} is {}, expected {}", text.empty() ? "" : "; ", wishes_[i].name,
                        found.type, name_of(wishes_[i].type));
  }
  return text;
}

// kDone without `over`: file_ is the one.
StepStatus ParquetSource::open_file(Step& step, const Task& task, bool& over) noexcept {
  file_.reset();
  sought_ = false;
  const bool begun = step.load(state_.begun) != 0;
  const Result<const formats::ArrowReaders*> readers = formats::arrow_readers();
  auto opened = readers ? (*readers)->parquet_rows(files_[task.file], wishes_,
                                                   context_.config.parquet_source().threads())
                        : Result<std::unique_ptr<RowFile>>(readers.error());
  if (!opened && opened.error().code() == ErrorCode::kNoMemory) {
    report_starved(files_[task.file], opened.error().message());
    return StepStatus::kIdle;
  }
  if (!opened) {
    const bool gone = opened.error().code() == ErrorCode::kNotFound;
    return fail(step, task, begun,
                gone    ? vanished_
                : begun ? changed_
                        : unreadable_,
                opened.error().message(), over);
  }
  file_ = std::move(*opened);
  open_task_ = task;
  if (begun) return StepStatus::kDone;
  const std::vector<std::string> names = file_->column_names();
  for (const formats::ColumnWish& wish : wishes_) {
    const auto count = std::ranges::count(names, wish.name);
    if (count < 2) continue;
    return fail(
        step, task, false, wrong_type_,
        fmt::format("it has {} columns '{}', and nothing says which is meant: write it with "
                    "one of them",
                    count, wish.name),
        over);
  }
  std::vector<std::string> missing;
  bool wrong = false;
  for (std::size_t i = 0; i < wishes_.size(); ++i) {
    const formats::ColumnFound& found = file_->columns()[i];
    if (!found.there && wishes_[i].required) missing.push_back(wishes_[i].name);
    wrong = wrong || (found.there && !found.fits);
  }
  if (missing.empty() && !wrong) return StepStatus::kDone;
  if (exact_) {
    // What comes of it is for the stage behind to say.
    if (absent_.speak()) {
      context_.warn(fmt::format(
          "columns_absent stage={} count={} path={}: {}{}{}; it has {}", context_.stage,
          absent_.count(), files_[task.file], missing.empty() ? "" : "missing: " + shown(missing),
          missing.empty() || !wrong ? "" : "; ", unfit(), shown(file_->column_names())));
    }
    return StepStatus::kDone;
  }
  if (!missing.empty()) {
    return fail(step, task, false, missing_column_,
                fmt::format("missing: {}; it has {}", shown(missing), shown(file_->column_names())),
                over);
  }
  return fail(step, task, false, wrong_type_, unfit(), over);
}

StepStatus ParquetSource::damaged(Step& step, const Task& task, const std::string& text,
                                  bool& over) noexcept {
  const std::uint64_t rows = file_->row_groups()[row_group_];
  const std::string what =
      fmt::format("row group {}, row {} of {}: {}", row_group_, row_, rows, text);
  std::uint64_t lost = rows - row_;
  if (exact_) {
    for (std::size_t i = row_group_ + 1; i < file_->row_groups().size(); ++i) {
      lost += file_->row_groups()[i];
    }
    const StepStatus status = fail(step, task, false, rows_damaged_, what, over, lost);
    if (status == StepStatus::kDone) step.count(row_groups_damaged_);
    return status;
  }
  if (!put_mark(step, task, kRowsGapRecord)) return StepStatus::kNoRoom;
  step.count(row_groups_damaged_);
  rows_damaged_.skip(step, files_[task.file], row_of_file(), what, lost);
  step.store(state_.row_group, row_group_ + 1);
  step.store(state_.row, 0);
  return StepStatus::kDone;
}

bool ParquetSource::other_at_path(const Task& task) const noexcept {
  const std::optional<FileVersion> now = version_at(files_[task.file]);
  return now && *now != FileVersion{} && *now != file_->version();
}

// kDone without `over`, and a file: file_ is open, as it is now or as it was when it was begun.
StepStatus ParquetSource::reach_file(Step& step, const Task& task, bool& over) noexcept {
  if (file_ != nullptr && open_task_.file == task.file && open_task_.epoch == task.epoch &&
      (step.load(state_.begun) != 0 || !other_at_path(task))) {
    return StepStatus::kDone;
  }
  const StepStatus status = open_file(step, task, over);
  // Refused, and no room to say so: it is to be refused again.
  if (status != StepStatus::kDone) file_.reset();
  if (status != StepStatus::kDone || file_ == nullptr || over) return status;
  context_.note(fmt::format("epoch {}: {}", task.epoch + 1, files_[task.file]));
  return StepStatus::kDone;
}

// Moves the reader to where the next record begins. False: the file has no such row.
bool ParquetSource::seek(std::uint64_t group, std::uint64_t row) noexcept {
  const std::vector<std::uint64_t>& groups = file_->row_groups();
  const bool inside =
      group == groups.size() ? row == 0 : group < groups.size() && row <= groups[group];
  if (sought_ && row_group_ == group && row_ == row) return inside;
  row_group_ = group;
  row_ = row;
  if (inside && group < groups.size() && row < groups[group]) {
    file_->seek(static_cast<std::uint32_t>(group), row);
  }
  sought_ = true;
  return inside;
}

// The next record begins with this row of row group row_group_.
void ParquetSource::go_on_from(Step& step, std::uint64_t next) noexcept {
  const bool complete = next == file_->row_groups()[row_group_];
  step.store(state_.row_group, row_group_ + (complete ? 1 : 0));
  step.store(state_.row, complete ? 0 : next);
  if (complete) step.count(row_groups_);
}

StepStatus ParquetSource::row_too_large(Step& step, const Task& task, std::uint64_t bytes,
                                        std::uint64_t bytes_max, bool& over) noexcept {
  const std::string what = fmt::format(
      "row group {}, row {}: it takes {} bytes, but a record has at most {}; raise queue_bytes to "
      "{}",
      row_group_, row_, bytes, bytes_max, std::bit_ceil(2 * bytes + 256));
  if (exact_) return fail(step, task, false, row_too_large_, what, over);
  row_too_large_.skip(step, files_[task.file], row_of_file(), what);
  file_->pass(1);
  row_ += 1;
  go_on_from(step, row_);
  return StepStatus::kDone;
}

StepStatus ParquetSource::put_rows(Step& step, const Task& task,
                                   const RowFile::Next& next) noexcept {
  const std::span<std::byte> room = step.reserve(out_, next.bytes);
  if (room.empty()) return StepStatus::kNoRoom;
  formats::RowBatchHead head{};
  head.first_row = row_of_file();
  head.file = task.file;
  head.epoch = task.epoch;
  file_->write(room.first(next.bytes), head, files_[task.file]);
  step.put_reserved(out_, next.bytes, {.user = kRowsRecord});
  file_->pass(next.rows);
  row_ += next.rows;
  go_on_from(step, row_);
  step.count(rows_, next.rows);
  if (step.load(state_.epoch_rows) == 0) step.store(state_.epoch_rows, 1);
  return StepStatus::kDone;
}

StepStatus ParquetSource::step_file(Step& step, const Task& task, bool& over) noexcept {
  const FileVersion begun{step.load(state_.begun_bytes), step.load(state_.begun_mtime_ns),
                          step.load(state_.begun_inode)};
  const bool is_begun = step.load(state_.begun) != 0;
  if (step.load(state_.begun) == kGivenUp) {
    if (!put_mark(step, task, kFileFailedRecord)) return StepStatus::kNoRoom;
    leave_file(step);
    over = true;
    return StepStatus::kDone;
  }
  const StepStatus reached = reach_file(step, task, over);
  if (reached != StepStatus::kDone || file_ == nullptr || over) return reached;
  // Its place is needed for what is said of the file, also if it is no longer the same.
  const bool inside = seek(step.load(state_.row_group), step.load(state_.row));
  if (is_begun && (begun != file_->version() || !inside || other_at_path(task))) {
    return fail(step, task, true, changed_, "it was replaced or written to", over);
  }
  if (!is_begun) {
    step.store(state_.begun, 1);
    step.store(state_.begun_bytes, file_->version().bytes);
    step.store(state_.begun_mtime_ns, file_->version().mtime_ns);
    step.store(state_.begun_inode, file_->version().inode);
  }
  const std::vector<std::uint64_t>& groups = file_->row_groups();
  if (row_group_ == groups.size()) {
    if (!put_mark(step, task, kFileEndRecord)) return StepStatus::kNoRoom;
    step.count(files_read_);
    leave_file(step);
    over = true;
    return StepStatus::kDone;
  }
  if (row_ == groups[row_group_]) {
    go_on_from(step, row_);
    return StepStatus::kDone;
  }
  const std::uint64_t bytes_max = step.record_bytes_max(out_);
  const RowFile::Next next = file_->next(
      {.bytes = std::min(kRecordBytes, bytes_max), .bytes_max = bytes_max, .rows = kRecordRows},
      files_[task.file].size());
  switch (next.kind) {
    case RowFile::Kind::kDamaged:
      return damaged(step, task, next.text, over);
    case RowFile::Kind::kTooLarge:
      return row_too_large(step, task, next.bytes, bytes_max, over);
    case RowFile::Kind::kGroupEnd:
      go_on_from(step, groups[row_group_]);
      return StepStatus::kDone;
    case RowFile::Kind::kRows:
      break;
  }
  return put_rows(step, task, next);
}

// ---- the kind of stage

StageType parquet_source_type() {
  StageType type;
  type.kind = "parquet_source";
  type.outputs = {{"output", "rows"}};
  type.counters = {
      {"files_found", "Files found.", kGauge},
      {"files_read", "Files read to the end, counted again in every epoch."},
      {"row_groups", "Row groups read."},
      {"rows", "Rows output."},
      {"epochs", "Epochs that have ended."},
      {.name = "skipped_files",
       .help = "Files that could not be used, or not in full, for any reason.",
       .sum_of = {"skipped_vanished", "skipped_unreadable", "skipped_changed",
                  "skipped_missing_column", "skipped_wrong_type"}},
      {"skipped_vanished", "Files that were gone before they were read."},
      {"skipped_unreadable", "Files that could not be opened or read."},
      {"skipped_changed", "Files that were replaced or written to while they were read."},
      {"skipped_missing_column", "Files without a column that is needed."},
      {"skipped_wrong_type", "Files with a column of a type that cannot be used."},
      {"row_groups_damaged", "Row groups that could not be read to the end."},
      {"rows_damaged", "Rows that were left out with them."},
      {"rows_too_large", "Rows that do not fit a record of the output."},
  };
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>& inputs,
                       std::vector<PortSpec>&) {
    const Link& reader = stage.links.output("output");
    if (reader.said.get(kFilesOnRequest)) {
      inputs.push_back({"requests", "requests", reader.stage + ".requests"});
    }
  };
  type.problems = [](const StageView& stage) {
    const ParquetSourceConfig& own = stage.config.parquet_source();
    std::vector<Problem> problems;
    if (const auto readers = formats::arrow_readers(); !readers) {
      problems.push_back({"", readers.error().message()});
    }
    if (own.directory().empty() && own.files_size() == 0) {
      problems.push_back(
          {"directory",
           "neither directory nor files is given; set one to the place of the Parquet files"});
    }
    if (!own.directory().empty() && own.files_size() != 0) {
      problems.push_back({"files", "directory and files are both given; keep one of them"});
    }
    if (own.rank() >= own.world_size()) {
      problems.push_back({"rank", fmt::format("rank is {} in a world of {}; give 0 to {}",
                                              own.rank(), own.world_size(), own.world_size() - 1)});
    }
    const Link& reader = stage.links.output("output");
    const bool wishes = reader.said.find(kRowColumns) != nullptr;
    if (wishes && own.columns_size() != 0) {
      problems.push_back(
          {"columns",
           fmt::format("stage '{}' requests its own columns; leave columns out", reader.stage)});
    }
    if (reader.linked() && !wishes && own.columns_size() == 0) {
      problems.push_back({"columns", fmt::format("stage '{}' does not say which columns it wants; "
                                                 "give columns",
                                                 reader.stage)});
    }
    return problems;
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    const ParquetSourceConfig& own = stage.config.parquet_source();
    Facts& rows = outputs["output"];
    rows.set(kTakesFileRequests, true);
    rows.set(kRowsMayDrop, own.overflow_behavior() != BLOCK);
    rows.set(kRowsRepeat, own.repeat());
    rows.set(kShuffleFiles, own.shuffle_files());
    rows.set(kRowsRank, own.rank());
  };
  type.nodes = [](const StageView& stage) {
    NodeSpec node;
    StateLayout layout;
    (void)ParquetSource::State(layout);
    node.state_bytes = layout.bytes() + kLogGrowth;
    node.state_bytes_max = kLogBytesMax;
    if (stage.links.output("output").said.get(kFilesOnRequest))
      node.inputs = {{.port = "requests", .from = ""}};
    node.outputs = {
        output_spec(stage.config.parquet_source(), "rows", 4 * kMiB, UnitRule::kRecord)};
    node.weight = 1;
    node.if_slow = "Its columns are decoded by `threads` at once: set more of them";
    node.steps_per_commit = 4;
    node.create = [](const StageContext& context) {
      return std::make_unique<ParquetSource>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages {
  name: "rows"
  parquet_source { directory: "/data/games" columns: "game_id" columns: "ply" }
}
)",
                  .maker = "chess_tables"};
  return type;
}

}  // namespace ringfeed
