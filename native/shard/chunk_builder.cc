#include "shard/chunk_builder.h"

#include <algorithm>

#include "base/check.h"
#include "net/rdma_pipe.h"
#include "shard/client.h"
#include "shard/get_item.h"
#include "shard/placement.h"
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

// False: what is in it so far travels another way, or a Placed has no more writes. Coded parts land in no place of their own.
bool ChunkBuilder::place_part(const GetItem& item, uint32_t part, uint32_t bytes) {
  part_to_.clear();
  // Whose client sums what comes to it goes on with that.
  const bool begun = item.part_offset != 0 && item.part_in_chunks;
  const bool may =
      places_ != nullptr && places_->placed(item.section) && !item.coded && !begun &&
      places_->find(item.section, item.index, part, item.place_at, item.part_offset, bytes, net::kPlaceWritesMax, part_to_) &&
      !part_to_.empty();
  if (runs_.empty()) placed_ = may;
  if (placed_ != may) return false;
  if (!may) return true;
  const net::RemoteRun& first = part_to_.front();
  const bool touches =
      !runs_to_.empty() && runs_to_.back().key == first.key && runs_to_.back().address + runs_to_.back().bytes == first.address;
  if (runs_to_.size() + part_to_.size() - (touches ? 1 : 0) > net::kPlaceWritesMax) return false;
  if (touches) runs_to_.back().bytes += first.bytes;
  runs_to_.insert(runs_to_.end(), part_to_.begin() + (touches ? 1 : 0), part_to_.end());
  return true;
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
  if (!place_part(item, part, step)) return false;
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
  sent.items.assign(items_.begin(), items_.end());
  for (GetItem* item : items_) {
    item->in_chunk = false;
    ++item->references;
  }
  const bool placed = placed_ && client.place(payload_, runs_to_, released, &sent, tag);
  for (GetItem* item : items_) item->part_in_chunks = !placed;
  std::vector<std::byte>& buffer = host.frame_buffer();
  buffer.clear();
  wire::FrameWriter frame(buffer);
  frame.begin(placed ? wire::Opcode::Placed : wire::Opcode::Chunk, request_id);
  for (const GetItem* item : tables_) write_table(frame, *item);
  frame.open_tlv(wire::Tlv::Runs);
  frame.value().put(static_cast<uint32_t>(runs_.size()));
  frame.value().put(static_cast<uint32_t>(checks_.size()));
  frame.value().put_all(std::span<const wire::Run>(runs_));
  frame.value().put_all(std::span<const uint32_t>(checks_));
  frame.close_tlv();
  frame.finish(placed ? 0 : payload_bytes_);

  host.counts().get_payload_bytes += payload_bytes_;
  host.moved(payload_bytes_);
  if (placed) {
    client.send_chunk(buffer, {}, nullptr, nullptr, 0);
  } else {
    client.send_chunk(buffer, payload_, released, &sent, tag);
  }
  runs_.clear();
  checks_.clear();
  payload_.clear();
  items_.clear();
  tables_.clear();
  runs_to_.clear();
  payload_bytes_ = 0;
}

}  // namespace halfstep::shard
