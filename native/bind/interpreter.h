// interpreter.h — how native code leaves the interpreter's lock, and what the interpreter's end does to who comes back.
// From its finalization on, whoever asks for the lock again is ended with pthread_exit (CPython before 3.14), which unwinds the
// stack: a destructor, a noexcept function or a handler that catches everything on the way aborts the process. So a thread
// that would be ended here stays where it is until the process is gone, as CPython does itself from 3.14 on.
// Thread: any that has the interpreter's lock.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace halfstep::bind {

[[noreturn]] inline void stay_for_ever() noexcept {
  for (;;) ::pause();
}

// Calls what may run Python code: that gives the lock away now and then, and may not get it back. What is caught then is no
// object of C++, and its reference binds to none: the sanitizer that looks for that is told so.
template <typename Call>
[[gnu::no_sanitize("null")]] decltype(auto) in_python(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const abi::__forced_unwind&) {
    stay_for_ever();
  }
}

// Without the interpreter's lock, for as long as one exists.
class Unlocked {
 public:
  Unlocked() noexcept : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    in_python([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace halfstep::bind
