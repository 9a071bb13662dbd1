#include "workers/samples/sample_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "proto/config.pb.h"
#include "workers/samples/numbers.h"

namespace ringfeed {

using samples::TypedField;

std::string samples::fact_text(const std::vector<TypedField>& fields) {
  std::string text;
  for (const TypedField& field : fields) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field.name, dtype_name(field.dtype));
  }
  return text;
}

namespace {

bool is_float(SampleDtype dtype) {
  return dtype == SampleDtype::kFloat16 || dtype == SampleDtype::kBfloat16 ||
         dtype == SampleDtype::kFloat32 || dtype == SampleDtype::kFloat64;
}

// Does the batcher take any value of the one type as the other? What does not fit costs its row.
bool is_possible(SampleDtype is, SampleDtype wanted) {
  if (is == wanted || can_stay(is, wanted)) return true;
  if (!is_array(is) || !is_array(wanted)) {
    return is == SampleDtype::kText && wanted == SampleDtype::kBytes;
  }
  return is_float(is) && is_float(wanted);  // rounded
}

template <typename Field>
const Field* find(const std::vector<Field>& fields, std::string_view name) {
  const auto at = std::ranges::find(fields, name, &Field::name);
  return at == fields.end() ? nullptr : &*at;
}

}  // namespace

TypedFields typed_fields(const StageView& source) {
  TypedFields typed;
  const SampleSourceConfig& own = source.config.sample_source();
  for (int i = 0; i < own.fields_size(); ++i) {
    const SampleFieldConfig& field = own.fields(i);
    const std::optional<SampleDtype> dtype = dtype_named(field.dtype());
    if (!field.has_dtype() || !dtype) continue;
    TypedField& one = typed.emplace_back(
        TypedField{.name = field.has_as() ? field.as() : field.name(),
                   .dtype = *dtype,
                   .place = fmt::format("fields[{}] of stage '{}'", i, source.config.name())});
    if (!field.has_default_() || !is_array(*dtype)) continue;
    if (Result<FieldDefault> value = default_of(field); value) one.shape = value->shape;
  }
  return typed;
}

SampleSourceConfig with_wishes(const SampleSourceConfig& config, const Link& reader) {
  SampleSourceConfig all = config;
  const BatchWish* const batch = reader.said.find(kBatchWish);
  if (batch == nullptr) return all;
  for (SampleFieldConfig& field : *all.mutable_fields()) {
    const BatchColumn* const wish =
        find(batch->columns, field.has_as() ? field.as() : field.name());
    if (field.has_dtype() || wish == nullptr) continue;
    field.set_dtype(std::string(dtype_name(wish->dtype)));
  }
  return all;
}

std::vector<WantedField> wanted_numbers(const Link& reader) {
  std::vector<WantedField> numbers;
  const BatchWish* const batch = reader.said.find(kBatchWish);
  if (batch == nullptr) return numbers;
  for (const BatchColumn& wish : batch->columns) {
    if (!is_array(wish.dtype)) continue;
    numbers.push_back({.name = wish.name, .as = wish.name, .dtype = wish.dtype});
  }
  return numbers;
}

std::vector<BatchField> with_facts(std::vector<BatchField> fields, const Link& source) {
  const TypedFields known = source.said.get(kTypedFields);
  for (BatchField& field : fields) {
    const TypedField* const is = find(known, field.name);
    if (is == nullptr) continue;
    if (field.dtype.empty()) field.dtype = dtype_name(is->dtype);
    if (field.shape.empty() && is->shape) field.shape = *is->shape;
  }
  return fields;
}

std::vector<Problem> type_problems(const std::vector<BatchField>& fields, const Link& source) {
  std::vector<Problem> problems;
  const TypedFields* const known = source.said.find(kTypedFields);
  if (known == nullptr) return problems;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::optional<SampleDtype> dtype = dtype_named(fields[i].dtype);
    for (const TypedField& is : *known) {
      if (is.name != fields[i].name) continue;
      if (dtype && !is_possible(is.dtype, *dtype)) {
        problems.push_back(
            {fmt::format("fields[{}].dtype", i),
             fmt::format("field '{}' is {} here and {} by {}, not all of which it can hold: give "
                         "one of them, in one place",
                         is.name, dtype_name(*dtype), dtype_name(is.dtype), is.place)});
        break;
      }
      if (is.shape && *is.shape != fields[i].shape) {
        problems.push_back({fmt::format("fields[{}].shape", i),
                            fmt::format("the rows of field '{}' have shape [{}] here, and its "
                                        "default by {} has [{}]: give one of them",
                                        is.name, fmt::join(fields[i].shape, ", "), is.place,
                                        fmt::join(*is.shape, ", "))});
        break;
      }
    }
  }
  return problems;
}

}  // namespace ringfeed
