// What inspect shows of Lc0's files and of the records that its stages set aside.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/inspect/describers.h"
#include "workers/io/gzip.h"
#include "workers/io/tar.h"
#include "workers/lc0/chunk_index.h"
#include "workers/lc0/domain.h"
#include "workers/lc0/games_text.h"
#include "workers/lc0/lc0_proposal.h"
#include "workers/lc0/lc0_record.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/position.h"
#include "workers/lc0/records.h"

namespace ringfeed {
namespace inspect {
namespace {

using nlohmann::ordered_json;
using Bytes = std::vector<std::byte>;
namespace fs = std::filesystem;

constexpr std::size_t kListed = 20;
// Of a tar: if none of so many members looks like a game, it holds something else.
constexpr std::size_t kLookedAt = 64;
constexpr std::uint64_t kWholeFileMax = formats::kInflatedBytesMax;

std::uint32_t first_number(std::span<const std::byte> head) {
  std::uint32_t number = 0;
  if (head.size() >= sizeof number) std::memcpy(&number, head.data(), sizeof number);
  return number;
}

class Games {
 public:
  Games(const Options& options, Report& report)
      : options_(options), report_(report), out_(report.out) {}

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

  // By its size, and the version where that can be read without inflating.
  static bool looks_like_game(const File& file, const formats::TarMember& member) {
    if (formats::member_use(member.name) == formats::MemberUse::kGzipChunk) {
      return records_in(formats::gzip_uncompressed_bytes(member.last_bytes)) != 0;
    }
    if (records_in(member.data_bytes) == 0) return false;
    const std::uint32_t version = first_number(file.read(member.data_offset, 4));
    return version >= 3 && version <= 7;
  }

  // False: it holds something else than games, and that is not asked for.
  bool tar(const File& file) {
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
    // A damaged tar of games has some that look like it.
    const auto first = std::span(games).first(std::min(games.size(), kLookedAt));
    if (options_.chunk.empty() && !options_.record &&
        std::ranges::none_of(first, [&](const formats::TarMember* member) {
          return looks_like_game(file, *member);
        })) {
      return false;
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
    if (!options_.chunk.empty() || options_.record) {
      tar_game(file, games);
      return true;
    }
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
    return true;
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

  void chunk_index() {
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

  // What a stage of this kind takes, see workers/lc0/records.h.
  bool letter_content(const Letter& letter) {
    const std::span<const std::byte> bytes = letter.bytes;
    const std::string& kind = letter.kind;
    const bool frames =
        kind == "shuffling_frame_sampler" || kind == "tensor_generator" || kind == "join_positions";
    const bool chunks =
        kind == "chunk_unpacker" || kind == "chunk_validator" || kind == "chunk_rescorer";
    if (frames || chunks) {
      show_frames(bytes, chunks);
      return true;
    }
    if (kind == "chunk_source_loader") {
      out_["letter"]["holds"] = fmt::format("the path {}", text_of(bytes));
      return true;
    }
    const bool pool = kind == "shuffling_chunk_pool";
    if (!pool && kind != "chunk_source_splitter" && kind != "simple_chunk_extractor") return false;
    TaskRecord task;
    if (pool && !letter.node.empty() && bytes.size() >= sizeof task) {
      std::memcpy(&task, bytes.data(), sizeof task);
      const std::span<const std::byte> path = bytes.subspan(sizeof task);
      if (task.path_bytes <= path.size()) {
        out_["letter"]["holds"] =
            fmt::format("a game to read: {} bytes at byte {} of {}", task.bytes, task.offset,
                        text_of(path.first(task.path_bytes)));
        return true;
      }
    }
    SourceRecord source;
    if (bytes.size() >= sizeof source) {
      std::memcpy(&source, bytes.data(), sizeof source);
      const std::uint64_t path_at =
          sizeof source + std::uint64_t{source.chunk_count} * sizeof(ChunkPlace);
      if (path_at <= bytes.size() && bytes.size() - path_at >= source.path_bytes) {
        out_["letter"]["holds"] = fmt::format(
            "{} of {}, from number {} on", plural(source.chunk_count, "game"),
            text_of(bytes.subspan(static_cast<std::size_t>(path_at), source.path_bytes)),
            source.first_chunk);
      }
    }
    return true;
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

 private:
  void is(const char* kind, std::string text) { report_.is(kind, std::move(text)); }
  void problem(std::string text) { report_.problem(std::move(text)); }

  const Options& options_;
  Report& report_;
  ordered_json& out_;
};

bool describe_index(const Question& question, Report& report) {
  if (question.file == nullptr || !formats::is_chunk_index(question.head)) return false;
  Games(question.options, report).chunk_index();
  return true;
}

bool describe_games(const Question& question, Report& report) {
  if (question.file == nullptr) return false;
  const File& file = *question.file;
  Games games(question.options, report);
  if (formats::is_gzip(question.head)) {
    games.gzip(file);
  } else if (is_tar(question.head) || fs::path(question.options.path).extension() == ".tar") {
    return games.tar(file);
  } else if (formats::frame_bytes_of_version(first_number(question.head)) != 0) {
    games.raw(file);
  } else {
    return false;
  }
  return true;
}

bool describe_letter(const Letter& letter, const Options& options, Report& report) {
  return Games(options, report).letter_content(letter);
}

}  // namespace
}  // namespace inspect

void add_lc0_describers(inspect::Describers& describers) {
  describers.files.push_back({inspect::Turn::kGuessed, &inspect::describe_games,
                              "not gzip (1f 8b), not a tar (ustar at byte 257), not a record of "
                              "version 3 to 7 (as a number in the first four bytes)"});
  describers.files.push_back(
      {inspect::Turn::kMarked, &inspect::describe_index, "not the index of a tar (rfchunks)"});
  describers.letters.push_back(&inspect::describe_letter);
  describers.texts.push_back(&inspect::games_text);
  describers.kinds.push_back({"lc0", "games of Leela Chess Zero (.gz, .tar)", &propose_lc0});
}

}  // namespace ringfeed
