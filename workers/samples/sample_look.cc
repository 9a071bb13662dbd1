#include "workers/samples/sample_look.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "proto/config.pb.h"
#include "ringfeed/shm/file.h"

namespace ringfeed {
namespace {

constexpr std::size_t kTextsOfFault = 6;

// Without what differs from sample to sample.
std::string without_names(std::string_view text) {
  constexpr std::string_view kOfSample = "sample '";
  constexpr std::string_view kOfKey = "key '";
  std::string kind;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const std::size_t quoted = rest.starts_with(kOfSample) ? kOfSample.size()
                               : rest.starts_with(kOfKey)  ? kOfKey.size()
                                                           : 0;
    if (quoted != 0) {
      kind += rest.substr(0, quoted);
      at += std::min(rest.find('\'', quoted), rest.size());
    } else if (rest.front() >= '0' && rest.front() <= '9') {
      kind += '0';
      at += std::min(rest.find_first_not_of("0123456789"), rest.size());
    } else {
      kind += rest.front();
      ++at;
    }
  }
  return kind;
}

}  // namespace

std::string WholeFile::place_text(std::uint64_t place) const {
  const bool rows = format == SampleSourceConfig::NPZ || is_table(format);
  return fmt::format("{} {}", rows ? "row" : "byte", place);
}

Result<WholeFile> open_whole(const SampleSourceConfig& config, const std::string& path,
                             std::vector<WantedField> numbers) {
  Result<shm::Fd> fd = shm::open_regular(path);
  if (!fd) return fd.error();
  struct stat info {};
  if (::fstat(fd->get(), &info) != 0) return Error{ErrorCode::kIo, "it cannot be examined"};
  const Result<formats::Packing> packing = formats::packing_of(fd->get());
  if (!packing) return packing.error();
  WholeFile file{.format = format_of(config, path, fd->get()),
                 .packing = *packing,
                 .bytes = static_cast<std::uint64_t>(info.st_size)};
  SamplePart part{.fd = std::move(*fd),
                  .packing = *packing,
                  .begin = 0,
                  .end = formats::ByteStream::kToEnd,
                  .file_bytes = file.bytes,
                  .cursor = 0,
                  .path = path,
                  .numbers = std::move(numbers)};
  if (Status named = packed_as_named(path, file.format, part); !named) return named.error();
  Result<std::unique_ptr<SampleFile>> samples =
      open_sample_file(config, file.format, std::move(part));
  if (!samples) return samples.error();
  file.samples = std::move(*samples);
  return file;
}

std::span<const SampleField> ItemFields::of(const SampleFile::Item& item) {
  if (item.head.empty()) return item.fields;
  record_.assign(item.head.begin(), item.head.end());
  record_.insert(record_.end(), item.data.begin(), item.data.end());
  fields_.clear();
  const std::optional<SampleView> sample = SampleView::open(record_);
  for (std::size_t i = 0; sample && i < sample->size(); ++i) fields_.push_back((*sample)[i]);
  return fields_;
}

std::string why_left_out(const SampleFile::Item& item, std::uint64_t record_bytes_max) {
  if (item.fault != SampleFault::kNone) return item.text;
  if (item.nothing) return {};
  const std::optional<std::uint64_t> bytes =
      item.head.empty() ? sample_bytes(item.fields) : item.head.size() + item.data.size();
  if (!bytes) {
    return "no sample can hold it: more than 256 fields (say with `fields` which are wanted), a "
           "name of more than 255 bytes or none, or 4 GiB";
  }
  if (*bytes <= record_bytes_max) return {};
  return fmt::format("a sample of {} bytes does not fit a record of {}: raise queue_bytes", *bytes,
                     record_bytes_max);
}

void LeftOut::add(std::string_view file, SampleFault fault, std::string_view text,
                  std::string_view place, std::uint64_t samples) {
  std::string kind = without_names(text);
  const auto found = known_.find({fault, kind});
  std::size_t at = reasons_.size();
  if (found != known_.end()) {
    at = found->second;
  } else {
    // Of a fault with many texts, the last that was kept stands for the others.
    std::size_t& texts = texts_of_[fault];
    if (texts == kTextsOfFault) kind.clear();
    const auto others = known_.find({fault, kind});
    if (others != known_.end()) {
      at = others->second;
    } else {
      if (texts < kTextsOfFault) ++texts;
      known_.emplace(std::pair(fault, std::move(kind)), at);
      reasons_.push_back({.text = std::string(text), .first_place = std::string(place)});
    }
  }
  Reason& reason = reasons_[at];
  reason.count += samples;
  if (reason.files.empty() || reason.files.back().name != file) {
    reason.files.push_back({std::string(file)});
  }
  reason.files.back().count += samples;
}

}  // namespace ringfeed
