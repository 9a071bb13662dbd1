// The verbs of the command line; each returns the exit status of the program.
//
//   0 ok   1 failure   2 usage   3 invalid configuration   4 no such feed
//   5 the feed goes on without a supervisor ("orphaned"): `ringfeed run` takes it over
//   6 a record that was replayed was not taken by its stage
// Data goes to standard output, talk to standard error. Throws Error for what is 1.
#pragma once

#include <cstdint>
#include <optional>
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
};

struct RunOptions {
  std::string directory = {};  // of the control socket; empty: as the configuration says, else by
                               // the rule of control/place.h
  bool fresh = false;          // does not take over what an earlier run has left, but ends it
  std::string resume = {};     // a snapshot to go on from; then the configuration may be left out
  int owner = -1;              // a pidfd: the feed is this process's own, and ends with it
};
int run(const ConfigArguments& arguments, const RunOptions& options);
int check(const ConfigArguments& arguments);
// Of a part, whose other stages follow; prints it in text format, without the feed's name.
int check_part(const ConfigArguments& arguments);
// `directory`: where feeds are looked for; empty: by the rule of control/place.h. An empty feed:
// all that run there.
int status(const std::string& directory, const std::string& feed, bool json);
// `now`: does not drain; an orphaned feed, which nobody can drain, is ended.
int stop(const std::string& directory, const std::string& feed, bool now);
// Totals, and rates over 1, 10 and 60 seconds.
int metrics(const std::string& directory, const std::string& feed, bool json);
// Who limits the feed.
int why(const std::string& directory, const std::string& feed, bool json);
// `force`: orphaned feeds too.
int clean(const std::string& directory, bool force);
// A fresh process runs the stage group; `binary`: of this program.
int restart(const std::string& directory, const std::string& feed, const std::string& group,
            const std::string& binary);
// The stage has so many lanes from now on.
int scale(const std::string& directory, const std::string& feed, const std::string& stage,
          std::uint32_t lanes);
// A message to one stage, or with an empty `stage` to all that understand it; `message`: a
// StageControlRequest in text format. Prints the answers; 1: one of them says why it was not done.
int control_stages(const std::string& directory, const std::string& feed, const std::string& stage,
                   const std::string& message, bool json);
// Has the feed save itself to `target`.
int take_snapshot(const std::string& directory, const std::string& feed, const std::string& target,
                  bool json);
// `directory`: where they are; empty: where the feed keeps them by default.
int dead_letters(const std::string& feed, const std::string& directory, bool json);

struct ReplayOptions {
  std::string file = {};    // of the record, or its name among the feed's letters
  std::string binary = {};  // the worker; empty: as `run` finds it
  std::string config = {};  // a configuration in place of the letter's own
  std::optional<double> timeout_s = {};
  bool wait = false;  // for a debugger
};
// One record through its stage alone, outside of any feed.
int replay_letter(const std::string& feed, const std::string& directory,
                  const ReplayOptions& options, bool json);

// What a file is, and the records in it.
struct InspectOptions {
  std::string path = {};
  std::optional<std::uint64_t> record = {};  // index in the game or token file; empty: the first
  std::string chunk = {};                    // name or index of a tar's member
  std::string dictionary = {};               // of a token file; empty: the one beside it
  std::uint32_t top = 8;                     // moves of the policy to show
  bool all = false;                          // all records, members, chunks
  bool json = false;
};
int inspect(const InspectOptions& options);

struct ImportOptions {
  std::string file = {};                // a configuration of lczero-training; - is standard input
  std::vector<std::string> added = {};  // files whose stages are added
  std::string out = {};                 // empty: standard output
};
// Their data loader as a configuration of ours.
int import_lc0(const ImportOptions& options);

// Parses and carries out; every message and exit status of the program comes from here.
int main_with(int argc, char** argv);

}  // namespace ringfeed::cli
