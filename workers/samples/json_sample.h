// A JSON object as the fields of a sample.
//
//   string               text
//   true, false          bool
//   whole number         int64, beyond that uint64
//   other number         float64
//   null                 no field
//   array of numbers     int64, or float64 if one of them is no whole number; of booleans bool; of
//                        arrays of one shape, an array of more dimensions
//   other array, object  text: the JSON itself, without spaces
// A wanted type converts numbers where that loses no more than the rounding of floats does.
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
  // `wanted`: empty takes all members, under their names.
  explicit JsonSamples(std::vector<WantedField> wanted);
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
