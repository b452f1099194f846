#include "shard/diagnosis.h"

#include "shard/metrics.h"
#include "wire/records.h"

namespace halfstep::shard {
namespace {

using wire::Opcode;
using wire::Tlv;

std::string number(const char* name, uint64_t value) { return std::string(name) + "=" + std::to_string(value); }

// Empty when nothing is wrong with it by itself.
std::string diagnose_section(ConstBytes value, uint32_t* keys, uint64_t* items) {
  Reader reader(value);
  const auto head = reader.take<wire::SectionHead>();
  if (reader.failed()) return "it is shorter than its head";
  if (head.key_count == 0) return "key_count=0: at least one key";
  if (head.component_count == 0) return "component_count=0: at least one component";
  *keys += head.key_count > wire::kKeysMax ? wire::kKeysMax + 1 : head.key_count;
  *items += uint64_t{head.key_count} * head.component_count;
  if (*keys > wire::kKeysMax)
    return number("key_count", head.key_count) + ": a request has at most " + std::to_string(wire::kKeysMax);
  if (*items > wire::kItemsMax) {
    return number("component_count", head.component_count) + ": keys x components of a request are at most " +
           std::to_string(wire::kItemsMax);
  }
  if (uint64_t{wire::Component{head.first_component}.cell()} + head.component_count > 1U << 20) {
    return number("component_count", head.component_count) + ": its cells run past the last of their group";
  }
  if (head.range_count > wire::kRangesMax)
    return number("range_count", head.range_count) + ": at most " + std::to_string(wire::kRangesMax);
  if (reader.left() != head.range_count * sizeof(wire::PartRange) + head.keys_bytes) {
    return number("keys_bytes", head.keys_bytes) + ": ranges and keys do not fill the section";
  }
  for (uint32_t r = 0; r < head.range_count; ++r) {
    const auto range = reader.take<wire::PartRange>();
    const bool within =
        range.count != 0 && range.stride != 0 && range.start + uint64_t{range.count - 1} * range.stride < wire::kPartsMax;
    if (!within) return number("range", r) + ": count and stride above 0, parts below " + std::to_string(wire::kPartsMax);
  }
  wire::KeyCursor cursor(reader.rest());
  ConstBytes key;
  size_t bytes = 0;
  for (uint32_t k = 0; k < head.key_count; ++k) {
    if (!cursor.next(&key)) return number("key", k) + ": its length byte is 0 or runs past keys_bytes";
    bytes += 1 + key.size();
  }
  return bytes == head.keys_bytes ? "" : number("keys_bytes", head.keys_bytes) + ": bytes are left after the last key";
}

std::string diagnose_batch(ConstBytes value) {
  if (value.size() != sizeof(wire::Batch))
    return number("bytes", value.size()) + ": must be " + std::to_string(sizeof(wire::Batch));
  const auto batch = load_le<wire::Batch>(value.data());
  if (batch.order > wire::Order::LayerMajor) return number("order", static_cast<uint64_t>(batch.order)) + ": 0 or 1";
  if (batch.durability > wire::Durability::Persist)
    return number("durability", static_cast<uint64_t>(batch.durability)) + ": 0 or 1";
  if ((batch.flags & ~wire::kBatchFlags) != 0) return number("flags", batch.flags) + ": undefined bits are set";
  if ((batch.hold_owner != 0) != (batch.hold_ms != 0))
    return number("hold_ms", batch.hold_ms) + ": above 0 exactly when there is an owner";
  return batch.reserved != 0 ? "reserved: must be zero" : "";
}

}  // namespace

std::string diagnose_request(Opcode command, ConstBytes body) {
  const std::string name = command_name(command);
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  bool has_batch = false;
  uint32_t sections = 0;
  uint32_t keys = 0;
  uint64_t items = 0;
  while (reader.next(&tlv)) {
    if (tlv.kind == static_cast<uint16_t>(Tlv::Batch)) {
      if (has_batch) return name + ": a second Batch";
      has_batch = true;
      if (const std::string why = diagnose_batch(tlv.value); !why.empty()) return name + ": Batch: " + why;
    } else if (tlv.kind == static_cast<uint16_t>(Tlv::Section)) {
      if (sections == wire::kSectionsMax) return name + ": sections: at most " + std::to_string(wire::kSectionsMax);
      if (const std::string why = diagnose_section(tlv.value, &keys, &items); !why.empty()) {
        return name + ": section " + std::to_string(sections) + ": " + why;
      }
      ++sections;
    } else if ((tlv.kind & wire::kMustUnderstandTlv) != 0) {
      return name + ": TLV " + std::to_string(tlv.kind) + " must be understood and is not known here";
    }
  }
  if (!reader.status().ok()) return name + ": a TLV runs past the body, or its reserved bytes or padding are not zero";
  if (!has_batch) return name + ": Batch is missing";
  if (sections == 0 && command != Opcode::Release && command != Opcode::Renew) return name + ": it has no section";
  if (command == Opcode::Put) return name + ": Offers or PartTable: missing, out of place, or a field out of its range";
  if (command == Opcode::Release) return name + ": Owner: missing, zero or malformed";
  if (command == Opcode::Hold) {
    return name + ": Owner or Until: missing, zero or malformed; without an end only with flag 1, persistent";
  }
  if (command == Opcode::Renew) return name + ": Owner or Until: missing, zero or malformed, or it has a section";
  if (command == Opcode::Expire) return name + ": Expiry: missing or malformed";
  return name + ": a field that this command does not have, or a flag that it does not know";
}

}  // namespace halfstep::shard
