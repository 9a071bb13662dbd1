#include "supervisor/config/bind.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>

#include "supervisor/config/fields.h"
#include "supervisor/config/names.h"
#include "supervisor/os/text.h"

namespace ringfeed::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string joined(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

// Values that are longer are not shown: a text may be a whole pasted file.
constexpr std::size_t kShownMax = 200;

// How a value looks in a message, the same for both notations.
std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kString:
      if (node.text.size() > kShownMax) {
        return fmt::format("a string of {} characters", node.text.size());
      }
      return fmt::format("\"{}\"", node.text);
    case Node::Kind::kObject:
      return "a message";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kNumber:
    case Node::Kind::kWord:
      break;
  }
  if (node.text.size() > kShownMax) return fmt::format("{} characters", node.text.size());
  return node.text;
}

std::optional<double> real_number(const Node& node, Notation notation) {
  std::string text = node.text;
  const bool word = node.kind == Node::Kind::kWord ||
                    (notation == Notation::kJson && node.kind == Node::Kind::kString);
  if (word) {
    const bool negative = text.starts_with('-');
    std::string name = negative ? text.substr(1) : text;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (name == "inf" || name == "infinity") {
      return negative ? -std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::infinity();
    }
  }
  if (node.kind == Node::Kind::kWord) return std::nullopt;
  if (notation == Notation::kText && (text.ends_with('f') || text.ends_with('F'))) text.pop_back();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

template <std::integral Integer>
std::optional<Integer> whole_number(const Node& node, Notation notation) {
  std::string_view digits = node.text;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  int base = 10;
  if (notation == Notation::kText && digits.size() > 1 && digits[0] == '0') {
    const bool hexadecimal = digits[1] == 'x' || digits[1] == 'X';
    base = hexadecimal ? 16 : 8;
    digits.remove_prefix(hexadecimal ? 2 : 1);
  }
  std::uint64_t magnitude = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (error == std::errc{} && end == digits.data() + digits.size() && !digits.empty()) {
    if (negative && std::unsigned_integral<Integer>) {
      return magnitude == 0 ? std::optional<Integer>(0) : std::nullopt;
    }
    const auto largest = static_cast<std::uint64_t>(std::numeric_limits<Integer>::max());
    if (magnitude > largest + (negative ? 1U : 0U)) return std::nullopt;
    return static_cast<Integer>(negative ? 0 - magnitude : magnitude);
  }
  // JSON knows one kind of number: 1e5 and 16.0 are whole.
  if (notation == Notation::kText) return std::nullopt;
  const std::optional<double> value = real_number(node, notation);
  if (!value || std::floor(*value) != *value || std::abs(*value) > 9e15) return std::nullopt;
  if (*value < static_cast<double>(std::numeric_limits<Integer>::min()) ||
      *value > static_cast<double>(std::numeric_limits<Integer>::max())) {
    return std::nullopt;
  }
  return static_cast<Integer>(*value);
}

std::optional<bool> truth(const Node& node, Notation notation) {
  if (node.kind == Node::Kind::kWord) {
    if (node.text == "true") return true;
    if (node.text == "false") return false;
    if (notation == Notation::kText) {
      if (node.text == "True" || node.text == "t") return true;
      if (node.text == "False" || node.text == "f") return false;
    }
  }
  if (notation == Notation::kText && node.kind == Node::Kind::kNumber) {
    if (node.text == "1") return true;
    if (node.text == "0") return false;
  }
  return std::nullopt;
}

const EnumValueDescriptor* enumerator(const Node& node, const FieldDescriptor& field,
                                      Notation notation) {
  const bool name = node.kind == Node::Kind::kWord ||
                    (notation == Notation::kJson && node.kind == Node::Kind::kString);
  if (name) return field.enum_type()->FindValueByName(node.text);
  if (node.kind != Node::Kind::kNumber) return nullptr;
  const std::optional<std::int32_t> number = whole_number<std::int32_t>(node, notation);
  return number ? field.enum_type()->FindValueByNumber(*number) : nullptr;
}

template <typename Value>
void store(Message& message, const FieldDescriptor& field, const Value& value,
           void (Reflection::*set)(Message*, const FieldDescriptor*, Value) const,
           void (Reflection::*add)(Message*, const FieldDescriptor*, Value) const) {
  const Reflection& reflection = *message.GetReflection();
  (reflection.*(field.is_repeated() ? add : set))(&message, &field, value);
}

}  // namespace

bool Binder::too_many() {
  if (problems_.size() < kProblemsKept) return false;
  ++left_out_;
  return true;
}

void Binder::problem(Position position, const std::string& path, std::string text) {
  if (too_many()) return;
  problems_.push_back({place_of_(position), {}, std::move(text), path});
}

const FieldDescriptor* Binder::field(const Descriptor& descriptor, const std::string& name) const {
  if (const FieldDescriptor* found = descriptor.FindFieldByName(name)) return found;
  if (notation_ == Notation::kText) return nullptr;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (descriptor.field(i)->json_name() == name) return descriptor.field(i);
  }
  return nullptr;
}

void Binder::object(const Node& node, Message& message, const std::string& path) {
  std::map<const FieldDescriptor*, Position> seen;
  for (const Entry& entry : node.entries) {
    const FieldDescriptor* found = field(*message.GetDescriptor(), entry.name);
    if (found == nullptr) {
      unknown(entry, node, message, path);
      continue;
    }
    const std::string field_path = joined(path, found->name());
    if (entry.value.kind == Node::Kind::kNull) continue;
    const auto [first, fresh] = seen.try_emplace(found, entry.position);
    if (!fresh && (!found->is_repeated() || notation_ == Notation::kJson)) {
      problem(entry.position, field_path,
              fmt::format("{} is given twice, first at line {}; keep one", shown_path(field_path),
                          first->second.line));
      continue;
    }
    if (found->is_repeated()) {
      list(entry, message, *found, field_path);
      continue;
    }
    places_.set(field_path, place_of_(entry.position));
    value(entry.value, message, *found, field_path);
  }
}

void Binder::list(const Entry& entry, Message& message, const FieldDescriptor& field,
                  const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const auto add = [&](const Node& node, Position position) {
    const std::string element = fmt::format("{}[{}]", path, reflection.FieldSize(message, &field));
    places_.set(element, place_of_(position));
    value(node, message, field, element);
  };
  if (!places_.contains(path)) places_.set(path, place_of_(entry.position));
  if (entry.value.kind == Node::Kind::kList) {
    for (const Node& item : entry.value.items) add(item, item.position);
  } else if (notation_ == Notation::kText ||
             (entry.value.kind == Node::Kind::kObject &&
              field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)) {
    add(entry.value, entry.position);  // a list of one, also where JSON has it without []
  } else {
    problem(
        entry.value.position, path,
        fmt::format("{} is {}, not a list; put it in []", shown_path(path), shown(entry.value)));
  }
}

void Binder::unknown(const Entry& entry, const Node& object, Message& message,
                     const std::string& path) {
  // Before the search for what was meant, which takes its time.
  if (too_many()) return;
  const Descriptor& descriptor = *message.GetDescriptor();
  const std::vector<std::string> names = field_names(descriptor);
  std::string where = "the configuration";
  if (!path.empty()) {
    const std::size_t dot = path.rfind('.');
    where = dot == std::string::npos ? path : path.substr(dot + 1);
  }
  problem(entry.position, joined(path, entry.name),
          fmt::format("unknown field '{}' in {}{}", entry.name, where,
                      did_you_mean(entry.name, names, "it has")));
  places_.set_doubtful(path);
  const std::string_view nearest = nearest_name(entry.name, names);
  if (nearest.empty()) return;
  const FieldDescriptor* meant = descriptor.FindFieldByName(std::string(nearest));
  const bool given = std::any_of(object.entries.begin(), object.entries.end(), [&](const Entry& e) {
    return field(descriptor, e.name) == meant;
  });
  if (given && !meant->is_repeated()) return;
  // Taken as what was probably meant, so that its absence is not reported as a second mistake. What
  // is wrong inside of it is reported; a value of a wrong kind shows that something else was meant.
  Entry corrected = entry;
  corrected.name = meant->name();
  Node one;
  one.kind = Node::Kind::kObject;
  one.entries.push_back(std::move(corrected));
  const std::size_t before = problems_.size();
  this->object(one, message, path);
  const std::string guessed = joined(path, meant->name());
  const auto wrong_guess = [&guessed](const Problem& found) {
    return found.path.starts_with(guessed) &&
           found.path.find('.', guessed.size()) == std::string::npos;
  };
  problems_.erase(std::remove_if(problems_.begin() + static_cast<std::ptrdiff_t>(before),
                                 problems_.end(), wrong_guess),
                  problems_.end());
}

void Binder::value(const Node& node, Message& message, const FieldDescriptor& field,
                   const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const std::string name = shown_path(path);
  const auto refuse = [&](std::string_view wanted) {
    problem(node.position, path, fmt::format("{} is {}; give {}", name, shown(node), wanted));
  };
  const auto number = [&]<typename Value>(std::optional<Value> parsed, auto set, auto add) {
    const bool may_be = node.kind == Node::Kind::kNumber || node.kind == Node::Kind::kWord ||
                        (notation_ == Notation::kJson && node.kind == Node::Kind::kString);
    if (!parsed || !may_be) {
      refuse(allowed_numbers(field));
      return;
    }
    store<Value>(message, field, *parsed, set, add);
  };
  if (is_size(field) && node.kind == Node::Kind::kString) {
    if (const std::optional<std::uint64_t> bytes = parse_bytes(node.text)) {
      return store<std::uint64_t>(message, field, *bytes, &Reflection::SetUInt64,
                                  &Reflection::AddUInt64);
    }
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      if (node.kind != Node::Kind::kObject) {
        refuse(fmt::format("a message, {{ ... }}, with {}",
                           listed(field_names(*field.message_type()))));
        return;
      }
      Message* const inner = field.is_repeated() ? reflection.AddMessage(&message, &field)
                                                 : reflection.MutableMessage(&message, &field);
      object(node, *inner, path);
      return;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (node.kind != Node::Kind::kString) {
        refuse("a string in double quotes");
        // Something was given, so that nothing is missing.
        if (node.kind == Node::Kind::kObject || node.kind == Node::Kind::kList) return;
      }
      if (field.is_repeated()) {
        reflection.AddString(&message, &field, node.text);
      } else {
        reflection.SetString(&message, &field, node.text);
      }
      return;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (const std::optional<bool> parsed = truth(node, notation_)) {
        store<bool>(message, field, *parsed, &Reflection::SetBool, &Reflection::AddBool);
      } else {
        refuse("true or false");
      }
      return;
    case FieldDescriptor::CPPTYPE_ENUM:
      if (const EnumValueDescriptor* parsed = enumerator(node, field, notation_)) {
        store<const EnumValueDescriptor*>(message, field, parsed, &Reflection::SetEnum,
                                          &Reflection::AddEnum);
      } else {
        const std::vector<std::string> names = value_names(*field.enum_type());
        const bool as_text = node.kind == Node::Kind::kString && notation_ == Notation::kText &&
                             field.enum_type()->FindValueByName(node.text) != nullptr;
        const bool plain = node.kind == Node::Kind::kString || node.kind == Node::Kind::kWord;
        problem(node.position, path,
                as_text
                    ? fmt::format("{} is {}; write {} without quotes", name, shown(node), node.text)
                    : fmt::format("{} is {}; give one of {}{}", name,
                                  plain ? node.text : shown(node), listed(names),
                                  plain && !nearest_name(node.text, names).empty()
                                      ? did_you_mean(node.text, names, "")
                                      : ""));
      }
      return;
    case FieldDescriptor::CPPTYPE_INT32:
      return number(whole_number<std::int32_t>(node, notation_), &Reflection::SetInt32,
                    &Reflection::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return number(whole_number<std::int64_t>(node, notation_), &Reflection::SetInt64,
                    &Reflection::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return number(whole_number<std::uint32_t>(node, notation_), &Reflection::SetUInt32,
                    &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return number(whole_number<std::uint64_t>(node, notation_), &Reflection::SetUInt64,
                    &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_FLOAT: {
      std::optional<float> narrowed;
      if (const std::optional<double> parsed = real_number(node, notation_)) {
        // Beyond the largest float a cast has no defined result; infinity is what is closest.
        const bool fits =
            std::abs(*parsed) <= std::numeric_limits<float>::max() || std::isnan(*parsed);
        narrowed = fits ? static_cast<float>(*parsed)
                        : std::copysign(std::numeric_limits<float>::infinity(),
                                        *parsed < 0 ? -1.0F : 1.0F);
      }
      return number(narrowed, &Reflection::SetFloat, &Reflection::AddFloat);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number(real_number(node, notation_), &Reflection::SetDouble, &Reflection::AddDouble);
  }
}

}  // namespace ringfeed::config
