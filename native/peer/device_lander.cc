#include "peer/device_lander.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace halfstep::peer {

bool DeviceLander::begin_slot(Ticket& ticket) {
  if (filling_ != nullptr) return true;
  std::byte* const slot = work_->take_slot();
  if (slot == nullptr) return false;
  filling_ = work_->make_copy();
  filling_->ticket = &ticket;
  filling_->slot = slot;
  used_ = 0;
  return true;
}

void DeviceLander::submit() {
  if (filling_ == nullptr) return;
  if (filling_->ranges.empty()) {
    work_->give_back_slot(filling_->slot);
    filling_ = nullptr;
    return;
  }
  work_->copy(std::move(filling_));
}

std::byte* DeviceLander::room(Ticket& ticket, uint32_t bytes) {
  // Whoever waits for one comes first, and a Chunk is not cut.
  refused_ = refused_ || !begin_slot(ticket) || used_ + bytes > gpu::Staging::kSlotBytes;
  if (refused_) return nullptr;
  std::byte* const at = filling_->slot + used_;
  used_ += bytes;
  return at;
}

void DeviceLander::add(const Piece& piece) {
  const bool in_slot =
      filling_ != nullptr && piece.at >= filling_->slot && piece.at < filling_->slot + gpu::Staging::kSlotBytes;
  if (in_slot) return append(piece, piece.at, piece.offset, piece.bytes, piece.ends);
  waiting_.push_back(piece);
}

void DeviceLander::append(const Piece& piece, const std::byte* at, uint32_t offset, uint32_t bytes, bool ends) {
  Section& section = *piece.section;
  const Item& item = filling_->ticket->item(section, piece.item);
  const uint64_t part_at = section.selection.offset_of(piece.part, item.block_bytes, section.shape);
  auto* from = const_cast<std::byte*>(at);
  section.target.for_range(piece.item, piece.part, part_at, offset, bytes, [&](Bytes to) {
    filling_->ranges.push_back({from, reinterpret_cast<gpu::DevicePointer>(to.data()), to.size()});
    from += to.size();
  });
  filling_->entries.push_back({&section, piece.item, piece.part, ends});
}

bool DeviceLander::finish(Ticket& ticket) {
  refused_ = false;
  for (; next_ < waiting_.size(); ++next_) {
    const Piece& piece = waiting_[next_];
    // Of an item that failed meanwhile, by another of its parts, nothing is wanted any more.
    const bool wanted = ticket.item(*piece.section, piece.item).units_left > 0;
    if (!wanted) {
      if (piece.ends) ticket.part_copied(*piece.section, piece.item, piece.part);
    } else if (piece.coded != nullptr ? !decode(ticket, piece) : !move(ticket, piece, {piece.at, piece.bytes})) {
      submit();
      return false;
    }
    moved_ = 0;
    decoded_ = false;
  }
  submit();
  waiting_.clear();
  next_ = 0;
  return true;
}

// Into slots, as far as there are some.
bool DeviceLander::move(Ticket& ticket, const Piece& piece, ConstBytes from) {
  while (moved_ < from.size()) {
    if (filling_ != nullptr && used_ == gpu::Staging::kSlotBytes) submit();
    if (!begin_slot(ticket)) return false;
    const auto step = static_cast<uint32_t>(std::min(from.size() - moved_, gpu::Staging::kSlotBytes - used_));
    std::byte* const to = filling_->slot + used_;
    std::memcpy(to, from.data() + moved_, step);
    append(piece, to, piece.offset + moved_, step, piece.ends && moved_ + step == from.size());
    used_ += step;
    moved_ += step;
  }
  return true;
}

bool DeviceLander::decode(Ticket& ticket, const Piece& piece) {
  const uint32_t raw_bytes = piece.coded->raw_bytes;
  if (!decoded_) {
    const ConstBytes stored(piece.at, piece.coded->stored_bytes);
    const bool in_slot = raw_bytes <= gpu::Staging::kSlotBytes;
    if (in_slot && filling_ != nullptr && used_ + raw_bytes > gpu::Staging::kSlotBytes) submit();
    if (in_slot && !begin_slot(ticket)) return false;
    Status status = Code::NoSpace;
    try {
      if (!in_slot) raw_.resize(std::max<size_t>(raw_.size(), raw_bytes));
      status = decoder_.decode(*piece.coded, stored,
                               in_slot ? Bytes(filling_->slot + used_, raw_bytes) : Bytes(raw_).first(raw_bytes));
    } catch (const std::bad_alloc&) {
    }
    if (!status.ok()) {
      if (status.code() == Code::Corrupt) ++decode_failures_;
      ticket.fail_part(*piece.section, piece.item, piece.part, {wire::Answer::Miss, wire::Reason::Corrupt});
      ticket.part_copied(*piece.section, piece.item, piece.part);
      return true;
    }
    Item& item = ticket.item(*piece.section, piece.item);
    item.error_bound = std::max(item.error_bound, PartDecoder::error_bound_of(*piece.coded, stored));
    if (in_slot) {
      append(piece, filling_->slot + used_, 0, raw_bytes, true);
      used_ += raw_bytes;
      return true;
    }
    decoded_ = true;
  }
  return move(ticket, piece, Bytes(raw_).first(raw_bytes));
}

void DeviceLander::drop() noexcept {
  if (filling_ != nullptr) {
    filling_->entries.clear();
    filling_->ranges.clear();
    submit();
  }
  waiting_.clear();
  next_ = 0;
  moved_ = 0;
  decoded_ = refused_ = false;
}

}  // namespace halfstep::peer
