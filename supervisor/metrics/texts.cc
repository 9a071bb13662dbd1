#include "supervisor/metrics/texts.h"

#include <google/protobuf/message.h>

#include <optional>
#include <string_view>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "proto/plan.pb.h"

namespace ringfeed::metrics {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The text at a path of fields, "outer.inner"; nothing if what it lies in is not there, or is none.
std::optional<std::string> text_at(const Message& message, std::string_view path) {
  const std::size_t dot = path.find('.');
  const FieldDescriptor* const field =
      message.GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
  if (field == nullptr || field->is_repeated()) return std::nullopt;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (dot == std::string_view::npos) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return std::nullopt;
    return reflection.GetString(message, field);
  }
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || !reflection.HasField(message, field))
    return std::nullopt;
  return text_at(reflection.GetMessage(message, field), path.substr(dot + 1));
}

}  // namespace

void Texts::take_configured(const PipelinePlan& plan) {
  for (const StagePlan& stage : plan.stages()) {
    for (const TextPlan& text : stage.texts()) {
      texts_[{stage.name(), text.name()}] = text.configured();
    }
  }
}

void Texts::take_answer(const PipelinePlan& plan, const StageControlAnswer& answer) {
  for (const StagePlan& stage : plan.stages()) {
    if (stage.name() != answer.stage() || stage.texts_size() == 0) continue;
    // The one place that looks into an answer; what cannot be read has no text.
    StageControlResponse response;
    if (!response.ParseFromString(answer.response())) continue;
    for (const TextPlan& text : stage.texts()) {
      if (auto found = text_at(response, text.answer())) {
        texts_[{stage.name(), text.name()}] = *std::move(found);
      }
    }
  }
}

void Texts::fill(const StagePlan& stage, StageMetricProto& metrics) const {
  for (const TextPlan& text : stage.texts()) {
    const auto known = texts_.find({stage.name(), text.name()});
    if (known == texts_.end()) continue;
    TextMetricProto& out = *metrics.add_texts();
    out.set_name(text.name());
    out.set_text(known->second);
  }
}

}  // namespace ringfeed::metrics
