#include "store/recovery.h"

#include <algorithm>

#include "base/crc.h"
#include "store/footer.h"
#include "store/mutant.h"
#include "store/segment_scan.h"
#include "store/touch_map.h"

namespace halfstep::store {
namespace {

// A store that lost count of its sequence starts above anything that an earlier start can have drawn.
constexpr uint32_t kSequenceBitsPerStart = 40;

// Entries for which the index asks for its memory in advance.
constexpr size_t kAhead = 12;

class Recovery {
 public:
  Recovery(Core& core, RecoveryReport* report)
      : core_(core), report_(*report), io_(core.engine), scanner_(core.engine, core.places, core.page_secret, 0) {}

  Status run();

 private:
  void load_log();
  void note_pins();
  void take_pins();
  void load_segment(uint32_t number);
  void publish(Segment& segment, const FoundEntry& found, size_t ordinal);
  void find_end(format::Entry& entry, size_t ordinal);
  bool superseded(const format::Entry& entry, const Block& known);
  bool superseded_by_roll(const format::Entry& entry, const Block& known);
  bool verify(const Segment& segment, const format::Entry& entry);
  bool read_and_check(const Segment& segment, const format::Entry& entry);
  void seal(Segment& segment);
  // After one that failed no later one tells what is on media.
  bool flush() {
    flush_failed_ = flush_failed_ || !io_.flush().ok();
    return !flush_failed_;
  }
  void note(std::string sentence) { report_.notes.push_back(std::move(sentence)); }

  Core& core_;
  RecoveryReport& report_;
  BlockingIo io_;
  SegmentScanner scanner_;
  LogContents log_;
  std::vector<IndexKey> unreadable_;  // failed their check
  index::Table pinned_;               // keys that the log pins -> birth of the block that was published
  PageBuffer frame_header_{format::kFrameHeaderPagesMax};
  ScannedSegment scanned_;  // of one segment after the other
  ReadTouches touches_;
  uint64_t sequence_max_ = 0;
  uint64_t touch_time_ = 0;
  uint64_t now_s_ = 0;  // when the segment is loaded
  bool flush_failed_ = false;
};

Status Recovery::run() {
  const uint64_t began_us = core_.clock.now_us();
  load_log();
  note_pins();
  std::vector<uint32_t> newest_first;
  for (uint32_t number = 0; number < log_.segments.size(); ++number) {
    const SegmentRecord& record = log_.segments[number];
    Segment& segment = core_.catalog.segment(number);
    segment.generation = record.generation;
    if (record.bad) {
      segment.state = SegmentState::Bad;
      ++report_.segments_bad;
    } else if (record.generation != 0) {
      newest_first.push_back(number);
    }
  }
  std::sort(newest_first.begin(), newest_first.end(),
            [&](uint32_t a, uint32_t b) { return log_.segments[a].generation > log_.segments[b].generation; });
  for (const uint32_t number : newest_first) load_segment(number);
  core_.catalog.clock().resume(touch_time_);
  core_.catalog.count_touches();

  core_.sequence = std::max(sequence_max_ + 1, core_.header.fixed.start_number << kSequenceBitsPerStart);
  for (const uint32_t number : newest_first) {
    Segment& segment = core_.catalog.segment(number);
    if (segment.state == SegmentState::Ended && segment.frames > 0) seal(segment);
    // What is walked again at the next start may say more than it did now.
    segment.records_missing = segment.records_missing || segment.state == SegmentState::Ended;
    segment.roll.reset();
  }
  if (flush()) {
    // Whatever was read is on media now.
    for (const uint32_t number : newest_first) {
      Segment& segment = core_.catalog.segment(number);
      segment.durable_page = segment.written_page;
    }
  } else {
    note("flush after recovery failed: segments sealed just now are walked again at the next start");
    for (const uint32_t number : newest_first) core_.catalog.segment(number).records_missing = true;
  }

  std::vector<SegmentRecord> segments = log_.segments;
  for (Segment& segment : core_.catalog.segments()) {
    if (segment.state == SegmentState::Bad && !segments[segment.number].bad) {
      segments[segment.number] = {core_.draw(), true};
      note("segment " + std::to_string(segment.number) + ": no page of it could be read; not used again");
    }
  }
  const uint64_t oldest = core_.catalog.oldest_generation(core_.sequence);
  std::erase_if(log_.tombstone_list, [&](const Tombstone& t) { return t.sequence < oldest; });
  if (!core_.log.restart(log_, log_.tombstone_list, std::move(segments), core_.draw()).ok()) {
    note("record log: could not be written; deletes and new segments fail until it can");
  }
  take_pins();
  // Their entries may still be on flash: who is told that they are gone must not find them after a restart.
  for (const IndexKey& key : unreadable_) {
    if (!core_.catalog.find(key)) core_.bury(key);
  }
  report_.blocks = core_.catalog.live_blocks();
  report_.bytes = core_.catalog.live_bytes();
  report_.micros = core_.clock.now_us() - began_us;
  return {};
}

// A hold counts for births below its own sequence, and of births nothing stays in memory but these.
void Recovery::note_pins() {
  for (const LifeRecords::Entry& entry : log_.life.entries()) {
    if (entry.kind == format::RecordKind::Hold) pinned_.put(hash_of(entry.key), format::kSequenceLimit);
  }
}

// Persistent holds of the blocks that are there, whatever the budget says now.
void Recovery::take_pins() {
  const uint64_t now_us = core_.clock.now_us();
  const uint64_t now_s = core_.store_time_s();
  for (const LifeRecords::Entry& entry : core_.log.life().entries()) {
    if (entry.kind != format::RecordKind::Hold || entry.value <= now_s) continue;
    const uint64_t birth = pinned_.find(hash_of(entry.key));
    const Block block = core_.catalog.find(entry.key);
    if (!block || birth >= entry.sequence) continue;
    if (!core_.holds.pin(entry.key, entry.owner, now_us, until_us_of(entry.value, now_s, now_us),
                         {block.scope, block.extent_bytes()})) {
      note("persistent holds: more than holds_max; the rest holds nothing until the next start");
      return;
    }
    core_.catalog.set_held(entry.key, true);
    ++report_.pins;
  }
}

void Recovery::load_log() {
  (void)core_.log.load(&log_);
  sequence_max_ = log_.sequence_max;
  core_.store_time_base_s = std::max(core_.store_time_base_s, log_.created_max_s);
  report_.pages_bad += log_.pages_bad;
  report_.tombstones = log_.tombstone_list.size();
  if (log_.pages_bad > 0) {
    note("record log: " + std::to_string(log_.pages_bad) + " pages bad in one copy, taken from the other one");
  }
  if (!log_.damaged && !log_.newer_records) return;
  // What was deleted is not known any more: nothing may come back.
  note(log_.damaged ? "record log: damaged in both copies; the shard starts empty"
                    : "record log: has records of a newer version that may not be skipped; the shard starts empty");
  log_.tombstones.clear();
  log_.tombstone_list.clear();
  log_.life = LifeRecords();
  std::fill(log_.segments.begin(), log_.segments.end(), SegmentRecord{});
}

void Recovery::load_segment(uint32_t number) {
  Segment& segment = core_.catalog.segment(number);
  ScannedSegment& scanned = scanned_;
  scanner_.scan(number, segment.generation, &scanned);
  sequence_max_ = std::max({sequence_max_, scanned.sequence_max, segment.generation});
  core_.store_time_base_s = std::max(core_.store_time_base_s, scanned.created_max_s);
  report_.pages_bad += scanned.pages_bad;
  if (!scanned.anything) {
    // Not Free: if it was read wrongly, the next start finds its frames, and needs the tombstones of what is in them.
    segment.state = scanned.read_errors > 0 ? SegmentState::Bad : SegmentState::Ended;
    segment.records_missing = true;
    ++(scanned.read_errors > 0 ? report_.segments_bad : report_.segments_empty);
    return;
  }
  ++(scanned.by_footer ? report_.segments_by_footer : report_.segments_by_frames);
  if (scanned.pages_bad > 0) {
    note("segment " + std::to_string(number) + ": " + std::to_string(scanned.pages_bad) +
         " metadata pages bad; recovered from the others");
  }
  segment.state = scanned.by_footer ? SegmentState::Sealed : SegmentState::Ended;
  segment.newest_frame = scanned.sequence_max;  // of a footer: drawn when the segment was full
  segment.records_missing = scanned.pages_bad > 0 || scanned.read_errors > 0;
  segment.frames = scanned.frames;
  segment.next_page = segment.written_page = scanned.next_page;
  segment.durable_page = std::min(scanned.watermark, scanned.next_page);
  now_s_ = core_.store_time_s();
  core_.catalog.begin(segment, now_s_);
  read_touches(core_, io_, segment, scanned.entries.size(), &touches_);
  touch_time_ = std::max(touch_time_, touches_.newest);
  for (size_t ordinal = 0; ordinal < scanned.entries.size(); ++ordinal) {
    if (ordinal + kAhead < scanned.entries.size()) {
      const format::Entry& ahead = scanned.entries[ordinal + kAhead].entry;
      core_.catalog.prefetch({ahead.key_low, ahead.key_high});
    }
    const FoundEntry& found = scanned.entries[ordinal];
    segment.records_missing = segment.records_missing || !found.present;
    publish(segment, found, ordinal);
  }
  segment.lengths.shrink();
  if (scanned.by_footer) return;
  // Until it has a footer.
  for (const FoundEntry& found : scanned.entries) segment.long_key_bytes += footer_key_bytes(found.key_bytes);
  segment.roll = std::make_unique<Roll>(std::move(scanned));
}

// When the block ends, and whether that moves on: whoever changed it said the last word.
void Recovery::find_end(format::Entry& entry, size_t ordinal) {
  if (log_.life.changes_expiry(entry)) entry.flags &= static_cast<uint8_t>(~format::kEntrySliding);
  entry.expiry_s = log_.life.expiry_s(entry);
  if ((entry.flags & format::kEntrySliding) == 0) return;
  const uint64_t end_s = touches_.end_s(ordinal, core_.names.sliding_ttl_s(entry.scope));
  entry.expiry_s = std::max(entry.expiry_s, static_cast<uint32_t>(std::min<uint64_t>(end_s, UINT32_MAX)));
}

void Recovery::publish(Segment& segment, const FoundEntry& found, size_t ordinal) {
  if (!found.present || found.gone) return;
  format::Entry entry = found.entry;
  const IndexKey key{entry.key_low, entry.key_high};
  find_end(entry, ordinal);
  if (!core_.names.alive(entry.scope)) {
    ++report_.blocks_dropped_dead_scope;
    return;
  }
  const uint64_t buried = log_.tombstones.find(hash_of(key));
  if (buried != index::Table::kNone && (entry.birth < buried || HALFSTEP_MUTANT(BirthIgnored))) {
    ++report_.blocks_dropped_deleted;
    return;
  }
  if (core_.expired(entry.expiry_s)) {
    ++report_.blocks_dropped_expired;
    segment.may_return = true;  // the clock may go back
    return;
  }
  const Block known = core_.catalog.find(key);
  if (known && !superseded(entry, known)) return;
  if (entry.page >= segment.durable_page && !HALFSTEP_MUTANT(TailNotVerified) && !verify(segment, entry)) {
    ++report_.blocks_dropped_corrupt;
    unreadable_.push_back(key);
    return;
  }
  core_.catalog.note(segment, entry, now_s_);
  if (!core_.catalog.add(segment, entry, touches_.touches[ordinal], false).ok()) {
    ++core_.counters.index_full;
    ++report_.blocks_dropped_index_full;
    segment.may_return = true;
    return;
  }
  if (pinned_.find(hash_of(key)) != index::Table::kNone) pinned_.put(hash_of(key), entry.birth);
}

// Whether this entry's block is newer than the one that is known. Segments come newest first, so that of one birth the copy
// that is there already is the newer one. How old that is only its frame says.
bool Recovery::superseded(const format::Entry& entry, const Block& known) {
  const uint32_t pages = std::min<uint32_t>(known.pages_back, format::kFrameHeaderPagesMax);
  const uint32_t first = known.location.page - std::min(known.pages_back, known.location.page);
  const Segment& segment = core_.catalog.segment(known.location.segment);
  const uint64_t place = core_.places.segment(segment.number) + uint64_t{first} * kPageBytes;
  if (!io_.read(place, frame_header_.bytes().first(size_t{pages} * kPageBytes)).ok()) return superseded_by_roll(entry, known);
  for (uint32_t p = 0; p < pages; ++p) {
    format::PageHeader header;
    const PageAddress address{0, 0, segment.number, first + p, segment.generation};
    if (!open_page(core_.page_secret, frame_header_.page(p), format::PageKind::FrameEntries, address, &header).ok()) continue;
    for (uint32_t i = 0; i < header.entries; ++i) {
      const format::Entry there = entry_at(frame_header_.page(p), i);
      if (there.page == known.location.page) return entry.birth > there.birth;
    }
  }
  return superseded_by_roll(entry, known);
}

// The page of its frame is damaged: the segment's other word for it.
bool Recovery::superseded_by_roll(const format::Entry& entry, const Block& known) {
  ScannedSegment there;
  scanner_.scan(known.location.segment, core_.catalog.segment(known.location.segment).generation, &there);
  return std::any_of(there.entries.begin(), there.entries.end(), [&](const FoundEntry& found) {
    return found.present && found.entry.page == known.location.page && entry.birth > found.entry.birth;
  });
}

// Twice, as the reader does: what was read wrongly once may be right on media.
bool Recovery::verify(const Segment& segment, const format::Entry& entry) {
  return read_and_check(segment, entry) || read_and_check(segment, entry);
}

bool Recovery::read_and_check(const Segment& segment, const format::Entry& entry) {
  const uint64_t bytes = shape_of(entry).extent_bytes();
  Slot slot = core_.slots.take(bytes);
  if (slot.empty()) return false;
  uint64_t place = core_.places.segment(segment.number) + uint64_t{entry.page} * kPageBytes;
  slot.for_range(0, bytes, [&](Bytes piece) {
    io_.add_read(place, piece);
    place += piece.size();
  });
  if (!io_.run().ok()) return false;
  uint32_t crc = 0;
  slot.for_range(0, bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
  return crc == entry.checksum;
}

// A walked segment is as full as it will ever be: with a footer the next start need not walk it.
void Recovery::seal(Segment& segment) {
  // Frames first: a footer says that they are on media, so that no later start verifies them again.
  if (!flush()) return;
  segment.durable_page = segment.next_page;
  // With the sequence of its newest frame: a segment is as old as its frames, not as its footer.
  FooterBuilder builder(core_.page_secret, 0, core_.catalog, segment, core_.places.segment_pages(), segment.newest_frame,
                        core_.store_time_s());
  if (builder.first_place() < segment.next_page) return;
  PageBuffer pages(builder.pages());
  const uint64_t place = core_.places.segment(segment.number) + uint64_t{builder.first_place()} * kPageBytes;
  for (uint32_t p = 0; !builder.finished(); ++p) builder.build(pages.page(p));
  if (!io_.write(place, pages.bytes()).ok()) return;
  segment.state = SegmentState::Sealed;
}

}  // namespace

Status recover(Core& core, RecoveryReport* report) { return Recovery(core, report).run(); }

}  // namespace halfstep::store
