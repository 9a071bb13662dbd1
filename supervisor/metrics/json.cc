#include "supervisor/metrics/json.h"

#include <fmt/format.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "proto/metrics.pb.h"

namespace ringfeed::metrics {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// As protobuf writes a 64-bit number, which JavaScript could not hold.
Json number(std::uint64_t value, JsonForm form) {
  return form == JsonForm::kProtobuf ? Json(fmt::to_string(value)) : Json(value);
}
Json number(std::int64_t value, JsonForm form) {
  return form == JsonForm::kProtobuf ? Json(fmt::to_string(value)) : Json(value);
}

Json value_of(const Message& message, const FieldDescriptor& field, int index, JsonForm form) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const bool repeated = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? reflection.GetRepeatedInt32(message, &field, index)
                      : reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return number(repeated ? reflection.GetRepeatedInt64(message, &field, index)
                             : reflection.GetInt64(message, &field),
                    form);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? reflection.GetRepeatedUInt32(message, &field, index)
                      : reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return number(repeated ? reflection.GetRepeatedUInt64(message, &field, index)
                             : reflection.GetUInt64(message, &field),
                    form);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return repeated ? reflection.GetRepeatedDouble(message, &field, index)
                      : reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return repeated ? reflection.GetRepeatedFloat(message, &field, index)
                      : reflection.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? reflection.GetRepeatedBool(message, &field, index)
                      : reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return repeated ? reflection.GetRepeatedEnum(message, &field, index)->name()
                      : reflection.GetEnum(message, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return repeated ? reflection.GetRepeatedString(message, &field, index)
                      : reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return to_json(repeated ? reflection.GetRepeatedMessage(message, &field, index)
                              : reflection.GetMessage(message, &field),
                     form);
  }
  return nullptr;
}

}  // namespace

Json to_json(const Message& message, JsonForm form) {
  Json out = Json::object();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated()) {
      if (form == JsonForm::kProtobuf && reflection.FieldSize(message, &field) == 0) continue;
      Json& list = out[field.name()] = Json::array();
      for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
        list.push_back(value_of(message, field, j, form));
      }
    } else if (reflection.HasField(message, &field)) {
      out[field.name()] = value_of(message, field, -1, form);
    }
  }
  return out;
}

namespace {

// A stage's metrics: `{ "name", KIND: { "loads", COUNTER: VALUE, … }, "output_queue_metrics",
// "other_counters" }`.
Json stage_json(const StageMetricProto& stage, JsonForm form, bool described) {
  Json all = to_json(stage, form);
  Json own = Json::object();
  Json others = Json::array();
  if (all.contains("loads")) own["loads"] = std::move(all["loads"]);
  for (const CounterMetricProto& counter : stage.counters()) {
    if (counter.has_value() && counter.listed()) {
      Json& other = others.emplace_back();
      other["name"] = counter.name();
      other["value"] = number(counter.value(), form);
    } else if (counter.has_value()) {
      own[counter.name()] = number(counter.value(), form);
    }
    if (counter.has_capacity()) own[counter.capacity_name()] = number(counter.capacity(), form);
  }
  for (const TextMetricProto& text : stage.texts()) own[text.name()] = text.text();
  Json out = Json::object();
  const auto move_over = [&](const char* name) {
    if (all.contains(name)) out[name] = std::move(all[name]);
  };
  move_over("name");
  out[stage.kind()] = std::move(own);
  move_over("output_queue_metrics");
  if (form == JsonForm::kPlain || !others.empty()) out["other_counters"] = std::move(others);
  if (described) move_over("counters");
  return out;
}

void replace_stages(const DataLoaderMetricsProto& metrics, JsonForm form, bool described,
                    Json& out) {
  for (int i = 0; i < metrics.stage_metrics_size(); ++i) {
    out["stage_metrics"][static_cast<std::size_t>(i)] =
        stage_json(metrics.stage_metrics(i), form, described);
  }
}

std::string text_of(const Json& json, JsonForm form) {
  return json.dump(form == JsonForm::kProtobuf ? 1 : -1, ' ', false,
                   Json::error_handler_t::replace);
}

}  // namespace

std::string message_json(const Message& message) {
  return text_of(to_json(message, JsonForm::kPlain), JsonForm::kPlain);
}

std::string protobuf_json(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = true;
  std::string text;
  static_cast<void>(google::protobuf::util::MessageToJsonString(message, &text, options));
  return text;
}

Json metrics_object(const MetricsReply& metrics, JsonForm form, bool described) {
  Json out = to_json(metrics, form);
  if (metrics.has_total()) replace_stages(metrics.total(), form, described, out["total"]);
  for (int i = 0; i < metrics.windows_size(); ++i) {
    if (!metrics.windows(i).has_metrics()) continue;
    replace_stages(metrics.windows(i).metrics(), form, described,
                   out["windows"][static_cast<std::size_t>(i)]["metrics"]);
  }
  return out;
}

std::string metrics_json(const MetricsReply& metrics, JsonForm form, bool described) {
  return text_of(metrics_object(metrics, form, described), form) +
         (form == JsonForm::kProtobuf ? "\n" : "");
}

}  // namespace ringfeed::metrics
