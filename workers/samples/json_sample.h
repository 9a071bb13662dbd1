// A JSON object as the fields of a sample.
//
//   string               text; with half of a surrogate pair bytes, that half as if it were a letter
//   true, false          bool
//   whole number         int64, beyond that uint64
//   other number         float64, NaN, Infinity and -Infinity too
//   null                 no field
//   array of numbers     int64, or uint64, or float64 if one of them is no whole number; of booleans
//                        bool; of arrays of one shape, an array of more dimensions
//   other array, object  text: the JSON itself, without spaces; so is a number that none of the
//                        types holds
// Of members of one name the last one counts. A wanted type converts numbers, and truth values to 0
// and 1, where that loses no more than the rounding of floats does; what is finite stays so, and
// 5.0 is a whole number. Text and bytes take the JSON of any value but strings. What is not wanted
// has to be JSON, of any depth and size, and no more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {

class JsonSamples {
 public:
  // `wanted`: empty takes all members, under their names, but for empty names and those of more
  // than 255 bytes. `strict`: a line with NaN or an infinity is no JSON.
  explicit JsonSamples(std::vector<WantedField> wanted, bool strict = false);
  ~JsonSamples();
  JsonSamples(const JsonSamples&) = delete;
  JsonSamples& operator=(const JsonSamples&) = delete;

  struct Outcome {
    SampleFault fault = SampleFault::kNone;
    std::string text = {};                     // what is wrong, for the log
    std::span<const SampleField> fields = {};  // until the next call
  };
  // At least 64 bytes behind the text must be readable.
  [[nodiscard]] Outcome read(std::string_view text);

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace ringfeed
