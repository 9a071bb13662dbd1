#include "workers/samples/source_look.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/ring.h"
#include "workers/files/file_facts.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/batch_fit.h"
#include "workers/samples/sample_facts.h"
#include "workers/samples/sample_look.h"

namespace ringfeed {
namespace {

using Clock = std::chrono::steady_clock;

// `ringfeed check` stays quick, whatever there is.
constexpr std::chrono::milliseconds kTime(2'000);
constexpr std::chrono::milliseconds kTimeOfAll(10'000);  // of all sources together
constexpr std::size_t kFilesFound = 100'000;
constexpr std::size_t kFilesLookedAt = 64;
constexpr std::uint64_t kSamplesLookedAt = 64;  // of each
constexpr std::uint64_t kBytesLookedAt = kMiB;  // of each, as they are unpacked
constexpr std::size_t kNamesShown = 3;
constexpr std::size_t kConflictsShown = 10;

// "a, b, c and 4 more"
std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesShown);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// A field whose type nobody has declared, by the type that it has.
struct SeenTypes {
  struct First {
    SampleDtype dtype;
    std::string where;  // "a.jsonl (byte 12)"
  };
  std::vector<First> types = {};

  void see(SampleDtype dtype, const std::string& file, const std::string& place) {
    if (std::ranges::find(types, dtype, &First::dtype) != types.end()) return;
    types.push_back({dtype, fmt::format("{} ({})", file, place)});
  }
};

// One that holds the values of both, as most people would choose it.
SampleDtype dtype_for(SampleDtype one, SampleDtype other) {
  const auto number = [](SampleDtype dtype) {
    return is_array(dtype) && dtype != SampleDtype::kComplex64 && dtype != SampleDtype::kComplex128;
  };
  const auto real = [](SampleDtype dtype) {
    return dtype >= SampleDtype::kFloat16 && dtype <= SampleDtype::kFloat64;
  };
  if (!number(one) || !number(other)) {
    return is_array(one) && is_array(other) ? SampleDtype::kComplex128 : SampleDtype::kText;
  }
  return real(one) || real(other) ? SampleDtype::kFloat64 : SampleDtype::kInt64;
}

class SourceLook {
 public:
  SourceLook(const StageView& stage, const FilesFound& found, Clock::time_point until)
      : stage_(stage),
        config_(with_wishes(stage.config.sample_source(), stage.links.output("output"))),
        batch_(stage.links.output("output").said.find(kBatchWish)),
        found_(found),
        until_(until) {
    if (config_.fields_size() == 0) numbers_ = wanted_numbers(stage.links.output("output"));
    shm::RingGeometry ring{};
    ring.capacity_bytes = shm::align_up(
        output_spec(config_, "samples", 4 * kMiB, UnitRule::kFollow).queue_bytes, shm::kPageBytes);
    record_bytes_max_ = shm::record_bytes_max(ring);
    for (const SampleFieldConfig& field : config_.fields()) {
      if (field.has_dtype()) declared_.push_back(field.has_as() ? field.as() : field.name());
    }
  }

  DataLook look() {
    look_.files = found_.paths.size();
    look_.files_are_more = !found_.whole;
    const std::vector<std::string> files = files_to_read();
    const std::size_t tried = std::min(files.size(), kFilesLookedAt);
    for (std::size_t i = 0; i < tried && Clock::now() < until_; ++i) {
      // From the first to the last, evenly.
      look_into(files[i * (files.size() - 1) / std::max<std::size_t>(tried - 1, 1)]);
    }
    say_files(files);
    say_left_out();
    say_conflicts();
    return std::move(look_);
  }

 private:
  struct Read {
    std::uint64_t samples = 0;
    bool whole = false;
  };

  void warn(std::string text) { look_.warnings.push_back({"", std::move(text), true}); }

  // As it is named below the provider's directory.
  [[nodiscard]] std::string shown(const std::string& path) const {
    std::string_view name = path;
    const std::string& directory = found_.directory;
    if (!directory.empty() && name.starts_with(directory)) {
      name.remove_prefix(directory.size());
      name.remove_prefix(std::min(name.find_first_not_of('/'), name.size()));
    }
    return escaped(name);
  }

  void pass_over(std::string_view why, const std::string& path) {
    ++look_.files_passed_over;
    passed_over_[std::string(why)].push_back(shown(path));
  }

  // As SampleFiles chooses them.
  [[nodiscard]] std::vector<std::string> files_to_read() {
    std::vector<std::string> files;
    for (const std::string& path : found_.paths) {
      const std::string_view why = why_passed_over(config_, path);
      if (why.empty()) {
        files.push_back(path);
      } else {
        pass_over(why, path);
      }
    }
    const auto are = [&](Beside what) {
      return std::ranges::count(files, what,
                                [&](const std::string& path) { return beside_of(config_, path); });
    };
    if (are(Beside::kMayDescribe) > are(Beside::kIsDescribed)) return files;
    std::size_t opened = 0;
    std::erase_if(files, [&](const std::string& path) {
      if (beside_of(config_, path) != Beside::kMayDescribe) return false;
      if (opened++ == kFilesLookedAt || Clock::now() > until_) return false;
      const Result<shm::Fd> fd = shm::open_regular(path);
      if (!fd || !is_one_object(fd->get())) return false;
      pass_over(kBesideData, path);
      return true;
    });
    return files;
  }

  void look_into(const std::string& path) {
    const std::string name = shown(path);
    Result<WholeFile> file = open_whole(config_, path, numbers_);
    if (!file) {
      ++look_.files_looked_at;
      not_opened_[file.error().message()].push_back(name);
      return;
    }
    ++look_.files_looked_at;
    Read& read = read_[name];
    SampleFile::Item item{};
    std::string end = "its begin";  // of what has been read
    for (std::uint64_t bytes = 0;
         read.samples < kSamplesLookedAt && bytes < kBytesLookedAt && Clock::now() < until_;) {
      const Result<bool> next = file->samples->next(item);
      if (!next) {
        warn(fmt::format("{}: what follows {} would be left out: {}", name, end,
                         escaped(next.error().message())));
        return;
      }
      if (!*next) {
        read.whole = true;
        if (const std::uint64_t rest = file->samples->trailing_bytes(); rest != 0) {
          warn(fmt::format("{}: {} bytes behind what it holds are nothing that can be read", name,
                           rest));
        }
        return;
      }
      bytes += item.bytes;
      end = file->place_text(item.place);
      see(*file, name, item, read);
    }
  }

  void see(const WholeFile& file, const std::string& name, const SampleFile::Item& item,
           Read& read) {
    const std::string place = file.place_text(item.place);
    if (!item.notice.empty()) keys_again_.add(name, SampleFault::kNone, item.notice, place);
    // What lies beside samples is none that is lost.
    if (item.fault == SampleFault::kNoSample || item.fault == SampleFault::kTrailing) {
      beside_.add(name, item.fault, item.text, place);
      return;
    }
    if (item.fault == SampleFault::kNone && item.nothing) return;
    read.samples += item.lost;
    look_.samples += item.lost;
    if (const std::string why = why_left_out(item, record_bytes_max_); !why.empty()) {
      look_.samples_left_out += item.lost;
      left_out_.add(name, item.fault, why, place, item.lost);
      return;
    }
    const std::span<const SampleField> fields = fields_.of(item);
    see_as_row(name, fields, place);
    for (const SampleField& field : fields) {
      // An array without an element has the type of none.
      if (is_array(field.dtype) && field.data.empty()) continue;
      if (std::ranges::find(declared_, field.name) != declared_.end()) continue;
      types_[std::string(field.name)].see(field.dtype, name, place);
    }
  }

  // As the stage that makes the batch sees it, where all between are known to change nothing.
  void see_as_row(const std::string& name, std::span<const SampleField> fields,
                  const std::string& place) {
    if (batch_ == nullptr) return;
    for (const BatchColumn& column : batch_->columns) {
      const auto at = std::ranges::find(fields, column.name, &SampleField::name);
      const std::optional<SampleField> found =
          at == fields.end() ? std::nullopt : std::optional(*at);
      SampleField fitted;
      const Misfit misfit = fit(found, column, room_, fitted);
      if (misfit == Misfit::kNone) continue;
      ++look_.samples_left_out;
      if (misfit == Misfit::kWrongType) misfits_.insert(column.name);
      no_rows_.add(name, SampleFault::kNone, misfit_text(misfit, found, column), place);
      return;
    }
  }

  // Null: the batch has none of this name, or is not known.
  [[nodiscard]] const BatchColumn* column_of(const std::string& field) const {
    if (batch_ == nullptr) return nullptr;
    const auto found = std::ranges::find(batch_->columns, field, &BatchColumn::name);
    return found == batch_->columns.end() ? nullptr : &*found;
  }
  // Does it matter that a field is of several types?
  [[nodiscard]] bool is_of_account(const std::string& field) const {
    if (batch_ == nullptr || misfits_.contains(field)) return true;
    return column_of(field) == nullptr && config_.fields_size() != 0;
  }

  void say_files(const std::vector<std::string>& files) {
    for (const auto& [why, names] : passed_over_) {
      warn(fmt::format("{} of {} files {} not read: {}: {}", names.size(), found_.paths.size(),
                       names.size() == 1 ? "is" : "are", listed(names), why));
    }
    std::map<std::string, std::vector<std::string>> unreadable;
    for (const auto& [path, why] : found_.unreadable) unreadable[why].push_back(shown(path));
    for (const auto& [why, names] : unreadable) {
      warn(fmt::format("{}: it would be left out: {}", listed(names), escaped(why)));
    }
    const std::string_view then =
        stage_.feed.epochs() != 0 ? "a finite run then has no data" : "the feed will wait for some";
    if (!found_.nothing.empty()) {
      warn(fmt::format("there is nothing to read: {}: {}", found_.nothing, then));
    } else if (files.empty() && !found_.paths.empty()) {
      warn(fmt::format("there is nothing to read: none of the files found ({}) is data: {}",
                       found_.paths.size(), then));
    }
    for (const auto& [why, names] : not_opened_) {
      warn(fmt::format("{}: nothing of {} would be read: {}", listed(names),
                       names.size() == 1 ? "it" : "them", escaped(why)));
    }
  }

  // "3 of the first 64 samples would be left out: it has no field 'label' (first at byte 812)"
  void say(const LeftOut::Reason& reason, std::string_view what, std::string_view then) {
    std::uint64_t samples = 0;
    bool whole = true;
    for (const LeftOut::File& file : reason.files) {
      const Read& read = read_[file.name];
      samples += read.samples;
      whole = whole && read.whole;
    }
    const std::string& first = reason.files.front().name;
    const std::size_t others = reason.files.size() - 1;
    const std::string of =
        others == 0 ? first
                    : fmt::format("{} and {} other file{}", first, others, others == 1 ? "" : "s");
    const std::string count =
        what.empty()
            ? fmt::format("{} of {} {}{} samples", reason.count,
                          others == 0 && whole ? "its" : "the", whole ? "" : "first ", samples)
            : fmt::format("{} {}{}", reason.count, what, reason.count == 1 ? "" : "s");
    warn(fmt::format("{}: {} {}: {} (first at {}{})", of, count, then, escaped(reason.text),
                     reason.first_place, others == 0 ? "" : " of " + first));
  }

  void say_left_out() {
    for (const LeftOut::Reason& reason : left_out_.reasons()) say(reason, "", "would be left out");
    for (const LeftOut::Reason& reason : no_rows_.reasons()) {
      say(reason, "", fmt::format("would be left out by stage '{}'", escaped(batch_->stage)));
    }
    for (const LeftOut::Reason& reason : beside_.reasons()) {
      say(reason, "thing", "that would be passed over, and counted");
    }
    for (const LeftOut::Reason& reason : keys_again_.reasons()) {
      say(reason, "sample", "of a key that has come before");
    }
  }

  void say_conflicts() {
    std::size_t conflicts = 0;
    for (const auto& [name, seen] : types_) {
      if (seen.types.size() < 2 || !is_of_account(name)) continue;
      if (conflicts++ >= kConflictsShown) continue;
      const SeenTypes::First& one = seen.types[0];
      const SeenTypes::First& other = seen.types[1];
      SampleDtype dtype = dtype_for(one.dtype, other.dtype);
      if (const BatchColumn* const column = column_of(name); column != nullptr) {
        dtype = dtype_for(dtype, column->dtype);
      }
      warn(
          fmt::format("field '{}' has no declared type, and is {} in {} and {} in {}: say which in "
                      "the source, fields {{ name: {} dtype: \"{}\" }}",
                      escaped(name), dtype_name(one.dtype), one.where, dtype_name(other.dtype),
                      other.where, in_quotes(name), dtype_name(dtype)));
    }
    if (conflicts > kConflictsShown) {
      warn(fmt::format("{} more fields have several types", conflicts - kConflictsShown));
    }
  }

  const StageView& stage_;
  const SampleSourceConfig config_;  // with what the next stages wish
  std::vector<WantedField> numbers_;
  const BatchWish* batch_;  // null: it is not known what becomes of the samples
  const FilesFound& found_;
  Clock::time_point until_;
  std::uint64_t record_bytes_max_ = 0;
  std::vector<std::string> declared_;
  DataLook look_;
  std::map<std::string, std::vector<std::string>> passed_over_;  // names by reason
  std::map<std::string, std::vector<std::string>> not_opened_;   // the same
  std::map<std::string, Read> read_;
  LeftOut left_out_;
  LeftOut no_rows_;
  std::set<std::string> misfits_;  // columns with a field of another type
  std::vector<std::byte> room_;
  LeftOut beside_;
  LeftOut keys_again_;
  std::map<std::string, SeenTypes> types_;
  ItemFields fields_;
};

}  // namespace

std::optional<DataLook> look_at_source(const StageView& stage) {
  const FileFinder* const finder = stage.links.input("input").said.find(kFileFinder);
  if (finder == nullptr) return std::nullopt;
  static const Clock::time_point began = Clock::now();
  const Clock::time_point until = std::min(Clock::now() + kTime, began + kTimeOfAll);
  const FilesFound found = finder->find(kFilesFound, until - kTime / 2);
  return SourceLook(stage, found, until).look();
}

}  // namespace ringfeed
