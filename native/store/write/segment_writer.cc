#include "store/write/segment_writer.h"

#include "base/check.h"
#include "store/catalog/footer.h"
#include "store/format/mutant.h"
#include "store/format/options.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kStuckUs = 600'000'000;  // then even what is of use makes room, so that there is a place to compare with

uint64_t long_key_bytes(const Extent& extent) noexcept {
  return extent.entry.engine_key_bytes > format::kEngineKeyInline ? extent.entry.engine_key_bytes : 0;
}

// What an extent adds to the tables of its frame.
uint64_t table_bytes(const Extent& extent) noexcept {
  const uint64_t sums = extent.shape.trailer ? 0 : uint64_t{extent.shape.parts} * sizeof(uint32_t);
  return round_up(long_key_bytes(extent), format::kTableUnit) + round_up(sums, format::kTableUnit);
}

uint32_t extent_pages(const Extent& extent) noexcept { return static_cast<uint32_t>(extent.shape.extent_bytes() / kPageBytes); }

}  // namespace

SegmentWriter::SegmentWriter(const Needs& needs, std::vector<Slot>& frame_headers, SegmentSupply& supply, uint8_t lane,
                             uint8_t stream)
    : media_(needs.media),
      transfers_(needs.transfers),
      flusher_(needs.flusher),
      names_uncertain_(needs.names_uncertain),
      catalog_(needs.catalog),
      names_(needs.names),
      memory_(needs.memory),
      holds_(needs.holds),
      writes_(needs.writes),
      tombstones_(needs.tombstones),
      events_(needs.events),
      sequence_(needs.sequence),
      clock_(needs.clock),
      store_time_(needs.store_time),
      counters_(needs.counters),
      frame_headers_(frame_headers),
      supply_(supply),
      lane_(lane),
      stream_(stream) {
  for (Frame& frame : frames_) frame.writer = this;
  flush_.owner = this;
  flush_.starting = [](FlushWaiter& waiter) { static_cast<SegmentWriter*>(waiter.owner)->flush_starting(); };
  flush_.done = [](FlushWaiter& waiter, Status status) { static_cast<SegmentWriter*>(waiter.owner)->flush_done(status); };
}

void SegmentWriter::set_class(uint8_t stream, uint8_t ttl_class) noexcept {
  HALFSTEP_DCHECK(!in_use());
  stream_ = stream;
  ttl_class_ = ttl_class;
}

uint64_t SegmentWriter::room_pages() const noexcept {
  if (open_ == nullptr) return 0;
  const uint64_t footer = footer_pages(open_->roll->entries.size(), open_->long_key_bytes);
  const uint64_t taken = open_->next_page + footer + pending_bytes_ / kPageBytes;
  return media_.places.segment_pages() - std::min<uint64_t>(taken, media_.places.segment_pages());
}

bool SegmentWriter::wants_segment(uint64_t ahead_pages) const noexcept {
  return open_ == nullptr ? pending_ != nullptr : room_pages() < ahead_pages || stuck();
}

bool SegmentWriter::stuck() const noexcept { return failing_since_us_ != 0 && clock_.now_us() - failing_since_us_ >= kStuckUs; }

void SegmentWriter::commit(Extent& extent) {
  extent.next_pending = nullptr;
  *pending_tail_ = &extent;
  pending_tail_ = &extent.next_pending;
  pending_bytes_ += extent.shape.extent_bytes();
  if (extent.write != nullptr && extent.write->persist && told_of_outage_) {
    ++counters_.writes_refused;
    answer(*extent.write, {Code::IoError, writes_.error()});
    extent.write = nullptr;
  }
  if (extent.write != nullptr && (!extent.write->persist || HALFSTEP_MUTANT(PublishEarly))) {
    answer(*extent.write, {});
    extent.write = nullptr;
  }
}

void SegmentWriter::answer(Write& write, Status status) {
  write.status = status;
  answered_.push_back(&write);
}

void SegmentWriter::turn() {
  notice_flush_failure();
  if (frames_failed_ > 0) try_again();
  tell_of_outage();
  const bool waits = waits_for_flush() || frames_failed_ > 0 || (!hurried_ && clock_.now_us() < next_frame_at_us_);
  while (!waits && pending_ != nullptr && frames_out_ < kFramesInFlightMax &&
         (frames_out_ == 0 || pending_bytes_ >= kFrameCollectBytes)) {
    if (!submit_frame()) break;
  }
  if (pending_ == nullptr) starved_ = false;
  if (!starved_) starved_since_us_ = 0;
  const bool overdue = unflushed_bytes_ >= kUnflushedBytesMax ||
                       (unflushed_since_us_ != UINT64_MAX && clock_.now_us() - unflushed_since_us_ >= kUnflushedUsMax);
  // Until one begins: a flush that is under way now does not cover what has landed since.
  if (flush_wanted_ || overdue || !persists_.empty()) flusher_.want(flush_);
  std::vector<Write*> answered;
  answered.swap(answered_);
  for (Write* write : answered) write->done(*write);
  answered.clear();
  if (answered_.empty()) answered_.swap(answered);  // keeps its capacity
}

uint64_t SegmentWriter::next_turn_us() const noexcept {
  if (!answered_.empty()) return 0;
  const bool flush_due = unflushed_since_us_ != UINT64_MAX && !flush_.waiting;
  const uint64_t flush_us = flush_due ? unflushed_since_us_ + kUnflushedUsMax : UINT64_MAX;
  if (frames_failed_ > 0) return std::min(flush_us, again_at_us_);
  // The end of a flush that is under way or waits for its turn makes one.
  if (flush_in_doubt_ && pending_ != nullptr) return flush_.waiting ? UINT64_MAX : std::min(flush_us, flush_again_us_);
  // While a segment is being made nobody is told that there is none.
  if (starved_ && starved_since_us_ != 0) {
    if (supply_.has_ready(stream_ == kStreamKept)) return 0;
    return supply_.exhausted() ? std::min(flush_us, starved_since_us_ + kStarvedPatienceUs) : flush_us;
  }
  const bool frame_due = pending_ != nullptr && frames_out_ == 0 && !starved_ && !frame_headers_.empty();
  return frame_due ? std::min(flush_us, next_frame_at_us_) : flush_us;
}

void SegmentWriter::want_durable(const Segment& segment) {
  if (!durable(segment)) flush_wanted_ = true;
}

// ---- Frames ----------------------------------------------------------------------------------------------------------------

// Liveness is checked again at submission: what was deleted meanwhile never reaches flash.
bool SegmentWriter::wanted(const Extent& extent) noexcept {
  const bool there = extent.is_copy() ? catalog_.live(extent.key, extent.as_copy.original) : extent.listed;
  return there && names_.alive(extent.entry.scope) && !store_time_.expired(extent.entry.expiry_s);
}

void SegmentWriter::drop_dead_pending() {
  ++counters_.pending_walks;
  for (Extent** link = &pending_; *link != nullptr;) {
    Extent& extent = **link;
    if (wanted(extent)) {
      link = &extent.next_pending;
      continue;
    }
    *link = extent.next_pending;
    drop_pending(extent);
  }
  pending_tail_ = &pending_;
  while (*pending_tail_ != nullptr) pending_tail_ = &(*pending_tail_)->next_pending;
}

// Out of the list already.
void SegmentWriter::drop_pending(Extent& extent) {
  HALFSTEP_CHECK(extent.shape.extent_bytes() <= pending_bytes_, extent.shape.extent_bytes(), pending_bytes_);
  pending_bytes_ -= extent.shape.extent_bytes();
  extent.next_pending = nullptr;
  if (extent.is_copy()) return extent.as_copy.owner->failed(extent);
  names_.add_unwritten_bytes(extent.entry.scope, -static_cast<int64_t>(extent.shape.extent_bytes()));
  if (extent.write != nullptr) answer(*extent.write, {});  // it was stored, and is gone by somebody's wish
  if (extent.listed) events_.removed(extent, EventReason::Expired);
  extent.write = nullptr;
  memory_.unlist(extent);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.settle(extent);
}

void SegmentWriter::withdraw_copies() {
  Extent* extent = pending_;
  pending_ = nullptr;
  pending_tail_ = &pending_;
  starved_ = false;
  while (extent != nullptr) {
    HALFSTEP_DCHECK(extent->is_copy());
    Extent* next = extent->next_pending;
    drop_pending(*extent);
    extent = next;
  }
}

SegmentWriter::Plan SegmentWriter::plan_frame(const Segment& segment) const noexcept {
  Plan plan;
  uint64_t tables = 0;
  uint64_t payload_pages = 0;
  const uint32_t segment_pages = media_.places.segment_pages();
  for (const Extent* extent = pending_; extent != nullptr; extent = extent->next_pending) {
    const uint32_t blocks = plan.blocks + 1;
    tables += table_bytes(*extent);
    const auto entry_pages = static_cast<uint32_t>(div_up(blocks, format::kEntriesPerPage));
    const auto table_pages = static_cast<uint32_t>(div_up(tables, format::kPageBodyBytes));
    if (entry_pages + table_pages > format::kFrameHeaderPagesMax) break;
    if (entry_pages + table_pages + payload_pages > format::kPagesBackMax) break;
    if (plan.blocks > 0 && (payload_pages + extent_pages(*extent)) * kPageBytes > kFramePayloadBytesMax) break;
    const uint64_t keys = plan.long_key_bytes + footer_key_bytes(extent->entry.engine_key_bytes);
    const uint64_t pages = entry_pages + table_pages + payload_pages + extent_pages(*extent);
    const uint64_t footer = footer_pages(segment.roll->entries.size() + blocks, segment.long_key_bytes + keys);
    if (segment.next_page + pages + footer > segment_pages) break;
    payload_pages += extent_pages(*extent);
    plan = {blocks, entry_pages, table_pages, static_cast<uint32_t>(pages), keys};
  }
  return plan;
}

bool SegmentWriter::submit_frame() {
  // What waits is looked at once a frame: there may be much of it.
  if (open_ == nullptr && starved_ && !supply_.has_ready(stream_ == kStreamKept)) return false;
  drop_dead_pending();
  if (pending_ == nullptr || frame_headers_.empty()) return false;
  Plan plan;
  if (open_ != nullptr) {
    plan = plan_frame(*open_);
    if (plan.blocks == 0) close_open_segment();
  }
  if (open_ == nullptr) {
    open_ = supply_.take(stream_ == kStreamKept);
    starved_ = open_ == nullptr;
    if (starved_) {
      if (starved_since_us_ == 0) starved_since_us_ = clock_.now_us();
      return false;
    }
    open_->lane = lane_;
    open_->stream = stream_;
    open_->ttl_class = ttl_class_;
    open_->roll = std::make_unique<Roll>();
    catalog_.begin(*open_, store_time_.now_s());
    unflushed_.push_back({open_, open_->generation, 0});
    plan = plan_frame(*open_);
    HALFSTEP_CHECK(plan.blocks > 0, plan.blocks);  // block_bytes_max sees to it
  }
  Frame& frame = frames_[(frame_first_ + frames_out_++) % kFramesInFlightMax];
  frame.header = std::move(frame_headers_.back());
  frame_headers_.pop_back();
  frame.segment = open_;
  frame.start_page = open_->next_page;
  frame.pages = plan.pages;
  frame.first = pending_;
  frame.header_pages = plan.entry_pages + plan.table_pages;
  frame.landed = frame.failed = false;
  frame.tries = frame.witnessed = 0;
  frame.failing_since_us = 0;
  ++open_->frames_in_flight;
  build_header(frame, plan);
  submit_transfers(frame);
  open_->next_page += plan.pages;
  ++open_->frames;
  return true;
}

// Also moves the frame's extents from the pending list to the frame's, and into the catalog.
void SegmentWriter::build_header(Frame& frame, const Plan& plan) {
  Segment& segment = *frame.segment;
  const uint32_t header_pages = plan.entry_pages + plan.table_pages;
  Bytes memory;
  frame.header.for_range(0, uint64_t{header_pages} * kPageBytes, [&](Bytes piece) { memory = piece; });
  std::memset(memory.data(), 0, memory.size());

  format::PageHeader header;
  header.generation = segment.generation;
  header.sequence = sequence_.draw();
  header.created_s = store_time_.now_s();
  header.shard = media_.places.shard;
  header.segment = segment.number;
  header.frame = segment.frames;
  header.page_count = header_pages;
  header.frame_pages = plan.pages;
  header.watermark = HALFSTEP_MUTANT(WatermarkAhead) ? segment.written_page : segment.durable_page;
  header.total_entries = plan.blocks;
  header.stream = segment.stream;
  header.ttl_class = segment.ttl_class;
  const auto first_entry = static_cast<uint32_t>(segment.roll->entries.size());
  segment.newest_frame = header.sequence;

  // The tables are one run of bytes laid over the bodies of the table pages.
  uint64_t table_at = 0;
  const auto put_table = [&](ConstBytes bytes) {
    while (!bytes.empty()) {
      const uint64_t page = plan.entry_pages + table_at / format::kPageBodyBytes;
      const uint64_t within = table_at % format::kPageBodyBytes;
      const size_t now = std::min<uint64_t>(bytes.size(), format::kPageBodyBytes - within);
      std::memcpy(memory.data() + page * kPageBytes + sizeof(header) + within, bytes.data(), now);
      bytes = bytes.subspan(now);
      table_at += now;
    }
  };
  uint32_t page = segment.next_page + header_pages;
  Extent* extent = pending_;
  for (uint32_t i = 0; i < plan.blocks; ++i) {
    format::Entry& entry = extent->entry;
    entry.page = page;
    entry.pages_back = static_cast<uint16_t>(page - segment.next_page);
    entry.table_offset = static_cast<uint16_t>(table_at / format::kTableUnit);
    if (long_key_bytes(*extent) > 0) put_table(extent->engine_key_bytes());
    table_at = round_up(table_at, format::kTableUnit);
    if (!extent->shape.trailer) {
      for (const PartInfo& part : extent->parts()) put_table(object_bytes(part.stored_crc));
    }
    table_at = round_up(table_at, format::kTableUnit);
    const uint64_t at = uint64_t{i / format::kEntriesPerPage} * kPageBytes + sizeof(header);
    store_le(memory.data() + at + i % format::kEntriesPerPage * sizeof(entry), entry);
    page += extent_pages(*extent);

    extent->in_frame = true;
    extent->set_location(catalog_.location_of(segment, entry));
    enter_catalog(segment, *extent);
    HALFSTEP_CHECK(extent->shape.extent_bytes() <= pending_bytes_, extent->shape.extent_bytes(), pending_bytes_);
    pending_bytes_ -= extent->shape.extent_bytes();
    if (!extent->is_copy()) {
      names_.add_unwritten_bytes(entry.scope, -static_cast<int64_t>(extent->shape.extent_bytes()));
    }
    Extent* next = extent->next_pending;
    if (i + 1 == plan.blocks) extent->next_pending = nullptr;
    extent = next;
  }
  pending_ = extent;
  if (pending_ == nullptr) pending_tail_ = &pending_;
  segment.long_key_bytes += plan.long_key_bytes;
  counters_.bytes_metadata += uint64_t{header_pages} * kPageBytes;

  for (uint32_t p = 0; p < header_pages; ++p) {
    const bool entries = p < plan.entry_pages;
    const uint32_t before = p * format::kEntriesPerPage;
    header.kind = static_cast<uint8_t>(entries ? format::PageKind::FrameEntries : format::PageKind::FrameTable);
    header.page = p;
    header.place = segment.next_page + p;
    header.first_entry = first_entry + (entries ? before : 0);
    header.entries = entries ? std::min(format::kEntriesPerPage, plan.blocks - before)
                             : static_cast<uint32_t>(std::min<uint64_t>(
                                   format::kPageBodyBytes, table_at - uint64_t{p - plan.entry_pages} * format::kPageBodyBytes));
    seal_page(media_.page_secret, header, memory.subspan(size_t{p} * kPageBytes, kPageBytes));
  }
}

// Counted as it is submitted, so that the counters add up to what the device gets.
void SegmentWriter::enter_catalog(Segment& segment, Extent& extent) {
  const uint64_t stored_bytes = extent.shape.stored_bytes;
  counters_.bytes_padding += extent.shape.extent_bytes() - stored_bytes;
  segment.roll->add(extent.entry, extent.engine_key_bytes());
  catalog_.note(segment, extent.entry, store_time_.now_s());
  catalog_.clock().advance(extent.shape.extent_bytes());
  if (extent.is_copy()) {
    counters_.bytes_rewritten += stored_bytes;
    ++counters_.blocks_rewritten;
    return;
  }
  counters_.bytes_user += stored_bytes;
  const bool held = holds_.held(extent.key);
  const Touch fresh{static_cast<uint16_t>(catalog_.clock().now()), kUntouched};
  if (!catalog_.add(segment, extent.entry, fresh, held).ok()) return refused(segment, extent);
  if (extent.touched) (void)catalog_.touch(extent.key);
}

// The index took nothing more, short of what it should take: the block is evicted as it is written.
void SegmentWriter::refused(Segment& segment, Extent& extent) noexcept {
  ++counters_.index_full;
  ++counters_.blocks_evicted;
  ++counters_.blocks_evicted_age;
  segment.may_return = true;
  memory_.unlist(extent);
}

void SegmentWriter::submit_transfers(Frame& frame) {
  frame.error = 0;
  frame.others_seen = writes_.places_landed();
  Transfer* first = nullptr;
  Transfer** last = &first;
  const io::Request like{.op = io::Op::Write,
                         .placement = frame.segment->stream,
                         .io_class = io_class(),
                         .whole = true,
                         .complete = on_transfer,
                         .owner = &frame};
  const uint64_t place = media_.places.segment(frame.segment->number) + uint64_t{frame.start_page} * kPageBytes;
  TransferCutter cutter(
      transfers_.arena(), place,
      [&](uint64_t offset, Bytes bytes) {
        Transfer& transfer = transfers_.take(like, offset, bytes);
        *last = &transfer;
        last = &transfer.next;
        ++frame.outstanding;
      },
      kFrameTransferBytesMax);
  frame.header.for_range(0, uint64_t{frame.header_pages} * kPageBytes, [&](Bytes piece) { cutter.add(piece); });
  for (Extent* extent = frame.first; extent != nullptr; extent = extent->next_pending) {
    extent->for_range(0, extent->shape.extent_bytes(), [&](Bytes piece) { cutter.add(piece); });
  }
  cutter.finish();
  while (first != nullptr) {
    Transfer& transfer = *first;
    first = transfer.next;  // before submit: the transfer goes back to its pool when it completes
    HALFSTEP_CHECK(media_.places.in_segment(frame.segment->number, transfer.request.offset, transfer.request.bytes),
                   frame.segment->number, transfer.request.offset, transfer.request.bytes);
    media_.engine.submit(transfer.request);
  }
}

io::IoClass SegmentWriter::io_class() const noexcept {
  return stream_ == kStreamKept ? io::IoClass::Reclaim : io::IoClass::Write;
}

// ---- Segments --------------------------------------------------------------------------------------------------------------

void SegmentWriter::give_up() {
  for (Extent* extent = pending_; extent != nullptr; extent = extent->next_pending) {
    if (extent->write != nullptr) answer(*extent->write, {Code::Throttled, kThrottledSpace});
    extent->write = nullptr;
  }
}

void SegmentWriter::close_open_segment() {
  if (open_ == nullptr) return;
  open_->state = SegmentState::Sealing;
  open_ = nullptr;
}

void SegmentWriter::end_segment(Segment& segment) {
  if (open_ == &segment) open_ = nullptr;
  if (segment.state == SegmentState::Open || segment.state == SegmentState::Sealing) segment.state = SegmentState::Ended;
}

uint32_t SegmentWriter::check_invariants(std::vector<uint32_t>& frames) const {
  uint64_t pending_bytes = 0;
  Extent* const* tail = &pending_;
  for (; *tail != nullptr; tail = &(*tail)->next_pending) {
    HALFSTEP_CHECK(!(*tail)->in_frame && ((*tail)->is_copy() || (*tail)->state == ExtentState::Dirty), (*tail)->state);
    pending_bytes += (*tail)->shape.extent_bytes();
  }
  HALFSTEP_CHECK(pending_bytes == pending_bytes_ && tail == pending_tail_, pending_bytes, pending_bytes_);
  HALFSTEP_CHECK(frames_out_ <= kFramesInFlightMax, frames_out_);
  uint32_t failed = 0;
  for (uint32_t i = 0; i < frames_out_; ++i) {
    const Frame& frame = frames_[(frame_first_ + i) % kFramesInFlightMax];
    HALFSTEP_CHECK(frame.segment->lane == lane_, frame.segment->number, frame.segment->lane, lane_);
    HALFSTEP_CHECK(frame.start_page + frame.pages <= frame.segment->next_page, frame.start_page, frame.pages,
                   frame.segment->next_page);
    HALFSTEP_CHECK(!frame.header.empty());
    failed += frame.failed ? 1 : 0;
    ++frames[frame.segment->number];
    for (const Extent* extent = frame.first; extent != nullptr; extent = extent->next_pending) HALFSTEP_CHECK(extent->in_frame);
  }
  HALFSTEP_CHECK(failed == frames_failed_, failed, frames_failed_);
  if (open_ != nullptr) HALFSTEP_CHECK(open_->state == SegmentState::Open && open_->lane == lane_, open_->number, open_->state);
  return frames_out_;
}

}  // namespace halfstep::store
