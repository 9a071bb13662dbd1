// Messages as JSON, by the names of their fields: enumerators by name, absent fields left out.
#pragma once

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

enum class JsonForm {
  kPlain,     // numbers as numbers; in one line
  kProtobuf,  // as protobuf writes it: 64-bit numbers are strings, no empty lists; in lines
};

[[nodiscard]] Json to_json(const google::protobuf::Message& message, JsonForm form);
// In one line.
[[nodiscard]] std::string message_json(const google::protobuf::Message& message);
// By protobuf itself.
[[nodiscard]] std::string protobuf_json(const google::protobuf::Message& message);

// Metrics as proto/metrics.proto says that their JSON is: what a stage counts are members of an
// object that is named after its kind. `described`: its counters as in the message, too.
[[nodiscard]] std::string metrics_json(const MetricsReply& metrics, JsonForm form,
                                       bool described = false);
[[nodiscard]] Json metrics_object(const MetricsReply& metrics, JsonForm form,
                                  bool described = false);

}  // namespace ringfeed::metrics
