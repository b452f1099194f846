#include "compress/kernels.h"

#include <cstdio>
#include <cstdlib>

namespace halfstep::compress {
namespace {

constexpr const char* kVariable = "HALFSTEP_COMPRESS_PATH";

const Kernels& chosen() noexcept {
  const Kernels* const fastest_first[] = {avx512_kernels(), avx2_kernels(), &plain_kernels()};
  const char* text = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): once, and nothing of ours sets it
  const std::string_view wanted = text == nullptr ? "" : text;
  for (const Kernels* of : fastest_first) {
    if (of != nullptr && (wanted.empty() || of->name == wanted)) return *of;
  }
  std::fprintf(stderr, "%s=%s: this processor has no such path; use plain, avx2 or avx512, or unset it\n", kVariable, text);
  std::abort();
}

}  // namespace

const Kernels& kernels() noexcept {
  static const Kernels& of = chosen();
  return of;
}

}  // namespace halfstep::compress
