// Leela Chess Zero: chunks of games to tensors of positions: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;
namespace inspect {
struct Describers;
}

// Registers the stages that this folder's CMakeLists.txt names.
void add_lc0(Registry& registry);

// What `inspect` shows of this domain's files, and `init` makes of them.
void add_lc0_describers(inspect::Describers& describers);

}  // namespace ringfeed
