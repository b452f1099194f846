// tlvs.h — the bodies of requests without keys: some TLVs, each at most once, in any order.
// Those that are not known are skipped, unless they must be understood; a known one that does not belong there is refused.
// Thread: any.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "wire/message.h"

namespace halfstep::shard {

class Client;

struct TlvSlot {
  wire::Tlv kind;
  ConstBytes value = {};
  bool there = false;
};

// Fills in the slots. False: the request was refused as a whole.
bool take_tlvs(Client& client, wire::Opcode command, uint64_t id, ConstBytes body, std::span<TlvSlot> slots);

}  // namespace halfstep::shard
