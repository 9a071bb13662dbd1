#include "workers/lc0/chunk_source_loader.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "workers/io/gzip.h"
#include "workers/lc0/lc0_record.h"

namespace ringfeed {
namespace {

// Frames that so many bytes of records make; 0 if they are not whole records, which the reading
// lane will say. Only one version's size divides the bytes, unless there are thousands of records.
std::uint32_t frames_of(std::uint64_t bytes) noexcept {
  for (const std::uint32_t version : {6U, 7U, 5U, 4U, 3U}) {
    const std::uint64_t frame_bytes = formats::frame_bytes_of_version(version);
    if (bytes % frame_bytes != 0) continue;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(bytes / frame_bytes, std::numeric_limits<std::uint32_t>::max()));
  }
  return 0;
}

// More than any chunk may have stays more (kInflatedBytesMax).
std::uint32_t clamped(std::uint64_t bytes) noexcept {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(bytes, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

ChunkSourceLoader::ChunkSourceLoader(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      out_(context.output("output")),
      sources_(context.counter("sources")),
      chunks_(context.counter("chunks")),
      index_cache_hits_(context.counter("index_cache_hits")),
      tar_problems_(context.counter("tar_problems")),
      extension_(context, "skipped_extension"),
      vanished_(context, "skipped_vanished"),
      unreadable_(context, "skipped_unreadable"),
      empty_(context, "skipped_empty"),
      no_chunks_(context, "skipped_no_chunks"),
      cache_directory_(context.config.chunk_source_loader().cache_directory()) {
  if (cache_directory_.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(cache_directory_, failed);
  if (failed) {
    context_.warn(
        fmt::format("cache_unusable stage={} path={}: {}; tars are read again at each start",
                    context_.stage, cache_directory_, failed.message()));
  }
}

// Lists the file's chunks in places_; false: it was counted as skipped.
bool ChunkSourceLoader::open_source(Step& step, const std::string& path) noexcept {
  places_.clear();
  starved_ = false;
  problem_count_ = 0;
  from_cache_ = false;
  const std::string_view view(path);
  if (!view.ends_with(".gz") && !view.ends_with(".tar")) {
    extension_.skip(step, path, 0, "neither .gz nor .tar");
    return false;
  }
  const Result<shm::Fd> fd = cached_.open(path);
  if (!fd && fd.error().code() == ErrorCode::kBusy) {
    starved_ = true;
    context_.note(fmt::format("waiting for {}: {}", path, fd.error().message()));
    return false;
  }
  if (!fd && fd.error().code() == ErrorCode::kNoMemory) {
    starved_ = true;
    if (starved_occasions_.speak()) {
      context_.warn(
          fmt::format("no_descriptor stage={} count={} path={}: {}; retrying until there is one",
                      context_.stage, starved_occasions_.count(), path, fd.error().message()));
    }
    return false;
  }
  if (!fd) {
    SkipReason& reason = fd.error().code() == ErrorCode::kNotFound ? vanished_ : unreadable_;
    reason.skip(step, path, 0, fd.error().message());
    return false;
  }
  struct stat info {};
  if (::fstat(fd->get(), &info) != 0) {
    unreadable_.skip(step, path, 0, std::strerror(errno));
    return false;
  }
  if (info.st_size == 0) {
    empty_.skip(step, path, 0, "the file is empty");
    return false;
  }
  return view.ends_with(".tar")
             ? open_tar(step, path, fd->get())
             : open_gzip(step, path, fd->get(), static_cast<std::uint64_t>(info.st_size));
}

bool ChunkSourceLoader::open_tar(Step& step, const std::string& path, int fd) noexcept {
  const Result<formats::ChunkIndex> index =
      formats::load_or_build_chunk_index(cache_directory_, fd, path);
  if (!index) {
    unreadable_.skip(step, path, 0, index.error().message());
    return false;
  }
  from_cache_ = index->from_cache;
  problem_count_ = index->problem_count;
  for (const formats::TarProblem& problem : index->problems) {
    if (!problem_occasions_.speak()) continue;
    context_.warn(fmt::format("tar_problem stage={} reason={} count={} path={} offset={}: {}",
                              context_.stage, formats::tar_reason_name(problem.reason),
                              problem_occasions_.count(), path, problem.offset, problem.text));
  }
  for (const formats::Chunk& chunk : index->chunks) {
    places_.push_back({.offset = chunk.data_offset,
                       .bytes = clamped(chunk.data_bytes),
                       .index = static_cast<std::uint32_t>(places_.size()),
                       .frames = frames_of(chunk.uncompressed_bytes),
                       .uses = 0,
                       .flags = chunk.is_gzip != 0 ? kChunkGzip : std::uint16_t{0}});
  }
  if (places_.empty()) {
    count_index(step);
    no_chunks_.skip(step, path, 0, "the tar has no member that is a chunk");
    return false;
  }
  return true;
}

void ChunkSourceLoader::count_index(Step& step) noexcept {
  if (from_cache_) step.count(index_cache_hits_);
  if (problem_count_ != 0) step.count(tar_problems_, problem_count_);
}

bool ChunkSourceLoader::open_gzip(Step& step, const std::string& path, int fd,
                                  std::uint64_t bytes) noexcept {
  std::array<std::byte, 4> ends{};
  std::array<std::byte, 2> begins{};
  if (::pread(fd, begins.data(), begins.size(), 0) < 0 ||
      (bytes >= 4 && ::pread(fd, ends.data(), ends.size(), static_cast<off_t>(bytes - 4)) != 4)) {
    unreadable_.skip(step, path, 0, std::strerror(errno));
    return false;
  }
  // A file that is not gzip at all is taken as records.
  const bool gzip = formats::is_gzip(begins);
  places_.push_back({.offset = 0,
                     .bytes = clamped(bytes),
                     .index = 0,
                     .frames = frames_of(gzip ? formats::gzip_uncompressed_bytes(ends) : bytes),
                     .uses = 0,
                     .flags = gzip ? kChunkGzip : std::uint16_t{0}});
  return true;
}

void ChunkSourceLoader::forget(Step& step, const Record&) noexcept {
  state_.split.forget(step);
  opened_ = false;
}

StepStatus ChunkSourceLoader::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (record->user == kScanCompleteRecord) {
    if (!step.put(out_, {}, {.user = kScanCompleteRecord})) return StepStatus::kNoRoom;
    return step.consume(*record);
  }
  const std::string_view path(reinterpret_cast<const char*>(record->bytes.data()),
                              record->bytes.size());
  const std::uint64_t done = state_.split.done(step);
  if (!opened_ || path_ != path) {
    path_ = path;
    opened_ = false;
    if (!open_source(step, path_)) {
      return starved_ ? StepStatus::kIdle : state_.split.finish(step, *record);
    }
    opened_ = true;
  }
  // A tar that shrank while this lane was dead has nothing more to give.
  const std::uint64_t left = places_.size() - std::min<std::uint64_t>(done, places_.size());
  const std::uint64_t fit =
      (step.record_bytes_max(out_) - sizeof(SourceRecord) - path.size()) / sizeof(ChunkPlace);
  const std::uint64_t count = std::min(left, fit);
  if (count != 0) {
    const std::uint64_t bytes = sizeof(SourceRecord) + count * sizeof(ChunkPlace) + path.size();
    const std::span<std::byte> room = step.reserve(out_, bytes);
    if (room.empty()) return StepStatus::kNoRoom;
    if (done == 0) count_index(step);
    const SourceRecord source{done, static_cast<std::uint32_t>(count),
                              static_cast<std::uint32_t>(path.size())};
    std::memcpy(room.data(), &source, sizeof source);
    std::memcpy(room.data() + sizeof source, places_.data() + done, count * sizeof(ChunkPlace));
    std::memcpy(room.data() + sizeof source + count * sizeof(ChunkPlace), path.data(), path.size());
    step.put_reserved(out_, bytes, {.user = kFileRecord});
    step.count(sources_);
    step.count(chunks_, count);
  }
  if (count == left) opened_ = false;
  return state_.split.advance(step, *record, done + count, done + left);
}

StageType chunk_source_loader_type() {
  StageType type;
  type.kind = "chunk_source_loader";
  type.inputs = {{"input", "files"}};
  type.outputs = {{"output", "sources"}};
  type.counters = {
      {.name = "skipped_files",
       .help = "Files that gave no chunk, for whatever reason.",
       .sum_of = {"skipped_extension", "skipped_vanished", "skipped_unreadable", "skipped_empty",
                  "skipped_no_chunks"}},
      {"skipped_extension", "Files whose extension is not one of chunks."},
      {"skipped_vanished", "Files that were gone before they were read."},
      {"skipped_unreadable", "Files that could not be opened or read."},
      {"skipped_empty", "Files without a byte."},
      {"skipped_no_chunks", "Tar files without a chunk."},
      {"sources", "Sources output; a large file is several."},
      {"chunks", "Chunks in the sources output."},
      {"index_cache_hits", "Files whose index was known from an earlier run."},
      {"tar_problems", "Damaged places in tar files."},
  };
  type.nodes = [](const StageView& stage) {
    const ChunkSourceLoaderConfig& own = stage.config.chunk_source_loader();
    NodeSpec node;
    node.lanes = own.threads();
    node.more_lanes = kMoreThreads;
    node.lanes_max = std::max(own.threads(), own.max_threads());
    StateLayout layout;
    (void)ChunkSourceLoader::State(layout);
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "sources", 4 * kMiB, UnitRule::kFollow)};
    node.weight = 0.02;
    node.steps_per_commit = 4;
    node.create = [](const StageContext& context) {
      return std::make_unique<ChunkSourceLoader>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
