#include "supervisor/metrics/json.h"

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "proto/metrics.pb.h"
#include "supervisor/metrics/json_writer.h"

namespace ringfeed::metrics {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class MessageWriter {
 public:
  MessageWriter(bool described, const MoreMembers& more) : described_(described), more_(more) {}

  void write(const Message& message);
  [[nodiscard]] std::string take() { return out_.take(); }

 private:
  void write_stage(const StageMetricProto& stage);
  // Its name and value; nothing if it is absent.
  void write_field(const Message& message, const FieldDescriptor& field);
  void write_field(const Message& message, std::string_view name) {
    write_field(message, *message.GetDescriptor()->FindFieldByName(std::string(name)));
  }
  void write_value(const Message& message, const FieldDescriptor& field, int index);
  template <typename Value>
  void write_member(std::string_view name, const Value& value) {
    out_.name(name);
    out_.value(value);
  }

  bool described_;
  const MoreMembers& more_;
  JsonWriter out_;
};

void MessageWriter::write(const Message& message) {
  // Once: protobuf makes sure at each call that it is there.
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  if (&type == StageMetricProto::descriptor()) {
    return write_stage(static_cast<const StageMetricProto&>(message));
  }
  out_.begin_object();
  for (int i = 0; i < type.field_count(); ++i) write_field(message, *type.field(i));
  if (more_) more_(message, out_);
  out_.end_object();
}

void MessageWriter::write_field(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (!field.is_repeated()) {
    if (!reflection.HasField(message, &field)) return;
    out_.name(field.name());
    return write_value(message, field, -1);
  }
  out_.name(field.name());
  out_.begin_array();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) write_value(message, field, i);
  out_.end_array();
}

void MessageWriter::write_value(const Message& message, const FieldDescriptor& field, int index) {
  const google::protobuf::Reflection& of = *message.GetReflection();
  const bool repeated = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return out_.value(std::int64_t{repeated ? of.GetRepeatedInt32(message, &field, index)
                                              : of.GetInt32(message, &field)});
    case FieldDescriptor::CPPTYPE_INT64:
      return out_.value(std::int64_t{repeated ? of.GetRepeatedInt64(message, &field, index)
                                              : of.GetInt64(message, &field)});
    case FieldDescriptor::CPPTYPE_UINT32:
      return out_.value(std::uint64_t{repeated ? of.GetRepeatedUInt32(message, &field, index)
                                               : of.GetUInt32(message, &field)});
    case FieldDescriptor::CPPTYPE_UINT64:
      return out_.value(std::uint64_t{repeated ? of.GetRepeatedUInt64(message, &field, index)
                                               : of.GetUInt64(message, &field)});
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return out_.value(repeated ? of.GetRepeatedDouble(message, &field, index)
                                 : of.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return out_.value(double{repeated ? of.GetRepeatedFloat(message, &field, index)
                                        : of.GetFloat(message, &field)});
    case FieldDescriptor::CPPTYPE_BOOL:
      return out_.value(repeated ? of.GetRepeatedBool(message, &field, index)
                                 : of.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return out_.value(std::string_view(
          (repeated ? of.GetRepeatedEnum(message, &field, index) : of.GetEnum(message, &field))
              ->name()));
    case FieldDescriptor::CPPTYPE_STRING:
      return out_.value(std::string_view(repeated ? of.GetRepeatedString(message, &field, index)
                                                  : of.GetString(message, &field)));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return write(repeated ? of.GetRepeatedMessage(message, &field, index)
                            : of.GetMessage(message, &field));
  }
}

// `{ "name", KIND: { "loads", COUNTER: VALUE, … }, "output_queue_metrics", "other_counters" }`.
void MessageWriter::write_stage(const StageMetricProto& stage) {
  out_.begin_object();
  write_field(stage, "name");
  out_.name(stage.kind());
  out_.begin_object();
  write_field(stage, "loads");
  for (const CounterMetricProto& counter : stage.counters()) {
    if (counter.has_value() && !counter.listed()) write_member(counter.name(), counter.value());
    if (counter.has_capacity()) write_member(counter.capacity_name(), counter.capacity());
  }
  for (const TextMetricProto& text : stage.texts()) write_member(text.name(), text.text());
  out_.end_object();
  write_field(stage, "output_queue_metrics");
  out_.name("other_counters");
  out_.begin_array();
  for (const CounterMetricProto& counter : stage.counters()) {
    if (!counter.has_value() || !counter.listed()) continue;
    out_.begin_object();
    write_member("name", counter.name());
    write_member("value", counter.value());
    out_.end_object();
  }
  out_.end_array();
  if (described_) write_field(stage, "counters");
  out_.end_object();
}

}  // namespace

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string message_json(const Message& message, bool described, const MoreMembers& more) {
  MessageWriter writer(described, more);
  writer.write(message);
  return writer.take();
}

Json to_json(const Message& message) { return Json::parse(message_json(message)); }

Json why_object(const MetricsReply& metrics) {
  Json out{{"feed", metrics.feed()}, {"bottlenecks", Json::array()}};
  for (const BottleneckProto& found : metrics.bottlenecks()) {
    out["bottlenecks"].push_back(to_json(found));
  }
  return out;
}

}  // namespace ringfeed::metrics
