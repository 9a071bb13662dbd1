// Samples, for data of any kind: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;

// Registers the stages that this folder's CMakeLists.txt names.
void add_samples(Registry& registry);

}  // namespace ringfeed
