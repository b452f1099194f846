// errors.h — a native error as an exception of its module: (name of the code, sentence).
// Each module has an error type of its own: the modules share nanobind's tables, and one type would be translated by whichever
// module was imported last.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <string>

#include "bind/os_text.h"

namespace halfstep::bind {

// Error: a std::exception with `code` and `sentence`. `qualified`: "halfstep._module.Name".
template <typename Error>
void add_error(nanobind::module_& module, const char* name, const std::string& qualified, const char* doc) {
  namespace nb = nanobind;
  // Never released: the translator may run until the interpreter has ended.
  PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, PyExc_RuntimeError, nullptr);
  module.attr(name) = nb::borrow(type);
  nb::register_exception_translator(
      [](const std::exception_ptr& raised, void* of) {
        try {
          std::rethrow_exception(raised);
        } catch (const Error& error) {
          PyErr_SetObject(static_cast<PyObject*>(of), nb::make_tuple(error.code, os_text(error.sentence)).ptr());
        }
      },
      type);
}

}  // namespace halfstep::bind
