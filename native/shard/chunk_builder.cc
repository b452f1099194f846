#include "shard/chunk_builder.h"

#include <algorithm>

#include "base/check.h"
#include "shard/client.h"
#include "shard/get_item.h"
#include "shard/request_host.h"

namespace halfstep::shard {
namespace {

constexpr size_t kTlvHeadBytes = 8;
constexpr size_t kRunsHeadBytes = 2 * sizeof(uint32_t);
constexpr size_t kTableHeadBytes = 16;
constexpr size_t kBodyBytesSpare = 64;  // paddings

size_t table_bytes(const GetItem& item) noexcept {
  return kTlvHeadBytes + kTableHeadBytes + item.resident().parts().size() * sizeof(wire::PartRecord);
}

void write_table(wire::FrameWriter& frame, const GetItem& item) {
  frame.open_tlv(wire::Tlv::PartTable);
  Writer& out = frame.value();
  const auto parts = item.resident().parts();
  out.put(static_cast<uint16_t>(item.section));
  out.put(uint16_t{0});
  out.put(item.index);
  out.put(static_cast<uint32_t>(parts.size()));
  out.put(uint32_t{0});
  for (const store::PartInfo& part : parts) {
    out.put(wire::PartRecord{
        .codec = part.codec, .stored_bytes = part.stored_bytes, .raw_bytes = part.raw_bytes, .raw_crc = part.raw_crc});
  }
  frame.close_tlv();
}

}  // namespace

bool ChunkBuilder::extends_last(const GetItem& item, uint32_t part) const noexcept {
  if (runs_.empty()) return false;
  const wire::Run& last = runs_.back();
  const bool whole = last.check_count == last.part_count && last.offset == 0;
  return whole && last.section == item.section && last.item == item.index && last.part + last.part_count == part;
}

bool ChunkBuilder::add(GetItem& item, uint32_t part) {
  const store::Resident& resident = item.resident();
  const store::PartInfo& info = resident.parts()[part];
  HALFSTEP_CHECK(info.is_there(), part, info.stored_bytes, info.offset);
  const uint32_t left = info.stored_bytes - item.part_offset;
  const uint32_t room = wire::kChunkBytesMax - payload_bytes_;
  if (left > room && payload_bytes_ != 0) return false;
  const uint32_t step = std::min(left, room);
  const bool ends = step == left;
  const bool extends = item.part_offset == 0 && ends && extends_last(item, part);
  const bool first_of_item = !item.in_chunk;
  const bool table = first_of_item && item.coded && !item.table_sent;

  if (runs_.empty()) body_bytes_ = kTlvHeadBytes + kRunsHeadBytes + kBodyBytesSpare;
  const size_t grows = (extends ? 0 : sizeof(wire::Run)) + (ends ? sizeof(uint32_t) : 0) + (table ? table_bytes(item) : 0);
  if (!extends && runs_.size() == wire::kRunsPerChunkMax) return false;
  if (!runs_.empty() && body_bytes_ + grows > wire::kChunkBodyBytesMax) return false;
  body_bytes_ += grows;

  if (first_of_item) {
    item.in_chunk = true;
    items_.push_back(&item);
  }
  if (table) {
    item.table_sent = true;
    tables_.push_back(&item);
  }
  if (extends) {
    ++runs_.back().part_count;
    runs_.back().bytes += step;
  } else {
    runs_.push_back({.section = static_cast<uint16_t>(item.section),
                     .flags = item.coded ? wire::kRunCoded : uint16_t{0},
                     .item = item.index,
                     .part = part,
                     .part_count = 1,
                     .offset = item.part_offset,
                     .bytes = step,
                     .block_bytes = resident.block_bytes(),
                     .check_count = 0});
  }
  if (ends) {
    ++runs_.back().check_count;
    checks_.push_back(wire::wire_check(info.stored_crc, item.name_number, part));
  }
  resident.slot().for_range(uint64_t{info.offset} + item.part_offset, step, [this](Bytes piece) {
    if (!payload_.empty() && payload_.back().data() + payload_.back().size() == piece.data()) {
      payload_.back() = {payload_.back().data(), payload_.back().size() + piece.size()};
    } else {
      payload_.push_back(piece);
    }
  });
  payload_bytes_ += step;
  item.part_offset = ends ? 0 : item.part_offset + step;
  return true;
}

void ChunkBuilder::send(Client& client, uint64_t request_id, SentChunk& sent, net::Released released, uint64_t tag) {
  HALFSTEP_DCHECK(!empty());
  RequestHost& host = client.host();
  std::vector<std::byte>& buffer = host.frame_buffer();
  buffer.clear();
  wire::FrameWriter frame(buffer);
  frame.begin(wire::Opcode::Chunk, request_id);
  for (const GetItem* item : tables_) write_table(frame, *item);
  frame.open_tlv(wire::Tlv::Runs);
  frame.value().put(static_cast<uint32_t>(runs_.size()));
  frame.value().put(static_cast<uint32_t>(checks_.size()));
  frame.value().put_all(std::span<const wire::Run>(runs_));
  frame.value().put_all(std::span<const uint32_t>(checks_));
  frame.close_tlv();
  frame.finish(payload_bytes_);

  sent.items.assign(items_.begin(), items_.end());
  for (GetItem* item : items_) {
    item->in_chunk = false;
    ++item->references;
  }
  host.counts().get_payload_bytes += payload_bytes_;
  host.moved(payload_bytes_);
  client.send_chunk(buffer, payload_, released, &sent, tag);
  runs_.clear();
  checks_.clear();
  payload_.clear();
  items_.clear();
  tables_.clear();
  payload_bytes_ = 0;
}

}  // namespace halfstep::shard
