// Many lines of JSON at once, each as a record of `samples`: what json_sample.h makes of them, only
// sooner. simdjson finds the structure of a whole block of lines in one go; values are then read
// once, and written where the record has them.
//
// It takes objects of strings, numbers, true, false, null, and arrays of numbers, each name once.
// Whatever else a line is, wrong JSON above all, read() leaves to JsonSamples, which says what it
// is. What it does take has the same bytes as JsonSamples and write_sample() give it
// (tests/unit/workers/samples/json_block_test.cc compares the two).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "workers/samples/sample_file.h"

namespace ringfeed {

class JsonBlock {
 public:
  // As JsonSamples.
  explicit JsonBlock(const std::vector<WantedField>& wanted);
  ~JsonBlock();
  JsonBlock(const JsonBlock&) = delete;
  JsonBlock& operator=(const JsonBlock&) = delete;

  // Lines, each with its "\n" but perhaps the last, that stay until the next call; 64 bytes behind
  // them must be readable. Takes all of them or some from the first on: line by line read() gives,
  // and begin() is called again with the first that is_in() does not know.
  void begin(std::string_view lines);
  [[nodiscard]] bool is_in(std::string_view line) const noexcept;
  // A line of the block without its end. Lines come in order, each at most once. False: ask
  // JsonSamples.
  [[nodiscard]] bool read(std::string_view line) noexcept;
  // The record of the line that was read last, until the next call: one behind the other.
  [[nodiscard]] std::span<const std::byte> head() const noexcept;
  [[nodiscard]] std::span<const std::byte> data() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfeed
