#include "workers/samples/file_describer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"
#include "workers/samples/sample_look.h"
#include "workers/samples/sample_text.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;
using Format = SampleSourceConfig::Format;

// So much of a file is read; of what is larger, this is where the look stops.
constexpr std::uint64_t kBytesRead = std::uint64_t{256} << 20;
constexpr std::chrono::seconds kTimeRead(20);
constexpr std::size_t kSamplesShown = 3;
constexpr std::size_t kFieldsShown = 100;

// A field as the samples have it.
struct FieldSeen {
  struct Type {
    SampleDtype dtype = SampleDtype::kBytes;
    std::vector<std::optional<std::uint32_t>> shape = {};  // none: it varies
    bool axes_vary = false;
    std::uint64_t samples = 0;

    [[nodiscard]] std::string text() const {
      std::string axes;
      for (const std::optional<std::uint32_t>& size : shape) {
        axes += fmt::format("{}{}", axes.empty() ? "" : ",", size ? std::to_string(*size) : "*");
      }
      if (axes_vary) axes = "...";
      return fmt::format("{}{}", dtype_name(dtype), axes.empty() ? "" : "[" + axes + "]");
    }
  };
  std::vector<Type> types = {};
  std::uint64_t samples = 0;
  std::uint64_t bytes_max = 0;

  void see(const SampleField& field) {
    ++samples;
    bytes_max = std::max<std::uint64_t>(bytes_max, field.data.size());
    auto type = std::ranges::find(types, field.dtype, &Type::dtype);
    if (type == types.end()) {
      types.push_back({.dtype = field.dtype, .shape = {field.shape.begin(), field.shape.end()}});
      type = std::prev(types.end());
    }
    ++type->samples;
    if (type->shape.size() != field.shape.size()) {
      type->axes_vary = true;
      return;
    }
    for (std::size_t axis = 0; axis < field.shape.size(); ++axis) {
      if (type->shape[axis] != field.shape[axis]) type->shape[axis].reset();
    }
  }
};

std::string format_name(Format format) {
  switch (format) {
    case SampleSourceConfig::JSONL:
      return "lines of JSON";
    case SampleSourceConfig::JSON:
      return "a document of JSON";
    case SampleSourceConfig::TEXT:
      return "lines of text";
    case SampleSourceConfig::TAR:
      return "a tar of samples";
    case SampleSourceConfig::NPY:
      return "a NumPy array";
    case SampleSourceConfig::NPZ:
      return "NumPy arrays";
    default:
      return "a table";
  }
}

class Look {
 public:
  Look(const Options& options, WholeFile file) : options_(options), file_(std::move(file)) {}

  void read(ordered_json& problems) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point until = Clock::now() + kTimeRead;
    SampleFile::Item item{};
    ItemFields fields;
    while (bytes_ < kBytesRead && Clock::now() < until) {
      const Result<bool> next = file_.samples->next(item);
      if (!next) {
        problems.push_back(
            fmt::format("{}: behind {}: {}", options_.path, place_, next.error().message()));
        damaged_ = true;
        return;
      }
      if (!*next) {
        whole_ = true;
        if (const std::uint64_t rest = file_.samples->trailing_bytes(); rest != 0) {
          problems.push_back(
              fmt::format("{}: {} bytes behind what it holds are nothing that can be read",
                          options_.path, rest));
        }
        return;
      }
      bytes_ += item.bytes;
      place_ = file_.place_text(item.place);
      see(item, fields);
    }
  }

  [[nodiscard]] ordered_json found() const {
    ordered_json out{{"format", format_name(file_.format)},
                     {"packed", file_.packing != formats::Packing::kPlain},
                     {"bytes", file_.bytes},
                     {"bytes_read", bytes_},
                     {"whole", whole_},
                     {"damaged", damaged_},
                     {"samples", samples_},
                     {"left_out", lost_}};
    out["fields"] = ordered_json::array();
    for (std::size_t i = 0; i < std::min(order_.size(), kFieldsShown); ++i) {
      const FieldSeen& field = fields_.at(order_[i]);
      ordered_json types = ordered_json::array();
      for (const FieldSeen::Type& type : field.types) {
        types.push_back({{"type", type.text()}, {"samples", type.samples}});
      }
      out["fields"].push_back({{"name", order_[i]},
                               {"samples", field.samples},
                               {"bytes_max", field.bytes_max},
                               {"types", std::move(types)}});
    }
    out["fields_omitted"] = order_.size() - out["fields"].size();
    out["reasons"] = ordered_json::array();
    for (const LeftOut* kind : {&left_out_, &beside_, &keys_again_}) {
      for (const LeftOut::Reason& reason : kind->reasons()) {
        out["reasons"].push_back({{"count", reason.count},
                                  {"what", kind == &left_out_ ? "left out"
                                           : kind == &beside_ ? "of no sample"
                                                              : "of a key that has come before"},
                                  {"place", reason.first_place},
                                  {"text", reason.text}});
      }
    }
    out["first"] = shown_;
    return out;
  }

  [[nodiscard]] std::string text() const {
    return fmt::format("{}{}: {}{}{}", format_name(file_.format),
                       file_.packing != formats::Packing::kPlain ? ", packed" : "",
                       whole_ ? "" : "at least ", plural(samples_, "sample"),
                       order_.empty() ? "" : " of " + plural(order_.size(), "field"));
  }
  [[nodiscard]] std::uint64_t samples() const noexcept { return samples_; }

 private:
  void see(const SampleFile::Item& item, ItemFields& fields) {
    if (!item.notice.empty()) keys_again_.add("", SampleFault::kNone, item.notice, place_);
    if (item.fault == SampleFault::kNoSample || item.fault == SampleFault::kTrailing) {
      beside_.add("", item.fault, item.text, place_);
      return;
    }
    if (item.fault == SampleFault::kNone && item.nothing) return;
    if (const std::string why = why_left_out(item, ~std::uint64_t{0}); !why.empty()) {
      lost_ += item.lost;
      left_out_.add("", item.fault, why, place_, item.lost);
      return;
    }
    const std::span<const SampleField> all = fields.of(item);
    for (const SampleField& field : all) {
      const auto [at, fresh] = fields_.try_emplace(std::string(field.name));
      if (fresh) order_.emplace_back(field.name);
      at->second.see(field);
    }
    if (is_shown()) show(all);
    ++samples_;
  }

  [[nodiscard]] bool is_shown() const {
    if (options_.record) return samples_ == *options_.record;
    return options_.all || samples_ < kSamplesShown;
  }

  void show(std::span<const SampleField> all) {
    const std::optional<std::uint64_t> bytes = sample_bytes(all);
    if (!bytes) return;
    std::vector<std::byte> record(*bytes);
    write_sample(record, all);
    const std::optional<SampleView> sample = SampleView::open(record);
    if (!sample) return;
    shown_.push_back({{"index", samples_}, {"place", place_}, {"fields", sample_text(*sample)}});
  }

  const Options& options_;
  WholeFile file_;
  std::uint64_t bytes_ = 0;
  bool whole_ = false;
  bool damaged_ = false;  // there is more, and it cannot be read
  std::uint64_t samples_ = 0;
  std::uint64_t lost_ = 0;
  std::string place_ = "its begin";
  std::vector<std::string> order_;
  std::map<std::string, FieldSeen> fields_;
  LeftOut left_out_;
  LeftOut beside_;
  LeftOut keys_again_;
  ordered_json shown_ = ordered_json::array();
};

bool describe(const Question& question, Report& report) {
  const Options& options = question.options;
  const SampleSourceConfig config;
  Result<WholeFile> file = open_whole(config, options.path);
  report.is("samples", "samples that cannot be read");
  if (!file) {
    report.problem(fmt::format("{}: {}", options.path, file.error().message()));
    return true;
  }
  Look look(options, std::move(*file));
  look.read(report.out["problems"]);
  if (options.record && *options.record >= look.samples()) {
    refuse(fmt::format("{}: there is no sample {}: {} were read, counted from 0", options.path,
                       *options.record, look.samples()));
  }
  report.out["text"] = look.text();
  report.out["data"] = look.found();
  return true;
}

}  // namespace

bool describe_named_samples(const Question& question, Report& report) {
  if (question.file == nullptr || !question.options.chunk.empty()) return false;
  const std::optional<Format> format = format_named(question.options.path);
  if (!format || *format == SampleSourceConfig::PARQUET) return false;
  const bool others = *format == SampleSourceConfig::JSON || *format == SampleSourceConfig::TEXT ||
                      *format == SampleSourceConfig::TAR;
  if (others && formats::packing_of(question.head) == formats::Packing::kPlain) return false;
  return describe(question, report);
}

bool describe_other_samples(const Question& question, Report& report) {
  if (question.file == nullptr || question.file->bytes() == 0) return false;
  const SampleSourceConfig config;
  const bool known = format_named(question.options.path).has_value() ||
                     format_of(config, "", question.file->fd()) != SampleSourceConfig::TEXT;
  return known && describe(question, report);
}

void add_table_samples(const Question& question, Report& report) {
  const SampleSourceConfig config;
  if (question.file == nullptr || report.out["kind"] != "parquet") return;
  // What another domain has shown the rows of.
  const ordered_json& rows = report.out["rows"];
  if (rows.contains("games") || rows.contains("variations")) return;
  Result<WholeFile> file = open_whole(config, question.options.path);
  if (!file || file->format != SampleSourceConfig::PARQUET) return;
  Look look(question.options, std::move(*file));
  look.read(report.out["problems"]);
  report.out["data"] = look.found();
}

std::string data_text(const ordered_json& data) {
  std::string text;
  std::size_t width = 0;
  const auto number = [](const ordered_json& value) { return value.get<std::uint64_t>(); };
  for (const ordered_json& field : data["fields"]) {
    width = std::max(width, escaped(field["name"].get<std::string>()).size());
  }
  const std::uint64_t samples = number(data["samples"]);
  for (const ordered_json& field : data["fields"]) {
    std::vector<std::string> types;
    const bool several = field["types"].size() > 1;
    for (const ordered_json& type : field["types"]) {
      types.push_back(type["type"].get<std::string>() +
                      (several ? fmt::format(" in {}", number(type["samples"])) : ""));
    }
    const std::uint64_t have = number(field["samples"]);
    text += fmt::format(
        "  {:<{}}  {}{}\n", escaped(field["name"].get<std::string>()), width,
        fmt::join(types, ", "),
        have == samples ? "" : fmt::format(", {} of {} samples have it", have, samples));
  }
  if (const std::uint64_t more = number(data["fields_omitted"]); more != 0) {
    text += fmt::format("  and {} more\n", more);
  }
  if (data["damaged"].get<bool>()) {
    text += "  what follows cannot be read, and would be left out\n";
  } else if (!data["whole"].get<bool>()) {
    text += fmt::format("  only its first {} bytes were read, as they are unpacked\n",
                        number(data["bytes_read"]));
  }
  if (data["reasons"].empty() && data["whole"].get<bool>()) {
    text += "  nothing would be left out\n";
  }
  for (const ordered_json& reason : data["reasons"]) {
    text += fmt::format(
        "  {} {}: {} (first at {})\n", number(reason["count"]), reason["what"].get<std::string>(),
        escaped(reason["text"].get<std::string>()), reason["place"].get<std::string>());
  }
  for (const ordered_json& sample : data["first"]) {
    text += fmt::format("  sample {}, {}\n", number(sample["index"]),
                        sample["place"].get<std::string>());
    for (const ordered_json& line : sample["fields"]) {
      text += fmt::format("    {}\n", line.get<std::string>());
    }
  }
  return text;
}

}  // namespace ringfeed::inspect
