// ring_refusal.h — why this process gets no io_uring ring, in the operator's words.
// Thread: any.
#pragma once

#include <string>

namespace halfstep::io {

// What failed, and what to do. error: of `call`, a negative errno.
std::string explain_ring_refusal(int error, const char* call);

// A filter may let a ring be made and refuse to enter it, which would fail each request instead of this start. Tried on a ring
// of its own, with nothing in it: an engine's may belong to the thread that enables it. 0 or a negative errno; that of a ring
// that cannot be made is 0, for the engine's says why.
int try_to_enter_ring();

// Of this process: bytes, or "unlimited".
std::string memlock_limit();

}  // namespace halfstep::io
