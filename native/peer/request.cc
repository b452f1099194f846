#include "peer/request.h"

#include <algorithm>
#include <cstring>

#include "wire/prefetch_kind.h"

namespace halfstep::peer {

// A request within the limits on keys, items, sections and ranges never passes the limit on its body: it need not be cut for
// it.
static_assert(uint64_t{wire::kKeysMax} * (wire::kEngineKeyBytesMax + 1) +
                  uint64_t{wire::kItemsMax} * (sizeof(wire::Offer) + 1) +
                  wire::kSectionsMax * (wire::kRangesMax * sizeof(wire::PartRange) + 128) + kPartTableBytesMax +
                  kPutPlacesBytesMax + wire::kRegionsMax * sizeof(wire::RegionRecord) + 1024 <
              wire::kBodyBytesMax);

wire::Opcode opcode_of(uint32_t operation) noexcept {
  switch (operation) {
    case HS_OP_MATCH: return wire::Opcode::Match;
    case HS_OP_GET: return wire::Opcode::Get;
    case HS_OP_PUT: return wire::Opcode::Put;
    case HS_OP_DELETE: return wire::Opcode::Delete;
    case HS_OP_RELEASE: return wire::Opcode::Release;
    case HS_OP_PREFETCH: return wire::Opcode::Prefetch;
    case HS_OP_TOUCH: return wire::Opcode::Touch;
    case HS_OP_HOLD: return wire::Opcode::Hold;
    case HS_OP_RENEW: return wire::Opcode::Renew;
    case HS_OP_EXPIRE: return wire::Opcode::Expire;
    case HS_OP_CLEAR: return wire::Opcode::Clear;
    case HS_OP_LIST: return wire::Opcode::List;
    case HS_OP_STAT:
    case HS_OP_EXPLAIN: return wire::Opcode::Stat;
    default: return wire::Opcode::Namespace;
  }
}

void Request::reset(Ticket& of, wire::Opcode code) {
  ticket = &of;
  connection = nullptr;
  opcode = code;
  id = 0;
  sent = repeated = plain = waits = false;
  sent_us = received_before = 0;
  weight_bytes = 0;
  slices.clear();
  placed_by.clear();
  placing = nullptr;
  windows.clear();
  shard = 0;
  shards = 1;
  position = 0;
  granted = false;
  early_bytes = 0;
  next_sendable = 0;
  sendable.clear();
}

bool Request::open() noexcept {
  bool some = false;
  for_items([&](Section& section, uint32_t item) { some = some || ticket->item_open(section, item); });
  return some;
}

void Request::encode(uint32_t deadline_us, const std::vector<uint16_t>& handles, std::vector<std::byte>& out) const {
  wire::FrameWriter frame(out);
  frame.begin(opcode, id);
  switch (opcode) {
    case wire::Opcode::List:
      frame.tlv(wire::Tlv::Cursor,
                wire::CursorRecord{.position = list_position(ticket->cursor, shards), .limit = ticket->limit});
      break;
    case wire::Opcode::Stat:
      if (!ticket->question.empty()) frame.tlv_bytes(wire::Tlv::KeyQuestion, ticket->question);
      if (position != 0) frame.tlv(wire::Tlv::Cursor, wire::CursorRecord{.position = position});
      break;
    case wire::Opcode::Namespace: encode_namespace(frame); break;
    case wire::Opcode::Clear: frame.tlv(wire::Tlv::NamedLayout, ticket->layout_id); break;
    default: {
      wire::Batch batch = ticket->batch;
      batch.deadline_us = deadline_us;
      if (!waits) batch.flags &= static_cast<uint8_t>(~wire::kBatchWait);
      // What the client cannot decode is of no use to it.
      const bool decodes = opcode == wire::Opcode::Match || opcode == wire::Opcode::Get || opcode == wire::Opcode::Put;
      if (decodes) batch.flags |= wire::kBatchDecodable;
      frame.tlv(wire::Tlv::Batch, batch);
      encode_life(frame);
      if (!windows.empty()) encode_windows(frame);
      uint32_t keys_before = 0;
      for (uint16_t s = 0; s < slices.size(); ++s) {
        encode_section(frame, s, handles[section(s).layout_index]);
        if (places(s)) encode_places(frame, s);
        if (opcode == wire::Opcode::Put) {
          encode_offers(frame, s, keys_before);
          encode_choices(frame, s);
          encode_part_tables(frame, s);
        }
        keys_before += slices[s].count;
      }
    }
  }
  frame.finish();
}

void Request::encode_namespace(wire::FrameWriter& frame) const {
  wire::NamespaceRecord action;
  action.verb = ticket->operation == HS_OP_NAMESPACE_CREATE  ? wire::NamespaceVerb::Create
                : ticket->operation == HS_OP_NAMESPACE_LIMIT ? wire::NamespaceVerb::Limit
                                                             : wire::NamespaceVerb::Delete;
  action.quota_bytes = ticket->value;
  action.default_ttl_s = ticket->default_ttl_s;
  action.flags = ticket->sliding_ttl ? wire::kNamespaceSlidingTtl : 0;
  frame.tlv(wire::Tlv::NamespaceAction, action);
  frame.tlv_bytes(wire::Tlv::NamespaceName, as_bytes(ticket->text));
  if (action.verb == wire::NamespaceVerb::Delete) return;
  frame.tlv(wire::Tlv::PinBudget, wire::PinBudgetRecord{.bytes = ticket->pin_budget_bytes});
  if (ticket->sets_coding) frame.tlv(wire::Tlv::SetCoding, ticket->coding);
}

// Who holds, until when, and for how long what is fetched ahead is kept.
void Request::encode_life(wire::FrameWriter& frame) const {
  const bool holds = opcode == wire::Opcode::Hold || opcode == wire::Opcode::Renew;
  if (holds || opcode == wire::Opcode::Release) frame.tlv(wire::Tlv::Owner, wire::OwnerRecord{.owner = ticket->owner});
  if (holds || opcode == wire::Opcode::Prefetch) {
    uint32_t flags = ticket->persistent ? wire::kHoldPersistent : 0;
    if (says_kind) flags |= uint32_t{ticket->prefetch_kind} << wire::kUntilKindShift;
    frame.tlv(wire::Tlv::Until, wire::UntilRecord{.hold_ms = ticket->value, .flags = flags});
  }
  if (opcode == wire::Opcode::Expire) {
    frame.tlv(wire::Tlv::Expiry, wire::ExpiryRecord{.ttl_s = static_cast<uint32_t>(ticket->value)});
  }
}

void Request::encode_section(wire::FrameWriter& frame, uint16_t slice, uint16_t handle) const {
  const Section& of = section(slice);
  const Slice& part = slices[slice];
  const auto key = [&](uint32_t i) { return of.order.empty() ? part.first + i : of.order[part.first + i]; };
  wire::SectionHead head;
  head.layout = handle;
  head.flags = of.stop_at_miss ? wire::kSectionStopAtMiss : 0;
  head.first_component = of.first_component;
  head.component_count = static_cast<uint16_t>(of.component_count);
  head.range_count = static_cast<uint16_t>(of.selection.ranges().size());
  head.key_count = part.count;
  if (of.order.empty()) {
    head.keys_bytes = of.key_at[part.first + part.count] - of.key_at[part.first];
  } else {
    for (uint32_t i = 0; i < part.count; ++i) head.keys_bytes += static_cast<uint32_t>(of.packed_key(key(i)).size());
  }
  frame.open_tlv(wire::Tlv::Section);
  frame.value().put(head);
  for (const wire::PartRange& range : of.selection.ranges()) frame.value().put(range);
  if (of.order.empty()) {
    frame.value().put_bytes(ConstBytes(of.keys).subspan(of.key_at[part.first], head.keys_bytes));
  } else {
    for (uint32_t i = 0; i < part.count; ++i) frame.value().put_bytes(of.packed_key(key(i)));
  }
  frame.close_tlv();
}

void Request::encode_windows(wire::FrameWriter& frame) const {
  frame.open_tlv(wire::Tlv::PlaceKeys);
  for (const Window& window : windows) frame.value().put(window.region);
  frame.close_tlv();
}

void Request::encode_places(wire::FrameWriter& frame, uint16_t slice) const {
  const Section& of = section(slice);
  const uint32_t count = items_of(slice);
  if (placed_by[slice] != kByPieces) {
    frame.open_tlv(wire::Tlv::PlaceRows);
    frame.value().put(wire::PlaceRowsHead{.section = slice, .item_count = count, .number = placed_by[slice]});
    for (uint32_t i = 0; i < count; ++i) frame.value().put(of.target.row(item_of(slice, i)));
    return frame.close_tlv();
  }
  wire::PlacesHead head{.section = slice, .item_count = count};
  for (uint32_t i = 0; i < count; ++i) {
    const auto [first, end] = of.target.pieces_of(item_of(slice, i));
    head.piece_count += end - first;
  }
  frame.open_tlv(wire::Tlv::Places);
  frame.value().put(head);
  for (uint32_t i = 0; i < count; ++i) {
    const auto [first, end] = of.target.pieces_of(item_of(slice, i));
    frame.value().put_all(std::span<const wire::PlacePiece>(of.places).subspan(first, end - first));
  }
  for (uint32_t i = 0; i < count; ++i) {
    const auto [first, end] = of.target.pieces_of(item_of(slice, i));
    frame.value().put(end - first);
  }
  frame.close_tlv();
}

void Request::encode_offers(wire::FrameWriter& frame, uint16_t slice, uint32_t keys_before) const {
  const Section& of = section(slice);
  const Slice& part = slices[slice];
  const uint32_t count = items_of(slice);
  frame.open_tlv(wire::Tlv::Offers);
  frame.value().put(slice);
  frame.value().put(uint16_t{0});
  frame.value().put(count);
  for (uint32_t i = 0; i < count; ++i) {
    wire::Offer offer = of.offers[item_of(slice, i)];
    if (coded(of, item_of(slice, i)) == nullptr) {
      offer.stored_bytes = offer.block_bytes;
      offer.flags = 0;
    }
    if (offer.parent_kind == wire::kParentInBatch) {
      const auto parent = static_cast<uint32_t>(offer.parent);
      if (of.order.empty() && parent >= part.first && parent - part.first < part.count) {
        offer.parent = keys_before + (parent - part.first);
      } else {  // it travels in another request
        const ConstBytes name = of.engine_key(parent);
        const ConstBytes tail = name.last(std::min<size_t>(name.size(), sizeof(uint64_t)));
        uint64_t value = 0;
        std::memcpy(&value, tail.data(), tail.size());
        offer.parent = value;
        offer.parent_kind = wire::kParentKnown;
      }
    }
    frame.value().put(offer);
  }
  frame.close_tlv();
}

// For the daemon to count.
void Request::encode_choices(wire::FrameWriter& frame, uint16_t slice) const {
  const Section& of = section(slice);
  if (plain || of.blocks.empty()) return;
  frame.open_tlv(wire::Tlv::CodingChoices);
  frame.value().put(slice);
  frame.value().put(uint16_t{0});
  frame.value().put(items_of(slice));
  frame.value().put(ticket->encoding.known);
  for (uint32_t i = 0; i < items_of(slice); ++i) frame.value().put(of.blocks[item_of(slice, i)].reason);
  frame.close_tlv();
}

void Request::encode_part_tables(wire::FrameWriter& frame, uint16_t slice) const {
  const Section& of = section(slice);
  for (uint32_t i = 0; i < items_of(slice); ++i) {
    const CodedBlock* block = coded(of, item_of(slice, i));
    if (block == nullptr) continue;
    frame.open_tlv(wire::Tlv::PartTable);
    frame.value().put(slice);
    frame.value().put(uint16_t{0});
    frame.value().put(i);
    frame.value().put(static_cast<uint32_t>(block->parts.size()));
    frame.value().put(uint32_t{0});
    frame.value().put_all(std::span<const wire::PartRecord>(block->parts));
    frame.close_tlv();
  }
}

}  // namespace halfstep::peer
