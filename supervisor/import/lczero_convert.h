// The conversion itself, on messages: lczero_config.h reads the files and calls it. For .cc files
// only, because it shows protobuf.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/lczero.pb.h"
#include "supervisor/config/places.h"
#include "supervisor/import/lczero_config.h"

namespace ringfeed::imports {

// A source that was understood. Paths in `places` are those of DataLoaderConfig, "stage[2].name".
struct LczeroMessage {
  ::lczero::training::DataLoaderConfig config;
  config::Places places;
};

// `feed`: what the feed is called. `sources` is not empty.
[[nodiscard]] Imported convert(const std::vector<LczeroMessage>& sources, const std::string& feed);

}  // namespace ringfeed::imports
