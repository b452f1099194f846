// scrubber.h — reads in the background what was sealed long ago, so that rot is found before somebody needs the block.
// One segment at a time, oldest first: its footer, whose pages must prove themselves (page.h), then every extent that the
// index still names there, against the index's checksum. What fails twice is dropped, buried (a restart must not find it
// again) and counted; a segment in which that happens often is retired by segment_source.h. What the device does not give is
// counted and looked at in the next pass (device_health.h). What is bad in the footer itself is counted and loses nothing: its
// blocks are still found by the index.
// Pace: never above the rate it was given, by more than it has waited just now; one read at a time; and after who reads, writes
// or reclaims, who is waited for up to kYieldUsMax a read: a device that is never idle must not end it, nor slow it down.
// Invariants: no block is dropped for bytes that were read once, nor for bytes that are not its own any more (moved, deleted,
// or in a segment that was reused meanwhile); a segment that is being read is not reused.
// Thread: the shard's. Memory: two buffers, from the first pass on.
#pragma once

#include <vector>

#include "base/clock.h"
#include "store/account/evictor.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/durable/tombstones.h"
#include "store/format/page.h"
#include "store/format/report.h"
#include "store/format/shard_media.h"

namespace halfstep::store {

class Scrubber {
 public:
  struct Needs {
    ShardMedia media;
    Catalog& catalog;
    UnreadBlocks& unread;
    Evictor& evictor;
    Tombstones& tombstones;
    const Clock& clock;
    Counters& counters;
  };
  // `bytes_per_s`: kScrubAuto for what suits the size of the store; 0: nothing is read. `start_number`: of the store.
  Scrubber(const Needs& needs, uint64_t bytes_per_s, uint64_t start_number);

  // `others`: somebody else has the device, or is about to.
  void turn(bool others);
  uint64_t next_turn_us() const noexcept;
  bool reading() const noexcept { return reading_; }
  // The end is near: nothing more is begun.
  void stop() noexcept { rate_bytes_per_s_ = 0; }

  uint64_t rate_bytes_per_s() const noexcept { return rate_bytes_per_s_; }
  // All that was sealed so long ago, and is there still, has been verified since; before the first pass is over: all that
  // this process found or wrote.
  uint64_t verified_since_us() const noexcept { return verified_since_us_; }

  // What a rate of kScrubAuto means for a store of so many bytes.
  static uint64_t auto_rate(uint64_t bytes) noexcept;

 private:
  static constexpr uint32_t kBufferPages = 64;
  // Between two blocks that are read in one go.
  static constexpr uint32_t kGapPagesMax = 8;
  static constexpr uint64_t kYieldUsMax = 250'000;
  static constexpr uint64_t kRetryUs = 1'000'000;     // after an error of the device
  static constexpr uint64_t kPassGapUs = 60'000'000;  // between two passes over a store that is quickly read
  static constexpr uint8_t kReadsMax = 2;             // of what failed its check
  static constexpr uint8_t kErrorsMax = 3;            // of the device, for one read

  enum class Step : uint8_t { Segment, Tail, Footer, Blocks };
  struct Place {
    uint32_t segment = 0;
    uint64_t generation = 0;
  };
  // A block of the footer that the index names there now.
  struct Found {
    IndexKey key;
    Location location;
    uint32_t page = 0;
    uint32_t pages = 0;
    uint32_t checksum = 0;
    format::Entry entry;
    bool valid() const noexcept { return pages != 0; }
  };

  void step();
  bool begin_pass();
  void next_segment();
  void read(uint32_t first_page, uint32_t pages, PageBuffer& into);
  static void on_read(io::Request& request);
  void landed();
  bool try_again();
  void take_tail();
  void take_footer();
  void footer_bad(uint32_t pages) noexcept;
  Found entry(uint32_t number) const noexcept;
  void next_block();
  void read_block();
  void feed();
  void block_read(bool readable);
  void drop(const Block& block, bool readable);
  bool current(const Segment& segment) const noexcept;

  const ShardMedia media_;
  Catalog& catalog_;
  UnreadBlocks& unread_;
  Evictor& evictor_;
  Tombstones& tombstones_;
  const Clock& clock_;
  Counters& counters_;
  const uint64_t start_number_;
  uint64_t rate_bytes_per_s_;
  uint64_t due_us_ = 0;
  uint64_t verified_since_us_;
  uint64_t pass_began_us_ = 0;
  std::vector<Place> order_;  // of the pass; what is left of it stands at the back
  bool first_pass_ = true;

  Step step_ = Step::Segment;
  Place at_;
  uint32_t footer_first_ = 0;  // its first page in the segment
  uint32_t footer_pages_ = 0;  // without the tail
  uint32_t entry_pages_ = 0;
  uint32_t entries_ = 0;
  uint32_t footer_done_ = 0;   // pages of it that were taken, those in the buffer included
  uint32_t footer_taken_ = 0;  // in the buffer
  std::vector<bool> page_good_;
  uint32_t entry_at_ = 0;  // in the buffer's entries

  Found block_;
  uint64_t fed_bytes_ = 0;
  uint32_t crc_ = 0;
  uint32_t window_first_ = 0;  // pages of the segment that are in the buffer
  uint32_t window_pages_ = 0;
  uint8_t reads_ = 0;   // of the block, or of these pages of the footer, that failed their check
  uint8_t errors_ = 0;  // of the device

  std::vector<PageBuffer> buffers_;  // footer, window
  io::Request request_;
  bool reading_ = false;
};

}  // namespace halfstep::store
