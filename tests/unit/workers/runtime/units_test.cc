// The specification of dispatch: workers/runtime/ports.h, and "Order" in
// workers/include/ringfeed/worker/stage.h.
//
// Units and lanes. Unit u comes from producing lane u mod P and goes to consuming lane
// (u / block) mod C:
//
//   source lanes (P)     forwarding lanes (F)      sink lanes (C), block 2
//   0: u0 u2 u4 ...      0: u0 u3 u6 ...           0: u0 u1 u4 u5 ...
//   1: u1 u3 u5 ...      1: u1 u4 u7 ...           1: u2 u3 u6 u7 ...
//                        2: u2 u5 u8 ...
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Units of 0 to 3 records; a record's text is "unit.index".
std::vector<std::vector<std::string>> random_units(std::mt19937_64& random, std::size_t count) {
  std::vector<std::vector<std::string>> units(count);
  std::uniform_int_distribution<std::size_t> sizes(0, 3);
  for (std::size_t u = 0; u < count; ++u) {
    const std::size_t size = sizes(random);
    for (std::size_t i = 0; i < size; ++i) units[u].push_back(fmt::format("{}.{}", u, i));
  }
  return units;
}

void feed_units(LaneRig& rig, const std::vector<std::vector<std::string>>& units) {
  for (const std::vector<std::string>& unit : units) {
    // The end of a unit comes with its last record or, as after a commit, for itself.
    for (std::size_t i = 0; i < unit.size(); ++i) {
      rig.feed("in", {.bytes = unit[i]}, i + 1 == unit.size() && i % 2 == 0);
    }
    if (unit.size() % 2 == 0) rig.end_unit("in");
  }
}

struct Shape {
  std::uint32_t sources;
  std::uint32_t forwarders;
  std::uint32_t sinks;
  std::uint64_t block;
  friend void PrintTo(const Shape& shape, std::ostream* out) {
    *out << shape.sources << "x" << shape.forwarders << "x" << shape.sinks << " block "
         << shape.block;
  }
};
std::vector<Shape> every_shape() {
  std::vector<Shape> shapes;
  for (std::uint32_t p = 1; p <= 4; ++p) {
    for (std::uint32_t c = 1; c <= 4; ++c) {
      for (const std::uint64_t block : {1, 2, 5}) shapes.push_back({p, 1 + (p + c) % 4, c, block});
    }
  }
  return shapes;
}

void describe(LaneRig& rig, const Shape& shape, std::uint64_t capacity) {
  rig.add_source("in", shape.sources, {.capacity = capacity});
  rig.add_node("stage", function_node({.lanes = shape.forwarders, .capacity = capacity}, forward));
  rig.add_sink("out", "stage", shape.sinks, shape.block);
  rig.build();
}

class UnitsOrdered : public ::testing::TestWithParam<Shape> {};

TEST_P(UnitsOrdered, ComeInOneOrderWhateverTheLanes) {
  const Shape shape = GetParam();
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    // Any number of units: the last ones reach only some of the lanes, so lanes end early.
    const auto units = random_units(random, 20 + seed);
    std::vector<std::vector<std::string>> expected(shape.sinks);
    for (std::size_t u = 0; u < units.size(); ++u) {
      std::vector<std::string>& lane = expected[u / shape.block % shape.sinks];
      lane.insert(lane.end(), units[u].begin(), units[u].end());
    }
    LaneRig rig("feed_output { dispatch: ORDERED }");
    describe(rig, shape, 1 + seed % 4);
    feed_units(rig, units);
    rig.finish("in");
    if (seed % 2 == 0) {
      rig.run();
    } else {
      rig.run_random(random);
    }
    EXPECT_TRUE(rig.all_finished());
    for (std::uint32_t c = 0; c < shape.sinks; ++c) {
      EXPECT_EQ(texts(rig.got("out", c)), expected[c]) << "sink " << c;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Lanes, UnitsOrdered, ::testing::ValuesIn(every_shape()));

class UnitsRelaxed : public ::testing::TestWithParam<Shape> {};

TEST_P(UnitsRelaxed, ComeOnceAndWhole) {
  const Shape shape = GetParam();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const auto units = random_units(random, 30);
    LaneRig rig("feed_output { dispatch: RELAXED }");
    describe(rig, shape, 1 + seed % 4);
    feed_units(rig, units);
    rig.finish("in");
    rig.run_random(random);
    EXPECT_TRUE(rig.all_finished());
    std::size_t records = 0;
    for (const auto& unit : units) records += unit.size();
    std::set<std::string> seen;
    for (std::uint32_t c = 0; c < shape.sinks; ++c) {
      // On its lane a unit's records follow one another, from first to last.
      const std::vector<std::string> lane = texts(rig.got("out", c));
      for (std::size_t i = 0; i < lane.size();) {
        const std::vector<std::string>& unit = units[std::stoul(lane[i])];
        ASSERT_LE(i + unit.size(), lane.size());
        for (const std::string& text : unit) {
          EXPECT_EQ(lane[i++], text);
          EXPECT_TRUE(seen.insert(text).second) << text << " came twice";
        }
      }
    }
    EXPECT_EQ(seen.size(), records);
  }
}
INSTANTIATE_TEST_SUITE_P(Lanes, UnitsRelaxed, ::testing::ValuesIn(every_shape()));

// A lane that ends long before the others leaves gaps in the rotation, which are passed over.
TEST(UnitsOrderedEnds, OneLaneEarly) {
  LaneRig rig;
  rig.add_source("in", 3);
  rig.add_sink("out", "in", 2);
  rig.build();
  // Lane 1 puts one unit and ends; 0 and 2 put five.
  for (std::uint64_t u = 0; u < 15; ++u) {
    if (u % 3 == 1 && u > 1) {
      rig.end_unit("in");
    } else {
      rig.feed("in", {.bytes = std::to_string(u)});
    }
  }
  rig.finish_lane("in", 1);
  rig.run();
  rig.finish("in");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(texts(rig.got("out", 0)), ElementsAre("0", "2", "6", "8", "12", "14"));
  EXPECT_THAT(texts(rig.got("out", 1)), ElementsAre("1", "3", "5", "9", "11"));
}

TEST(UnitsOrderedEnds, WithoutASingleUnit) {
  LaneRig rig;
  rig.add_source("in", 3);
  rig.add_node("stage", function_node({.lanes = 2}, forward));
  rig.add_sink("out", "stage", 4);
  rig.build();
  rig.finish("in");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), IsEmpty());
}

// A record waits for the units before it, however many later ones there are.
TEST(UnitsOrdered, NothingOvertakes) {
  LaneRig rig;
  rig.add_source("in", 2);
  rig.add_sink("out", "in");
  rig.build();
  rig.feed("in", {.bytes = "0, first"}, false);
  // Unit 0 is still open. The next feed would go to it, so unit 1 is put by hand in lane 1.
  rig.feed("in", {.bytes = "0, second"});
  rig.feed("in", {.bytes = "1"});
  const std::vector<std::size_t> sources = rig.lanes_of("in");
  rig.round(sources[1]);
  rig.round(rig.lanes_of("out").front());
  EXPECT_THAT(rig.got("out"), IsEmpty()) << "unit 1 is there, unit 0 is not";
  rig.run();
  EXPECT_THAT(texts(rig.got("out")), ElementsAre("0, first", "0, second", "1"));
}

// A stage whose every record is a unit deals them out one by one.
TEST(UnitsPerRecord, GoRoundTheLanesInBlocks) {
  LaneRig rig;
  rig.add_source("in");
  rig.add_node("stage", function_node({.units = UnitRule::kRecord}, forward));
  rig.add_sink("out", "stage", 2, 3);
  rig.build();
  for (const RigRecord& record : numbered(0, 8)) rig.feed("in", record, false);
  rig.end_unit("in");
  rig.finish("in");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(texts(rig.got("out", 0)), ElementsAre("0", "1", "2", "6", "7"));
  EXPECT_THAT(texts(rig.got("out", 1)), ElementsAre("3", "4", "5"));
}

// A unit larger than the queue flows through it.
TEST(UnitsLarge, AreNotBoundByTheQueue) {
  for (const char* dispatch : {"ORDERED", "RELAXED"}) {
    LaneRig rig(fmt::format("feed_output {{ dispatch: {} }}", dispatch));
    rig.add_source("in", 2, {.capacity = 3});
    rig.add_node("stage", function_node({.lanes = 2, .capacity = 2}, forward));
    rig.add_sink("out", "stage", 2);
    rig.build();
    for (int unit = 0; unit < 4; ++unit) {
      for (const RigRecord& record : numbered(0, 50)) rig.feed("in", record, false);
      rig.end_unit("in");
    }
    rig.finish("in");
    rig.run();
    EXPECT_TRUE(rig.all_finished()) << dispatch;
    EXPECT_EQ(rig.got("out").size(), 200U) << dispatch;
  }
}

// ---- the sleeper's last look
//
// A port that found nothing says whether that has changed since. No is the licence to sleep until
// somebody rings; yes is the order to look again. A wrong no sleeps through work that is there, a
// wrong yes never sleeps.

struct Look {
  explicit Look(std::uint32_t producers, const char* dispatch = "ORDERED")
      : rig(fmt::format("feed_output {{ dispatch: {} }}", dispatch)) {
    rig.add_source("in", producers, {.capacity = 2});
    rig.add_sink("out", "in");
    rig.build();
    parts = std::make_unique<LaneParts>(rig.take_parts(rig.lanes_of("out").front()));
    port = &parts->inputs.front();
    port->start(0);
    for (InputPort::Ring& ring : port->rings) ring.end.attach();
  }
  void produce(std::uint32_t lane) { rig.round(rig.lanes_of("in")[lane]); }
  LaneRig rig;
  std::unique_ptr<LaneParts> parts;
  InputPort* port = nullptr;
};

TEST(InputLook, SeesARecordThatCameAfterTheEmptyPeek) {
  Look look(1);
  EXPECT_FALSE(look.port->peek().has_value());
  EXPECT_FALSE(look.port->moved());
  look.rig.feed("in", {.bytes = "a"});
  look.produce(0);
  EXPECT_TRUE(look.port->moved());
}

// peek() finds nothing; a record and the end are published; ended() looks, and says no. What it
// has seen must not be slept over.
TEST(InputLook, SeesARecordThatOnlyEndedHasSeen) {
  Look look(1);
  EXPECT_FALSE(look.port->peek().has_value());
  look.rig.feed("in", {.bytes = "a"});
  look.rig.finish("in");
  look.produce(0);
  EXPECT_FALSE(look.port->ended());
  EXPECT_TRUE(look.port->moved());
}

// Two lanes that never carry anything to this one (2 lanes to 2, units one by one) still have to
// close before it may end.
TEST(InputLook, SeesTheEndOfALaneThatCarriesNothingHere) {
  LaneRig rig;
  rig.add_source("in", 2);
  rig.add_sink("out", "in", 2);
  rig.build();
  LaneParts parts = rig.take_parts(rig.lanes_of("out").front());
  InputPort& port = parts.inputs.front();
  port.start(0);
  for (InputPort::Ring& ring : port.rings) ring.end.attach();
  rig.finish_lane("in", 0);
  rig.round(rig.lanes_of("in")[0]);
  EXPECT_FALSE(port.peek().has_value());
  EXPECT_FALSE(port.ended());
  EXPECT_FALSE(port.moved());
  rig.finish_lane("in", 1);
  rig.round(rig.lanes_of("in")[1]);
  EXPECT_TRUE(port.moved());
  EXPECT_TRUE(port.ended());
}

// In the middle of a unit only its ring matters; another one with records is no reason to stay up.
TEST(InputLook, InTheMiddleOfAUnitLooksAtItsRingAlone) {
  Look look(2, "RELAXED");
  look.rig.feed("in", {.bytes = "half a unit"}, false);
  look.produce(0);
  const auto record = look.port->peek();
  ASSERT_TRUE(record.has_value());
  EXPECT_FALSE(look.port->consume(*record->header));
  look.rig.end_unit("in");  // waits in lane 0
  look.rig.feed("in", {.bytes = "of lane 1"});
  look.produce(1);
  EXPECT_FALSE(look.port->peek().has_value());
  EXPECT_FALSE(look.port->moved()) << "would never sleep";
  look.produce(0);
  EXPECT_TRUE(look.port->moved());
}

// An attempt put one record into the ring of its unit and found it full for the second; taken back,
// it is between two units again. Room in another ring is no reason to stay up: the next attempt
// would meet the same ring.
TEST(OutputLook, LooksAtTheRingThatWasFull) {
  LaneRig rig("feed_output { dispatch: RELAXED }");
  rig.add_source("in", 1, {.capacity = 1});
  rig.add_sink("out", "in", 2);
  rig.build();
  for (const RigRecord& record : numbered(0, 2)) rig.feed("in", record);
  rig.run();
  ASSERT_EQ(rig.got("out", 1).size(), 1U) << "the second ring's consumer has moved";
  LaneParts parts = rig.take_parts(rig.lanes_of("in").front());
  OutputPort& port = parts.outputs.front();
  port.start(0);
  for (OutputPort::Ring& ring : port.rings) ring.end.attach();
  const auto touch = [](OutputPort::Ring& ring) { ring.saved = ring.end.savepoint(); };
  ASSERT_NE(port.reserve(1, touch), nullptr);
  port.put(1, {});
  EXPECT_EQ(port.reserve(1, touch), nullptr) << "the unit stays on its ring, which takes one";
  EXPECT_TRUE(port.full);
  port.rings[0].end.rollback(port.rings[0].saved);
  port.position = 0;
  EXPECT_FALSE(port.moved()) << "would never sleep";
}

// A row of empty units is longer than the queue that they are passed on to.
TEST(UnitsEmpty, InALongRowArePassedOnPieceByPiece) {
  for (const std::uint32_t lanes : {1U, 2U}) {
    LaneRig rig;
    rig.add_source("in", 3, {.capacity = 8});
    rig.add_node("stage", function_node({.lanes = lanes, .capacity = 1}, forward));
    rig.add_sink("out", "stage");
    rig.build();
    for (int i = 0; i < 50; ++i) rig.end_unit("in");
    rig.feed("in", {.bytes = "behind them"});
    rig.finish("in");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    EXPECT_THAT(texts(rig.got("out")), ElementsAre("behind them"));
  }
}

}  // namespace
}  // namespace ringfeed
