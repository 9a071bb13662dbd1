#include "workers/kit/neighbours.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace ringfeed {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string_view stage_of(std::string_view reference) {
  return reference.substr(0, reference.find('.'));
}

}  // namespace

const StageConfig* stage_named(const DataLoaderConfig& feed, std::string_view reference) {
  for (const StageConfig& stage : feed.stages()) {
    if (stage.name() == stage_of(reference)) return &stage;
  }
  return nullptr;
}

Reader reader_of(const DataLoaderConfig& feed, std::string_view name) {
  static constexpr std::array<std::string_view, 2> kInputs = {"input", "variations"};
  for (const StageConfig& stage : feed.stages()) {
    std::vector<const FieldDescriptor*> kinds;
    stage.GetReflection()->ListFields(stage, &kinds);
    for (const FieldDescriptor* kind : kinds) {
      if (kind->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      const Message& own = stage.GetReflection()->GetMessage(stage, kind);
      for (const std::string_view input : kInputs) {
        const FieldDescriptor* field = own.GetDescriptor()->FindFieldByName(std::string(input));
        if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
        const auto& reflection = *own.GetReflection();
        const int count = field->is_repeated() ? reflection.FieldSize(own, field) : 1;
        for (int i = 0; i < count; ++i) {
          const std::string text = field->is_repeated()
                                       ? reflection.GetRepeatedString(own, field, i)
                                       : reflection.GetString(own, field);
          if (!text.empty() && stage_of(text) == name) return {&stage, input};
        }
      }
    }
  }
  return {};
}

const EpochPlannerConfig* planner_before(const BitextCollatorConfig& stage,
                                         const DataLoaderConfig& feed) {
  const StageConfig* const before = stage_named(feed, stage.input());
  return before != nullptr && before->has_epoch_planner() ? &before->epoch_planner() : nullptr;
}

std::optional<SampleOrder> sample_order(const StageConfig& stage) {
  if (stage.has_chess_games()) return stage.chess_games().order();
  if (stage.has_chess_variations()) return stage.chess_variations().order();
  if (stage.has_sample_mixer()) return stage.sample_mixer().order();
  return std::nullopt;
}

namespace {

// What is said of the stages that make the sequences that this one puts out. A configuration may
// close circles (which is refused elsewhere): `depth` bounds the walk.
template <typename Visit>
void visit_makers(const StageConfig& stage, const DataLoaderConfig& feed, const Visit& visit,
                  int depth = 16) {
  if (stage.has_chess_games() || stage.has_chess_variations()) visit(stage);
  const auto follow = [&](const std::string& input) {
    const StageConfig* before = stage_named(feed, input);
    if (before != nullptr && depth > 0) visit_makers(*before, feed, visit, depth - 1);
  };
  if (stage.has_sample_mixer()) {
    follow(stage.sample_mixer().input());
    follow(stage.sample_mixer().variations());
  } else if (stage.has_sequence_batcher()) {
    follow(stage.sequence_batcher().input());
  }
}

}  // namespace

std::uint32_t sequence_length(const StageConfig& stage, const DataLoaderConfig& feed) {
  std::uint32_t length = 0;
  visit_makers(stage, feed, [&length](const StageConfig& maker) {
    length = std::max(length, maker.has_chess_games() ? maker.chess_games().length_max()
                                                      : maker.chess_variations().length_max());
  });
  return length;
}

bool makes_variations(const StageConfig& stage, const DataLoaderConfig& feed) {
  bool some = false;
  visit_makers(stage, feed,
               [&some](const StageConfig& maker) { some = some || maker.has_chess_variations(); });
  return some;
}

bool is_exact(const StageConfig* stage) {
  return stage != nullptr && sample_order(*stage) == EXACT;
}

}  // namespace ringfeed
