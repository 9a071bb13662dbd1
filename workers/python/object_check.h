// Whether the object of a stage can be had.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

// What says which object a stage has; the fields of the stages' settings that are alike.
struct ObjectSettings {
  std::string object;
  std::string options;
  std::vector<std::string> python_path;
  bool source = false;
  bool batch = false;       // it makes batches
  std::string fields = {};  // of a batch: a JSON list of [name, dtype, shape, bytes_max]
  std::string state = {};   // of a source: what its state is worth
};
template <typename Config>
[[nodiscard]] ObjectSettings object_of(const Config& config, bool source = true) {
  return {config.object(),
          config.options(),
          {config.python_path().begin(), config.python_path().end()},
          source,
          false,
          {},
          {}};
}

// Asks in this program, if it can: "", or what is wrong with the object.
using CheckObject = std::function<std::string(const ObjectSettings&)>;
void set_object_check(CheckObject check);

// For StageType::problems.
[[nodiscard]] std::vector<Problem> object_problems(const ObjectSettings& settings);

}  // namespace ringfeed
