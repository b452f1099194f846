#include "store/durable/record_log.h"

#include <algorithm>
#include <bitset>

#include "base/check.h"
#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

format::Record record_of(const Tombstone& tombstone) noexcept {
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Tombstone);
  record.sequence = tombstone.sequence;
  record.key_low = tombstone.key.low;
  record.key_high = tombstone.key.high;
  return record;
}

format::Record record_of(uint32_t number, const SegmentRecord& segment) noexcept {
  format::Record record;
  record.kind = static_cast<uint8_t>(segment.bad ? format::RecordKind::SegmentBad : format::RecordKind::Segment);
  record.segment = number;
  record.sequence = segment.generation;
  record.value = segment.retirements;
  return record;
}

SegmentRecord segment_of(const format::Record& record) noexcept {
  const bool bad = record.kind == static_cast<uint8_t>(format::RecordKind::SegmentBad);
  return {record.sequence, bad, static_cast<uint8_t>(std::min<uint64_t>(record.value, UINT8_MAX))};
}

bool is_tombstone(const format::Record& record) noexcept {
  return record.kind == static_cast<uint8_t>(format::RecordKind::Tombstone);
}

bool is_life(const format::Record& record) noexcept {
  return record.kind == static_cast<uint8_t>(format::RecordKind::Hold) ||
         record.kind == static_cast<uint8_t>(format::RecordKind::Expiry);
}

}  // namespace

RecordLog::RecordLog(const Setup& setup)
    : setup_(setup), segments_(setup.places.segments()), life_(setup.secret), buffer_(format::kRecordBatchPagesMax) {
  for (io::Request& request : requests_) {
    request.op = io::Op::Write;
    request.owner = this;
    request.complete = on_request;
  }
  flush_.owner = this;
  flush_.done = [](FlushWaiter& waiter, Status status) { static_cast<RecordLog*>(waiter.owner)->flushed(status); };
}

uint64_t RecordLog::live_pages() const noexcept {
  return div_up(tombstones_.size() + segments_.size() + life_.size(), format::kRecordsPerPage);
}

void RecordLog::seal(Bytes page, uint32_t half, uint32_t place, uint32_t batch, uint32_t entries, uint8_t flags,
                     uint32_t page_number, uint32_t page_count) {
  format::PageHeader header;
  header.kind = static_cast<uint8_t>(format::PageKind::RecordLog);
  header.flags = flags;
  header.generation = epoch_;
  header.sequence = sequence_;
  header.created_s = store_time_s_;
  header.shard = setup_.places.shard;
  header.segment = half;
  header.place = place;
  header.frame = batch;
  header.page = page_number;
  header.page_count = page_count;
  header.entries = entries;
  seal_page(setup_.secret, header, page);
}

// ---- Open ------------------------------------------------------------------------------------------------------------------

Status RecordLog::format_now() {
  // A half that was another store's is unreadable with this store's secret; page 0 alone makes the log.
  epoch_ = 1;
  sequence_ = 1;
  buffer_.clear();
  seal(buffer_.page(0), 0, 0, 0, 0, format::kPageSnapshot, 0, 1);
  BlockingIo io(*setup_.engine);
  for (uint32_t copy = 0; copy < 2; ++copy) io.add_write(setup_.places.log(copy, setup_.places.shard, 0), buffer_.page(0));
  if (const Status status = io.run(); !status.ok()) return status;
  return io.flush();
}

void RecordLog::apply(const format::Record& record, LogContents* out) {
  if (record.sequence >= format::kSequenceLimit) return;
  out->sequence_max = std::max(out->sequence_max, record.sequence);
  switch (static_cast<format::RecordKind>(record.kind)) {
    case format::RecordKind::Tombstone: {
      const Hash128 key{record.key_low, record.key_high};
      const uint64_t known = out->tombstones.find(key);
      if (known == index::Table::kNone || known < record.sequence) out->tombstones.put(key, record.sequence);
      break;
    }
    case format::RecordKind::Segment:
    case format::RecordKind::SegmentBad: {
      if (record.segment >= out->segments.size()) break;
      SegmentRecord& segment = out->segments[record.segment];
      if (record.sequence < segment.generation) break;
      segment = segment_of(record);
      break;
    }
    case format::RecordKind::Hold:
    case format::RecordKind::Expiry: out->life.apply(record); break;
    default:
      if ((record.kind & format::kRecordMustUnderstand) != 0) out->newer_records = true;
  }
}

// Pages of one half, from whichever copy has them.
class RecordLog::HalfReader {
 public:
  HalfReader(const RecordLog& log, uint32_t half, Patience* patience)
      : log_(log),
        half_(half),
        patience_(patience),
        io_(*log.setup_.engine),
        buffers_{PageBuffer(kChunkPages), PageBuffer(kChunkPages)} {}

  // The device gave this place of neither copy: after open().
  bool unread(uint32_t place) const noexcept { return unread_[0][place - from_] && unread_[1][place - from_]; }

  // The genuine page of this place with the highest epoch. `both`: the two copies agree about it.
  bool open(uint32_t place, format::PageHeader* header, ConstBytes* page, bool* both) {
    load(place / kChunkPages * kChunkPages);
    const PageAddress address{0, log_.setup_.places.shard, half_, place, 0};
    format::PageHeader seen[2];
    bool good[2];
    for (uint32_t copy = 0; copy < 2; ++copy) {
      const ConstBytes bytes = buffers_[copy].page(place - from_);
      good[copy] =
          open_page_of_any_generation(log_.setup_.secret, bytes, format::PageKind::RecordLog, address, &seen[copy]).ok();
    }
    if (!good[0] && !good[1]) return false;
    const uint32_t best = !good[0] || (good[1] && seen[1].generation > seen[0].generation) ? 1 : 0;
    *both = good[1 - best] && seen[1 - best].generation == seen[best].generation;
    *header = seen[best];
    *page = buffers_[best].page(place - from_);
    return true;
  }

 private:
  static constexpr uint32_t kChunkPages = 64;

  void load(uint32_t from) {
    if (from == from_) return;
    from_ = from;
    const uint32_t pages = std::min(kChunkPages, log_.half_pages() - from);
    for (uint32_t copy = 0; copy < 2; ++copy) {
      unread_[copy].reset();
      const uint64_t offset = log_.setup_.places.log(copy, log_.setup_.places.shard, half_) + uint64_t{from} * kPageBytes;
      if (io_.read(offset, buffers_[copy].bytes().first(size_t{pages} * kPageBytes)).ok()) continue;
      for (uint32_t p = 0; p < pages; ++p) {  // one bad sector must not hide its neighbours
        const uint64_t at = offset + uint64_t{p} * kPageBytes;
        const Bytes page = buffers_[copy].page(p);
        const Status status = patience_ != nullptr ? io_.read_patiently(at, page, *patience_) : io_.read(at, page);
        if (status.ok()) continue;
        unread_[copy].set(p);
        std::memset(page.data(), 0, kPageBytes);
      }
    }
  }

  const RecordLog& log_;
  uint32_t half_;
  Patience* const patience_;
  BlockingIo io_;
  PageBuffer buffers_[2];
  std::bitset<kChunkPages> unread_[2];
  uint32_t from_ = UINT32_MAX;
};

// *epoch: of page 0, 0 when that is unreadable: then the half was never committed, or it was current and is damaged; which
// of the two is told by batch_epoch_max.
void RecordLog::load_half(uint32_t half, Patience* patience, LogContents* out, uint64_t* epoch) {
  HalfReader reader(*this, half, patience);
  *epoch = 0;
  uint32_t snapshot_pages = 0;
  uint32_t hole = UINT32_MAX;  // first place that has no page of this epoch
  uint32_t last_good = 0;
  for (uint32_t place = 0; place < half_pages(); ++place) {
    // A batch is at most so long, and the next one begins only after a flush: what counts cannot lie further behind.
    if (place > std::max(last_good, snapshot_pages) + format::kRecordBatchPagesMax) break;
    format::PageHeader header;
    ConstBytes page;
    bool both = false;
    const bool genuine = reader.open(place, &header, &page, &both);
    out->unread += !genuine && reader.unread(place) ? 1 : 0;
    if (genuine) {
      last_good = place;
      out->epoch_max = std::max(out->epoch_max, header.generation);
      out->sequence_max = std::max(out->sequence_max, header.sequence);
      out->created_max_s = std::max(out->created_max_s, header.created_s);
      if ((header.flags & format::kPageSnapshot) == 0) out->batch_epoch_max = std::max(out->batch_epoch_max, header.generation);
    }
    if (genuine && place == 0) {
      *epoch = header.generation;
      snapshot_pages = header.page_count;
    }
    if (!genuine || header.generation != *epoch) {
      hole = std::min(hole, place);
      continue;
    }
    // Pages of the batch that was being written at the end may lack neighbours; a later batch may not.
    if (hole < place && header.frame > hole) out->damaged = true;
    if (!both) ++out->pages_bad;
    for (uint32_t i = 0; i < header.entries; ++i) apply(record_at(page, i), out);
  }
  out->half_snapshot = *epoch != 0 && hole < snapshot_pages;
  out->damaged = out->damaged || out->half_snapshot;
}

Status RecordLog::load(LogContents* out, Patience* patience) {
  LogContents halves[2];
  uint64_t epochs[2];
  for (uint32_t half = 0; half < 2; ++half) {
    halves[half].segments.resize(segments_.size());
    halves[half].life = LifeRecords(setup_.secret);
    load_half(half, patience, &halves[half], &epochs[half]);
  }
  half_ = epochs[1] > epochs[0] ? 1 : 0;
  // A half with a part of its snapshot and not one batch was never relied upon: its last flush failed, and the next snapshot
  // was being written over it. All that it says is in the other half, too.
  if (halves[half_].half_snapshot && halves[half_].batch_epoch_max < epochs[half_] && epochs[1 - half_] != 0 &&
      !halves[1 - half_].damaged) {
    half_ = 1 - half_;
  }
  const LogContents& other = halves[1 - half_];
  *out = std::move(halves[half_]);
  out->damaged = out->damaged || epochs[half_] == 0 || other.batch_epoch_max > epochs[half_];
  out->sequence_max = std::max(out->sequence_max, other.sequence_max);
  out->epoch_max = std::max(out->epoch_max, other.epoch_max);
  out->unread += other.unread;
  out->created_max_s = std::max(out->created_max_s, other.created_max_s);
  out->tombstones.for_each([&](const Hash128& key, uint64_t sequence) {
    out->tombstone_list.push_back({{key.low, key.high}, sequence});
  });
  std::sort(out->tombstone_list.begin(), out->tombstone_list.end(),
            [](const Tombstone& a, const Tombstone& b) { return a.sequence < b.sequence; });
  return {};
}

Status RecordLog::restart(const LogContents& contents, std::vector<Tombstone> tombstones, std::vector<SegmentRecord> segments,
                          uint64_t sequence) {
  tombstones_.assign(tombstones.begin(), tombstones.end());
  segments_ = std::move(segments);
  life_ = contents.life;
  epoch_ = contents.epoch_max;
  sequence_ = sequence;
  must_compact_ = true;
  const uint32_t before = half_;
  begin_snapshot();
  Flusher& flusher = *setup_.flusher;
  while (step_ != Step::Idle) {
    flusher.turn();
    setup_.engine->flush_submissions();
    setup_.engine->wait();
    setup_.engine->poll();
  }
  return half_ == before ? Status(Code::IoError) : Status();
}

// ---- Serving ---------------------------------------------------------------------------------------------------------------

// Seven eighths of a half, less what is not tombstones.
uint64_t RecordLog::tombstones_max() const noexcept {
  const uint64_t records = (half_pages() - half_pages() / 8 - 1) * uint64_t{format::kRecordsPerPage};
  const uint64_t others = segments_.size() + life_.size() + life_queued_;
  return records > others ? records - others : 0;
}

// So that a log crowded by deletes is always helped by reclaim, never by dropping what somebody pinned.
uint64_t RecordLog::life_max() const noexcept {
  const uint64_t records = half_pages() / 4 * uint64_t{format::kRecordsPerPage};
  return records > segments_.size() ? records - segments_.size() : 0;
}

bool RecordLog::takes_life() const noexcept {
  const uint64_t life = life_.size() + life_queued_;
  const uint64_t pages = div_up(tombstones_.size() + segments_.size() + life + 1, format::kRecordsPerPage);
  return life < life_max() && pages * 4 < uint64_t{half_pages()} * 3;
}

void RecordLog::append(Pending& pending) noexcept {
  const bool tombstone = is_tombstone(pending.record);
  if (tombstone) ++tombstones_appended_;
  if (is_life(pending.record)) ++life_queued_;
  (tombstone ? waiting_ : urgent_).push(pending);
}

bool RecordLog::wants_prune() const noexcept {
  if (step_ != Step::Idle || !crowded()) return false;
  return prune_due_ || tombstones_.size() >= pruned_count_ + tombstones_max() / 16;
}

void RecordLog::turn(uint64_t oldest_generation, uint64_t sequence, uint64_t store_time_s) {
  if (step_ != Step::Idle || !busy()) return;
  if (urgent_.empty() && tombstones_.size() >= tombstones_max()) return;  // reclaim makes room
  sequence_ = sequence;
  store_time_s_ = store_time_s;
  if (must_compact_ || next_page_ >= half_pages()) {
    forget_life(oldest_generation, store_time_s);  // first: the tombstones tell what is buried
    forget_tombstones(oldest_generation);
    begin_snapshot();
  } else {
    begin_batch();
  }
}

void RecordLog::forget_tombstones(uint64_t oldest_generation) {
  if (HALFSTEP_MUTANT(TombstoneDropped)) oldest_generation = UINT64_MAX;
  while (!tombstones_.empty() && tombstones_.front().sequence < oldest_generation) tombstones_.pop_front();
}

void RecordLog::make_room_for_life(uint64_t oldest_generation, uint64_t store_time_s) {
  if (step_ == Step::Idle) forget_life(oldest_generation, store_time_s);
}

void RecordLog::forget_life(uint64_t oldest_generation, uint64_t store_time_s) {
  if (life_.size() == 0) return;
  index::Table buried(tombstones_.size());
  for (const Tombstone& t : tombstones_) buried.put({t.key.low, t.key.high}, t.sequence);
  life_.forget_unless([&](const LifeRecords::Entry& entry) {
    const bool hold = entry.kind == format::RecordKind::Hold;
    if (hold && entry.value <= store_time_s) return false;
    const uint64_t tombstone = buried.find({entry.key.low, entry.key.high});
    if (tombstone != index::Table::kNone && tombstone > entry.sequence) return false;
    if (setup_.alive == nullptr || setup_.alive(setup_.alive_owner, entry.key, entry.sequence)) return true;
    return entry.sequence >= oldest_generation;
  });
}

void RecordLog::begin_batch() {
  const uint32_t pages_max = std::min(format::kRecordBatchPagesMax, half_pages() - next_page_);
  HALFSTEP_DCHECK(pages_max > 0 && batch_.empty(), pages_max);
  uint64_t room = tombstones_max() - std::min<uint64_t>(tombstones_.size(), tombstones_max());
  const auto more = [&] { return !urgent_.empty() || (!waiting_.empty() && room > 0); };
  uint32_t pages = 0;
  for (; more() && pages < pages_max; ++pages) {
    const Bytes page = buffer_.page(pages);
    std::memset(page.data(), 0, page.size());
    uint32_t records = 0;
    for (; more() && records < format::kRecordsPerPage; ++records) {
      if (urgent_.empty()) --room;
      Pending& pending = urgent_.empty() ? waiting_.pop() : urgent_.pop();
      store_le(page_body(page).data() + records * sizeof(format::Record), pending.record);
      batch_.push(pending);
    }
    seal(page, half_, next_page_ + pages, next_page_, records, 0, pages, format::kRecordBatchPagesMax);
  }
  step_ = Step::Batch;
  copy_failed_ = false;
  failures_before_ = setup_.flusher->failures();
  write_pages(half_, next_page_, pages);
  next_page_ += pages;
}

format::Record RecordLog::snapshot_record(size_t number) const noexcept {
  if (number < snapshot_segments_.size()) {
    const uint32_t segment = snapshot_segments_[number];
    return record_of(segment, segments_[segment]);
  }
  number -= snapshot_segments_.size();
  return number < tombstones_.size() ? record_of(tombstones_[number]) : life_.record(number - tombstones_.size());
}

void RecordLog::begin_snapshot() {
  snapshot_segments_.clear();
  for (uint32_t number = 0; number < segments_.size(); ++number) {
    if (segments_[number].generation != 0) snapshot_segments_.push_back(number);
  }
  const uint64_t records = snapshot_segments_.size() + tombstones_.size() + life_.size();
  snapshot_pages_ = static_cast<uint32_t>(std::max<uint64_t>(1, div_up(records, format::kRecordsPerPage)));
  HALFSTEP_CHECK(snapshot_pages_ < half_pages(), snapshot_pages_, half_pages());
  ++epoch_;
  snapshot_next_page_ = 1;
  step_ = Step::Snapshot;
  copy_failed_ = false;
  failures_before_ = setup_.flusher->failures();
  snapshot_chunk();
}

// Pages from snapshot_next_page_ on, or the flush when all but page 0 are written; with page 0 left, that.
void RecordLog::snapshot_chunk() {
  const auto fill = [&](Bytes page, uint32_t place) {
    std::memset(page.data(), 0, page.size());
    const size_t records = snapshot_segments_.size() + tombstones_.size() + life_.size();
    const size_t from = size_t{place} * format::kRecordsPerPage;
    const size_t count = std::min<size_t>(format::kRecordsPerPage, records - std::min(from, records));
    for (size_t i = 0; i < count; ++i) {
      store_le(page_body(page).data() + i * sizeof(format::Record), snapshot_record(from + i));
    }
    seal(page, 1 - half_, place, 0, static_cast<uint32_t>(count), format::kPageSnapshot, place, snapshot_pages_);
  };
  if (step_ == Step::Commit) {
    fill(buffer_.page(0), 0);
    return write_pages(1 - half_, 0, 1);
  }
  if (snapshot_next_page_ >= snapshot_pages_) {
    step_ = Step::SnapshotFlush;
    return setup_.flusher->want(flush_);
  }
  const uint32_t pages = std::min(format::kRecordBatchPagesMax, snapshot_pages_ - snapshot_next_page_);
  for (uint32_t i = 0; i < pages; ++i) fill(buffer_.page(i), snapshot_next_page_ + i);
  write_pages(1 - half_, snapshot_next_page_, pages);
  snapshot_next_page_ += pages;
}

void RecordLog::write_pages(uint32_t half, uint32_t place, uint32_t pages) {
  HALFSTEP_CHECK(half < 2 && pages <= half_pages() && place <= half_pages() - pages, half, place, pages, half_pages());
  outstanding_ = 2;
  pages_written_ += pages;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    io::Request& request = requests_[copy];
    request.offset = setup_.places.log(copy, setup_.places.shard, half) + uint64_t{place} * kPageBytes;
    request.data = buffer_.bytes().data();
    request.bytes = pages * kPageBytes;
    setup_.engine->submit(request);
  }
}

void RecordLog::on_request(io::Request& request) {
  auto* self = static_cast<RecordLog*>(request.owner);
  if (--self->outstanding_ > 0) return;
  // One good copy is enough to be read from; the other one is made whole by a compaction, which comes next.
  self->copy_failed_ = self->copy_failed_ || self->requests_[0].error != 0 || self->requests_[1].error != 0;
  const bool both_failed = self->requests_[0].error != 0 && self->requests_[1].error != 0;
  self->written(both_failed ? Status(Code::IoError, self->requests_[0].error) : Status());
}

void RecordLog::written(Status status) {
  if (!status.ok()) return finish_batch(status);
  switch (step_) {
    case Step::Batch:
      if (HALFSTEP_MUTANT(TombstoneEarly)) return finish_batch({});
      step_ = Step::BatchFlush;
      return setup_.flusher->want(flush_);
    case Step::Snapshot: return snapshot_chunk();
    case Step::Commit: step_ = Step::CommitFlush; return setup_.flusher->want(flush_);
    default: HALFSTEP_DCHECK(false);
  }
}

void RecordLog::flushed(Status status) {
  // Another's flush that failed meanwhile may have lost our pages, whatever this one says.
  if (setup_.flusher->failures() != failures_before_) status = Code::IoError;
  if (step_ == Step::BatchFlush || !status.ok()) return finish_batch(status);
  if (step_ == Step::SnapshotFlush) {
    step_ = Step::Commit;
    return snapshot_chunk();
  }
  HALFSTEP_DCHECK(step_ == Step::CommitFlush, step_);
  half_ = 1 - half_;
  next_page_ = snapshot_pages_;
  // With a page that failed in one copy: once more, but not for ever.
  must_compact_ = snapshot_again_ = copy_failed_ && !snapshot_again_;
  step_ = Step::Idle;
}

void RecordLog::remember(const format::Record& record) {
  switch (static_cast<format::RecordKind>(record.kind)) {
    case format::RecordKind::Tombstone: {
      const Tombstone tombstone{{record.key_low, record.key_high}, record.sequence};
      // Nearly always at the end: only one that had failed before comes late.
      const auto later = [](const Tombstone& a, const Tombstone& b) { return a.sequence < b.sequence; };
      tombstones_.insert(std::upper_bound(tombstones_.begin(), tombstones_.end(), tombstone, later), tombstone);
      break;
    }
    case format::RecordKind::Segment:
    case format::RecordKind::SegmentBad:
      segments_[record.segment] = segment_of(record);
      prune_due_ = true;
      break;
    case format::RecordKind::Hold:
    case format::RecordKind::Expiry: life_.apply(record); break;
    default: break;
  }
}

// Ends a batch, or a compaction that failed. After a failure the half is not appended to again: what is in it past the last
// good batch is unknown, so the next turn makes a snapshot in the other one.
void RecordLog::finish_batch(Status status) {
  step_ = Step::Idle;
  if (copy_failed_) must_compact_ = true;
  if (!status.ok()) {
    must_compact_ = true;
    if (batch_.empty()) {  // those who waited for the compaction
      while (!urgent_.empty()) batch_.push(urgent_.pop());
      while (!waiting_.empty()) batch_.push(waiting_.pop());
    }
  }
  for (Pending* pending = batch_.pop_all(); pending != nullptr;) {
    Pending* next = pending->next;
    if (is_tombstone(pending->record)) ++tombstones_answered_;
    if (is_life(pending->record)) --life_queued_;
    if (status.ok()) remember(pending->record);
    pending->done(*pending, status);
    pending = next;
  }
}

}  // namespace halfstep::store
