// The stages of a configuration as the functions of their kinds see them, with what the others say.
#pragma once

#include <google/protobuf/text_format.h>

#include <string>
#include <string_view>
#include <utility>

#include "proto/config.pb.h"
#include "ringfeed/shm/result.h"
#include "workers/programs/all.h"
#include "workers/runtime/links.h"
#include "workers/runtime/registry.h"

namespace ringfeed {

class StageViews {
 public:
  explicit StageViews(DataLoaderConfig config)
      : config_(std::move(config)), registry_(all()), links_(config_, registry_) {}
  explicit StageViews(const std::string& text) : StageViews(parsed(text)) {}
  StageViews(const StageViews&) = delete;

  [[nodiscard]] StageView operator[](std::string_view stage) const {
    int number = 0;
    while (number < config_.stages_size() && config_.stages(number).name() != stage) ++number;
    RF_CHECK(number < config_.stages_size(), number);
    return links_.view(number);
  }

 private:
  static Registry all() {
    Registry registry;
    register_all_stages(registry);
    return registry;
  }
  static DataLoaderConfig parsed(const std::string& text) {
    DataLoaderConfig config;
    RF_CHECK(google::protobuf::TextFormat::ParseFromString(text, &config), text.size());
    return config;
  }

  const DataLoaderConfig config_;
  const Registry registry_;
  const PipelineLinks links_;
};

}  // namespace ringfeed
