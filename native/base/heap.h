// heap.h — what the C library's allocator keeps of memory that was freed. Thread: any.
#pragma once

#include <malloc.h>

namespace halfstep {

// To the system, all of it: after work that took megabytes which nothing else will ever need. Walks the whole heap.
inline void give_heap_back() noexcept {
// Under a sanitizer glibc's own allocator is not in use, and its first call, by several threads at once, is not safe.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  (void)::malloc_trim(0);
#endif
}

}  // namespace halfstep
