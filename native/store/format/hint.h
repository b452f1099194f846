// hint.h — what a caller knows of a block that it puts, and what the policy makes of it. A hint decides between blocks that
// nobody has used since they were written; a use says more than a hint, and takes its place.
//   goes first  a final turn, thinking tokens: its segment gives way before any other, as long as it holds nothing else that a
//   copy would not keep goes last   a system prompt: it counts as used when it was written, so that reclaim keeps it once more;
//   a touch could do the same
// So a hint costs nobody but its namespace: what goes first lies apart and is that namespace's own, and what goes last is
// bounded as all copies are, by the policy's share.
#pragma once

#include <cstdint>

namespace halfstep::store {

// On the wire and on flash; any other number says nothing.
enum class Hint : uint8_t { None, FinalTurn, Thinking, ToolPause, SystemPrompt };

constexpr bool goes_first(uint8_t hint) noexcept {
  return hint == static_cast<uint8_t>(Hint::FinalTurn) || hint == static_cast<uint8_t>(Hint::Thinking);
}
constexpr bool goes_last(uint8_t hint) noexcept { return hint == static_cast<uint8_t>(Hint::SystemPrompt); }

}  // namespace halfstep::store
