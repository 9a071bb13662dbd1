#include "supervisor/metrics/json_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace ringfeed::metrics {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonWriter, WritesWhatATreeWouldBe) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Json tree;
  tree["empty"] = Json::object();
  tree["none"] = Json::array();
  tree["text \"with\" \n"] = std::string("a\0b\x1b", 4);
  tree["numbers"] = {0.1,   1.0,   -0.0, 1e300, kNone, std::numeric_limits<double>::infinity(),
                     1e-07, 5e-324};
  tree["least"] = std::numeric_limits<std::int64_t>::min();
  tree["most"] = std::numeric_limits<std::uint64_t>::max();
  tree["nested"] = {{"list", {{{"a", true}}, {{"b", false}}}}, {"after", 1}};

  JsonWriter out;
  out.begin_object();
  out.name("empty");
  out.begin_object();
  out.end_object();
  out.name("none");
  out.begin_array();
  out.end_array();
  out.name("text \"with\" \n");
  out.value(std::string_view("a\0b\x1b", 4));
  out.name("numbers");
  out.begin_array();
  for (const Json& number : tree["numbers"]) out.value(number.get<double>());
  out.end_array();
  out.name("least");
  out.value(std::numeric_limits<std::int64_t>::min());
  out.name("most");
  out.value(std::numeric_limits<std::uint64_t>::max());
  out.name("nested");
  out.begin_object();
  out.name("list");
  out.begin_array();
  for (const bool first : {true, false}) {
    out.begin_object();
    out.name(first ? "a" : "b");
    out.value(first);
    out.end_object();
  }
  out.end_array();
  out.name("after");
  out.value(std::uint64_t{1});
  out.end_object();
  out.end_object();
  EXPECT_EQ(out.take(), tree.dump());
}

TEST(JsonWriter, ReplacesWhatIsNoUtf8) {
  JsonWriter out;
  out.value(std::string_view("a\xff\xc3"));
  EXPECT_EQ(out.take(), "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace ringfeed::metrics
