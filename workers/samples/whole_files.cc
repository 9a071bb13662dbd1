// A file as one sample, as it is: what is in it, its path, and the name of the directory that it
// lies in, which is its class in many collections of pictures.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

// What a sample could not have anyway.
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 32;

std::string_view folder_of(std::string_view path) {
  const std::size_t end = path.rfind('/');
  if (end == std::string_view::npos || end == 0) return "";
  path = path.substr(0, end);
  return path.substr(path.rfind('/') + 1);
}

class WholeSample final : public SampleFile {
 public:
  WholeSample(std::vector<WantedField> wanted, SamplePart part)
      : wanted_(std::move(wanted)), part_(std::move(part)), over_(part_.cursor != 0) {}

  Result<bool> next(Item& item) override {
    if (over_) return false;
    over_ = true;
    item = Item{.place = 0, .cursor = 1, .bytes = 0};
    // It may have grown since the epoch came to it.
    struct stat before {};
    if (::fstat(part_.fd.get(), &before) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
    item.bytes = static_cast<std::uint64_t>(before.st_size);
    if (item.bytes >= kFileBytesMax) {
      item.fault = SampleFault::kTooLarge;
      item.text = fmt::format("the file has {} bytes; a sample has less than 4 GiB", item.bytes);
      return true;
    }
    if (Status read = read_whole(item.bytes); !read) return read.error();
    struct stat after {};
    if (::fstat(part_.fd.get(), &after) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
    if (after.st_size != before.st_size || after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
        after.st_mtim.tv_nsec != before.st_mtim.tv_nsec) {
      return Error{ErrorCode::kDamaged, "it was written to while it was read"};
    }
    for (const WantedField& wanted : wanted_) {
      if (!add(wanted, item)) break;
    }
    item.fields = fields_;
    return true;
  }

 private:
  [[nodiscard]] Status read_whole(std::uint64_t bytes) {
    data_.resize(bytes);
    for (std::size_t have = 0; have < data_.size();) {
      const ssize_t got = ::pread(part_.fd.get(), data_.data() + have, data_.size() - have,
                                  static_cast<off_t>(have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
      if (got == 0) return Error{ErrorCode::kDamaged, "it has become shorter meanwhile"};
      have += static_cast<std::size_t>(got);
    }
    return {};
  }

  bool add(const WantedField& wanted, Item& item) {
    const auto put = [&](SampleDtype is, std::string_view text) {
      if (wanted.dtype && *wanted.dtype != is && *wanted.dtype != SampleDtype::kBytes) {
        item.fault = SampleFault::kWrongType;
        item.text = fmt::format("field '{}' of a file is {}, which cannot be {}", wanted.name,
                                dtype_name(is), dtype_name(*wanted.dtype));
        return false;
      }
      fields_.push_back({.name = wanted.as,
                         .dtype = wanted.dtype.value_or(is),
                         .data = std::as_bytes(std::span(text.data(), text.size()))});
      return true;
    };
    if (wanted.name == "data") {
      return put(SampleDtype::kBytes, {reinterpret_cast<const char*>(data_.data()), data_.size()});
    }
    if (wanted.name == "path") return put(SampleDtype::kText, part_.path);
    if (wanted.name == "folder") return put(SampleDtype::kText, folder_of(part_.path));
    if (wanted.default_value) fields_.push_back(wanted.by_default());
    if (!wanted.is_needed()) return true;
    item.fault = SampleFault::kMissingField;
    item.text = fmt::format("a file has no field '{}'; it has data, path and folder", wanted.name);
    return false;
  }

  std::vector<WantedField> wanted_;
  SamplePart part_;
  bool over_;
  std::vector<std::byte> data_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::unique_ptr<SampleFile> open_whole_file(const SampleSourceConfig& config, SamplePart part) {
  std::vector<WantedField> wanted = wanted_fields(config);
  if (wanted.empty()) {
    for (const char* const name : {"data", "path", "folder"}) {
      wanted.push_back({.name = name, .as = name});
    }
  }
  return std::make_unique<WholeSample>(std::move(wanted), std::move(part));
}

}  // namespace ringfeed
