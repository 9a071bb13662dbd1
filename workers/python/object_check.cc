#include "workers/python/object_check.h"

#include <fmt/format.h>

#include <utility>

namespace ringfeed {
namespace {

CheckObject& object_check() {
  static CheckObject check;
  return check;
}

}  // namespace

void set_object_check(CheckObject check) { object_check() = std::move(check); }

std::vector<Problem> object_problems(const ObjectSettings& settings) {
  if (settings.object.empty()) {
    return {{"object", "object is not set; give what is to be called: \"module:name\""}};
  }
  if (settings.object.find(':') == std::string::npos) {
    return {{"object", fmt::format("object is \"{}\"; write \"module:name\"", settings.object)}};
  }
  if (!object_check()) return {};
  const std::string fault = object_check()(settings);
  if (fault.empty()) return {};
  return {{"object", fault}};
}

}  // namespace ringfeed
