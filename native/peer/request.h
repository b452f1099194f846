// request.h — the piece of a ticket that travels over one connection as one request of the wire protocol.
// A ticket is cut by shard, by the protocol's limits, and over a shard's connections; items keep their place in the ticket.
// Invariants: a request has a ticket until it is over or abandoned; an abandoned one stays known to its connection until the
// daemon's Final, so that what still comes for it is skipped and not taken for something else.
// Thread: the client's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "peer/ticket.h"
#include "wire/message.h"
#include "wire/places.h"

namespace halfstep::peer {

class Connection;

// Keys [first, first + count) of a section, counted in its order of shards. Its position is the section number on the wire.
struct Slice {
  uint16_t section = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};

class Request {
 public:
  Ticket* ticket = nullptr;  // null: abandoned
  Connection* connection = nullptr;
  wire::Opcode opcode = wire::Opcode::Get;
  uint64_t id = 0;
  bool sent = false;
  uint64_t sent_us = 0;  // of the client's clock; and what its connection had received by then
  uint64_t received_before = 0;
  bool waits = false;         // its daemon is to wait for what is not there, and knows how
  bool says_kind = false;     // prefetch: its daemon counts by kind
  bool plain = false;         // put: its daemon knows no codec of its blocks, which go as they are
  bool repeated = false;      // it named a layout that the daemon had forgotten, and is asked again
  uint64_t weight_bytes = 0;  // what it will move, roughly
  std::vector<Slice> slices;
  uint32_t shard = 0;
  uint32_t shards = 1;
  uint64_t position = 0;  // stat: of the page that it asks for; 0: the first, or there is none left

  // get: by slice, how its bytes are placed
  static constexpr uint8_t kUnplaced = UINT8_MAX;
  static constexpr uint8_t kByPieces = kUnplaced - 1;  // any other: by rows of the template of this number
  std::vector<uint8_t> placed_by;
  Ticket* placing = nullptr;  // whose memory its daemon may write into, until the Final or the end of the connection
  // Memory of its own placing that the daemon may reach by keys of this request, and the windows that they are of.
  struct Window {
    uint32_t number = 0;  // the transport's
    wire::RegionRecord region;
  };
  std::vector<Window> windows;  // by region; empty: by the connection's keys
  bool places(uint16_t slice) const noexcept { return slice < placed_by.size() && placed_by[slice] != kUnplaced; }

  // put
  struct Sendable {
    uint16_t slice;
    uint32_t item;  // of the slice
  };
  bool granted = false;      // a Want has come
  uint64_t early_bytes = 0;  // sent before it, out of the connection's early credit
  size_t next_sendable = 0;
  std::vector<Sendable> sendable;  // before a Want: all items in order

  void reset(Ticket& of, wire::Opcode code);

  Section& section(uint16_t slice) const noexcept { return ticket->sections[slices[slice].section]; }
  uint32_t items_of(uint16_t slice) const noexcept { return slices[slice].count * section(slice).component_count; }
  // The ticket's number of item `item` of a slice.
  uint32_t item_of(uint16_t slice, uint32_t item) const noexcept {
    const Section& of = section(slice);
    const uint32_t key = slices[slice].first + item / of.component_count;
    return (of.order.empty() ? key : of.order[key]) * of.component_count + item % of.component_count;
  }
  template <typename Visit>  // visit(Section&, item of the ticket)
  void for_items(Visit&& visit) {
    for (uint16_t s = 0; s < slices.size(); ++s) {
      const uint32_t count = items_of(s);
      for (uint32_t i = 0; i < count; ++i) visit(section(s), item_of(s, i));
    }
  }
  // put: null for a block that travels plain.
  const CodedBlock* coded(const Section& of, uint32_t number) const noexcept { return plain ? nullptr : of.coded(number); }
  // Some item of it is not answered in full.
  bool open() noexcept;

  // Appends the request's frame. `handle_of(layout index)` gives the connection's handles.
  void encode(uint32_t deadline_us, const std::vector<uint16_t>& handles, std::vector<std::byte>& out) const;

 private:
  void encode_namespace(wire::FrameWriter& frame) const;
  void encode_life(wire::FrameWriter& frame) const;
  void encode_windows(wire::FrameWriter& frame) const;
  void encode_places(wire::FrameWriter& frame, uint16_t slice) const;
  void encode_section(wire::FrameWriter& frame, uint16_t slice, uint16_t handle) const;
  void encode_offers(wire::FrameWriter& frame, uint16_t slice, uint32_t keys_before) const;
  void encode_choices(wire::FrameWriter& frame, uint16_t slice) const;
  void encode_part_tables(wire::FrameWriter& frame, uint16_t slice) const;
};

// Of the part tables of one put, with their heads.
inline constexpr uint32_t kPartTableBytesMax = 256 * 1024;
static_assert(wire::kPartsMax * sizeof(wire::PartRecord) + 64 < kPartTableBytesMax);
// Of a put's places, for the same reason: what does not fit travels as Chunks.
inline constexpr uint32_t kPutPlacesBytesMax = 232 * 1024;
inline uint32_t part_table_bytes(uint32_t parts) noexcept {
  constexpr uint32_t kHeadBytes = 24;  // of the TLV and of its value
  return kHeadBytes + parts * static_cast<uint32_t>(sizeof(wire::PartRecord));
}

wire::Opcode opcode_of(uint32_t operation) noexcept;

// A cursor of the client's names the shard in its upper 4 bits, where there are several, and holds the shard's own below.
inline constexpr uint32_t kCursorShardShift = 60;
static_assert(wire::kShardsMax <= uint32_t{1} << (64 - kCursorShardShift));
inline uint32_t list_shard(uint64_t cursor, uint32_t shards) noexcept {
  return shards == 1 ? 0 : static_cast<uint32_t>(cursor >> kCursorShardShift);
}
inline uint64_t list_position(uint64_t cursor, uint32_t shards) noexcept {
  return shards == 1 ? cursor : cursor & ((uint64_t{1} << kCursorShardShift) - 1);
}

}  // namespace halfstep::peer
