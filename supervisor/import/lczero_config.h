// Turns the data loader's part of a lczero-training configuration into a configuration of ours.
//
// Strict: a field, name or value that is not understood is a problem with its place, and there is
// no result. What is understood and has no equivalent is a note: one sentence that says what was
// done instead. Notes also stand in the text, as comments at the stage that they are about.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/config/places.h"
#include "supervisor/config/read.h"

namespace ringfeed::imports {

// One configuration of theirs, as it lies in its file: a RootConfig, of which only data_loader is
// looked at, or a DataLoaderConfig alone; text format, JSON or serialized.
struct LczeroSource {
  std::string name;  // as messages call it: the file's name
  std::string content;
  config::Format format = config::Format::kAuto;
};

struct Imported {
  std::string text;                       // our configuration; empty if there are problems
  std::vector<config::Problem> problems;  // what is wrong
  std::vector<config::Problem> notes;     // what is different
  std::size_t problems_left_out = 0;      // found, but not kept
};

// The first source and the stages of the others; those sources' outputs do not count, as with that
// project's add_stages().
[[nodiscard]] Imported import_lczero(std::span<const LczeroSource> sources);

}  // namespace ringfeed::imports
