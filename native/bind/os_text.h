// os_text.h — paths, addresses and sentences that hold them, between Python and native code.
// The kernel's names are bytes and need not be UTF-8. Python writes them as text with surrogates in it (os.fsencode and
// os.fsdecode); a std::string that goes through nanobind's own conversion would refuse such a text, or raise when it comes
// back.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

namespace halfstep::bind {

struct OsText {
  std::string bytes;  // without a NUL in it
};

// As os.fsdecode gives it.
inline nanobind::object os_text(const std::string& bytes) {
  PyObject* text = PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  if (text == nullptr) throw nanobind::python_error();
  return nanobind::steal(text);
}

inline nanobind::list os_texts(const std::vector<std::string>& all) {
  nanobind::list list;
  for (const std::string& bytes : all) list.append(os_text(bytes));
  return list;
}

}  // namespace halfstep::bind

namespace nanobind::detail {

// Takes str, bytes and os.PathLike.
template <>
struct type_caster<halfstep::bind::OsText> {
  NB_TYPE_CASTER(halfstep::bind::OsText, io_name("str | bytes", "str"))

  template <typename Flags>
  bool from_python(handle src, Flags /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    PyObject* bytes = nullptr;
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyUnicode_FSConverter(src.ptr(), &bytes) == 0) {
      PyErr_Clear();
      return false;
    }
    const bool taken = PyBytes_AsStringAndSize(bytes, &data, &size) == 0;
    if (taken) value.bytes.assign(data, static_cast<size_t>(size));
    Py_DECREF(bytes);
    return taken;
  }

  static handle from_cpp(const halfstep::bind::OsText& text, rv_policy /*policy*/, cleanup_list* /*cleanup*/) noexcept {
    return PyUnicode_DecodeFSDefaultAndSize(text.bytes.data(), static_cast<Py_ssize_t>(text.bytes.size()));
  }
};

}  // namespace nanobind::detail
