#include "peer/get.h"

#include <algorithm>
#include <utility>

#include "base/crc.h"

namespace halfstep::peer {

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
  uint32_t next_check = 0;
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

Status Lander::plan_run(const wire::Run& run, uint32_t* next_check) {
  if (run.section >= request_->slices.size() || run.item >= request_->items_of(run.section)) return Code::Invalid;
  if ((run.flags & ~wire::kRunAborted) != 0) return Code::Unsupported;  // no codec but raw was accepted
  Ticket& ticket = *request_->ticket;
  Section& section = request_->section(run.section);
  const uint32_t number = request_->item_of(run.section, run.item);
  Item& item = ticket.item(section, number);
  if ((run.flags & wire::kRunAborted) != 0) {
    // Void, whatever it names: it makes nothing complete, so the daemon has to answer something else than ok.
    item.open_part = UINT32_MAX;
    *next_check += run.check_count;
    skip(run.bytes);
    steps_.push_back({&section, number, run.part, run.bytes, 0, End::Aborted, false});
    return {};
  }
  if (item.block_bytes == 0) {
    if (run.block_bytes > block_bytes_max_ || !ticket.item_open(section, number)) return Code::Invalid;
    if (Status s = ticket.announce(section, number, run.block_bytes); !s.ok()) return s;
  } else if (run.block_bytes != item.block_bytes) {
    return Code::Invalid;
  }
  const uint32_t parts = section.shape.parts_of(item.block_bytes);
  if (uint64_t{run.part} + run.part_count > parts) return Code::Invalid;
  const bool piece = run.part_count == 1 && run.bytes != section.shape.bytes_of(run.part, item.block_bytes);
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
    const uint32_t bytes = section.shape.bytes_of(p, item.block_bytes);
    total += bytes;
    if (total > run.bytes || !ticket.mark_seen(section, number, p)) return Code::Invalid;
    steps_.push_back({&section, number, p, bytes, runs_.check((*next_check)++), End::Part, wanted});
    if (wanted) {
      place(section, number, p, 0, bytes);
    } else {
      skip(bytes);
    }
  }
  return total == run.bytes ? Status() : Status(Code::Invalid);
}

Status Lander::plan_piece(Section& section, uint32_t number, const wire::Run& run, uint32_t* next_check) {
  Ticket& ticket = *request_->ticket;
  Item& item = ticket.item(section, number);
  const uint32_t part_bytes = section.shape.bytes_of(run.part, item.block_bytes);
  if (run.bytes == 0 || uint64_t{run.offset} + run.bytes > part_bytes) return Code::Invalid;
  if (run.offset == 0) {
    if (item.open_part != UINT32_MAX || section.selection.ordinal(run.part) == Selection::kNone) return Code::Invalid;
    item.open_part = run.part;
    item.open_bytes = 0;
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
  if (wanted) {
    place(section, number, run.part, run.offset, run.bytes);
  } else {
    skip(run.bytes);
  }
  return {};
}

void Lander::place(const Section& section, uint32_t number, uint32_t part, uint32_t offset, uint32_t bytes) {
  const uint64_t at = section.selection.offset_of(part, request_->ticket->item(section, number).block_bytes, section.shape);
  section.target.for_range(number, part, at, offset, bytes, [this](Bytes memory) {
    if (!pending_.empty() && pending_.data() + pending_.size() == memory.data()) {
      pending_ = Bytes(pending_.data(), pending_.size() + memory.size());
    } else {
      name_pending();
      pending_ = memory;
    }
  });
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

void Lander::end_steps() {
  for (; step_ < steps_.size() && steps_[step_].left == 0; ++step_) {
    const Step& step = steps_[step_];
    if (step.end == End::Piece) continue;  // its sum goes on in a later Chunk
    Ticket& ticket = *request_->ticket;
    Item& item = ticket.item(*step.section, step.item);
    const uint32_t crc = std::exchange(item.open_crc, 0U);
    if (step.end == End::Aborted) continue;
    const bool verified = !step.lands || wire::wire_check(crc, item.name_number, step.part) == step.check;
    if (!verified) ++checksum_failures_;
    ticket.part_arrived(*step.section, step.item, step.part, verified);
  }
}

}  // namespace halfstep::peer
