#include "supervisor/config/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "supervisor/config/fields.h"
#include "supervisor/config/names.h"
#include "supervisor/config/paths.h"
#include "supervisor/os/address.h"

namespace ringfeed::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kConsumerGroupsMax = 16;
constexpr std::uint64_t kRotateBytesMin = 4096;
constexpr std::size_t kSocketPathBytesMax = 107;  // of sockaddr_un
constexpr std::uint32_t kSpareSlotsMin = 2;       // shm: for skip and detach to make progress

constexpr std::string_view kStageNameRule =
    "use 1 to 64 letters, digits, '_' or '-' (a dot separates stage and port), and no '-' at the "
    "beginning";
constexpr std::string_view kFeedNameRule =
    "use 1 to 64 letters, digits, '_', '.' or '-', and none of the last two at the beginning";

// What a stage says of a field of its own: it begins with the field's name, unless it says it
// anyway.
std::string with_subject(const PlanProblem& found) {
  std::string_view name = found.field();
  name = name.substr(name.rfind('.') + 1);  // npos + 1 is 0
  name = name.substr(0, name.find('['));
  if (found.text().find(name) != std::string::npos) return found.text();
  return fmt::format("{}: {}", found.field(), found.text());
}

class Checker {
 public:
  Checker(const Configuration& configuration, const PipelinePlan& plan)
      : config_(configuration.message()), places_(configuration.places()), plan_(plan) {
    checked_.problems = configuration.problems();
    checked_.left_out = configuration.problems_left_out();
  }

  Checked check() {
    check_stage_names();
    check_kinds();
    check_ranges(config_, "");
    check_lanes();
    add_stage_problems();
    check_parent_sockets();
    checked_.wiring = wire(config_, plan_, places_, checked_.problems);
    check_feed_name();
    check_stage_groups();
    check_outputs();
    check_restarts();
    check_snapshots();
    check_http();
    check_log();
    if (checked_.problems.empty()) require_consistent(config_, plan_);
    if (checked_.problems.empty() && config_.from_batch() > 1) check_beginning();
    sort_problems(checked_.problems);
    sort_problems(checked_.warnings);
    return std::move(checked_);
  }

  std::vector<Problem> check_part() {
    if (config_.stages_size() != 0) check_stage_names();
    check_kinds();
    check_ranges(config_, "");
    check_lanes();
    sort_problems(checked_.problems);
    return std::move(checked_.problems);
  }

 private:
  void problem(const std::string& path, std::string text) {
    if (checked_.problems.size() >= kProblemsKept) {
      ++checked_.left_out;
      return;
    }
    checked_.problems.push_back(
        {places_.find(path), stage_label(config_, path), std::move(text), path});
  }
  void warn(const std::string& path, std::string text) {
    if (checked_.warnings.size() >= kProblemsKept) return;
    checked_.warnings.push_back(
        {places_.find(path), stage_label(config_, path), std::move(text), path});
  }
  [[nodiscard]] bool reported(std::string_view path) const {
    return std::any_of(checked_.problems.begin(), checked_.problems.end(),
                       [path](const Problem& problem) { return problem.path == path; });
  }

  void check_stage_names() {
    if (config_.stages_size() == 0 && !places_.doubtful("") && !reported("stages")) {
      problem("", "there are no stages; add stages { name: \"...\" ... }");
    }
    std::map<std::string, int> first;
    for (int i = 0; i < config_.stages_size(); ++i) {
      const std::string& name = config_.stages(i).name();
      const std::string path = stage_path(i);
      if (name.empty()) {
        if (!reported(path + ".name") && !reported(path)) {
          problem(path, "it has no name; add name: \"...\", which other stages use to refer to it");
        }
        continue;
      }
      if (!valid_stage_name(name)) {
        problem(path + ".name", fmt::format("\"{}\" cannot be a name; {}", name, kStageNameRule));
      }
      const auto [earlier, fresh] = first.try_emplace(name, i);
      if (!fresh) {
        problem(path + ".name",
                fmt::format("the stage at {} already has this name; rename one of them",
                            places_.find(stage_path(earlier->second)).text()));
      }
    }
  }

  void check_lanes() {
    for (int i = 0; i < config_.stages_size(); ++i) {
      const StageConfig& stage = config_.stages(i);
      for (const FieldDescriptor* kind : kinds_set(stage)) {
        const Message& own = stage.GetReflection()->GetMessage(stage, kind);
        const FieldDescriptor* threads = own.GetDescriptor()->FindFieldByName("threads");
        const FieldDescriptor* most = own.GetDescriptor()->FindFieldByName("max_threads");
        if (threads == nullptr || most == nullptr) continue;
        if (!own.GetReflection()->HasField(own, most) ||
            count_in(own, *most) >= count_in(own, *threads)) {
          continue;
        }
        problem(fmt::format("{}.{}.max_threads", stage_path(i), kind->name()),
                fmt::format("max_threads is {}, which is less than threads, {}: raise it, or leave "
                            "it out",
                            count_in(own, *most), count_in(own, *threads)));
      }
    }
  }

  void check_kinds() {
    for (int i = 0; i < config_.stages_size(); ++i) {
      const std::vector<const FieldDescriptor*> kinds = kinds_set(config_.stages(i));
      const std::string path = stage_path(i);
      if (kinds.size() == 1) continue;
      if (kinds.empty()) {
        // A field that was not understood was probably it.
        if (places_.doubtful(path) || kind_reported(path)) continue;
        std::vector<std::string> names;
        for (const FieldDescriptor* kind : kind_fields()) names.push_back(kind->name());
        problem(path,
                fmt::format("it has no configuration; give exactly one of {}", listed(names)));
        continue;
      }
      std::vector<std::string> given;
      for (const FieldDescriptor* kind : kinds) {
        given.push_back(
            fmt::format("{} ({})", kind->name(), places_.find(path + "." + kind->name()).text()));
      }
      problem(
          path,
          fmt::format("it has {} configurations, {}; keep one and make the others separate stages",
                      given.size(), listed(given)));
    }
  }

  // Whether something was wrong with the kind itself, e.g. `chunk_unpacker: 5`.
  [[nodiscard]] bool kind_reported(const std::string& stage) const {
    const std::vector<const FieldDescriptor*> kinds = kind_fields();
    return reported(stage) || std::any_of(kinds.begin(), kinds.end(), [&](const auto* kind) {
             return reported(stage + "." + kind->name());
           });
  }

  // Every number that was given, against the range that the schema has for it.
  void check_ranges(const Message& message, const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string field_path = path.empty() ? field->name() : path + "." + field->name();
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        if (!field->is_repeated()) {
          check_ranges(reflection.GetMessage(message, field), field_path);
          continue;
        }
        for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
          check_ranges(reflection.GetRepeatedMessage(message, field, i),
                       fmt::format("{}[{}]", field_path, i));
        }
      } else if (!field->is_repeated()) {
        check_range(message, *field, field_path);
        check_data(message, *field, field_path);
      } else {
        for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
          check_range(message, *field, fmt::format("{}[{}]", field_path, i), i);
        }
        check_files(message, *field, field_path);
      }
    }
  }

  // `element`: of a repeated field.
  void check_range(const Message& message, const FieldDescriptor& field, const std::string& path,
                   int element = -1) {
    const Reflection& reflection = *message.GetReflection();
    double value = 0;
    std::string shown;
    const auto take = [&](auto number) {
      value = static_cast<double>(number);
      shown = fmt::format("{}", number);
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        take(element < 0 ? reflection.GetInt32(message, &field)
                         : reflection.GetRepeatedInt32(message, &field, element));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        take(element < 0 ? reflection.GetInt64(message, &field)
                         : reflection.GetRepeatedInt64(message, &field, element));
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        take(element < 0 ? reflection.GetUInt32(message, &field)
                         : reflection.GetRepeatedUInt32(message, &field, element));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        take(element < 0 ? reflection.GetUInt64(message, &field)
                         : reflection.GetRepeatedUInt64(message, &field, element));
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        take(element < 0 ? reflection.GetFloat(message, &field)
                         : reflection.GetRepeatedFloat(message, &field, element));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        take(element < 0 ? reflection.GetDouble(message, &field)
                         : reflection.GetRepeatedDouble(message, &field, element));
        break;
      default:
        return;
    }
    if (in_range(field, value)) return;
    problem(path,
            fmt::format("{} is {}; give {}", shown_path(path), shown, allowed_numbers(field)));
  }

  void check_data(const Message& message, const FieldDescriptor& field, const std::string& path) {
    const PathUse use = field.options().GetExtension(::ringfeed::path_use);
    if (use != PATH_READ && use != PATH_OR_URL) return;
    const std::string directory = message.GetReflection()->GetString(message, &field);
    if (directory.empty()) return;
    if (is_address(directory)) {
      if (use == PATH_READ) problem(path, address_text(directory));
      return;
    }
    const std::string doubt = is_directory_field(field)
                                  ? doubt_about_data(directory, config_.epochs() > 0)
                                  : doubt_about_setting(directory);
    if (!doubt.empty()) warn(path, doubt);
  }

  // Fields for directories are called so.
  static bool is_directory_field(const FieldDescriptor& field) {
    return std::string_view(field.name()).ends_with("directory");
  }

  void check_files(const Message& message, const FieldDescriptor& field, const std::string& path) {
    const PathUse use = field.options().GetExtension(::ringfeed::path_use);
    if (use != PATH_READ && use != PATH_OR_URL) return;
    const Reflection& reflection = *message.GetReflection();
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      const std::string file = reflection.GetRepeatedString(message, &field, i);
      if (is_address(file)) {
        if (use == PATH_READ) problem(fmt::format("{}[{}]", path, i), address_text(file));
        continue;
      }
      const std::string doubt = is_directory_field(field)
                                    ? doubt_about_data(file, config_.epochs() > 0)
                                    : doubt_about_file(file, config_.epochs() > 0);
      if (!doubt.empty()) warn(fmt::format("{}[{}]", path, i), doubt);
    }
  }

  // What the stages refuse, and of those that run all the same, what they doubt. A value that has
  // been refused already is not refused again.
  void add_stage_problems() {
    for (int i = 0; i < std::min(plan_.stages_size(), config_.stages_size()); ++i) {
      const StagePlan& stage = plan_.stages(i);
      for (const PlanProblem& found : stage.problems()) {
        std::string path = stage_path(i);
        if (!stage.kind().empty()) path += "." + stage.kind();
        if (!found.field().empty()) path += "." + found.field();
        if (stage.nodes_size() != 0) {
          warn(path, with_subject(found));
        } else if (found.field().empty() || !reported(path)) {
          problem(path, with_subject(found));
        }
      }
    }
  }

  // A stage that has its own name for it says it there.
  void check_parent_sockets() {
    for (int i = 0; i < std::min(plan_.stages_size(), config_.stages_size()); ++i) {
      for (const NodePlan& node : plan_.stages(i).nodes()) {
        if (!node.has_parent_socket()) continue;
        const std::string& path = node.parent_socket();
        const std::string at = fmt::format("{}.{}", stage_path(i), plan_.stages(i).kind());
        if (!path.starts_with('/')) {
          problem(at, fmt::format("the socket of the warm parent is \"{}\"; give an absolute path",
                                  path));
        } else if (path.size() > kSocketPathBytesMax) {
          problem(at, fmt::format("the path of the warm parent's socket has {} bytes, and the "
                                  "system allows {}: use a shorter directory",
                                  path.size(), kSocketPathBytesMax));
        }
      }
    }
  }

  void check_beginning() {
    const std::string why = begins_nowhere_else(config_, plan_, checked_.wiring);
    if (why.empty()) return;
    problem("from_batch", fmt::format("from_batch is {}, but this feed can begin only with its "
                                      "first batch: {}; resume from a snapshot instead (ringfeed "
                                      "run --resume DIR)",
                                      config_.from_batch(), why));
  }

  void check_feed_name() {
    if (!valid_feed_name(config_.feed()) && !reported("feed")) {
      problem("feed", config_.has_feed()
                          ? fmt::format("feed is \"{}\"; {}", config_.feed(), kFeedNameRule)
                          : "the feed has no name; add feed: \"NAME\"");
    }
  }

  void check_stage_groups() {
    if (config_.stage_groups_size() == 0) return;
    std::vector<std::string> stages;
    for (const StageConfig& stage : config_.stages()) {
      if (!stage.name().empty()) stages.push_back(stage.name());
    }
    std::map<std::string, std::string> group_of;
    std::map<std::string, Place> named;
    for (int i = 0; i < config_.stage_groups_size(); ++i) {
      const StageGroupConfig& group = config_.stage_groups(i);
      const std::string path = fmt::format("stage_groups[{}]", i);
      check_group_name(group.name(), path, "stage group", &valid_stage_name, kStageNameRule, named);
      if (group.stages_size() == 0 && !places_.doubtful(path)) {
        problem(path,
                fmt::format("stage group '{}' has no stages; add stages: \"...\", or remove it",
                            group.name()));
      }
      for (int j = 0; j < group.stages_size(); ++j) {
        const std::string& stage = group.stages(j);
        const std::string stage_reference = fmt::format("{}.stages[{}]", path, j);
        if (std::find(stages.begin(), stages.end(), stage) == stages.end()) {
          problem(stage_reference,
                  fmt::format("stage group '{}' names '{}', but there is no such stage{}",
                              group.name(), stage, did_you_mean(stage, stages, "there are")));
          // Taken as what was probably meant, so that it does not count as left out.
          group_of.try_emplace(std::string(nearest_name(stage, stages)), group.name());
          continue;
        }
        const auto [other, fresh] = group_of.try_emplace(stage, group.name());
        if (!fresh) {
          problem(stage_reference,
                  fmt::format("stage group '{}' names '{}', which is already in group '{}'; a "
                              "stage can be in only one group: remove it from one of them",
                              group.name(), stage, other->second));
        }
      }
    }
    std::vector<std::string> left_out;
    for (const std::string& stage : stages) {
      const bool again = std::find(left_out.begin(), left_out.end(), stage) != left_out.end();
      if (!group_of.contains(stage) && !again) left_out.push_back(stage);
    }
    if (!left_out.empty() && !group_of.contains("")) {
      problem("stage_groups",
              fmt::format("these stages are in no stage group: {}; add every stage to a group, or "
                          "remove stage_groups and let the supervisor group them",
                          listed(left_out)));
    }
  }

  void check_group_name(const std::string& name, const std::string& path, std::string_view what,
                        bool (*valid)(std::string_view) noexcept, std::string_view rule,
                        std::map<std::string, Place>& named) {
    if (name.empty()) {
      if (!places_.doubtful(path)) {
        problem(path, fmt::format("this {} has no name; add name: \"...\"", what));
      }
      return;
    }
    if (!valid(name)) {
      problem(path + ".name",
              fmt::format("\"{}\" cannot be the name of a {}; {}", name, what, rule));
    }
    const auto [earlier, fresh] = named.try_emplace(name, places_.find(path));
    if (!fresh) {
      problem(path + ".name", fmt::format("the {} '{}' already exists, at {}; rename one of them",
                                          what, name, earlier->second.text()));
    }
  }

  void check_outputs() {
    for (int i = 0; i < config_.feed_output_size(); ++i) {
      const FeedOutputConfig& settings = config_.feed_output(i);
      const std::string path = fmt::format("feed_output[{}]", i);
      if (settings.has_alias() && !valid_stage_name(settings.alias())) {
        problem(path + ".alias",
                fmt::format("alias is \"{}\"; {}", settings.alias(), kStageNameRule));
      }
      if (settings.dispatch() != config_.feed_output(0).dispatch()) {
        problem(settings.has_dispatch() ? path + ".dispatch" : path,
                fmt::format("dispatch is {} here and {} in feed_output[0], but the whole feed has "
                            "only one; give both the same",
                            FeedOutputConfig::Dispatch_Name(settings.dispatch()),
                            FeedOutputConfig::Dispatch_Name(config_.feed_output(0).dispatch())));
      }
      check_consumer_groups(settings, path);
    }
    for (const BatchesPort& output : checked_.wiring.outputs) check_slots(output);
  }

  void check_consumer_groups(const FeedOutputConfig& output, const std::string& of) {
    if (output.groups_size() > kConsumerGroupsMax) {
      problem(fmt::format("{}.groups[{}]", of, kConsumerGroupsMax),
              fmt::format("this is consumer group number {} of {}; an output has at most {}",
                          kConsumerGroupsMax + 1, output.groups_size(), kConsumerGroupsMax));
    }
    std::map<std::string, Place> named;
    for (int i = 0; i < output.groups_size(); ++i) {
      const ConsumerGroupConfig& group = output.groups(i);
      const std::string path = fmt::format("{}.groups[{}]", of, i);
      check_group_name(group.name(), path, "consumer group", &valid_feed_name, kFeedNameRule,
                       named);
      const bool ranked = group.kind() == ConsumerGroupConfig::RANKED;
      if (ranked && !group.has_world() && !places_.doubtful(path) && !reported(path + ".world")) {
        problem(path, fmt::format("consumer group '{}' is RANKED without world; add world: N, the "
                                  "number of its members",
                                  group.name()));
      }
      if (!ranked && group.has_world() && !reported(path + ".kind")) {
        problem(path + ".world", fmt::format("consumer group '{}' is SHARED but has a world of {}; "
                                             "remove world, or add kind: RANKED",
                                             group.name(), group.world()));
      }
    }
  }

  // Each producing lane has slots of its own.
  void check_slots(const BatchesPort& from) {
    std::uint32_t lanes = 0;
    for (const NodePlan& node : plan_.stages(from.stage).nodes()) {
      for (const NodeOutput& output : node.outputs()) {
        if (!output.exported() || output.port() != from.port) continue;
        lanes = node.lanes();
        if (output.overflow() == DROP_NEW) {
          problem(stage_path(from.stage),
                  fmt::format(
                      "it outputs batches for trainers but drops new ones (overflow_behavior: "
                      "DROP_NEW); use BLOCK, or KEEP_NEWEST if it should not wait for trainers"));
        }
      }
    }
    const FeedOutputConfig& settings = output_settings(config_, from.settings);
    const std::string at = fmt::format("feed_output[{}]", std::max(from.settings, 0));
    const std::string path = at + ".slots";
    if (lanes == 0 || reported(path)) return;
    const std::uint32_t slots = slot_count(config_, from);
    const std::string& stage = config_.stages(from.stage).name();
    if (slots < lanes) {
      problem(path, fmt::format("the feed has {} slots for {} lanes of stage '{}', each of which "
                                "needs its own; set feed_output.slots to at least {}",
                                slots, lanes, stage, lanes));
      return;
    }
    std::uint32_t hold = settings.groups_size() == 0 && from.keep_newest ? 2 : 0;
    const ConsumerGroupConfig* yielding = nullptr;
    for (int i = 0; i < settings.groups_size(); ++i) {
      const ConsumerGroupConfig& group = settings.groups(i);
      hold += group.has_max_hold() ? group.max_hold() : 2;
      if (group.policy() != ConsumerGroupConfig::BLOCK && yielding == nullptr) yielding = &group;
      if (from.keep_newest && group.has_policy() && group.policy() != ConsumerGroupConfig::SKIP) {
        problem(fmt::format("{}.groups[{}].policy", at, i),
                fmt::format("consumer group '{}' has policy {}, but its output keeps the newest "
                            "batches and waits for nobody (overflow_behavior: KEEP_NEWEST of "
                            "stage '{}'); remove policy",
                            group.name(), ConsumerGroupConfig::Policy_Name(group.policy()), stage));
      }
    }
    const std::string why =
        from.keep_newest ? fmt::format("overflow_behavior KEEP_NEWEST of stage '{}'", stage)
        : yielding != nullptr
            ? fmt::format("policy {} of consumer group '{}'",
                          ConsumerGroupConfig::Policy_Name(yielding->policy()), yielding->name())
            : std::string();
    if (!why.empty() && slots / lanes < hold + kSpareSlotsMin) {
      problem(
          path,
          fmt::format(
              "{} slots give {} to each of {} producing lanes, but {} needs {} there: {} more than "
              "the max_hold of all groups; set feed_output.slots to at least {}, or lower max_hold",
              slots, slots / lanes, lanes, why, hold + kSpareSlotsMin, kSpareSlotsMin,
              lanes * (hold + kSpareSlotsMin)));
    }
  }

  void check_restarts() {
    const RestartConfig& restart = config_.restart();
    if (restart.backoff_ms_max() < restart.backoff_ms_min()) {
      problem(restart.has_backoff_ms_max() ? "restart.backoff_ms_max" : "restart.backoff_ms_min",
              fmt::format("restart.backoff_ms_max ({}) is below restart.backoff_ms_min ({}); raise "
                          "the first or lower the second",
                          restart.backoff_ms_max(), restart.backoff_ms_min()));
    }
    // 0 is an order of its own: the first death ends the feed, whatever it was of.
    if (restart.max_restarts() != 0 && restart.max_attempts() > restart.max_restarts()) {
      warn(restart.has_max_attempts() ? "restart.max_attempts" : "restart.max_restarts",
           fmt::format("restart.max_attempts ({}) is above restart.max_restarts ({}): a record "
                       "that kills its stage may use up the restarts and stop the feed before it "
                       "is set aside; raise max_restarts, or lower max_attempts",
                       restart.max_attempts(), restart.max_restarts()));
    }
  }

  void check_http() {
    if (!config_.has_http()) return;
    if (!config_.http().has_listen()) {
      return problem("http", "http has no listen: give an address like \"127.0.0.1:9464\"");
    }
    const Result<NetAddress> address = parse_address(config_.http().listen());
    if (!address) return problem("http.listen", "http.listen: " + address.error().message());
    if (!address->loopback && config_.http().token_file().empty()) {
      warn("http.listen",
           fmt::format("everybody who reaches {} can read what the feeds of this machine do: set "
                       "http.token_file, or listen on 127.0.0.1",
                       address->text()));
    }
  }

  void check_log() {
    const LogConfig& log = config_.log();
    if (log.rotate_bytes() != 0 && log.rotate_bytes() < kRotateBytesMin) {
      problem("log.rotate_bytes",
              fmt::format("log.rotate_bytes is {}: at least 4 KiB, or 0 to keep one file",
                          log.rotate_bytes()));
    }
    if (log.rotate_bytes() != 0 && log.file().empty()) {
      problem("log.rotate_bytes",
              "log.rotate_bytes renames log.file, which is missing: give the file, or leave "
              "rotate_bytes out");
    }
  }

  void check_snapshots() {
    if (!config_.has_snapshot()) return;
    const SnapshotConfig& snapshot = config_.snapshot();
    if (snapshot.directory().empty()) {
      problem("snapshot.directory",
              "snapshot.directory is missing: give the directory that the "
              "snapshots are to be in");
    }
    if (snapshot.every_batches() == 0 && snapshot.every_s() == 0) {
      problem("snapshot",
              "snapshot says neither every_batches nor every_s, so none would be taken: "
              "give one of them, or leave snapshot out");
    }
  }

  const DataLoaderConfig& config_;
  const Places& places_;
  const PipelinePlan& plan_;
  Checked checked_;
};

}  // namespace

std::vector<Problem> check_part(const Configuration& configuration) {
  const PipelinePlan none;
  return Checker(configuration, none).check_part();
}

Checked check_config(const Configuration& configuration, const PipelinePlan& plan) {
  if (!configuration.complete()) {
    return Checked{{}, configuration.problems(), {}, configuration.problems_left_out()};
  }
  return Checker(configuration, plan).check();
}

namespace {

bool begins_anywhere(const StagePlan& stage, const std::string& port) {
  return std::ranges::any_of(stage.nodes(), [&](const NodePlan& node) {
    return node.begins_anywhere() && std::ranges::any_of(node.outputs(), [&](const NodeOutput& to) {
             return to.exported() && to.port() == port && to.overflow() == BLOCK;
           });
  });
}

}  // namespace

std::string begins_nowhere_else(const DataLoaderConfig& config, const PipelinePlan& plan,
                                const Wiring& wiring) {
  if (!ordered_dispatch(config)) return "with dispatch RELAXED batches have no fixed order";
  for (const BatchesPort& output : wiring.outputs) {
    const auto planned = [&](const Edge& edge) {
      return edge.to_stage == output.stage &&
             begins_anywhere(plan.stages(edge.from_stage), edge.from_port);
    };
    // A stage of several parts might count something else between them.
    const bool alone = plan.stages(output.stage).nodes_size() == 1;
    if (alone && std::ranges::any_of(wiring.edges, planned)) continue;
    return fmt::format("the batches of stage '{}' are not planned ahead",
                       config.stages(output.stage).name());
  }
  return {};
}

std::uint32_t slot_count(const DataLoaderConfig& config, const BatchesPort& output) {
  const FeedOutputConfig& settings = output_settings(config, output.settings);
  if (settings.has_slots()) return settings.slots();
  const Message& stage = config.stages(output.stage);
  for (const FieldDescriptor* kind : kinds_set(stage)) {
    const Message& message = stage.GetReflection()->GetMessage(stage, kind);
    const FieldDescriptor* field = kind->message_type()->FindFieldByName("queue_capacity");
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 &&
        message.GetReflection()->HasField(message, field)) {
      return static_cast<std::uint32_t>(message.GetReflection()->GetUInt64(message, field));
    }
  }
  return settings.slots();
}

}  // namespace ringfeed::config
