// Where something stands in a configuration, and what is wrong there.
//
// A path names a value as `--set` does: "stages[2].shuffling_chunk_pool.chunk_pool_size". A place
// is where that value was written: the file, or the `--set` that gave it, with line and column.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::config {

// How the source of an override begins.
inline constexpr std::string_view kOverride = "--set ";

struct Place {
  std::string source;  // file name as the user gave it, or "--set path=value"
  int line = 0;        // from 1; 0: the source as a whole
  int column = 0;      // from 1, in bytes

  // "lc0.textproto:12:3", or the source alone.
  [[nodiscard]] std::string text() const;
  friend bool operator==(const Place&, const Place&) = default;
};

class Places {
 public:
  Places() = default;
  explicit Places(std::string source) : source_{std::move(source), 0, 0} {}

  // The place of the value at `path`, or of the nearest thing around it that has one.
  [[nodiscard]] Place find(std::string_view path) const;
  [[nodiscard]] bool contains(std::string_view path) const { return places_.contains(path); }
  void set(std::string path, Place place) { places_.insert_or_assign(std::move(path), place); }
  // Forgets what lies below `path`: an override has replaced it.
  void erase_below(std::string_view path);

  // A message in which a field was not understood: what is missing there may be what was meant, so
  // nobody complains about it a second time.
  void set_doubtful(std::string path) { doubtful_.insert_or_assign(std::move(path), true); }
  [[nodiscard]] bool doubtful(std::string_view path) const { return doubtful_.contains(path); }

  [[nodiscard]] const Place& whole() const { return source_; }

 private:
  Place source_;
  std::map<std::string, Place, std::less<>> places_;
  std::map<std::string, bool, std::less<>> doubtful_;
};

// One thing that is wrong, said in full by message().
struct Problem {
  Place place;
  std::string stage;  // name of the stage it is in; empty: it is not about one stage
  std::string text;   // what is wrong; what to do
  std::string path;   // of the value; by it a second message about the same value is recognised

  // "lc0.textproto:12:3: stage 'pool': chunk_pool_size is 0; give a number from 1 to 1000000000".
  [[nodiscard]] std::string message() const;
};

// So many problems are kept, and so many shown. What else is found is counted: a file may hold a
// million mistakes, and nobody reads more than a page.
inline constexpr std::size_t kProblemsKept = 1000;
inline constexpr std::size_t kProblemsShown = 100;

// By source, line and column, overrides last; each message once.
void sort_problems(std::vector<Problem>& problems);
// The first messages, one a line, and how many more there are, `left_out` among them.
[[nodiscard]] std::string problem_report(std::span<const Problem> problems,
                                         std::size_t left_out = 0);

}  // namespace ringfeed::config
