#include "shard/tlvs.h"

#include <algorithm>
#include <string>

#include "shard/metrics.h"
#include "shard/reply.h"

namespace halfstep::shard {
namespace {

Status fill(ConstBytes body, std::span<TlvSlot> slots) {
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  while (reader.next(&tlv)) {
    const auto slot =
        std::find_if(slots.begin(), slots.end(), [&](const TlvSlot& s) { return static_cast<uint16_t>(s.kind) == tlv.kind; });
    if (slot != slots.end() && !slot->there) {
      slot->value = tlv.value;
      slot->there = true;
    } else if (slot != slots.end() || wire::is_known(tlv.kind)) {
      return Code::Invalid;
    } else if ((tlv.kind & wire::kMustUnderstandTlv) != 0) {
      return Code::Unsupported;
    }
  }
  return reader.status();
}

}  // namespace

bool take_tlvs(Client& client, wire::Opcode command, uint64_t id, ConstBytes body, std::span<TlvSlot> slots) {
  const Status status = fill(body, slots);
  if (status.ok()) return true;
  const bool unsupported = status == Code::Unsupported;
  answer_whole(client, command, id, {wire::Answer::Rejected, unsupported ? wire::Reason::Unsupported : wire::Reason::Malformed},
               std::string(command_name(command)) + (unsupported ? ": a TLV that must be understood is not known here"
                                                                 : ": its TLVs do not parse, or one does not belong there"));
  return false;
}

}  // namespace halfstep::shard
