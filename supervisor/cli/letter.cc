#include "supervisor/cli/letter.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "ringfeed/shm/quote.h"
#include "supervisor/group/plan_question.h"

namespace ringfeed::cli {
namespace {

constexpr const char* kAboutEnding = ".json";
constexpr const char* kRecordEnding = ".record";

Result<std::string> read_file(const std::filesystem::path& path) {
  const auto refused = [&](const std::error_code& why) {
    return Error(
        why == std::errc::no_such_file_or_directory ? ErrorCode::kNotFound : ErrorCode::kIo,
        fmt::format("{}: cannot be read: {}", path.string(), why.message()));
  };
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(path, failed);
  if (failed) return refused(failed);
  if (!std::filesystem::is_regular_file(status)) {
    return Error(ErrorCode::kIo, fmt::format("{}: cannot be read: not a file", path.string()));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed) return refused(failed);
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string bytes(size, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(size));
  if (!in) return refused({errno != 0 ? errno : EIO, std::generic_category()});
  return bytes;
}

// The fields of a letter, each of its type; the first that is not makes all of it damaged.
class Fields {
 public:
  explicit Fields(const nlohmann::json& about) : about_(about) {}

  void text(const char* name, std::string& to, bool optional = false) {
    const nlohmann::json* const value = find(name, optional);
    if (value == nullptr) return;
    if (!value->is_string()) return refuse(name);
    to = value->get<std::string>();
  }
  template <typename Number>
  void number(const char* name, Number& to, bool optional = false) {
    const nlohmann::json* const value = find(name, optional);
    if (value != nullptr) number(name, *value, to);
  }
  void lineage(std::uint64_t (&to)[2]) {
    const nlohmann::json* const value = find("lineage", false);
    if (value == nullptr) return;
    if (!value->is_array() || value->size() != 2) return refuse("lineage");
    number("lineage", (*value)[0], to[0]);
    number("lineage", (*value)[1], to[1]);
  }
  [[nodiscard]] const std::string& refused() const { return refused_; }

 private:
  template <typename Number>
  void number(const char* name, const nlohmann::json& value, Number& to) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::numeric_limits<Number>::max()) {
      return refuse(name);
    }
    to = static_cast<Number>(value.get<std::uint64_t>());
  }
  const nlohmann::json* find(const char* name, bool optional) {
    const auto found = about_.find(name);
    if (found != about_.end()) return &*found;
    if (!optional) refuse(name);
    return nullptr;
  }
  void refuse(const char* name) {
    if (refused_.empty()) refused_ = name;
  }

  const nlohmann::json& about_;
  std::string refused_;
};

}  // namespace

Result<nlohmann::json> read_about(const std::filesystem::path& about) {
  const Result<std::string> text = read_file(about);
  if (!text) return text.error();
  nlohmann::json parsed = nlohmann::json::parse(*text, nullptr, false);
  if (!parsed.is_object()) {
    return Error(ErrorCode::kDamaged,
                 fmt::format("{}: is damaged: not a JSON object", about.string()));
  }
  return parsed;
}

std::vector<std::string> describe_records(const std::vector<std::filesystem::path>& files,
                                          const std::string& worker) {
  constexpr int kPatienceMs = 10'000;
  std::vector<std::string> texts(files.size());
  std::string paths;
  for (const std::filesystem::path& file : files) {
    paths += std::filesystem::absolute(file).string() + '\0';
  }
  std::string answer;
  try {
    answer = process::ask_text(worker, "--describe", paths, kPatienceMs);
  } catch (const Error&) {
    return texts;  // what is known without is said all the same
  }
  std::size_t at = 0;
  for (std::string& text : texts) {
    const std::size_t end = answer.find('\0', at);
    if (end == std::string::npos) break;
    text = escaped_lines(answer.substr(at, end - at));
    at = end + 1;
  }
  return texts;
}

Result<Letter> read_letter(const std::filesystem::path& file) {
  if (file.extension() != kRecordEnding && file.extension() != kAboutEnding) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: is not a dead letter: give the path of a {} file, as listed by "
                             "'ringfeed dead-letters'",
                             file.string(), kRecordEnding));
  }
  Letter letter;
  letter.file = std::filesystem::path(file).replace_extension(kRecordEnding);
  const std::filesystem::path about_file =
      std::filesystem::path(file).replace_extension(kAboutEnding);
  Result<std::string> bytes = read_file(letter.file);
  if (!bytes) return bytes.error();
  letter.bytes = std::move(*bytes);
  const Result<nlohmann::json> about = read_about(about_file);
  if (!about) return about.error();

  std::uint64_t record_bytes = 0;
  std::string checksum;
  Fields fields(*about);
  fields.text("stage", letter.stage);
  fields.text("node", letter.node);
  fields.number("lane", letter.lane);
  fields.text("port", letter.port);
  fields.number("ring", letter.ring);
  fields.lineage(letter.lineage);
  fields.number("user", letter.user);
  fields.number("bytes", record_bytes);
  fields.number("deaths", letter.deaths);
  fields.text("cause", letter.cause);
  fields.text("xxh3", checksum, true);
  fields.number("seed", letter.seed, true);
  fields.text("config", letter.config, true);
  if (!fields.refused().empty()) {
    return Error(ErrorCode::kDamaged,
                 fmt::format("{}: is damaged: '{}' is missing or has an impossible value",
                             about_file.string(), fields.refused()));
  }
  if (record_bytes != letter.bytes.size()) {
    return Error(ErrorCode::kDamaged,
                 fmt::format("{}: is damaged: it has {} bytes, but {} were set aside",
                             letter.file.string(), letter.bytes.size(), record_bytes));
  }
  const std::string found =
      fmt::format("{:016x}", ::XXH3_64bits(letter.bytes.data(), letter.bytes.size()));
  if (!checksum.empty() && checksum != found) {
    return Error(
        ErrorCode::kDamaged,
        fmt::format(
            "{}: is damaged: the checksum of its bytes is {}, but was {} when they were set aside",
            letter.file.string(), found, checksum));
  }
  return letter;
}

}  // namespace ringfeed::cli
