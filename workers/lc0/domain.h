// Leela Chess Zero: chunks of games to tensors of positions: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;

// Registers the stages that this folder's CMakeLists.txt names.
void add_lc0(Registry& registry);

}  // namespace ringfeed
