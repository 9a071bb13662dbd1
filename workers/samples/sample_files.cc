#include "workers/samples/sample_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "workers/files/file_records.h"
#include "workers/io/byte_stream.h"
#include "workers/kit/shuffle.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/sample_facts.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

constexpr std::uint64_t kLogGrowth = 256 * kKiB;

// Files that a cache is asked for beyond the one that is handed out.
constexpr std::uint64_t kFilesAhead = 16;

}  // namespace

SampleFiles::SampleFiles(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      log_(state_.log_bytes, state_.log, kLogGrowth),
      in_(context.input("input")),
      out_(context.output("parts")),
      files_(context.counter("files")),
      files_passed_over_(context.counter("files_passed_over")),
      files_begun_(context.counter("files_begun")),
      files_handed_out_(context.counter("files_handed_out")),
      epochs_(context.counter("epochs")),
      files_waited_for_(context.counter("files_waited_for")),
      block_bytes_(context.config.sample_source().block_bytes()),
      shuffles_(context.config.sample_source().shuffle_files()) {
  log_.read(context, [&](const Kept&, std::string path) { paths_.push_back(std::move(path)); });
}

StepStatus SampleFiles::take_file(Step& step, const Record& record) noexcept {
  const std::uint64_t known = step.load(state_.known);
  // A step that left no trace may have left its path here.
  paths_.resize(known);
  const std::string path(reinterpret_cast<const char*>(record.bytes.data()), record.bytes.size());
  // One that was written anew is read as it is then.
  if (std::ranges::find(paths_, path) != paths_.end()) return step.consume(record);
  if (const std::string_view why = why_passed_over(context_.config.sample_source(), path);
      !why.empty()) {
    pass_over(step, path, why);
    return step.consume(record);
  }
  FileLog<Kept>::Entries entries;
  entries.add({}, path);
  if (!log_.append(step, entries)) return StepStatus::kNoRoom;
  step.store(state_.known, known + 1);
  step.count(files_);
  paths_.push_back(path);
  return step.consume(record);
}

// Counts with the step; says so now and then.
void SampleFiles::pass_over(Step& step, const std::string& path, std::string_view why) noexcept {
  step.count(files_passed_over_);
  if (!passing_over_.speak()) return;
  context_.info(fmt::format("passed_over stage={} count={} path={}: {}", context_.stage,
                            passing_over_.count(), path, why));
}

// May the file be of those that say something about the others, as dataset_infos.json does? Then
// there are not more such files than data.
bool SampleFiles::describes_others(const Step& step, const std::string& path) noexcept {
  const SampleSourceConfig& config = context_.config.sample_source();
  if (beside_of(config, path) != Beside::kMayDescribe) return false;
  if (const std::uint64_t epoch = step.load(state_.epoch); beside_epoch_ != epoch) {
    const auto files = std::span(paths_).first(step.load(state_.files));
    const auto are = [&](Beside what) {
      return std::ranges::count(files, what,
                                [&](const std::string& one) { return beside_of(config, one); });
    };
    beside_epoch_ = epoch;
    are_beside_ = are(Beside::kMayDescribe) <= are(Beside::kIsDescribed);
  }
  return are_beside_;
}

std::uint64_t SampleFiles::file_at(const Step& step, std::uint64_t place) const noexcept {
  if (!shuffles_) return place;
  return Shuffle(context_.key, step.load(state_.epoch), step.load(state_.files)).at(place);
}

void SampleFiles::ask_ahead(const Step& step) noexcept {
  const std::uint64_t epoch = step.load(state_.epoch);
  if (asked_epoch_ != epoch) {
    asked_epoch_ = epoch;
    asked_ = step.load(state_.next);
  }
  const std::uint64_t end = std::min(step.load(state_.next) + kFilesAhead, step.load(state_.files));
  for (; asked_ < end; ++asked_) cached_.ask_ahead(paths_[file_at(step, asked_)]);
}

// With what tells its format: a file that is looked at without would be taken for another.
Result<shm::Fd> SampleFiles::open_ready(const std::string& path) noexcept {
  Result<shm::Fd> fd = cached_.open(path, CachedFiles::Wish::kKeep);
  if (!fd) return fd;
  const Result<formats::Packing> packing = formats::packing_of(fd->get());
  if (!packing) return fd;
  if (Status ready = formats::ready_to_unpack(*packing); !ready) return ready.error();
  return fd;
}

StepStatus SampleFiles::hand_out(Step& step) noexcept {
  const std::uint64_t epoch = step.load(state_.epoch);
  const std::uint64_t next = step.load(state_.next);
  if (epoch == 0 || next == step.load(state_.files)) {
    const std::uint64_t known = step.load(state_.known);
    if (epoch != 0) step.count(epochs_);
    if (context_.feed.epochs() != 0 && (epoch == context_.feed.epochs() || known == 0)) {
      return StepStatus::kEnd;
    }
    if (known == 0) return StepStatus::kIdle;
    step.store(state_.epoch, epoch + 1);
    step.store(state_.files, known);
    step.store(state_.next, 0);
    step.store(state_.begin, 0);
    return StepStatus::kDone;
  }
  ask_ahead(step);
  const std::string& path = paths_[file_at(step, next)];
  const std::uint64_t begin = step.load(state_.begin);
  Result<shm::Fd> fd = open_ready(path);
  if (!fd && is_to_come(fd.error())) {
    waits_.say(context_, path, fd.error());
    waited_ = true;
    return StepStatus::kIdle;
  }
  if (fd && begin == 0 && describes_others(step, path) && is_one_object(fd->get())) {
    pass_over(step, path, kBesideData);
    step.store(state_.next, next + 1);
    return StepStatus::kDone;
  }
  struct stat file {};
  // What is not there at all is said by the lane that reads it.
  const bool there = fd && ::fstat(fd->get(), &file) == 0;
  const auto bytes = there ? static_cast<std::uint64_t>(file.st_size) : 0;
  const auto is_divided = [&] {
    return can_be_divided(
        with_wishes(context_.config.sample_source(), context_.links.output("output")), path,
        std::move(*fd));
  };
  const bool whole = begin == 0 && !(there && is_divided());
  const bool last = whole || begin + block_bytes_ >= bytes;
  const std::uint64_t version = begin != 0                       ? step.load(state_.version)
                                : there && cached_.is_copy(path) ? version_of(file)
                                                                 : 0;
  const FilePart part{.begin = begin,
                      .end = whole  ? formats::ByteStream::kToEnd
                             : last ? bytes
                                    : begin + block_bytes_,
                      .file_bytes = bytes,
                      .epoch = epoch,
                      .version = version,
                      .path_bytes = static_cast<std::uint32_t>(path.size()),
                      .reserved = 0};
  const std::span<std::byte> room = step.reserve(out_, sizeof part + path.size());
  if (room.empty()) return StepStatus::kNoRoom;
  std::memcpy(room.data(), &part, sizeof part);
  std::memcpy(room.data() + sizeof part, path.data(), path.size());
  step.put_reserved(out_, sizeof part + path.size(), {.tag = {mix(path), begin}});
  if (std::exchange(waited_, false)) {
    step.count(files_waited_for_);
    context_.note("");
  }
  if (begin == 0) step.count(files_begun_);
  if (last) step.count(files_handed_out_);
  step.store(state_.next, last ? next + 1 : next);
  step.store(state_.begin, last ? 0 : begin + block_bytes_);
  step.store(state_.version, version);
  return StepStatus::kDone;
}

StepStatus SampleFiles::step(Step& step) noexcept {
  if (step.draining()) return StepStatus::kEnd;
  if (const std::optional<Record> record = step.peek(in_)) {
    if (record->user != kScanCompleteRecord) return take_file(step, *record);
    step.store(state_.scanned, 1);
    return step.consume(*record);
  }
  if (step.load(state_.scanned) != 0 || step.ended(in_)) return hand_out(step);
  return StepStatus::kNoInput;
}

}  // namespace ringfeed
