// A verb of the command line: its options, and what it does. Each verb_<name>.cc has some; the
// table of all is in verbs.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "supervisor/cli/verbs.h"

namespace ringfeed::cli {

// What the program ends with, see verbs.h.
struct ExitStatus {
  int status;
  const char* text;
};
inline constexpr ExitStatus kExitStatuses[] = {
    {kOk, "ok"},
    {kFailure, "failure"},
    {kUsage, "usage"},
    {kInvalidConfiguration, "invalid configuration"},
    {kNoSuchFeed, "no such feed"},
    {kOrphaned, "the feed runs on without a supervisor"},
    {kNotTaken, "a replayed record was not taken"},
};

// The whole command line: parse() carries out what it is given, and the exit status is in `result`,
// which outlives it.
[[nodiscard]] std::unique_ptr<CLI::App> make_program(int& result);

// Adds its options to `verb`; once these are parsed the verb is carried out, and `result` is the
// exit status.
using AddVerb = void (*)(CLI::App& verb, int& result);
void add_run(CLI::App& verb, int& result);
void add_check(CLI::App& verb, int& result);
void add_try(CLI::App& verb, int& result);
void add_ps(CLI::App& verb, int& result);
void add_status(CLI::App& verb, int& result);
void add_metrics(CLI::App& verb, int& result);
void add_why(CLI::App& verb, int& result);
void add_doctor(CLI::App& verb, int& result);
void add_graph(CLI::App& verb, int& result);
void add_top(CLI::App& verb, int& result);
void add_peek(CLI::App& verb, int& result);
void add_web(CLI::App& verb, int& result);
void add_stop(CLI::App& verb, int& result);
void add_restart(CLI::App& verb, int& result);
void add_scale(CLI::App& verb, int& result);
void add_control(CLI::App& verb, int& result);
void add_snapshot(CLI::App& verb, int& result);
void add_log(CLI::App& verb, int& result);
void add_clean(CLI::App& verb, int& result);
void add_dead_letters(CLI::App& verb, int& result);
void add_init(CLI::App& verb, int& result);
void add_stages(CLI::App& verb, int& result);
void add_inspect(CLI::App& verb, int& result);
void add_import_lc0(CLI::App& verb, int& result);
void add_completion(CLI::App& verb, int& result);
void add_manual(CLI::App& verb, int& result);
void add_version(CLI::App& verb, int& result);

// Options that several verbs have.
CLI::Option* add_config(CLI::App& verb, ConfigArguments& arguments);
void add_worker(CLI::App& verb, std::string& worker);
CLI::Option* add_feed(CLI::App& verb, std::string& feed);
void add_directory(CLI::App& verb, std::string& directory);
void add_json(CLI::App& verb, bool& json);

struct ReplayOptions {
  std::string file = {};    // of the record, or its name among the feed's letters
  std::string binary = {};  // the worker; empty: as `run` finds it
  std::string config = {};  // a configuration in place of the letter's own
  std::optional<double> timeout_s = {};
  bool wait = false;  // for a debugger
  bool pdb = false;   // the stage under Python's
};
// One record through its stage alone, outside of any feed.
int replay_letter(const std::string& feed, const std::string& directory,
                  const ReplayOptions& options, bool json);

}  // namespace ringfeed::cli
