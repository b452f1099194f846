// submission.h — a batch of the C interface becomes a ticket: every rule of halfstep.h is checked here, on the caller's thread
// and outside all locks, and all that the caller may free afterwards is copied.
#pragma once

#include "base/status.h"
#include "peer/client.h"
#include "peer/halfstep.h"
#include "peer/ticket.h"

namespace halfstep::peer {

inline constexpr uint32_t kDefaultDeadlineUs = 2'000'000;
inline constexpr uint32_t kDefaultMatchDeadlineUs = 20'000;

// Fault: the sentence says which rule, the value and the bound. The ticket is then good for nothing but recycling.
Fault fill_ticket(Client& client, const hs_batch& batch, Ticket& ticket);

}  // namespace halfstep::peer
