// touch_map.h — which blocks were used, on flash: what keeps the order of eviction over a restart
// (docs/on-flash-format.md, *Touch map*).
// Each segment has pages of its own, at a fixed place, three bytes a block by ordinal. Changed pages are written in place, in
// passes at least half a minute apart and for a hundredth of what is written anyway; on a clean stop all of them.
// The index knows neither ordinals nor keys: a segment's roll is read again to write its pages. What was touched is known by
// the 64th of the segment that it lies in. Nothing depends on them: a page that is bad, or of another generation, means
// untouched. So no flush waits for them, either. Thread: the shard's.
#pragma once

#include "base/clock.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/page.h"
#include "store/format/report.h"
#include "store/format/sequence.h"
#include "store/format/shard_media.h"
#include "store/format/store_time.h"
#include "store/segment/roll_reader.h"

namespace halfstep::store {

class TouchMap {
 public:
  static constexpr uint64_t kPassEveryUs = 30'000'000;

  struct Needs {
    ShardMedia media;
    Catalog& catalog;
    const Names& names;
    const Sequence& sequence;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  // `bytes_per_day`: what the device may be written, of which the map has its share; 0: only what is written anyway counts.
  TouchMap(const Needs& needs, RollReader& rolls, uint64_t bytes_per_day);

  void turn();
  // One more pass, over everything; busy() until it is done.
  void hurry() noexcept;
  bool busy() const noexcept { return writing_ || request_.busy || hurried_; }
  uint64_t next_turn_us() const noexcept { return writing_ || request_.busy ? UINT64_MAX : in_pass_ ? 0 : next_pass_us_; }

 private:
  void begin_pass() noexcept;
  void end_pass() noexcept;
  // The roll of the next segment that was touched, from the cursor on; false when there is none, or no budget for it.
  bool find_segment();
  void take_roll(const Roll& roll);
  // The next run of the segment's pages that changed; false when there is none left.
  bool write_run();
  uint8_t life_left(const Block& block) noexcept;
  void build(const Segment& segment, uint32_t page, Bytes out) const;

  static constexpr uint32_t kRunPages = 16;
  const ShardMedia media_;
  Catalog& catalog_;
  const Names& names_;
  const Sequence& sequence_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  RollReader& rolls_;
  const uint64_t bytes_per_day_;
  RollRequest request_;
  PageBuffer buffer_;
  io::Request io_;
  bool writing_ = false;
  bool hurried_ = false;
  bool in_pass_ = false;
  uint32_t segment_ = 0;  // the cursor: passes go on where the one before ran out of budget
  uint32_t segments_left_ = 0;
  uint64_t pages_left_ = 0;
  uint64_t next_pass_us_;
  uint64_t written_bytes_before_ = 0;  // to the log, at the pass before

  // Of the segment whose pages are being written, by ordinal.
  uint64_t generation_ = 0;  // 0: none is
  std::vector<Touch> touches_;
  uint64_t touched_s_ = 0;     // when they were looked at
  std::vector<bool> changed_;  // by page
  uint32_t page_ = 0;
};

// What a restart finds of one segment's touches.
struct ReadTouches {
  std::vector<Touch> touches;       // by ordinal, of so many entries as were asked for
  std::vector<uint64_t> written_s;  // by page of the map
  uint64_t newest = 0;              // LogClock's time, the newest that any page knows; 0 when none can be used

  // Returns how many pages of the map there are for so many entries.
  uint32_t begin(size_t entries, uint32_t pages_max) {
    const auto pages = static_cast<uint32_t>(std::min<uint64_t>(div_up(entries, format::kTouchesPerPage), pages_max));
    touches.assign(entries, {});
    written_s.assign(pages, 0);
    newest = 0;
    return pages;
  }
  // When a block ends whose end slides: its use may have moved it beyond what its frame says.
  uint64_t end_s(size_t ordinal, uint64_t ttl_s) const noexcept {
    return touches[ordinal].life_left == 0
               ? 0
               : written_s[ordinal / format::kTouchesPerPage] + touches[ordinal].life_left * ttl_s / format::kTouchLifeMax;
  }
};

// Into `out`, as far as it goes: what so many pages of the segment's map, from `first` on, say.
void take_touches(const Places& places, const HashKey& page_secret, const Segment& segment, uint32_t first, ConstBytes pages,
                  ReadTouches* out);

}  // namespace halfstep::store
