// Values as text that people read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringfeed {

// "0 B", "512 B", "1.0 KiB", "9.1 GiB".
[[nodiscard]] std::string shown_bytes(std::uint64_t bytes);
// The same without rounding, as a limit is written: "64 KiB", "1000 B".
[[nodiscard]] std::string exact_bytes(std::uint64_t bytes);
// What a person writes: "1.5 GiB", "64KiB", "2 MB" (a million each), "4096 B", "4096". nullopt for
// anything else, for a fraction of a byte, and for a number too large for 64 bits.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

// How long something has lasted: "42 s", "3 min 5 s", "2 h 40 min".
[[nodiscard]] std::string shown_time(std::uint64_t ms);

// Columns that a terminal needs for it: two for a wide character, none for one that combines.
[[nodiscard]] std::size_t shown_width(std::string_view utf8);
// As much of its beginning as so many columns hold.
[[nodiscard]] std::string_view shown_cut(std::string_view utf8, std::size_t columns);

// A word as a shell takes it, whatever bytes it has.
[[nodiscard]] std::string shell_word(std::string_view word);

// Hexadecimal digits, for files that people may look into.
[[nodiscard]] std::string to_hex(std::string_view bytes);
// Empty if that is no hexadecimal number.
[[nodiscard]] std::string from_hex(std::string_view digits);

}  // namespace ringfeed
