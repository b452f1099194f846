// shrink.h — a failing history made short: operations and faults left out as long as the same rule is broken.
// Thread: one.
#pragma once

#include <functional>

#include "sim/run.h"

namespace halfstep::sim {

// What a history breaks, if anything: run() itself, or run() in a process of its own where a run may end the process.
using Replay = std::function<std::optional<Violation>(const History&)>;

// Returns the shortest history found that breaks `rule`; `history` does. At most `replays_max` replays.
History shrink(History history, const Violation& violation, const Replay& replay, uint32_t replays_max);

}  // namespace halfstep::sim
