// A trainer that outlives the lanes: it takes the batches in order, keeps a few, gives them back.
//
// All that it remembers are two numbers, so that the trainer of a copied state is the trainer of
// that moment. What it takes it compares with the batches of the undisturbed run at once, and again
// when it gives them back: nobody may have written a slot that it held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ringfeed/shm/feed.h"
#include "tests/support/rig/lane_rig.h"

namespace ringfeed::crash {

class Trainer {
 public:
  struct Position {
    std::uint64_t taken = 0;  // batches 1 .. taken were taken
    std::uint64_t given_back = 0;
  };

  // Keeps the newest `hold` batches until the feed has ended.
  Trainer(testing::LaneRig& rig, std::uint64_t hold);
  // The batches that must come; without them it keeps those that do.
  void expect(const std::vector<testing::RigBatch>* batches) { expected_ = batches; }
  void set(Position position) { position_ = position; }
  [[nodiscard]] Position position() const { return position_; }

  // Takes the next batch if it is published, gives back what is too much; true: something moved.
  bool act();
  // Has the feed ended, with everything taken and given back?
  [[nodiscard]] bool at_end() const;
  [[nodiscard]] const std::vector<testing::RigBatch>& batches() const { return kept_; }
  // What was not as expected, first of all; empty: nothing.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }

 private:
  [[nodiscard]] const shm::Descriptor& descriptor(std::uint64_t s) const;
  [[nodiscard]] bool closed() const;
  [[nodiscard]] testing::RigBatch look(std::uint64_t s) const;
  void check(std::uint64_t s, const char* when);

  shm::FeedGeometry geometry_;
  std::uint64_t hold_;
  const std::byte* control_ = nullptr;
  const std::byte* payload_ = nullptr;
  shm::GroupPage* group_ = nullptr;
  const std::vector<testing::RigBatch>* expected_ = nullptr;
  std::vector<testing::RigBatch> kept_;
  Position position_;
  std::string wrong_;
};

}  // namespace ringfeed::crash
