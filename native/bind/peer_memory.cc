#include "bind/peer_memory.h"

#include <algorithm>
#include <array>

#include "bind/interpreter.h"
#include "peer/halfstep.h"

namespace halfstep::bind {
namespace {

// DLDeviceType of the DLPack specification.
constexpr int kDeviceCpu = 1;
constexpr int kDeviceCuda = 2;
constexpr int kDeviceCudaHost = 3;  // pinned memory: ordinary memory to us
constexpr int kDeviceCudaManaged = 13;

std::string subject(nb::handle object, const char* role) { return std::string(role) + " (" + name_of_type(object) + ")"; }

// The text of the Python error that is set, which is cleared.
std::string taken_error() {
  nb::python_error error;
  return nb::cast<std::string>(nb::str(error.value()));
}

// Where the exporter has a format for its elements, the view has it. Some have none (numpy's datetime64): those have bytes all
// the same.
bool get_buffer(nb::handle object, Py_buffer* view, int flags) {
  return in_python([&] {
    if (PyObject_GetBuffer(object.ptr(), view, flags | PyBUF_FORMAT) == 0) return true;
    PyErr_Clear();
    return PyObject_GetBuffer(object.ptr(), view, flags) == 0;
  });
}

// References, which only the interpreter may write: 'O' in a format, where names of fields stand between colons.
bool holds_objects(nb::handle object, const Py_buffer& view) {
  if (view.format == nullptr) {
    const nb::object type = nb::getattr(object, "dtype", nb::none());
    return static_cast<bool>(nb::bool_(nb::getattr(type, "hasobject", nb::bool_(false))));
  }
  bool in_name = false;
  for (const char* letter = view.format; *letter != 0; ++letter) {
    if (*letter == ':') in_name = !in_name;
    if (*letter == 'O' && !in_name) return true;
  }
  return false;
}

bool is_c_contiguous(const nb::ndarray<nb::ro>& array) {
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) == 0) return true;
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

std::string not_contiguous(nb::handle object, const char* role) {
  return subject(object, role) +
         ": the memory is not C-contiguous, so its bytes are not in the order of the blocks; pass a contiguous array, a list "
         "of "
         "contiguous pieces, or Rows over a registered region, which has strides";
}

// Whether it has such a method, and that says true.
bool says(nb::handle object, const char* name) {
  const int said = in_python([&] {
    PyObject* method = PyObject_GetAttrString(object.ptr(), name);
    PyObject* answer = method != nullptr && PyCallable_Check(method) != 0 ? PyObject_CallNoArgs(method) : nullptr;
    const int truth = answer == nullptr ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    Py_XDECREF(method);
    return truth;
  });
  PyErr_Clear();
  return said > 0;
}

// A tensor whose bytes are not its values: they are made when somebody computes with it. What exports it may not look (a
// negative view), or be asked by a way that does not (nanobind falls back to one for torch).
void check_resolved(nb::handle object, const char* role) {
  struct Lazy {
    const char* asked;
    const char* what;
    const char* remedy;
  };
  constexpr Lazy kinds[] = {
      {"is_conj", "a conjugated view", "resolve_conj()"},
      {"is_neg", "a negated view", "resolve_neg()"},
      {"_is_zerotensor", "zeros that have no memory", "clone()"},
  };
  for (const Lazy& kind : kinds) {
    if (!says(object, kind.asked)) continue;
    throw Refused(subject(object, role) + ": " + kind.what + ", whose bytes are not its values; pass " + kind.remedy +
                  " of it");
  }
}

// Null with an error set, like the functions of Python's own. A tensor's methods are Python code.
nb::object call_method(nb::handle object, const char* name, nb::handle keywords) {
  return nb::steal(in_python([&]() -> PyObject* {
    PyObject* method = PyObject_GetAttrString(object.ptr(), name);
    PyObject* none = method == nullptr ? nullptr : PyTuple_New(0);
    PyObject* said = none == nullptr ? nullptr : PyObject_Call(method, none, keywords.ptr());
    Py_XDECREF(none);
    Py_XDECREF(method);
    return said;
  }));
}

// Of memory that is only read the old capsule without a version is the cheaper one; whether memory may be written, only one
// with a version says. Exporters may have one of the two alone.
nb::object capsule_of(nb::handle object, bool writable, bool on_device) {
  nb::dict versioned, plain;
  versioned["max_version"] = nb::make_tuple(1, 0);
  // Of a device: the exporter is to order nothing, because the batch says which streams come before it.
  if (on_device) versioned["stream"] = plain["stream"] = -1;
  const nb::handle old = on_device ? nb::handle(plain) : nb::handle();
  const nb::handle first = writable ? nb::handle(versioned) : old;
  const nb::handle second = writable ? old : nb::handle(versioned);
  nb::object capsule = call_method(object, "__dlpack__", first);
  if (capsule.is_valid()) return capsule;
  if (PyErr_ExceptionMatches(PyExc_BufferError) == 0 && PyErr_ExceptionMatches(PyExc_TypeError) == 0) return capsule;
  PyErr_Clear();
  return call_method(object, "__dlpack__", second);
}

// Of a CUDA device, where `any` memory will do; -1: the host's.
int device_of(nb::handle object, const char* role, bool any) {
  const nb::object device = call_method(object, "__dlpack_device__", nb::handle());
  if (!device.is_valid()) {
    throw Refused(subject(object, role) + ": " + taken_error() + "; only memory of the CPU can be reached");
  }
  const int type = nb::cast<int>(nb::int_(device[0]));
  if (type == kDeviceCpu || type == kDeviceCudaHost) return -1;
  if (type == kDeviceCuda || type == kDeviceCudaManaged) {
    const int ordinal = nb::cast<int>(nb::int_(device[1]));
    std::array<char, 256> why{};
    if (any && hs_gpu_reachable(why.data(), why.size()) == 1) return ordinal;
    if (any) {
      throw Refused(subject(object, role) + ": CUDA memory (device " + std::to_string(ordinal) +
                    ") cannot be reached: " + why.data());
    }
    throw Refused(subject(object, role) + ": CUDA memory (device " + std::to_string(nb::cast<int>(nb::int_(device[1]))) +
                  ") cannot be read here; pass a tensor of the CPU");
  }
  throw Refused(subject(object, role) + ": the memory is on DLPack device type " + std::to_string(type) +
                "; only memory of the CPU (1) can be reached");
}

}  // namespace

std::string name_of_type(nb::handle object) {
  const nb::handle type = object.type();
  const auto module = nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str("?"))));
  const auto name = nb::cast<std::string>(nb::str(nb::getattr(type, "__qualname__", nb::str("?"))));
  return module == "builtins" ? name : module + "." + name;
}

void Memory::ReleaseView::operator()(Py_buffer* view) const noexcept {
  in_python([view] { PyBuffer_Release(view); });
  delete view;
}

Memory::View Memory::view_of(nb::handle object, bool writable, const char* role) {
  auto raw = std::make_unique<Py_buffer>();
  // First what is wanted; where that is refused, what there is, so that the sentence can say why.
  if (writable && get_buffer(object, raw.get(), PyBUF_STRIDED)) return View(raw.release());
  if (writable) PyErr_Clear();
  if (!get_buffer(object, raw.get(), PyBUF_STRIDED_RO)) {
    throw Refused(subject(object, role) + ": " + taken_error());
  }
  View view(raw.release());
  if (writable) {
    throw Refused(subject(object, role) +
                  ": the memory is read-only; pass writable memory, such as a bytearray or np.empty(...)");
  }
  return view;
}

Memory Memory::of(nb::handle object, bool writable, const char* role, bool any) {
  if (!PyObject_CheckBuffer(object.ptr())) return of_dlpack(object, writable, role, any);
  Memory memory;
  memory.view_ = view_of(object, writable, role);
  if (holds_objects(object, *memory.view_)) {
    throw Refused(subject(object, role) + ": holds Python objects, not bytes; pass an array of numbers, such as uint8");
  }
  if (!PyBuffer_IsContiguous(memory.view_.get(), 'C')) throw Refused(not_contiguous(object, role));
  memory.data_ = static_cast<std::byte*>(memory.view_->buf);
  memory.bytes_ = static_cast<size_t>(memory.view_->len);
  return memory;
}

Memory Memory::of_bytes(nb::handle object, const char* role) {
  if (!PyObject_CheckBuffer(object.ptr())) {
    const char* remedy = PyUnicode_Check(object.ptr()) ? "; encode text first: key.encode()" : "";
    throw Refused(subject(object, role) + ": must be bytes, bytearray, memoryview or another buffer" + remedy);
  }
  return of(object, false, role);
}

Memory Memory::of_dlpack(nb::handle object, bool writable, const char* role, bool any) {
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__")) {
    throw Refused(
        subject(object, role) +
        ": has neither the buffer protocol nor DLPack; pass a numpy array, a CPU tensor, a bytearray or a memoryview");
  }
  Memory memory;
  memory.device_ = device_of(object, role, any);
  check_resolved(object, role);
  const nb::object capsule = capsule_of(object, writable, memory.device_ >= 0);
  if (!capsule.is_valid()) throw Refused(subject(object, role) + ": " + taken_error());
  bool imported = false;
  if (writable) {
    nb::ndarray<> array;
    imported = nb::try_cast(capsule, array);
    if (imported) memory.array_ = nb::ndarray<nb::ro>(array);
  } else {
    imported = nb::try_cast(capsule, memory.array_);
  }
  if (!imported) {
    PyErr_Clear();
    throw Refused(subject(object, role) + ": " +
                  (writable ? "the memory is read-only" : "its __dlpack__() gives no memory that can be used here"));
  }
  const auto& array = memory.array_;
  if (!is_c_contiguous(array)) throw Refused(not_contiguous(object, role));
  const size_t bits = size_t{array.dtype().bits} * array.dtype().lanes;
  if (bits % 8 != 0) {
    throw Refused(subject(object, role) + ": elements of " + std::to_string(bits) +
                  " bits are no whole bytes; pass a view as uint8");
  }
  memory.data_ = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
  memory.bytes_ = array.size() * (bits / 8);
  return memory;
}

}  // namespace halfstep::bind
