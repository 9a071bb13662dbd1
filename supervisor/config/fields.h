// What the schema says about a field: its range, its names, how its path is shown. Shared by
// reading and checking; for .cc files only, because it shows protobuf.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed {
class DataLoaderConfig;
class StagePlan;
class Range;
}  // namespace ringfeed

namespace ringfeed::config {

// What the field may be: its range option, or that of the common field that it is; nullptr: it has
// none.
[[nodiscard]] const Range* range_of(const google::protobuf::FieldDescriptor& field);
// The field of CommonFields that a field of a stage's configuration is, by its name; nullptr: it is
// none.
[[nodiscard]] const google::protobuf::FieldDescriptor* common_field(
    const google::protobuf::FieldDescriptor& field);
// Whether the field is a size in bytes, by its name: it may then be written with a unit.
[[nodiscard]] bool is_size(const google::protobuf::FieldDescriptor& field);
// "a number from 1 to 64", "a number above 0 and at most 1", "a whole number from 0 to 4294967295":
// what the field takes, from its type and its range. Of a size
// "a size from 64 KiB to 1 TiB: a number of bytes, or with a unit, such as "64 MiB"".
[[nodiscard]] std::string allowed_numbers(const google::protobuf::FieldDescriptor& field);
// The same in short: "1 to 64", "above 0, at most 1", "from 1"; "" without a range.
[[nodiscard]] std::string shown_range(const google::protobuf::FieldDescriptor& field);
// Whether the range of the field, if it has one, allows the value. NaN is never allowed there.
[[nodiscard]] bool in_range(const google::protobuf::FieldDescriptor& field, double value);
// What a field of type uint32 or uint64 has: `threads` is one or the other.
[[nodiscard]] std::uint64_t count_in(const google::protobuf::Message& message,
                                     const google::protobuf::FieldDescriptor& field);

// Names of all fields of a message, in the order of the schema.
[[nodiscard]] std::vector<std::string> field_names(const google::protobuf::Descriptor& descriptor);
// Names of all values of an enum.
[[nodiscard]] std::vector<std::string> value_names(
    const google::protobuf::EnumDescriptor& descriptor);
// The fields of StageConfig that configure a stage: every field that is a message.
[[nodiscard]] std::vector<const google::protobuf::FieldDescriptor*> kind_fields();
// Those of them that are set in stage number `index`.
[[nodiscard]] std::vector<const google::protobuf::FieldDescriptor*> kinds_set(
    const google::protobuf::Message& stage);

// The kind of a planned stage as people know it: of a plug-in's stage its own.
[[nodiscard]] const std::string& shown_kind(const StagePlan& stage);

// "stages[2]", "stages[2].chunk_unpacker": the path of a stage and of what lies in it.
[[nodiscard]] std::string stage_path(int index);
// The number in a path "stages[2]…".
[[nodiscard]] std::optional<int> stage_index(std::string_view path);
// The name of that stage, "stages[2]" if it has none, "" for a path outside the stages.
[[nodiscard]] std::string stage_label(const DataLoaderConfig& config, std::string_view path);
// A path as a message shows it: inside a stage without the stage and its kind.
[[nodiscard]] std::string shown_path(std::string_view path);

}  // namespace ringfeed::config
