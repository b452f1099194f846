// zero_copy_transport.h — a socket whose payload leaves without a copy by the kernel, where that wins (MSG_ZEROCOPY).
// It asks for it with the first large run of payload, if the socket has it: TCP, without an upper layer (kTLS reads
// what it sends anyway, and refuses the flag). It asks no more once the kernel says that it had to copy: then the
// packets go through something virtual, or to a NIC that cannot gather and sum. Where the kernel has no memory for the
// book-keeping (net.core.optmem_max, or RLIMIT_MEMLOCK, in which the pages under way count), sends are copied for a
// while.
// Invariants: memory given to send_held() is given back by hold() and take_free() when the kernel has said that it
// reads it no more; when the transport is dropped before, a ZeroCopyLinger gives it back. A socket that sent without a
// copy is never just closed.
// Thread: the loop's.
#pragma once

#include <memory>

#include "base/units.h"
#include "net/transport.h"
#include "net/zero_copy_linger.h"

namespace halfstep::net {

// Pinning pages, a notification and its system call cost as much as copying some 10 KB (Documentation/networking/msg_zerocopy),
// and more where pages are small and an IOMMU maps them: clear of that, and a quarter of a full Chunk.
inline constexpr size_t kZeroCopyRunBytesMin = 64 * KiB;

// Whether this kernel has it, for TCP.
bool zero_copy_possible() noexcept;

// Takes the (connected) descriptor. Not for a peer on this machine: over loopback the kernel copies what it delivers, and this
// costs more than it saves. `linger` outlives it.
std::unique_ptr<Transport> zero_copy_transport(int descriptor, ZeroCopyLinger& linger);

}  // namespace halfstep::net
