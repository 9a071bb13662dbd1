// A serialized message into a protobuf message, strictly: an unknown field is a problem and not
// kept. A number may have been written as float or as double, whatever the schema says. For .cc
// files only, because it shows protobuf.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::imports {

// What is wrong, each with the path of its field: "stage[2]: field 99 is not known". Empty: all of
// it was understood.
[[nodiscard]] std::vector<std::string> read_wire(std::string_view bytes,
                                                 google::protobuf::Message& message,
                                                 const std::string& path = "");

// Whether the bytes are a message that has a field of this number.
[[nodiscard]] bool has_wire_field(std::string_view bytes, int number);

// The bytes of the last field of this number with a length; "" if there is none.
[[nodiscard]] std::string_view wire_field(std::string_view bytes, int number);

}  // namespace ringfeed::imports
