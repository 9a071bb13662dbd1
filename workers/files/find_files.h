// The files that a file_path_provider would name, found at once and read by nobody: for
// `ringfeed check`.
#pragma once

#include "workers/files/file_facts.h"

namespace ringfeed {

class FilePathProviderConfig;

// Of settings without URLs. It finds nothing by settings that are refused.
[[nodiscard]] FileFinder file_finder(const FilePathProviderConfig& config);

}  // namespace ringfeed
