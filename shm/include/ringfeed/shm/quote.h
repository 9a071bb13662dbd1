// Foreign words (names of clients, groups and files, reasons, what a process has said) as they may
// stand in a log line or on a terminal: on one line, without sequences that a terminal obeys.
//
// What is not shown as it is becomes an escape of C: \n, \t, \x1b. That is every control character,
// every byte that is no UTF-8, and every character that breaks lines or turns their direction.
#pragma once

#include <string>
#include <string_view>

namespace ringfeed {

// Without quotation marks; backslashes stay, so doing it twice does no more than once.
[[nodiscard]] std::string escaped(std::string_view text);

// The same with the line ends left in place: for messages of several lines.
[[nodiscard]] std::string escaped_lines(std::string_view text);

// Between quotation marks, which are escaped inside, as backslashes are: reads back as one string.
[[nodiscard]] std::string in_quotes(std::string_view text);

// The value of a key in a log line: as it is if it is one word that cannot be taken for more, else
// quoted.
[[nodiscard]] std::string log_value(std::string_view text);

}  // namespace ringfeed
