// A file, or a part of one, as samples: what the lanes of sample_source read, one class for each
// format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "ringfeed/worker/sample.h"
#include "workers/io/byte_stream.h"

namespace ringfeed {

// The byte order mark with which some programs begin what they write; it is no content.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

class SampleFieldConfig;
class SampleSourceConfig;
// NOLINTNEXTLINE(readability-identifier-naming): protobuf's name for it
enum SampleSourceConfig_Format : int;

// Why what was read is no sample.
enum class SampleFault : std::uint8_t {
  kNone,
  kNotJson,       // as a whole, whatever is wanted of it
  kNotAnObject,   // JSON, but no object
  kMissingField,  // or null
  kWrongType,     // cannot be converted
  kTooLarge,      // for any sample, or for line_bytes_max
  kDamaged,       // this one alone; the file goes on
  kNoSample,      // what is in a tar beside samples
  kTrailing,      // behind the end of an archive
};

// What a field is where the data lacks it.
struct FieldDefault {
  std::vector<std::uint32_t> shape = {};
  std::vector<std::byte> data = {};
};

// A field to be taken.
struct WantedField {
  std::string name;                                // in the data
  std::string as;                                  // in the sample
  std::optional<SampleDtype> dtype = {};           // none: as it is
  std::optional<FieldDefault> default_value = {};  // of `dtype`
  bool may_lack = false;                           // without a default: a sample goes without it

  // Does a sample without it count as one that is not there?
  [[nodiscard]] bool is_needed() const noexcept { return !default_value && !may_lack; }
  // Only of one that has a default; a view of it.
  [[nodiscard]] SampleField by_default() const noexcept {
    return {
        .name = as, .dtype = *dtype, .shape = default_value->shape, .data = default_value->data};
  }
};

class SampleFile {
 public:
  struct Item {
    std::uint64_t place;   // lineage: a byte of the file as it is unpacked; of tables the row
    std::uint64_t cursor;  // of the next item
    std::uint64_t bytes;   // that it took in the file
    SampleFault fault = SampleFault::kNone;
    std::string text = {};                     // what is wrong, for the log
    std::uint64_t lost = 1;                    // samples that the fault costs
    std::span<const SampleField> fields = {};  // until the next call
    bool nothing = false;                      // an empty line: neither a sample nor a fault
    std::uint64_t end = 0;    // of the bytes that it was read from; 0: place + bytes
    std::string notice = {};  // to be counted and said, whatever becomes of it
    // Instead of fields: the record, one behind the other; until the next call.
    std::span<const std::byte> head = {};
    std::span<const std::byte> data = {};
  };

  SampleFile() = default;
  SampleFile(const SampleFile&) = delete;
  SampleFile& operator=(const SampleFile&) = delete;
  virtual ~SampleFile() = default;

  // Sets the item to the next one; false: the end of the part, and nothing is set. kIo, kDamaged:
  // nothing more can be read.
  [[nodiscard]] virtual Result<bool> next(Item& item) = 0;
  // After an error of next(): the samples that it costs, where the file says how many there are.
  [[nodiscard]] virtual std::uint64_t lost() const { return 1; }

  // Items that end before this place are right, as far as the checks of the format can tell: those
  // have been made. It grows. What it lies behind is never given before it is known.
  [[nodiscard]] virtual std::uint64_t checked() const { return ~std::uint64_t{0}; }
  // Samples of other parts that are in doubt if the file is damaged behind its last item.
  [[nodiscard]] virtual std::uint64_t elsewhere() const { return 0; }
  // Behind the last item: bytes of the file that nothing is made of.
  [[nodiscard]] virtual std::uint64_t trailing_bytes() const { return 0; }
};

// The checks of a format, all made before anything is read.
class FileCheck {
 public:
  FileCheck() = default;
  FileCheck(const FileCheck&) = delete;
  FileCheck& operator=(const FileCheck&) = delete;
  virtual ~FileCheck() = default;

  // Goes on for some megabytes. True: everything has been looked at, and is right. Errors are those
  // of SampleFile::next().
  [[nodiscard]] virtual Result<bool> some() = 0;
};

// What a file holds, by its name alone; nothing: its ending is none of data.
[[nodiscard]] std::optional<SampleSourceConfig_Format> format_named(std::string_view path);
// Why a file that was found is not read; "": it is. By its name alone.
[[nodiscard]] std::string_view why_passed_over(const SampleSourceConfig& config,
                                               std::string_view path);
// Whether a file may describe others that lie beside it, or be described: by its name alone, which
// counts only with BY_NAME.
enum class Beside : std::uint8_t { kNeither, kMayDescribe, kIsDescribed };
[[nodiscard]] Beside beside_of(const SampleSourceConfig& config, std::string_view path);
// Why one that describes is passed over.
inline constexpr std::string_view kBesideData =
    "it is one object beside data: give `format`, or a pattern, to read it";
// Is an open file one object of JSON, and nothing else?
[[nodiscard]] bool is_one_object(int fd);
// What an open file that is read holds: by the configuration, by its first bytes, or by its name.
[[nodiscard]] SampleSourceConfig_Format format_of(const SampleSourceConfig& config,
                                                  std::string_view path, int fd);
// Whether samples of an open file can be found from its middle on.
[[nodiscard]] bool can_be_divided(const SampleSourceConfig& config, std::string_view path,
                                  shm::Fd fd);

// A part of an open file. `cursor`: 0, or that of the item before the one to begin with.
struct SamplePart {
  shm::Fd fd;
  formats::Packing packing = formats::Packing::kPlain;
  std::uint64_t begin = 0;  // what begins here or behind,
  std::uint64_t end = 0;    // and before this
  std::uint64_t file_bytes = 0;
  std::uint64_t cursor = 0;
  std::string path = {};
  // Where the configuration names no fields: as what those of a tar are wanted.
  std::vector<WantedField> numbers = {};
};
// The file cannot be read at all: kDamaged; kNotFound: it lacks a field; kUnsupported: a field is
// of another type; others: it, or this program, is not as it has to be.
[[nodiscard]] Result<std::unique_ptr<SampleFile>> open_sample_file(const SampleSourceConfig& config,
                                                                   SampleSourceConfig_Format format,
                                                                   SamplePart part);

// Lines whose file is named as a packed one, and neither is one nor text, are what damage has left
// of it: kDamaged. kIo: the system's reason.
[[nodiscard]] Status packed_as_named(std::string_view path, SampleSourceConfig_Format format,
                                     const SamplePart& part);
// None: the format has no checks, or they are made of each item before it is given. Takes the file.
[[nodiscard]] Result<std::unique_ptr<FileCheck>> open_check(const SampleSourceConfig& config,
                                                            SampleSourceConfig_Format format,
                                                            formats::Packing packing, shm::Fd fd);

// Each of these is one format's; open_sample_file() chooses.
[[nodiscard]] std::unique_ptr<SampleFile> open_lines(const SampleSourceConfig& config, bool json,
                                                     SamplePart part);
[[nodiscard]] std::unique_ptr<SampleFile> open_document(const SampleSourceConfig& config,
                                                        SamplePart part);
[[nodiscard]] std::unique_ptr<SampleFile> open_whole_file(const SampleSourceConfig& config,
                                                          SamplePart part);
[[nodiscard]] Result<std::unique_ptr<SampleFile>> open_tar(const SampleSourceConfig& config,
                                                           SamplePart part);
[[nodiscard]] Result<std::unique_ptr<SampleFile>> open_npy(const SampleSourceConfig& config,
                                                           SamplePart part);
[[nodiscard]] Result<std::unique_ptr<SampleFile>> open_npz(const SampleSourceConfig& config,
                                                           SamplePart part);
[[nodiscard]] Result<std::unique_ptr<SampleFile>> open_table_samples(
    const SampleSourceConfig& config, SampleSourceConfig_Format format, SamplePart part);
// Can parts of it be read? False, too, if it cannot be read at all: then that is said once.
[[nodiscard]] bool can_divide_npz(const SampleSourceConfig& config, int fd);
[[nodiscard]] Result<std::unique_ptr<FileCheck>> check_npz(const SampleSourceConfig& config,
                                                           shm::Fd fd);
[[nodiscard]] bool can_divide_table(const SampleSourceConfig& config,
                                    SampleSourceConfig_Format format, shm::Fd fd);
// Formats whose files Arrow reads (io/arrow_readers.h).
[[nodiscard]] bool is_table(SampleSourceConfig_Format format) noexcept;

// RF_CHECK: default_of() has no error for any of them.
[[nodiscard]] std::vector<WantedField> wanted_fields(const SampleSourceConfig& config);
// Of a field that has one. kConfiguration: what is wrong with it.
[[nodiscard]] Result<FieldDefault> default_of(const SampleFieldConfig& field);

}  // namespace ringfeed
