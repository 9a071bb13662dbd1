// Files as they would be read, for those who only look: `ringfeed check`, `inspect` and `init`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "workers/samples/sample_file.h"

namespace ringfeed {

// A file from its first sample on.
struct WholeFile {
  SampleSourceConfig_Format format;
  formats::Packing packing = formats::Packing::kPlain;
  std::uint64_t bytes = 0;
  std::unique_ptr<SampleFile> samples = {};

  // "byte 812", "row 3": a place of SampleFile::Item.
  [[nodiscard]] std::string place_text(std::uint64_t place) const;
};
// `numbers`: as SamplePart. Errors are those of shm::open_regular() and open_sample_file().
[[nodiscard]] Result<WholeFile> open_whole(const SampleSourceConfig& config,
                                           const std::string& path,
                                           std::vector<WantedField> numbers = {});

// The fields of an item that is a sample; until the next call, or that of SampleFile::next().
class ItemFields {
 public:
  [[nodiscard]] std::span<const SampleField> of(const SampleFile::Item& item);

 private:
  std::vector<std::byte> record_;
  std::vector<SampleField> fields_;
};

// Why an item gives no sample; "": it does, or is nothing. `record_bytes_max`: of the queue that it
// would go into.
[[nodiscard]] std::string why_left_out(const SampleFile::Item& item,
                                       std::uint64_t record_bytes_max);

// What is left out, by reason, over all files that were looked at.
class LeftOut {
 public:
  struct File {
    std::string name;
    std::uint64_t count = 0;
  };
  struct Reason {
    std::string text;         // of the first
    std::string first_place;  // in the first of `files`
    std::uint64_t count = 0;
    std::vector<File> files = {};
  };

  // Texts that differ in numbers and in names of samples alone are one reason; so are those of one
  // fault, once it has several.
  void add(std::string_view file, SampleFault fault, std::string_view text, std::string_view place,
           std::uint64_t samples = 1);
  [[nodiscard]] const std::vector<Reason>& reasons() const noexcept { return reasons_; }

 private:
  std::vector<Reason> reasons_;
  std::map<std::pair<SampleFault, std::string>, std::size_t> known_;
  std::map<SampleFault, std::size_t> texts_of_;
};

}  // namespace ringfeed
