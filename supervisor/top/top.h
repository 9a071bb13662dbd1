// `ringfeed top`: what feeds do, in a terminal, until somebody leaves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringfeed::top {

struct Options {
  std::vector<std::string> directories = {};
  std::string feed = {};  // "": the one that runs; of several, a list
  std::uint64_t interval_ms = 1'000;
};

// Until a key or a signal ends it. A feed that ends or does not answer is said to, and looked for.
// Throws Error (kIo) if there is no terminal that can be drawn on. Returns the exit status; after
// SIGTERM, SIGHUP and SIGQUIT this process ends as these end it, with the terminal as it was.
int show(const Options& options);

struct Printed {
  bool json = false;
  std::size_t columns = 80;
  bool colours = false;
};
// One frame of the feeds, to standard output. Throws Error (kIo) if one of them does not answer.
void print(const Options& options, const std::vector<std::string>& feeds, const Printed& printed);

}  // namespace ringfeed::top
