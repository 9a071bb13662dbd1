// Chess games and variations from tables to batches of tokens: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;

// Registers the stages that this folder's CMakeLists.txt names.
void add_chess(Registry& registry);

}  // namespace ringfeed
