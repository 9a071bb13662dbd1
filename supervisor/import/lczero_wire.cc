#include "supervisor/import/lczero_wire.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

namespace ringfeed::imports {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

struct WireField {
  int number = 0;
  std::uint32_t type = 0;
  std::uint64_t value = 0;  // of a number, as it lies there
  std::string_view bytes;   // of kLength
};

// The fields of a message one after the other.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  // nullopt at the end, and where the bytes are no message: then damaged().
  std::optional<WireField> next() {
    if (rest_.empty() || damaged_) return std::nullopt;
    WireField field;
    const std::uint64_t key = varint();
    field.number = static_cast<int>(key >> 3 & 0x1FFFFFFF);
    field.type = key & 7;
    if (field.number == 0) damaged_ = true;
    switch (field.type) {
      case kVarint:
        field.value = varint();
        break;
      case kFixed64:
        field.value = fixed(8);
        break;
      case kFixed32:
        field.value = fixed(4);
        break;
      case kLength:
        field.bytes = take(varint());
        break;
      default:
        damaged_ = true;
    }
    if (damaged_) return std::nullopt;
    return field;
  }
  [[nodiscard]] bool damaged() const { return damaged_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::string_view byte = take(1);
      if (damaged_) return 0;
      const auto bits = static_cast<std::uint8_t>(byte[0]);
      value |= static_cast<std::uint64_t>(bits & 0x7F) << shift;
      if (bits < 0x80) return value;
    }
    damaged_ = true;
    return 0;
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) {
      damaged_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t fixed(std::size_t bytes) {
    const std::string_view taken = take(bytes);
    std::uint64_t value = 0;
    std::memcpy(&value, taken.data(), taken.size());  // little-endian, as the machine is
    return value;
  }

  std::string_view rest_;
  bool damaged_ = false;
};

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
      if (found.type != kLength) return false;
      if (field.is_repeated()) {
        reflection.AddString(&message, &field, std::string(found.bytes));
      } else {
        reflection.SetString(&message, &field, std::string(found.bytes));
      }
      return true;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (found.type == kFixed64) {
        reflection.SetDouble(&message, &field, std::bit_cast<double>(found.value));
      } else if (found.type == kFixed32) {
        // By its digits: a float's 0.1 is to be 0.1.
        const auto narrow = std::bit_cast<float>(static_cast<std::uint32_t>(found.value));
        reflection.SetDouble(&message, &field,
                             std::strtod(fmt::format("{}", narrow).c_str(), nullptr));
      } else {
        return false;
      }
      return true;
    case FieldDescriptor::CPPTYPE_ENUM: {
      if (found.type != kVarint) return false;
      const auto* value = field.enum_type()->FindValueByNumber(static_cast<int>(found.value));
      if (value == nullptr) return false;
      reflection.SetEnum(&message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64: {
      if (found.type == kVarint) {
        put_integer(message, field, found.value);
        return true;
      }
      if (found.type != kLength || !field.is_repeated()) return false;
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
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && found->type == kLength) {
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
      problems.push_back(fmt::format("{} has a value that it cannot have", where(field->name())));
    }
  }
  if (reader.damaged()) {
    problems.push_back(fmt::format("{} is no serialized message: cut short or damaged",
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
    if (field->number == number && field->type == kLength) last = field->bytes;
  }
  return last;
}

}  // namespace ringfeed::imports
