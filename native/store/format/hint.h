// hint.h — what a caller knows of a block that it puts, and what the policy makes of it. It obeys one, a final turn: its blocks
// lie in segments apart, and such a segment gives way before any other, as long as it holds nothing else that a copy would not
// keep. The hint decides between blocks that nobody has used since they were written; a use says more, and takes its place.
// So it costs nobody but its namespace: what goes first lies apart and is that namespace's own. The others are kept with the
// block and change nothing: a system prompt's did not pay on traces, and no trace tells of the others (docs/replay.md).
#pragma once

#include <cstdint>

namespace halfstep::store {

// On the wire and on flash; any other number says nothing.
enum class Hint : uint8_t { None, FinalTurn, Thinking, ToolPause, SystemPrompt };

constexpr bool goes_first(uint8_t hint) noexcept { return hint == static_cast<uint8_t>(Hint::FinalTurn); }

}  // namespace halfstep::store
