// touch_map.h — which blocks were used, on flash: what keeps the order of eviction over a restart (V1 section 5).
// Each segment has pages of its own, at a fixed place, three bytes a block by ordinal. Changed pages are written in place, in
// passes at least half a minute apart and for a hundredth of what is written anyway; on a clean stop all of them.
// Nothing depends on them: a page that is bad, or of another generation, means untouched. So no flush waits for them, either.
// Thread: the shard's.
#pragma once

#include "store/blocking_io.h"
#include "store/core.h"
#include "store/page.h"

namespace halfstep::store {

class TouchMap {
 public:
  static constexpr uint64_t kPassEveryUs = 30'000'000;

  explicit TouchMap(Core& core);

  void turn();
  // One more pass, over everything; busy() until it is done.
  void hurry() noexcept;
  bool busy() const noexcept { return writing_ || hurried_; }
  uint64_t next_turn_us() const noexcept { return writing_ ? UINT64_MAX : next_pass_us_; }

 private:
  void begin_pass() noexcept;
  void end_pass() noexcept;
  // The next run of changed pages from the cursor on; false when there is none, or no budget for it.
  bool find_run(uint32_t* pages) noexcept;
  void build(const Segment& segment, uint32_t page, Bytes out) const;
  void written();

  static constexpr uint32_t kRunPages = 16;
  Core& core_;
  PageBuffer buffer_;
  io::Request request_;
  bool writing_ = false;
  bool hurried_ = false;
  bool in_pass_ = false;
  uint32_t segment_ = 0;  // the cursor: passes go on where the one before ran out of budget
  uint32_t page_ = 0;
  uint32_t run_pages_ = 0;
  uint32_t segments_left_ = 0;
  uint64_t pages_left_ = 0;
  uint64_t next_pass_us_;
  uint64_t written_bytes_before_ = 0;  // to the log, at the pass before
};

// Blocking, while the segment's records are being restored: takes over what its pages say of them. Returns the newest time that
// any of them knows, 0 when none can be used.
uint64_t restore_touches(Core& core, BlockingIo& io, const Segment& segment);

}  // namespace halfstep::store
