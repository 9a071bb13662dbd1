// What the stage python_source calls: gives samples, and with each of them a cursor, from which it
// can go on in another process. An interpreter's, or a test's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

inline constexpr std::size_t kCursorBytesMax = 4096;

class SourceFunction {
 public:
  struct Item {
    std::vector<std::byte> sample = {};  // empty: it could not be made, see `error`
    std::vector<std::byte> cursor = {};  // behind this sample; at most kCursorBytesMax
    std::string error = {};
    std::string traceback = {};
  };
  struct Items {
    std::vector<Item> items = {};
    bool end = false;            // the epoch has no more
    std::string error = {};      // the source itself raised, behind the items: its type
    std::string traceback = {};  // for people
  };

  SourceFunction() = default;
  SourceFunction(const SourceFunction&) = delete;
  SourceFunction& operator=(const SourceFunction&) = delete;
  virtual ~SourceFunction() = default;

  // The next items are those of this epoch (from 0) behind the cursor; an empty one: from its
  // beginning. `given`: how many came before.
  virtual void begin(std::uint64_t epoch, const std::vector<std::byte>& cursor,
                     std::uint64_t given) = 0;
  // Up to so many, as many as come at once; none, unless it is the end or raises: nothing is there
  // now.
  virtual Items next(std::size_t most) = 0;
};

using OpenSourceFunction =
    std::function<Result<std::unique_ptr<SourceFunction>>(const StageContext&)>;

// As set_function_opener() (sample_function.h).
void set_source_opener(OpenSourceFunction open);
[[nodiscard]] const OpenSourceFunction& source_opener() noexcept;

}  // namespace ringfeed
