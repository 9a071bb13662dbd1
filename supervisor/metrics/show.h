// A status as people read it, and as programs read it.
#pragma once

#include <string>

namespace ringfeed {
class StatusReply;
}

namespace google::protobuf {
class Message;
}

namespace ringfeed::metrics {

// Text for a terminal. `before` is an earlier status of the same feed, for rates; it may be null.
[[nodiscard]] std::string show_status(const StatusReply& status, const StatusReply* before);

// JSON with the names of control.proto: numbers as numbers, enumerators by name, absent fields left
// out. With `before`, every lane has records_per_s and the output has batches_per_s.
[[nodiscard]] std::string status_json(const StatusReply& status, const StatusReply* before);

}  // namespace ringfeed::metrics
