// Specification of supervisor/metrics/log_line.h: what a line says is the same in every form.
#include "supervisor/metrics/log_line.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <time.h>

#include <nlohmann/json.hpp>
#include <string>

#include "ringfeed/shm/quote.h"

namespace ringfeed::metrics {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Parsed = nlohmann::json;

constexpr std::uint64_t kTimeUs = 1'782'902'700'123'456;  // 2026-07-01T10:45:00.123456Z

// In Berlin, where the clock is turned back in October.
class Lines : public ::testing::Test {
 protected:
  Lines() {
    ::setenv("TZ", "Europe/Berlin", 1);
    ::tzset();
  }
  ~Lines() override {
    ::unsetenv("TZ");
    ::tzset();
  }
  static LogLine line(std::string values) {
    return {.time_us = kTimeUs,
            .level = Level::kWarn,
            .event = "worker_died",
            .values = std::move(values),
            .feed = "lc0"};
  }
  static Parsed json(const LogLine& line) {
    const std::string text = json_form(line);
    EXPECT_THAT(text, EndsWith("}\n"));
    EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
    return Parsed::parse(text);
  }
};

TEST_F(Lines, TextIsForPeopleInTheirTime) {
  EXPECT_EQ(text_form(line("feed=lc0 group=sampler signal=9")),
            "2026-07-01T12:45:00.123 warning supervisor worker_died feed=lc0 group=sampler "
            "signal=9\n");
}

TEST_F(Lines, JsonHasTheValuesAsMembers) {
  EXPECT_EQ(json_form(line("feed=lc0 group=sampler pid=4711 signal=9 share=0.25 "
                           "reason=\"it was \\\"killed\\\"\"")),
            R"({"time":"2026-07-01T10:45:00.123456Z","level":"warning","event":"worker_died",)"
            R"("process":"supervisor","feed":"lc0","group":"sampler","pid":4711,"signal":9,)"
            R"("share":0.25,"reason":"it was \"killed\""})"
            "\n");
}

TEST_F(Lines, NamesOfDigitsAreNoNumbers) {
  const Parsed read =
      json(line("group=7 client=" + log_value("2024") + " version=" + log_value("1.2.3") +
                " code=007 seed=18446744073709551615 a=-5 b=-9223372036854775808"));
  EXPECT_EQ(read["group"], "7");
  EXPECT_EQ(read["client"], "2024");
  EXPECT_EQ(read["version"], "1.2.3");
  EXPECT_EQ(read["code"], "007");
  EXPECT_EQ(read["seed"], "18446744073709551615") << "no double holds it";
  EXPECT_EQ(read["a"], -5);
  EXPECT_EQ(read["b"], "-9223372036854775808");
}

TEST_F(Lines, ASentenceBehindTheValuesIsTheMessage) {
  const Parsed read = json(line("stage=loader count=3 path=/data/a.tar: No such file: look again"));
  EXPECT_EQ(read["path"], "/data/a.tar");
  EXPECT_EQ(read["count"], 3);
  EXPECT_EQ(read["message"], "No such file: look again");
  EXPECT_EQ(json(line("file=\"a b\": broken"))["message"], "broken");
  EXPECT_EQ(json(line("it is only words = these"))["message"], "it is only words = these");
}

TEST_F(Lines, AForeignNameDoesNotTakeTheLinesOwn) {
  const Parsed read = json(line("level=9 time=now event=other feed=else a=1 a=2"));
  EXPECT_EQ(read["level"], "warning");
  EXPECT_EQ(read["level_"], 9);
  EXPECT_EQ(read["time_"], "now");
  EXPECT_EQ(read["event_"], "other");
  EXPECT_EQ(read["feed"], "lc0");
  EXPECT_EQ(read["feed_"], "else");
  EXPECT_EQ(read["a"], 1);
  EXPECT_EQ(read["a_"], 2);
}

TEST_F(Lines, JsonIsValidWhateverTheBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(json(line("path=" + in_quotes(bytes)))["path"].get<std::string>().substr(0, 8),
            "\\x00\\x01");
  // Also if somebody has forgotten to escape them.
  EXPECT_TRUE(json(line("path=" + bytes)).contains("event"));
  EXPECT_TRUE(json(line(bytes)).contains("event"));
  // And what a stage prints.
  EXPECT_THAT(json(worker_line(bytes, kTimeUs))["message"].get<std::string>(), HasSubstr("\\xff"));
}

TEST_F(Lines, ALineOfAWorkerIsReadBack) {
  const LogLine read = worker_line(
      "2026-07-01T12:44:59.987 warning worker/loader file_unreadable stage=loader count=2 "
      "path=/x: broken",
      kTimeUs);
  EXPECT_EQ(read.time_us, kTimeUs - 136'456);
  EXPECT_EQ(read.level, Level::kWarn);
  EXPECT_EQ(read.event, "file_unreadable");
  const Parsed object = json(read);
  EXPECT_EQ(object["process"], "worker/loader");
  EXPECT_EQ(object["stage"], "loader");
  EXPECT_EQ(object["message"], "broken");
}

TEST_F(Lines, WhatAPythonStagePrintsIsOutput) {
  const LogLine read = worker_line("2026-07-01T12:44:59.987 info counts.0 | so far: a=1", kTimeUs);
  EXPECT_EQ(read.event, "output");
  EXPECT_EQ(read.stage, "counts");
  EXPECT_EQ(read.message, "so far: a=1");
}

TEST_F(Lines, AnythingElseIsOutputToo) {
  for (const char* text :
       {"", "/lib/libc.so.6(+0x3c050)[0x7f47f52d8050]", "2026-07-01 12:44 info x",
        "2026-07-01T12:44:59.987 shout worker/x e", "2026-07-01T12:44:59.987"}) {
    const LogLine read = worker_line(text, kTimeUs);
    EXPECT_EQ(read.event, "output") << text;
    EXPECT_EQ(read.time_us, kTimeUs);
    EXPECT_EQ(read.message, text);
  }
}

// 2026-10-25, 02:30 is twice: 00:30 and 01:30 UTC.
TEST_F(Lines, AnHourThatIsTwiceIsTheNearerOne) {
  constexpr std::uint64_t kFirst = 1'792'888'200'000'000;
  constexpr std::uint64_t kHour = 3'600'000'000;
  const char* const text = "2026-10-25T02:30:00.000 info worker/x e";
  EXPECT_EQ(worker_line(text, kFirst + 1'000'000).time_us, kFirst);
  EXPECT_EQ(worker_line(text, kFirst + kHour + 1'000'000).time_us, kFirst + kHour);
}

TEST_F(Lines, TheJournalGetsFields) {
  LogLine full = line("feed=lc0 group=sampler signal=9");
  full.message = "two\nlines";
  const std::string entry = journal_form(full);
  EXPECT_THAT(entry, HasSubstr("PRIORITY=4\n"));
  EXPECT_THAT(entry, HasSubstr("RINGFEED_EVENT=worker_died\n"));
  EXPECT_THAT(entry, HasSubstr("RINGFEED_FEED=lc0\nRINGFEED_GROUP=sampler\nRINGFEED_SIGNAL=9\n"));
  // With a line end a value has its length before it, 64 bits, little-endian.
  const std::string text = "worker_died feed=lc0 group=sampler signal=9 two\nlines";
  EXPECT_THAT(entry, HasSubstr(std::string("MESSAGE\n") + static_cast<char>(text.size()) +
                               std::string(7, '\0') + text + "\n"));
  EXPECT_THAT(journal_form(line("a=1")), Not(HasSubstr(std::string(1, '\0'))));
}

TEST(Levels, HaveTheNamesOfTheCommandLineAndOfTheConfiguration) {
  for (const Level level : {Level::kDebug, Level::kInfo, Level::kWarn, Level::kError}) {
    EXPECT_EQ(find_level(name_of(level)), level);
  }
  EXPECT_EQ(find_level("WARN"), Level::kWarn);
  EXPECT_EQ(find_level("loud"), std::nullopt);
}

}  // namespace
}  // namespace ringfeed::metrics
