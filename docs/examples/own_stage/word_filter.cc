#include "word_filter.h"

#include <ringfeed/worker/plugin.h>
#include <ringfeed/worker/sample.h>

#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "words.h"

using namespace ringfeed;

namespace {

// Each option is declared once: `ringfeed check` reads these, and so does the stage.
const Option<std::string> kField{
    .name = "field", .help = "The field that has the text.", .otherwise = "text"};
const Option<std::int64_t> kMinWords{
    .name = "min_words", .help = "A text with fewer words is left out.", .otherwise = 1, .min = 0};
const Option<std::int64_t> kMaxWords{.name = "max_words",
                                     .help = "A text with more words is left out.",
                                     .otherwise = 1'000'000,
                                     .min = 0};
const Option<std::string> kCountField{
    .name = "count_field",
    .help = "A field that is added, of the type int64: the number of words. Empty: none.",
    .otherwise = ""};

//   input    samples  with a text
//   output   samples  those whose text has min_words to max_words words, all their fields, and
//                     count_field behind them
//   arena    nothing: what becomes of a sample follows from the sample alone, so that any number of
//            lanes gives one order
//   skips    a record that is no sample or has no such text (skipped_no_text); one that would not
//            fit into the queue with its new field (skipped_too_large)
class WordFilter final : public Stage {
 public:
  explicit WordFilter(const StageContext& context)
      : WordFilter(context, plugin_settings(context.config).options) {}

  StepStatus step(Step& step) noexcept override {
    const std::optional<Record> record = step.peek(in_);
    if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
    const std::optional<SampleView> sample = SampleView::open(record->bytes);
    const std::optional<SampleField> text = sample ? sample->find(field_) : std::nullopt;
    if (!text || is_array(text->dtype)) {
      skip(step, no_text_, "skipped_no_text");
      return step.consume(*record);
    }
    const std::int64_t words =
        count_words({reinterpret_cast<const char*>(text->data.data()), text->data.size()});
    if (words < min_words_ || words > max_words_) {
      step.count(words < min_words_ ? short_ : long_);
      return step.consume(*record);
    }
    if (!put(step, *record, *sample, words)) return StepStatus::kNoRoom;
    return step.consume(*record);
  }

 private:
  WordFilter(const StageContext& context, const Options& options)
      : field_(options.get(kField)),
        count_field_(options.get(kCountField)),
        min_words_(options.get(kMinWords)),
        max_words_(options.get(kMaxWords)),
        stage_(context.stage),
        warn_(context.warn),
        in_(context.input("input")),
        out_(context.output("output")),
        short_(context.counter("samples_short")),
        long_(context.counter("samples_long")),
        no_text_(context.counter("skipped_no_text")),
        too_large_(context.counter("skipped_too_large")) {
    fields_.reserve(sample::kFieldsMax + 1);  // a step that succeeds allocates nothing
  }

  // False: there is no room now.
  bool put(Step& step, const Record& record, const SampleView& sample,
           std::int64_t words) noexcept {
    // The tags say where the sample came from. Whoever puts a record out in place of another hands
    // them on, so that a batch can be traced to its files.
    const RecordInfo info{.tag = {record.tag[0], record.tag[1]}, .user = record.user};
    if (count_field_.empty()) return step.put(out_, sample.bytes(), info);
    fields_.clear();
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const SampleField field = sample[i];
      if (field.name != count_field_) fields_.push_back(field);
    }
    fields_.push_back({.name = count_field_,
                       .dtype = SampleDtype::kInt64,
                       .data = std::as_bytes(std::span(&words, 1))});
    const std::optional<std::uint64_t> bytes = sample_bytes(fields_);
    if (!bytes || *bytes > step.record_bytes_max(out_)) {
      skip(step, too_large_, "skipped_too_large");
      return true;
    }
    const std::span<std::byte> room = step.reserve(out_, *bytes);
    if (room.empty()) return false;
    write_sample(room, fields_);
    step.put_reserved(out_, *bytes, info);
    return true;
  }

  // Counts with the step, exactly; the log has the first, the second, the fourth, ... of a process.
  void skip(Step& step, Counter counter, std::string_view event) noexcept {
    step.count(counter);
    if (!std::has_single_bit(++skipped_)) return;
    warn_(std::string(event) + " stage=" + stage_ + " count=" + std::to_string(skipped_));
  }

  std::string field_;
  std::string count_field_;
  std::int64_t min_words_;
  std::int64_t max_words_;
  std::string stage_;
  std::function<void(std::string_view)> warn_;
  InPort in_;
  OutPort out_;
  Counter short_;
  Counter long_;
  Counter no_text_;
  Counter too_large_;
  std::vector<SampleField> fields_;
  std::uint64_t skipped_ = 0;
};

std::vector<Problem> problems_of(const StageView& stage) {
  const Options options = plugin_settings(stage.config).options;
  const std::int64_t least = options.get(kMinWords);
  const std::int64_t most = options.get(kMaxWords);
  if (least <= most) return {};
  return {{"options", "min_words is " + std::to_string(least) + " and max_words is " +
                          std::to_string(most) + ", so that nothing would be let through; raise " +
                          "max_words"}};
}

}  // namespace

StageType word_filter_type() {
  StageType type;
  type.kind = "word_filter";
  type.text =
      "Lets samples through whose text has enough words, and not too many. A word is what stands "
      "between white space.";
  type.options = {kField, kMinWords, kMaxWords, kCountField};
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {"samples_short", "Samples with too few words."},
      {"samples_long", "Samples with too many words."},
      {"skipped_no_text", "Samples without a text in that field."},
      {"skipped_too_large", "Samples that would not fit into the queue with their new field."},
  };
  type.problems = problems_of;
  type.nodes = [](const StageView& stage) {
    const PluginSettings own = plugin_settings(stage.config);
    NodeSpec node = own.node();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {own.output("samples")};
    node.weight = 0.3;
    node.steps_per_commit = 64;
    node.create = [](const StageContext& context) { return std::make_unique<WordFilter>(context); };
    return std::vector<NodeSpec>{node};
  };
  type.example.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "long" plugin { kind: "word_filter" input: "lines" options: '{"min_words": 20}' } }
)";
  return type;
}
