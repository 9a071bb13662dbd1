// ringfeed._worker.Sample: a sample as Python sees it, a mutable mapping from the names of its
// fields to NumPy arrays (numbers as NumPy's scalars), bytes and text.
//
// A field is made when it is first asked for. Arrays are copies, so they may be changed in place.
// What nobody has touched stays as the bytes that it came in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "workers/python/interpreter/python_api.h"

namespace ringfeed::interpreter {

struct SampleObject {
  PyObject_HEAD const std::byte* bytes;  // a sound sample: of a record, or of `kept`
  std::size_t size;
  PyObject* kept;     // bytes that outlive the record
  PyObject* touched;  // a dict, or null: fields that have been asked for or set
  bool whole;         // `touched` has all fields, and their order: it is the sample
  bool zero_copy;     // arrays are read-only views, good until the call of the stage returns
  std::uint64_t tag[2];
  std::uint64_t seed;
};

// Adds the type to the module; false: an exception is set.
[[nodiscard]] bool add_sample_type(PyObject* module);
[[nodiscard]] bool is_sample(PyObject* object) noexcept;

// A sample over `bytes`, which are good until let_go(); null: an exception is set.
[[nodiscard]] SampleObject* new_sample(std::span<const std::byte> bytes,
                                       const std::uint64_t (&tag)[2], std::uint64_t seed,
                                       bool zero_copy);
// The record's bytes go: a sample that somebody still has gets a copy of them. Takes the reference.
void let_go(SampleObject* sample) noexcept;

}  // namespace ringfeed::interpreter
