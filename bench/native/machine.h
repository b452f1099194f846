// machine.h — a store of these programs' own on a file: arena, backing and engine as a daemon has them, and one thread that
// turns it.
#pragma once

#include <memory>
#include <string>

#include "base/arena.h"
#include "base/clock.h"
#include "io/backing.h"
#include "io/engine.h"
#include "program.h"
#include "store/store.h"

namespace halfstep::bench {

inline void check(const Fault& fault) {
  if (!fault.ok()) fail(fault.what);
}
inline void check(Status status, const char* what) {
  if (!status.ok()) fail(std::string(what) + ": " + std::string(code_name(status.code())));
}

struct Machine {
  Machine(const std::string& path, uint64_t arena_bytes) {
    check(Arena::create(arena_bytes, false, &arena));
    // The kernel takes its time to take the ring apart that had the file before.
    check(io::Backing::open_patiently({.path = path}, &backing));
    check(io::open_engine({}, *arena, {backing.get()}, &engine));
    slots = std::make_unique<SlotPool>(*arena);
  }

  std::unique_ptr<store::Store> open(const store::Options& options = {}) {
    std::unique_ptr<store::Store> opened;
    check(store::Store::open(*engine, *slots, clock, options, &opened));
    return opened;
  }
  // Submits what there is, and sleeps until some of it is done, unless there is more to do.
  void turn(store::Store& opened) {
    opened.turn();
    engine->flush_submissions();
    const bool busy = opened.recovering() && opened.next_turn_us() == 0;
    if (!busy && engine->in_flight() > 0) engine->wait();
    engine->poll();
  }
  // The scope of a layout in the default namespace.
  uint32_t scope_of(store::Store& opened, const wire::Layout& layout) {
    uint32_t scope = 0;
    opened.register_layout("default", layout, [&](Status status, uint32_t got) {
      check(status, "register_layout");
      scope = got;
    });
    while (scope == 0) turn(opened);
    return scope;
  }

  SystemClock clock;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<io::Backing> backing;
  std::unique_ptr<io::Engine> engine;
  std::unique_ptr<SlotPool> slots;
};

}  // namespace halfstep::bench
