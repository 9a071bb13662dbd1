#include "workers/inspect/inspect.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
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
#include "workers/bitext/token_sentences.h"
#include "workers/chess/parquet_rows.h"
#include "workers/io/gzip.h"
#include "workers/io/tar.h"
#include "workers/lc0/chunk_index.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/position.h"
#include "workers/lc0/records.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;
using Bytes = std::vector<std::byte>;
namespace fs = std::filesystem;

constexpr std::size_t kListed = 20;
constexpr std::size_t kHeadBytes = 4096;
constexpr std::uint64_t kWholeFileMax = formats::kInflatedBytesMax;
constexpr std::uint64_t kTextMax = std::uint64_t{16} << 20;
constexpr std::string_view kParquetMagic = "PAR1";
constexpr std::string_view kManifest = "manifest.textproto";

// A file that is open for reading.
class File {
 public:
  explicit File(const std::string& path)
      // Not blocking: a pipe that nobody writes to is not waited for.
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status {};
    if (!fd_ || ::fstat(fd_.get(), &status) != 0) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    }
    if (!S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::kIo, fmt::format("{}: is neither a file nor a directory", path));
    }
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  // What is there of [offset, offset + count).
  [[nodiscard]] Bytes read(std::uint64_t offset, std::uint64_t count) const {
    if (offset >= bytes_) return {};
    Bytes out(static_cast<std::size_t>(std::min(count, bytes_ - offset)));
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = ::pread(fd_.get(), out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        throw Error(ErrorCode::kIo, fmt::format("{}: cannot be read at byte {}: {}", path_,
                                                offset + done, std::strerror(errno)));
      }
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    out.resize(done);
    return out;
  }
  [[nodiscard]] Bytes read_whole(std::uint64_t most) const {
    if (bytes_ > most) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("{}: {} bytes are more than one game can have ({})", path_, bytes_, most));
    }
    return read(0, bytes_);
  }

 private:
  std::string path_;
  shm::Fd fd_;
  std::uint64_t bytes_ = 0;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_tar(std::span<const std::byte> head) {
  constexpr std::size_t kMagicAt = 257;
  return head.size() >= formats::kTarBlockBytes && text_of(head).substr(kMagicAt, 5) == "ustar";
}

std::uint32_t first_number(std::span<const std::byte> head) {
  std::uint32_t number = 0;
  if (head.size() >= sizeof number) std::memcpy(&number, head.data(), sizeof number);
  return number;
}

bool is_text(std::span<const std::byte> head) {
  return !head.empty() && std::all_of(head.begin(), head.end(), [](std::byte b) {
    const auto c = std::to_integer<unsigned>(b);
    return c >= ' ' || c == '\t' || c == '\n' || c == '\r';
  });
}

std::string plural(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

class Inspector {
 public:
  explicit Inspector(const Options& options) : options_(options) {
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
  void is(const char* kind, std::string text) {
    out_["kind"] = kind;
    out_["text"] = std::move(text);
  }
  void problem(std::string text) { out_["problems"].push_back(std::move(text)); }

  [[noreturn]] static void refuse(std::string text) {
    throw Error(ErrorCode::kInvalidArgument, std::move(text));
  }

  // Of a path at which there is no file.
  [[nodiscard]] std::string nothing_there() const {
    const std::string& path = options_.path;
    std::error_code failed;
    if (path.ends_with(".bin")) {
      return fmt::format("{}: there is no such file, nor its index {}.idx; check the name", path,
                         path.substr(0, path.size() - 4));
    }
    if (fs::exists(path + ".bin", failed)) {
      return fmt::format(
          "{0}: there is {0}.bin, but not its index {0}.idx; copy the index too, or name another "
          "file",
          path);
    }
    return fmt::format(
        "{0}: there is no such file, and no token file of this name ({0}.idx and {0}.bin); check "
        "the name",
        path);
  }

  void file() {
    std::error_code failed;
    const bool exists = fs::exists(options_.path, failed);
    // Of a token file both names are there, or one that stands for them.
    const std::optional<std::string> alone =
        exists ? std::nullopt : token_prefix(options_.path, "");
    if (alone) return tokens(*alone);
    if (!exists && !failed) refuse(nothing_there());
    const File file(options_.path);
    const Bytes head = file.read(0, kHeadBytes);
    const fs::path path(options_.path);
    if (formats::is_chunk_index(head)) return chunk_index(file);
    const auto prefix = token_prefix(options_.path, text_of(head));
    if (prefix) return tokens(*prefix);
    if (!options_.dictionary.empty()) {
      refuse(
          fmt::format("{}: --dictionary is for token files, and this is not one", options_.path));
    }
    if (path.extension() == ".record" || is_letter(file, path)) return dead_letter(path);
    if (text_of(head).starts_with(kParquetMagic) || path.extension() == ".parquet") {
      return parquet();
    }
    const bool tar = is_tar(head) || path.extension() == ".tar";
    if (!tar && !options_.chunk.empty()) {
      refuse(fmt::format("{}: --chunk is for tars, and this is not one", options_.path));
    }
    if (formats::is_gzip(head)) return gzip(file);
    if (tar) return this->tar(file);
    if (formats::frame_bytes_of_version(first_number(head)) != 0) return raw(file);
    if (configuration(file, head, path)) return;
    is("unknown", "not a file that ringfeed reads or writes");
    const std::string begin = [&] {
      std::string text;
      for (std::size_t i = 0; i < std::min<std::size_t>(head.size(), 8); ++i) {
        text += fmt::format("{}{:02x}", i == 0 ? "" : " ", std::to_integer<unsigned>(head[i]));
      }
      return text.empty() ? std::string("it is empty") : "it begins with " + text;
    }();
    problem(fmt::format(
        "{}: {} bytes, {}: not gzip (1f 8b), not a tar (ustar at byte 257), not a record of "
        "version 3 to 7 (as a number in the first four bytes), not the index of a tar (rfchunks), "
        "not a token file (PREFIX.idx and PREFIX.bin), and not a configuration",
        options_.path, file.bytes(), begin));
  }

  // ---- games ----

  void gzip(const File& file) {
    formats::GzipInflater inflater;
    const Bytes packed = file.read_whole(kWholeFileMax);
    std::span<const std::byte> bytes;
    const formats::GzipOutcome outcome = inflater.inflate(packed, &bytes);
    if (!outcome.ok()) {
      is("gzip_chunk", "a gzip file that cannot be inflated");
      problem(fmt::format("{}: {}", options_.path,
                          formats::gzip_outcome_text(outcome, inflater.inflated_bytes_max())));
      return;
    }
    if (is_tar(bytes)) {
      is("unknown", "a tar inside a gzip file");
      problem(
          fmt::format("{}: a compressed tar is not read: decompress it (gunzip), its games are "
                      "already compressed",
                      options_.path));
      return;
    }
    is("gzip_chunk", "a game in a gzip file");
    game(bytes, file.bytes());
    if (outcome.trailing_bytes != 0) {
      out_["chunk"]["trailing_bytes"] = outcome.trailing_bytes;
    }
  }

  void raw(const File& file) {
    const Bytes bytes = file.read_whole(kWholeFileMax);
    is("raw_chunk", "a game, raw records");
    game(bytes, file.bytes());
  }

  // The records of a game: what is whole of them is shown, also where something is wrong.
  void game(std::span<const std::byte> bytes, std::uint64_t stored_bytes) {
    const formats::ChunkCheck check = formats::check_chunk(bytes);
    std::size_t count = check.frame_count;
    if (!check.usable()) {
      problem(fmt::format("{}: {}", options_.path, formats::chunk_check_text(check)));
      const bool mixed = check.reason == formats::ChunkReason::kMixedRecords ||
                         check.reason == formats::ChunkReason::kWrongResult;
      if (check.frame_bytes != 0) {
        count = (mixed ? check.frame_offset : bytes.size()) / check.frame_bytes;
      }
    }
    out_["chunk"] = {{"version", check.version}, {"input_format", check.input_format},
                     {"records", count},         {"record_bytes", check.frame_bytes},
                     {"bytes", bytes.size()},    {"stored_bytes", stored_bytes},
                     {"usable", check.usable()}};
    if (count == 0) return;
    const auto record_at = [&](std::size_t index) {
      const std::byte* const record = bytes.data() + index * check.frame_bytes;
      if (check.version >= 6) return Bytes(record, record + check.frame_bytes);
      Bytes upgraded(formats::kV6RecordBytes);
      formats::upgrade_record(record, check.version, upgraded.data());
      return upgraded;
    };
    const bool start = is_start_position(record_at(0));
    show_records(count, [&](std::size_t index) {
      return describe_record(record_at(index), {index, check.version, start}, options_.top);
    });
  }

  template <typename Describe>
  void show_records(std::size_t count, const Describe& describe) {
    if (options_.record && *options_.record >= count) {
      refuse(fmt::format("{}: there is no record {}: it has {}, counted from 0", options_.path,
                         *options_.record, plural(count, "record")));
    }
    const std::size_t first = options_.record.value_or(0);
    const std::size_t last = options_.all ? count : first + 1;
    out_["records"] = ordered_json::array();
    for (std::size_t i = first; i < last; ++i) out_["records"].push_back(describe(i));
  }

  // ---- tars ----

  // Records that a chunk of so many bytes can have; 0 if it is not whole records of any version.
  static std::uint64_t records_in(std::uint64_t bytes) {
    for (const std::uint32_t version : {6U, 7U, 5U, 4U, 3U}) {
      const std::size_t size = formats::frame_bytes_of_version(version);
      if (bytes != 0 && bytes % size == 0) return bytes / size;
    }
    return 0;
  }

  void tar(const File& file) {
    const formats::TarIndex index = formats::index_tar(file.fd()).value_or_throw();
    std::vector<const formats::TarMember*> games;
    std::uint64_t others = 0;
    for (const formats::TarMember& member : index.members) {
      if (formats::member_use(member.name) == formats::MemberUse::kNotAChunk) {
        ++others;
      } else {
        games.push_back(&member);
      }
    }
    is("tar", fmt::format("a tar with {}{}", plural(games.size(), "game"),
                          others == 0 ? "" : " and " + plural(others, "other file")));
    for (const formats::TarProblem& found : index.problems) {
      problem(fmt::format("{}: byte {}: {} ({})", options_.path, found.offset, found.text,
                          formats::tar_reason_name(found.reason)));
    }
    if (index.problem_count > index.problems.size()) {
      problem(fmt::format("{}: and {} more", options_.path,
                          index.problem_count - index.problems.size()));
    }
    if (!options_.chunk.empty() || options_.record) return tar_game(file, games);
    const std::size_t listed = options_.all ? games.size() : std::min(games.size(), kListed);
    out_["members"] = ordered_json::array();
    for (std::size_t i = 0; i < listed; ++i) {
      const formats::TarMember& member = *games[i];
      const bool packed = formats::member_use(member.name) == formats::MemberUse::kGzipChunk;
      const std::uint64_t inflated =
          packed ? formats::gzip_uncompressed_bytes(member.last_bytes) : member.data_bytes;
      out_["members"].push_back({{"index", i},
                                 {"name", member.name},
                                 {"offset", member.data_offset},
                                 {"stored_bytes", member.data_bytes},
                                 {"bytes_claimed", inflated},
                                 {"records_claimed", records_in(inflated)}});
    }
    out_["members_omitted"] = games.size() - listed;
  }

  void tar_game(const File& file, const std::vector<const formats::TarMember*>& games) {
    const std::size_t index = chosen(games);
    const formats::TarMember& member = *games[index];
    if (member.data_bytes > kWholeFileMax) {
      refuse(fmt::format("{}: {} bytes of '{}' are more than one game can have", options_.path,
                         member.data_bytes, member.name));
    }
    const Bytes stored = file.read(member.data_offset, member.data_bytes);
    std::span<const std::byte> bytes = stored;
    formats::GzipInflater inflater;
    if (formats::member_use(member.name) == formats::MemberUse::kGzipChunk) {
      const formats::GzipOutcome outcome = inflater.inflate(stored, &bytes);
      if (!outcome.ok()) {
        problem(fmt::format("{}: {}: {}", options_.path, member.name,
                            formats::gzip_outcome_text(outcome, inflater.inflated_bytes_max())));
        return;
      }
    }
    game(bytes, member.data_bytes);
    out_["chunk"]["name"] = member.name;
    out_["chunk"]["index"] = index;
  }

  // By its whole name, the last part of it, or its index.
  [[nodiscard]] std::size_t chosen(const std::vector<const formats::TarMember*>& games) const {
    if (games.empty()) refuse(fmt::format("{}: there is no game in it", options_.path));
    if (options_.chunk.empty()) return 0;
    for (std::size_t i = 0; i < games.size(); ++i) {
      if (games[i]->name == options_.chunk ||
          fs::path(games[i]->name).filename() == options_.chunk) {
        return i;
      }
    }
    std::size_t index = 0;
    const char* const end = options_.chunk.data() + options_.chunk.size();
    const auto [stop, error] = std::from_chars(options_.chunk.data(), end, index);
    if (error != std::errc{} || stop != end) {
      refuse(fmt::format("{}: there is no game '{}' in it", options_.path, options_.chunk));
    }
    if (index >= games.size()) {
      refuse(fmt::format("{}: there is no game {}: it has {}, counted from 0", options_.path, index,
                         games.size()));
    }
    return index;
  }

  void chunk_index(const File&) {
    is("chunk_index", "the index of a tar, as saved by chunk_source_loader");
    const Result<formats::KeptChunkIndex> kept = formats::read_chunk_index(options_.path);
    if (!kept) return problem(kept.error().message());
    const formats::TarIdentity& tar = kept->identity;
    const std::size_t count = kept->index.chunks.size();
    is("chunk_index", fmt::format("an index of {} in {}", plural(count, "game"), tar.path));
    out_["tar"] = {{"path", tar.path},
                   {"bytes", tar.tar_bytes},
                   {"mtime_ns", tar.mtime_ns},
                   {"problems", kept->index.problem_count}};
    const shm::Fd fd(::open(tar.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    bool fits = false;
    if (fd) {
      const Result<formats::TarIdentity> now = formats::identify_tar(fd.get(), tar.path);
      fits = now && *now == tar;
    }
    out_["tar"]["state"] = fits ? "as it was" : fd ? "has changed since" : "cannot be opened";
    const std::size_t listed = options_.all ? count : std::min(count, kListed);
    out_["chunks"] = ordered_json::array();
    for (std::size_t i = 0; i < listed; ++i) {
      const formats::Chunk& chunk = kept->index.chunks[i];
      out_["chunks"].push_back({{"index", i},
                                {"offset", chunk.data_offset},
                                {"stored_bytes", chunk.data_bytes},
                                {"bytes_claimed", chunk.uncompressed_bytes},
                                {"records_claimed", records_in(chunk.uncompressed_bytes)},
                                {"gzip", chunk.is_gzip == 1}});
    }
    out_["chunks_omitted"] = count - listed;
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
       fmt::format("a directory that is not a snapshot (files and folders: {}, .tar: {}, .gz: {})",
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
    const Bytes bytes = File(record.string()).read_whole(kWholeFileMax);
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
    letter_content(bytes, kind, string_of(about, "node"));
  }

  static std::string kind_of(const DataLoaderConfig& config, const std::string& name) {
    for (const ordered_json& stage : stages_of(config)) {
      if (stage["name"] == name) return stage["kind"];
    }
    return {};
  }

  // What a stage of this kind takes, see workers/lc0/records.h.
  void letter_content(std::span<const std::byte> bytes, const std::string& kind,
                      const std::string& node) {
    const bool frames =
        kind == "shuffling_frame_sampler" || kind == "tensor_generator" || kind == "join_positions";
    const bool chunks =
        kind == "chunk_unpacker" || kind == "chunk_validator" || kind == "chunk_rescorer";
    if (frames || chunks) return show_frames(bytes, chunks);
    if (kind == "chunk_source_loader") {
      out_["letter"]["holds"] = fmt::format("the path {}", text_of(bytes));
      return;
    }
    TaskRecord task;
    if (kind == "shuffling_chunk_pool" && !node.empty() && bytes.size() >= sizeof task) {
      std::memcpy(&task, bytes.data(), sizeof task);
      const std::span<const std::byte> path = bytes.subspan(sizeof task);
      if (task.path_bytes <= path.size()) {
        out_["letter"]["holds"] =
            fmt::format("a game to read: {} bytes at byte {} of {}", task.bytes, task.offset,
                        text_of(path.first(task.path_bytes)));
        return;
      }
    }
    SourceRecord source;
    if (bytes.size() >= sizeof source) {
      std::memcpy(&source, bytes.data(), sizeof source);
      const std::uint64_t path_at =
          sizeof source + std::uint64_t{source.chunk_count} * sizeof(ChunkPlace);
      if (path_at <= bytes.size() && bytes.size() - path_at >= source.path_bytes && !kind.empty()) {
        out_["letter"]["holds"] = fmt::format(
            "{} of {}, from number {} on", plural(source.chunk_count, "game"),
            text_of(bytes.subspan(static_cast<std::size_t>(path_at), source.path_bytes)),
            source.first_chunk);
      }
    }
  }

  void show_frames(std::span<const std::byte> bytes, bool chunk) {
    std::size_t at = 0;
    if (chunk) {
      ChunkRecord head;
      if (bytes.size() < sizeof head) return problem("the chunk is too short for its header");
      std::memcpy(&head, bytes.data(), sizeof head);
      at = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_head_bytes(head), bytes.size()));
      out_["letter"]["holds"] =
          fmt::format("{} of a game of {}", plural(head.listed_count, "record"), head.frame_count);
    } else {
      out_["letter"]["holds"] = "one record of a game";
    }
    std::vector<std::pair<Bytes, std::uint32_t>> records;
    while (at < bytes.size()) {
      const std::span<const std::byte> rest = bytes.subspan(at);
      const std::optional<formats::PackedFrameView> frame = formats::view_packed(rest);
      if (!frame || frame->frame_bytes == 0) {
        problem(fmt::format("there is no valid frame at byte {} of the record: damaged", at));
        break;
      }
      Bytes record(formats::kV7RecordBytes);
      record.resize(formats::unpack(rest, record.data()));
      records.emplace_back(std::move(record), frame->origin);
      at += frame->frame_bytes;
    }
    if (records.empty()) return;
    const bool start = chunk && is_start_position(records.front().first);
    show_records(records.size(), [&](std::size_t i) {
      const std::uint32_t origin = records[i].second;
      return describe_record(records[i].first, {i, origin, start}, options_.top);
    });
  }

  void parquet() {
    if (!options_.open_rows) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: a Parquet file; ringfeed-worker-parquet, which reads these, is "
                              "not installed beside ringfeed",
                              options_.path));
    }
    is("parquet", "a Parquet file");
    out_["rows"] = describe_rows(options_.path, options_.open_rows, out_["problems"]);
    out_["text"] = fmt::format(
        "a Parquet file with {} in {}", plural(out_["rows"]["rows"].get<std::uint64_t>(), "row"),
        plural(out_["rows"]["row_groups"].get<std::uint64_t>(), "row group"));
  }

  void tokens(const std::string& prefix) {
    if (!options_.chunk.empty()) {
      refuse(fmt::format("{}: --chunk is for tars, and this is not one", options_.path));
    }
    is("token_file", "a token file that cannot be read");
    ordered_json found = describe_tokens(
        prefix,
        {.dictionary = options_.dictionary, .sentence = options_.record, .all = options_.all},
        out_["problems"]);
    if (found.is_null()) return;
    out_["text"] = fmt::format("a token file of {}, {}",
                               plural(found["sentences"].get<std::uint64_t>(), "sentence"),
                               plural(found["tokens"].get<std::uint64_t>(), "token"));
    out_["tokens"] = std::move(found);
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

  bool configuration(const File& file, std::span<const std::byte> head, const fs::path& path) {
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
    const auto has = [&text](std::string_view word) {
      return text.find(word) != std::string::npos;
    };
    if (has("data_loader") || (has("stage ") && !has("stages "))) {
      is("lczero_configuration", fmt::format("it looks like a configuration of lczero-training: "
                                             "'ringfeed import-lc0 {}' converts it",
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
  ordered_json out_;
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

ordered_json inspect_path(const Options& options) { return Inspector(options).look(); }

int run(int count, char** words) {
  Options options;
  options.open_rows = formats::parquet_opener();
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
    found = inspect_path(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "ringfeed: %s\n", escaped_lines(error.message()).c_str());
    return 1;
  }
  const std::string text =
      options.json ? found.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n"
                   : escaped_lines(as_text(with_plain_names(found)));
  const bool printed = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !printed) return 1;
  for (const ordered_json& problem : found["problems"]) {
    std::fprintf(stderr, "%s\n", escaped(problem.get<std::string>()).c_str());
  }
  return found["problems"].empty() ? 0 : 1;
}

}  // namespace ringfeed::inspect
