// Values as text that people read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringfeed {

// "0 B", "512 B", "1.0 KiB", "9.1 GiB".
[[nodiscard]] std::string shown_bytes(std::uint64_t bytes);

// Hexadecimal digits, for files that people may look into.
[[nodiscard]] std::string to_hex(std::string_view bytes);
// Empty if that is no hexadecimal number.
[[nodiscard]] std::string from_hex(std::string_view digits);

}  // namespace ringfeed
