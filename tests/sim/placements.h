// placements.h — where every copy of every block lies on the device, and which bytes of the device a media fault has hit: so
// that a lost block is excused if its bytes or its only description were hit, and else is not.
// Learned from the writes of the store as they pass, by the on-flash format (store/format/format.h), without asking the store.
// Invariants: what is excused was hit: a hit on one of two descriptions excuses nothing. A segment's hits are forgotten when
// its next generation begins to be written; those of the header and the logs once an open has written both copies anew. Each
// shard has a log of its own, with epochs of its own. Thread: one.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/prng.h"
#include "store/format/geometry.h"

namespace halfstep::sim {

struct Range {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool touches(const Range& other) const noexcept {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

class Placements {
 public:
  explicit Placements(const store::Places& places);

  // A write as it is submitted.
  void wrote(uint64_t offset, ConstBytes bytes);
  // Bytes of media that are wrong now, or that were read wrongly.
  void hit(const Range& range);

  // Footers that a crash or a failed flush kept from the device are no second description.
  void process_ended(const std::function<void(uint64_t offset, Bytes page)>& read);
  // A write that failed, and said so: a copy of the log lacks it until the next compaction, a segment its footer.
  void unwritten(const Range& range) noexcept;
  void unwritten_footer(const Range& range) noexcept;

  // Whether a media fault can be the cause that this block is missing.
  bool excuses(const store::IndexKey& key) const;
  // Something of the header's or the log's copies was hit since they were last written anew.
  bool header_hit(uint32_t copy) const noexcept { return header_hit_[copy].any(); }
  bool log_lost(uint32_t shard) const noexcept { return logs_[shard].hit[0].any() && logs_[shard].hit[1].any(); }
  uint64_t hits() const noexcept { return hits_; }

  void opening() noexcept;
  void opened() noexcept;  // with success

  // A place for a bit to rot: of a block, of what describes blocks, of the log or of the header. None if that has been written
  // nowhere yet, or if the store could not be opened any more.
  std::optional<Range> target(Prng& prng) const;
  // So many blocks of one segment, or fewer; none where no segment has as many.
  std::vector<Range> blocks_of_one_segment(Prng& prng, size_t count) const;

 private:
  struct Copy {
    store::IndexKey key;
    Range extent;
    Range header;                    // the page of its frame that describes it
    std::optional<Range> in_footer;  // the page of the footer that does, too
  };
  struct Segment {
    uint64_t generation = 0;
    std::vector<Copy> copies;  // by ordinal
    std::optional<Range> footer;
    std::map<uint64_t, uint32_t> footer_pages;  // CRC32C as written, by offset
    std::vector<Range> hits;
  };
  struct Wound {
    bool before = false;  // the open that is going on
    bool now = false;
    bool any() const noexcept { return before || now; }
  };
  // A shard's, in two copies.
  struct Log {
    Wound hit[2];
    std::vector<Range> records;  // as far as pages of its last epoch say something
    uint64_t epoch = 0;
  };
  Range log_range(uint32_t copy, uint32_t shard) const noexcept {
    return {places_.log(copy, shard, 0), uint64_t{2} * places_.log_half_pages * kPageBytes};
  }
  void wrote_log(uint64_t offset, ConstBytes page);
  void hit_logs(const Range& range) noexcept;
  bool hit_in(const Segment& segment, const Range& range) const noexcept;
  static void forget_footer(Segment& segment) noexcept;

  store::Places places_;
  std::vector<Segment> segments_;
  Wound header_hit_[2];
  uint32_t header_pages_ = 1;
  std::vector<Log> logs_;  // by shard
  uint64_t hits_ = 0;
};

}  // namespace halfstep::sim
