#include "store/reader.h"

#include <cassert>

#include "store/mutant.h"

namespace halfstep::store {

// The extent that will answer this read, pinned for it; null when there is none. Sets the read's status: NotFound, or
// Throttled when the extent is on flash and there is no memory for it.
Extent* BlockReader::resolve(Read& read) {
  read.status = Code::NotFound;
  Extent* extent = core_.memory.find(read.key);
  if (extent != nullptr && extent->state != ExtentState::Filling) {
    if (!core_.names.alive(extent->entry.scope)) return nullptr;
    if (core_.expired(extent->entry.expiry_s)) {
      ++core_.counters.misses_expired;
      return nullptr;
    }
    core_.memory.pin(*extent);
    read.status = {};
    return extent;
  }
  const Location location = core_.catalog.find(read.key);
  // An expired block may be on flash while its successor is being filled.
  if (!location.valid() || extent != nullptr) {
    ++core_.counters.misses_absent;
    return nullptr;
  }
  const Block& block = core_.catalog.at(location);
  if (!core_.names.alive(block.scope)) {
    ++core_.counters.misses_absent;
    return nullptr;
  }
  if (core_.expired(block.expiry_s)) {
    ++core_.counters.misses_expired;
    return nullptr;
  }
  extent = core_.memory.make(read.key, block.extent_bytes(), ExtentState::Reading);
  if (extent == nullptr) {
    read.status = Code::Throttled;
    return nullptr;
  }
  extent->location = location;
  extent->shape = block.shape();
  extent->set_block_bytes(block.raw_bytes);
  extent->entry.scope = block.scope;
  extent->entry.component = block.component;
  extent->entry.expiry_s = block.expiry_s;
  core_.memory.list(*extent);
  core_.memory.pin(*extent);
  fresh_.push_back(extent);
  read.status = {};
  return extent;
}

Status BlockReader::begin(std::span<Read* const> window) {
  fresh_.clear();
  const Counters before = core_.counters;
  for (size_t i = 0; i < window.size(); ++i) {
    Extent* extent = resolve(*window[i]);
    window[i]->store_own = extent;
    if (window[i]->status == Code::Throttled) {
      undo(window.first(i));
      core_.counters = before;
      uint64_t bytes = 0;
      for (const Read* read : window) {
        const Extent* known = core_.memory.find(read->key);
        const Location location = core_.catalog.find(read->key);
        if (known != nullptr) {
          bytes += known->slot().held_bytes();
        } else if (location.valid()) {
          bytes += SlotPool::held_bytes(core_.catalog.at(location).extent_bytes());
        }
      }
      if (bytes > core_.memory.read_bytes_max()) return Code::TooLarge;
      core_.memory.note_refusal();
      return Code::Throttled;
    }
  }
  // From here on nothing can fail; completions below may come back into this function.
  std::vector<Extent*> started;
  started.swap(fresh_);
  for (Extent* extent : started) {
    extent->attempts = 0;
    submit(*extent);
  }
  started.clear();
  fresh_.swap(started);

  for (const Read* read : window) {
    if (read->store_own != nullptr) core_.touch(read->key);
  }
  for (Read* read : window) {
    auto* extent = static_cast<Extent*>(read->store_own);
    if (extent == nullptr) {
      read->complete(*read);
    } else if (extent->state == ExtentState::Reading) {
      read->store_next = extent->waiters;
      extent->waiters = read;
    } else {
      ++core_.counters.hits_memory;
      read->resident = extent;
      read->complete(*read);
    }
  }
  return {};
}

void BlockReader::undo(std::span<Read* const> window) noexcept {
  for (Extent* extent : fresh_) {
    core_.memory.unlist(*extent);
    core_.memory.set_state(*extent, ExtentState::Clean);
  }
  for (Read* read : window) {
    if (read->store_own != nullptr) core_.memory.unpin(*static_cast<Extent*>(read->store_own));
    read->store_own = nullptr;
  }
  fresh_.clear();
}

void BlockReader::submit(Extent& extent) {
  const Block& block = core_.catalog.at(extent.location);
  Segment& segment = core_.catalog.segment(extent.location.segment);
  ++segment.reads_in_flight;
  ++in_flight_;
  extent.error = 0;
  if (!extent.shape.trailer) {
    const wire::GroupShape* group = core_.names.group(block.scope, {block.component});
    extent.part_table().resize(extent.shape.parts);
    if (group != nullptr && group->parts_of(block.raw_bytes) == extent.shape.parts) {
      cut_parts(*group, block.raw_bytes, extent.part_table());
    } else {  // an entry that does not fit its layout: one part over all fails the check without reading out of bounds
      extent.error = -EBADMSG;
      extent.part_table().assign(1, {0, extent.shape.stored_bytes, extent.shape.stored_bytes, 0, 0, 0});
    }
    extent.verifier.begin(extent.shape, &extent.part_table());
  }
  Transfer** last = &extent.pieces;
  const uint64_t place = core_.places.segment(segment.number) + uint64_t{block.page} * kPageBytes;
  TransferCutter cutter(core_.slots.arena(), place, [&](uint64_t offset, Bytes bytes) {
    Transfer& piece = core_.transfers.take();
    piece.request.op = io::Op::Read;
    piece.request.offset = offset;
    piece.request.data = bytes.data();
    piece.request.bytes = static_cast<uint32_t>(bytes.size());
    piece.request.owner = &extent;
    piece.request.complete = on_piece;
    *last = &piece;
    last = &piece.next;
    ++extent.outstanding;
  });
  extent.slot().for_range(0, extent.shape.extent_bytes(), [&](Bytes piece) { cutter.add(piece); });
  cutter.finish();
  extent.reader = this;
  for (Transfer* piece = extent.pieces; piece != nullptr; piece = piece->next) core_.engine.submit(piece->request);
}

void BlockReader::on_piece(io::Request& request) {
  auto& extent = *static_cast<Extent*>(request.owner);
  BlockReader& self = *extent.reader;
  if (request.error != 0) extent.error = request.error;
  Transfer::of(request).landed = true;
  while (extent.pieces != nullptr && extent.pieces->landed) {
    Transfer& piece = *extent.pieces;
    extent.pieces = piece.next;
    if (extent.error == 0 && !extent.shape.trailer) extent.verifier.feed({piece.request.data, piece.request.bytes});
    self.core_.transfers.give(piece);
  }
  if (--extent.outstanding == 0) self.landed(extent);
}

bool BlockReader::verify(Extent& extent) {
  if (extent.error != 0) return false;
  if (HALFSTEP_MUTANT(NoVerify) && !extent.shape.trailer) return true;
  const Block& block = core_.catalog.at(extent.location);
  if (!extent.shape.trailer) return extent.verifier.checksum() == block.checksum();
  return verify_extent(extent.slot(), extent.shape, nullptr, block.raw_bytes, block.checksum(), &extent.part_table()).ok();
}

void BlockReader::landed(Extent& extent) {
  --core_.catalog.segment(extent.location.segment).reads_in_flight;
  --in_flight_;
  if (verify(extent)) return finish(extent, {});
  if (extent.attempts++ == 0) return submit(extent);
  // Its segment must not be reclaimed before the verdict.
  ++core_.catalog.segment(extent.location.segment).reads_in_flight;
  ++in_flight_;
  to_check_.push_back(&extent);
  check_next();
}

void BlockReader::check_next() {
  if (checking_ || to_check_.empty()) return;
  checking_ = true;
  const Location location = to_check_.front()->location;
  const Block& block = core_.catalog.at(location);
  const uint32_t pages = std::min<uint32_t>(block.pages_back, format::kFrameHeaderPagesMax);
  frame_header_.clear();
  check_ = {};
  check_.op = io::Op::Read;
  check_.offset = core_.places.segment(location.segment) + uint64_t{block.page - block.pages_back} * kPageBytes;
  check_.data = frame_header_.bytes().data();
  check_.bytes = pages * kPageBytes;
  check_.owner = this;
  check_.complete = [](io::Request& request) { static_cast<BlockReader*>(request.owner)->checked(); };
  core_.engine.submit(check_);
}

void BlockReader::checked() {
  Extent& extent = *to_check_.front();
  to_check_.erase(to_check_.begin());
  checking_ = false;
  const Segment& segment = core_.catalog.segment(extent.location.segment);
  const Block& block = core_.catalog.at(extent.location);
  bool collision = false;
  for (uint32_t p = 0; check_.error == 0 && p < check_.bytes / kPageBytes; ++p) {
    format::PageHeader header;
    const PageAddress address{0, 0, segment.number, block.page - block.pages_back + p, segment.generation};
    if (!open_page(core_.page_secret, frame_header_.page(p), format::PageKind::FrameEntries, address, &header).ok()) continue;
    for (uint32_t i = 0; i < header.entries; ++i) {
      const format::Entry entry = entry_at(frame_header_.page(p), i);
      if (entry.page == block.page) collision = !(IndexKey{entry.key_low, entry.key_high} == block.key);
    }
  }
  --core_.catalog.segment(extent.location.segment).reads_in_flight;
  --in_flight_;
  if (collision) {
    ++core_.counters.misses_collision;
    finish(extent, Code::NotFound);
  } else {
    const bool unreadable = extent.error != 0 && extent.error != -EBADMSG;
    ++(unreadable ? core_.counters.misses_io : core_.counters.misses_corrupt);
    if (block.live) {
      const IndexKey key = block.key;
      core_.evict(extent.location, Eviction::Unreadable);
      core_.bury(key);
    }
    finish(extent, unreadable ? Status(Code::IoError, extent.error) : Status(Code::Corrupt));
  }
  check_next();
}

void BlockReader::finish(Extent& extent, Status status) {
  Read* waiter = extent.waiters;
  extent.waiters = nullptr;
  core_.memory.set_state(extent, ExtentState::Clean);
  // Reclaim may have moved the block while it was being read.
  if (status.ok() && extent.listed && !core_.catalog.at(extent.location).live) {
    extent.location = core_.catalog.find(extent.key);
    if (!extent.location.valid()) core_.memory.unlist(extent);
  }
  if (!status.ok()) core_.memory.unlist(extent);
  while (waiter != nullptr) {
    Read* next = waiter->store_next;
    waiter->status = status;
    waiter->resident = status.ok() ? &extent : nullptr;
    if (status.ok()) {
      ++core_.counters.hits_flash;
    } else {
      core_.memory.unpin(extent);  // the last one frees it
    }
    waiter->complete(*waiter);
    waiter = next;
  }
}

}  // namespace halfstep::store
