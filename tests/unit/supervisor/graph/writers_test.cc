// Specification of supervisor/graph's writers: drawings for people, Graphviz and programs, whatever
// the names are.
#include "supervisor/graph/writers.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ringfeed/shm/result.h"
#include "supervisor/graph/rails.h"
#include "tests/unit/supervisor/graph/graph_maker.h"

namespace ringfeed::graph {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

MATCHER(FitsTheScreen, "at most 80 columns") { return columns_of(arg) <= 80; }
MATCHER(IsAscii, "ASCII alone") {
  return std::all_of(arg.begin(), arg.end(),
                     [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
}

Graph running() {
  const MetricsReply metrics = its_metrics();
  return make_graph(running_feed(), &metrics);
}

// Every name says something that a form would obey.
constexpr const char* kHostile = "a\"b<c>&amp;\\N\n\x1b[31m]{|}\xff\xe2\x80\xae";
Graph hostile() {
  StatusReply status = running_feed();
  status.set_feed(kHostile);
  status.set_reason(kHostile);
  for (StageStatus& stage : *status.mutable_stages()) {
    stage.set_kind(kHostile);
    stage.set_progress(kHostile);
    for (LaneStatus& lane : *stage.mutable_lanes()) lane.set_group(kHostile);
  }
  for (RingStatus& ring : *status.mutable_rings()) ring.set_port(kHostile);
  status.mutable_outputs(0)->set_alias(kHostile);
  status.mutable_groups(0)->set_name(kHostile);
  status.mutable_groups(0)->set_output(kHostile);
  status.mutable_trainers(0)->set_group(kHostile);
  status.mutable_trainers(0)->set_output(kHostile);
  status.mutable_trainers(0)->set_client(kHostile);
  MetricsReply metrics = its_metrics();
  metrics.mutable_bottlenecks(0)->set_sentence(kHostile);
  return make_graph(status, &metrics);
}

// Many lanes, many branches, several outputs.
Graph wide() {
  StatusReply status = running_feed();
  StageStatus& sort = add_stage(status, "sort", "back");
  for (int i = 1; i < 40; ++i) add_lane(sort, "sort." + std::to_string(i), "back");
  for (int i = 0; i < 40; ++i) {
    const std::string name = "branch" + std::to_string(i);
    add_stage(status, name, "branches");
    add_ring(status, "sort." + std::to_string(i), name + ".0", "port" + std::to_string(i));
    add_output(status, name, "output" + std::to_string(i));
  }
  return make_graph(status, nullptr);
}

// ---- Text

TEST(GraphText, DrawsProcessesAsFramesAndQueuesAsRails) {
  EXPECT_EQ(graph_text(running(), true), R"(feed test: running for 12 s, process 99, 3.0 MiB
rates and shares of time over the last 4.0 s
╭─ process front, pid 4711 ────────────────────────────────────────────────────╮
│ ● source  a_kind, 1 lane                                                     │
│ │ output ██░░░░░░ 4 of 16 records → mix                                      │
│ ● mix  a_kind, 1 lane                                                        │
│ │ busy 25 %, starved 5 %, blocked 5 %                                        │
│ │ orders ░░░░░░░░ 0 of 32 records, 20.0 /s → mix.read                        │
│ ● mix.read  a_kind, 2 of 3 lanes                                ◀ bottleneck │
│ │ busy 90 %, starved 5 %, blocked 5 %                                        │
│ │ feedback ░░░░░░░░ 0 of 32 records, 30.0 /s ↑ mix                           │
│ │ output ████████ 128.0 KiB of 128.0 KiB, 40.0 /s → pack                     │
╰─┼────────────────────────────────────────────────────────────────────────────╯
╭─┼─ process back, pid 4711 ───────────────────────────────────────────────────╮
│ ● pack  a_kind, 1 lane                                                       │
│ │ output ██████░░ 6 of 8 slots, 12.5 batches/s → batches                     │
╰─┼────────────────────────────────────────────────────────────────────────────╯
  ◆ batches: up to 256 rows, 1.0 MiB each, 0 batches so far
      consumer group train: shared, policy block, 1 trainer, 2 batches behind
        trainer 0: pid 17, train.py
stage 'mix.read' limits: its 2 lanes are busy 90 % of the time
)");
}

TEST(GraphText, DrawsInAsciiWhereTheTerminalShowsNothingElse) {
  EXPECT_THAT(graph_text(running(), false), IsAscii());
  EXPECT_THAT(graph_text(hostile(), false), IsAscii());
  EXPECT_THAT(lines_of(graph_text(running(), false)).at(2), StartsWith("+- process front"));
}

// A queue that passes a stage keeps its rail; where two arrive, they join.
TEST(GraphText, BranchesAndJoins) {
  StatusReply status;
  status.set_feed("f");
  for (const char* stage : {"a", "b", "c"}) add_stage(status, stage, "g");
  add_ring(status, "a.0", "b.0", "left");
  add_ring(status, "a.0", "c.0", "right");
  add_ring(status, "b.0", "c.0", "on");
  EXPECT_EQ(graph_text(make_graph(status, nullptr), true),
            R"(feed f: as configured, not running: 3 lanes, 1 process, 0 B
╭─ process g ──────────────────────────────────────────────────────────────────╮
│ ● a  a_kind, 1 lane                                                          │
│ │ left 16 records, 64.0 KiB → b                                              │
│ ├─╮ right 16 records, 64.0 KiB → c                                           │
│ ● │ b  a_kind, 1 lane                                                        │
│ │ │ on 16 records, 64.0 KiB → c                                              │
│ ├─╯                                                                          │
│ ● c  a_kind, 1 lane                                                          │
╰──────────────────────────────────────────────────────────────────────────────╯
)");
}

TEST(GraphText, NothingObeysANameAndNothingIsWiderThanTheScreen) {
  for (const Graph& graph : {running(), hostile(), wide(), Graph{}}) {
    const std::string text = graph_text(graph, true);
    EXPECT_THAT(text, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xff"))));
    EXPECT_THAT(lines_of(text), Each(FitsTheScreen()));
  }
}

TEST(GraphText, SaysEachQueueEvenWithoutARailForIt) {
  const std::string text = graph_text(wide(), true);
  for (int i = 0; i < 40; ++i) {
    EXPECT_THAT(text, HasSubstr("port" + std::to_string(i) + " "));
    EXPECT_THAT(text, HasSubstr("output 'output" + std::to_string(i) + "': up to"));
  }
  EXPECT_THAT(text, HasSubstr("sort  a_kind, 40 lanes"));
}

TEST(GraphText, AFeedWithoutStagesIsOneLine) {
  EXPECT_EQ(lines_of(graph_text(make_graph(StatusReply(), nullptr), true)).size(), 1U);
}

TEST(GraphText, ALaneWithAProcessOfItsOwnIsSaidOnce) {
  StatusReply status;
  StageStatus& stage = *status.add_stages();
  stage.set_name("py");
  for (int i = 0; i < 3; ++i) {
    add_lane(stage, "py." + std::to_string(i), "py." + std::to_string(i));
  }
  EXPECT_THAT(graph_text(make_graph(status, nullptr), true),
              HasSubstr("processes py.0 to py.2, one for each lane"));
}

TEST(GraphText, ProcessesThatCannotBeDrawnTogetherAreFramesAgain) {
  StatusReply status;
  add_stage(status, "a", "one");
  add_stage(status, "b", "two");
  add_stage(status, "c", "one");
  add_ring(status, "a.0", "b.0");
  add_ring(status, "b.0", "c.0");
  EXPECT_THAT(graph_text(make_graph(status, nullptr), true), HasSubstr("process one (again)"));
}

TEST(Wrapped, BreaksBetweenWordsAndInLongOnes) {
  EXPECT_THAT(wrapped("one two three", 8, 2), ElementsAre("one two", "  three"));
  EXPECT_THAT(wrapped("abcdefghij", 4, 0), ElementsAre("abcd", "efgh", "ij"));
  EXPECT_THAT(wrapped("äöüß", 2, 0), ElementsAre("äö", "üß")) << "a character is one column";
  EXPECT_THAT(wrapped("", 4, 0), ElementsAre(""));
}

// ---- Graphviz

TEST(GraphDot, ProcessesAreClustersAndNamesAreNothingButLabels) {
  const std::string dot = graph_dot(running());
  EXPECT_THAT(dot, HasSubstr("label=\"process front, pid 4711\""));
  EXPECT_THAT(dot, HasSubstr("n2 [label=\"mix.read\\na_kind, 2 of 3 lanes\\nbusy 90 %"));
  EXPECT_THAT(dot, HasSubstr("n2 -> n1 [label=\"feedback\\l0 of 32 records, 30.0 /s\\l\", "
                             "style=dashed, constraint=false]"));
}

// Quotes and backslashes are escaped, what would be an entity is none, and a line stays one.
TEST(GraphDot, EscapesNames) {
  const std::string dot = graph_dot(hostile());
  EXPECT_THAT(dot, HasSubstr(R"(a\"b<c>&amp;amp;\\N\\n\\x1b[31m]{|}\\xff\\xe2\\x80\\xae)"));
  EXPECT_THAT(dot, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xff"))));
  EXPECT_THAT(graph_dot(make_graph(StatusReply(), nullptr)), StartsWith("digraph ringfeed {"));
}

// ---- JSON

TEST(GraphJson, NamesComeBackAsTheyWere) {
  const nlohmann::ordered_json json = graph_object(hostile());
  EXPECT_EQ(json["json_version"], 1);
  EXPECT_EQ(json["feed"], kHostile);
  EXPECT_EQ(json["outputs"][0]["groups"][0]["trainers"][0]["client"], kHostile);
  const std::string text = graph_json(hostile(), 2);
  EXPECT_THAT(nlohmann::json::parse(text)["nodes"][0]["kind"].get<std::string>(),
              StartsWith("a\"b<c>&amp;\\N\n\x1b[31m]{|}"))
      << "bytes that are not UTF-8 are replaced";
}

TEST(GraphJson, HasWhatIsKnownAlone) {
  const nlohmann::ordered_json json = graph_object(make_graph(running_feed(), nullptr));
  EXPECT_FALSE(json["nodes"][0].contains("busy_share"));
  EXPECT_FALSE(json["queues"][0].contains("records_per_s"));
  EXPECT_EQ(json["queues"][0]["fill_share"], 0.25);
  EXPECT_EQ(json["queues"][0]["from"], "source");
  EXPECT_EQ(graph_object(running())["bottlenecks"][0]["node"], "mix.read");
  EXPECT_EQ(graph_object(make_graph(StatusReply(), nullptr))["nodes"].size(), 0U);
}

// ---- SVG

// A program `dot` of our own in front of the PATH.
class Svg : public ::testing::Test {
 protected:
  Svg() : path_(::getenv("PATH")), directory_(::testing::TempDir() + "dot.XXXXXX") {
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
    ::setenv("PATH", directory_.c_str(), 1);
  }
  ~Svg() override {
    ::setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] std::string program() const { return directory_ + "/dot"; }
  void make_program(const std::string& lines) const {
    std::ofstream(program()) << "#!/bin/sh\n" << lines << "\n";
    ::system(("/bin/chmod +x " + program()).c_str());
  }
  static std::string refusal() {
    try {
      return "no refusal but " + graph_svg(running());
    } catch (const Error& error) {
      return error.message();
    }
  }
  const std::string path_;
  std::string directory_;
};

TEST_F(Svg, WithoutGraphvizItSaysWhatToInstall) {
  EXPECT_THAT(refusal(), AllOf(HasSubstr("apt install graphviz"), HasSubstr("--format dot")));
}

TEST_F(Svg, WhatTheProgramSaysIsInTheError) {
  make_program("echo 'syntax \033[31m error' >&2; exit 3");
  EXPECT_EQ(refusal(), R"(dot could not draw the graph (exit status 3): syntax \x1b[31m error)");
  make_program("kill -9 $$");
  EXPECT_THAT(refusal(), StartsWith("dot could not draw the graph (signal 9)"));
  make_program("exit 0");
  EXPECT_THAT(refusal(), StartsWith("dot could not draw the graph (exit status 0)")) << "silence";
}

TEST_F(Svg, GetsTheGraphAndGivesThePicture) {
  make_program("echo \"$@\"; /bin/cat");
  EXPECT_EQ(graph_svg(running()), "-Tsvg\n" + graph_dot(running()));
}

}  // namespace
}  // namespace ringfeed::graph
