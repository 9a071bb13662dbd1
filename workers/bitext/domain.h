// Parallel text to batches of tokens: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;

// Registers the stages that this folder's CMakeLists.txt names.
void add_bitext(Registry& registry);

}  // namespace ringfeed
