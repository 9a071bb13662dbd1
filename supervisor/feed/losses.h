// What the stages of a feed leave out: how many, for which reasons, and the first problem of each.
//
// The numbers are the stages' counters `skipped_*` and those that mean the same, so they survive
// every death. The problems are what the workers' logs say of them; of those that an earlier
// supervisor has seen only the number is known.
//
// A share is of things of one kind. Of a thousand games of which each has a hundred positions, ten
// that cannot be read are a hundredth, and not a hundredth of that: so what stages count is told
// apart by its unit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringfeed {
class DataLoaderConfig;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::process {

class Losses {
 public:
  struct Reason {
    std::string stage;
    std::string name;  // "no_json"
    std::uint64_t count = 0;
    std::string first;      // "/data/a.jsonl, offset 17: ..."; "": not known
    std::string traceback;  // of a stage in Python; lines
  };
  struct Share {
    std::string_view unit = "samples";  // or "chunks", and what else stages count
    std::uint64_t came = 0;
    std::uint64_t left_out = 0;
    [[nodiscard]] double value() const {
      return left_out == 0 ? 0 : static_cast<double>(left_out) / static_cast<double>(all());
    }
    [[nodiscard]] std::uint64_t all() const { return came + left_out; }
  };

  // A line that the process of this stage group has written.
  void note(const std::string& group, std::string_view line);
  // Brought up to the counters of the stages.
  void count(const StatusReply& stages);

  // What a stage left out of what it got; nullptr: it has counted nothing.
  [[nodiscard]] const Share* of_stage(const std::string& stage) const;
  // "30 of 30 samples (30 ValueError); the first: ..."
  [[nodiscard]] std::string stage_text(const std::string& stage) const;
  // What all stages left out, in their units.
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }
  // Of the whole feed the largest share, of a unit of which there are at least `after`: what all
  // stages that count in it left out, of the most that one of them had. nullptr: there is no such
  // unit.
  [[nodiscard]] const Share* largest(std::uint64_t after) const;
  // The most frequent first.
  [[nodiscard]] const std::vector<Reason>& reasons() const { return reasons_; }
  // Of batches that were made, and those that a last batch that is not full would have had.
  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t rows_dropped() const { return rows_dropped_; }
  // "lines: 12 no_json, lines: 3 wrong_type"; "": none.
  [[nodiscard]] std::string counts_text() const;
  // Of each reason the first problem, a line each, with tracebacks.
  [[nodiscard]] std::string first_text() const;
  // "2.5 % of all samples are left out (25 of 1000): lines: ..., the first: ..."
  [[nodiscard]] std::string text_of(const Share& share) const;
  // Why the feed must stop; "": no limit of the configuration is exceeded.
  [[nodiscard]] std::string over_limit(const DataLoaderConfig& config) const;

 private:
  struct First {
    std::string text;
    std::string traceback;
  };
  std::map<std::pair<std::string, std::string>, First> first_;  // by stage and counter
  // Of each process the first problem to which the lines of a traceback belong that come now.
  std::map<std::string, std::pair<std::string, std::string>> told_;
  std::map<std::string, Share> stages_;
  std::vector<Share> units_;
  std::uint64_t left_out_ = 0;
  std::uint64_t rows_ = 0;
  std::uint64_t rows_dropped_ = 0;
  std::vector<Reason> reasons_;
};

}  // namespace ringfeed::process
