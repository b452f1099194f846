// float_environment.h — while it lives, this thread rounds to nearest even and flushes nothing to zero, whatever the process
// has set for speed. What is computed meanwhile has to be out of line: compilers do not see that it depends on this.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace halfstep::compress {

class FloatEnvironment {
 public:
#if defined(__SSE__)
  FloatEnvironment() noexcept : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(before_); }
#else
  FloatEnvironment() noexcept {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kDefault = 0x1F80;  // the control word of a new process: all exceptions masked
  unsigned before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace halfstep::compress
