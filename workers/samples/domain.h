// Samples, for data of any kind: what a program takes of this folder.
#pragma once

namespace ringfeed {

class Registry;
namespace inspect {
struct Describers;
}

// Registers the stages that this folder's CMakeLists.txt names.
void add_samples(Registry& registry);

// What `inspect` shows of samples that were set aside.
void add_samples_describers(inspect::Describers& describers);

}  // namespace ringfeed
