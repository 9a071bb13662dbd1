#include "workers/python/interpreter/encode.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "ringfeed/worker/sample.h"
#include "workers/python/interpreter/sample_object.h"

namespace ringfeed::interpreter {
namespace {

PyObject* coerce = nullptr;

// The dtype of a buffer's format, as the module struct writes it; nothing: it has to be made over.
std::optional<SampleDtype> dtype_of(const char* format, Py_ssize_t size) {
  std::string_view code = format == nullptr ? "B" : format;
  if (!code.empty() && (code[0] == '@' || code[0] == '=' || code[0] == '<')) code.remove_prefix(1);
  const bool complex = code.size() == 2 && code[0] == 'Z';
  if (complex) code.remove_prefix(1);
  if (code.size() != 1) return std::nullopt;
  const auto sized = [size](SampleDtype smallest) {
    return static_cast<SampleDtype>(static_cast<int>(smallest) +
                                    std::countr_zero(static_cast<unsigned>(size)));
  };
  const bool of_integers = size == 1 || size == 2 || size == 4 || size == 8;
  switch (code[0]) {
    case '?':
      return SampleDtype::kBool;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return of_integers ? std::optional(sized(SampleDtype::kInt8)) : std::nullopt;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return of_integers ? std::optional(sized(SampleDtype::kUint8)) : std::nullopt;
    case 'e':
      return SampleDtype::kFloat16;
    case 'f':
      return complex ? SampleDtype::kComplex64 : SampleDtype::kFloat32;
    case 'd':
      return complex ? SampleDtype::kComplex128 : SampleDtype::kFloat64;
    default:
      return std::nullopt;
  }
}

// The fields of one sample while it is put together. What they view is held until the end.
class Fields {
 public:
  Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;
  ~Fields() {
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
  }

  // Views stay where they are: there is room for `count` fields.
  void begin(std::size_t count) {
    fields_.reserve(count);
    shapes_.reserve(count);
    numbers_.reserve(count);
    buffers_.reserve(count);
    held_.reserve(2 * count);
  }
  void add(const SampleField& raw) { fields_.push_back(raw); }
  // False: an exception is set.
  [[nodiscard]] bool add(PyObject* key, PyObject* value);
  [[nodiscard]] bool write(std::vector<std::byte>& bytes) const;

 private:
  [[nodiscard]] bool add_value(std::string_view name, PyObject* value);
  [[nodiscard]] bool add_buffer(std::string_view name, PyObject* value);
  [[nodiscard]] bool add_coerced(std::string_view name, PyObject* value);
  template <typename Number>
  void add_number(std::string_view name, SampleDtype dtype, Number number) {
    std::array<std::byte, 16>& place = numbers_.emplace_back();
    std::memcpy(place.data(), &number, sizeof number);
    fields_.push_back(
        {.name = name, .dtype = dtype, .data = std::span(place).first(sizeof number)});
  }

  std::vector<SampleField> fields_;
  std::vector<std::array<std::uint32_t, sample::kDimsMax>> shapes_;
  std::vector<std::array<std::byte, 16>> numbers_;
  std::vector<Py_buffer> buffers_;
  std::vector<Ref> held_;
};

// Prefixes the exception that is set with the field's name.
void name_field(std::string_view name) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref owned_type(type);
  const Ref owned_value(value);
  const Ref owned_traceback(traceback);
  PyErr_SetString(type == nullptr ? PyExc_TypeError : type,
                  fmt::format("field '{}': {}", name, text_of(value)).c_str());
}

bool Fields::add(PyObject* key, PyObject* value) {
  if (value == Py_None) return true;
  Py_ssize_t length = 0;
  const char* const name = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &length) : nullptr;
  if (name == nullptr || length == 0 || static_cast<std::size_t>(length) > sample::kNameBytesMax) {
    PyErr_SetString(PyExc_TypeError,
                    fmt::format("the name of a field is {}; give a str of 1 to {} bytes of UTF-8",
                                text_of(key), sample::kNameBytesMax)
                        .c_str());
    return false;
  }
  held_.push_back(Ref::borrowed(key));
  const std::string_view named(name, static_cast<std::size_t>(length));
  if (add_value(named, value)) return true;
  name_field(named);
  return false;
}

bool Fields::add_value(std::string_view name, PyObject* value) {
  if (PyUnicode_Check(value)) {
    Py_ssize_t length = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(value, &length);
    if (utf8 == nullptr) return false;
    held_.push_back(Ref::borrowed(value));
    fields_.push_back({.name = name,
                       .dtype = SampleDtype::kText,
                       .data = std::as_bytes(std::span(utf8, static_cast<std::size_t>(length)))});
    return true;
  }
  if (PyBytes_Check(value)) {
    held_.push_back(Ref::borrowed(value));
    fields_.push_back(
        {.name = name,
         .dtype = SampleDtype::kBytes,
         .data = std::as_bytes(
             std::span(PyBytes_AsString(value), static_cast<std::size_t>(PyBytes_Size(value))))});
    return true;
  }
  if (PyBool_Check(value)) {
    add_number(name, SampleDtype::kBool, static_cast<std::uint8_t>(value == Py_True));
    return true;
  }
  if (PyLong_CheckExact(value)) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) return false;
    add_number(name, SampleDtype::kInt64, static_cast<std::int64_t>(number));
    return true;
  }
  if (PyFloat_CheckExact(value)) {
    add_number(name, SampleDtype::kFloat64, PyFloat_AsDouble(value));
    return true;
  }
  if (add_buffer(name, value)) return true;
  PyErr_Clear();
  return add_coerced(name, value);
}

// False: it has no buffer, or none that can be taken as it is.
bool Fields::add_buffer(std::string_view name, PyObject* value) {
  Py_buffer& buffer = buffers_.emplace_back();
  if (PyObject_GetBuffer(value, &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
    buffers_.pop_back();
    return false;
  }
  if (PyByteArray_Check(value)) {
    fields_.push_back({.name = name,
                       .dtype = SampleDtype::kBytes,
                       .data = std::as_bytes(std::span(static_cast<const char*>(buffer.buf),
                                                       static_cast<std::size_t>(buffer.len)))});
    return true;
  }
  const std::optional<SampleDtype> dtype = dtype_of(buffer.format, buffer.itemsize);
  const bool fits = dtype && buffer.ndim <= static_cast<int>(sample::kDimsMax) &&
                    buffer.itemsize == static_cast<Py_ssize_t>(dtype_bytes(*dtype));
  if (!fits) {
    PyBuffer_Release(&buffer);
    buffers_.pop_back();
    return false;
  }
  auto& shape = shapes_.emplace_back();
  for (int i = 0; i < buffer.ndim; ++i) {
    if (buffer.shape[i] > 0xffffffff) return false;
    shape[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(buffer.shape[i]);
  }
  fields_.push_back({.name = name,
                     .dtype = *dtype,
                     .shape = std::span(shape).first(static_cast<std::size_t>(buffer.ndim)),
                     .data = std::as_bytes(std::span(static_cast<const char*>(buffer.buf),
                                                     static_cast<std::size_t>(buffer.len)))});
  return true;
}

bool Fields::add_coerced(std::string_view name, PyObject* value) {
  const Ref made(PyObject_CallFunctionObjArgs(coerce, value, nullptr));
  if (!made) return false;
  PyObject* dtype_text = nullptr;
  PyObject* array = nullptr;
  if (!PyArg_ParseTuple(made.get(), "OO", &dtype_text, &array)) return false;
  if (!add_buffer(name, array)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "its array cannot be taken");
    return false;
  }
  held_.push_back(Ref::borrowed(array));
  // A dtype that buffers have no letter for comes as bytes of another.
  const std::optional<SampleDtype> dtype = dtype_named(text_of(dtype_text));
  if (!dtype || dtype_bytes(*dtype) != dtype_bytes(fields_.back().dtype)) {
    PyErr_SetString(PyExc_TypeError,
                    fmt::format("a sample has no arrays of {}", text_of(dtype_text)).c_str());
    return false;
  }
  fields_.back().dtype = *dtype;
  return true;
}

bool Fields::write(std::vector<std::byte>& bytes) const {
  const std::optional<std::uint64_t> size = sample_bytes(fields_);
  if (!size) {
    PyErr_SetString(
        PyExc_ValueError,
        fmt::format("{} fields do not fit a sample, which has at most {} fields and 4 GiB",
                    fields_.size(), sample::kFieldsMax)
            .c_str());
    return false;
  }
  bytes.resize(*size);
  write_sample(bytes, fields_);
  return true;
}

bool encode_sample(const SampleObject& sample, std::vector<std::byte>& bytes) {
  const std::span raw(sample.bytes, sample.size);
  if (sample.touched == nullptr) {
    bytes.assign(raw.begin(), raw.end());
    return true;
  }
  const SampleView view = *SampleView::open(raw);
  Fields fields;
  fields.begin(view.size());
  for (std::size_t i = 0; i < view.size(); ++i) {
    const SampleField field = view[i];
    // Bytes and text cannot have been changed in place.
    const Ref name(is_array(field.dtype) ? text(field.name).release() : nullptr);
    PyObject* const value = name ? PyDict_GetItemWithError(sample.touched, name.get()) : nullptr;
    if (PyErr_Occurred()) return false;
    if (value == nullptr) {
      fields.add(field);
    } else if (!fields.add(name.get(), value)) {
      return false;
    }
  }
  return fields.write(bytes);
}

bool encode_dict(PyObject* dict, std::vector<std::byte>& bytes) {
  Fields fields;
  fields.begin(static_cast<std::size_t>(PyDict_Size(dict)));
  Py_ssize_t place = 0;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  while (PyDict_Next(dict, &place, &key, &value)) {
    if (!fields.add(key, value)) return false;
  }
  return fields.write(bytes);
}

}  // namespace

bool encode(PyObject* object, std::vector<std::byte>& bytes) {
  if (is_sample(object)) {
    const auto& sample = *reinterpret_cast<const SampleObject*>(object);
    return sample.whole ? encode_dict(sample.touched, bytes) : encode_sample(sample, bytes);
  }
  if (PyDict_Check(object)) return encode_dict(object, bytes);
  const Ref fields(PyDict_New());
  if (!fields) return false;
  const Ref keys(PyObject_HasAttrString(object, "keys") ? PyMapping_Keys(object) : nullptr);
  if (!keys) {
    PyErr_SetString(PyExc_TypeError,
                    fmt::format("what the stage returned is no sample but a {}; return a mapping "
                                "from names to arrays, numbers, bytes and text",
                                text_of(reinterpret_cast<PyObject*>(Py_TYPE(object))))
                        .c_str());
    return false;
  }
  const Ref updated(PyObject_CallMethod(fields.get(), "update", "O", object));
  return updated && encode_dict(fields.get(), bytes);
}

void set_coerce(PyObject* function) noexcept { coerce = function; }

}  // namespace ringfeed::interpreter
