#include "peer/get.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/crc.h"
#include "compress/unit.h"

namespace halfstep::peer {

void Lander::drop() noexcept {
  request_ = nullptr;
  device_.drop();
  steps_.clear();
  for (StagedBytes& ended : ended_) {
    if (ended.bytes > spare_.bytes && ended.bytes <= kSpareBytesMax) std::swap(spare_, ended);
  }
  ended_.clear();
}

Status Lander::begin(Request& request, ConstBytes body, uint32_t payload_bytes, uint32_t block_bytes_max,
                     net::Landing* landing) {
  drop();
  if (request.opcode != wire::Opcode::Get) return Code::Invalid;
  if (Status s = wire::parse_chunk(body, payload_bytes, &runs_); !s.ok()) return s;
  request_ = &request;
  block_bytes_max_ = block_bytes_max;
  landing_ = landing;
  pending_ = {};
  step_ = 0;
  staged_used_ = 0;
  uint32_t next_check = 0;
  if (Status s = take_part_tables(body); !s.ok()) {
    drop();
    return s;
  }
  for (uint32_t r = 0; r < runs_.run_count; ++r) {
    if (Status s = plan_run(runs_.run(r), &next_check); !s.ok()) {
      drop();
      return s;
    }
  }
  name_pending();
  end_steps();
  return {};
}

Status Lander::take_part_tables(ConstBytes body) {
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  while (reader.next(&tlv)) {
    if (tlv.kind != static_cast<uint16_t>(wire::Tlv::PartTable)) continue;
    wire::PartTableView table;
    uint32_t stored_bytes = 0;
    uint32_t raw_bytes = 0;
    if (Status s = wire::parse_part_table(tlv.value, &table, &stored_bytes, &raw_bytes); !s.ok()) return s;
    if (Status s = take_part_table(table); !s.ok()) return s;
  }
  return reader.status();
}

// Once for each item, before its first run.
Status Lander::take_part_table(const wire::PartTableView& table) {
  if (table.section >= request_->slices.size() || table.item >= request_->items_of(table.section)) return Code::Invalid;
  Section& section = request_->section(table.section);
  const uint32_t number = request_->item_of(table.section, table.item);
  Item& item = request_->ticket->item(section, number);
  if (item.has(Item::kCoded) || item.block_bytes != 0) return Code::Invalid;
  if (section.blocks.empty()) section.blocks.resize(section.item_count);
  CodedBlock& block = section.blocks[number];
  block = {};
  for (uint32_t p = 0; p < table.records.size(); ++p) {
    const wire::PartRecord record = table.records[p];
    if (record.codec >= 64 || (codecs_ >> record.codec & 1) == 0) return Code::Unsupported;  // not offered to the daemon
    // No codec of ours makes a part larger: whoever wrote it, it would not decode.
    block.undecodable = block.undecodable || record.stored_bytes > record.raw_bytes;
    // And who asked for exact values gets no others, whatever another client has put under this layout.
    if ((compress::kLossyCodecs >> record.codec & 1) != 0) {
      const wire::Component component{section.first_component + number % section.component_count};
      const bool asked = section.lossy != nullptr && section.lossy->allows(record.codec, component, p);
      block.undecodable = block.undecodable || !asked;
    }
    block.parts.push_back(record);
  }
  item.flags |= Item::kCoded;
  return {};
}

bool Lander::table_fits(const Section& section, uint32_t number, uint32_t block_bytes) {
  const std::vector<wire::PartRecord>& parts = section.blocks[number].parts;
  if (parts.size() != section.shape.parts_of(block_bytes)) return false;
  for (uint32_t p = 0; p < parts.size(); ++p) {
    if (parts[p].raw_bytes != section.shape.bytes_of(p, block_bytes)) return false;
  }
  return true;
}

Status Lander::plan_run(const wire::Run& run, uint32_t* next_check) {
  if (run.section >= request_->slices.size() || run.item >= request_->items_of(run.section)) return Code::Invalid;
  Ticket& ticket = *request_->ticket;
  Section& section = request_->section(run.section);
  const uint32_t number = request_->item_of(run.section, run.item);
  Item& item = ticket.item(section, number);
  if ((run.flags & wire::kRunAborted) != 0) {
    // Void, whatever it names: it makes nothing complete, so the daemon has to answer something else than ok.
    item.open_part = UINT32_MAX;
    set_aside(section, number);
    *next_check += run.check_count;
    skip(run.bytes);
    steps_.push_back({&section, number, run.part, run.bytes, 0, End::Aborted, false});
    return {};
  }
  if (item.has(Item::kCoded) != ((run.flags & wire::kRunCoded) != 0)) return Code::Invalid;
  if (item.block_bytes == 0) {
    if (run.block_bytes > block_bytes_max_ || !ticket.item_open(section, number)) return Code::Invalid;
    if (Status s = ticket.announce(section, number, run.block_bytes); !s.ok()) return s;
    if (item.has(Item::kCoded)) {
      if (!table_fits(section, number, run.block_bytes)) return Code::Invalid;
      if (section.blocks[number].undecodable) {
        ++decode_failures_;
        ticket.fail_item(section, number, {wire::Answer::Miss, wire::Reason::Corrupt});
      }
    }
  } else if (run.block_bytes != item.block_bytes) {
    return Code::Invalid;
  }
  const uint32_t parts = section.shape.parts_of(item.block_bytes);
  if (uint64_t{run.part} + run.part_count > parts) return Code::Invalid;
  const bool piece = run.part_count == 1 && run.bytes != section.stored_bytes_of(number, run.part, item.block_bytes);
  return piece ? plan_piece(section, number, run, next_check) : plan_parts(section, number, run, next_check);
}

Status Lander::plan_parts(Section& section, uint32_t number, const wire::Run& run, uint32_t* next_check) {
  Ticket& ticket = *request_->ticket;
  const Item& item = ticket.item(section, number);
  // A part in pieces is not left half done for another one of its block.
  if (run.offset != 0 || run.check_count != run.part_count || item.open_part != UINT32_MAX) return Code::Invalid;
  const bool wanted = item.has(Item::kFits) && item.units_left > 0;
  uint64_t total = 0;
  for (uint32_t p = run.part; p < run.part + run.part_count; ++p) {
    const uint32_t bytes = section.stored_bytes_of(number, p, item.block_bytes);
    total += bytes;
    if (total > run.bytes || !ticket.mark_seen(section, number, p)) return Code::Invalid;
    steps_.push_back({&section, number, p, bytes, runs_.check((*next_check)++), End::Part, wanted});
    place(0);
  }
  return total == run.bytes ? Status() : Status(Code::Invalid);
}

Status Lander::plan_piece(Section& section, uint32_t number, const wire::Run& run, uint32_t* next_check) {
  Ticket& ticket = *request_->ticket;
  Item& item = ticket.item(section, number);
  const uint32_t part_bytes = section.stored_bytes_of(number, run.part, item.block_bytes);
  if (run.bytes == 0 || uint64_t{run.offset} + run.bytes > part_bytes) return Code::Invalid;
  if (run.offset == 0) {
    if (item.open_part != UINT32_MAX || section.selection.ordinal(run.part) == Selection::kNone) return Code::Invalid;
    item.open_part = run.part;
    item.open_bytes = 0;
    item.flags &= static_cast<uint8_t>(~Item::kPlaced);
    if (placing_ && section.device >= 0) item.flags |= Item::kPlaced;
  } else if (placing_ && section.device >= 0 && !item.has(Item::kPlaced)) {
    return Code::Invalid;  // its copies are under way: what is written there now may be before them
  } else if (item.open_part != run.part || item.open_bytes != run.offset) {
    return Code::Invalid;
  }
  item.open_bytes += run.bytes;
  const bool ends = item.open_bytes == part_bytes;
  if (run.check_count != (ends ? 1U : 0U)) return Code::Invalid;
  if (ends) {
    if (!ticket.mark_seen(section, number, run.part)) return Code::Invalid;
    item.open_part = UINT32_MAX;
  }
  const bool wanted = item.has(Item::kFits) && item.units_left > 0;
  const uint32_t check = ends ? runs_.check((*next_check)++) : 0;
  steps_.push_back({&section, number, run.part, run.bytes, check, ends ? End::Part : End::Piece, wanted});
  place(run.offset);
  if (ends || !steps_.back().lands) set_aside(section, number);
  return {};
}

void Lander::place(uint32_t offset) {
  Step& step = steps_.back();
  if (!step.lands) return skip(step.left);
  Section& section = *step.section;
  Item& item = request_->ticket->item(section, step.item);
  const bool plain = section.coded(step.item) == nullptr || section.blocks[step.item].parts[step.part].codec == compress::kRaw;
  if (plain && section.device >= 0 && placing_) {
    step.unchecked = step.placed = true;
    gpu_placed_bytes_ += step.left;
    return skip(step.left);
  }
  if (plain && section.device >= 0) {
    step.unchecked = offset > 0 && item.has(Item::kPlaced);  // its sum is of more than has come here
    if (item.units_left > 0 && stage_for_device(step, offset)) return;
  } else if (plain) {
    const uint64_t at = section.selection.offset_of(step.part, item.block_bytes, section.shape);
    section.target.for_range(step.item, step.part, at, offset, step.left, [this](Bytes memory) { name(memory); });
    return;
  }
  // It may have failed by an earlier part of its run, for which there was no memory.
  if (!plain && item.units_left > 0 && stage(step, section.blocks[step.item], offset)) return;
  step.lands = false;
  skip(step.left);
  request_->ticket->fail_item(section, step.item, {wire::Answer::Miss, wire::Reason::Corrupt});
}

bool Lander::stage_for_device(Step& step, uint32_t offset) {
  step.offset = offset;
  step.bytes = step.left;
  step.landed = device_.room(*request_->ticket, step.left);
  try {
    if (step.landed == nullptr) step.landed = staging(step.left);
  } catch (const std::bad_alloc&) {
    return false;
  }
  name(Bytes(step.landed, step.left));
  return true;
}

// Of this Chunk's own: at most the payload, which is at most kChunkBytesMax.
std::byte* Lander::staging(uint32_t bytes) {
  if (staged_.empty()) staged_.resize(wire::kChunkBytesMax);
  std::byte* const at = staged_.data() + staged_used_;
  staged_used_ += bytes;
  return at;
}

// A part that comes whole lies with others of its Chunk; one that comes in pieces, longer than a Chunk, in memory of its own.
bool Lander::stage(Step& step, CodedBlock& block, uint32_t offset) {
  const uint32_t whole = block.parts[step.part].stored_bytes;
  try {
    if (step.left == whole) {
      step.staged = staging(whole);
    } else {
      if (offset == 0) {
        HALFSTEP_CHECK(block.staged.bytes == 0, block.staged.bytes);
        if (spare_.bytes >= whole) {
          block.staged = std::exchange(spare_, {});
        } else {
          block.staged = {std::make_unique_for_overwrite<std::byte[]>(whole), whole};
        }
      }
      step.staged = block.staged.memory.get();
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  name(Bytes(step.staged + offset, step.left));
  return true;
}

void Lander::set_aside(Section& section, uint32_t number) {
  if (number >= section.blocks.size() || section.blocks[number].staged.bytes == 0) return;
  ended_.push_back(std::exchange(section.blocks[number].staged, {}));
}

void Lander::name(Bytes memory) {
  if (!pending_.empty() && pending_.data() + pending_.size() == memory.data()) {
    pending_ = Bytes(pending_.data(), pending_.size() + memory.size());
  } else {
    name_pending();
    pending_ = memory;
  }
}

void Lander::skip(uint32_t bytes) {
  name_pending();
  landing_->to_scratch(bytes);
}

void Lander::name_pending() {
  landing_->to(pending_);
  pending_ = {};
}

void Lander::landed(ConstBytes piece, size_t skipped) {
  size_t bytes = piece.empty() ? skipped : piece.size();
  while (bytes > 0 && step_ < steps_.size()) {
    Step& step = steps_[step_];
    const auto take = static_cast<uint32_t>(std::min<size_t>(bytes, step.left));
    if (!piece.empty()) {
      Item& item = request_->ticket->item(*step.section, step.item);
      item.open_crc = crc32c(piece.first(take), item.open_crc);
      piece = piece.subspan(take);
    }
    step.left -= take;
    bytes -= take;
    end_steps();
  }
}

// As if its bytes came now: each is looked at once, in the memory where it stays.
Status Lander::take_placed(Request& request, ConstBytes body, uint32_t block_bytes_max, bool settled) {
  if (request.opcode != wire::Opcode::Get) return Code::Invalid;
  uint32_t payload_bytes = 0;
  if (Status s = wire::parse_placed(body, &runs_, &payload_bytes); !s.ok()) return s;
  for (uint32_t r = 0; r < runs_.run_count; ++r) {
    const wire::Run run = runs_.run(r);
    const bool placed = run.section < request.slices.size() && request.places(run.section);
    if (!placed || (run.flags & (wire::kRunCoded | wire::kRunAborted)) != 0) return Code::Invalid;
  }
  placed_.clear();
  placing_ = true;
  settled_ = settled;
  const Status begun = begin(request, body, payload_bytes, block_bytes_max, &placed_);
  placing_ = false;
  if (!begun.ok()) return begun;
  for (const iovec& piece : placed_.pieces()) {
    const auto* at = static_cast<const std::byte*>(piece.iov_base);
    if (at == nullptr) {
      landed({}, piece.iov_len);
    } else {
      landed({at, piece.iov_len}, 0);
      placed_bytes_ += piece.iov_len;
    }
  }
  drop();
  return {};
}

void Lander::end_steps() {
  for (; step_ < steps_.size() && steps_[step_].left == 0; ++step_) {
    const Step& step = steps_[step_];
    if (step.placed && !settled_) {
      request_->ticket->fail_part(*step.section, step.item, step.part, {wire::Answer::Unavailable, wire::Reason::Copy});
    }
    if (step.end == End::Piece) {  // its sum goes on in a later Chunk
      if (step.landed != nullptr)
        device_.add({step.section, step.item, step.part, step.offset, step.bytes, false, step.landed});
      continue;
    }
    Ticket& ticket = *request_->ticket;
    Item& item = ticket.item(*step.section, step.item);
    const uint32_t crc = std::exchange(item.open_crc, 0U);
    if (step.end == End::Aborted) continue;
    end_part(step, crc);
  }
}

void Lander::end_part(const Step& step, uint32_t crc) {
  Ticket& ticket = *request_->ticket;
  Item& item = ticket.item(*step.section, step.item);
  if (step.unchecked) ++item.unchecked;
  if (step.placed) return ticket.part_arrived(*step.section, step.item, step.part, true);
  bool good = !step.lands || step.unchecked || wire::wire_check(crc, item.name_number, step.part) == step.check;
  if (!good) ++checksum_failures_;
  if (good && step.lands && step.landed != nullptr && item.units_left > 0) {
    ticket.part_landed(*step.section, step.item, step.part);
    return device_.add({step.section, step.item, step.part, step.offset, step.bytes, true, step.landed});
  }
  // Of an item that failed meanwhile, by another of its parts, nothing is wanted any more.
  if (good && step.lands && step.staged != nullptr && item.units_left > 0) {
    const wire::PartRecord& record = step.section->blocks[step.item].parts[step.part];
    if (step.section->device >= 0) {
      ticket.part_landed(*step.section, step.item, step.part);
      return device_.add({step.section, step.item, step.part, 0, record.raw_bytes, true, step.staged, &record});
    }
    const uint64_t at = step.section->selection.offset_of(step.part, item.block_bytes, step.section->shape);
    const ConstBytes stored(step.staged, record.stored_bytes);
    const Status decoded = decoder_.decode(record, stored, *step.section, step.item, step.part, at);
    good = decoded.ok();
    item.error_bound = std::max(item.error_bound, PartDecoder::error_bound_of(record, stored));
    if (decoded.code() == Code::Corrupt) ++decode_failures_;
  }
  ticket.part_arrived(*step.section, step.item, step.part, good);
}

}  // namespace halfstep::peer
