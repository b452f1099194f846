// symbols.h — the functions of a shared library that is loaded when it is there, by their names: what the driver of a GPU or of
// an RDMA card has, without which the process has to start all the same.
// Invariants: a symbol that has versions is asked for in the one that our declarations are of: a bare look-up gives the newest
// that the library has. Thread: one.
#pragma once

#include <dlfcn.h>

#include <string>

namespace halfstep {

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void take(Function** out, const char* name, const char* version = nullptr) {
    take_if_there(out, name, version);
    if (*out != nullptr || !missing_.empty()) return;
    missing_ = name;
    if (version != nullptr) missing_ += std::string("@") + version;
  }
  // One that older releases lack: null.
  template <typename Function>
  void take_if_there(Function** out, const char* name, const char* version = nullptr) {
    void* const found = version == nullptr ? ::dlsym(library_, name) : ::dlvsym(library_, name, version);
    *out = reinterpret_cast<Function*>(found);
  }

  // The first that is not there; empty: all are.
  const std::string& missing() const noexcept { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace halfstep
