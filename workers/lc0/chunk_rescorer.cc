#include "workers/lc0/chunk_rescorer.h"

#include <bit>
#include <cstring>

#include "workers/lc0/chunk_frames.h"

namespace ringfeed {
namespace {

formats::RescoreOptions options_of(const ChunkRescorerConfig& own) {
  formats::RescoreOptions options;
  options.policy_temperature = static_cast<double>(own.policy_temperature());
  options.policy_offset = static_cast<double>(own.policy_offset());
  options.st_q_theta = static_cast<double>(own.st_q_theta());
  if (own.has_deblunder_threshold()) {
    options.deblunder = {.threshold = static_cast<double>(own.deblunder_threshold()),
                         .width = static_cast<double>(own.deblunder_width())};
  }
  return options;
}

// The most bytes that a rescored frame can have: no policy gets more entries.
std::size_t frame_bytes_max(const formats::PackedFrameView& view, std::uint32_t origin) noexcept {
  return view.kind == formats::PackedKind::kRaw
             ? formats::raw_bytes(origin)
             : formats::packed_bytes(view.policy_entries, origin);
}

}  // namespace

ChunkRescorer::ChunkRescorer(const StageContext& context)
    : context_(context),
      in_(context.input("input")),
      out_(context.output("output")),
      chunks_(context.counter("chunks")),
      frames_(context.counter("frames")),
      plies_left_filled_(context.counter("plies_left_filled")),
      chunks_deblundered_(context.counter("chunks_deblundered")),
      blunders_(context.counter("blunders")),
      policies_kept_(context.counter("policies_kept")),
      chunks_damaged_(context.counter("chunks_damaged")),
      too_large_(context, "skipped_too_large"),
      options_(options_of(context.config.chunk_rescorer())) {}

StepStatus ChunkRescorer::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (!open_whole_chunk(record->bytes, chunk_, views_)) {
    step.count(chunks_damaged_);
    return step.consume(*record);
  }
  const std::uint32_t was = views_.empty() ? 6 : views_[0].origin;
  const std::uint32_t becomes = formats::rescored_origin(was);
  std::uint64_t bytes_max = chunk_head_bytes(chunk_);
  for (const formats::PackedFrameView& view : views_) bytes_max += frame_bytes_max(view, becomes);
  if (bytes_max > step.record_bytes_max(out_)) {
    too_large_.skip_chunk(
        step, chunk_.identity, 0,
        fmt::format("{} bytes do not fit a record of {}: raise queue_bytes of stage '{}' to at "
                    "least {}",
                    bytes_max, step.record_bytes_max(out_), context_.stage,
                    std::bit_ceil(2 * bytes_max)));
    return step.consume(*record);
  }
  const std::span<std::byte> room = step.reserve(out_, bytes_max);
  if (room.empty()) return StepStatus::kNoRoom;

  tails_.clear();
  for (const formats::PackedFrameView& view : views_) tails_.emplace_back(view);
  step.count(plies_left_filled_, formats::fill_plies_left(tails_));
  if (options_.deblunder) {
    const std::size_t blunders = formats::deblunder(tails_, *options_.deblunder);
    step.count(blunders_, blunders);
    step.count(chunks_deblundered_, blunders != 0 ? 1 : 0);
  }
  if (becomes != was) formats::fill_short_term(tails_, options_.st_q_theta);

  const std::uint64_t head_bytes = chunk_head_bytes(chunk_);
  std::memcpy(room.data(), record->bytes.data(), head_bytes);
  std::uint64_t used = head_bytes;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const formats::PackedFrameView& view = views_[i];
    policy_.resize(view.policy_entries);
    if (!policy_.empty()) {
      std::memcpy(policy_.data(), view.policy_values, sizeof policy_[0] * policy_.size());
    }
    if (!formats::reshape_policy(policy_, formats::packed::filler_bits(was), options_)) {
      step.count(policies_kept_);
    }
    const std::size_t bytes =
        formats::repack(view, becomes, tails_[i].bytes(), policy_, room.subspan(used));
    RF_CHECK(bytes != 0, used, room.size());
    used += bytes;
  }
  step.put_reserved(out_, used, {.tag = {record->tag[0], record->tag[1]}, .user = record->user});
  step.count(chunks_);
  step.count(frames_, views_.size());
  return step.consume(*record);
}

StageType chunk_rescorer_type() {
  StageType type;
  type.kind = "chunk_rescorer";
  type.inputs = {{"input", "chunks"}};
  type.outputs = {{"output", "chunks"}};
  type.counters = {
      {"chunks", "Chunks output."},
      {"frames", "Frames of the chunks output."},
      {"plies_left_filled", "Frames that got the number of plies left."},
      {"chunks_deblundered", "Chunks in which a blunder changed targets."},
      {"blunders", "Moves taken for blunders."},
      {"policies_kept", "Frames that kept their policy: nothing would have been left of it."},
      {"chunks_damaged", "Chunks whose record contradicts itself."},
      {"skipped_too_large", "Chunks that do not fit a record of the output."},
  };
  type.problems = [](const StageView& stage) {
    const ChunkRescorerConfig& own = stage.config.chunk_rescorer();
    std::vector<Problem> problems;
    const auto no_tables = [&problems](const char* field, const std::string& paths) {
      if (paths.empty()) return;
      problems.push_back({field,
                          "endgame tables are not supported: leave it out, or let the lc0 rescorer "
                          "correct the files with its tables before they are read here"});
    };
    no_tables("syzygy_paths", own.syzygy_paths());
    no_tables("gaviota_paths", own.gaviota_paths());
    if (own.has_deblunder_threshold() != own.has_deblunder_width()) {
      const bool threshold = own.has_deblunder_threshold();
      problems.push_back({threshold ? "deblunder_threshold" : "deblunder_width",
                          fmt::format("{} is given without {}: results are corrected with both, or "
                                      "not at all; give {}, or remove it",
                                      threshold ? "deblunder_threshold" : "deblunder_width",
                                      threshold ? "deblunder_width" : "deblunder_threshold",
                                      threshold ? "the width" : "the threshold")});
    }
    return problems;
  };
  type.nodes = [](const StageView& stage) {
    return std::vector<NodeSpec>{whole_chunk_node<ChunkRescorer>(stage.config.chunk_rescorer())};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 20000 } }
stages { name: "rescorer" chunk_rescorer { input: "pool" policy_temperature: 1.25 } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
