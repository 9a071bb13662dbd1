// Messages to stages (`ringfeed control`): every one that there is, and what nobody means.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <random>
#include <string>

#include "proto/control.pb.h"

namespace ringfeed::testing {

template <typename T>
T one_of(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

// Sets fields to what nobody means.
inline void spoil(google::protobuf::Message& message, std::mt19937_64& random) {
  using google::protobuf::FieldDescriptor;
  using google::protobuf::Reflection;
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::uint64_t turns = field->is_repeated() ? random() % 4 : random() % 2;
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
      const auto give = [&](auto set, auto add, auto value) {
        if (field->is_repeated()) {
          (reflection.*add)(&message, field, value);
        } else {
          (reflection.*set)(&message, field, value);
        }
      };
      constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
      const auto whole = one_of<std::uint64_t>(random, {0, 1, 1, 2, 2, 3, 7, 4096, 4097, 10'000'000,
                                                        10'000'001, kMost / 2, kMost - 1, kMost});
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_BOOL:
          give(&Reflection::SetBool, &Reflection::AddBool, random() % 2 == 0);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          give(&Reflection::SetUInt64, &Reflection::AddUInt64, whole);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          give(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<std::uint32_t>(whole));
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          give(&Reflection::SetInt64, &Reflection::AddInt64, static_cast<std::int64_t>(whole));
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          give(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<std::int32_t>(whole));
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          give(&Reflection::SetDouble, &Reflection::AddDouble,
               one_of<double>(random, {0, 1, 3, -1, 1e12, 1e300, 1e-300,
                                       std::numeric_limits<double>::infinity(),
                                       std::numeric_limits<double>::quiet_NaN()}));
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          give(&Reflection::SetString, &Reflection::AddString,
               one_of<std::string>(
                   random, {"eng_Latn-tur_Latn", "fra_Latn-eng_Latn", "main:fra_Latn-eng_Latn", "",
                            "a\nb", std::string(5000, 'k')}));
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          spoil(field->is_repeated() ? *reflection.AddMessage(&message, field)
                                     : *reflection.MutableMessage(&message, field),
                random);
          break;
        default:
          FAIL() << field->full_name() << ": of a type that is not known here";
      }
    }
  }
}

// Every message there is, empty; for a while those that mean something; then anything.
inline StageControlRequest message_number(std::uint64_t number, std::mt19937_64& random) {
  StageControlRequest request;
  const auto kinds = static_cast<std::uint64_t>(request.GetDescriptor()->field_count());
  if (number < kinds) {
    request.GetReflection()->MutableMessage(
        &request, request.GetDescriptor()->field(static_cast<int>(number)));
  } else if (number > kinds) {
    spoil(request, random);
  }
  return request;
}

}  // namespace ringfeed::testing
