#include "supervisor/import/lczero_wire.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "supervisor/config/wire.h"

namespace ringfeed::imports {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

using config::WireField;
using config::WireReader;
using config::WireType;

void put_integer(Message& message, const FieldDescriptor& field, std::uint64_t value) {
  const Reflection& reflection = *message.GetReflection();
  const bool unsigned_field = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
  if (field.is_repeated()) {
    if (unsigned_field) {
      reflection.AddUInt64(&message, &field, value);
    } else {
      reflection.AddInt64(&message, &field, static_cast<std::int64_t>(value));
    }
  } else if (unsigned_field) {
    reflection.SetUInt64(&message, &field, value);
  } else {
    reflection.SetInt64(&message, &field, static_cast<std::int64_t>(value));
  }
}

// False: not a value of that field.
bool put(Message& message, const FieldDescriptor& field, const WireField& found) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (found.type != WireType::kLength) return false;
      if (field.is_repeated()) {
        reflection.AddString(&message, &field, std::string(found.bytes));
      } else {
        reflection.SetString(&message, &field, std::string(found.bytes));
      }
      return true;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (found.type == WireType::kFixed64) {
        reflection.SetDouble(&message, &field, std::bit_cast<double>(found.value));
      } else if (found.type == WireType::kFixed32) {
        // By its digits: a float's 0.1 is to be 0.1.
        const auto narrow = std::bit_cast<float>(static_cast<std::uint32_t>(found.value));
        reflection.SetDouble(&message, &field,
                             std::strtod(fmt::format("{}", narrow).c_str(), nullptr));
      } else {
        return false;
      }
      return true;
    case FieldDescriptor::CPPTYPE_ENUM: {
      if (found.type != WireType::kVarint) return false;
      const auto* value = field.enum_type()->FindValueByNumber(static_cast<int>(found.value));
      if (value == nullptr) return false;
      reflection.SetEnum(&message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64: {
      if (found.type == WireType::kVarint) {
        put_integer(message, field, found.value);
        return true;
      }
      if (found.type != WireType::kLength || !field.is_repeated()) return false;
      WireReader packed(found.bytes);
      while (!packed.at_end()) {
        const std::uint64_t value = packed.varint();
        if (packed.damaged()) return false;
        put_integer(message, field, value);
      }
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

std::vector<std::string> read_wire(std::string_view bytes, Message& message,
                                   const std::string& path) {
  std::vector<std::string> problems;
  const Reflection& reflection = *message.GetReflection();
  const auto where = [&path](const std::string& name) {
    return path.empty() ? name : fmt::format("{}.{}", path, name);
  };
  WireReader reader(bytes);
  while (const std::optional<WireField> found = reader.next()) {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByNumber(found->number);
    if (field == nullptr) {
      problems.push_back(
          fmt::format("{}: field {} is not known", path.empty() ? "it" : path, found->number));
      continue;
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && found->type == WireType::kLength) {
      const std::string inner_path =
          field->is_repeated()
              ? fmt::format("{}[{}]", where(field->name()), reflection.FieldSize(message, field))
              : where(field->name());
      Message* const inner = field->is_repeated() ? reflection.AddMessage(&message, field)
                                                  : reflection.MutableMessage(&message, field);
      for (std::string& problem : read_wire(found->bytes, *inner, inner_path)) {
        problems.push_back(std::move(problem));
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ||
               !put(message, *field, *found)) {
      problems.push_back(fmt::format("{} has an impossible value", where(field->name())));
    }
  }
  if (reader.damaged()) {
    problems.push_back(fmt::format("{} is not a serialized message: it is truncated or damaged",
                                   path.empty() ? "it" : path));
  }
  return problems;
}

bool has_wire_field(std::string_view bytes, int number) {
  WireReader reader(bytes);
  bool found = false;
  while (const std::optional<WireField> field = reader.next()) found |= field->number == number;
  return found && !reader.damaged();
}

std::string_view wire_field(std::string_view bytes, int number) {
  WireReader reader(bytes);
  std::string_view last;
  while (const std::optional<WireField> field = reader.next()) {
    if (field->number == number && field->type == WireType::kLength) last = field->bytes;
  }
  return last;
}

}  // namespace ringfeed::imports
