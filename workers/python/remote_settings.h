// What is read from stores: the settings of remote_files, and of a provider of files with URLs.
#pragma once

#include <cstdint>
#include <optional>

#include "ringfeed/worker/stage.h"
#include "workers/files/remote_kind.h"
#include "workers/python/object_check.h"

namespace ringfeed {

class PythonBatcherConfig;

struct RemoteSettings : UrlSettings {
  std::vector<std::string> python_path;
  std::uint32_t fetches = 0;
  double look_again_s = 0;
};
// None: it is another stage.
[[nodiscard]] std::optional<RemoteSettings> remote_settings(const StageConfig& stage);
// The object in Python that reads for it. `finite`: the store is listed once.
[[nodiscard]] ObjectSettings remote_object(const RemoteSettings& settings, bool finite);

// The object of a stage that makes batches.
[[nodiscard]] ObjectSettings object_of_batcher(const PythonBatcherConfig& config);
// The object of any stage of this folder.
[[nodiscard]] ObjectSettings object_of_stage(const StageConfig& stage,
                                             const DataLoaderConfig& feed);

}  // namespace ringfeed
