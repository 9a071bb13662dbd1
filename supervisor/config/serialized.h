// What a serialized message has that its schema does not: protobuf's own parser keeps unknown
// fields aside and cuts numbers that do not fit, both without a word. For .cc files only, because
// it shows protobuf.
#pragma once

#include <google/protobuf/descriptor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/config/places.h"

namespace ringfeed::config {

struct SerializedCheck {
  // Fields that the schema does not have, of another wire type, or with a value that they cannot
  // have; each with its path and where it lies in the bytes. `stage` is left empty.
  std::vector<Problem> problems;  // kProblemsKept at most
  std::size_t left_out = 0;       // found, but not kept
  // Paths of messages in which a field was not understood.
  std::vector<std::string> doubtful;
  // False: the bytes are no message, or are cut short.
  bool whole = true;
};

[[nodiscard]] SerializedCheck check_serialized(std::string_view bytes,
                                               const google::protobuf::Descriptor& descriptor,
                                               const Place& place);

}  // namespace ringfeed::config
