// Specification of supervisor/feed/snapshots.h: whatever can be said of a snapshot, it ends.
#include "supervisor/feed/snapshots.h"

#include <gmock/gmock.h>

#include <new>
#include <string>

#include "proto/snapshot.pb.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::process {
namespace {

constexpr int kTurnMs = 100;
constexpr int kTurns = 100;

// One that nobody asked for has nobody to answer: what is said of it is a line of the log.
TEST(OwnSnapshots, OfWhichNothingCanBeSaidAreOver) {
  const auto memory = test::feed_memory();
  EventLoop loop;
  const Answers answers;
  const std::string feed = "a";
  int lines = 0;
  Snapshots snapshots(loop, *memory, feed, answers,
                      {[](std::uint64_t) {}, [](SnapshotManifest&, const auto&) {}, [] {},
                       [&](metrics::Level, std::string_view, const std::string&) {
                         ++lines;
                         throw std::bad_alloc();
                       }});
  const auto begin = [&] { return snapshots.take_own("/proc/none/of/these", [](const auto&) {}); };
  ASSERT_TRUE(begin());
  bool again = false;
  for (int turn = 0; turn < kTurns && !again; ++turn) {
    loop.run_once(kTurnMs);
    again = begin();
  }
  EXPECT_TRUE(again) << "it is thought to be under way";
  EXPECT_GE(lines, 1);
}

}  // namespace
}  // namespace ringfeed::process
