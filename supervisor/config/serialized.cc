#include "supervisor/config/serialized.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "supervisor/config/fields.h"
#include "supervisor/config/names.h"
#include "supervisor/config/wire.h"

namespace ringfeed::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// What lies there, before it is known what it was meant to be.
std::string shown(const WireField& field) {
  switch (field.type) {
    case WireType::kVarint:
      return fmt::format("the number {}", field.value);
    case WireType::kFixed64:
      return fmt::format("8 bytes (as a double {})", std::bit_cast<double>(field.value));
    case WireType::kFixed32:
      return fmt::format("4 bytes (as a float {})",
                         std::bit_cast<float>(static_cast<std::uint32_t>(field.value)));
    case WireType::kLength:
      break;
  }
  return fmt::format("{} bytes of text or of a message", field.bytes.size());
}

WireType wire_type(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return WireType::kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return WireType::kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return WireType::kLength;
    default:
      return WireType::kVarint;
  }
}

std::string wanted(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return fmt::format("a message {}", field.message_type()->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return "a string";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true (1) or false (0)";
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::vector<std::string> values;
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        const auto* value = field.enum_type()->value(i);
        values.push_back(fmt::format("{} ({})", value->name(), value->number()));
      }
      return "one of " + listed(values);
    }
    default:
      return fmt::format("{}, as a {}", allowed_numbers(field), field.type_name());
  }
}

// "1, 2 and 5 to 8": the numbers of a message's fields.
std::string numbers_of(const Descriptor& descriptor) {
  std::map<int, int> ranges;  // first to last
  std::map<int, bool> all;
  for (int i = 0; i < descriptor.field_count(); ++i) all[descriptor.field(i)->number()] = true;
  for (const auto& [number, given] : all) {
    if (!ranges.empty() && ranges.rbegin()->second == number - 1) {
      ranges.rbegin()->second = number;
    } else {
      ranges[number] = number;
    }
  }
  std::vector<std::string> texts;
  for (const auto& [first, last] : ranges) {
    texts.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
  }
  return listed(texts);
}

class Walk {
 public:
  Walk(std::string_view bytes, const Place& place) : begin_(bytes.data()), place_(place) {}

  // The fields of a message at `path`. False: it is none.
  bool message(std::string_view bytes, const Descriptor& descriptor, const std::string& path) {
    std::map<int, std::size_t> first;  // where fields lie that may come once
    WireReader reader(bytes);
    while (const std::optional<WireField> found = reader.next()) {
      const std::size_t at = offset_of(bytes) + found->offset;
      const FieldDescriptor* field = descriptor.FindFieldByNumber(found->number);
      if (field == nullptr) {
        if (too_many()) continue;
        problem(joined(path, fmt::format("{}", found->number)),
                fmt::format("unknown field {} in {}, at byte {}: {}; {} has the numbers {}. Write "
                            "it with ringfeed's proto/config.proto",
                            found->number, path.empty() ? "the configuration" : path, at,
                            shown(*found), descriptor.name(), numbers_of(descriptor)));
        result_.doubtful.push_back(path);
        continue;
      }
      std::string field_path = joined(path, field->name());
      if (field->is_repeated()) {
        field_path = fmt::format("{}[{}]", field_path, count_[field_path]++);
      } else if (const auto [before, fresh] = first.try_emplace(found->number, at); !fresh) {
        if (too_many()) continue;
        problem(field_path, fmt::format("{} (field {}) is given twice, at byte {} and at byte {}; "
                                        "keep one",
                                        field_path, found->number, before->second, at));
        continue;
      }
      value(*field, *found, field_path, at);
    }
    if (!reader.damaged()) return true;
    problem(path,
            fmt::format("{} is not a serialized {}: its bytes are truncated or damaged, at byte "
                        "{}; give text format (.textproto), JSON (.json) or the complete bytes",
                        path.empty() ? "this" : path, descriptor.name(),
                        offset_of(bytes) + reader.offset()));
    result_.whole = false;
    return false;
  }

  SerializedCheck take() { return std::move(result_); }

 private:
  static std::string joined(const std::string& path, std::string_view name) {
    return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
  }
  [[nodiscard]] std::size_t offset_of(std::string_view bytes) const {
    return static_cast<std::size_t>(bytes.data() - begin_);
  }

  void problem(std::string path, std::string text) {
    result_.problems.push_back({place_, {}, std::move(text), std::move(path)});
  }
  // Asked before a text is made: no more are kept, and it has been counted.
  bool too_many() {
    if (result_.problems.size() < kProblemsKept) return false;
    ++result_.left_out;
    return true;
  }

  void value(const FieldDescriptor& field, const WireField& found, const std::string& path,
             std::size_t at) {
    const bool packed = field.is_packable() && found.type == WireType::kLength;
    if (found.type != wire_type(field) && !packed) {
      if (too_many()) return;
      return problem(path, fmt::format("{} (field {}) is {}, at byte {}; give {}", path,
                                       found.number, shown(found), at, wanted(field)));
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      message(found.bytes, *field.message_type(), path);
      return;
    }
    if (!packed) return number(field, found.value, path, at);
    if (wire_type(field) != WireType::kVarint) return;
    WireReader list(found.bytes);
    while (!list.at_end() && !list.damaged()) {
      const std::uint64_t one = list.varint();
      if (!list.damaged()) number(field, one, path, at);
    }
  }

  // Whether what lies there fits the type; whether it is allowed is asked later.
  void number(const FieldDescriptor& field, std::uint64_t value, const std::string& path,
              std::size_t at) {
    std::string shown = fmt::format("{}", value);
    const auto is_signed = static_cast<std::int64_t>(value);
    bool fits = true;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        fits = value <= 1;
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        fits = wire_type(field) != WireType::kVarint ||
               value <= std::numeric_limits<std::uint32_t>::max();
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        shown = fmt::format("{}", is_signed);
        fits =
            wire_type(field) != WireType::kVarint || static_cast<std::int32_t>(value) == is_signed;
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        shown = fmt::format("{}", is_signed);
        fits = static_cast<std::int32_t>(value) == is_signed &&
               field.enum_type()->FindValueByNumber(static_cast<int>(is_signed)) != nullptr;
        break;
      default:
        break;
    }
    if (fits || too_many()) return;
    problem(path, fmt::format("{} (field {}) is {}, at byte {}; give {}", path, field.number(),
                              shown, at, wanted(field)));
  }

  const char* begin_;
  Place place_;
  std::map<std::string, int> count_;  // elements so far, by the list's path
  SerializedCheck result_;
};

}  // namespace

SerializedCheck check_serialized(std::string_view bytes, const Descriptor& descriptor,
                                 const Place& place) {
  Walk walk(bytes, place);
  walk.message(bytes, descriptor, "");
  return walk.take();
}

}  // namespace ringfeed::config
