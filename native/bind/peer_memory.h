// peer_memory.h — somebody else's memory, seen through the buffer protocol or DLPack and held where it is.
// Invariants: nothing is copied; the owner cannot free or resize the memory while a Memory exists; the memory is C-contiguous
// and, where it was asked to be, writable; it is the host's (device() < 0), or, where the caller asks for that, of a CUDA
// device: then its bytes are for the core alone. Thread: made and destroyed with the GIL held; the bytes may be read and
// written without it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace halfstep::bind {

namespace nb = nanobind;

// A wrong argument, in a sentence: halfstep.ConfigError for Python.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Out of what the system has (file descriptors, threads): halfstep.Unavailable for Python.
class Lacking : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "numpy.ndarray", for sentences.
std::string name_of_type(nb::handle object);

class Memory {
 public:
  // `role` begins the sentence of a Refused: "target", "source".
  static Memory of(nb::handle object, bool writable, const char* role) { return of(object, writable, role, false); }
  // The same, or memory of a CUDA device.
  static Memory of_any(nb::handle object, bool writable, const char* role) { return of(object, writable, role, true); }
  // Any exporter of bytes in one piece (bytes, bytearray, memoryview, …) that is not written: keys.
  static Memory of_bytes(nb::handle object, const char* role);

  std::byte* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }
  // Of a CUDA device; -1: the host's.
  int device() const noexcept { return device_; }

 private:
  struct ReleaseView {
    void operator()(Py_buffer* view) const noexcept;
  };
  // On the heap, because an exporter may point into the view itself.
  using View = std::unique_ptr<Py_buffer, ReleaseView>;

  static View view_of(nb::handle object, bool writable, const char* role);
  static Memory of(nb::handle object, bool writable, const char* role, bool any);
  static Memory of_dlpack(nb::handle object, bool writable, const char* role, bool any);

  View view_;
  nb::ndarray<nb::ro> array_;  // keeps a DLPack exporter's memory
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = -1;
};

}  // namespace halfstep::bind
