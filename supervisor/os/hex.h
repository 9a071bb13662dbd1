// Bytes as hexadecimal digits, for files that people may look into.
#pragma once

#include <string>
#include <string_view>

namespace ringfeed::control {

[[nodiscard]] std::string to_hex(std::string_view bytes);
// Empty if that is no hexadecimal number.
[[nodiscard]] std::string from_hex(std::string_view digits);

}  // namespace ringfeed::control
