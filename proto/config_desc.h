// config.proto and what it imports, with all comments, as a serialized FileDescriptorSet
// (proto/config.desc of the build).
#pragma once

#include <string_view>

namespace ringfeed {

[[nodiscard]] std::string_view config_descriptor_set();

}  // namespace ringfeed
