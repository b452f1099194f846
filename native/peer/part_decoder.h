// part_decoder.h — a coded part that has arrived whole, into the memory of who asked for it. On the thread that received it,
// while its bytes are in the cache: so nothing decodes for a ticket that is over, and the fence needs no other threads.
// Invariants: what is written to the target is written before decode() returns.
// Thread: the client's. One for each connection.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"
#include "peer/ticket.h"
#include "wire/records.h"

namespace halfstep::peer {

class PartDecoder {
 public:
  // To the host's memory. Corrupt: no unit of its codec, or its raw bytes have another checksum than the record says. NoSpace:
  // no memory to work in.
  Status decode(const wire::PartRecord& record, ConstBytes stored, const Section& section, uint32_t item, uint32_t part,
                uint64_t part_at);

  // The same, to memory in one piece.
  Status decode(const wire::PartRecord& record, ConstBytes stored, Bytes out);

  // Of a lossy part that was decoded: half of its step. 0: it is exact.
  static float error_bound_of(const wire::PartRecord& record, ConstBytes stored) noexcept;

 private:
  Status decode_into(const wire::PartRecord& record, ConstBytes stored, const Section& section, uint32_t item, uint32_t part,
                     uint64_t part_at);

  compress::Scratch scratch_;
  std::vector<std::byte> raw_;  // a part whose target is in pieces
};

}  // namespace halfstep::peer
