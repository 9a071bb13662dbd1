#include "workers/python/interpreter/sample_object.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "ringfeed/worker/sample.h"

namespace ringfeed::interpreter {
namespace {

PyTypeObject* sample_type = nullptr;

SampleObject* as_sample(PyObject* self) { return reinterpret_cast<SampleObject*>(self); }

SampleView view_of(const SampleObject& sample) {
  return *SampleView::open({sample.bytes, sample.size});
}

// ---- values of fields

PyObject* numpy_attribute(const char* name) {
  static PyObject* numpy = nullptr;
  if (numpy == nullptr) numpy = PyImport_ImportModule("numpy");
  return numpy == nullptr ? nullptr : PyObject_GetAttrString(numpy, name);
}

// numpy.dtype of a field; a borrowed reference.
PyObject* numpy_dtype(SampleDtype dtype) {
  static std::array<PyObject*, kSampleDtypes.size()> dtypes{};
  PyObject*& found = dtypes[static_cast<std::size_t>(dtype)];
  if (found != nullptr) return found;
  const Ref make(numpy_attribute("dtype"));
  if (!make) return nullptr;
  Ref name(text(dtype_name(dtype)));
  if (dtype == SampleDtype::kBfloat16) {
    const Ref more(PyImport_ImportModule("ml_dtypes"));
    if (!more) {
      PyErr_SetString(
          PyExc_ImportError,
          "a field is bfloat16, for which NumPy needs ml_dtypes: pip install ml_dtypes");
      return nullptr;
    }
    name = Ref(PyObject_GetAttrString(more.get(), "bfloat16"));
  }
  if (!name) return nullptr;
  found = PyObject_CallFunctionObjArgs(make.get(), name.get(), nullptr);
  return found;
}

PyObject* array_of(const SampleField& field, bool zero_copy) {
  static PyObject* ndarray = nullptr;
  if (ndarray == nullptr) ndarray = numpy_attribute("ndarray");
  PyObject* const dtype = ndarray == nullptr ? nullptr : numpy_dtype(field.dtype);
  if (dtype == nullptr) return nullptr;
  const Ref shape(PyTuple_New(static_cast<Py_ssize_t>(field.shape.size())));
  if (!shape) return nullptr;
  for (std::size_t i = 0; i < field.shape.size(); ++i) {
    PyTuple_SetItem(shape.get(), static_cast<Py_ssize_t>(i),
                    PyLong_FromUnsignedLong(field.shape[i]));
  }
  auto* const data = const_cast<char*>(reinterpret_cast<const char*>(field.data.data()));
  const auto bytes = static_cast<Py_ssize_t>(field.data.size());
  const Ref buffer(zero_copy ? PyMemoryView_FromMemory(data, bytes, PyBUF_READ)
                             : PyByteArray_FromStringAndSize(data, bytes));
  if (!buffer) return nullptr;
  Ref array(PyObject_CallFunctionObjArgs(ndarray, shape.get(), dtype, buffer.get(), nullptr));
  if (!array || !field.shape.empty()) return array.release();
  const Ref nothing(PyTuple_New(0));
  return nothing ? PyObject_GetItem(array.get(), nothing.get()) : nullptr;  // a scalar
}

PyObject* value_of(const SampleField& field, bool zero_copy) {
  const char* const data = reinterpret_cast<const char*>(field.data.data());
  const auto bytes = static_cast<Py_ssize_t>(field.data.size());
  switch (field.dtype) {
    case SampleDtype::kBytes:
      return PyBytes_FromStringAndSize(data, bytes);
    case SampleDtype::kText:
      return PyUnicode_DecodeUTF8(data, bytes, "strict");
    default:
      return array_of(field, zero_copy);
  }
}

// ---- the mapping

bool have_touched(SampleObject& sample) {
  if (sample.touched == nullptr) sample.touched = PyDict_New();
  return sample.touched != nullptr;
}

// From here on `touched` is the sample; a borrowed reference to it.
PyObject* whole(SampleObject& sample) {
  if (sample.whole) return sample.touched;
  const Ref all(PyDict_New());
  if (!all) return nullptr;
  const SampleView view = view_of(sample);
  for (std::size_t i = 0; i < view.size(); ++i) {
    const SampleField field = view[i];
    const Ref name(text(field.name));
    if (!name) return nullptr;
    Ref value = Ref::borrowed(
        sample.touched == nullptr ? nullptr : PyDict_GetItemWithError(sample.touched, name.get()));
    if (!value) value = Ref(PyErr_Occurred() ? nullptr : value_of(field, sample.zero_copy));
    if (!value || PyDict_SetItem(all.get(), name.get(), value.get()) != 0) return nullptr;
  }
  Py_XDECREF(sample.touched);
  sample.touched = Ref::borrowed(all.get()).release();
  sample.whole = true;
  return sample.touched;
}

PyObject* sample_get(PyObject* self, PyObject* key) {
  SampleObject& sample = *as_sample(self);
  if (sample.touched != nullptr) {
    PyObject* const found = PyDict_GetItemWithError(sample.touched, key);
    if (found != nullptr) return Ref::borrowed(found).release();
    if (PyErr_Occurred()) return nullptr;
  }
  Py_ssize_t length = 0;
  const char* const name =
      !sample.whole && PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &length) : nullptr;
  if (PyErr_Occurred()) return nullptr;
  const std::optional<SampleField> field =
      name == nullptr ? std::nullopt
                      : view_of(sample).find({name, static_cast<std::size_t>(length)});
  if (!field) {
    PyErr_SetObject(PyExc_KeyError, key);
    return nullptr;
  }
  Ref value(value_of(*field, sample.zero_copy));
  if (!value || !have_touched(sample) || PyDict_SetItem(sample.touched, key, value.get()) != 0) {
    return nullptr;
  }
  return value.release();
}

int sample_set(PyObject* self, PyObject* key, PyObject* value) {
  PyObject* const fields = whole(*as_sample(self));
  if (fields == nullptr) return -1;
  return value == nullptr ? PyDict_DelItem(fields, key) : PyDict_SetItem(fields, key, value);
}

Py_ssize_t sample_length(PyObject* self) {
  const SampleObject& sample = *as_sample(self);
  if (sample.whole) return PyDict_Size(sample.touched);
  return static_cast<Py_ssize_t>(view_of(sample).size());
}

int sample_contains(PyObject* self, PyObject* key) {
  SampleObject& sample = *as_sample(self);
  if (sample.whole) return PyDict_Contains(sample.touched, key);
  if (!PyUnicode_Check(key)) return 0;
  Py_ssize_t length = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(key, &length);
  if (name == nullptr) return -1;
  return view_of(sample).find({name, static_cast<std::size_t>(length)}).has_value() ? 1 : 0;
}

PyObject* sample_iter(PyObject* self) {
  PyObject* const fields = whole(*as_sample(self));
  return fields == nullptr ? nullptr : PyObject_GetIter(fields);
}

PyObject* sample_repr(PyObject* self) {
  PyObject* const fields = whole(*as_sample(self));
  return fields == nullptr ? nullptr : PyUnicode_FromFormat("Sample(%R)", fields);
}

PyObject* sample_compare(PyObject* self, PyObject* other, int how) {
  PyObject* const fields = whole(*as_sample(self));
  if (fields == nullptr) return nullptr;
  PyObject* const against = is_sample(other) ? whole(*as_sample(other)) : other;
  return against == nullptr ? nullptr : PyObject_RichCompare(fields, against, how);
}

// What a dict does with its own method of this name.
PyObject* as_dict(PyObject* self, const char* method, PyObject* arguments, PyObject* named) {
  PyObject* const fields = whole(*as_sample(self));
  const Ref function(fields == nullptr ? nullptr : PyObject_GetAttrString(fields, method));
  return function ? PyObject_Call(function.get(), arguments, named) : nullptr;
}

constexpr char kKeys[] = "keys";
constexpr char kValues[] = "values";
constexpr char kItems[] = "items";
constexpr char kPop[] = "pop";
constexpr char kPopitem[] = "popitem";
constexpr char kUpdate[] = "update";
constexpr char kSetdefault[] = "setdefault";
constexpr char kCopy[] = "copy";
constexpr char kClear[] = "clear";
template <const char* kMethod>
PyObject* sample_as_dict(PyObject* self, PyObject* arguments, PyObject* named) {
  return as_dict(self, kMethod, arguments, named);
}

PyObject* sample_get_or(PyObject* self, PyObject* arguments) {
  PyObject* key = nullptr;
  PyObject* otherwise = Py_None;
  if (!PyArg_ParseTuple(arguments, "O|O:get", &key, &otherwise)) return nullptr;
  PyObject* const found = sample_get(self, key);
  if (found != nullptr || !PyErr_ExceptionMatches(PyExc_KeyError)) return found;
  PyErr_Clear();
  return Ref::borrowed(otherwise).release();
}

// As it came in.
PyObject* sample_reset(PyObject* self, PyObject*) {
  SampleObject& sample = *as_sample(self);
  sample.whole = false;
  Py_CLEAR(sample.touched);
  return Ref::borrowed(Py_None).release();
}

PyObject* sample_lineage(PyObject* self, void*) {
  const SampleObject& sample = *as_sample(self);
  return text(fmt::format("{:016x}:{}", sample.tag[0], sample.tag[1])).release();
}
PyObject* sample_seed(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_sample(self)->seed);
}

int sample_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_sample(self)->touched);
  return 0;
}
int sample_clear(PyObject* self) {
  SampleObject& sample = *as_sample(self);
  if (sample.whole) {
    // What is left of it must not look like the sample as it came in.
    PyDict_Clear(sample.touched);
  } else {
    Py_CLEAR(sample.touched);
  }
  return 0;
}
void sample_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* const type = Py_TYPE(self);
  Py_CLEAR(as_sample(self)->touched);
  Py_CLEAR(as_sample(self)->kept);
  const auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

PyMethodDef with_names(const char* name, PyCFunctionWithKeywords function, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)),
          METH_VARARGS | METH_KEYWORDS, text};
}

}  // namespace

bool add_sample_type(PyObject* module) {
  static std::array<PyMethodDef, 13> methods = {
      with_names(kKeys, sample_as_dict<kKeys>, "Names of the fields, in their order."),
      with_names(kValues, sample_as_dict<kValues>, "The fields' values."),
      with_names(kItems, sample_as_dict<kItems>, "Names and values."),
      with_names(kPop, sample_as_dict<kPop>, "Takes a field out and returns it."),
      with_names(kPopitem, sample_as_dict<kPopitem>, "Takes the last field out."),
      with_names(kUpdate, sample_as_dict<kUpdate>, "Sets several fields."),
      with_names(kSetdefault, sample_as_dict<kSetdefault>,
                 "The field, which is set if there is none."),
      with_names(kCopy, sample_as_dict<kCopy>, "The fields as a dict."),
      with_names(kClear, sample_as_dict<kClear>, "Takes all fields out."),
      PyMethodDef{"get", sample_get_or, METH_VARARGS, "The field, or what is to stand for it."},
      PyMethodDef{"_reset", sample_reset, METH_NOARGS, "The sample is again as it came in."},
      PyMethodDef{}};
  static std::array<PyGetSetDef, 3> properties = {
      PyGetSetDef{"lineage", sample_lineage, nullptr, "Where the sample came from.", nullptr},
      PyGetSetDef{"seed", sample_seed, nullptr,
                  "Of random numbers: from the feed's seed, the stage and the lineage.", nullptr},
      PyGetSetDef{}};
  static std::array<PyType_Slot, 15> slots = {
      PyType_Slot{Py_tp_doc,
                  const_cast<char*>("A sample: a mapping from names to arrays, bytes and text.")},
      PyType_Slot{Py_tp_dealloc, slot(sample_dealloc)},
      PyType_Slot{Py_tp_traverse, slot(sample_traverse)},
      PyType_Slot{Py_tp_clear, slot<int(PyObject*)>(sample_clear)},
      PyType_Slot{Py_tp_repr, slot(sample_repr)},
      PyType_Slot{Py_tp_iter, slot(sample_iter)},
      PyType_Slot{Py_tp_richcompare, slot(sample_compare)},
      PyType_Slot{Py_tp_hash, slot(PyObject_HashNotImplemented)},
      PyType_Slot{Py_tp_methods, methods.data()},
      PyType_Slot{Py_tp_getset, properties.data()},
      PyType_Slot{Py_mp_subscript, slot(sample_get)},
      PyType_Slot{Py_mp_ass_subscript, slot(sample_set)},
      PyType_Slot{Py_mp_length, slot(sample_length)},
      PyType_Slot{Py_sq_contains, slot(sample_contains)},
      PyType_Slot{0, nullptr}};
  static PyType_Spec spec = {
      "ringfeed._worker.Sample", sizeof(SampleObject), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots.data()};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddObjectRef(module, "Sample", type) != 0) return false;
  sample_type = reinterpret_cast<PyTypeObject*>(type);
  return true;
}

bool is_sample(PyObject* object) noexcept { return Py_TYPE(object) == sample_type; }

SampleObject* new_sample(std::span<const std::byte> bytes, const std::uint64_t (&tag)[2],
                         std::uint64_t seed, bool zero_copy) {
  static const auto allocate =
      reinterpret_cast<allocfunc>(PyType_GetSlot(sample_type, Py_tp_alloc));
  PyObject* const self = allocate(sample_type, 0);
  if (self == nullptr) return nullptr;
  SampleObject& sample = *as_sample(self);
  sample.bytes = bytes.data();
  sample.size = bytes.size();
  sample.zero_copy = zero_copy;
  sample.tag[0] = tag[0];
  sample.tag[1] = tag[1];
  sample.seed = seed;
  return &sample;
}

void let_go(SampleObject* sample) noexcept {
  auto* const self = reinterpret_cast<PyObject*>(sample);
  if (Py_REFCNT(self) > 1 && sample->kept == nullptr) {
    sample->kept = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(sample->bytes),
                                             static_cast<Py_ssize_t>(sample->size));
    if (sample->kept != nullptr) {
      sample->bytes = reinterpret_cast<const std::byte*>(PyBytes_AsString(sample->kept));
    } else {
      // No memory: nobody may look at the record again.
      PyErr_Clear();
      static constexpr std::array<std::uint64_t, 2> kEmpty = {16 | std::uint64_t{1} << 48, 0};
      sample->bytes = reinterpret_cast<const std::byte*>(kEmpty.data());
      sample->size = sizeof kEmpty;
    }
  }
  Py_DECREF(self);
}

}  // namespace ringfeed::interpreter
