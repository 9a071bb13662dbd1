// What holds for every kind of stage that is registered, tried with the kind's own example
// (StageType::example). A kind that comes is tried from the day that it is written; nothing here
// names one.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "ringfeed/shm/requests.h"
#include "ringfeed/worker/control.h"
#include "ringfeed/worker/sample.h"
#include "tests/conformance/makers.h"
#include "tests/support/makers/message_maker.h"
#include "tests/support/rig/lane_rig.h"
#include "workers/programs/all.h"
#include "workers/python/batch_function.h"
#include "workers/python/dataset_function.h"
#include "workers/python/sample_function.h"
#include "workers/python/source_function.h"
#ifdef RINGFEED_ARROW
#include "workers/io/arrow_library.h"
#else
#include "workers/io/arrow_readers.h"
#endif

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

const formats::ArrowReaders* arrow_readers() {
#ifdef RINGFEED_ARROW
  return &formats::kArrowReaders;
#else
  static constexpr formats::ArrowReaders kNone{};  // no file is opened
  return &kNone;
#endif
}

// Stands where an interpreter would: gives back what it gets.
class Unchanged final : public SampleFunction {
 public:
  void run(std::span<const Input> inputs, std::vector<Outcome>& outcomes) override {
    for (const Input& input : inputs) {
      outcomes.push_back({.samples = {{input.sample.begin(), input.sample.end()}}});
    }
  }
};

// Stands for a function that makes batches: stacks the fields of the samples.
class Stacked final : public BatchFunction {
 public:
  explicit Stacked(const StageContext& context) : config_(context.config.python_batcher()) {}
  Outcome run(std::span<const Input> inputs, std::uint64_t,
              std::span<const Column> columns) override {
    for (int f = 0; f < config_.fields_size(); ++f) {
      std::uint64_t at = 0;
      for (std::size_t row = 0; row < inputs.size(); ++row) {
        const std::optional<SampleView> sample = SampleView::open(inputs[row].sample);
        const auto field = sample ? sample->find(config_.fields(f).name()) : std::nullopt;
        if (!field || dtype_name(field->dtype) != config_.fields(f).dtype() ||
            !field->shape.empty()) {
          return {.error = "wrong_type", .traceback = "a field is missing or another one"};
        }
        if (columns.empty()) continue;
        const Column& column = columns[static_cast<std::size_t>(f)];
        if (!column.offsets.empty()) std::memcpy(column.offsets.data() + 8 * row, &at, 8);
        std::ranges::copy(field->data, column.bytes.data() + at);
        at += field->data.size();
        if (!column.offsets.empty()) std::memcpy(column.offsets.data() + 8 * (row + 1), &at, 8);
      }
    }
    return {};
  }

 private:
  const PythonBatcherConfig& config_;
};

// Stands for a source in Python: the lines of the files in the first directory of python_path; a
// line that is no JSON is an error. The cursor is the number of the next line.
class Lines final : public SourceFunction {
 public:
  explicit Lines(const StageContext& context) {
    std::set<std::filesystem::path> files;
    for (const auto& entry :
         std::filesystem::directory_iterator(context.config.python_source().python_path(0))) {
      if (entry.path().extension() == ".jsonl") files.insert(entry.path());
    }
    for (const std::filesystem::path& file : files) {
      std::ifstream stream(file);
      for (std::string line; std::getline(stream, line);) lines_.push_back(line);
    }
  }

  void begin(std::uint64_t, const std::vector<std::byte>& cursor, std::uint64_t) override {
    next_ = cursor.empty() ? 0 : std::to_integer<std::size_t>(cursor[0]);
  }
  Items next(std::size_t most) override {
    Items items;
    for (; next_ < lines_.size() && items.items.size() < most; ++next_) {
      Item& item = items.items.emplace_back();
      item.cursor = {static_cast<std::byte>(next_ + 1)};
      const std::string& line = lines_[next_];
      if (!nlohmann::json::accept(line)) {
        item.error = "ValueError";
        item.traceback = "it is no JSON";
        continue;
      }
      const SampleField field{.name = "line",
                              .dtype = SampleDtype::kBytes,
                              .data = std::as_bytes(std::span(line.data(), line.size()))};
      item.sample.resize(*sample_bytes({&field, 1}));
      write_sample(item.sample, {&field, 1});
    }
    items.end = items.items.empty();
    return items;
  }

 private:
  std::vector<std::string> lines_;
  std::size_t next_ = 0;
};

// Seven paths and the end of a listing, whatever the URL; in an endless run nothing comes behind.
class Listing final : public SourceFunction {
 public:
  void begin(std::uint64_t, const std::vector<std::byte>&, std::uint64_t) override { next_ = 0; }
  Items next(std::size_t most) override {
    Items items;
    for (; next_ < 8 && items.items.size() < most; ++next_) {
      const std::string path = next_ == 7 ? "" : fmt::format("/cache/objects/s3/b/{}", next_);
      const std::int64_t number = next_ + 1;
      const std::array fields{
          SampleField{
              .name = "path", .dtype = SampleDtype::kBytes, .data = std::as_bytes(std::span(path))},
          SampleField{.name = "version",
                      .dtype = SampleDtype::kInt64,
                      .data = std::as_bytes(std::span(&number, 1))}};
      Item& item = items.items.emplace_back();
      item.sample.resize(*sample_bytes(fields));
      write_sample(item.sample, fields);
      item.cursor = {std::byte{1}};
    }
    return items;
  }

 private:
  int next_ = 0;
};

// Stands for a trainer with a dataset: asks for 40 batches. Each has its number, and how many the
// lane has made before it, which it knows from the state alone.
class Asked final : public DatasetFunction {
 public:
  Asked() {
    constexpr std::uint64_t kEntries = 64;
    table_.resize(sizeof(shm::RequestsHead) + kEntries * sizeof(shm::RequestEntry));
    auto* const head = reinterpret_cast<shm::RequestsHead*>(table_.data());
    *head = {.magic = shm::kRequestsMagic,
             .entry_count = kEntries,
             .bytes = table_.size(),
             .lane_count = 1,
             .zero = {}};
    for (std::uint64_t s = 1; s < kEntries; ++s) {
      shm::put_request(table_.data(), s, 0, 0, s <= 40 ? 1 : shm::kNoMoreRequests);
    }
  }
  std::span<std::byte> requests() override { return table_; }
  void begin(std::span<const std::byte> state) override {
    if (!state.empty()) std::memcpy(&made_, state.data(), sizeof made_);
  }
  Outcome run(const Request& request, const std::function<void(std::uint32_t)>& works_on) override {
    works_on(0);
    Outcome outcome;
    outcome.head[0] = request.number;
    outcome.head[1] = made_++;
    outcome.samples = 1;
    outcome.state.emplace(sizeof made_);
    std::memcpy(outcome.state->data(), &made_, sizeof made_);
    return outcome;
  }

 private:
  std::vector<std::byte> table_;
  std::uint64_t made_ = 0;
};

std::vector<StageType> all_types() {
  set_source_opener([](const StageContext& context) -> Result<std::unique_ptr<SourceFunction>> {
    if (context.config.has_remote_files()) {
      return Result<std::unique_ptr<SourceFunction>>(std::make_unique<Listing>());
    }
    return Result<std::unique_ptr<SourceFunction>>(std::make_unique<Lines>(context));
  });
  set_function_opener([](const StageContext&) {
    return Result<std::unique_ptr<SampleFunction>>(std::make_unique<Unchanged>());
  });
  set_batch_opener([](const StageContext& context) {
    return Result<std::unique_ptr<BatchFunction>>(std::make_unique<Stacked>(context));
  });
  set_dataset_opener([](const StageContext&) {
    return Result<std::unique_ptr<DatasetFunction>>(std::make_unique<Asked>());
  });
  Registry registry;
  register_all_stages(registry);
  return registry.types();
}

// The message of a stage's own settings.
Message& own_settings(StageConfig& stage) {
  const FieldDescriptor* const kind = stage.GetDescriptor()->FindFieldByName(stage_kind(stage));
  return *stage.GetReflection()->MutableMessage(&stage, kind);
}

// All texts of the message and of those in it, each as `change` has it afterwards.
template <typename Change>
void each_text(Message& message, const Change& change) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        if (field->is_repeated()) {
          reflection.SetRepeatedString(&message, field, i,
                                       change(reflection.GetRepeatedString(message, field, i)));
        } else {
          reflection.SetString(&message, field, change(reflection.GetString(message, field)));
        }
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        each_text(field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, i)
                                       : *reflection.MutableMessage(&message, field),
                  change);
      }
    }
  }
}

// The kind's example on data of its own, run in the test's process.
class Example {
 public:
  Example(const StageType& type, const std::string& data)
      : kind_(type.kind), config_(example_of(type)) {
    config_.set_epochs(1);
    config_.set_seed(3);
    each_text(config_, [&data](const std::string& text) {
      return text.starts_with("/data") ? data + text.substr(5) : text;
    });
  }

  [[nodiscard]] bool has(const std::string& setting) { return field(setting) != nullptr; }
  void set(const std::string& setting, std::uint64_t value) {
    Message& own = own_settings(stage());
    if (field(setting)->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      own.GetReflection()->SetUInt32(&own, field(setting), static_cast<std::uint32_t>(value));
    } else {
      own.GetReflection()->SetUInt64(&own, field(setting), value);
    }
  }

  void build() {
    std::string text;
    google::protobuf::TextFormat::PrintToString(config_, &text);
    rig_ = std::make_unique<LaneRig>(text, arrow_readers());
    std::set<std::string> read;
    for (StageConfig& stage : *config_.mutable_stages()) {
      each_text(own_settings(stage), [&read](const std::string& value) {
        read.insert(value);
        return value;
      });
      std::string stage_text;
      google::protobuf::TextFormat::PrintToString(stage, &stage_text);
      rig_->add_stage(stage_text);
    }
    Registry registry;
    register_all_stages(registry);
    plan_ = plan_pipeline(config_, registry);
    for (const StagePlan& stage : plan_.stages()) {
      for (const PortPlan& port : stage.outputs()) {
        const std::string name = stage.name() + "." + port.name();
        if (port.record_type() == "batches") {
          last_.push_back(stage.name());
          batch_ = stage.batch();
        } else if (!read.contains(name) &&
                   !(port.name() == "output" && read.contains(stage.name()))) {
          rig_->add_sink("sink of " + name, name);
          sinks_.push_back("sink of " + name);
          last_.push_back(sinks_.back());
        }
      }
    }
    rig_->build();
  }

  // Rounds of all lanes in turn, with `before` before each, until everything has come out. False:
  // it did not in a minute.
  [[nodiscard]] bool run(const std::function<void(std::size_t lane)>& before = {}) {
    return rig_->run_until([&] {
      for (std::size_t lane = 0; lane < rig_->lane_count(); ++lane) {
        if (before) before(lane);
        rig_->round(lane);
      }
      return std::ranges::all_of(last_, [this](const std::string& node) {
        return std::ranges::all_of(rig_->lanes_of(node),
                                   [this](std::size_t lane) { return rig_->finished(lane); });
      });
    });
  }

  // What came out: records of each output that nobody reads, and batches, array by array.
  [[nodiscard]] std::vector<std::string> results() {
    std::vector<std::string> all;
    for (const std::string& sink : sinks_) {
      for (const RigRecord& record : rig_->got(sink)) {
        all.push_back(fmt::format("{} {}: {}", sink, record.user, record.bytes));
      }
    }
    for (const RigBatch& batch : rig_->batches()) {
      std::string& seen = all.emplace_back(fmt::format("batch of {} rows: ", batch.rows));
      for (const TensorSpec& tensor : batch_.tensors()) seen += array(batch, tensor);
    }
    return all;
  }
  LaneRig& rig() { return *rig_; }
  [[nodiscard]] const PipelinePlan& plan() const { return plan_; }

 private:
  StageConfig& stage() {
    return *std::ranges::find_if(*config_.mutable_stages(), [this](const StageConfig& stage) {
      return stage_kind(stage) == kind_;
    });
  }
  const FieldDescriptor* field(const std::string& setting) {
    return own_settings(stage()).GetDescriptor()->FindFieldByName(setting);
  }
  // The bytes of an array: what lies between arrays is anything.
  static std::string array(const RigBatch& batch, const TensorSpec& tensor) {
    static const std::map<std::string, std::uint64_t> kBytes = {
        {"bool", 1},  {"int8", 1},   {"uint8", 1},   {"int16", 2}, {"float16", 2}, {"bfloat16", 2},
        {"int32", 4}, {"uint32", 4}, {"float32", 4}, {"int64", 8}, {"uint64", 8},  {"float64", 8}};
    std::uint64_t bytes = kBytes.at(tensor.dtype());
    for (const std::int64_t size : tensor.shape()) {
      bytes *= size == -1 ? batch.rows
               : size < 0 ? batch.ragged[static_cast<std::size_t>(-2 - size)]
                          : static_cast<std::uint64_t>(size);
    }
    RF_CHECK(tensor.offset() + bytes <= batch.bytes.size(), bytes);
    return {reinterpret_cast<const char*>(batch.bytes.data()) + tensor.offset(), bytes};
  }

  std::string kind_;
  DataLoaderConfig config_;
  PipelinePlan plan_;
  BatchSchema batch_;
  std::unique_ptr<LaneRig> rig_;
  std::vector<std::string> sinks_;
  std::vector<std::string> last_;  // nodes that end when everything has come out
};

// Equal, or which result is the first that is not.
::testing::AssertionResult same(const std::vector<std::string>& got,
                                const std::vector<std::string>& expected) {
  if (got == expected) return ::testing::AssertionSuccess();
  const auto [at, other] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  static_cast<void>(other);
  return ::testing::AssertionFailure() << got.size() << " results for " << expected.size()
                                       << ", the first other one is number " << at - got.begin();
}

class EveryKind : public ::testing::TestWithParam<std::string> {
 protected:
  static const StageType& type() {
    static const std::vector<StageType> kTypes = all_types();
    return *std::ranges::find(kTypes, GetParam(), &StageType::kind);
  }
  // False: this build cannot make the data.
  bool make_data() {
    const Maker maker = maker_named(type().example.maker);
    if (maker != nullptr) maker(directory_);
    return maker != nullptr;
  }
  Example example() { return {type(), directory_.path()}; }
  // What an undisturbed run gives.
  std::vector<std::string> undisturbed() {
    Example run = example();
    run.build();
    EXPECT_TRUE(run.run());
    const std::vector<std::string> results = run.results();
    EXPECT_THAT(results, Not(IsEmpty())) << "the example gives nothing of the maker's data";
    return results;
  }
  TempDir directory_;
};

TEST_P(EveryKind, HasAnExampleThatItsPlanAccepts) {
  ASSERT_NE(type().example.text, "");
  DataLoaderConfig config = example_of(type());
  int paths = 0;
  // Some look at their data before the start.
  const bool made = make_data();
  each_text(config, [&](const std::string& text) {
    if (!text.starts_with('/')) return text;
    ++paths;
    EXPECT_TRUE(text == "/data" || text.starts_with("/data/")) << text;
    return made ? directory_.path() + text.substr(5) : text;
  });
  EXPECT_GT(paths, 0) << "it reads no data";
  formats::set_arrow_readers(arrow_readers());
  Registry registry;
  register_all_stages(registry);
  std::vector<std::string> kinds;
  const PipelinePlan plan = plan_pipeline(config, registry);
  for (const StagePlan& stage : plan.stages()) {
    kinds.push_back(stage.kind());
    for (const PlanProblem& problem : stage.problems()) {
      ADD_FAILURE() << stage.name() << ": " << problem.field() << ": " << problem.text();
    }
    EXPECT_GT(stage.nodes_size(), 0) << stage.name();
  }
  EXPECT_THAT(kinds, Contains(GetParam()).Times(1));
  EXPECT_EQ(kinds.back(), GetParam()) << "it is the last, behind what it needs";
}

TEST_P(EveryKind, HasAPageInTheReference) {
  const std::string page =
      fmt::format("{}/docs/reference/stages/{}.md", RINGFEED_SOURCE_DIR, GetParam());
  EXPECT_TRUE(std::filesystem::exists(page)) << page << ": run scripts/reference";
}

// With three lanes, too, everything comes out, and once. In which order is the stage's own matter.
TEST_P(EveryKind, GivesTheSameWithThreeLanes) {
  if (!make_data()) GTEST_SKIP() << "without Arrow";
  Example three = example();
  if (!three.has("threads")) return;  // it always has one
  three.set("threads", 3);
  three.build();
  ASSERT_TRUE(three.run());
  EXPECT_TRUE(same(sorted(three.results()), sorted(undisturbed())));
}

// Lanes that are dropped between any two rounds and made anew on the same memory.
TEST_P(EveryKind, GivesTheSameWhereverItIsRestarted) {
  if (!make_data()) GTEST_SKIP() << "without Arrow";
  const std::vector<std::string> expected = undisturbed();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Example run = example();
    run.build();
    std::mt19937_64 random(seed);
    std::uint64_t restarts = 0;
    ASSERT_TRUE(run.run([&](std::size_t lane) {
      if (restarts > 0 && random() % 2 != 0) return;
      run.rig().restart(lane);
      ++restarts;
    })) << "seed "
        << seed;
    EXPECT_GT(restarts, 0U);
    EXPECT_TRUE(same(run.results(), expected)) << "seed " << seed;
  }
}

#ifdef RINGFEED_FAILPOINTS
// And those that are killed in the middle of a step.
TEST_P(EveryKind, GivesTheSameWhereverItIsKilled) {
  if (!make_data()) GTEST_SKIP() << "without Arrow";
  const std::vector<std::string> expected = undisturbed();
  for (const char* const failpoint :
       {"runtime.lane.attach", "runtime.lane.recovered", "shm.journal.before_commit",
        "shm.journal.after_commit", "shm.journal.carry_out", "shm.journal.carried_out"}) {
    Example run = example();
    run.build();
    std::mt19937_64 random(1);
    std::uint64_t deaths = 0;
    ASSERT_TRUE(run.run([&](std::size_t lane) {
      // An example may be over after a few rounds: until somebody has died all try to.
      if (run.rig().is_own(lane) || (deaths != 0 && random() % 4 != 0)) return;
      deaths += run.rig().die(lane, failpoint, 1) ? 1 : 0;
    })) << failpoint;
    EXPECT_GT(deaths, 0U) << "nobody died at " << failpoint;
    EXPECT_TRUE(same(run.results(), expected)) << failpoint;
  }
}
#endif

// Whatever a message says and whenever it comes, it has an answer, and no stage dies of it.
TEST_P(EveryKind, AnswersEveryMessage) {
  if (!make_data()) GTEST_SKIP() << "without Arrow";
  Example run = example();
  run.build();
  LaneRig& rig = run.rig();
  const auto messages =
      static_cast<std::uint64_t>(StageControlRequest::descriptor()->field_count()) + 3;
  std::mt19937_64 random(1);
  std::uint64_t key = 0;
  for (int turn = 0; turn < 20; ++turn) {
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
      for (std::uint64_t i = 0; i < messages && !rig.finished(lane); ++i) {
        std::optional<std::string> answer;
        rig.lane(lane).post({.key = ++key,
                             .request = message_number(i, random).SerializeAsString(),
                             .answer = [&](const auto& given) { answer = given.value_or(""); }});
        rig.round(lane);
        ASSERT_TRUE(answer.has_value()) << rig.node_of(lane);
        StageControlResponse parsed;
        EXPECT_TRUE(parsed.ParseFromString(*answer)) << rig.node_of(lane);
        EXPECT_LE(answer->size(), ControlBox::kAnswerBytesMax) << rig.node_of(lane);
      }
      rig.round(lane);
    }
  }
  EXPECT_GT(key, 0U);
}

// Changes, cuts or lengthens half of the files.
void damage(const std::string& directory, std::mt19937_64& random) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& path : files) {
    if (random() % 2 == 0) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    file.close();
    for (std::uint64_t i = 1 + random() % 200; i > 0 && !bytes.empty(); --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (random() % 3 == 0) bytes += std::string(random() % 100, 'x');
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
}

// Damaged data is skipped with a word in the log, and never ends a process. What is whole still
// comes.
TEST_P(EveryKind, SurvivesDamagedData) {
  if (!make_data()) GTEST_SKIP() << "without Arrow";
  // What is said, without which file and how often.
  const auto warnings = [](Example& run) {
    std::set<std::string> said;
    for (const std::string& line : run.rig().log()) {
      said.insert(line.substr(0, std::min(line.find(" count="), line.find(" path="))));
    }
    return said;
  };
  Example whole = example();
  whole.build();
  ASSERT_TRUE(whole.run());
  std::size_t came = 0;
  std::size_t said = 0;
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TempDir directory;
    maker_named(type().example.maker)(directory);
    std::mt19937_64 random(seed);
    damage(directory.path(), random);
    Example run(type(), directory.path());
    try {
      run.build();
    } catch (const Error& error) {
      // Some look at their data before the start, and say what is wrong with it.
      EXPECT_THAT(error.message(), ::testing::HasSubstr(directory.path()));
      ++said;
      ++refused;
      continue;
    }
    ASSERT_TRUE(run.run()) << "seed " << seed;
    came += run.results().size();
    said += std::ranges::includes(warnings(whole), warnings(run)) ? 0 : 1;
  }
  EXPECT_TRUE(came > 0 || refused == 4);
  // Its data is no file.
  if (std::filesystem::is_empty(directory_.path())) return;
  // The stage that lists files opens none.
  if (whole.plan().stages_size() == 1 &&
      whole.plan().stages(0).outputs(0).record_type() == "files") {
    return;
  }
  EXPECT_GT(said, 0U) << "nothing was said of what is damaged";
}

std::vector<std::string> all_kinds() {
  std::vector<std::string> kinds;
  for (const StageType& type : all_types()) kinds.push_back(type.kind);
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, ::testing::ValuesIn(all_kinds()),
                         [](const auto& param) { return param.param; });

// A maker's name that is misspelt would leave the tests above out.
TEST(Makers, AreThereForEveryExample) {
  for (const StageType& type : all_types()) {
    const std::set<std::string> names = {"lc0_files",   "chess_tables", "token_files",
                                         "jsonl_files", "item_weights", "requests"};
    EXPECT_THAT(names, Contains(type.example.maker)) << type.kind;
#ifdef RINGFEED_ARROW
    EXPECT_NE(maker_named(type.example.maker), nullptr) << type.kind;
#endif
  }
}

}  // namespace
}  // namespace ringfeed
