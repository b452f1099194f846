#include "store/read/reader.h"

#include <utility>

#include "io/gather_run.h"
#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

uint32_t frame_page_of(const Block& block) noexcept {
  return block.location.page - std::min(block.pages_back, block.location.page);
}

}  // namespace

// The extent that will answer this read, pinned for it; null when there is none. Sets the read's status: NotFound, or
// Throttled when the extent is on flash and there is no memory for it. `extent`: what memory has of it (Core::resident).
Extent* BlockReader::resolve(Read& read, Extent* extent) {
  read.status = Code::NotFound;
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
  const Block block = core_.catalog.find(read.key);
  // An expired block may be on flash while its successor is being filled.
  if (!block || extent != nullptr || !core_.names.alive(block.scope)) {
    ++core_.counters.misses_absent;
    return nullptr;
  }
  if (core_.expired(block.expiry_s)) {
    ++core_.counters.misses_expired;
    return nullptr;
  }
  extent = make(read, block);
  if (extent == nullptr) {
    read.status = Code::Throttled;
    return nullptr;
  }
  extent->set_location(block.location);
  extent->block = block;
  extent->set_checksum(block.checksum(read.key));
  extent->entry.scope = block.scope;
  extent->entry.component = read.component.value;
  extent->entry.expiry_s = block.expiry_s;
  extent->entry.created_s = 0;  // not known
  extent->io_class = read.ahead ? io::IoClass::Prefetch : io::IoClass::Demand;
  extent->piece_bytes = read.landed != nullptr ? read.piece_bytes : 0;
  if (!extent->in_parts) core_.memory.list(*extent, !read.ahead);
  core_.memory.pin(*extent);
  fresh_.push_back(extent);
  read.status = {};
  return extent;
}

// For a block from flash, whole or for some of its parts.
Extent* BlockReader::make(Read& read, const Block& block) {
  if (read.parts.count != 0) {
    const wire::GroupShape* const group = core_.names.group(block.scope, read.component);
    if (const PartReader::Plan plan = PartReader::plan(block, group, read.parts)) {
      return parts_.make(read.key, block, *group, plan);
    }
  }
  return core_.memory.make(read.key, block.extent_bytes(), ExtentState::Reading);
}

// What make() takes of memory.
uint64_t BlockReader::held_bytes(const Read& read, const Block& block) const noexcept {
  const PartReader::Plan plan = PartReader::plan(block, core_.names.group(block.scope, read.component), read.parts);
  return SlotPool::held_bytes(plan ? plan.bytes() : block.extent_bytes());
}

Status BlockReader::begin(std::span<Read* const> window, Uses uses) {
  fresh_.clear();
  missing_.clear();
  core_.note_moment();
  const Counters before = core_.counters;
  const bool relief_pending = core_.memory.relief_pending();
  for (const Read* read : window) core_.memory.prefetch_place(read->key);
  for (Read* read : window) {
    read->store_own = core_.memory.find_ahead(read->key);
    if (read->store_own == nullptr) core_.catalog.prefetch(read->key);
  }
  for (Read* read : window) {
    if (read->store_own != nullptr) {
      auto& extent = *static_cast<Extent*>(read->store_own);
      core_.memory.prefetch_use(extent);
      if (core_.wants_index(extent)) core_.catalog.prefetch(read->key);
    } else {
      core_.memory.prefetch_list(read->key);
      missing_.push_back(read);
    }
  }
  // What is in memory first: nothing of a window makes room for the rest of it.
  bool stale = false;  // another read of the same key would meet an extent that is gone
  for (Read* read : window) {
    if (read->store_own == nullptr) continue;
    Extent* const found = stale ? core_.memory.find(read->key) : static_cast<Extent*>(read->store_own);
    Extent* const extent = core_.unless_stale(found);
    stale |= extent != found;
    read->store_own = resolve(*read, extent);
    if (extent != nullptr) core_.memory.prefetch_touch(*extent);
    // Reclaim has moved the block while it was being read: it comes from its new place, like the others.
    if (read->status == Code::Throttled) missing_.push_back(read);
  }
  if (missing_.size() > 1) core_.memory.make_room(bytes_read_together(missing_));
  for (Read* read : missing_) {
    read->store_own = resolve(*read, core_.resident(read->key));
    if (read->status == Code::Throttled) {
      undo(window);
      core_.counters = before;
      return refuse(window, relief_pending);
    }
  }
  // From here on nothing can fail; completions below may come back into this function.
  std::vector<Extent*> started;
  started.swap(fresh_);
  for (Extent* extent : started) {
    extent->attempts = 0;
    extent->reader = this;
    extent->in_parts ? parts_.begin(*extent) : submit(*extent);
  }
  early_.submit();
  started.clear();
  fresh_.swap(started);

  // Keys come from the root of a prefix chain to its leaf; the root is touched last, and no leaf at a later moment than its
  // root (docs/store-rules.md, rule 12).
  const Moment now = core_.moment();
  for (size_t i = window.size(); i-- > 0;) {
    auto* own = static_cast<Extent*>(window[i]->store_own);
    if (own == nullptr || window[i]->ahead) continue;
    core_.staged.used(*own);
    if (uses == Uses::Counted) continue;
    Moment* of_request = window[i]->moment;
    if (of_request != nullptr && !of_request->set) *of_request = now;
    const bool apart = of_request == nullptr || HALFSTEP_MUTANT(WindowsApart);
    // What has left memory's table since is nobody's by this key any more.
    Extent* const known = own->listed ? own : core_.memory.find(own->key);
    core_.touch(own->key, known, apart ? now : *of_request);
  }
  for (Read* read : window) {
    auto* extent = static_cast<Extent*>(read->store_own);
    if (extent == nullptr) {
      read->complete(*read);
    } else if (extent->state == ExtentState::Reading) {
      if (!read->ahead) hurry(*extent);
      read->store_next = extent->waiters;
      extent->waiters = read;
    } else {
      if (!read->ahead && !read->goes_on) ++core_.counters.hits_memory;
      read->resident = extent;
      read->complete(*read);
    }
  }
  return {};
}

// What the blocks take that an engine gathers. Larger ones gain nothing by lying together.
uint64_t BlockReader::bytes_read_together(std::span<Read* const> missing) const noexcept {
  uint64_t bytes = 0;
  for (const Read* read : missing) {
    const Block block = core_.catalog.find(read->key);
    if (block && block.extent_bytes() <= io::GatherRun::kSmallBytesMax) bytes += SlotPool::held_bytes(block.extent_bytes());
  }
  return bytes;
}

// For want of memory: whether waiting helps.
Status BlockReader::refuse(std::span<Read* const> window, bool relief_pending) noexcept {
  uint64_t bytes = 0;
  for (const Read* read : window) {
    const Extent* known = core_.memory.find(read->key);
    if (known != nullptr) {
      bytes += known->slot().held_bytes();
    } else if (const Block block = core_.catalog.find(read->key); block) {
      bytes += held_bytes(*read, block);
    }
  }
  // What is staged leaves room for any one block (staged_blocks.h), not for a window of as many as reads may have.
  const uint64_t staged_bytes = window.size() > 1 ? core_.staged.bytes() : 0;
  if (bytes > core_.memory.read_bytes_max() - staged_bytes) return Code::TooLarge;
  core_.memory.note_refusal(relief_pending);
  return Code::Throttled;
}

void BlockReader::undo(std::span<Read* const> window) noexcept {
  for (Extent* extent : fresh_) {
    if (extent->in_parts) {
      parts_.forget(*extent);
    } else {
      core_.memory.put_off(*extent);
    }
    core_.memory.set_state(*extent, ExtentState::Clean);
  }
  for (Read* read : window) {
    if (read->store_own != nullptr) core_.memory.unpin(*static_cast<Extent*>(read->store_own));
    read->store_own = nullptr;
  }
  fresh_.clear();
}

void BlockReader::submit(Extent& extent) {
  const Block& block = extent.block;
  Segment& segment = core_.catalog.segment(extent.block.location.segment);
  ++segment.reads_in_flight;
  ++in_flight_;
  extent.error = 0;
  if (!block.trailer) cut(extent);
  if (extent.attempts == 0) early_.open(extent, extent.piece_bytes);
  Transfer** last = &extent.pieces;
  static_assert(kTransferBytesMax <= io::GatherRun::kWholeTogetherBytesMax, "such a block is read by one request");
  const bool large = block.extent_bytes() > kTransferBytesMax;
  const io::Request like{.op = io::Op::Read,
                         .io_class = extent.io_class,
                         .alone = extent.attempts != 0,
                         .whole = !large && extent.early == nullptr,
                         .complete = on_piece,
                         .owner = &extent};
  const uint64_t place = core_.places.segment(segment.number) + uint64_t{block.location.page} * kPageBytes;
  TransferCutter cutter(
      core_.slots.arena(), place,
      [&](uint64_t offset, Bytes bytes) {
        Transfer& piece = core_.transfers.take(like, offset, bytes);
        *last = &piece;
        last = &piece.next;
        ++extent.outstanding;
      },
      large ? kLargeBlockTransferBytesMax : kTransferBytesMax);
  const uint64_t step = extent.early != nullptr ? extent.piece_bytes : block.extent_bytes();
  for (uint64_t at = 0; at < block.extent_bytes(); at += step) {
    extent.slot().for_range(at, std::min(step, block.extent_bytes() - at), [&](Bytes piece) { cutter.add(piece); });
    cutter.finish();
  }
  if (extent.early != nullptr) return early_.begin(extent);
  for (Transfer* piece = extent.pieces; piece != nullptr; piece = piece->next) core_.engine.submit(piece->request);
}

// It was to come ahead of this get, and now the get is here.
void BlockReader::hurry(Extent& extent) noexcept {
  if (extent.io_class == io::IoClass::Demand) return;
  extent.io_class = io::IoClass::Demand;
  for (Transfer* piece = extent.pieces; piece != nullptr; piece = piece->next) {
    if (!piece->landed) core_.engine.hurry(piece->request);
  }
}

// A plain block is as long as its extent, and its group says how it is cut.
void BlockReader::cut(Extent& extent) {
  const auto bytes = static_cast<uint32_t>(extent.block.extent_bytes());
  const wire::GroupShape* group = core_.names.group(extent.entry.scope, {extent.entry.component});
  const uint32_t parts = group != nullptr ? group->parts_of(bytes) : 0;
  extent.shape = {parts, bytes, false};
  extent.set_block_bytes(bytes);
  extent.part_table().reset(parts);
  if (parts != 0) {
    cut_parts(*group, bytes, extent.part_table());
  } else {  // an entry that does not fit its layout: one part over all fails the check without reading out of bounds
    extent.error = -EBADMSG;
    extent.part_table().reset(1);
    extent.part_table()[0] = {0, bytes, bytes, 0, 0, 0};
  }
  extent.verifier.begin(extent.shape, &extent.part_table());
}

void BlockReader::on_piece(io::Request& request) {
  auto& extent = *static_cast<Extent*>(request.owner);
  BlockReader& self = *extent.reader;
  if (request.error != 0) extent.error = request.error;
  Transfer::of(request).landed = true;
  while (extent.pieces != nullptr && extent.pieces->landed) {
    Transfer& piece = *extent.pieces;
    extent.pieces = piece.next;
    const bool plain = extent.error == 0 && !extent.block.trailer;
    if (plain && !HALFSTEP_MUTANT(NoVerify)) extent.verifier.feed({piece.request.data, piece.request.bytes});
    self.core_.transfers.give(piece);
  }
  if (extent.early != nullptr) self.early_.look(extent);
  if (--extent.outstanding == 0) self.landed(extent);
}

void BlockReader::on_header(io::Request& request) {
  auto& extent = *static_cast<Extent*>(request.owner);
  BlockReader& self = *extent.reader;
  const int32_t error = request.error;
  self.core_.transfers.give(Transfer::of(request));
  self.early_.header_landed(extent, error);
  if (--extent.outstanding == 0) self.landed(extent);
}

bool BlockReader::verify(Extent& extent) {
  if (extent.error != 0) return false;
  const Block& block = extent.block;
  const uint32_t checksum = block.checksum(extent.key);
  if (!block.trailer) return HALFSTEP_MUTANT(NoVerify) || extent.verifier.checksum() == checksum;
  uint32_t raw_bytes = 0;
  if (!read_tail(extent.slot(), block.extent_bytes(), &extent.shape, &raw_bytes).ok()) return false;
  extent.set_block_bytes(raw_bytes);
  return verify_extent(extent.slot(), extent.shape, nullptr, raw_bytes, checksum, &extent.part_table()).ok();
}

void BlockReader::landed(Extent& extent) {
  --core_.catalog.segment(extent.block.location.segment).reads_in_flight;
  --in_flight_;
  const bool told = early_.close(extent);
  const bool sound = verify(extent);
  if (told) ++(sound ? core_.counters.early_reads : core_.counters.early_reads_failed);
  if (sound) return finish(extent, {});
  if (told) return read_again(extent);
  if (extent.attempts++ == 0) return submit(extent);
  // Its segment must not be reclaimed before the verdict.
  ++core_.catalog.segment(extent.block.location.segment).reads_in_flight;
  ++in_flight_;
  to_check_.push_back(&extent);
  check_next();
}

// Into other memory: parts of this are with those who wait for the rest.
void BlockReader::read_again(Extent& extent) {
  Read* waiter = std::exchange(extent.waiters, nullptr);
  core_.memory.set_state(extent, ExtentState::Clean);
  core_.memory.unlist(extent);
  // Who was told of parts has pinned it once more.
  for (Read* read = waiter; read != nullptr; read = read->store_next) core_.memory.unpin(extent);
  while (waiter != nullptr) {
    Read& read = *std::exchange(waiter, waiter->store_next);
    read.landed = nullptr;
    read_whole(read);
  }
}

// ---- Some parts ------------------------------------------------------------------------------------------------------------

void BlockReader::landed_in_parts(Extent& extent, bool sound) {
  if (sound) {
    ++core_.counters.part_reads;
    return finish(extent, {});
  }
  ++core_.counters.part_reads_failed;
  Read* const read = std::exchange(extent.waiters, nullptr);
  core_.memory.set_state(extent, ExtentState::Clean);
  core_.memory.unpin(extent);  // nobody else has it
  read->parts = {};
  read_whole(*read);
}

// Of what could not be had in parts. It takes the memory that there is: whoever reads may stand in a window with others, or
// hold parts, and if he waited for more with them, others who do the same would wait for him.
// It is no further use: one that counted from now on would make the block younger than those before it in its request.
void BlockReader::read_whole(Read& read) {
  Read* const window[] = {&read};
  if (begin(window, Uses::Counted).ok()) return;
  ++core_.counters.misses_memory;
  read.status = {Code::Throttled, kThrottledMemory};
  read.resident = nullptr;
  read.complete(read);
}

// ---- What fails its check --------------------------------------------------------------------------------------------------

void BlockReader::check_next() {
  if (checking_ || to_check_.empty()) return;
  checking_ = true;
  const Block& block = to_check_.front()->block;
  const uint32_t pages = std::min<uint32_t>(block.pages_back, format::kFrameHeaderPagesMax);
  frame_header_.clear();
  check_ = {};
  check_.op = io::Op::Read;
  check_.offset = core_.places.segment(block.location.segment) + uint64_t{frame_page_of(block)} * kPageBytes;
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
  const Segment& segment = core_.catalog.segment(extent.block.location.segment);
  const Block& block = extent.block;
  bool collision = false;
  const wire::Component component{extent.entry.component};
  EventOf name{extent.key, block.scope, component.value, core_.catalog.block_bytes(block, component), {}};
  format::Entry named;  // as the frame's header says it, if that can be read
  for (uint32_t p = 0; check_.error == 0 && p < check_.bytes / kPageBytes; ++p) {
    format::PageHeader header;
    const PageAddress address{0, core_.places.shard, segment.number, frame_page_of(block) + p, segment.generation};
    if (!open_page(core_.page_secret, frame_header_.page(p), format::PageKind::FrameEntries, address, &header).ok()) continue;
    for (uint32_t i = 0; i < header.entries; ++i) {
      const format::Entry entry = entry_at(frame_header_.page(p), i);
      if (entry.page != block.location.page) continue;
      collision = !(IndexKey{entry.key_low, entry.key_high} == extent.key);
      named = entry;
      const bool whole = entry.engine_key_bytes <= format::kEngineKeyInline;
      name = Core::about(named, ConstBytes(named.engine_key).first(whole ? entry.engine_key_bytes : 0));
    }
  }
  --core_.catalog.segment(extent.block.location.segment).reads_in_flight;
  --in_flight_;
  if (collision) {
    ++core_.counters.misses_collision;
    finish(extent, Code::NotFound);
  } else {
    const int32_t error = extent.error != 0 && extent.error != -EBADMSG ? extent.error : check_.error;
    ++(error != 0 ? core_.counters.misses_io : core_.counters.misses_corrupt);
    if (core_.catalog.live(extent.key, block.location) && (error == 0 || given_up(extent))) {
      core_.evict(name, block, error != 0 ? Eviction::Failed : Eviction::Unreadable);
      core_.bury(extent.key);
    }
    finish(extent, error != 0 ? Status(Code::IoError, error) : Status(Code::Corrupt));
  }
  check_next();
}

// An error of the device is a miss now; the block stays until there is more to say that it is lost.
bool BlockReader::given_up(const Extent& extent) {
  const bool lost = core_.unread.failed(extent.key, extent.block.location, core_.clock.now_us(), core_.reads_answered());
  if (lost) core_.unread.forget(extent.key);
  return lost;
}

void BlockReader::finish(Extent& extent, Status status) {
  if (status.ok() && !core_.unread.empty()) core_.unread.forget(extent.key);
  Read* waiter = extent.waiters;
  extent.waiters = nullptr;
  core_.memory.set_state(extent, ExtentState::Clean);
  // Reclaim may have moved the block while it was being read.
  if (status.ok() && extent.listed && !core_.catalog.still_live(extent.key, extent.location(), extent.departed_seen)) {
    extent.set_location(core_.catalog.find(extent.key).location);
    if (!extent.location().valid()) core_.memory.unlist(extent);
  }
  if (!status.ok()) core_.memory.unlist(extent);
  while (waiter != nullptr) {
    Read* next = waiter->store_next;
    waiter->status = status;
    waiter->resident = status.ok() ? &extent : nullptr;
    if (status.ok()) {
      if (!waiter->ahead && !waiter->goes_on) ++core_.counters.hits_flash;
    } else {
      core_.memory.unpin(extent);  // the last one frees it
    }
    waiter->complete(*waiter);
    waiter = next;
  }
}

}  // namespace halfstep::store
