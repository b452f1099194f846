#include "peer/put.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc.h"

namespace halfstep::peer {
namespace {

// Keeps a Chunk's head well inside kChunkBodyBytesMax, and the vectors of one Chunk few.
constexpr uint32_t kChecksPerChunkMax = 4096;
constexpr uint32_t kPiecesPerChunkMax = 1024;
// Of a Placed, each of which costs the daemon a read.
constexpr uint32_t kPlacesPerPlacedMax = 32;
static_assert(wire::kRunsPerChunkMax * sizeof(wire::Run) + kChecksPerChunkMax * sizeof(uint32_t) + 64 <
              wire::kChunkBodyBytesMax);

// Of an item as it travels.
uint32_t bytes_of(const Request& request, uint16_t slice, uint32_t item) noexcept {
  const Section& section = request.section(slice);
  const uint32_t number = request.item_of(slice, item);
  const CodedBlock* block = request.coded(section, number);
  return block != nullptr ? block->stored_bytes : section.offers[number].block_bytes;
}

}  // namespace

void Sender::open(uint32_t early_bytes, uint32_t chunk_bytes_max) noexcept {
  turns_.clear();
  early_left_ = early_bytes;
  chunk_bytes_max_ = std::min(chunk_bytes_max, wire::kChunkBytesMax);
}

void Sender::add(Request& request) {
  turns_.push_back(&request);
  uint64_t bytes = 0;
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    const uint32_t count = request.items_of(s);
    for (uint32_t i = 0; i < count; ++i) bytes += bytes_of(request, s, i);
  }
  // A large put gains little by going ahead of its Want, and a daemon whose memory is taken would have to drop the bytes and
  // refuse their items instead of letting them wait.
  if (bytes > early_left_) return;
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    const uint32_t count = request.items_of(s);
    for (uint32_t i = 0; i < count; ++i) request.sendable.push_back({s, i});
  }
}

Status Sender::grant(Request& request, ConstBytes body) {
  if (request.opcode != wire::Opcode::Put) return Code::Invalid;
  if (!request.granted) {
    request.granted = true;
    return_early(request);
    request.sendable.clear();
    request.next_sendable = 0;
  }
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  while (reader.next(&tlv)) {
    if (tlv.kind != static_cast<uint16_t>(wire::Tlv::Grant)) {
      if ((tlv.kind & wire::kMustUnderstandTlv) != 0) return Code::Unsupported;
      continue;
    }
    wire::GrantView grant;
    if (Status s = wire::parse_grant(tlv.value, &grant); !s.ok()) return s;
    for (uint32_t r = 0; r < grant.ranges.size(); ++r) {
      const wire::ItemRange range = grant.ranges[r];
      if (range.section >= request.slices.size()) return Code::Invalid;
      if (uint64_t{range.first} + range.count > request.items_of(range.section)) return Code::Invalid;
      for (uint32_t i = range.first; i < range.first + range.count; ++i) {
        Item& item = request.ticket->item(request.section(range.section), request.item_of(range.section, i));
        if (item.has(Item::kWanted)) return Code::Invalid;
        item.flags |= Item::kWanted;
        if (!item.has(Item::kSent)) request.sendable.push_back({range.section, i});
      }
    }
  }
  return reader.status();
}

void Sender::return_early(Request& request) noexcept {
  early_left_ += request.early_bytes;
  request.early_bytes = 0;
}

void Sender::remove(Request& request) noexcept { std::erase(turns_, &request); }

void Sender::send(net::FrameStream& stream, net::Released released) {
  // Each request gets a Chunk in its turn; a whole round without one ends it.
  for (size_t idle = 0; idle < turns_.size() && stream.queued_bytes() < stream.send_low_bytes();) {
    Request* request = turns_.front();
    turns_.pop_front();
    turns_.push_back(request);
    idle = send_chunk(stream, *request, released) ? 0 : idle + 1;
    // A Placed queues next to nothing, but its payload was summed.
    if (placed_ && stream.turn_is_over()) return stream.ask_for_more();
  }
}

bool Sender::send_chunk(net::FrameStream& stream, Request& request, net::Released released) {
  runs_.clear();
  checks_.clear();
  payload_.clear();
  payload_bytes_ = 0;
  uint64_t left = request.granted ? UINT64_MAX : early_left_;
  while (request.next_sendable < request.sendable.size()) {
    const Request::Sendable next = request.sendable[request.next_sendable];
    Item& item = request.ticket->item(request.section(next.slice), request.item_of(next.slice, next.item));
    // One that is answered already (present, refused) gets no more.
    if (item.units_left > 0 && !item.has(Item::kSent)) {
      const bool coded = request.coded(request.section(next.slice), request.item_of(next.slice, next.item)) != nullptr;
      const bool placed = request.places(next.slice) && !coded && !item.has(Item::kChunks);
      if (payload_bytes_ != 0 && placed != placed_) break;
      placed_ = placed;
      if (!take_runs(request, next.slice, next.item, &left)) break;
    }
    ++request.next_sendable;
  }
  if (payload_bytes_ == 0) return false;
  if (!request.granted) {
    HALFSTEP_CHECK(payload_bytes_ <= early_left_, payload_bytes_, early_left_);
    early_left_ -= payload_bytes_;
    request.early_bytes += payload_bytes_;
  }
  head_.clear();
  wire::FrameWriter frame(head_);
  frame.begin(placed_ ? wire::Opcode::Placed : wire::Opcode::Chunk, request.id);
  frame.open_tlv(wire::Tlv::Runs);
  frame.value().put(static_cast<uint32_t>(runs_.size()));
  frame.value().put(static_cast<uint32_t>(checks_.size()));
  for (const wire::Run& run : runs_) frame.value().put(run);
  for (const uint32_t check : checks_) frame.value().put(check);
  frame.close_tlv();
  frame.finish(placed_ ? 0 : payload_bytes_);
  if (placed_) {
    stream.send(head_);
    return true;
  }
  ++request.ticket->payload_references;
  stream.send_chunk(head_, payload_, released, request.ticket, 0);
  return true;
}

// Progress of an item: open_part is the part that goes next, open_bytes how much of it has gone, open_crc the sum of that.
bool Sender::take_runs(Request& request, uint16_t slice, uint32_t wire_item, uint64_t* left) {
  Section& section = request.section(slice);
  const uint32_t number = request.item_of(slice, wire_item);
  Item& item = request.ticket->item(section, number);
  const uint32_t block_bytes = section.offers[number].block_bytes;
  const uint32_t parts = section.shape.parts_of(block_bytes);
  const CodedBlock* block = request.coded(section, number);
  const auto room = [&] { return std::min<uint64_t>(*left, chunk_bytes_max_ - payload_bytes_); };
  while (item.open_part < parts) {
    const uint32_t part = item.open_part;
    const uint32_t part_bytes = block != nullptr ? block->parts[part].stored_bytes : section.shape.bytes_of(part, block_bytes);
    const uint32_t rest = part_bytes - item.open_bytes;
    const bool full = runs_.size() == wire::kRunsPerChunkMax || checks_.size() == kChecksPerChunkMax ||
                      payload_.size() >= kPiecesPerChunkMax || room() == 0;
    if (full) return false;
    auto bytes = static_cast<uint32_t>(std::min<uint64_t>(rest, room()));
    // A part that would fit into a Chunk of its own is not cut for being late in this one.
    if (bytes < rest && payload_bytes_ > 0 && *left >= rest && rest <= chunk_bytes_max_) return false;
    if (placed_) {
      const auto places = [&](uint32_t from, uint32_t count) { return places_of(section, number, part, from, count); };
      if (payload_bytes_ > 0 && payload_.size() + places(item.open_bytes, bytes) > kPlacesPerPlacedMax) return false;
      // All pieces of a part go the same way: sums are made in the order in which they land.
      if (item.open_bytes == 0 && places(0, part_bytes) > kPlacesPerPlacedMax) {
        if (payload_bytes_ > 0) return false;
        item.flags |= Item::kChunks;
        placed_ = false;
      }
    }
    const bool whole = item.open_bytes == 0 && bytes == rest;
    const bool extends = whole && !runs_.empty() && runs_.back().item == wire_item && runs_.back().section == slice &&
                         runs_.back().offset == 0 && runs_.back().check_count == runs_.back().part_count &&
                         runs_.back().part + runs_.back().part_count == part;
    if (block != nullptr) {
      add_payload(block->part(part).subspan(item.open_bytes, bytes), &item.open_crc);
    } else {
      section.target.for_range(number, part, section.shape.offset_of(part), item.open_bytes, bytes,
                               [&](Bytes memory) { add_payload(memory, &item.open_crc); });
    }
    if (extends) {
      ++runs_.back().part_count;
      ++runs_.back().check_count;
      runs_.back().bytes += bytes;
    } else {
      wire::Run run;
      run.section = slice;
      run.flags = block != nullptr ? wire::kRunCoded : 0;
      run.item = wire_item;
      run.part = part;
      run.offset = item.open_bytes;
      run.bytes = bytes;
      run.block_bytes = block_bytes;
      run.check_count = bytes == rest ? 1 : 0;
      runs_.push_back(run);
    }
    payload_bytes_ += bytes;
    *left -= bytes;
    item.open_bytes += bytes;
    if (bytes < rest) return false;
    checks_.push_back(wire::wire_check(item.open_crc, item.name_number, part));
    ++item.open_part;
    item.open_bytes = 0;
    item.open_crc = 0;
  }
  item.flags |= Item::kSent;
  return true;
}

// In how many pieces of memory so much of a part lies.
size_t Sender::places_of(const Section& section, uint32_t number, uint32_t part, uint32_t offset, uint32_t bytes) {
  size_t places = 0;
  section.target.for_range(number, part, section.shape.offset_of(part), offset, bytes, [&](Bytes) { ++places; });
  return places;
}

void Sender::add_payload(ConstBytes memory, uint32_t* crc) {
  *crc = crc32c(memory, *crc);
  if (!payload_.empty() && payload_.back().data() + payload_.back().size() == memory.data()) {
    payload_.back() = ConstBytes(payload_.back().data(), payload_.back().size() + memory.size());
  } else {
    payload_.push_back(memory);
  }
}

}  // namespace halfstep::peer
