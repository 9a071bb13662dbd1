// Makes foreign words (names of clients, groups and files, reasons, a process's output) safe for a
// log line or a terminal: on one line, without sequences that a terminal obeys.
//
// Characters that cannot be shown become C escapes: \n, \t, \x1b. These are all control characters,
// all bytes that are not UTF-8, and all characters that break lines or turn their direction.
#pragma once

#include <string>
#include <string_view>

namespace ringfeed {

// Without quotation marks. Backslashes stay, so doing it twice is the same as once.
[[nodiscard]] std::string escaped(std::string_view text);

// The same, but line ends stay: for messages of several lines.
[[nodiscard]] std::string escaped_lines(std::string_view text);

// In quotation marks. Quotation marks and backslashes inside are escaped, so it reads back as one
// string.
[[nodiscard]] std::string in_quotes(std::string_view text);

// The value of a key in a log line: unchanged if it is clearly one word, else quoted.
[[nodiscard]] std::string log_value(std::string_view text);

}  // namespace ringfeed
