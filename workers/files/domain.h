// Data of any kind by path: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;

// Registers the stages that this folder's CMakeLists.txt names.
void add_files(Registry& registry);

}  // namespace ringfeed
