#include "supervisor/config/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/os/text.h"

namespace ringfeed::config {
namespace {

using google::protobuf::FieldDescriptor;

// Numbers that a person wrote are shown as a person writes them: 1000000, 0.5, not 1e+06.
std::string shown_number(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e18) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

template <typename Integer>
std::string whole_numbers(const Range& range) {
  // The bounds as text, because the largest 64-bit numbers are not exact as doubles.
  const std::string low = range.has_min() ? shown_number(range.min())
                                          : fmt::format("{}", std::numeric_limits<Integer>::min());
  const std::string high = range.has_max() ? shown_number(range.max())
                                           : fmt::format("{}", std::numeric_limits<Integer>::max());
  return fmt::format("a whole number from {} to {}", low, high);
}

std::string shown_bound(const FieldDescriptor& field, double value) {
  return is_size(field) ? exact_bytes(static_cast<std::uint64_t>(value)) : shown_number(value);
}

std::string sizes(const FieldDescriptor& field, const Range& range) {
  std::string bounds = " in bytes";
  if (range.has_min()) bounds = " of at least " + shown_bound(field, range.min());
  if (range.has_min() && range.has_max()) {
    bounds = fmt::format(" from {} to {}", shown_bound(field, range.min()),
                         shown_bound(field, range.max()));
  }
  return fmt::format("a size{}: a number of bytes, or with a unit, such as \"64 MiB\"", bounds);
}

}  // namespace

bool is_size(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64 && field.name().ends_with("_bytes");
}

const Range* range_of(const FieldDescriptor& field) {
  if (field.options().HasExtension(::ringfeed::range)) {
    return &field.options().GetExtension(::ringfeed::range);
  }
  const FieldDescriptor* const common = common_field(field);
  if (common == nullptr || !common->options().HasExtension(::ringfeed::range)) return nullptr;
  return &common->options().GetExtension(::ringfeed::range);
}

const FieldDescriptor* common_field(const FieldDescriptor& field) {
  const std::vector<const FieldDescriptor*> kinds = kind_fields();
  const bool of_a_stage = std::ranges::any_of(kinds, [&field](const FieldDescriptor* kind) {
    return kind->message_type() == field.containing_type();
  });
  return of_a_stage ? CommonFields::descriptor()->FindFieldByName(field.name()) : nullptr;
}

std::string allowed_numbers(const FieldDescriptor& field) {
  const Range* const own = range_of(field);
  const Range range = own == nullptr ? Range() : *own;
  if (is_size(field)) return sizes(field, range);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return whole_numbers<std::int32_t>(range);
    case FieldDescriptor::CPPTYPE_INT64:
      return whole_numbers<std::int64_t>(range);
    case FieldDescriptor::CPPTYPE_UINT32:
      return whole_numbers<std::uint32_t>(range);
    case FieldDescriptor::CPPTYPE_UINT64:
      return whole_numbers<std::uint64_t>(range);
    default:
      break;
  }
  std::vector<std::string> conditions;
  if (range.has_above()) conditions.push_back(fmt::format("above {}", shown_number(range.above())));
  if (range.has_min()) conditions.push_back(fmt::format("at least {}", shown_number(range.min())));
  if (range.has_max()) conditions.push_back(fmt::format("at most {}", shown_number(range.max())));
  return fmt::format("a number{}{}", conditions.empty() ? "" : " ", fmt::join(conditions, " and "));
}

std::string shown_range(const FieldDescriptor& field) {
  const Range* const range = range_of(field);
  if (range == nullptr) return "";
  if (range->has_min() && range->has_max()) {
    return fmt::format("{} to {}", shown_bound(field, range->min()),
                       shown_bound(field, range->max()));
  }
  std::vector<std::string> conditions;
  if (range->has_above()) conditions.push_back("above " + shown_bound(field, range->above()));
  if (range->has_min()) conditions.push_back("from " + shown_bound(field, range->min()));
  if (range->has_max()) conditions.push_back("at most " + shown_bound(field, range->max()));
  return fmt::format("{}", fmt::join(conditions, ", "));
}

bool in_range(const FieldDescriptor& field, double value) {
  const Range* const given = range_of(field);
  if (given == nullptr) return true;
  const Range& range = *given;
  if (std::isnan(value)) return false;
  return (!range.has_min() || value >= range.min()) && (!range.has_max() || value <= range.max()) &&
         (!range.has_above() || value > range.above());
}

std::vector<std::string> field_names(const google::protobuf::Descriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->name());
  return names;
}

std::vector<std::string> value_names(const google::protobuf::EnumDescriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.value_count(); ++i) names.push_back(descriptor.value(i)->name());
  return names;
}

std::vector<const FieldDescriptor*> kind_fields() {
  std::vector<const FieldDescriptor*> fields;
  const google::protobuf::Descriptor& stage = *StageConfig::descriptor();
  for (int i = 0; i < stage.field_count(); ++i) {
    if (stage.field(i)->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      fields.push_back(stage.field(i));
    }
  }
  return fields;
}

std::vector<const FieldDescriptor*> kinds_set(const google::protobuf::Message& stage) {
  std::vector<const FieldDescriptor*> fields;
  for (const FieldDescriptor* field : kind_fields()) {
    if (stage.GetReflection()->HasField(stage, field)) fields.push_back(field);
  }
  return fields;
}

const std::string& shown_kind(const StagePlan& stage) {
  return stage.has_plugin() ? stage.plugin() : stage.kind();
}

std::string stage_path(int index) { return fmt::format("stages[{}]", index); }

std::uint64_t count_in(const google::protobuf::Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  return field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32
             ? reflection.GetUInt32(message, &field)
             : reflection.GetUInt64(message, &field);
}

std::optional<int> stage_index(std::string_view path) {
  constexpr std::string_view kPrefix = "stages[";
  if (!path.starts_with(kPrefix)) return std::nullopt;
  int index = 0;
  const char* const begin = path.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, path.data() + path.size(), index);
  if (error != std::errc{} || end == begin) return std::nullopt;
  return index;
}

std::string stage_label(const DataLoaderConfig& config, std::string_view path) {
  const std::optional<int> index = stage_index(path);
  if (!index) return {};
  if (*index < config.stages_size() && !config.stages(*index).name().empty()) {
    return config.stages(*index).name();
  }
  return stage_path(*index);
}

std::string shown_path(std::string_view path) {
  if (!stage_index(path)) return std::string(path);
  const std::size_t in_stage = path.find('.');
  if (in_stage == std::string_view::npos) return std::string(path);
  path = path.substr(in_stage + 1);
  const std::size_t in_kind = path.find('.');
  return std::string(in_kind == std::string_view::npos ? path : path.substr(in_kind + 1));
}

}  // namespace ringfeed::config
