#include "workers/samples/sample_proposal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"
#include "workers/io/arrow_readers.h"
#include "workers/samples/sample_look.h"

namespace ringfeed {
namespace {

using Format = SampleSourceConfig::Format;

constexpr std::size_t kFilesTried = 5;
constexpr std::size_t kSamplesTried = 50;  // of each
constexpr std::uint64_t kBatchRows = 32;
// Of a batch (kit/batch_columns.cc); a text is two arrays.
constexpr std::size_t kTextsMax = 8;
constexpr std::size_t kArraysMax = 64;
constexpr std::uint64_t kBytesMaxLeast = 1 << 20;  // what a batch has room for if nothing is said

constexpr std::array<std::string_view, 8> kPictures = {".jpg", ".jpeg", ".png", ".webp",
                                                       ".gif", ".bmp",  ".tif", ".tiff"};

constexpr char kStages[] = R"(
stages {{
  name: "files"
  file_path_provider {{
    directory: {}
{}  }}
}}
stages {{
  name: "samples"
  sample_source {{
    input: "files"
    shuffle_files: true
{}{}  }}
}}
stages {{ name: "shuffled" sample_shuffler {{ input: "samples" size: 10000 }} }}
stages {{
  name: "batches"
  sample_batcher {{
    input: "shuffled"
    batch_size: {}
{}  }}
}}
)";

// What the samples that were read have in a field.
struct SeenField {
  SampleDtype dtype = SampleDtype::kBytes;
  std::vector<std::uint32_t> shape = {};
  std::size_t times = 0;
  std::uint64_t bytes_max = 0;
  std::string problem = {};  // why no array of a batch can be made of it
  bool widened = false;      // whole numbers and others
  bool whole = true;         // bytes in which a whole number is written
};

SampleDtype dtype_of(const SeenField& field) {
  return field.dtype == SampleDtype::kBytes && field.whole ? SampleDtype::kInt64 : field.dtype;
}

struct Seen {
  std::vector<std::string> order = {};
  std::map<std::string, SeenField> fields = {};
  std::size_t samples = 0;
  std::string fault = {};  // of the first sample or file that is of no use
};

bool is_whole_number(std::span<const std::byte> data) {
  const auto* const begin = reinterpret_cast<const char*>(data.data());
  const char* end = begin + data.size();
  while (end != begin && (end[-1] == '\n' || end[-1] == '\r')) --end;
  std::int64_t number = 0;
  const auto read = std::from_chars(begin, end, number);
  return begin != end && read.ec == std::errc() && read.ptr == end;
}

bool is_number(SampleDtype dtype, std::span<const std::uint32_t> shape) {
  return shape.empty() && (dtype == SampleDtype::kInt64 || dtype == SampleDtype::kFloat64);
}

void see(const SampleField& field, Seen& seen) {
  const auto [at, fresh] = seen.fields.try_emplace(std::string(field.name));
  SeenField& known = at->second;
  if (fresh) {
    seen.order.emplace_back(field.name);
    known.dtype = field.dtype;
    known.shape.assign(field.shape.begin(), field.shape.end());
  }
  ++known.times;
  known.bytes_max = std::max<std::uint64_t>(known.bytes_max, field.data.size());
  known.whole = known.whole && is_whole_number(field.data);
  if (!std::ranges::equal(known.shape, field.shape)) {
    known.problem = "its shape is not always the same";
  } else if (known.dtype != field.dtype) {
    if (is_number(known.dtype, known.shape) && is_number(field.dtype, field.shape)) {
      known.dtype = SampleDtype::kFloat64;
      known.widened = true;
    } else {
      known.problem =
          fmt::format("it is {} and {}", dtype_name(known.dtype), dtype_name(field.dtype));
    }
  } else if (std::ranges::find(field.shape, 0U) != field.shape.end()) {
    known.problem = "it is empty";
  }
}

void see_items(SampleFile& file, Seen& seen) {
  SampleFile::Item item{};
  ItemFields fields;
  for (std::size_t i = 0; i < kSamplesTried;) {
    const Result<bool> next = file.next(item);
    if (!next && seen.fault.empty()) seen.fault = next.error().message();
    if (!next || !*next) return;
    if (item.nothing) continue;
    ++i;
    if (item.fault != SampleFault::kNone) {
      if (seen.fault.empty()) seen.fault = item.text;
      continue;
    }
    ++seen.samples;
    for (const SampleField& field : fields.of(item)) see(field, seen);
  }
}

Seen look_into(const SampleSourceConfig& config, const std::vector<std::string>& files) {
  Seen seen;
  const std::size_t tried = std::min(files.size(), kFilesTried);
  for (std::size_t i = 0; i < tried; ++i) {
    const std::string& path = files[i * (files.size() - 1) / std::max<std::size_t>(tried - 1, 1)];
    const Result<WholeFile> file = open_whole(config, path);
    if (file) {
      see_items(*file->samples, seen);
    } else if (seen.fault.empty()) {
      seen.fault = fmt::format("{}: {}", escaped(path), file.error().message());
    }
  }
  return seen;
}

bool is_picture(std::string_view path) {
  std::string ending(path.substr(std::min(path.rfind('.'), path.size())));
  std::ranges::transform(ending, ending.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return std::ranges::find(kPictures, ending) != kPictures.end();
}

// "**/*.jsonl.gz" for each ending that there is.
std::set<std::string> patterns_of(const std::vector<std::string>& files, Format format) {
  std::set<std::string> patterns;
  for (const std::string& file : files) {
    const std::size_t slash = file.rfind('/') + 1;
    // As much of the name as tells what it is.
    for (std::size_t at = file.rfind('.'); at != std::string::npos && at > slash;
         at = file.rfind('.', at - 1)) {
      if (format != SampleSourceConfig::WHOLE_FILE && format_named(file.substr(at)) != format) {
        continue;
      }
      patterns.insert("**/*" + file.substr(at));
      break;
    }
  }
  return patterns;
}

// A batch has room for so many: the first ones.
void leave_out_the_last(Seen& seen) {
  std::size_t texts = 0;
  std::size_t arrays = 0;
  for (const std::string& name : seen.order) {
    SeenField& field = seen.fields.at(name);
    if (!field.problem.empty() || field.times != seen.samples) continue;
    const bool is_text = !is_array(dtype_of(field));
    if (is_text && texts == kTextsMax) {
      field.problem = fmt::format(
          "a batch has at most {} fields of text and bytes; give it instead of another", kTextsMax);
    } else if (arrays + (is_text ? 2 : 1) > kArraysMax) {
      field.problem = fmt::format(
          "a batch has at most {} arrays, and a text is two; give it instead of another",
          kArraysMax);
    } else {
      texts += is_text ? 1 : 0;
      arrays += is_text ? 2 : 1;
    }
  }
}

std::string shapes_of(const SeenField& field) {
  std::string text;
  for (const std::uint32_t size : field.shape) text += fmt::format(" shape: {}", size);
  return text;
}

std::string text_of(const DirectoryLook& look, const std::set<std::string>& patterns,
                    const std::string& found, const std::string& feed, const std::string& file,
                    const Seen& seen, bool whole_files) {
  std::string source;
  std::string batch;
  std::string left_out;
  for (const std::string& name : seen.order) {
    const SeenField& field = seen.fields.at(name);
    const std::string literal = text_literal(name);
    std::string why = field.problem;
    if (why.empty() && field.times != seen.samples) {
      why = fmt::format("{} of {} samples have it; give it a `default`", field.times, seen.samples);
    }
    if (!why.empty()) {
      left_out += fmt::format("    # left out: {}: {}\n", literal, why);
      continue;
    }
    const SampleDtype dtype = dtype_of(field);
    const std::string said = fmt::format(" dtype: \"{}\"", dtype_name(dtype));
    source += fmt::format("    fields {{ name: {}{} }}\n", literal,
                          dtype != field.dtype || field.widened ? said : "");
    std::string most;
    if (!is_array(dtype) && 2 * kBatchRows * field.bytes_max > kBytesMaxLeast) {
      most = fmt::format(" bytes_max: {}", 2 * kBatchRows * field.bytes_max);
    }
    batch +=
        fmt::format("    fields {{ name: {}{}{}{} }}\n", literal, said, shapes_of(field), most);
  }
  if (whole_files) {
    source =
        "    # `data` has a file as it is: decode it in a stage of the kind python, or in the "
        "trainer.\n"
        "    format: WHOLE_FILE\n" +
        source;
  }
  std::string files;
  for (const std::string& pattern : patterns) {
    files += fmt::format("    pattern: {}\n", text_literal(pattern));
  }
  return fmt::format(
             "# Written for {}: {}.\n"
             "# The fields are those of the first samples of some files.\n"
             "#\n"
             "#     ringfeed run {}\n"
             "feed: {}",
             escaped(look.directory), escaped(found), escaped(file), text_literal(feed)) +
         fmt::format(kStages, text_literal(look.directory), files, source, left_out, kBatchRows,
                     batch);
}

}  // namespace

std::optional<Proposal> propose_samples(const DirectoryLook& look, const ProposalWish& wish) {
  SampleSourceConfig config;
  std::map<Format, std::vector<std::string>> by_format;
  for (const std::string& file : look.files) {
    const std::optional<Format> format =
        is_picture(file) ? SampleSourceConfig::WHOLE_FILE : format_named(file);
    config.set_format(format.value_or(SampleSourceConfig::BY_NAME));
    if (format && why_passed_over(config, file).empty()) by_format[*format].push_back(file);
  }
  if (by_format.empty()) return std::nullopt;
  // Text and documents lie beside data of other kinds, and say something of it.
  const auto rank = [](const auto& one) {
    const bool aside =
        one.first == SampleSourceConfig::TEXT || one.first == SampleSourceConfig::JSON;
    return std::pair(!aside, one.second.size());
  };
  const auto most = std::ranges::max_element(by_format, {}, rank);
  const std::vector<std::string>& files = most->second;
  // A dictionary or notes beside files of another kind are none of it.
  if (most->first == SampleSourceConfig::TEXT && 2 * files.size() <= look.files.size()) {
    return std::nullopt;
  }
  Proposal proposal;
  proposal.feed = wish.feed.empty() ? "samples" : wish.feed;
  if (const auto readers = formats::arrow_readers(); is_table(most->first) && !readers) {
    proposal.problem = readers.error().message();
    return proposal;
  }
  const bool whole_files = most->first == SampleSourceConfig::WHOLE_FILE;
  config.set_format(whole_files ? SampleSourceConfig::WHOLE_FILE : SampleSourceConfig::BY_NAME);
  Seen seen = look_into(config, files);
  leave_out_the_last(seen);
  std::vector<std::string> fields;
  for (const std::string& name : seen.order) {
    const SeenField& field = seen.fields.at(name);
    if (!field.problem.empty() || field.times != seen.samples) continue;
    fields.push_back(fmt::format("{} ({})", name, dtype_name(dtype_of(field))));
  }
  const std::set<std::string> patterns = patterns_of(files, most->first);
  if (fields.empty() || patterns.empty()) {
    proposal.problem =
        fmt::format("no field that a batch could have was found in the {} ({})",
                    counted(files.size(), "file"), seen.fault.empty() ? "none at all" : seen.fault);
    return proposal;
  }
  proposal.found =
      fmt::format("{} of samples with {}", counted(files.size(), "file"), fmt::join(fields, ", "));
  if (!look.whole) proposal.found = "at least " + proposal.found;
  const std::string file = wish.file.empty() ? proposal.feed + ".textproto" : wish.file;
  proposal.text = text_of(look, patterns, proposal.found, proposal.feed, file, seen, whole_files);
  return proposal;
}

}  // namespace ringfeed
