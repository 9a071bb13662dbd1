#include "workers/inspect/inspect.h"

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "proto/snapshot.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "workers/io/gzip.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;
using Bytes = std::vector<std::byte>;
namespace fs = std::filesystem;

constexpr std::size_t kHeadBytes = 4096;
constexpr std::uint64_t kLetterMax = formats::kInflatedBytesMax;
constexpr std::uint64_t kTextMax = std::uint64_t{16} << 20;
constexpr std::string_view kManifest = "manifest.textproto";

bool is_text(std::span<const std::byte> head) {
  return !head.empty() && std::all_of(head.begin(), head.end(), [](std::byte b) {
    const auto c = std::to_integer<unsigned>(b);
    return c >= ' ' || c == '\t' || c == '\n' || c == '\r';
  });
}

class Inspector {
 public:
  Inspector(const Options& options, const Describers& describers)
      : options_(options), describers_(describers) {
    out_ = {{"path", options.path}, {"kind", "unknown"}, {"text", ""}};
    out_["problems"] = ordered_json::array();
  }

  ordered_json look() {
    std::error_code failed;
    if (fs::is_directory(options_.path, failed)) {
      directory();
    } else {
      file();
    }
    return std::move(out_);
  }

 private:
  void is(const char* kind, std::string text) { report_.is(kind, std::move(text)); }
  void problem(std::string text) { report_.problem(std::move(text)); }

  // Of a path at which there is no file.
  [[nodiscard]] std::string nothing_there() const {
    for (const FileDescriber& describer : describers_.files) {
      if (describer.nothing_there == nullptr) continue;
      std::string text = describer.nothing_there(options_.path);
      if (!text.empty()) return text;
    }
    return fmt::format("{}: there is no such file; check the name", options_.path);
  }

  // Whether a domain knows the file.
  bool described(Turn turn, const File* file, std::span<const std::byte> head) {
    const Question question{options_, file, head};
    const bool known = std::ranges::any_of(describers_.files, [&](const FileDescriber& describer) {
      return describer.turn == turn && describer.describe(question, report_);
    });
    for (const auto& add : describers_.more) {
      if (known) add(question, report_);
    }
    return known;
  }

  void file() {
    std::error_code failed;
    const bool exists = fs::exists(options_.path, failed);
    if (!exists && described(Turn::kMarked, nullptr, {})) return;
    if (!exists && !failed) refuse(nothing_there());
    const File file(options_.path);
    const Bytes head = file.read(0, kHeadBytes);
    const fs::path path(options_.path);
    if (described(Turn::kMarked, &file, head)) return;
    if (!options_.dictionary.empty()) {
      refuse(
          fmt::format("{}: --dictionary is for token files, and this is not one", options_.path));
    }
    if (path.extension() == ".record" || is_letter(file, path)) return dead_letter(path);
    if (described(Turn::kNamed, &file, head)) return;
    if (!options_.chunk.empty() && !is_tar(head) && path.extension() != ".tar") {
      refuse(fmt::format("{}: --chunk is for tars, and this is not one", options_.path));
    }
    if (described(Turn::kGuessed, &file, head)) return;
    if (configuration(file, head, path, false)) return;
    if (described(Turn::kContent, &file, head)) return;
    if (configuration(file, head, path, true)) return;
    is("unknown", "not a file that ringfeed reads or writes");
    const std::string begin = [&] {
      std::string text;
      for (std::size_t i = 0; i < std::min<std::size_t>(head.size(), 8); ++i) {
        text += fmt::format("{}{:02x}", i == 0 ? "" : " ", std::to_integer<unsigned>(head[i]));
      }
      return text.empty() ? std::string("it is empty") : "it begins with " + text;
    }();
    std::string signs;
    for (const FileDescriber& describer : describers_.files) {
      if (!describer.signs.empty()) signs += fmt::format("{}, ", describer.signs);
    }
    signs += signs.empty() ? "not a configuration" : "and not a configuration";
    problem(fmt::format("{}: {} bytes, {}: {}", options_.path, file.bytes(), begin, signs));
  }

  // ---- what ringfeed leaves behind ----

  void directory() {
    const fs::path manifest = fs::path(options_.path) / kManifest;
    std::error_code failed;
    if (fs::exists(manifest, failed)) return snapshot(manifest);
    std::map<std::string, std::uint64_t> endings;
    std::uint64_t count = 0;
    for (const std::string& name : shm::names_in(options_.path).value_or_throw()) {
      ++count;
      ++endings[fs::path(name).extension().string()];
    }
    is("unknown",
       fmt::format("a directory that is not a snapshot (files and folders: {}, .tar: {}, "
                   ".gz: {})",
                   count, endings[".tar"], endings[".gz"]));
    problem(fmt::format("{}: looked for {}; give a file in it", options_.path, kManifest));
  }

  void snapshot(const fs::path& manifest_file) {
    is("snapshot", "a snapshot of a feed");
    const File file(manifest_file.string());
    const Bytes bytes = file.read_whole(kTextMax);
    const std::string_view text = text_of(bytes);
    const std::size_t line = text.find('\n');
    const std::string_view body = line == std::string_view::npos ? "" : text.substr(line + 1);
    const std::string sum = fmt::format("{:016x}", ::XXH3_64bits(body.data(), body.size()));
    if (line == std::string_view::npos || !text.substr(0, line).ends_with(sum)) {
      problem(fmt::format("{}: fails its checksum ({}): damaged, or changed by hand",
                          manifest_file.string(), sum));
    }
    SnapshotManifest manifest;
    const std::string mistake = parse_text(body, manifest);
    if (!mistake.empty()) {
      return problem(fmt::format("{}:{}", manifest_file.string(), mistake));
    }
    ordered_json about = {{"feed", manifest.feed()},
                          {"taken_at", manifest.taken_at()},
                          {"newest_batch", manifest.newest_batch()},
                          {"seed", manifest.seed()},
                          {"ringfeed_version", manifest.ringfeed_version()},
                          {"abi", fmt::format("{}.{}", manifest.abi_major(), manifest.abi_minor())},
                          {"feed_id", manifest.feed_id()}};
    about["groups"] = ordered_json::array();
    for (const SnapshotGroup& group : manifest.groups()) {
      about["groups"].push_back({{"name", group.name()}, {"next_batch", group.next_batch()}});
    }
    std::uint64_t total = 0;
    about["segments"] = ordered_json::array();
    for (const SnapshotSegment& segment : manifest.segments()) {
      total += segment.bytes();
      const fs::path part = manifest_file.parent_path() / segment.file();
      std::error_code failed;
      const std::uintmax_t size = fs::file_size(part, failed);
      if (failed) {
        problem(fmt::format("{}: cannot be read: {}", part.string(), failed.message()));
      } else if (size > segment.bytes()) {
        problem(fmt::format("{}: has {} bytes but should have at most {}: damaged", part.string(),
                            size, segment.bytes()));
      }
      about["segments"].push_back(
          {{"name", segment.name()}, {"bytes", segment.bytes()}, {"file", segment.file()}});
    }
    about["bytes"] = total;
    about["stages"] = stages_of(manifest.config());
    is("snapshot", fmt::format("a snapshot of feed {} after batch {}, of {}", manifest.feed(),
                               manifest.newest_batch(), manifest.taken_at()));
    out_["manifest"] = std::move(about);
  }

  // What is known of a dead letter, or nothing if it is none.
  static ordered_json read_letter(const File& file) {
    if (file.bytes() > kTextMax) return nullptr;
    const Bytes bytes = file.read(0, file.bytes());
    ordered_json about = ordered_json::parse(text_of(bytes), nullptr, false);
    const bool letter = about.is_object() && about.contains("stage") && about.contains("port") &&
                        about.contains("deaths");
    return letter ? about : ordered_json(nullptr);
  }
  static bool is_letter(const File& file, const fs::path& path) {
    return path.extension() == ".json" && !read_letter(file).is_null();
  }
  static std::string string_of(const ordered_json& about, const char* name) {
    const auto found = about.find(name);
    return found != about.end() && found->is_string() ? found->get<std::string>() : "";
  }

  void dead_letter(const fs::path& path) {
    const fs::path record = fs::path(path).replace_extension(".record");
    const fs::path facts = fs::path(path).replace_extension(".json");
    is("dead_letter", "a record that was set aside");
    std::error_code failed;
    ordered_json about;
    if (fs::is_regular_file(facts, failed)) about = read_letter(File(facts.string()));
    if (about.is_null()) {
      return problem(fmt::format("{}: the information about the record is missing or damaged",
                                 facts.string()));
    }
    const std::string stage = string_of(about, "stage");
    const std::string cause = string_of(about, "cause");
    const std::string config = string_of(about, "config");
    about.erase("config");  // long, and what is wanted of it is in what follows
    DataLoaderConfig message;
    std::string kind;
    if (!config.empty() && parse_text(config, message).empty()) kind = kind_of(message, stage);
    about["stage_kind"] = kind;
    is("dead_letter",
       fmt::format("a record that killed stage {}: {}", stage, cause.substr(0, cause.find('\n'))));
    out_["letter"] = about;
    if (!fs::is_regular_file(record, failed)) {
      return problem(fmt::format("{}: the record is missing", record.string()));
    }
    const Bytes bytes = File(record.string()).read_whole(kLetterMax);
    const auto size = about.find("bytes");
    if (size != about.end() && size->is_number_unsigned() &&
        size->get<std::uint64_t>() != bytes.size()) {
      problem(fmt::format("{}: has {} bytes, but {} were set aside: damaged", record.string(),
                          bytes.size(), size->get<std::uint64_t>()));
    }
    const std::string sum = fmt::format("{:016x}", ::XXH3_64bits(bytes.data(), bytes.size()));
    const std::string kept = string_of(about, "xxh3");
    if (!kept.empty() && kept != sum) {
      problem(fmt::format("{}: fails its checksum ({}, but it was {}): damaged", record.string(),
                          sum, kept));
    }
    const Letter letter{kind, string_of(about, "node"), bytes};
    for (const auto& describe : describers_.letters) {
      if (describe(letter, options_, report_)) break;
    }
  }

  static std::string kind_of(const DataLoaderConfig& config, const std::string& name) {
    for (const ordered_json& stage : stages_of(config)) {
      if (stage["name"] == name) return stage["kind"];
    }
    return {};
  }

  // ---- configurations ----

  // "" or the first mistake: "LINE:COLUMN: what".
  static std::string parse_text(std::string_view text, google::protobuf::Message& message) {
    struct First : google::protobuf::io::ErrorCollector {
      void AddError(int line, google::protobuf::io::ColumnNumber column,
                    const std::string& what) override {
        if (mistake.empty()) mistake = fmt::format("{}:{}: {}", line + 1, column + 1, what);
      }
      std::string mistake;
    } first;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&first);
    const bool parsed = parser.ParseFromString(std::string(text), &message);
    return parsed || !first.mistake.empty() ? first.mistake : "1:1: it is not understood";
  }

  static ordered_json stages_of(const DataLoaderConfig& config) {
    ordered_json stages = ordered_json::array();
    for (const StageConfig& stage : config.stages()) {
      ordered_json one = {{"name", stage.name()}, {"kind", ""}, {"input", ordered_json::array()}};
      std::vector<const google::protobuf::FieldDescriptor*> fields;
      stage.GetReflection()->ListFields(stage, &fields);
      for (const auto* field : fields) {
        if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
        one["kind"] = field->name();
        const google::protobuf::Message& inner = stage.GetReflection()->GetMessage(stage, field);
        const auto* input = inner.GetDescriptor()->FindFieldByName("input");
        if (input == nullptr) continue;
        const google::protobuf::Reflection& reflection = *inner.GetReflection();
        if (!input->is_repeated()) {
          if (reflection.HasField(inner, input)) {
            one["input"].push_back(reflection.GetString(inner, input));
          }
          continue;
        }
        for (int i = 0; i < reflection.FieldSize(inner, input); ++i) {
          one["input"].push_back(reflection.GetRepeatedString(inner, input, i));
        }
      }
      stages.push_back(std::move(one));
    }
    return stages;
  }

  // `guessed`: one with mistakes, or of another program, by its words.
  bool configuration(const File& file, std::span<const std::byte> head, const fs::path& path,
                     bool guessed) {
    const bool serialized = path.extension() == ".binpb" || path.extension() == ".pb";
    if ((!serialized && !is_text(head)) || file.bytes() > kTextMax) return false;
    const Bytes bytes = file.read(0, file.bytes());
    const std::string text(text_of(bytes));
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return false;
    DataLoaderConfig config;
    std::string mistake;
    if (serialized) {
      if (!config.ParseFromString(text)) return false;
    } else if (text[first] == '{') {
      const auto parsed = google::protobuf::util::JsonStringToMessage(text, &config);
      if (!parsed.ok()) mistake = std::string(parsed.message());
    } else {
      mistake = parse_text(text, config);
    }
    if (mistake.empty() && config.stages_size() > 0) {
      is("ringfeed_configuration",
         fmt::format("a configuration of ringfeed with {}; 'ringfeed check {}' says more",
                     plural(static_cast<std::uint64_t>(config.stages_size()), "stage"),
                     options_.path));
      out_["feed"] = config.has_feed() ? config.feed() : path.stem().string();
      out_["stages"] = stages_of(config);
      return true;
    }
    if (!guessed) return false;
    const auto has = [&text](std::string_view word) {
      return text.find(word) != std::string::npos;
    };
    if (has("data_loader") || (has("stage ") && !has("stages "))) {
      is("lczero_configuration",
         fmt::format("it looks like a configuration of lczero-training: 'ringfeed import-lc0 {}' "
                     "converts it",
                     options_.path));
      return true;
    }
    if (has("stages")) {
      is("ringfeed_configuration", "a configuration of ringfeed with a mistake");
      problem(fmt::format("{}:{}; 'ringfeed check' lists all mistakes", options_.path, mistake));
      return true;
    }
    return false;
  }

  const Options& options_;
  const Describers& describers_;
  ordered_json out_;
  Report report_{out_};
};

bool take_number(std::string_view word, std::string_view name, std::size_t& to) {
  if (!word.starts_with(name)) return false;
  const std::string_view digits = word.substr(name.size());
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
  return error == std::errc{} && stop == digits.data() + digits.size();
}

// Names of files and of what is in them, each on one line: whoever packs a tar chooses them.
ordered_json with_plain_names(ordered_json found) {
  for (auto& [key, value] : found.items()) {
    const bool is_name = key == "name" || key == "path" || key == "file";
    if (value.is_structured()) {
      value = with_plain_names(value);
    } else if (value.is_string() && is_name) {
      value = escaped(value.get<std::string>());
    }
  }
  return found;
}

}  // namespace

ordered_json inspect_path(const Options& options, const Describers& describers) {
  return Inspector(options, describers).look();
}

int run(int count, char** words, const Describers& describers) {
  Options options;
  for (int i = 0; i < count; ++i) {
    const std::string_view word(words[i]);
    std::size_t number = 0;
    if (i == 0) {
      options.path = word;
    } else if (take_number(word, "--record=", number)) {
      options.record = number;
    } else if (take_number(word, "--top=", number)) {
      options.top = number;
    } else if (word.starts_with("--chunk=")) {
      options.chunk = word.substr(std::strlen("--chunk="));
    } else if (word.starts_with("--dictionary=")) {
      options.dictionary = word.substr(std::strlen("--dictionary="));
    } else if (word == "--all") {
      options.all = true;
    } else if (word == "--json") {
      options.json = true;
    } else {
      std::fprintf(stderr, "ringfeed inspect: '%s' is not understood\n", words[i]);
      return 2;
    }
  }
  ordered_json found;
  try {
    found = inspect_path(options, describers);
  } catch (const Error& error) {
    std::fprintf(stderr, "ringfeed: %s\n", escaped_lines(error.message()).c_str());
    return 1;
  }
  const std::string text =
      options.json ? found.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n"
                   : escaped_lines(as_text(with_plain_names(found), describers));
  const bool printed = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !printed) {
    std::fprintf(stderr, "ringfeed: standard output cannot be written to: %s\n",
                 std::strerror(errno));
    return 1;
  }
  for (const ordered_json& problem : found["problems"]) {
    std::fprintf(stderr, "%s\n", escaped(problem.get<std::string>()).c_str());
  }
  return found["problems"].empty() ? 0 : 1;
}

}  // namespace ringfeed::inspect
