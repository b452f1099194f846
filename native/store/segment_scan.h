// segment_scan.h — what a segment on flash says about itself: by its footer, or by walking its frames.
// A page is believed only when its MAC, place and generation fit; a bad page loses what it alone describes. The walk looks
// past a bad page for the next valid header; a bad footer page falls back to the frames.
// Invariants: what comes out is within bounds: extents lie inside the segment, counts within limits, whatever flash said.
// Thread: the shard's, outside its loop (blocking).
#pragma once

#include <vector>

#include "store/blocking_io.h"
#include "store/catalog.h"
#include "store/geometry.h"
#include "store/page.h"

namespace halfstep::store {

struct FoundEntry {
  format::Entry entry;
  bool present = false;
  bool gone = false;  // void in the footer
  uint32_t key_at = 0;
  uint8_t key_bytes = 0;  // 0: the engine key is longer than its field and its page is lost
};

struct ScannedSegment {
  std::vector<FoundEntry> entries;  // by ordinal; holes are not present
  std::vector<std::byte> keys;
  bool by_footer = false;
  bool anything = false;   // at least one page was genuine
  uint32_t next_page = 0;  // end of the last frame found
  uint32_t frames = 0;
  uint32_t watermark = 0;
  uint32_t pages_bad = 0;
  uint32_t read_errors = 0;
  uint64_t sequence_max = 0;
  uint64_t created_max_s = 0;
};

class SegmentScanner {
 public:
  SegmentScanner(io::Engine& engine, const Places& places, const HashKey& secret, uint32_t shard);

  void scan(uint32_t number, uint64_t generation, ScannedSegment* out);
  // By its frames alone, whatever its footer says.
  void scan_frames(uint32_t number, uint64_t generation, ScannedSegment* out);

  // Decoders over one page each; public for the fuzzer. `address` says where the page was read.
  static bool take_entries(const HashKey& secret, ConstBytes page, format::PageKind kind, const PageAddress& address,
                           uint32_t segment_pages, ScannedSegment* out);
  static bool take_footer_keys(const HashKey& secret, ConstBytes page, const PageAddress& address, ScannedSegment* out);

 private:
  void begin(uint32_t number, uint64_t generation, ScannedSegment* out);
  // The page, from a window that is read ahead; empty on a read error.
  ConstBytes page_at(uint32_t place);
  bool scan_footer();
  void walk();
  uint32_t take_frame(uint32_t place, const format::PageHeader& found);
  bool frame_page(uint32_t place, format::PageHeader* header);
  PageAddress address(uint32_t place) const noexcept { return {0, shard_, number_, place, generation_}; }

  static constexpr uint32_t kWindowPages = 256;
  BlockingIo io_;
  Places places_;
  HashKey secret_;
  uint32_t shard_;
  uint32_t number_ = 0;
  uint64_t generation_ = 0;
  PageBuffer window_;
  std::vector<bool> window_bad_;
  uint32_t window_first_ = UINT32_MAX;
  uint32_t window_pages_ = 0;
  ScannedSegment* out_ = nullptr;
};

// Bounds of one entry as it came from flash.
bool entry_is_sane(const format::Entry& entry, uint32_t segment_pages) noexcept;

}  // namespace halfstep::store
