// Python stages: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;

// Registers the stages that this folder's CMakeLists.txt names.
void add_python(Registry& registry);

}  // namespace ringfeed
