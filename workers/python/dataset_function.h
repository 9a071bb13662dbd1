// What the stage dataset_batcher calls: makes the batch that a trainer has asked for, in whatever
// language. An interpreter's, or a test's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class DatasetFunction {
 public:
  // What trainers read of a batch.
  using Head = std::uint64_t[16];
  struct Request {
    std::uint64_t number = 0;  // of the batch
    std::uint64_t kind = 0;
    std::span<const std::byte> bytes;
    std::uint32_t slot = 0;  // of the feed, from 0: no other batch is there now
    // Places of samples in this request that have killed processes too often; kTogether: what is
    // done with all of them.
    std::span<const std::uint32_t> condemned;
  };
  struct Outcome {
    Head head = {};
    std::optional<std::vector<std::byte>> state;  // none: as before
    bool appended = false;  // `state` goes behind what there is, in place of replacing it
    std::uint64_t samples = 0;
    std::uint64_t left_out = 0;
    std::uint64_t fetch_ns = 0;
    std::uint64_t collate_ns = 0;
    bool raised = false;     // the batch is an exception of the user's code
    std::string fault = {};  // of the function itself: the feed cannot go on
  };
  static constexpr std::uint32_t kTogether = 0x3fffff;

  DatasetFunction() = default;
  DatasetFunction(const DatasetFunction&) = delete;
  DatasetFunction& operator=(const DatasetFunction&) = delete;
  virtual ~DatasetFunction() = default;

  // Where the requests are (ringfeed/shm/requests.h); as long as this lives.
  [[nodiscard]] virtual std::span<std::byte> requests() = 0;
  // Before the first batch of this process: what the last one of its lane has left, with all that
  // was appended since; empty if there was none.
  virtual void begin(std::span<const std::byte> state) = 0;
  // Makes the batch. `works_on` is told the place of each sample before it is touched, and
  // kTogether before anything is done with all of them.
  virtual Outcome run(const Request& request,
                      const std::function<void(std::uint32_t place)>& works_on) = 0;
};

using OpenDatasetFunction =
    std::function<Result<std::unique_ptr<DatasetFunction>>(const StageContext&)>;

// As set_function_opener() (sample_function.h).
void set_dataset_opener(OpenDatasetFunction open);
[[nodiscard]] const OpenDatasetFunction& dataset_opener() noexcept;

}  // namespace ringfeed
