// Passes on the sources whose file has a name as wanted, and leaves the others out.
//
//   input, output  sources  between the loader and a pool, an extractor or a splitter
//   arena          chunks of the source at hand that are through, one word
//   left out       a file that no `include` fits, or an `exclude` does: files_left_out
//
// A file keeps its name, so one that is left out never had a chunk behind this stage that would
// have to be taken back.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "workers/kit/sort_key.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/records.h"

namespace ringfeed {
namespace {

using Patterns = std::vector<std::string>;

bool fits_one_of(const Patterns& patterns, const std::string& name) noexcept {
  return std::ranges::any_of(patterns, [&name](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
  });
}

class ChunkFilter final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : passed(layout.word()) {}
    Word passed;  // chunks of the source at hand
  };

  explicit ChunkFilter(const StageContext& context)
      : state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        in_(context.input("input")),
        out_(context.output("output")),
        chunks_(context.counter("chunks")),
        files_left_out_(context.counter("files_left_out")) {
    const ChunkFilterConfig& own = context.config.chunk_filter();
    include_.assign(own.include().begin(), own.include().end());
    exclude_.assign(own.exclude().begin(), own.exclude().end());
  }

  StepStatus step(Step& step) noexcept override {
    const std::optional<Record> record = step.peek(in_);
    if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
    if (record->user == kScanCompleteRecord) {
      if (!step.put(out_, {}, {.user = kScanCompleteRecord})) return StepStatus::kNoRoom;
      return step.consume(*record);
    }
    SourceRecord source{};
    RF_CHECK(record->bytes.size() >= sizeof source, record->bytes.size());
    std::memcpy(&source, record->bytes.data(), sizeof source);
    const std::span<const std::byte> path = record->bytes.last(source.path_bytes);
    const std::string name(sort_key({reinterpret_cast<const char*>(path.data()), path.size()}));
    if ((!include_.empty() && !fits_one_of(include_, name)) || fits_one_of(exclude_, name)) {
      // The parts of a huge tar are one file.
      if (source.first_chunk == 0) step.count(files_left_out_);
      return step.consume(*record);
    }
    // As many as the output takes in one record: its queue may be smaller than that of the loader.
    const std::uint64_t done = step.load(state_.passed);
    const std::uint64_t room_max = std::min(record->bytes.size(), step.record_bytes_max(out_));
    const std::uint64_t fit = (room_max - sizeof source - path.size()) / sizeof(ChunkPlace);
    const std::uint64_t end = std::min<std::uint64_t>(source.chunk_count, done + fit);
    const std::uint64_t bytes = sizeof source + (end - done) * sizeof(ChunkPlace) + path.size();
    const std::span<std::byte> room = step.reserve(out_, bytes);
    if (room.empty()) return StepStatus::kNoRoom;
    const SourceRecord part{source.first_chunk + done, static_cast<std::uint32_t>(end - done),
                            source.path_bytes};
    std::memcpy(room.data(), &part, sizeof part);
    std::memcpy(room.data() + sizeof part,
                record->bytes.data() + sizeof source + done * sizeof(ChunkPlace),
                (end - done) * sizeof(ChunkPlace));
    std::memcpy(room.data() + bytes - path.size(), path.data(), path.size());
    step.put_reserved(out_, bytes, {.tag = {record->tag[0], record->tag[1]}, .user = kFileRecord});
    step.count(chunks_, end - done);
    if (end < source.chunk_count) {
      step.store(state_.passed, end);
      return StepStatus::kDone;
    }
    if (done != 0) step.store(state_.passed, 0);
    return step.consume(*record);
  }

  void forget(Step& step, const Record&) noexcept override { step.store(state_.passed, 0); }

 private:
  State state_;
  InPort in_;
  OutPort out_;
  Counter chunks_;
  Counter files_left_out_;
  Patterns include_;
  Patterns exclude_;
};

void refuse_empty(const char* field, const google::protobuf::RepeatedPtrField<std::string>& given,
                  std::vector<Problem>& problems) {
  for (int i = 0; i < given.size(); ++i) {
    if (!given[i].empty() && given[i].find('/') == std::string::npos) continue;
    problems.push_back(
        {fmt::format("{}[{}]", field, i),
         fmt::format(
             "\"{}\" cannot match a file name; give a pattern for the name alone, e.g. \"*.tar\"",
             given[i])});
  }
}

}  // namespace

StageType chunk_filter_type() {
  StageType type;
  type.kind = "chunk_filter";
  type.inputs = {{"input", "sources"}};
  type.outputs = {{"output", "sources"}};
  type.counters = {
      {"chunks", "Chunks passed on."},
      {"files_left_out", "Files left out because of their names."},
  };
  type.problems = [](const StageView& stage) {
    const ChunkFilterConfig& own = stage.config.chunk_filter();
    std::vector<Problem> problems;
    if (own.include_size() + own.exclude_size() == 0) {
      problems.push_back({"include",
                          "neither include nor exclude is given; say which files to "
                          "pass on, e.g. include: \"*.tar\""});
    }
    refuse_empty("include", own.include(), problems);
    refuse_empty("exclude", own.exclude(), problems);
    if (own.overflow_behavior() != BLOCK) {
      problems.push_back({"overflow_behavior",
                          "dropping would lose all chunks of a file, or the mark that the scan is "
                          "complete: use BLOCK here"});
    }
    return problems;
  };
  type.nodes = [](const StageView& stage) {
    NodeSpec node;
    StateLayout layout;
    (void)ChunkFilter::State(layout);
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {
        output_spec(stage.config.chunk_filter(), "sources", 4 * kMiB, UnitRule::kFollow)};
    node.weight = 0.01;
    node.steps_per_commit = 4;
    node.create = [](const StageContext& context) {
      return std::make_unique<ChunkFilter>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "filter" chunk_filter { input: "loader" include: "*.gz" exclude: "*-broken.*" } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
