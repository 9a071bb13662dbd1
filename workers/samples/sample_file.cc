#include "workers/samples/sample_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <array>

#include "proto/config.pb.h"
#include "workers/samples/json_sample.h"

namespace ringfeed {
namespace {

using Format = SampleSourceConfig::Format;

struct Ending {
  std::string_view ending;
  Format format;
};
constexpr std::array<Ending, 7> kEndings = {{{".jsonl", SampleSourceConfig::JSONL},
                                             {".ndjson", SampleSourceConfig::JSONL},
                                             {".json", SampleSourceConfig::JSONL},
                                             {".tar", SampleSourceConfig::TAR},
                                             {".npy", SampleSourceConfig::NPY},
                                             {".npz", SampleSourceConfig::NPZ},
                                             {".parquet", SampleSourceConfig::PARQUET}}};

}  // namespace

Format format_of(const SampleSourceConfig& config, std::string_view path) {
  if (config.format() != SampleSourceConfig::BY_NAME) return config.format();
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (path.ends_with(packed)) path.remove_suffix(packed.size());
  }
  for (const Ending& known : kEndings) {
    if (path.ends_with(known.ending)) return known.format;
  }
  return SampleSourceConfig::TEXT;
}

bool can_be_divided(const SampleSourceConfig& config, std::string_view path, shm::Fd fd) {
  const Result<formats::Packing> packing = formats::packing_of(fd.get());
  if (!packing || *packing != formats::Packing::kPlain) return false;
  switch (format_of(config, path)) {
    case SampleSourceConfig::TAR:
      return false;
    case SampleSourceConfig::NPZ:
      return can_divide_npz(config, fd.get());
    case SampleSourceConfig::PARQUET:
      return can_divide_parquet(config, std::move(fd));
    default:
      return true;
  }
}

Result<FieldDefault> default_of(const SampleFieldConfig& field) {
  const auto refuse = [&](std::string_view why) {
    return Error{ErrorCode::kConfiguration,
                 fmt::format("default is \"{}\", {}", field.default_(), why)};
  };
  const std::optional<SampleDtype> dtype =
      field.has_dtype() ? dtype_named(field.dtype()) : std::nullopt;
  if (!dtype) return refuse("which needs a dtype to say what it means");
  if (!is_array(*dtype)) {
    const std::string_view text = field.default_();
    if (*dtype == SampleDtype::kText && !simdjson::validate_utf8(text)) {
      return refuse("which is no UTF-8");
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text.data(), text.size()));
    return FieldDefault{.data = {bytes.begin(), bytes.end()}};
  }
  const std::string line = "{\"_\":" + field.default_() + "}";
  const std::string padded = line + std::string(simdjson::SIMDJSON_PADDING, ' ');
  JsonSamples reader({{.name = "_", .as = "_", .dtype = dtype}});
  const JsonSamples::Outcome read = reader.read(std::string_view(padded).substr(0, line.size()));
  if (read.fault != SampleFault::kNone) {
    return refuse(
        fmt::format("which is no {}; give numbers as JSON writes them, such as 0, NaN or "
                    "[0, 0]",
                    dtype_name(*dtype)));
  }
  const SampleField& value = read.fields.front();
  return FieldDefault{.shape = {value.shape.begin(), value.shape.end()},
                      .data = {value.data.begin(), value.data.end()}};
}

std::vector<WantedField> wanted_fields(const SampleSourceConfig& config) {
  std::vector<WantedField> wanted;
  for (const SampleFieldConfig& field : config.fields()) {
    WantedField& one = wanted.emplace_back(
        WantedField{.name = field.name(),
                    .as = field.has_as() ? field.as() : field.name(),
                    .dtype = field.has_dtype() ? dtype_named(field.dtype()) : std::nullopt,
                    .may_lack = field.on_missing() == SampleFieldConfig::LEAVE_OUT});
    if (!field.has_default_()) continue;
    Result<FieldDefault> value = default_of(field);
    RF_CHECK(value);
    one.default_value = std::move(*value);
  }
  return wanted;
}

Result<std::unique_ptr<SampleFile>> open_sample_file(const SampleSourceConfig& config,
                                                     Format format, SamplePart part) {
  const bool lines = format == SampleSourceConfig::JSONL || format == SampleSourceConfig::TEXT;
  if (lines) return open_lines(config, format == SampleSourceConfig::JSONL, std::move(part));
  if (part.packing != formats::Packing::kPlain) {
    return Error{ErrorCode::kDamaged,
                 "it is packed, and its samples lie all over it: unpack it beforehand"};
  }
  switch (format) {
    case SampleSourceConfig::TAR:
      return open_tar(config, std::move(part));
    case SampleSourceConfig::NPZ:
      return open_npz(config, std::move(part));
    case SampleSourceConfig::PARQUET:
      return open_parquet(config, std::move(part));
    default:
      return open_npy(config, std::move(part));
  }
}

}  // namespace ringfeed
