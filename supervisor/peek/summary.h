// An array in a few numbers, whatever is in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "supervisor/peek/observed_batch.h"

namespace ringfeed::peek {

struct Summary {
  std::uint64_t items = 0;
  // Of numbers that are finite; nullopt: there is none, or the type has no order.
  struct Range {
    double min = 0;
    double max = 0;
    double mean = 0;
    double std = 0;
    std::string min_text;  // to the last digit, also of a number of 64 bits
    std::string max_text;
  };
  std::optional<Range> range;
  std::uint64_t zeros = 0;
  std::uint64_t nans = 0;
  std::uint64_t infinities = 0;
  std::vector<std::string> first;  // elements
};

// `first`: number of elements to show.
[[nodiscard]] Summary summarise(const ObservedArray& array, std::size_t first);

}  // namespace ringfeed::peek
