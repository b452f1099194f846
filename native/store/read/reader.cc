#include "store/read/reader.h"

#include <utility>

#include "io/gather_run.h"
#include "store/format/mutant.h"
#include "store/format/options.h"
#include "store/memory/staleness.h"

namespace halfstep::store {
namespace {

uint32_t frame_page_of(const Block& block) noexcept {
  return block.location.page - std::min(block.pages_back, block.location.page);
}

}  // namespace

// The extent that will answer this read, pinned for it; null when there is none. Sets the read's status: NotFound, or
// Throttled when the extent is on flash and there is no memory for it. `extent`: what memory has of it (staleness.h).
Extent* BlockReader::resolve(Read& read, Extent* extent) {
  read.status = Code::NotFound;
  if (extent != nullptr && extent->state != ExtentState::Filling) {
    if (!names_.alive(extent->entry.scope)) return nullptr;
    if (store_time_.expired(extent->entry.expiry_s)) {
      ++counters_.misses_expired;
      return nullptr;
    }
    memory_.pin(*extent);
    read.status = {};
    return extent;
  }
  const Block block = catalog_.find(read.key);
  // An expired block may be on flash while its successor is being filled.
  if (!block || extent != nullptr || !names_.alive(block.scope)) {
    ++counters_.misses_absent;
    return nullptr;
  }
  if (store_time_.expired(block.expiry_s)) {
    ++counters_.misses_expired;
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
  if (!extent->as_parts.reads) memory_.list(*extent, !read.ahead);
  memory_.pin(*extent);
  fresh_.push_back(extent);
  read.status = {};
  return extent;
}

// For a block from flash, whole or for some of its parts.
Extent* BlockReader::make(Read& read, const Block& block) {
  if (read.parts.count != 0) {
    if (const PartReader::Plan plan = parts_.plan(read.key, block, read.component, read.parts)) {
      return parts_.make(read.key, block, *names_.group(block.scope, read.component), plan);
    }
  }
  return memory_.make(read.key, block.extent_bytes(), ExtentState::Reading);
}

// What make() takes of memory.
uint64_t BlockReader::held_bytes(const Read& read, const Block& block) const noexcept {
  const PartReader::Plan plan = parts_.plan(read.key, block, read.component, read.parts);
  return SlotPool::held_bytes(plan ? plan.bytes() : block.extent_bytes());
}

Status BlockReader::begin(std::span<Read* const> window, Uses uses) {
  fresh_.clear();
  missing_.clear();
  uses_.note_moment();
  const Counters before = counters_;
  const bool relief_pending = memory_.relief_pending();
  for (const Read* read : window) memory_.prefetch_place(read->key);
  for (Read* read : window) {
    read->store_own = memory_.find_ahead(read->key);
    if (read->store_own == nullptr) catalog_.prefetch(read->key);
  }
  for (Read* read : window) {
    if (read->store_own != nullptr) {
      auto& extent = *static_cast<Extent*>(read->store_own);
      memory_.prefetch_use(extent);
      if (wants_index(catalog_, extent)) catalog_.prefetch(read->key);
    } else {
      memory_.prefetch_list(read->key);
      missing_.push_back(read);
    }
  }
  // What is in memory first: nothing of a window makes room for the rest of it.
  bool stale = false;  // another read of the same key would meet an extent that is gone
  for (Read* read : window) {
    if (read->store_own == nullptr) continue;
    Extent* const found = stale ? memory_.find(read->key) : static_cast<Extent*>(read->store_own);
    Extent* const extent = unless_stale(catalog_, memory_, found);
    stale |= extent != found;
    read->store_own = resolve(*read, extent);
    if (extent != nullptr) memory_.prefetch_touch(*extent);
    // Reclaim has moved the block while it was being read: it comes from its new place, like the others.
    if (read->status == Code::Throttled) missing_.push_back(read);
  }
  if (missing_.size() > 1) memory_.make_room(bytes_read_together(missing_));
  for (Read* read : missing_) {
    read->store_own = resolve(*read, resident(catalog_, memory_, read->key));
    if (read->status == Code::Throttled) {
      undo(window);
      counters_ = before;
      return refuse(window, relief_pending);
    }
  }
  // From here on nothing can fail; completions below may come back into this function.
  std::vector<Extent*> started;
  started.swap(fresh_);
  for (Extent* extent : started) {
    extent->attempts = 0;
    extent->reader = this;
    extent->as_parts.reads ? parts_.begin(*extent) : submit(*extent);
  }
  early_.submit();
  started.clear();
  fresh_.swap(started);

  // Keys come from the root of a prefix chain to its leaf; the root is touched last, and no leaf at a later moment than its
  // root (docs/store-rules.md, rule 12).
  const Moment now = uses_.moment();
  for (size_t i = window.size(); i-- > 0;) {
    auto* own = static_cast<Extent*>(window[i]->store_own);
    if (own == nullptr || window[i]->ahead) continue;
    staged_.used(*own);
    if (uses == Uses::Counted) continue;
    Moment* of_request = window[i]->moment;
    if (of_request != nullptr && !of_request->set) *of_request = now;
    const bool apart = of_request == nullptr || HALFSTEP_MUTANT(WindowsApart);
    // What has left memory's table since is nobody's by this key any more.
    Extent* const known = own->listed ? own : memory_.find(own->key);
    uses_.touch(own->key, known, apart ? now : *of_request);
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
      if (!read->ahead && !read->goes_on) ++counters_.hits_memory;
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
    const Block block = catalog_.find(read->key);
    if (block && block.extent_bytes() <= io::GatherRun::kSmallBytesMax) bytes += SlotPool::held_bytes(block.extent_bytes());
  }
  return bytes;
}

// For want of memory: whether waiting helps.
Status BlockReader::refuse(std::span<Read* const> window, bool relief_pending) noexcept {
  uint64_t bytes = 0;
  for (const Read* read : window) {
    const Extent* known = memory_.find(read->key);
    if (known != nullptr) {
      bytes += known->slot().held_bytes();
    } else if (const Block block = catalog_.find(read->key); block) {
      bytes += held_bytes(*read, block);
    }
  }
  // What is staged leaves room for any one block (staged_blocks.h), not for a window of as many as reads may have.
  const uint64_t staged_bytes = window.size() > 1 ? staged_.bytes() : 0;
  if (bytes > memory_.read_bytes_max() - staged_bytes) return Code::TooLarge;
  memory_.note_refusal(relief_pending);
  return Code::Throttled;
}

void BlockReader::undo(std::span<Read* const> window) noexcept {
  for (Extent* extent : fresh_) {
    if (extent->as_parts.reads) {
      parts_.forget(*extent);
    } else {
      memory_.put_off(*extent);
    }
    memory_.set_state(*extent, ExtentState::Clean);
  }
  for (Read* read : window) {
    if (read->store_own != nullptr) memory_.unpin(*static_cast<Extent*>(read->store_own));
    read->store_own = nullptr;
  }
  fresh_.clear();
}

void BlockReader::submit(Extent& extent) {
  const Block& block = extent.block;
  Segment& segment = catalog_.segment(extent.block.location.segment);
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
  const uint64_t place = media_.places.segment(segment.number) + uint64_t{block.location.page} * kPageBytes;
  TransferCutter cutter(
      transfers_.arena(), place,
      [&](uint64_t offset, Bytes bytes) {
        Transfer& piece = transfers_.take(like, offset, bytes);
        *last = &piece;
        last = &piece.next;
        ++extent.outstanding;
      },
      large ? kLargeBlockTransferBytesMax : kTransferBytesMax);
  const auto read = [&](uint64_t at, uint64_t bytes) {
    extent.slot().for_range(at, bytes, [&](Bytes piece) { cutter.add(piece); });
    cutter.finish();
  };
  uint64_t at = 0;
  if (extent.early != nullptr) {
    const uint64_t in_pieces = early_.bytes_in_pieces(extent);
    for (; at < in_pieces; at += std::min<uint64_t>(extent.piece_bytes, in_pieces - at)) {
      read(at, std::min<uint64_t>(extent.piece_bytes, in_pieces - at));
    }
  }
  if (at < block.extent_bytes()) read(at, block.extent_bytes() - at);
  if (extent.early != nullptr) return early_.begin(extent);
  for (Transfer* piece = extent.pieces; piece != nullptr; piece = piece->next) media_.engine.submit(piece->request);
}

// It was to come ahead of this get, and now the get is here.
void BlockReader::hurry(Extent& extent) noexcept {
  if (extent.io_class == io::IoClass::Demand) return;
  extent.io_class = io::IoClass::Demand;
  for (Transfer* piece = extent.pieces; piece != nullptr; piece = piece->next) {
    if (!piece->landed) media_.engine.hurry(piece->request);
  }
}

// A plain block is as long as its extent, and its group says how it is cut.
void BlockReader::cut(Extent& extent) {
  const auto bytes = static_cast<uint32_t>(extent.block.extent_bytes());
  const wire::GroupShape* group = names_.group(extent.entry.scope, {extent.entry.component});
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
  if (extent.early == nullptr) {
    self.take_pieces(extent, !extent.block.trailer);
  } else if (!self.early_.awaits_trailer(extent, request)) {
    self.take_pieces(extent, EarlyReader::is_cut(extent));
    self.early_.look(extent);
  }
  if (--extent.outstanding == 0) self.landed(extent);
}

// Those that have landed, up to the first that has not. `cut`: where its parts lie is known.
void BlockReader::take_pieces(Extent& extent, bool cut) {
  while (extent.pieces != nullptr && extent.pieces->landed) {
    Transfer& piece = *extent.pieces;
    extent.pieces = piece.next;
    const bool verifies = extent.error == 0 && cut;
    if (verifies && !HALFSTEP_MUTANT(NoVerify)) extent.verifier.feed({piece.request.data, piece.request.bytes});
    transfers_.give(piece);
  }
}

void BlockReader::on_header(io::Request& request) {
  auto& extent = *static_cast<Extent*>(request.owner);
  BlockReader& self = *extent.reader;
  const int32_t error = request.error;
  self.transfers_.give(Transfer::of(request));
  self.early_.header_landed(extent, error);
  if (--extent.outstanding == 0) self.landed(extent);
}

bool BlockReader::verify(Extent& extent) {
  if (extent.error != 0) return false;
  const Block& block = extent.block;
  const uint32_t checksum = block.checksum(extent.key);
  if (!block.trailer) return HALFSTEP_MUTANT(NoVerify) || extent.verifier.checksum() == checksum;
  const bool fed =
      extent.early != nullptr && EarlyReader::is_cut(extent) && extent.verifier.fed_bytes() == block.extent_bytes();
  if (fed) return extent.verifier.checksum() == checksum && EarlyReader::has_named_sums(extent);
  uint32_t raw_bytes = 0;
  if (!read_tail(extent.slot(), block.extent_bytes(), &extent.shape, &raw_bytes).ok()) return false;
  extent.set_block_bytes(raw_bytes);
  return verify_extent(extent.slot(), extent.shape, nullptr, raw_bytes, checksum, &extent.part_table()).ok();
}

void BlockReader::landed(Extent& extent) {
  --catalog_.segment(extent.block.location.segment).reads_in_flight;
  --in_flight_;
  const bool sound = verify(extent);
  const bool told = early_.close(extent);
  if (told) ++(sound ? counters_.early_reads : counters_.early_reads_failed);
  if (sound) return finish(extent, {});
  if (told) return read_again(extent);
  if (extent.attempts++ == 0) return submit(extent);
  // Its segment must not be reclaimed before the verdict.
  ++catalog_.segment(extent.block.location.segment).reads_in_flight;
  ++in_flight_;
  to_check_.push_back(&extent);
  check_next();
}

// Into other memory: parts of this are with those who wait for the rest.
void BlockReader::read_again(Extent& extent) {
  Read* waiter = std::exchange(extent.waiters, nullptr);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.unlist(extent);
  // Who was told of parts has pinned it once more.
  for (Read* read = waiter; read != nullptr; read = read->store_next) memory_.unpin(extent);
  while (waiter != nullptr) {
    Read& read = *std::exchange(waiter, waiter->store_next);
    read.landed = nullptr;
    read.parts = {};
    read_whole(read);
  }
}

// ---- Some parts ------------------------------------------------------------------------------------------------------------

void BlockReader::landed_in_parts(Extent& extent, bool sound) {
  if (sound) {
    ++counters_.part_reads;
    return finish(extent, {});
  }
  ++counters_.part_reads_failed;
  Read* const read = std::exchange(extent.waiters, nullptr);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.unpin(extent);  // nobody else has it
  read->parts = {};
  read_whole(*read);
}

// Of what could not be had in parts. It takes the memory that there is: whoever reads may stand in a window with others, or
// hold parts, and if he waited for more with them, others who do the same would wait for him.
// It is no further use: one that counted from now on would make the block younger than those before it in its request.
void BlockReader::read_whole(Read& read) {
  Read* const window[] = {&read};
  if (begin(window, Uses::Counted).ok()) return;
  ++counters_.misses_memory;
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
  check_.offset = media_.places.segment(block.location.segment) + uint64_t{frame_page_of(block)} * kPageBytes;
  check_.data = frame_header_.bytes().data();
  check_.bytes = pages * kPageBytes;
  check_.owner = this;
  check_.complete = [](io::Request& request) { static_cast<BlockReader*>(request.owner)->checked(); };
  media_.engine.submit(check_);
}

void BlockReader::checked() {
  Extent& extent = *to_check_.front();
  to_check_.erase(to_check_.begin());
  checking_ = false;
  const Segment& segment = catalog_.segment(extent.block.location.segment);
  const Block& block = extent.block;
  bool collision = false;
  const wire::Component component{extent.entry.component};
  EventOf name{extent.key, block.scope, component.value, catalog_.block_bytes(block, component), {}};
  format::Entry named;  // as the frame's header says it, if that can be read
  for (uint32_t p = 0; check_.error == 0 && p < check_.bytes / kPageBytes; ++p) {
    format::PageHeader header;
    const PageAddress address{0, media_.places.shard, segment.number, frame_page_of(block) + p, segment.generation};
    if (!open_page(media_.page_secret, frame_header_.page(p), format::PageKind::FrameEntries, address, &header).ok()) continue;
    for (uint32_t i = 0; i < header.entries; ++i) {
      const format::Entry entry = entry_at(frame_header_.page(p), i);
      if (entry.page != block.location.page) continue;
      collision = !(IndexKey{entry.key_low, entry.key_high} == extent.key);
      named = entry;
      const bool whole = entry.engine_key_bytes <= format::kEngineKeyInline;
      name = event_of(named, ConstBytes(named.engine_key).first(whole ? entry.engine_key_bytes : 0));
    }
  }
  --catalog_.segment(extent.block.location.segment).reads_in_flight;
  --in_flight_;
  if (collision) {
    ++counters_.misses_collision;
    finish(extent, Code::NotFound);
  } else {
    const int32_t error = extent.error != 0 && extent.error != -EBADMSG ? extent.error : check_.error;
    ++(error != 0 ? counters_.misses_io : counters_.misses_corrupt);
    if (catalog_.live(extent.key, block.location) && (error == 0 || given_up(extent))) {
      evictor_.evict(name, block, error != 0 ? Eviction::Failed : Eviction::Unreadable);
      tombstones_.bury(extent.key);
    }
    finish(extent, error != 0 ? Status(Code::IoError, error) : Status(Code::Corrupt));
  }
  check_next();
}

// An error of the device is a miss now; the block stays until there is more to say that it is lost.
bool BlockReader::given_up(const Extent& extent) {
  const bool lost = unread_.failed(extent.key, extent.block.location, clock_.now_us(), media_.engine.counters().reads);
  if (lost) unread_.forget(extent.key);
  return lost;
}

void BlockReader::finish(Extent& extent, Status status) {
  if (status.ok() && !unread_.empty()) unread_.forget(extent.key);
  Read* waiter = extent.waiters;
  extent.waiters = nullptr;
  memory_.set_state(extent, ExtentState::Clean);
  // Reclaim may have moved the block while it was being read.
  if (status.ok() && extent.listed && !catalog_.still_live(extent.key, extent.location(), extent.departed_seen)) {
    extent.set_location(catalog_.find(extent.key).location);
    if (!extent.location().valid()) memory_.unlist(extent);
  }
  if (!status.ok()) memory_.unlist(extent);
  while (waiter != nullptr) {
    Read* next = waiter->store_next;
    waiter->status = status;
    waiter->resident = status.ok() ? &extent : nullptr;
    if (status.ok()) {
      if (!waiter->ahead && !waiter->goes_on) ++counters_.hits_flash;
    } else {
      memory_.unpin(extent);  // the last one frees it
    }
    waiter->complete(*waiter);
    waiter = next;
  }
}

}  // namespace halfstep::store
