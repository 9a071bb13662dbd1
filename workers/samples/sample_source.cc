// The stage sample_source: its reading lanes, and how its two parts are put together.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/starvation.h"
#include "ringfeed/worker/random.h"
#include "ringfeed/worker/sample.h"
#include "workers/files/file_facts.h"
#include "workers/io/arrow_readers.h"
#include "workers/kit/cached_files.h"
#include "workers/kit/resumed_split.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/file_parts.h"
#include "workers/samples/sample_facts.h"
#include "workers/samples/sample_file.h"
#include "workers/samples/sample_files.h"
#include "workers/samples/source_look.h"

namespace ringfeed {
namespace {

// A lane that reads.
//
//   parts    samples/file_parts.h
//   output   samples; tag: of the path, and the place (SampleFile::Item); pyclient's origins.py goes
//            back from there
//   arena    the cursor in the part at hand (samples/sample_file.h); of its samples, those that
//            went out before the file's checks had come to them
class SampleReader final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : split(layout), checked(layout.word()), in_doubt(layout.word()) {}
    ResumedSplit split;  // cursors are its parts
    Word checked;        // SampleFile::checked() when the last sample went out
    Word in_doubt;       // samples that went out and do not end before it
  };

  explicit SampleReader(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  // kDone: the part is open. kIdle: it will be there later. kNoInput: it cannot be had, and that
  // has been counted.
  [[nodiscard]] StepStatus open(Step& step, std::uint64_t cursor) noexcept;
  // kDone: all checks have been made. kAgain: they go on. kNoInput: the file is damaged, and that
  // has been counted.
  [[nodiscard]] StepStatus check(Step& step) noexcept;
  // The file is damaged behind what has gone out of it.
  void count_doubts(Step& step, std::uint64_t elsewhere) noexcept;
  // Nothing more comes of the part.
  [[nodiscard]] StepStatus finish(Step& step, const Record& record) noexcept;
  [[nodiscard]] SkipReason& reason_of(const Error& error) noexcept;
  // kDone: dealt with, put out or skipped.
  [[nodiscard]] StepStatus put_item(Step& step, const SampleFile::Item& item) noexcept;

  StageContext context_;
  const SampleSourceConfig config_;  // with what the next stages wish
  State state_;
  InPort in_;
  OutPort out_;
  Counter samples_;
  Counter bytes_;
  Counter files_waited_for_;
  Counter samples_in_doubt_;
  SkipReason vanished_;
  SkipReason unreadable_;
  SkipReason changed_;
  SkipReason damaged_;
  SkipReason unsupported_;
  SkipReason trailing_;
  SkipReason members_;
  Counter keys_again_;
  Occasions keys_occasions_;
  FileWaits waits_;
  SkipReason no_json_;
  SkipReason missing_field_;
  SkipReason wrong_type_;
  SkipReason too_large_;
  // Of the part at hand, rebuilt after a restart.
  FilePart part_{};
  std::string path_;
  std::uint64_t identity_ = 0;  // of the path, for the tags
  std::uint64_t put_ = 0;       // samples of the step at hand
  CachedFiles cached_;
  bool waited_ = false;  // for the part at hand
  std::unique_ptr<SampleFile> file_;
  std::unique_ptr<FileCheck> check_;  // still under way
  SampleFile::Item item_{};
  bool has_item_ = false;    // it found no room
  std::uint64_t at_ = 0;     // the cursor
  std::uint64_t place_ = 0;  // in the file, behind the last item, for the log
};

// Items that one step looks at, and bytes, at most: a commit is not put off for long.
constexpr std::uint32_t kItemsPerStep = 128;
constexpr std::uint64_t kBytesPerStep = kMiB;

SampleReader::SampleReader(const StageContext& context)
    : context_(context),
      config_(with_wishes(context.config.sample_source(), context.links.output("output"))),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("parts")),
      out_(context.output("output")),
      samples_(context.counter("samples")),
      bytes_(context.counter("bytes_read")),
      files_waited_for_(context.counter("files_waited_for")),
      samples_in_doubt_(context.counter("samples_in_doubt")),
      vanished_(context, "skipped_vanished"),
      unreadable_(context, "skipped_unreadable"),
      changed_(context, "skipped_changed"),
      damaged_(context, "skipped_damaged"),
      unsupported_(context, "skipped_unsupported"),
      trailing_(context, "skipped_trailing"),
      members_(context, "skipped_members"),
      keys_again_(context.counter("keys_again")),
      no_json_(context, "skipped_no_json"),
      missing_field_(context, "skipped_missing_field"),
      wrong_type_(context, "skipped_wrong_type"),
      too_large_(context, "skipped_too_large") {}

void SampleReader::forget(Step& step, const Record&) noexcept {
  state_.split.forget(step);
  step.store(state_.checked, 0);
  step.store(state_.in_doubt, 0);
  file_ = nullptr;
}

StepStatus SampleReader::finish(Step& step, const Record& record) noexcept {
  file_ = nullptr;
  step.store(state_.checked, 0);
  step.store(state_.in_doubt, 0);
  return state_.split.finish(step, record);
}

SkipReason& SampleReader::reason_of(const Error& error) noexcept {
  switch (error.code()) {
    case ErrorCode::kDamaged:
      return damaged_;
    case ErrorCode::kUnsupported:
      return unsupported_;
    default:
      return unreadable_;
  }
}

StepStatus SampleReader::check(Step& step) noexcept {
  const Result<bool> all = check_->some();
  if (all && !*all) return StepStatus::kAgain;
  check_ = nullptr;
  if (all) return StepStatus::kDone;
  file_ = nullptr;
  reason_of(all.error()).skip(step, path_, part_.begin, all.error().message());
  return StepStatus::kNoInput;
}

void SampleReader::count_doubts(Step& step, std::uint64_t elsewhere) noexcept {
  const bool same = step.load(state_.checked) == file_->checked();
  const std::uint64_t own = same ? step.load(state_.in_doubt) : 0;
  if (own + elsewhere != 0) step.count(samples_in_doubt_, own + elsewhere);
}

StepStatus SampleReader::open(Step& step, std::uint64_t cursor) noexcept {
  file_ = nullptr;
  check_ = nullptr;
  has_item_ = false;
  const auto refuse = [&](SkipReason& reason, std::string_view text) {
    reason.skip(step, path_, part_.begin, text);
    return StepStatus::kNoInput;
  };
  const auto wait = [&](const Error& error) {
    waits_.say(context_, path_, error);
    check_ = nullptr;
    waited_ = true;
    return StepStatus::kIdle;
  };
  const auto is_awaited = [&](const Error& error) { return is_to_come(error) && !step.draining(); };
  Result<shm::Fd> fd = cached_.open(path_);
  if (!fd && is_awaited(fd.error())) return wait(fd.error());
  if (waited_) context_.note("");
  if (!fd) {
    const ErrorCode code = fd.error().code();
    return refuse(
        code == ErrorCode::kNotFound || code == ErrorCode::kBusy ? vanished_ : unreadable_,
        fd.error().message());
  }
  struct stat file {};
  if (::fstat(fd->get(), &file) != 0) return refuse(unreadable_, "it cannot be examined");
  // Half of one version and half of another would be neither.
  if (part_.version != 0 && version_of(file) != part_.version) {
    return refuse(changed_, "the object is another one than when the epoch came to it");
  }
  // What was added since comes with the next epoch.
  if (static_cast<std::uint64_t>(file.st_size) < part_.file_bytes) {
    return refuse(changed_, fmt::format("it has {} bytes, and had {} when the epoch came to it",
                                        file.st_size, part_.file_bytes));
  }
  const Result<formats::Packing> packing = formats::packing_of(fd->get());
  if (!packing) return refuse(unreadable_, packing.error().message());
  if (Status ready = formats::ready_to_unpack(*packing); !ready && is_awaited(ready.error())) {
    return wait(ready.error());
  }
  const SampleSourceConfig_Format format = format_of(config_, path_, fd->get());
  SamplePart part{.fd = std::move(*fd),
                  .packing = *packing,
                  .begin = part_.begin,
                  .end = part_.end,
                  .file_bytes = part_.file_bytes,
                  .cursor = cursor,
                  .path = path_};
  if (config_.fields_size() == 0) part.numbers = wanted_numbers(context_.links.output("output"));
  if (Status named = packed_as_named(path_, format, part); !named) {
    return refuse(reason_of(named.error()), named.error().message());
  }
  // A part of which something has gone out has been checked.
  if (config_.verify() == SampleSourceConfig::BEFORE && cursor == 0) {
    shm::Fd same(::fcntl(part.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!same) {
      const Error none{system_code(errno), std::strerror(errno)};
      return is_awaited(none) ? wait(none) : refuse(unreadable_, none.message());
    }
    Result<std::unique_ptr<FileCheck>> to_check =
        open_check(config_, format, *packing, std::move(same));
    // What is wrong with it as a whole is said by what opens it.
    if (to_check) check_ = std::move(*to_check);
  }
  Result<std::unique_ptr<SampleFile>> opened = open_sample_file(config_, format, std::move(part));
  if (!opened && is_awaited(opened.error())) return wait(opened.error());
  if (!opened) {
    switch (opened.error().code()) {
      case ErrorCode::kDamaged:
        return refuse(damaged_, opened.error().message());
      case ErrorCode::kNotFound:
        return refuse(missing_field_, opened.error().message());
      case ErrorCode::kUnsupported:
        return refuse(wrong_type_, opened.error().message());
      default:
        return refuse(unreadable_, opened.error().message());
    }
  }
  file_ = std::move(*opened);
  return StepStatus::kDone;
}

StepStatus SampleReader::put_item(Step& step, const SampleFile::Item& item) noexcept {
  const auto skip = [&](SkipReason& reason, std::string_view text) {
    reason.skip(step, path_, item.place, text, item.lost);
    return StepStatus::kDone;
  };
  switch (item.fault) {
    case SampleFault::kNone:
      break;
    case SampleFault::kNotJson:
    case SampleFault::kNotAnObject:
      return skip(no_json_, item.text);
    case SampleFault::kMissingField:
      return skip(missing_field_, item.text);
    case SampleFault::kWrongType:
      return skip(wrong_type_, item.text);
    case SampleFault::kTooLarge:
      return skip(too_large_, item.text);
    case SampleFault::kDamaged:
      return skip(damaged_, item.text);
    case SampleFault::kNoSample:
      return skip(members_, item.text);
    case SampleFault::kTrailing:
      return skip(trailing_, item.text);
  }
  if (item.nothing) return StepStatus::kDone;
  const bool made = !item.head.empty();
  const std::optional<std::uint64_t> bytes =
      made ? item.head.size() + item.data.size() : sample_bytes(item.fields);
  if (!bytes || *bytes > step.record_bytes_max(out_)) {
    return skip(too_large_,
                bytes ? fmt::format("a sample of {} bytes does not fit a record of {}: raise "
                                    "queue_bytes of stage '{}'",
                                    *bytes, step.record_bytes_max(out_), context_.stage)
                      : "no sample can hold it: more than 256 fields (say with `fields` which are "
                        "wanted), a name of more than 255 bytes or none, or 4 GiB");
  }
  const std::span<std::byte> room = step.reserve(out_, *bytes);
  if (room.empty()) return StepStatus::kNoRoom;
  if (made) {
    std::memcpy(room.data(), item.head.data(), item.head.size());
    if (!item.data.empty()) {
      std::memcpy(room.data() + item.head.size(), item.data.data(), item.data.size());
    }
  } else {
    write_sample(room, item.fields);
  }
  step.put_reserved(out_, *bytes, {.tag = {identity_, item.place}});
  ++put_;
  return StepStatus::kDone;
}

StepStatus SampleReader::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const std::uint64_t done = state_.split.done(step);
  if (file_ == nullptr || at_ != done) {
    part_ = file_part(*record, path_);
    identity_ = mix(path_);
    const StepStatus status = open(step, done);
    if (status == StepStatus::kIdle) return status;
    if (status == StepStatus::kNoInput) {
      waited_ = false;
      return finish(step, *record);
    }
    at_ = done;
    place_ = part_.begin;
  }
  if (check_ != nullptr) {
    const StepStatus status = check(step);
    if (status == StepStatus::kAgain) return status;
    if (status == StepStatus::kNoInput) return finish(step, *record);
  }
  std::uint64_t bytes = 0;
  put_ = 0;
  std::uint64_t checked = step.load(state_.checked);
  std::uint64_t in_doubt = step.load(state_.in_doubt);
  // Once a step: each count is a search in the journal.
  const auto count = [&] {
    if (checked != step.load(state_.checked)) step.store(state_.checked, checked);
    if (in_doubt != step.load(state_.in_doubt)) step.store(state_.in_doubt, in_doubt);
    if (put_ != 0) step.count(samples_, put_);
    if (bytes != 0) step.count(bytes_, bytes);
  };
  for (std::uint32_t items = 0; items < kItemsPerStep && bytes < kBytesPerStep; ++items) {
    if (!has_item_) {
      const Result<bool> next = file_->next(item_);
      if (!next) {
        reason_of(next.error()).skip(step, path_, place_, next.error().message(), file_->lost());
        count();
        count_doubts(step, file_->elsewhere());
      } else if (!*next) {
        count();
        if (const std::uint64_t bytes_left = file_->trailing_bytes(); bytes_left != 0) {
          trailing_.skip(step, path_, place_,
                         fmt::format("{} bytes behind what it holds are nothing that can be read",
                                     bytes_left));
        }
      }
      if (!next || !*next) {
        if (std::exchange(waited_, false)) step.count(files_waited_for_);
        return finish(step, *record);
      }
      has_item_ = true;
    }
    const std::uint64_t put_before = put_;
    if (put_item(step, item_) == StepStatus::kNoRoom) break;
    if (const std::uint64_t now = file_->checked(); now != checked) {
      // What has gone out so far ends before that.
      checked = now;
      in_doubt = 0;
    }
    const std::uint64_t end = item_.end != 0 ? item_.end : item_.place + item_.bytes;
    if (end > checked) in_doubt += put_ - put_before;
    if (!item_.notice.empty()) {
      step.count(keys_again_);
      if (keys_occasions_.speak()) {
        context_.warn(fmt::format("key_again stage={} count={} path={} offset={}: {}",
                                  context_.stage, keys_occasions_.count(), path_, item_.place,
                                  item_.notice));
      }
    }
    bytes += item_.bytes;
    at_ = item_.cursor;
    place_ = item_.place + item_.bytes;
    has_item_ = false;
  }
  count();
  if (at_ != done && std::exchange(waited_, false)) step.count(files_waited_for_);
  return state_.split.advance(step, *record, at_, ~std::uint64_t{0});
}

// By what the configuration shows; the first bytes of a file may say otherwise.
bool reads_tables(const StageView& stage) {
  const SampleSourceConfig& own = stage.config.sample_source();
  if (own.format() != SampleSourceConfig::BY_NAME) return is_table(own.format());
  const std::string patterns = stage.links.input("input").said.get(kFilePatterns);
  const auto has = [&](std::string_view ending) {
    return patterns.find(ending) != std::string::npos;
  };
  return has("parquet") || has("arrow") || has("csv");
}

std::vector<NodeSpec> source_nodes(const StageView& stage) {
  const SampleSourceConfig& own = stage.config.sample_source();
  NodeSpec files;
  StateLayout layout;
  (void)SampleFiles::State(layout);
  files.state_bytes = layout.bytes();
  files.state_bytes_max = kGrowsWithData;
  files.inputs = {{.port = "input", .from = "", .block = 1}};
  files.outputs = {{.port = "parts",
                    .record_type = "parts",
                    .exported = false,
                    .queue_capacity = 16,
                    .queue_bytes = 128 * kKiB,
                    .overflow = BLOCK,
                    .units = UnitRule::kRecord}};
  files.weight = 0.02;
  files.steps_per_commit = 1;
  files.create = [](const StageContext& context) { return std::make_unique<SampleFiles>(context); };

  NodeSpec read;
  StateLayout reader_layout;
  (void)SampleReader::State(reader_layout);
  read.name = "read";
  read.lanes = own.threads();
  read.more_lanes = kMoreThreads;
  read.state_bytes = reader_layout.bytes();
  read.inputs = {{.port = "parts", .from = ".parts", .block = 1}};
  // The lanes behind take units in turn. Of a whole part, which several lanes need to keep their
  // order, the others could do little before the first has done all of its own.
  read.outputs = {output_spec(own, "samples", 4 * kMiB,
                              own.threads() == 1 ? UnitRule::kRecord : UnitRule::kFollow)};
  read.state_version = own.threads() == 1 ? 2 : 1;
  read.weight = 2;
  read.steps_per_commit = 1;
  read.entries_per_step = 64;
  read.create = [](const StageContext& context) { return std::make_unique<SampleReader>(context); };
  return {files, read};
}

std::vector<Problem> source_problems(const StageView& stage) {
  std::vector<Problem> problems;
  const SampleSourceConfig& own = stage.config.sample_source();
  if (reads_tables(stage)) {
    if (const auto readers = formats::arrow_readers(); !readers) {
      problems.push_back({"format", readers.error().message()});
    }
  }
  if (own.has_csv_delimiter() &&
      (own.csv_delimiter().size() != 1 || own.csv_delimiter().find_first_of("\"\r\n") == 0)) {
    problems.push_back({"csv_delimiter",
                        fmt::format("csv_delimiter is {}; give one character of one byte, such as "
                                    "\";\" or \"\\t\", and no quote",
                                    in_quotes(own.csv_delimiter()))});
  }
  const SampleSourceConfig all = with_wishes(own, stage.links.output("output"));
  for (int i = 0; i < own.fields_size(); ++i) {
    const SampleFieldConfig& field = all.fields(i);
    const std::string path = fmt::format("fields[{}]", i);
    if (field.name().empty()) problems.push_back({path, "it has no name; add name: \"...\""});
    if (field.has_dtype() && !dtype_named(field.dtype())) {
      problems.push_back(
          {path + ".dtype", fmt::format("dtype is \"{}\"; give one as NumPy names it, such as "
                                        "float32 or int64, or text or bytes",
                                        field.dtype())});
    } else if (field.has_default_()) {
      const Result<FieldDefault> value = default_of(field);
      if (!value) problems.push_back({path + ".default", value.error().message()});
    }
  }
  return problems;
}

}  // namespace

StageType sample_source_type() {
  StageType type;
  type.kind = "sample_source";
  type.inputs = {{"input", "files"}};
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {"samples", "Samples output."},
      {"files", "Files seen."},
      {"files_passed_over",
       "Files that are not read: their ending is not known, or they are backups or unfinished."},
      {"files_begun", "Files whose first part has been handed out, counted again in every epoch."},
      {"files_handed_out",
       "Files whose last part has been handed out, counted again in every epoch."},
      {"epochs", "Passes over the files that have been handed out."},
      {"bytes_read", "Bytes of lines and values read, as they are unpacked."},
      {"files_waited_for", "Parts of files that had to be fetched from a store first."},
      {"skipped_vanished", "Parts of files that are gone."},
      {"skipped_unreadable", "Parts of files that could not be opened or read."},
      {"skipped_changed", "Parts of files that were written to meanwhile."},
      {"samples_in_doubt",
       "Samples that had gone out of packed files before their checksums failed, or what follows "
       "could not be read."},
      {"skipped_damaged",
       "Files that could not be read to their end, or the samples that they would have had where "
       "they say how many, and damaged samples."},
      {"skipped_unsupported", "Files that are well-formed, but of a kind that is not read."},
      {"skipped_trailing",
       "Files with bytes behind their last member, array or stream, or tars with bytes behind "
       "their end, that are nothing."},
      {"skipped_members",
       "Members of tars that are of no sample: without a dot in the name, links, devices."},
      {"keys_again",
       "Samples of tars whose key had come before in the archive: its members do not follow each "
       "other."},
      {"skipped_no_json", "Lines that are no JSON object."},
      {"skipped_missing_field", "Samples, or parts of files, without a field that is wanted."},
      {"skipped_wrong_type",
       "Samples, or parts of files, with a field that cannot be of the wanted type."},
      {"skipped_too_large", "Lines and samples that are too long."},
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    TypedFields typed = typed_fields(stage);
    if (!typed.empty()) outputs["output"].set(kTypedFields, std::move(typed));
  };
  type.problems = source_problems;
  type.nodes = source_nodes;
  type.look = look_at_source;
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
