#include "workers/runtime/plugin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "proto/batch.pb.h"
#include "proto/config.pb.h"
#include "proto/kinds.pb.h"
#include "ringfeed/shm/counters.h"
#include "ringfeed/worker/batch.h"
#include "ringfeed/worker/plugin.h"
#include "workers/runtime/lane.h"

namespace ringfeed {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kNameBytesMax = 64;
constexpr std::size_t kShownMax = 60;           // bytes of a value in a message
constexpr std::uint32_t kVaryingMax = 16;       // lengths of a batch that vary
constexpr std::uint64_t kTensorAlignment = 64;  // of arrays in a slot

// ---- what is given

template <typename T, typename Is>
std::optional<OptionValue> list_of(const Json& json, Is is) {
  if (!std::ranges::all_of(json, is)) return std::nullopt;
  return json.get<std::vector<T>>();
}

// -1 is a whole number, 2^63 is none that an option can be.
bool is_whole(const Json& json) {
  return json.is_number_integer() &&
         (!json.is_number_unsigned() ||
          json.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
}

OptionValue value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (is_whole(json)) return json.get<std::int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (!json.is_array()) return {};
  if (auto whole = list_of<std::int64_t>(json, is_whole)) return *whole;
  const auto is_number = [](const Json& each) { return is_whole(each) || each.is_number_float(); };
  if (auto numbers = list_of<double>(json, is_number)) return *numbers;
  const auto is_text = [](const Json& each) { return each.is_string(); };
  if (auto texts = list_of<std::string>(json, is_text)) return *texts;
  return {};
}

struct Given {
  std::map<std::string, Json> options = {};
  std::string fault = {};  // why it cannot be read
};

Given read_options(const std::string& text) {
  Given given;
  if (text.empty()) return given;
  std::set<std::string> seen;
  std::string twice;
  const auto on_part = [&](int depth, Json::parse_event_t event, Json& part) {
    if (depth == 1 && event == Json::parse_event_t::key) {
      const auto& name = part.get_ref<const std::string&>();
      if (!seen.insert(name).second) twice = name;
    }
    return true;
  };
  try {
    const Json json = Json::parse(text, on_part);
    if (!json.is_object()) {
      given.fault = "options is no JSON object; write it as '{\"name\": value}'";
    } else if (!twice.empty()) {
      given.fault = fmt::format("options gives {} twice; keep one", twice);
    } else {
      for (const auto& [name, value] : json.items()) given.options.emplace(name, value);
    }
  } catch (const Json::parse_error& error) {
    given.fault = fmt::format(
        "options is no JSON object: byte {} cannot stand there; write it as "
        "'{{\"name\": value}}'",
        error.byte);
  }
  return given;
}

// ---- how it is said

std::string shown(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kShownMax) return text;
  return fmt::format("{} of {} bytes", json.is_string() ? "a text" : "a value", text.size());
}

std::string json_text(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return "";
        } else {
          return Json(held).dump();
        }
      },
      value);
}

struct TypeName {
  const char* one;
  const char* many;  // of a list
};
TypeName type_name(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return {"true or false", nullptr};
    case OptionType::kInteger:
      return {"a whole number", nullptr};
    case OptionType::kNumber:
      return {"a number", nullptr};
    case OptionType::kText:
      return {"a text", nullptr};
    case OptionType::kIntegers:
      return {"a whole number", "a list of whole numbers"};
    case OptionType::kNumbers:
      return {"a number", "a list of numbers"};
    case OptionType::kTexts:
      return {"a text", "a list of texts"};
  }
  return {"", nullptr};
}

// "1 to 64", "one of a, b"; "": any.
std::string shown_range(const OptionSpec& option) {
  if (!option.choices.empty()) return fmt::format("one of {}", fmt::join(option.choices, ", "));
  if (option.min && option.max) return fmt::format("{} to {}", *option.min, *option.max);
  if (option.min) return fmt::format("from {}", *option.min);
  if (option.max) return fmt::format("at most {}", *option.max);
  return "";
}

// "a whole number, 1 to 64".
std::string wanted(const OptionSpec& option) {
  const TypeName type = type_name(option.type);
  const std::string range = shown_range(option);
  const std::string what = type.many != nullptr ? type.many : type.one;
  return range.empty() ? what : fmt::format("{}, {}{}", what, type.many ? "each " : "", range);
}

// ---- what is wrong

bool in_range(const OptionSpec& option, double value) {
  return std::isfinite(value) && (!option.min || value >= *option.min) &&
         (!option.max || value <= *option.max);
}
bool in_range(const OptionSpec& option, const std::string& text) {
  return option.choices.empty() || std::ranges::find(option.choices, text) != option.choices.end();
}
template <typename T>
bool all_in_range(const OptionSpec& option, const std::vector<T>& list) {
  return std::ranges::all_of(list, [&option](const T& each) {
    if constexpr (std::is_arithmetic_v<T>) {
      return in_range(option, static_cast<double>(each));
    } else {
      return in_range(option, each);
    }
  });
}

bool accepts(const OptionSpec& option, const OptionValue& value) {
  const auto* const whole = std::get_if<std::int64_t>(&value);
  const auto* const number = std::get_if<double>(&value);
  const auto* const text = std::get_if<std::string>(&value);
  const auto* const wholes = std::get_if<std::vector<std::int64_t>>(&value);
  const auto* const numbers = std::get_if<std::vector<double>>(&value);
  const auto* const texts = std::get_if<std::vector<std::string>>(&value);
  switch (option.type) {
    case OptionType::kBool:
      return std::holds_alternative<bool>(value);
    case OptionType::kInteger:
      return whole != nullptr && in_range(option, static_cast<double>(*whole));
    case OptionType::kNumber:
      return (whole != nullptr && in_range(option, static_cast<double>(*whole))) ||
             (number != nullptr && in_range(option, *number));
    case OptionType::kText:
      return text != nullptr && in_range(option, *text);
    case OptionType::kIntegers:
      return wholes != nullptr && all_in_range(option, *wholes);
    case OptionType::kNumbers:
      return (wholes != nullptr && all_in_range(option, *wholes)) ||
             (numbers != nullptr && all_in_range(option, *numbers));
    case OptionType::kTexts:
      return (texts != nullptr && all_in_range(option, *texts)) ||
             (wholes != nullptr && wholes->empty());
  }
  return false;
}

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
}

constexpr std::string_view kNameRule = "use 1 to 64 of a-z, 0-9 and _";

void add_option_problems(const StageType& type, const std::string& text,
                         std::vector<Problem>& problems) {
  const Given given = read_options(text);
  if (!given.fault.empty()) {
    problems.push_back({"options", given.fault});
    return;
  }
  std::vector<std::string> names;
  for (const OptionSpec& option : type.options) names.push_back(option.name);
  for (const auto& [name, value] : given.options) {
    const auto option = std::ranges::find(type.options, name, &OptionSpec::name);
    if (option == type.options.end()) {
      problems.push_back(
          {"options", names.empty()
                          ? fmt::format("options gives {}, but a {} has no options; leave it out",
                                        shown(name), type.kind)
                          : fmt::format("options gives {}, which a {} does not have; it has {}",
                                        shown(name), type.kind, fmt::join(names, ", "))});
    } else if (!accepts(*option, value_of(value))) {
      problems.push_back({"options", fmt::format("options gives {} as {}; give {}", name,
                                                 shown(value), wanted(*option))});
    }
  }
  for (const OptionSpec& option : type.options) {
    const bool needed = std::holds_alternative<std::monostate>(option.otherwise);
    if (!needed || given.options.contains(option.name)) continue;
    problems.push_back({"options", fmt::format("options does not give {}, which a {} needs: {}",
                                               option.name, type.kind, wanted(option))});
  }
}

}  // namespace

PluginSettings plugin_settings(const StageConfig& config) {
  RF_CHECK(config.has_plugin());
  const auto& own = config.plugin();
  PluginSettings settings;
  settings.kind = own.kind();
  settings.inputs.assign(own.input().begin(), own.input().end());
  settings.lanes = own.threads();
  settings.lanes_max = own.max_threads();
  settings.queue_capacity = own.queue_capacity();
  settings.queue_bytes = own.queue_bytes();
  settings.overflow = own.overflow_behavior();
  std::map<std::string, OptionValue> values;
  for (const auto& [name, value] : read_options(own.options()).options) {
    values.emplace(name, value_of(value));
  }
  settings.options = Options(std::move(values));
  return settings;
}

FeedSettings feed_settings(const DataLoaderConfig& feed) {
  return {.epochs = feed.epochs(), .drop_remainder = feed.drop_remainder()};
}

std::string fault_of_plugin(const StageType& type) {
  if (!is_name(type.kind)) {
    return fmt::format("\"{}\" cannot be a kind of stage; {}", type.kind, kNameRule);
  }
  if (StageConfig::descriptor()->FindFieldByName(type.kind) != nullptr) {
    return fmt::format("{} is a kind of stage of ringfeed's own; give the plug-in's another name",
                       type.kind);
  }
  if (!type.nodes) return fmt::format("{}: StageType::nodes is empty", type.kind);
  std::set<std::string> names;
  for (const OptionSpec& option : type.options) {
    if (!is_name(option.name)) {
      return fmt::format("{}: \"{}\" cannot be an option; {}", type.kind, option.name, kNameRule);
    }
    if (!names.insert(option.name).second) {
      return fmt::format("{}: the option {} is declared twice", type.kind, option.name);
    }
    const bool given = !std::holds_alternative<std::monostate>(option.otherwise);
    if (given && !accepts(option, option.otherwise)) {
      return fmt::format("{}: the option {} is {} if it is not given, which is not {}", type.kind,
                         option.name, json_text(option.otherwise), wanted(option));
    }
  }
  names.clear();
  for (const CounterSpec& counter : type.counters) {
    if (!is_name(counter.name) || counter.name.size() >= sizeof(shm::NamedCounter::name)) {
      return fmt::format("{}: \"{}\" cannot be a counter; use 1 to {} of a-z, 0-9 and _", type.kind,
                         counter.name, sizeof(shm::NamedCounter::name) - 1);
    }
    if (!names.insert(counter.name).second) {
      return fmt::format("{}: the counter {} is declared twice", type.kind, counter.name);
    }
    const std::string& setting = counter.capacity.setting;
    const auto option = std::ranges::find(type.options, setting, &OptionSpec::name);
    if (!setting.empty() &&
        (option == type.options.end() || option->type != OptionType::kInteger)) {
      return fmt::format(
          "{}: the capacity of the counter {} is {}, which is no option that is a "
          "whole number",
          type.kind, counter.name, setting);
    }
  }
  if (type.batch) {
    return fmt::format("{}: a plug-in's stage says its batches in batch_layout: leave batch empty",
                       type.kind);
  }
  const std::size_t most = shm::kNamedCounters - LaneRuntime::own_counters().size();
  if (type.counters.size() > most) {
    return fmt::format("{}: {} counters are declared; a stage has at most {}", type.kind,
                       type.counters.size(), most);
  }
  if (!type.texts.empty() || !type.answers.empty()) {
    return fmt::format("{}: a plug-in's stage answers no messages: leave texts and answers empty",
                       type.kind);
  }
  DataLoaderConfig example;
  if (!google::protobuf::TextFormat::ParseFromString(type.example.text, &example)) {
    return fmt::format("{}: its example is no configuration; the reason is above", type.kind);
  }
  return "";
}

std::vector<Problem> plugin_problems(const StageType& type, const StageConfig& config) {
  const auto& own = config.plugin();
  std::vector<Problem> problems;
  add_option_problems(type, own.options(), problems);
  if (type.more_ports) return problems;  // which ports it has, only the kind itself knows
  const auto inputs = static_cast<int>(
      std::ranges::count_if(type.inputs, [](const PortSpec& port) { return port.from.empty(); }));
  if (own.input_size() > inputs) {
    problems.push_back({fmt::format("input[{}]", inputs),
                        fmt::format("input is given {} times, but a {} has {} input{}; leave the "
                                    "others out",
                                    own.input_size(), type.kind, inputs, inputs == 1 ? "" : "s")});
  }
  return problems;
}

std::vector<Problem> lane_problems(const StageConfig& config, const std::vector<NodeSpec>& nodes) {
  const auto& own = config.plugin();
  std::vector<Problem> problems;
  if (!std::ranges::all_of(nodes, [](const NodeSpec& node) { return bool(node.create); })) {
    problems.push_back({"kind", fmt::format("kind is \"{}\", whose plug-in gives a node without "
                                            "NodeSpec::create; mend the plug-in",
                                            own.kind())});
  }
  const auto has = [&nodes](std::uint32_t NodeSpec::*lanes, std::uint32_t wanted_lanes) {
    return std::ranges::any_of(nodes,
                               [&](const NodeSpec& node) { return node.*lanes == wanted_lanes; });
  };
  if (own.threads() > 1 && !has(&NodeSpec::lanes, own.threads())) {
    problems.push_back({"threads", fmt::format("threads is {}, but a {} decides itself how many "
                                               "lanes it has; leave threads out",
                                               own.threads(), own.kind())});
  }
  if (own.has_max_threads() && !has(&NodeSpec::lanes_max, own.max_threads())) {
    problems.push_back(
        {"max_threads",
         fmt::format("max_threads is {}, but a {} cannot be scaled; leave max_threads out",
                     own.max_threads(), own.kind())});
  }
  return problems;
}

namespace {

// "": nothing.
std::string fault_of(const BatchTensor& tensor, std::uint64_t slot_bytes) {
  const std::string& name = tensor.name;
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  if (name.empty() || name.size() > kNameBytesMax ||
      name.find_first_not_of(kLetters) != std::string::npos) {
    return fmt::format("\"{}\" cannot be the name of an array", name);
  }
  if (!is_array(tensor.dtype))
    return fmt::format("{} is {}, which is no dtype of an array", name, dtype_name(tensor.dtype));
  if (tensor.shape.empty() || tensor.shape.size() > sample::kDimsMax) {
    return fmt::format("{} has {} dimensions; give 1 to {}", name, tensor.shape.size(),
                       sample::kDimsMax);
  }
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::int64_t size = tensor.shape[d];
    if (size == 0 || size < varying_length(kVaryingMax - 1) || (size == kAllRows && d != 0)) {
      return fmt::format("{} has the size {} in dimension {}", name, size, d);
    }
  }
  if (tensor.bytes == 0) return fmt::format("{} has no bytes: give bytes_max to add()", name);
  if (tensor.offset % kTensorAlignment != 0 || tensor.offset > slot_bytes ||
      tensor.bytes > slot_bytes - tensor.offset) {
    return fmt::format("{} lies at {} with {} bytes in {}: use add()", name, tensor.offset,
                       tensor.bytes, slot_bytes);
  }
  return "";
}

}  // namespace

void plan_batches(const BatchLayout& layout, std::vector<Problem>& problems, BatchSchema& schema) {
  std::vector<std::string> faults;
  if (layout.rows_max == 0) faults.emplace_back("rows_max is 0");
  if (layout.tensors.empty()) faults.emplace_back("there is no array");
  std::set<std::string> names;
  for (const BatchTensor& tensor : layout.tensors) {
    if (std::string fault = fault_of(tensor, layout.bytes); !fault.empty()) {
      faults.push_back(std::move(fault));
    } else if (!names.insert(tensor.name).second) {
      faults.push_back(fmt::format("{} is there twice", tensor.name));
    }
  }
  for (const std::string& fault : faults) {
    problems.push_back(
        {"kind", fmt::format("kind makes batches that cannot be: {}; mend the plug-in", fault)});
  }
  if (!faults.empty()) return;
  for (const BatchTensor& tensor : layout.tensors) {
    TensorSpec& to = *schema.add_tensors();
    to.set_name(tensor.name);
    to.set_dtype(std::string(dtype_name(tensor.dtype)));
    for (const std::int64_t size : tensor.shape) to.add_shape(size);
    to.set_offset(tensor.offset);
    to.set_bytes(tensor.bytes);
  }
  schema.set_slot_bytes(shm::align_up(layout.bytes, shm::kPageBytes));
  schema.set_rows_max(layout.rows_max);
}

void describe_plugins(StageKind& kind) {
  kind.set_kind(std::string(kPluginField));
  kind.set_more_ports(true);
  kind.mutable_example()->set_text(R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "long" plugin { kind: "word_filter" input: "lines" options: '{"min_words": 20}' } }
)");
  kind.mutable_example()->set_maker("jsonl_files");
}

void describe_plugin(const StageType& type, StageKind& kind) {
  kind.set_plugin(true);
  kind.set_text(type.text);
  for (const OptionSpec& option : type.options) {
    OptionText& to = *kind.add_options();
    const TypeName name = type_name(option.type);
    std::string_view what = name.many != nullptr ? name.many : name.one;
    if (what.starts_with("a ")) what.remove_prefix(2);
    to.set_name(option.name);
    to.set_type(std::string(what));
    if (!std::holds_alternative<std::monostate>(option.otherwise)) {
      to.set_default_value(json_text(option.otherwise));
    }
    to.set_range(shown_range(option));
    to.set_text(option.help);
  }
}

}  // namespace ringfeed
