// Workers of a single domain, linked with nothing but that domain and those whose records it takes:
// each plans the stages that it has and names those that it has not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace ringfeed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ResultOf;
namespace fs = std::filesystem;

struct Served {
  std::string name;     // of the domain, and of the program after "ringfeed-worker-only-"
  std::string domains;  // whose stages it has, with spaces between
  friend void PrintTo(const Served& served, std::ostream* out) { *out << served.name; }
};

// Kind to domain: the file that the kind's settings are in, proto/stages/<domain>.proto.
std::string domain_of(const google::protobuf::FieldDescriptor& kind) {
  return fs::path(kind.message_type()->file()->name()).stem().string();
}

std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class DomainWorker : public ::testing::TestWithParam<Served> {
 protected:
  DomainWorker() {
    std::string name = (fs::temp_directory_path() / "ringfeed-domains-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~DomainWorker() override { fs::remove_all(directory_); }

  // What the program prints; it is given `input`.
  std::string ask(const std::string& words, const std::string& input, int status = 0) const {
    std::ofstream(directory_ / "in", std::ios::binary) << input;
    const std::string program =
        fmt::format("{}/bin/ringfeed-worker-only-{}", RINGFEED_BINARY_DIR, GetParam().name);
    const std::string command =
        fmt::format("'{}' {} < '{}' > '{}' 2> '{}'", program, words, (directory_ / "in").string(),
                    (directory_ / "out").string(), (directory_ / "errors").string());
    const int ended = std::system(command.c_str());  // NOLINT: no other thread
    EXPECT_EQ(WEXITSTATUS(ended), status) << command << read_text(directory_ / "errors");
    return read_text(directory_ / "out");
  }
  PipelinePlan plan(const DataLoaderConfig& config) const {
    PipelinePlan plan;
    EXPECT_TRUE(plan.ParseFromString(ask("--plan", config.SerializeAsString())));
    EXPECT_EQ(plan.stages_size(), config.stages_size());
    return plan;
  }
  bool serves(const google::protobuf::FieldDescriptor& kind) const {
    return fmt::format(" {} ", GetParam().domains).find(fmt::format(" {} ", domain_of(kind))) !=
           std::string::npos;
  }

 private:
  fs::path directory_;
};

auto text_is(const ::testing::Matcher<std::string>& text) {
  return ResultOf([](const PlanProblem& problem) { return problem.text(); }, text);
}

TEST_P(DomainWorker, PlansItsOwnStagesOfTheReadyPipelines) {
  const google::protobuf::Descriptor& kinds = *StageConfig::descriptor();
  int planned = 0;
  for (const auto& file : fs::directory_iterator(RINGFEED_SOURCE_DIR "/workers/pipelines")) {
    DataLoaderConfig config;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(read_text(file), &config));
    const PipelinePlan answer = plan(config);
    for (const StagePlan& stage : answer.stages()) {
      SCOPED_TRACE(file.path().string() + " " + stage.name());
      if (serves(*kinds.FindFieldByName(stage.kind()))) {
        EXPECT_GT(stage.nodes_size(), 0) << stage.DebugString();
        ++planned;
      } else {
        EXPECT_EQ(stage.nodes_size(), 0);
        EXPECT_THAT(
            stage.problems(),
            ElementsAre(text_is(fmt::format(
                "this worker has no stage of kind {}; use a worker that has", stage.kind()))));
      }
    }
  }
  EXPECT_GT(planned, 0);
}

TEST_P(DomainWorker, HasEveryKindOfItsDomainsAndNoOther) {
  DataLoaderConfig config;
  const google::protobuf::Descriptor& kinds = *StageConfig::descriptor();
  std::vector<const google::protobuf::FieldDescriptor*> asked;
  for (int i = 0; i < kinds.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const kind = kinds.field(i);
    if (kind->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (domain_of(*kind) == "plugin") continue;  // no domain of this tree
    StageConfig& stage = *config.add_stages();
    stage.set_name(kind->name());
    stage.GetReflection()->MutableMessage(&stage, kind);
    asked.push_back(kind);
  }
  const PipelinePlan answer = plan(config);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto refused = text_is(HasSubstr("this worker has no stage of kind"));
    const auto& problems = answer.stages(static_cast<int>(i)).problems();
    if (serves(*asked[i])) {
      EXPECT_THAT(problems, ::testing::Each(Not(refused))) << asked[i]->name();
    } else {
      EXPECT_THAT(problems, ElementsAre(refused)) << asked[i]->name();
    }
  }
}

TEST_P(DomainWorker, KnowsItsOwnFilesAndThoseOfRingfeed) {
  const bool games = GetParam().domains.ends_with("lc0");
  const bool samples = GetParam().domains.find("samples") != std::string::npos;
  const std::string tar = RINGFEED_SOURCE_DIR "/tests/data/lc0/lc0-data-sample.tar";
  EXPECT_THAT(ask(fmt::format("--inspect '{}'", tar), "", games || samples ? 0 : 1),
              HasSubstr(games     ? "a tar with 4 games"
                        : samples ? "a tar of samples"
                                  : "not a file that ringfeed reads"));
  EXPECT_THAT(ask("--inspect '" RINGFEED_SOURCE_DIR "/workers/pipelines/lc0.textproto'", ""),
              HasSubstr("a configuration of ringfeed with 5 stages"));
}

INSTANTIATE_TEST_SUITE_P(Domains, DomainWorker,
                         ::testing::ValuesIn(std::vector<Served>{RINGFEED_SERVED}),
                         [](const auto& served) { return served.param.name; });

}  // namespace
}  // namespace ringfeed
