// Whole small files: settings, records, what the kernel says of a process.
#pragma once

#include <string>

#include "ringfeed/shm/result.h"

namespace ringfeed::shm {

// The file's content. kNotFound or kIo with the system's reason: also where it can be opened and
// then not be read, as a file of /proc of a process that ends in between.
[[nodiscard]] Result<std::string> read_file(const std::string& path) noexcept;

}  // namespace ringfeed::shm
