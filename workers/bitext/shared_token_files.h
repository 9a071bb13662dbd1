// Token files that several lanes of a process read: each is mapped once, however many lanes have it
// open. A mapping counts against a limit of the system (vm.max_map_count, usually 65530).
#pragma once

#include <memory>
#include <string>

#include "ringfeed/shm/result.h"
#include "workers/io/token_file.h"

namespace ringfeed {

// The file that somebody in this process has open under this prefix, or newly opened; it is closed
// with the last owner. Any thread. Errors: as TokenFile::open.
Result<std::shared_ptr<const formats::TokenFile>> open_shared_token_file(const std::string& prefix);

}  // namespace ringfeed
