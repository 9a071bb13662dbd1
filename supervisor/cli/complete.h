// Completion: what can be typed where the cursor is. The scripts in completion/ ask for it as
//
//   ringfeed __complete SHELL WORD...
//
// with all words behind the program's name, up to the cursor; the last one is being typed, and may
// be empty. The answer's first line says what names of files are good for there (none, files,
// configs or directories), then comes a line for each word: the word, a tab, what it is. Of an
// option with its value, `--stage=sam`, these are values alone. The shell leaves out what begins
// otherwise.
//
// An answer comes within a second, whatever supervisors do, and nothing is said on failure. Words
// need no quoting in any shell; a name that does is left out.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/cli/words.h"

namespace ringfeed::cli {

inline constexpr std::string_view kCompleteVerb = "__complete";

// What the line says so far, as far as it matters to what comes.
struct Line {
  const CLI::App* verb = nullptr;  // nullptr: none yet
  std::string feed = {};           // that it names
  std::string config = {};
  std::string directory = {};  // of control sockets
};
// What may come: a word of one of these kinds, and options.
struct Expected {
  Line line = {};
  std::vector<std::string> kinds = {};  // as in OptionWords; also "VERB"
  std::vector<OptionWords> options = {};
};
// `words`: as the shell has them on the line, at least the one that is being typed.
[[nodiscard]] Expected expected_at(const CLI::App& program, std::span<const std::string> words);

// The words as they were typed: bash takes them apart at = and :, and leaves them quoted.
[[nodiscard]] std::vector<std::string> typed_words(std::string_view shell,
                                                   std::span<const std::string> words);

// Answers, on standard output. `words`: the shell, and those of the line.
int complete(const CLI::App& program, std::span<const std::string> words);

}  // namespace ringfeed::cli
