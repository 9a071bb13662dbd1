#include "workers/io/arrow_values.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "workers/io/arrow_help.h"

namespace ringfeed::formats {
namespace {

constexpr std::size_t kDimsMax = 8;

using arrow::Array;
using arrow::Type;

// The type of one value, if it is a plain one; lists and the like are kNothing.
TableType plain_type(Type::type id) noexcept {
  switch (id) {
    case Type::BOOL:
      return TableType::kBool;
    case Type::INT8:
      return TableType::kInt8;
    case Type::INT16:
      return TableType::kInt16;
    case Type::INT32:
    case Type::DATE32:
    case Type::TIME32:
      return TableType::kInt32;
    case Type::INT64:
    case Type::DATE64:
    case Type::TIME64:
    case Type::TIMESTAMP:
    case Type::DURATION:
      return TableType::kInt64;
    case Type::UINT8:
      return TableType::kUint8;
    case Type::UINT16:
      return TableType::kUint16;
    case Type::UINT32:
      return TableType::kUint32;
    case Type::UINT64:
      return TableType::kUint64;
    case Type::HALF_FLOAT:
      return TableType::kFloat16;
    case Type::FLOAT:
      return TableType::kFloat32;
    case Type::DOUBLE:
      return TableType::kFloat64;
    default:
      return TableType::kNothing;
  }
}

// What stands behind extension types and dictionaries; `at` becomes the place in it.
const Array& plain(const Array& array, std::int64_t& at) {
  const Array* own = &array;
  for (;;) {
    if (own->type_id() == Type::EXTENSION) {
      own = static_cast<const arrow::ExtensionArray*>(own)->storage().get();
    } else if (own->type_id() == Type::DICTIONARY) {
      const auto* const coded = static_cast<const arrow::DictionaryArray*>(own);
      if (coded->IsNull(at)) return *own;
      const std::int64_t value = coded->GetValueIndex(at);
      if (value < 0 || value >= coded->dictionary()->length()) {
        throw ArrowDamage("a value lies outside of its dictionary");
      }
      at = value;
      own = coded->dictionary().get();
    } else {
      return *own;
    }
  }
}

struct Slice {
  const Array* values = nullptr;  // nullptr: it is no list
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
template <typename List>
Slice slice_of(const Array& array, std::int64_t at) {
  const auto& list = static_cast<const List&>(array);
  return {list.values().get(), list.value_offset(at), list.value_length(at)};
}
Slice list_at(const Array& array, std::int64_t at) {
  switch (array.type_id()) {
    case Type::LIST:
      return slice_of<arrow::ListArray>(array, at);
    case Type::LARGE_LIST:
      return slice_of<arrow::LargeListArray>(array, at);
    case Type::FIXED_SIZE_LIST:
      return slice_of<arrow::FixedSizeListArray>(array, at);
    default:
      return {};
  }
}

// The raw numbers [begin, begin + count) of a plain array, without looking for nulls.
void put_numbers(const Array& array, std::int64_t begin, std::int64_t count,
                 std::vector<std::byte>& to) {
  if (array.type_id() == Type::BOOL) {
    const auto& truths = static_cast<const arrow::BooleanArray&>(array);
    for (std::int64_t i = begin; i < begin + count; ++i) {
      to.push_back(truths.Value(i) ? std::byte{1} : std::byte{0});
    }
    return;
  }
  if (count == 0) return;
  const auto& flat = static_cast<const arrow::PrimitiveArray&>(array);
  const auto width = static_cast<std::int64_t>(
      static_cast<const arrow::FixedWidthType&>(*array.type()).bit_width() / 8);
  const auto* const from =
      reinterpret_cast<const std::byte*>(flat.values()->data()) + (array.offset() + begin) * width;
  to.insert(to.end(), from, from + count * width);
}

// A list of numbers, of any depth, as an array. False: it has nulls, is not of one shape, or holds
// something else.
bool put_array(const Slice& list, std::size_t depth, TableValue& to) {
  if (depth == kDimsMax || list.count > 0xffffffffLL) return false;
  const auto count = static_cast<std::uint32_t>(list.count);
  if (to.shape.size() == depth) {
    to.shape.push_back(count);
  } else if (to.shape[depth] != count) {
    return false;
  }
  const Array* values = list.values;
  while (values->type_id() == Type::EXTENSION) {
    values = static_cast<const arrow::ExtensionArray*>(values)->storage().get();
  }
  for (std::int64_t i = list.begin; values->null_count() != 0 && i < list.begin + list.count; ++i) {
    if (values->IsNull(i)) return false;
  }
  to.type = plain_type(values->type_id());
  if (to.type != TableType::kNothing) {
    put_numbers(*values, list.begin, list.count, to.bytes);
    return true;
  }
  for (std::int64_t i = list.begin; i < list.begin + list.count; ++i) {
    const Slice inner = list_at(*values, i);
    if (inner.values == nullptr || !put_array(inner, depth + 1, to)) return false;
  }
  if (list.count != 0) return to.type != TableType::kNothing;
  // Of an empty one the type says how deep it would be.
  const arrow::DataType* type = values->type().get();
  for (std::size_t deeper = depth + 1; to.type == TableType::kNothing; ++deeper) {
    const bool is_list = type->id() == Type::LIST || type->id() == Type::LARGE_LIST ||
                         type->id() == Type::FIXED_SIZE_LIST;
    if (!is_list || deeper == kDimsMax) return false;
    if (to.shape.size() == deeper) to.shape.push_back(0);
    type = type->field(0)->type().get();
    to.type = plain_type(type->id());
  }
  return true;
}

std::string_view text_of(const Array& array, std::int64_t at) {
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(at);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(at);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(at);
    default:
      return static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(at);
  }
}

bool is_text(Type::type id) noexcept {
  return id == Type::STRING || id == Type::LARGE_STRING || id == Type::STRING_VIEW;
}
bool is_bytes(Type::type id) noexcept {
  return id == Type::BINARY || id == Type::LARGE_BINARY || id == Type::BINARY_VIEW ||
         id == Type::FIXED_SIZE_BINARY;
}

void put_quoted(std::string_view text, std::string& json) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  json += '"';
}

// What is wrong with it; empty: it has been put.
std::string put_json(const Array& given, std::int64_t at, std::size_t depth, std::string& json) {
  const Array& array = plain(given, at);
  if (depth == kDepthMax) return "it is nested too deep";
  if (array.IsNull(at) || array.type_id() == Type::NA) {
    json += "null";
    return {};
  }
  const Type::type id = array.type_id();
  if (is_text(id)) {
    put_quoted(text_of(array, at), json);
    return {};
  }
  if (is_bytes(id)) return "it has bytes inside of a list or map, which JSON cannot hold";
  if (id == Type::STRUCT) {
    const auto& parts = static_cast<const arrow::StructArray&>(array);
    json += '{';
    for (int i = 0; i < parts.num_fields(); ++i) {
      if (i != 0) json += ',';
      put_quoted(parts.type()->field(i)->name(), json);
      json += ':';
      if (std::string fault = put_json(*parts.field(i), at, depth + 1, json); !fault.empty()) {
        return fault;
      }
    }
    json += '}';
    return {};
  }
  // A map is a list of pairs.
  const Slice list = id == Type::MAP ? slice_of<arrow::ListArray>(array, at) : list_at(array, at);
  if (list.values != nullptr) {
    json += '[';
    for (std::int64_t i = 0; i < list.count; ++i) {
      if (i != 0) json += ',';
      std::string fault = put_json(*list.values, list.begin + i, depth + 1, json);
      if (!fault.empty()) return fault;
    }
    json += ']';
    return {};
  }
  const auto scalar = array.GetScalar(at);
  if (!scalar.ok()) return scalar.status().ToString();
  const std::string text = (*scalar)->ToString();
  const bool number = (plain_type(id) != TableType::kNothing) && id != Type::HALF_FLOAT;
  const bool whole_or_real = number && !arrow::is_temporal(id);
  const bool finite = whole_or_real && text.find_first_of("nN") == std::string::npos;
  if (finite || id == Type::BOOL) {
    json += text;
  } else if (whole_or_real) {
    json += "null";  // NaN and infinities, which JSON has not
  } else {
    put_quoted(text, json);
  }
  return {};
}

void put_value(const Array& given, std::int64_t at, TableValue& to) {
  to.type = TableType::kNothing;
  to.is_array = false;
  to.shape.clear();
  to.bytes.clear();
  to.fault.clear();
  if (given.IsNull(at)) return;
  const Array& array = plain(given, at);
  if (array.IsNull(at) || array.type_id() == Type::NA) return;
  const Type::type id = array.type_id();
  const auto put_text = [&](TableType type, std::string_view text) {
    to.type = type;
    const auto* const from = reinterpret_cast<const std::byte*>(text.data());
    to.bytes.assign(from, from + text.size());
  };
  if (plain_type(id) != TableType::kNothing) {
    to.type = plain_type(id);
    return put_numbers(array, at, 1, to.bytes);
  }
  if (is_text(id)) return put_text(TableType::kText, text_of(array, at));
  if (is_bytes(id)) return put_text(TableType::kBytes, text_of(array, at));
  const Slice list = list_at(array, at);
  if (list.values != nullptr) {
    to.is_array = true;
    if (put_array(list, 0, to)) return;
    to.is_array = false;
    to.shape.clear();
    to.bytes.clear();
  }
  std::string text;
  if (list.values != nullptr || id == Type::MAP || id == Type::STRUCT) {
    to.fault = put_json(array, at, 0, text);
  } else if (const auto scalar = array.GetScalar(at); scalar.ok()) {
    text = (*scalar)->ToString();
  } else {
    to.fault = scalar.status().ToString();
  }
  put_text(TableType::kText, text);
}

}  // namespace

FoundColumn find_column(const arrow::RecordBatch& batch, const std::vector<int>& places) {
  if (places.front() >= batch.num_columns()) throw ArrowDamage("a column cannot be found");
  FoundColumn found{.array = batch.column(places.front()), .outer = {}};
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (found.array->type_id() != Type::STRUCT) throw ArrowDamage("a struct is none");
    const auto whole = std::static_pointer_cast<arrow::StructArray>(found.array);
    if (places[i] >= whole->num_fields()) throw ArrowDamage("a member cannot be found");
    found.outer.push_back(whole);
    found.array = whole->field(places[i]);
  }
  return found;
}

std::vector<int> place_among(const std::vector<int>& path, const std::set<std::vector<int>>& read) {
  std::vector<int> places;
  std::vector<int> at;
  for (const int number : path) {
    int place = 0;
    at.push_back(0);
    for (int before = 0; before < number; ++before) {
      at.back() = before;
      if (read.contains(at)) ++place;
    }
    at.back() = number;
    places.push_back(place);
  }
  return places;
}

void take_value(const FoundColumn& column, std::uint64_t row, TableValue& to) {
  const auto at = static_cast<std::int64_t>(row);
  const std::string fault = fault_of([&] {
    for (const auto& outer : column.outer) {
      if (outer->IsNull(at)) {
        to = {};
        return;
      }
    }
    put_value(*column.array, at, to);
  });
  if (!fault.empty()) to.fault = fault;
}

}  // namespace ringfeed::formats
