// segment_scan.h — what a segment on flash says about itself: by its footer, or by walking its frames.
// A page is believed only when its MAC, place and generation fit; a bad page loses what it alone describes. The walk looks
// past a bad page for the next valid header, but only after it has read the page again: media may be right where a read was
// wrong. A bad footer page falls back to the frames.
// Invariants: what comes out is within bounds: extents lie inside the segment, counts within limits, whatever flash said.
// Thread: the shard's; SegmentScanner outside its loop (blocking).
#pragma once

#include <compare>
#include <vector>

#include "store/durable/blocking_io.h"
#include "store/format/geometry.h"
#include "store/format/page.h"
#include "store/format/roll.h"

namespace halfstep::store {

struct ScannedSegment : Roll {
  bool by_footer = false;    // all of it
  bool footer_tail = false;  // it has a footer: what can be read of that was gone by
  bool anything = false;     // at least one page was genuine
  uint32_t next_page = 0;    // end of the last frame found
  uint32_t frames = 0;
  uint32_t watermark = 0;
  uint32_t pages_bad = 0;
  uint32_t read_errors = 0;
  uint64_t sequence_max = 0;
  uint64_t created_max_s = 0;
};

// Of several copies of one key the greatest counts, whoever asks: of the newest block; of one block's copies one that a footer
// names rather than one that is known from frames alone, because an earlier start may have begun to write a footer that calls
// that one void, and who went by it would lose the block; then that of the newest segment.
struct CopyRank {
  uint64_t birth = 0;
  bool by_footer = false;
  uint64_t generation = 0;  // of its segment
  auto operator<=>(const CopyRank&) const = default;
};

// Sans I/O: says which pages it has to see next, and goes on as far as these go.
class SegmentScan {
 public:
  SegmentScan(const Places& places, const HashKey& secret);

  // `frames_alone`: whatever the footer says.
  void begin(uint32_t number, uint64_t generation, bool frames_alone, ScannedSegment* out);
  // The footer's last page was read before, and fits.
  void begin_at_footer(uint32_t number, uint64_t generation, const format::PageHeader& tail, ScannedSegment* out);
  // False: all is said. Else the caller reads window() from device_offset() on, says which pages of it were unreadable, and
  // calls again.
  bool next();
  Bytes window() const noexcept { return window_.bytes().first(size_t{window_pages_} * kPageBytes); }
  uint64_t device_offset() const noexcept { return places_.segment(number_) + uint64_t{window_first_} * kPageBytes; }
  void unreadable(uint32_t page_of_window) noexcept;

  // Decoders over one page each; public for the fuzzer. `address` says where the page was read.
  static bool take_entries(const HashKey& secret, ConstBytes page, format::PageKind kind, const PageAddress& address,
                           uint32_t segment_pages, ScannedSegment* out);
  static bool take_footer_keys(const HashKey& secret, ConstBytes page, const PageAddress& address, ScannedSegment* out);
  // Whether a genuine last page of a footer says what a segment can hold.
  static bool tail_fits(const format::PageHeader& tail, uint32_t segment_pages) noexcept;

 private:
  enum class Step : uint8_t { Tail, Footer, Frames, Done };

  // Whether these pages are in the window; else they are what it is to be filled with next, and as many as fit behind them.
  bool has(uint32_t first, uint32_t pages, uint32_t pages_max = kWindowPages) noexcept;
  // Empty: it could not be read.
  ConstBytes page_at(uint32_t place) const noexcept;
  bool take_tail();
  void take_tail(const format::PageHeader& tail);
  bool take_footer();
  bool walk();
  bool header_whole(uint32_t start, uint32_t pages) const;
  void look_again(uint32_t start) noexcept;
  uint32_t take_frame(uint32_t place, const format::PageHeader& found);
  bool frame_page(uint32_t place, format::PageHeader* header) const;
  PageAddress address(uint32_t place) const noexcept { return {0, places_.shard, number_, place, generation_}; }

  static constexpr uint32_t kWindowPages = 256;
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static_assert(format::kFrameHeaderPagesMax <= kWindowPages);
  Places places_;
  HashKey secret_;
  uint32_t number_ = 0;
  uint64_t generation_ = 0;
  Step step_ = Step::Done;
  PageBuffer window_;
  std::vector<bool> unreadable_;
  uint32_t window_first_ = 0;
  uint32_t window_pages_ = 0;
  ScannedSegment* out_ = nullptr;
  // Footer
  format::PageHeader tail_;
  uint32_t footer_page_ = 0;
  bool whole_ = true;
  // Walk
  uint32_t place_ = 0;
  uint32_t last_good_ = 0;
  uint32_t skipped_ = 0;
  uint32_t again_ = kNowhere;  // a frame's header there, or its absence, was read twice
};

// The same, waiting for what it reads: for open() and for fsck.
class SegmentScanner {
 public:
  SegmentScanner(io::Engine& engine, const Places& places, const HashKey& secret) : io_(engine), scan_(places, secret) {}

  void scan(uint32_t number, uint64_t generation, ScannedSegment* out) { run(number, generation, false, out); }
  // By its frames alone, whatever its footer says.
  void scan_frames(uint32_t number, uint64_t generation, ScannedSegment* out) { run(number, generation, true, out); }

 private:
  void run(uint32_t number, uint64_t generation, bool frames_alone, ScannedSegment* out);

  BlockingIo io_;
  SegmentScan scan_;
};

// Bounds of one entry as it came from flash.
bool entry_is_sane(const format::Entry& entry, uint32_t segment_pages) noexcept;

}  // namespace halfstep::store
