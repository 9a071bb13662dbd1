// What `ringfeed peek` asks: how the rows of a batch read, and which of its arrays are pictures.
#pragma once

namespace ringfeed {

class Registry;

// Reads a ShowQuestion from standard input and writes a ShowAnswer (proto/view.proto). The exit
// status. Throws Error (kInvalidArgument): that is no question.
int show_batch(const Registry& registry);

}  // namespace ringfeed
