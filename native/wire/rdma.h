// rdma.h — the offer of rings over RDMA in a Hello, and the answer in its Final (docs/wire-protocol.md, section 15).
//   RdmaOffer  = RdmaOfferHead, RdmaPath[path_count]: what the client has, one path a device that it could use
//   RdmaAnswer = RdmaAnswerHead, and RdmaPath of the server's end unless it refuses
// Invariants: what parses is within its bounds; nothing here says that the other end may be believed.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::wire {

inline constexpr uint16_t kRdmaVersion = 1;
inline constexpr uint32_t kRdmaPathsMax = 4;
inline constexpr uint32_t kRdmaRingBytesMin = 64 * KiB;
inline constexpr uint32_t kRdmaRingBytesMax = 64 * MiB;

// One end of a connection that there could be. Whoever has this can write into the ring. The key is looked up in the protection
// domain of the queue pair that receives, which all connections of a loop have in common: it reaches the rings of others there.
struct RdmaPath {
  std::array<std::byte, 16> gid{};  // RoCE v2: the IPv6 address, or ::ffff:a.b.c.d
  uint32_t queue_pair = 0;          // 24 bits
  uint32_t psn = 0;                 // of the first packet that this end sends; 24 bits
  uint64_t ring_address = 0;        // where the other end writes to
  uint32_t ring_key = 0;
  uint32_t ring_bytes = 0;  // a power of two
  uint32_t mtu_bytes = 0;   // 256 to 4096, a power of two
  uint32_t zero = 0;
};
static_assert(sizeof(RdmaPath) == 48);

struct RdmaOfferHead {
  uint16_t version_min = kRdmaVersion;
  uint16_t version_max = kRdmaVersion;
  uint16_t path_count = 0;
  uint16_t zero = 0;
};
static_assert(sizeof(RdmaOfferHead) == 8);

// Beside the offer: how many RDMA READs of the server's its end answers at once. Beside the answer: how many the server has out
// at once, no more than those; a put's payload may stay in the client's memory then, and is read from there.
struct RdmaReadsRecord {
  uint32_t reads = 0;  // 1 to kRdmaReadsMax
  uint32_t zero = 0;
};
static_assert(sizeof(RdmaReadsRecord) == 8);
inline constexpr uint32_t kRdmaReadsMax = 255;

enum class RdmaRefusal : uint16_t {
  None = 0,
  Version = 1,    // none in common
  NotHere = 2,    // no library or no device at the address of this connection
  Path = 3,       // none of the paths is of the address that the client connects from, or leads there
  Memory = 4,     // the server pins no more for rings, or may not
  Device = 5,     // it has no more queue pairs or other resources
  Forbidden = 6,  // this client does not get any
  Off = 7,        // the server's operator does not want it
};
inline constexpr uint16_t kRdmaRefusals = 8;

struct RdmaAnswerHead {
  uint16_t version = kRdmaVersion;  // 0: refused, and no path
  RdmaRefusal refusal = RdmaRefusal::None;
  uint16_t path = 0;  // of the offer's
  uint16_t zero = 0;
};
static_assert(sizeof(RdmaAnswerHead) == 8);

struct RdmaOfferView {
  RdmaOfferHead head;
  PackedArray<RdmaPath> paths;
};

struct RdmaAnswerView {
  RdmaAnswerHead head;
  RdmaPath path;
};

// Of an offer in another version nothing but its head is looked at: `paths` is empty then.
Status parse_rdma_offer(ConstBytes value, RdmaOfferView* out) noexcept;
Status parse_rdma_answer(ConstBytes value, RdmaAnswerView* out) noexcept;
Status parse_rdma_reads(ConstBytes value, RdmaReadsRecord* out) noexcept;

// For people: why a server refused.
const char* rdma_refusal_text(RdmaRefusal refusal) noexcept;

}  // namespace halfstep::wire
