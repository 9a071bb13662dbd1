#include "workers/samples/sample_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "proto/config.pb.h"
#include "workers/samples/json_sample.h"

namespace ringfeed {
namespace {

using Format = SampleSourceConfig::Format;

struct Ending {
  std::string_view ending;
  Format format;
};
constexpr std::array kEndings = std::to_array<Ending>({{".jsonl", SampleSourceConfig::JSONL},
                                                       {".jsonlines", SampleSourceConfig::JSONL},
                                                       {".ndjson", SampleSourceConfig::JSONL},
                                                       {".json", SampleSourceConfig::JSON},
                                                       {".txt", SampleSourceConfig::TEXT},
                                                       {".text", SampleSourceConfig::TEXT},
                                                       {".tar", SampleSourceConfig::TAR},
                                                       {".tgz", SampleSourceConfig::TAR},
                                                       {".npy", SampleSourceConfig::NPY},
                                                       {".npz", SampleSourceConfig::NPZ},
                                                       {".parquet", SampleSourceConfig::PARQUET},
                                                       {".pq", SampleSourceConfig::PARQUET},
                                                       {".arrow", SampleSourceConfig::ARROW},
                                                       {".feather", SampleSourceConfig::ARROW},
                                                       {".ipc", SampleSourceConfig::ARROW},
                                                       {".csv", SampleSourceConfig::CSV},
                                                       {".tsv", SampleSourceConfig::CSV}});
constexpr std::array<std::string_view, 4> kPackings = {".gz", ".zst", ".bz2", ".xz"};
// What editors and downloads leave beside a file until they are done with it.
constexpr std::array<std::string_view, 9> kLeftovers = {
    "~", ".bak", ".orig", ".swp", ".tmp", ".part", ".partial", ".crdownload", ".download"};

// Marks with which files begin, or which they have at `at`.
struct Mark {
  std::string_view mark;
  std::size_t at;
  Format format;
};
constexpr std::array kMarks = std::to_array<Mark>({{"PAR1", 0, SampleSourceConfig::PARQUET},
                                                   {"ARROW1", 0, SampleSourceConfig::ARROW},
                                                   {"FEA1", 0, SampleSourceConfig::ARROW},
                                                   {"\x93NUMPY", 0, SampleSourceConfig::NPY},
                                                   {"PK\x03\x04", 0, SampleSourceConfig::NPZ},
                                                   {"ustar", 257, SampleSourceConfig::TAR}});
// So much of a file is looked at: a line of JSON that is longer is a line.
constexpr std::size_t kHeadBytes = 64 * 1024;

// The name of the file, in small letters.
std::string name_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  std::string name(path);
  std::ranges::transform(name, name.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return name;
}

// The first bytes of an open file, as it is unpacked; fewer if it cannot be read further.
std::string head_of(int fd) {
  std::string head;
  const Result<formats::Packing> packing = formats::packing_of(fd);
  if (!packing) return head;
  formats::ByteStream stream(fd, *packing);
  std::size_t have = 0;
  for (head.resize(kHeadBytes); have < head.size();) {
    const auto room = std::as_writable_bytes(std::span(head).subspan(have));
    const Result<std::size_t> got = stream.read(room);
    if (!got || *got == 0) break;
    have += *got;
  }
  head.resize(have);
  return head;
}

constexpr std::string_view kSpace = " \t\r\n";

// Behind a byte order mark and space.
std::string_view content_of(std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  head.remove_prefix(std::min(head.find_first_not_of(kSpace), head.size()));
  return head;
}

// Arrow's streams have no mark: they begin with -1 and the bytes of the schema, eight at a time.
bool is_arrow_stream(std::string_view head) {
  std::uint32_t begin[2];
  if (head.size() < sizeof begin) return false;
  std::memcpy(begin, head.data(), sizeof begin);
  constexpr std::uint32_t kSchemaBytesMax = 1 << 28;
  return begin[0] == 0xffffffff && begin[1] != 0 && begin[1] % 8 == 0 && begin[1] < kSchemaBytesMax;
}

// Of what a file named .json begins with.
Format lines_or_document(std::string_view head) {
  head = content_of(head);
  const std::size_t end = head.find('\n');
  if (head.starts_with('[')) return SampleSourceConfig::JSON;
  if (!head.starts_with('{') || end == std::string_view::npos) return SampleSourceConfig::JSONL;
  simdjson::dom::parser parser;
  simdjson::dom::element line;
  const bool whole = parser.parse(head.substr(0, end)).get(line) == simdjson::SUCCESS;
  return whole ? SampleSourceConfig::JSONL : SampleSourceConfig::JSON;
}

// By its mark. Lines of it look like text with zeros in it.
bool is_utf16(const SamplePart& part) {
  formats::ByteStream stream(part.fd.get(), part.packing);
  std::array<char, 2> first{};
  for (std::size_t have = 0; have < first.size();) {
    const Result<std::size_t> got =
        stream.read(std::as_writable_bytes(std::span(first).subspan(have)));
    if (!got || *got == 0) return false;
    have += *got;
  }
  const std::string_view mark(first.data(), first.size());
  return mark == "\xff\xfe" || mark == "\xfe\xff";
}

// Unpacks a file once, for the checks alone.
class PackedCheck final : public FileCheck {
 public:
  PackedCheck(const SampleSourceConfig& config, formats::Packing packing, shm::Fd fd)
      : stream_(std::move(fd), packing, 0, config.window_bytes_max()), unpacked_(kPieceBytes) {}

  Result<bool> some() override {
    for (std::uint64_t done = 0; done < kCheckedAtOnce;) {
      const Result<std::size_t> got = stream_.read(unpacked_);
      if (!got) return got.error();
      if (*got == 0) return true;
      done += *got;
    }
    return false;
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
  static constexpr std::uint64_t kCheckedAtOnce = std::uint64_t{16} << 20;
  formats::ByteStream stream_;
  std::vector<std::byte> unpacked_;
};

}  // namespace

std::optional<Format> format_named(std::string_view path) {
  const std::string name = name_of(path);
  std::string_view rest = name;
  for (const std::string_view packed : kPackings) {
    if (rest.ends_with(packed)) {
      rest.remove_suffix(packed.size());
      break;
    }
  }
  for (const Ending& known : kEndings) {
    if (rest.ends_with(known.ending)) return known.format;
  }
  return std::nullopt;
}

std::string_view why_passed_over(const SampleSourceConfig& config, std::string_view path) {
  const std::string name = name_of(path);
  const bool left = std::ranges::any_of(
      kLeftovers, [&](std::string_view ending) { return name.ends_with(ending); });
  if (left || (name.starts_with('#') && name.ends_with('#'))) {
    return "it is a backup, or was not written to its end";
  }
  if (config.format() == SampleSourceConfig::BY_NAME && !format_named(path)) {
    return "its ending is none of data: say with `format` what it holds";
  }
  return "";
}

Beside beside_of(const SampleSourceConfig& config, std::string_view path) {
  const std::optional<Format> named = format_named(path);
  if (config.format() != SampleSourceConfig::BY_NAME || !named) return Beside::kNeither;
  switch (*named) {
    case SampleSourceConfig::JSON:
      return Beside::kMayDescribe;
    case SampleSourceConfig::TEXT:
      return Beside::kNeither;
    default:
      return Beside::kIsDescribed;
  }
}

bool is_one_object(int fd) {
  const std::string read = head_of(fd);
  const std::string_view head = content_of(read);
  if (!head.starts_with('{')) return false;
  if (lines_or_document(head) == SampleSourceConfig::JSON) return true;
  // A line: the only one?
  const std::size_t end = std::min(head.find('\n'), head.size());
  return read.size() < kHeadBytes && head.find_first_not_of(kSpace, end) == std::string_view::npos;
}

Format format_of(const SampleSourceConfig& config, std::string_view path, int fd) {
  if (config.format() != SampleSourceConfig::BY_NAME) return config.format();
  const std::string head = head_of(fd);
  for (const Mark& mark : kMarks) {
    if (head.size() > mark.at && std::string_view(head).substr(mark.at).starts_with(mark.mark)) {
      return mark.format;
    }
  }
  if (is_arrow_stream(head)) return SampleSourceConfig::ARROW;
  const Format named = format_named(path).value_or(SampleSourceConfig::TEXT);
  return named == SampleSourceConfig::JSON ? lines_or_document(head) : named;
}

bool is_table(Format format) noexcept {
  return format == SampleSourceConfig::PARQUET || format == SampleSourceConfig::ARROW ||
         format == SampleSourceConfig::CSV;
}

bool can_be_divided(const SampleSourceConfig& config, std::string_view path, shm::Fd fd) {
  const Result<formats::Packing> packing = formats::packing_of(fd.get());
  if (!packing || *packing != formats::Packing::kPlain) return false;
  const Format format = format_of(config, path, fd.get());
  switch (format) {
    case SampleSourceConfig::TAR:
    case SampleSourceConfig::JSON:
    case SampleSourceConfig::WHOLE_FILE:
      return false;
    case SampleSourceConfig::NPZ:
      // One lane checks it, and reads it then.
      return config.verify() != SampleSourceConfig::BEFORE && can_divide_npz(config, fd.get());
    case SampleSourceConfig::PARQUET:
    case SampleSourceConfig::ARROW:
    case SampleSourceConfig::CSV:
      return can_divide_table(config, format, std::move(fd));
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
  if ((lines || format == SampleSourceConfig::JSON) && is_utf16(part)) {
    return Error{ErrorCode::kUnsupported, "it is UTF-16: write it as UTF-8"};
  }
  if (lines) return open_lines(config, format == SampleSourceConfig::JSONL, std::move(part));
  if (format == SampleSourceConfig::JSON) return open_document(config, std::move(part));
  if (format == SampleSourceConfig::TAR) return open_tar(config, std::move(part));
  if (format == SampleSourceConfig::WHOLE_FILE) return open_whole_file(config, std::move(part));
  if (format == SampleSourceConfig::CSV) return open_table_samples(config, format, std::move(part));
  if (part.packing != formats::Packing::kPlain) {
    return Error{ErrorCode::kDamaged,
                 "it is packed, and its samples lie all over it: unpack it beforehand"};
  }
  switch (format) {
    case SampleSourceConfig::NPZ:
      return open_npz(config, std::move(part));
    case SampleSourceConfig::PARQUET:
    case SampleSourceConfig::ARROW:
      return open_table_samples(config, format, std::move(part));
    default:
      return open_npy(config, std::move(part));
  }
}

Result<std::unique_ptr<FileCheck>> open_check(const SampleSourceConfig& config, Format format,
                                              formats::Packing packing, shm::Fd fd) {
  if (packing != formats::Packing::kPlain && format != SampleSourceConfig::WHOLE_FILE) {
    return std::unique_ptr<FileCheck>(
        std::make_unique<PackedCheck>(config, packing, std::move(fd)));
  }
  if (format == SampleSourceConfig::NPZ) return check_npz(config, std::move(fd));
  return std::unique_ptr<FileCheck>();
}

Status packed_as_named(std::string_view path, Format format, const SamplePart& part) {
  const bool lines = format == SampleSourceConfig::JSONL || format == SampleSourceConfig::TEXT ||
                     format == SampleSourceConfig::CSV;
  const std::string name = name_of(path);
  const bool named = std::ranges::any_of(
      kPackings, [&](std::string_view ending) { return name.ends_with(ending); });
  if (!lines || !named || part.packing != formats::Packing::kPlain) return {};
  std::array<char, 4096> first;
  const ssize_t got = ::pread(part.fd.get(), first.data(), first.size(), 0);
  if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  std::string_view text(first.data(), static_cast<std::size_t>(got));
  // A letter that the end of these bytes cuts is none of the file's.
  for (int cut = 0; cut < 3 && got == std::ssize(first) && !simdjson::validate_utf8(text); ++cut) {
    text.remove_suffix(1);
  }
  const bool controls = std::ranges::any_of(text, [](char c) {
    return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  });
  if (!controls && simdjson::validate_utf8(text)) return {};
  return Error{ErrorCode::kDamaged,
               "its name says that it is packed, but it begins neither like such a file nor like "
               "text: fetch it again"};
}

}  // namespace ringfeed
