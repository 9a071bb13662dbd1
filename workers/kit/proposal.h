// A first configuration for data that lies in a directory: what `ringfeed init` writes. Each domain
// knows its own data (propose_lc0() and so on, in a file <domain>/<domain>_proposal.h) and fills in
// a ready pipeline; inspect/propose.h asks all of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed {

// How much of a directory is looked at, however large it is.
struct LookLimits {
  std::size_t names = 100'000;              // in all
  std::size_t names_of_directory = 20'000;  // of each directory
  std::size_t directories = 1'000;
  std::size_t depth = 6;
};

// The files in a directory and below it. Names that begin with a dot are left out, as the stages
// leave them out.
struct DirectoryLook {
  std::string directory = {};           // absolute
  std::vector<std::string> files = {};  // absolute paths, in the order of their bytes
  bool whole = true;                    // false: there are more, or some could not be looked at

  [[nodiscard]] std::vector<std::string> ending_in(std::string_view ending) const;
  // "3", or "at least 3" where there are more than were looked at.
  [[nodiscard]] std::string count_text(std::size_t count) const;
};

// Throws Error (kNotFound, kIo) with the path and the reason: it is not there, is no directory,
// cannot be read.
[[nodiscard]] DirectoryLook look_at(const std::string& directory, const LookLimits& limits = {});

// What the configuration is to be called.
struct ProposalWish {
  std::string feed = {};  // empty: the pipeline's own name
  std::string file = {};  // as it stands in the commands of the comments; empty: FEED.textproto
};

struct Proposal {
  std::string feed = {};
  std::string found = {};    // "2 tars and 7 .gz files, about 3100 positions"
  std::string text = {};     // the configuration; empty: there are such files, but of no use
  std::string problem = {};  // then: why, in one sentence
  bool other_data = false;   // then: because they hold something else
};

// Empty: the directory has no files of this kind.
using Propose = std::optional<Proposal> (*)(const DirectoryLook& look, const ProposalWish& wish);

// The text of a pipeline while its settings are filled in. What is asked for must be there: the
// pipelines are part of this program, so its absence is a bug and fails a check.
class PipelineText {
 public:
  explicit PipelineText(std::string_view text);

  // The first lines become "written for this directory", with what was found in it.
  void introduce(const DirectoryLook& look, const std::string& found);
  // The feed's name, and the file's name in the comments.
  void name(const ProposalWish& wish);
  // A setting of a stage: one line for each value, which are written as they are given, in the
  // place of all lines that it has there.
  void set(std::string_view stage, std::string_view field, const std::vector<std::string>& values);
  // Further lines of a stage below those of `field`.
  void add_below(std::string_view stage, std::string_view field,
                 const std::vector<std::string>& lines);

  [[nodiscard]] std::string feed() const;
  [[nodiscard]] std::string text() const;

 private:
  struct Lines {
    std::size_t first;
    std::size_t count;
  };
  [[nodiscard]] Lines find(std::string_view stage, std::string_view field) const;

  std::vector<std::string> lines_;
};

// A string of the text format, with its quotation marks: any bytes.
[[nodiscard]] std::string text_literal(std::string_view bytes);

// "1 tar", "3 tars".
[[nodiscard]] std::string counted(std::size_t count, std::string_view what);

}  // namespace ringfeed
