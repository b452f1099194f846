#include "store/recover/recovery.h"

#include <algorithm>

#include "store/catalog/footer.h"
#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

// Entries for which the index asks for its memory in advance.
constexpr size_t kAhead = 16;

}  // namespace

Recovery::Recovery(const Needs& needs, uint64_t start_number, RecoveryReport* report)
    : media_(needs.media),
      record_log_(needs.log),
      flusher_(needs.flusher),
      tombstones_(needs.tombstones),
      catalog_(needs.catalog),
      names_(needs.names),
      memory_(needs.memory),
      holds_(needs.holds),
      sequence_(needs.sequence),
      clock_(needs.clock),
      store_time_(needs.store_time),
      counters_(needs.counters),
      start_number_(start_number),
      report_(*report),
      io_(media_.engine),
      patience_(clock_, media_.engine, {media_.places.header(0), media_.places.header(1)}),
      check_(media_.engine) {
  frame_io_.op = io::Op::Read;
  frame_io_.data = frame_header_.bytes().data();
  frame_io_.owner = this;
  frame_io_.complete = [](io::Request& request) { static_cast<Recovery*>(request.owner)->frame_reading_ = false; };
}

// ---- Segments --------------------------------------------------------------------------------------------------------------

bool Recovery::go_on(uint64_t us) {
  const uint64_t from_us = clock_.now_us();
  while (!done_ && clock_.now_us() - from_us < us) step();
  report_.first_answer_micros = clock_.now_us() - began_us_;
  return done_;
}

void Recovery::step() {
  const bool worked = turn();
  media_.engine.flush_submissions();
  if (!worked && media_.engine.in_flight() == 0 && again_us() != UINT64_MAX) {
    const uint64_t now_us = clock_.now_us();
    clock_.pause_us(again_us() - std::min(again_us(), now_us));
  } else if (!worked) {
    media_.engine.wait();
  }
  media_.engine.poll();
}

// When what the device did not give is to be asked for again.
uint64_t Recovery::again_us() const noexcept {
  uint64_t again_us = doubt_later_.again_us != 0 ? doubt_later_.again_us : UINT64_MAX;
  if (loading_ < loaders_.size() && next_ < order_.size()) again_us = std::min(again_us, later_[order_[next_]].again_us);
  return again_us;
}

// What waits to be asked for again is asked for now, and for the last time.
void Recovery::hurry() noexcept {
  patience_.end();
  const uint64_t now_us = clock_.now_us();
  doubt_later_.again_us = std::min(doubt_later_.again_us, now_us);
  for (Later& later : later_) later.again_us = std::min(later.again_us, now_us);
}

bool Recovery::turn() {
  bool worked = turn_loaders();
  worked = take() || worked;
  if (served_ && all_taken()) worked = end();
  waits_ = !worked;
  return worked;
}

// The device first: it reads while what is here is taken. Of what has landed, one window at a time.
bool Recovery::turn_loaders() {
  for (; loading_ < loaders_.size() && next_ < order_.size(); ++loading_) {
    const uint32_t number = order_[next_];
    if (later_[number].again_us > clock_.now_us()) break;
    ++next_;
    loaders_[(front_ + loading_) % loaders_.size()]->begin(number, tails_[number].page_count == 0 ? nullptr : &tails_[number]);
  }
  for (size_t i = 0; i < loading_; ++i) {
    if (loaders_[(front_ + i) % loaders_.size()]->turn()) return true;
  }
  return false;
}

bool Recovery::take() {
  if (loading_ == 0 || !loaders_[front_]->ready()) return false;
  SegmentLoader& loader = *loaders_[front_];
  if (!open_ && read_later(loader)) return true;
  if (!open_) open_ = open_segment(loader);
  const std::vector<FoundEntry>& entries = loader.scanned().entries;
  Segment& segment = catalog_.segment(loader.number());
  if (doubt_ != Doubt::None && !settle_doubt(segment, entries[ordinal_].entry)) return false;
  for (uint32_t left = kEntriesPerTurn; open_ && left > 0 && ordinal_ < entries.size(); --left) {
    if (ordinal_ + kAhead < entries.size()) catalog_.prefetch(key_of(entries[ordinal_ + kAhead].entry));
    const FoundEntry& found = entries[ordinal_];
    segment.records_missing = segment.records_missing || !found.present;
    if (!publish(segment, found, loader.touches())) return true;
    newer_ = sound_ = Verdict::Open;
    ++ordinal_;
  }
  if (open_ && ordinal_ < entries.size()) return true;
  if (open_) close_segment(loader);
  open_ = false;
  loader.end();
  front_ = (front_ + 1) % loaders_.size();
  --loading_;
  --report_.segments_left;
  report_found();
  return true;
}

// What the device did not give whole comes once more, after all others.
bool Recovery::read_later(SegmentLoader& loader) {
  if (!loader.unread() || HALFSTEP_MUTANT(UnreadIsEmpty)) return false;
  Later& later = later_[loader.number()];
  if (later.unanswered.since_us == 0) ++report_.segments_read_again;
  later.again_us = patience_.again_at_us(later.unanswered);
  if (later.again_us == 0) return false;
  order_.push_back(loader.number());
  loader.end();
  front_ = (front_ + 1) % loaders_.size();
  --loading_;
  return true;
}

// False: there is nothing in it.
bool Recovery::open_segment(SegmentLoader& loader) {
  const ScannedSegment& scanned = loader.scanned();
  Segment& segment = catalog_.segment(loader.number());
  sequence_max_ = std::max({sequence_max_, scanned.sequence_max, segment.generation});
  store_time_.raise_to(scanned.created_max_s);
  report_.pages_bad += scanned.pages_bad;
  if (!scanned.anything) {
    // Not Free: if it was read wrongly, the next start finds its frames, and needs the tombstones of what is in them.
    segment.state = SegmentState::Ended;
    segment.records_missing = true;
    segment.unread = scanned.read_errors > 0 && !HALFSTEP_MUTANT(UnreadIsEmpty);
    ++(segment.unread ? report_.segments_unread : report_.segments_empty);
    return false;
  }
  segment.unread = !scanned.by_footer && scanned.read_errors > 0;
  if (segment.unread) ++report_.segments_unread;
  ++(scanned.by_footer ? report_.segments_by_footer : report_.segments_by_frames);
  if (scanned.pages_bad > 0) {
    note("segment " + std::to_string(segment.number) + ": " + std::to_string(scanned.pages_bad) +
         " metadata pages bad; recovered from the others");
  }
  segment.state = scanned.by_footer ? SegmentState::Sealed : SegmentState::Ended;
  walked_[segment.number] = !scanned.by_footer;
  segment.footer_read = scanned.footer_tail;
  segment.newest_frame = scanned.sequence_max;  // of a footer: drawn when the segment was full
  segment.records_missing = scanned.pages_bad > 0 || scanned.read_errors > 0;
  segment.frames = scanned.frames;
  segment.next_page = segment.written_page = scanned.next_page;
  segment.durable_page = std::min(scanned.watermark, scanned.next_page);
  now_s_ = store_time_.now_s();
  catalog_.begin(segment, now_s_);
  // Before its touches are counted: a stamp is taken for one of the past.
  if (loader.touches().newest > catalog_.clock().now()) catalog_.clock().resume(loader.touches().newest);
  ordinal_ = 0;
  return true;
}

void Recovery::close_segment(SegmentLoader& loader) {
  Segment& segment = catalog_.segment(loader.number());
  ScannedSegment& scanned = loader.scanned();
  segment.lengths.shrink();
  if (served_) {  // the flush of begin() came after all that was ever written to it
    sequence_.raise_to(scanned.sequence_max);
    if (!flush_failed_) segment.durable_page = segment.written_page;
    segment.records_missing = segment.records_missing || flush_failed_ || !scanned.by_footer;
    return;
  }
  if (scanned.by_footer) return;
  // Until it has a footer.
  for (const FoundEntry& found : scanned.entries) segment.long_key_bytes += footer_key_bytes(found.key_bytes);
  segment.roll = std::make_unique<Roll>(std::move(scanned));
}

// ---- Entries ---------------------------------------------------------------------------------------------------------------

// When the block ends, and whether that moves on: whoever changed it said the last word.
void Recovery::find_end(format::Entry& entry, const ReadTouches& touches) const {
  const LifeRecords& life = served_ ? record_log_.life() : log_.life;
  if (life.changes_expiry(entry)) entry.flags &= static_cast<uint8_t>(~format::kEntrySliding);
  entry.expiry_s = life.expiry_s(entry);
  if ((entry.flags & format::kEntrySliding) == 0) return;
  const uint64_t end_s = touches.end_s(ordinal_, names_.sliding_ttl_s(entry.scope));
  entry.expiry_s = std::max(entry.expiry_s, static_cast<uint32_t>(std::min<uint64_t>(end_s, UINT32_MAX)));
}

bool Recovery::publish(Segment& segment, const FoundEntry& found, const ReadTouches& touches) {
  if (!found.present || found.gone) return true;
  format::Entry entry = found.entry;
  const Touch& touch = touches.touches[ordinal_];
  find_end(entry, touches);
  if (left_out(segment, entry)) return true;
  names_.note_codecs(entry.scope, entry.codecs);
  const bool tail = entry.page >= segment.durable_page && !HALFSTEP_MUTANT(TailNotVerified);
  if (!tail && newer_ == Verdict::Open) {
    catalog_.note(segment, entry, now_s_);
    const Status status = catalog_.add_absent(segment, entry, touch);
    if (!(status == Code::Present)) return placed(segment, entry, status);
  }
  const IndexKey key = key_of(entry);
  const Block known = catalog_.find(key);
  if (known && newer_ == Verdict::Open) {
    // Whichever it is, the other one stays on flash.
    segment.may_return = catalog_.segment(known.location.segment).may_return = true;
    ask_birth(known);
    return false;
  }
  if (newer_ == Verdict::No) return true;
  if (tail && sound_ == Verdict::Open) {
    ask_soundness(segment, entry);
    return false;
  }
  if (sound_ == Verdict::No && left_) {  // the next start may find it; so may whoever put it again
    ++report_.blocks_unread;
    segment.records_missing = segment.unread = true;
    left_ = false;
    return true;
  }
  if (sound_ == Verdict::No) {
    ++report_.blocks_dropped_corrupt;
    unreadable_.push_back(key);
    return true;
  }
  // What memory has of the older one, or is being told of it, is not this block's.
  if (Extent* extent = memory_.find(key); extent != nullptr) {
    memory_.unlist(*extent);
    memory_.settle(*extent);
  }
  catalog_.note(segment, entry, now_s_);
  return placed(segment, entry, catalog_.add(segment, entry, touch, holds_.held(key)));
}

bool Recovery::left_out(Segment& segment, const format::Entry& entry) {
  if (!names_.alive(entry.scope)) {
    ++report_.blocks_dropped_dead_scope;
    return true;
  }
  const uint64_t buried = tombstones_.newest(key_of(entry));
  if (buried != index::Table::kNone && (entry.birth < buried || HALFSTEP_MUTANT(BirthIgnored))) {
    ++report_.blocks_dropped_deleted;
    return true;
  }
  if (store_time_.expired(entry.expiry_s)) {
    ++report_.blocks_dropped_expired;
    segment.may_return = true;  // the clock may go back
    return true;
  }
  return false;
}

bool Recovery::placed(Segment& segment, const format::Entry& entry, Status status) {
  if (!status.ok()) {
    ++counters_.index_full;
    ++report_.blocks_dropped_index_full;
    segment.may_return = true;
    return true;
  }
  const Hash128 hash = hash_of(key_of(entry));
  if (pinned_.size() > 0 && pinned_.find(hash) != index::Table::kNone) pinned_.put(hash, entry.birth);
  return true;
}

// ---- What only flash can say -----------------------------------------------------------------------------------------------

// Whether this entry counts more than the one that is known. How old that is only its frame says.
void Recovery::ask_birth(const Block& known) {
  known_ = known;
  const uint32_t first = known.location.page - std::min(known.pages_back, known.location.page);
  frame_io_.offset = media_.places.segment(known.location.segment) + uint64_t{first} * kPageBytes;
  frame_io_.bytes = std::min<uint32_t>(known.pages_back, format::kFrameHeaderPagesMax) * kPageBytes;
  frame_reading_ = true;
  doubt_ = Doubt::Birth;
  frame_io_.io_class = io::IoClass::Prefetch;
  media_.engine.submit(frame_io_);
}

void Recovery::ask_soundness(const Segment& segment, const format::Entry& entry) {
  check_.begin(media_.places.segment(segment.number) + uint64_t{entry.page} * kPageBytes, shape_of(entry).extent_bytes(),
               entry.checksum);
  doubt_ = Doubt::Soundness;
}

// True: what the device did not answer is asked once more, later.
bool Recovery::ask_again() {
  doubt_later_.again_us = patience_.again_at_us(doubt_later_.unanswered);
  return doubt_later_.again_us != 0;
}

// False: the answer is still being read.
bool Recovery::settle_doubt(const Segment& segment, const format::Entry& entry) {
  if (doubt_later_.again_us != 0) {
    if (clock_.now_us() < doubt_later_.again_us) return false;
    doubt_later_.again_us = 0;
    doubt_ == Doubt::Soundness ? ask_soundness(segment, entry) : ask_birth(known_);
  }
  if (doubt_ == Doubt::Birth) {
    if (frame_reading_) return false;
    newer_ = newer_by_frame(entry, segment.number);
    if (newer_ == Verdict::Open) {
      // The page of its frame is damaged: the segment's other word for it.
      if (roll_read_ == nullptr) {
        roll_read_ = std::make_unique<SegmentRead>(media_, io::IoClass::Prefetch);
      }
      roll_read_->begin(known_.location.segment, catalog_.segment(known_.location.segment).generation, &roll_);
      doubt_ = Doubt::BirthByRoll;
    }
  }
  if (doubt_ == Doubt::BirthByRoll) {
    if (roll_read_->reading() || roll_read_->go_on()) return false;
    if (roll_.read_errors > 0 && ask_again()) return false;
    const bool newer = std::any_of(roll_.entries.begin(), roll_.entries.end(), [&](const FoundEntry& there) {
      return there.present && there.entry.page == known_.location.page && counts_more(entry, segment.number, there.entry);
    });
    newer_ = newer ? Verdict::Yes : Verdict::No;
  }
  if (doubt_ == Doubt::Soundness) {
    if (check_.reading() || check_.go_on()) return false;
    if (check_.unanswered() && ask_again()) return false;
    left_ = check_.unanswered();
    sound_ = check_.sound() ? Verdict::Yes : Verdict::No;
  }
  doubt_later_ = {};
  doubt_ = Doubt::None;
  return true;
}

// Than `there`, the entry of the one that is known.
bool Recovery::counts_more(const format::Entry& entry, uint32_t number, const format::Entry& there) const noexcept {
  const auto rank = [this](uint32_t segment, uint64_t birth) {
    return CopyRank{birth, !walked_[segment], catalog_.segment(segment).generation};
  };
  return rank(number, entry.birth) > rank(known_.location.segment, there.birth);
}

Recovery::Verdict Recovery::newer_by_frame(const format::Entry& entry, uint32_t number) const {
  if (HALFSTEP_MUTANT(OlderCopyWins)) return Verdict::Yes;
  if (frame_io_.error != 0) return Verdict::Open;
  const Segment& segment = catalog_.segment(known_.location.segment);
  const uint32_t first = known_.location.page - std::min(known_.pages_back, known_.location.page);
  for (uint32_t p = 0; p < frame_io_.bytes / kPageBytes; ++p) {
    format::PageHeader header;
    const PageAddress address{0, media_.places.shard, segment.number, first + p, segment.generation};
    if (!open_page(media_.page_secret, frame_header_.page(p), format::PageKind::FrameEntries, address, &header).ok()) continue;
    for (uint32_t i = 0; i < header.entries; ++i) {
      const format::Entry there = entry_at(frame_header_.page(p), i);
      if (there.page == known_.location.page) return counts_more(entry, number, there) ? Verdict::Yes : Verdict::No;
    }
  }
  return Verdict::Open;
}

// ---- The end ---------------------------------------------------------------------------------------------------------------

bool Recovery::end() {
  if (record_log_.life_queued() > 0) return false;  // a release that is on its way counts
  take_pins();
  // Their entries may still be on flash: who is told that they are gone must not find them after a restart.
  for (const IndexKey& key : unreadable_) {
    if (!catalog_.find(key)) tombstones_.bury(key);
  }
  report_found();
  note_unread();
  tombstones_.end_recovery();
  done_ = true;
  return true;
}

void Recovery::note_unread() {
  if (report_.segments_read_again == 0 && report_.blocks_unread == 0) return;
  const auto of = [](uint64_t count, const char* what) { return std::to_string(count) + " " + what + (count == 1 ? "" : "s"); };
  std::string sentence = "device errors: " + of(report_.segments_read_again, "segment") + " had to be read again";
  const uint64_t unread = report_.segments_unread;
  if (unread == 0 && report_.blocks_unread == 0) return note(sentence + ", and could be");
  if (unread > 0) sentence += "; " + of(unread, "segment") + " could not be read whole";
  if (report_.blocks_unread > 0) sentence += "; " + of(report_.blocks_unread, "block") + " could not be verified";
  note(sentence + ": left as they are for the next start, nothing of them is lost yet");
}

void Recovery::report_found() noexcept {
  report_.blocks = catalog_.live_blocks();
  report_.bytes = catalog_.live_bytes();
  report_.micros = clock_.now_us() - began_us_;
}

// Persistent holds of the blocks that are there, whatever the budget says now.
void Recovery::take_pins() {
  const uint64_t now_us = clock_.now_us();
  const uint64_t now_s = store_time_.now_s();
  for (const LifeRecords::Entry& entry : record_log_.life().entries()) {
    if (entry.kind != format::RecordKind::Hold || entry.value <= now_s) continue;
    const uint64_t birth = pinned_.find(hash_of(entry.key));
    const Block block = catalog_.find(entry.key);
    if (!block || birth >= entry.sequence) continue;
    if (!holds_.pin(entry.key, entry.owner, now_us, Holds::until_us_of(entry.value, now_s, now_us),
                    {block.scope, block.extent_bytes()})) {
      note("persistent holds: more than holds_max; the rest holds nothing until the next start");
      return;
    }
    catalog_.set_held(entry.key, true);
    ++report_.pins;
  }
}

}  // namespace halfstep::store
