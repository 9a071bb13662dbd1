// What the stage python_batcher calls: makes a batch of samples, in whatever language. An
// interpreter's, or a test's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ringfeed/worker/stage.h"
#include "workers/python/sample_function.h"

namespace ringfeed {

class BatchFunction {
 public:
  using Input = SampleFunction::Input;
  // Where a field of the batch goes: as many rows as there are inputs. Of text and bytes the bytes
  // of all rows one after the other, and rows + 1 offsets, int64, of which the first is 0.
  struct Column {
    std::span<std::byte> bytes;
    std::span<std::byte> offsets = {};
  };
  struct Outcome {
    // Name of the exception's type, or one of kBatchFaults; "": the batch has been made.
    std::string error = {};
    std::string traceback = {};  // for people
  };

  BatchFunction() = default;
  BatchFunction(const BatchFunction&) = delete;
  BatchFunction& operator=(const BatchFunction&) = delete;
  virtual ~BatchFunction() = default;

  // Makes a batch, a row of each input. What is in the columns before means nothing. None: what is
  // made is wanted by nobody. `seed`: of the function's random numbers.
  virtual Outcome run(std::span<const Input> inputs, std::uint64_t seed,
                      std::span<const Column> columns) = 0;
};

// What is wrong with a batch beside exceptions; each has a counter, skipped_NAME.
inline constexpr std::string_view kBatchFaults[] = {"missing_field", "wrong_type", "wrong_shape",
                                                    "too_large"};

using OpenBatchFunction =
    std::function<Result<std::unique_ptr<BatchFunction>>(const StageContext&)>;

// As set_function_opener() (sample_function.h).
void set_batch_opener(OpenBatchFunction open);
[[nodiscard]] const OpenBatchFunction& batch_opener() noexcept;

}  // namespace ringfeed
