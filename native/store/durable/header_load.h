// header_load.h — the store header as a start finds it: both copies read, the newer whole one taken.
// Copy A lies at the start of the device, copy B at the end of the store. Where A does not say where that is, B is looked for:
// where the backing ends, where a damaged A says, and then backwards from the end, for a backing may be longer than its store.
// Invariants: no start is refused while one copy is whole. A page that was found by search alone has to fit the record logs of
// copy A, unless those say nothing: a tenant's payload may look like a header, but it knows no secret that opens them. A read
// that fails is tried again before its copy is given up.
// Thread: one, blocking.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "io/engine.h"
#include "store/durable/blocking_io.h"
#include "store/format/header.h"
#include "store/format/page.h"

namespace halfstep::store {

struct LoadedHeader {
  HeaderState state;
  bool copy_bad[2] = {false, false};  // damaged or older than the other one: rewritten by the next store
};

struct HeaderPatience {
  // A search of a large device takes its time: bytes looked through of all, now and then; false stops it.
  std::function<bool(uint64_t done, uint64_t total)> go_on;
  // Before a read that failed is tried again. Null sleeps.
  std::function<void(uint32_t millis)> pause;
};

// Pauses by the clock that the store runs on, which a simulator does not wait for.
inline HeaderPatience pausing_by(const Clock& clock) {
  return {.go_on = {}, .pause = [&clock](uint32_t millis) { clock.pause_us(millis * uint64_t{1000}); }};
}

inline constexpr uint32_t kHeaderReservePages = format::kHeaderReserveBytes / kPageBytes;

// Reads one copy: its first page, then as much as that says. NotFound / Corrupt / Unsupported / IoError / Ok.
// `buffer`: kHeaderReservePages; its first page is what was read there.
Status read_header_copy(BlockingIo& io, uint64_t offset, PageBuffer& buffer, HeaderState* out);

// NotFound: no store here (the sentence says what was seen). Unsupported: a newer format. IoError: a copy that may be whole
// cannot be read. Corrupt: both are damaged. Cancelled: go_on() said so.
Fault load_header(io::Engine& engine, LoadedHeader* out, const HeaderPatience& patience = {});

}  // namespace halfstep::store
