// Where the report goes: tried before anything starts, written at once and whole at the end.
#pragma once

#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"

namespace ringfeed::report {

// An absolute path. Makes sure that a file can be made beside it and put in its place; a file that
// is there stays until then. Errors say what to do.
[[nodiscard]] Status try_report(const std::string& path);

// The file is the old one or the whole new one, whatever happens meanwhile.
[[nodiscard]] Status write_report(const std::string& path, std::string_view page);

}  // namespace ringfeed::report
