// The command line, and the exit statuses of the program.
//
//   0 ok   1 failure   2 usage   3 invalid configuration   4 no such feed
//   5 the feed goes on without a supervisor ("orphaned"): `ringfeed run` takes it over
//   6 a record that was replayed was not taken by its stage
// Data goes to standard output, talk to standard error. Throws Error for what is 1.
#pragma once

#include <string>
#include <vector>

namespace ringfeed::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;
inline constexpr int kInvalidConfiguration = 3;
inline constexpr int kNoSuchFeed = 4;
inline constexpr int kOrphaned = 5;
inline constexpr int kNotTaken = 6;

struct ConfigArguments {
  std::string file;
  std::string text = {};               // in place of the file, which then only names it
  std::vector<std::string> overrides;  // path=value
  std::string worker = {};             // in place of the configuration's `worker`
  int link = -1;                       // on which the plan may come (cli/link.h)
};

// Parses and carries out; every message and exit status of the program comes from here.
int main_with(int argc, char** argv);

}  // namespace ringfeed::cli
