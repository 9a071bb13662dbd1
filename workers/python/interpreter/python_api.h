// What of Python's interface the module uses. The limited API: one build is good for every Python
// from 3.10 on. (The buffer protocol is part of it since 3.11 and was there, the same, before.)
// Free-threaded interpreters have none, so each of them needs a build of its own.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef RINGFEED_FREE_THREADED
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <string>
#include <string_view>
#include <utility>

namespace ringfeed::interpreter {

// A reference that this code owns.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) noexcept : object_(owned) {}
  [[nodiscard]] static Ref borrowed(PyObject* object) noexcept {
    Py_XINCREF(object);
    return Ref(object);
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  [[nodiscard]] PyObject* get() const noexcept { return object_; }
  [[nodiscard]] PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// str(object) as UTF-8; clears what goes wrong.
[[nodiscard]] inline std::string text_of(PyObject* object) {
  const Ref text(object == nullptr ? nullptr : PyObject_Str(object));
  const Ref bytes(text ? PyUnicode_AsEncodedString(text.get(), "utf-8", "backslashreplace")
                       : nullptr);
  if (!bytes) {
    PyErr_Clear();
    return "?";
  }
  return {PyBytes_AsString(bytes.get()), static_cast<std::size_t>(PyBytes_Size(bytes.get()))};
}

[[nodiscard]] inline Ref text(std::string_view utf8) {
  return Ref(
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "backslashreplace"));
}

}  // namespace ringfeed::interpreter
