// What a verb shows on standard error while it waits for a feed that takes its time: how far that
// is, and how long it will still take. Nothing in the first two seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringfeed::cli {

class Waiting {
 public:
  // `name`: of the work among those that the feed says are under way (ProgressStatus).
  Waiting(std::vector<std::string> directories, std::string feed, std::string name);
  // The line goes.
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // To be called often. A feed that does not say how far it is is asked again later.
  void look();

 private:
  void ask();
  void show(const std::string& bar, const std::string& text);

  std::vector<std::string> directories_;
  std::string feed_;
  std::string name_;
  bool terminal_;
  std::uint64_t next_ms_;       // when it is asked
  std::uint64_t shown_ms_ = 0;  // the last line that was no terminal's
  bool drawn_ = false;          // a line stands on the terminal
};

}  // namespace ringfeed::cli
