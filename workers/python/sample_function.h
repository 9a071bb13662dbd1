// What a Python stage calls: a function from samples to samples, in whatever language. The stage
// knows this; the interpreter is behind it, in a program of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

class SampleFunction {
 public:
  struct Input {
    std::span<const std::byte> sample;  // ringfeed/worker/sample.h; good until run() returns
    std::uint64_t tag[2];               // its lineage
    // Of the function's random numbers: from the seed, the stage and the lineage, so that a sample
    // that is given to it again draws the same.
    std::uint64_t seed;
  };
  struct Outcome {
    std::vector<std::vector<std::byte>> samples = {};  // none: the sample is left out
    std::string error = {};      // name of the exception's type; "": there was none
    std::string traceback = {};  // for people
  };

  SampleFunction() = default;
  SampleFunction(const SampleFunction&) = delete;
  SampleFunction& operator=(const SampleFunction&) = delete;
  virtual ~SampleFunction() = default;

  // One outcome for each input, in their order.
  virtual void run(std::span<const Input> inputs, std::vector<Outcome>& outcomes) = 0;
};

// Makes the function of a stage, in the process and thread that will call it. kConfiguration: the
// object cannot be had, and why.
using OpenSampleFunction =
    std::function<Result<std::unique_ptr<SampleFunction>>(const StageContext&)>;

// What opens functions in this program; empty: nothing does, and it can only plan for them. Said
// once, before stages are registered.
void set_function_opener(OpenSampleFunction open);
[[nodiscard]] const OpenSampleFunction& function_opener() noexcept;

}  // namespace ringfeed
