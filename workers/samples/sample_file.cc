#include "workers/samples/sample_file.h"

#include <array>

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

std::vector<WantedField> wanted_fields(const SampleSourceConfig& config) {
  std::vector<WantedField> wanted;
  for (const SampleFieldConfig& field : config.fields()) {
    wanted.push_back({field.name(), field.has_as() ? field.as() : field.name(),
                      field.has_dtype() ? dtype_named(field.dtype()) : std::nullopt});
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
