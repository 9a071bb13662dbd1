// From what a stage in Python returns to the bytes of a sample.
#pragma once

#include <cstddef>
#include <vector>

#include "workers/python/interpreter/python_api.h"

namespace ringfeed::interpreter {

// Appends the sample that the object stands for: a Sample, or a mapping from names to arrays,
// numbers, bytes and text; a value None is a field that is missing. False: an exception is set,
// which names the field.
[[nodiscard]] bool encode(PyObject* object, std::vector<std::byte>& bytes);

// What makes arrays of what has no buffer of its own: called with a value, it returns the name of
// its dtype and a C-contiguous array of bytes with the value's shape in front (values.py).
void set_coerce(PyObject* function) noexcept;

}  // namespace ringfeed::interpreter
