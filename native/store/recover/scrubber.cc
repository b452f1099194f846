#include "store/recover/scrubber.h"

#include <algorithm>

#include "base/crc.h"
#include "store/format/mutant.h"
#include "store/format/options.h"
#include "store/segment/segment_scan.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kAutoPassS = 14 * 24 * 3600;
constexpr uint64_t kAutoRateMin = 256 * KiB;
constexpr uint64_t kAutoRateMax = 64 * MiB;

}  // namespace

uint64_t Scrubber::auto_rate(uint64_t bytes) noexcept { return std::clamp(bytes / kAutoPassS, kAutoRateMin, kAutoRateMax); }

Scrubber::Scrubber(const Needs& needs, uint64_t bytes_per_s, uint64_t start_number)
    : media_(needs.media),
      catalog_(needs.catalog),
      unread_(needs.unread),
      evictor_(needs.evictor),
      tombstones_(needs.tombstones),
      clock_(needs.clock),
      counters_(needs.counters),
      start_number_(start_number),
      rate_bytes_per_s_(bytes_per_s == kScrubAuto ? auto_rate(media_.places.geometry.segment_bytes * media_.places.segments())
                                                  : bytes_per_s),
      due_us_(clock_.now_us()),
      verified_since_us_(clock_.now_us()) {}

uint64_t Scrubber::next_turn_us() const noexcept {
  if (rate_bytes_per_s_ == 0 || reading_) return UINT64_MAX;
  // Whoever has the device brings turns of its own, until the patience ends.
  return clock_.now_us() < due_us_ ? due_us_ : due_us_ + kYieldUsMax;
}

void Scrubber::turn(bool others) {
  const uint64_t now_us = clock_.now_us();
  if (rate_bytes_per_s_ == 0 || reading_ || now_us < due_us_) return;
  if (others && now_us - due_us_ < kYieldUsMax) return;
  step();
}

bool Scrubber::current(const Segment& segment) const noexcept {
  return segment.state == SegmentState::Sealed && segment.generation == at_.generation;
}

// Goes on until a read is under way or the pass is over.
void Scrubber::step() {
  while (!reading_) {
    if (step_ != Step::Segment && !current(catalog_.segment(at_.segment))) step_ = Step::Segment;
    switch (step_) {
      case Step::Segment:
        if (order_.empty() && !begin_pass()) return;
        next_segment();
        break;
      case Step::Tail: read(media_.places.segment_pages() - 1, 1, buffers_[0]); break;
      case Step::Footer:
        if (footer_done_ == footer_pages_) {
          step_ = Step::Segment;
          break;
        }
        footer_taken_ = std::min(kBufferPages, footer_pages_ - footer_done_);
        read(footer_first_ + footer_done_, footer_taken_, buffers_[0]);
        break;
      case Step::Blocks: read_block(); break;
    }
  }
}

// ---- Passes and segments ---------------------------------------------------------------------------------------------------

// False: one is just over, or there is nothing to look at.
bool Scrubber::begin_pass() {
  const uint64_t now_us = clock_.now_us();
  if (pass_began_us_ != 0) {
    ++counters_.scrub_passes;
    verified_since_us_ = pass_began_us_;
    pass_began_us_ = 0;
    due_us_ = now_us + kPassGapUs;
    return false;
  }
  for (const Segment& segment : catalog_.segments()) {
    if (segment.state == SegmentState::Sealed) order_.push_back({segment.number, segment.generation});
  }
  if (order_.empty()) {
    due_us_ = now_us + kPassGapUs;
    return false;
  }
  pass_began_us_ = now_us;
  std::sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) { return a.generation > b.generation; });
  if (first_pass_) {
    // Processes that never live for a whole pass must not look at the same segments each time.
    constexpr uint64_t kOddStep = 0x9E3779B97F4A7C15;
    const uint64_t skipped = (start_number_ * kOddStep >> 32) % order_.size();
    std::rotate(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(skipped), order_.end());
    first_pass_ = false;
  }
  while (buffers_.size() < 2) buffers_.emplace_back(kBufferPages);
  return true;
}

void Scrubber::next_segment() {
  at_ = order_.back();
  order_.pop_back();
  reads_ = errors_ = 0;
  if (current(catalog_.segment(at_.segment))) step_ = Step::Tail;
}

// ---- Reads -----------------------------------------------------------------------------------------------------------------

void Scrubber::read(uint32_t first_page, uint32_t pages, PageBuffer& into) {
  request_ = {};
  request_.op = io::Op::Read;
  request_.offset = media_.places.segment(at_.segment) + uint64_t{first_page} * kPageBytes;
  request_.data = into.bytes().data();
  request_.bytes = pages * kPageBytes;
  request_.owner = this;
  request_.complete = on_read;
  reading_ = true;
  ++catalog_.segment(at_.segment).reads_in_flight;
  counters_.scrub_bytes += request_.bytes;
  // Counted from when this one was due: what was waited for others is made up for.
  const uint64_t now_us = clock_.now_us();
  due_us_ =
      std::max(due_us_, now_us - std::min(now_us, kYieldUsMax)) + uint64_t{request_.bytes} * 1'000'000 / rate_bytes_per_s_;
  request_.io_class = io::IoClass::Scrub;
  media_.engine.submit(request_);
}

void Scrubber::on_read(io::Request& request) {
  auto& self = *static_cast<Scrubber*>(request.owner);
  self.reading_ = false;
  --self.catalog_.segment(self.at_.segment).reads_in_flight;
  self.landed();
}

void Scrubber::landed() {
  if (request_.error != 0 && ++errors_ < kErrorsMax) {  // it may answer later
    due_us_ = std::max(due_us_, clock_.now_us() + kRetryUs);
    window_pages_ = 0;
    return;
  }
  switch (step_) {
    case Step::Tail: return take_tail();
    case Step::Footer: return take_footer();
    case Step::Blocks:
      if (request_.error == 0) return feed();
      window_pages_ = 0;
      return block_read(false);
    case Step::Segment: return;
  }
}

// What failed its check is read once more: true.
bool Scrubber::try_again() { return request_.error == 0 && ++reads_ < kReadsMax; }

// ---- The footer ------------------------------------------------------------------------------------------------------------

void Scrubber::footer_bad(uint32_t pages) noexcept {
  if (request_.error != 0) {  // nobody knows whether they are
    counters_.scrub_unread += pages;
    return;
  }
  counters_.scrub_pages_bad += pages;
  catalog_.segment(at_.segment).note_media_error();
}

void Scrubber::take_tail() {
  const uint32_t pages = media_.places.segment_pages();
  format::PageHeader tail;
  const PageAddress address{0, media_.places.shard, at_.segment, pages - 1, at_.generation};
  bool good = request_.error == 0 &&
              open_page(media_.page_secret, buffers_[0].page(0), format::PageKind::FooterTail, address, &tail).ok();
  if (!good && try_again()) return;
  entry_pages_ = good ? static_cast<uint32_t>(div_up(tail.total_entries, format::kEntriesPerPage)) : 0;
  good = good && tail.page_count <= pages && tail.total_entries <= pages && entry_pages_ < tail.page_count;
  if (!good) {
    footer_bad(1);
    step_ = Step::Segment;
    return;
  }
  entries_ = tail.total_entries;
  footer_pages_ = tail.page_count - 1;
  footer_first_ = pages - tail.page_count;
  footer_done_ = 0;
  reads_ = errors_ = 0;
  step_ = Step::Footer;
}

void Scrubber::take_footer() {
  page_good_.assign(footer_taken_, false);
  uint32_t bad = 0;
  for (uint32_t p = 0; p < footer_taken_; ++p) {
    const uint32_t number = footer_done_ + p;
    const auto kind = number < entry_pages_ ? format::PageKind::FooterEntries : format::PageKind::FooterKeys;
    const PageAddress address{0, media_.places.shard, at_.segment, footer_first_ + number, at_.generation};
    format::PageHeader header;
    page_good_[p] = request_.error == 0 && open_page(media_.page_secret, buffers_[0].page(p), kind, address, &header).ok();
    bad += page_good_[p] ? 0 : 1;
  }
  if (bad > 0) {
    if (try_again()) return;
    footer_bad(bad);
  }
  entry_at_ = 0;
  window_pages_ = 0;
  step_ = Step::Blocks;
  next_block();
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

// The block that this entry of the footer's pages in the buffer stands for, if the index still names it there.
Scrubber::Found Scrubber::entry(uint32_t number) const noexcept {
  const uint32_t page = number / format::kEntriesPerPage;
  const uint64_t ordinal = uint64_t{footer_done_} * format::kEntriesPerPage + number;
  if (!page_good_[page] || ordinal >= entries_) return {};
  const format::Entry entry = entry_at(buffers_[0].page(page), number % format::kEntriesPerPage);
  if ((entry.flags & format::kEntryVoid) != 0 || !entry_is_sane(entry, media_.places.segment_pages())) return {};
  const IndexKey key{entry.key_low, entry.key_high};
  const Block block = catalog_.find(key);
  if (!(block.location == catalog_.location_of(catalog_.segment(at_.segment), entry))) return {};
  return {key, block.location, entry.page, block.pages, block.checksum(key), entry};
}

void Scrubber::next_block() {
  block_ = {};
  fed_bytes_ = 0;
  crc_ = 0;
  reads_ = errors_ = 0;
  const uint32_t entries = footer_taken_ * format::kEntriesPerPage;
  while (entry_at_ < entries && !block_.valid()) block_ = entry(entry_at_++);
  if (block_.valid()) return;
  footer_done_ += footer_taken_;
  step_ = Step::Footer;
}

// From where the block was left, and with what follows it as far as the buffer reaches.
void Scrubber::read_block() {
  const auto done = static_cast<uint32_t>(fed_bytes_ / kPageBytes);
  const uint32_t first = block_.page + done;
  uint32_t end = first + std::min(kBufferPages, block_.pages - done);
  const bool alone = reads_ > 0 || errors_ > 0 || end < block_.page + block_.pages;
  const uint32_t entries = footer_taken_ * format::kEntriesPerPage;
  for (uint32_t next = entry_at_; !alone && next < std::min(entries, entry_at_ + kBufferPages); ++next) {
    const Found after = entry(next);
    if (!after.valid()) continue;
    if (after.page < end || after.page > end + kGapPagesMax || after.page + after.pages > first + kBufferPages) break;
    end = after.page + after.pages;
  }
  window_first_ = first;
  window_pages_ = end - first;
  read(window_first_, window_pages_, buffers_[1]);
}

// The blocks that the buffer has bytes of, as far as it has them.
void Scrubber::feed() {
  while (step_ == Step::Blocks) {
    const uint64_t at = uint64_t{block_.page} * kPageBytes + fed_bytes_;
    const uint64_t begin = uint64_t{window_first_} * kPageBytes;
    const uint64_t end = begin + uint64_t{window_pages_} * kPageBytes;
    if (at < begin || at >= end) return;
    const uint64_t bytes = std::min(uint64_t{block_.pages} * kPageBytes - fed_bytes_, end - at);
    crc_ = crc32c(buffers_[1].bytes().subspan(at - begin, bytes), crc_);
    fed_bytes_ += bytes;
    if (fed_bytes_ == uint64_t{block_.pages} * kPageBytes) block_read(true);
  }
}

void Scrubber::block_read(bool readable) {
  const bool good = readable && crc_ == block_.checksum;
  if (!good && try_again()) {
    fed_bytes_ = 0;
    crc_ = 0;
    window_pages_ = 0;
    return;
  }
  const Block block = catalog_.find(block_.key);
  if (good) {
    ++counters_.scrub_blocks;
  } else if (block.location == block_.location && block.checksum(block_.key) == block_.checksum) {
    const bool lost = readable || unread_.failed(block_.key, block_.location, clock_.now_us(), media_.engine.counters().reads);
    if (lost) drop(block, readable);
    counters_.scrub_unread += lost ? 0 : 1;
  }
  next_block();
}

void Scrubber::drop(const Block& block, bool readable) {
  ++(readable ? counters_.scrub_dropped_corrupt : counters_.scrub_dropped_io);
  if (HALFSTEP_MUTANT(ScrubKeepsBad)) return;
  const format::Entry& entry = block_.entry;
  const bool whole = entry.engine_key_bytes <= format::kEngineKeyInline;  // a longer one stands elsewhere in the footer
  const EventOf name = event_of(entry, ConstBytes(entry.engine_key).first(whole ? entry.engine_key_bytes : 0));
  evictor_.evict(name, block, readable ? Eviction::Unreadable : Eviction::Failed);
  if (!HALFSTEP_MUTANT(ScrubForgetsTombstone)) tombstones_.bury(block_.key);
}

}  // namespace halfstep::store
