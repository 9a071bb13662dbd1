// The rows of one file in a lane's arena, kept until all of them are there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/io/row_batch.h"
#include "workers/kit/place_pool.h"

namespace ringfeed {

// Records of rows one behind the other in a chain of places.
class FileRows {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : head(layout.word()), tail(layout.word()), records(layout.word()) {}
    Word head;
    Word tail;
    Word records;
  };
  // Records that one call of step() gives up at most.
  static constexpr std::uint64_t kGivenUpMax = 8;

  explicit FileRows(const State& state) : state_(state) {}

  [[nodiscard]] std::uint64_t records(const Step& step) const noexcept {
    return step.load(state_.records);
  }
  // Adds a record. False: no room now.
  [[nodiscard]] bool keep(Step& step, PlacePool& places,
                          std::span<const std::byte> record) noexcept;
  // Gives up to kGivenUpMax records up, from the first one on. True: none is left.
  bool give_up(Step& step, PlacePool& places) noexcept;
  // All of them, as views that hold until one is given up. Records without rows are gaps.
  void look(const Step& step, const PlacePool& places,
            std::vector<formats::RowBatch>& batches) const;

 private:
  State state_;
};

struct RowPlace {
  std::uint32_t batch;
  std::uint32_t row;
};

}  // namespace ringfeed
