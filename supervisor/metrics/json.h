// Messages as JSON, by the names of their fields: enumerators by name, numbers as numbers, absent
// fields left out. What a stage counts (StageMetricProto) are members of an object that is named
// after its kind, as proto/metrics.proto says. scripts/schema_messages.py describes it.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ringfeed {
class MetricsReply;
}

namespace google::protobuf {
class Message;
}

namespace ringfeed::metrics {

using Json = nlohmann::ordered_json;

// Of all JSON that verbs print and that ringfeed web answers: it grows when a member is renamed or
// taken away, or means something else (docs/reference/json.md).
inline constexpr int kJsonVersion = 1;

class JsonWriter;
// Writes further members of the object of a message, which may lie within another one.
using MoreMembers = std::function<void(const google::protobuf::Message&, JsonWriter&)>;

// In one line. `described`: the counters of stages as in the message, too. It makes no tree
// (json_writer.h), so it may be called where memory can be refused.
[[nodiscard]] std::string message_json(const google::protobuf::Message& message,
                                       bool described = false, const MoreMembers& more = {});
[[nodiscard]] Json to_json(const google::protobuf::Message& message);
// What limits the feed.
[[nodiscard]] Json why_object(const MetricsReply& metrics);

// `indent`: as nlohmann's dump() has it, -1 is one line. Names of files need not be UTF-8.
[[nodiscard]] std::string json_text(const Json& json, int indent = -1);

}  // namespace ringfeed::metrics
