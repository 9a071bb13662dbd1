#include "workers/samples/json_sample.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <cstring>
#include <utility>

#include "workers/samples/numbers.h"

namespace ringfeed {
namespace {

namespace dom = simdjson::dom;

std::string_view kind_of(dom::element value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::INT64:
    case dom::element_type::UINT64:
      return "a whole number";
    case dom::element_type::DOUBLE:
      return "a number";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "true or false";
    case dom::element_type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

// A value that is looked at once: asking simdjson for its type takes as long as to read it.
struct Scalar {
  dom::element_type type;
  std::int64_t whole = 0;   // INT64
  std::uint64_t large = 0;  // UINT64: what INT64 does not hold
  double real = 0;          // of every number
  bool truth = false;       // BOOL
};
Scalar scalar_of(dom::element value, dom::element_type type) {
  Scalar scalar{.type = type};
  switch (type) {
    case dom::element_type::INT64:
      scalar.whole = value.get_int64().value_unsafe();
      scalar.real = static_cast<double>(scalar.whole);
      break;
    case dom::element_type::UINT64:
      scalar.large = value.get_uint64().value_unsafe();
      scalar.real = static_cast<double>(scalar.large);
      break;
    case dom::element_type::DOUBLE:
      scalar.real = value.get_double().value_unsafe();
      break;
    case dom::element_type::BOOL:
      scalar.truth = value.get_bool().value_unsafe();
      break;
    default:
      break;
  }
  return scalar;
}

template <typename T>
void append(const T& out, std::vector<std::byte>& to) {
  const std::size_t before = to.size();
  to.resize(before + sizeof out);
  std::memcpy(to.data() + before, &out, sizeof out);
}

// One number or truth value as an element of the type. False: it cannot be one.
template <typename T>
bool put_as(const Scalar& value, std::vector<std::byte>& to) {
  if constexpr (std::is_same_v<T, bool>) {
    if (value.type != dom::element_type::BOOL) return false;
    append(value.truth, to);
    return true;
  } else {
    if (value.type == dom::element_type::INT64 && std::in_range<T>(value.whole)) {
      append(static_cast<T>(value.whole), to);
      return true;
    }
    if (value.type == dom::element_type::UINT64 && std::in_range<T>(value.large)) {
      append(static_cast<T>(value.large), to);
      return true;
    }
    return false;
  }
}

template <typename Convert>
bool put_real(const Scalar& value, std::vector<std::byte>& to, Convert convert) {
  if (value.type != dom::element_type::INT64 && value.type != dom::element_type::UINT64 &&
      value.type != dom::element_type::DOUBLE) {
    return false;
  }
  append(convert(value.real), to);
  return true;
}

bool put_number(const Scalar& value, SampleDtype dtype, std::vector<std::byte>& to) {
  switch (dtype) {
    case SampleDtype::kBool:
      return put_as<bool>(value, to);
    case SampleDtype::kInt8:
      return put_as<std::int8_t>(value, to);
    case SampleDtype::kInt16:
      return put_as<std::int16_t>(value, to);
    case SampleDtype::kInt32:
      return put_as<std::int32_t>(value, to);
    case SampleDtype::kInt64:
      return put_as<std::int64_t>(value, to);
    case SampleDtype::kUint8:
      return put_as<std::uint8_t>(value, to);
    case SampleDtype::kUint16:
      return put_as<std::uint16_t>(value, to);
    case SampleDtype::kUint32:
      return put_as<std::uint32_t>(value, to);
    case SampleDtype::kUint64:
      return put_as<std::uint64_t>(value, to);
    case SampleDtype::kFloat16:
      return put_real(value, to, to_half);
    case SampleDtype::kBfloat16:
      return put_real(value, to, to_bfloat16);
    case SampleDtype::kFloat32:
      return put_real(value, to, [](double number) { return static_cast<float>(number); });
    case SampleDtype::kFloat64:
      return put_real(value, to, [](double number) { return number; });
    default:
      return false;
  }
}

// What the values of an array of any depth have in common.
struct ArrayFacts {
  enum class Level : std::uint8_t { kUnknown, kValues, kArrays };
  std::vector<std::uint32_t> shape = {};
  std::vector<Level> levels = {};  // what stands in each of them
  bool whole = true;               // numbers that fit int64
  bool numbers = true;
  bool truths = true;

  void clear() {
    shape.clear();
    levels.clear();
    whole = numbers = truths = true;
  }
};

// Looks at level `depth` of an array; false: it is no array of one shape and kind, or too deep.
bool look_at(dom::array array, std::size_t depth, ArrayFacts& facts) {
  if (depth == sample::kDimsMax) return false;
  const bool first = facts.shape.size() == depth;
  if (first) {
    facts.shape.push_back(0);
    facts.levels.push_back(ArrayFacts::Level::kUnknown);
  }
  std::uint32_t count = 0;
  for (const dom::element value : array) {
    ++count;
    const dom::element_type type = value.type();
    const bool deeper = type == dom::element_type::ARRAY;
    const auto is = deeper ? ArrayFacts::Level::kArrays : ArrayFacts::Level::kValues;
    const auto was = std::exchange(facts.levels[depth], is);
    if (was != is && was != ArrayFacts::Level::kUnknown) return false;
    if (deeper) {
      if (!look_at(value.get_array().value_unsafe(), depth + 1, facts)) return false;
      continue;
    }
    facts.whole &= type == dom::element_type::INT64;
    facts.numbers &= type == dom::element_type::INT64 || type == dom::element_type::UINT64 ||
                     type == dom::element_type::DOUBLE;
    facts.truths &= type == dom::element_type::BOOL;
    if (!facts.numbers && !facts.truths) return false;
  }
  if (first) facts.shape[depth] = count;
  return count == facts.shape[depth];
}

bool put_array(dom::array array, SampleDtype dtype, std::vector<std::byte>& to) {
  for (const dom::element value : array) {
    const dom::element_type type = value.type();
    const bool put = type == dom::element_type::ARRAY
                         ? put_array(value.get_array().value_unsafe(), dtype, to)
                         : put_number(scalar_of(value, type), dtype, to);
    if (!put) return false;
  }
  return true;
}

}  // namespace

class JsonSamples::Parser {
 public:
  explicit Parser(std::vector<WantedField> wanted) : wanted_(std::move(wanted)) {}

  Outcome read(std::string_view text) {
    fields_.clear();
    used_ = 0;
    dom::element root;
    const simdjson::error_code error =
        parser_.parse(reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), false)
            .get(root);
    if (error == simdjson::CAPACITY || error == simdjson::MEMALLOC) {
      return {SampleFault::kTooLarge, fmt::format("{} bytes of JSON", text.size())};
    }
    if (error != simdjson::SUCCESS) return {SampleFault::kNotJson, simdjson::error_message(error)};
    dom::object object;
    if (root.get_object().get(object) != simdjson::SUCCESS) {
      return {SampleFault::kNotAnObject, fmt::format("it is {}, not an object", kind_of(root))};
    }
    Outcome outcome;
    if (wanted_.empty()) {
      for (const dom::key_value_pair member : object) {
        if (member.value.is_null()) continue;
        if (!add(member.key, member.value, std::nullopt, outcome)) return outcome;
      }
    }
    for (const WantedField& field : wanted_) {
      dom::element value;
      if (object.at_key(field.name).get(value) != simdjson::SUCCESS || value.is_null()) {
        return {SampleFault::kMissingField, fmt::format("it has no field '{}'", field.name)};
      }
      if (!add(field.as, value, field.dtype, outcome)) return outcome;
    }
    // Only now: what was made has moved while more was made.
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      Made& made = made_[i];
      fields_[i].shape = made.shape;
      if (made.own) fields_[i].data = made.bytes;
    }
    outcome.fields = fields_;
    return outcome;
  }

 private:
  struct Made {
    std::vector<std::uint32_t> shape = {};
    std::vector<std::byte> bytes = {};
    bool own = false;
  };

  bool add(std::string_view name, dom::element value, std::optional<SampleDtype> wanted,
           Outcome& outcome) {
    Made& made = next_made();
    SampleField& field = fields_.emplace_back(SampleField{.name = name});
    const auto refuse = [&] {
      outcome = {SampleFault::kWrongType,
                 fmt::format("field '{}' is {}, which cannot be {}", name, kind_of(value),
                             dtype_name(wanted.value_or(SampleDtype::kText)))};
      return false;
    };
    const bool as_text = wanted && !is_array(*wanted);
    const dom::element_type type = value.type();
    if (type == dom::element_type::STRING) {
      if (wanted && !as_text) return refuse();
      const std::string_view text = value.get_string().value_unsafe();
      field.dtype = wanted.value_or(SampleDtype::kText);
      field.data = std::as_bytes(std::span(text.data(), text.size()));
      return true;
    }
    made.own = true;
    const std::optional<SampleDtype> own = number_dtype(type);
    if (!as_text && own) {
      field.dtype = wanted.value_or(*own);
      return put_number(scalar_of(value, type), field.dtype, made.bytes) || refuse();
    }
    if (!as_text && type == dom::element_type::ARRAY) {
      const dom::array array = value.get_array().value_unsafe();
      facts_.clear();
      const ArrayFacts& facts = facts_;
      if (look_at(array, 0, facts_)) {
        made.shape = facts.shape;
        // Nothing says what an empty one would hold.
        field.dtype = wanted                           ? *wanted
                      : facts.truths && !facts.numbers ? SampleDtype::kBool
                      : facts.whole                    ? SampleDtype::kInt64
                                                       : SampleDtype::kFloat64;
        return put_array(array, field.dtype, made.bytes) || refuse();
      }
      made.shape.clear();
    }
    if (wanted && !as_text) return refuse();
    const std::string json = simdjson::minify(value);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(json.data(), json.size()));
    made.bytes.assign(bytes.begin(), bytes.end());
    field.dtype = wanted.value_or(SampleDtype::kText);
    return true;
  }

  // What was made for the line before is taken again, with its memory.
  Made& next_made() {
    if (used_ == made_.size()) made_.emplace_back();
    Made& made = made_[used_++];
    made.shape.clear();
    made.bytes.clear();
    made.own = false;
    return made;
  }
  // Of a number or truth value, if nothing else is wanted.
  static std::optional<SampleDtype> number_dtype(dom::element_type type) {
    switch (type) {
      case dom::element_type::INT64:
        return SampleDtype::kInt64;
      case dom::element_type::UINT64:
        return SampleDtype::kUint64;
      case dom::element_type::DOUBLE:
        return SampleDtype::kFloat64;
      case dom::element_type::BOOL:
        return SampleDtype::kBool;
      default:
        return std::nullopt;
    }
  }

  dom::parser parser_;
  std::vector<WantedField> wanted_;
  std::vector<SampleField> fields_;
  std::vector<Made> made_;  // by field; more than there are now
  std::size_t used_ = 0;
  ArrayFacts facts_;
};

JsonSamples::JsonSamples(std::vector<WantedField> wanted)
    : parser_(std::make_unique<Parser>(std::move(wanted))) {}
JsonSamples::~JsonSamples() = default;
JsonSamples::Outcome JsonSamples::read(std::string_view text) { return parser_->read(text); }

}  // namespace ringfeed
