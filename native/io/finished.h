// finished.h — the end of requests that an engine has finished: they are counted, and their owners hear.
// Invariants: complete() may submit further requests, and what it adds to the queue waits for the next call; the engine counts
// a request as in flight until just before its owner hears.
// Thread: that of poll().
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/engine.h"
#include "io/request.h"

namespace halfstep::io {

// Returns how many there were.
inline size_t complete_all(RequestQueue& finished, uint32_t& in_flight, EngineCounters& counters) noexcept {
  RequestQueue done;
  done.take_all(finished);
  size_t completed = 0;
  while (Request* request = done.pop_front()) {
    --in_flight;
    ++completed;
    count(counters, *request);
    request->complete(*request);
  }
  return completed;
}

}  // namespace halfstep::io
