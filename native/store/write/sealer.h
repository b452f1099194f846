// sealer.h — writes the footers of full segments, one segment at a time, at low priority. Then their rolls leave memory.
// A footer that failed is written again until it lands, or until other places can be written and its own can not, for more than
// the moment if it is a shortage (device_health.h). Invariants: a footer is written only when every frame of its segment is on
// media; a segment whose footer was given up stays readable and is walked frame by frame after a restart. Thread: the shard's.
#pragma once

#include <optional>

#include "base/clock.h"
#include "io/request.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/catalog/footer.h"
#include "store/format/page.h"
#include "store/format/report.h"
#include "store/format/sequence.h"
#include "store/format/shard_media.h"
#include "store/format/store_time.h"

namespace halfstep::store {

class Streams;

class Sealer {
 public:
  struct Needs {
    ShardMedia media;
    Catalog& catalog;
    WriteHealth& writes;
    Sequence& sequence;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  explicit Sealer(const Needs& needs);

  void turn(Streams& streams);
  uint64_t next_turn_us() const noexcept;
  bool idle() const noexcept { return segment_ == nullptr; }
  // The end is near: what failed is tried again at once, and not for ever.
  void hurry() noexcept {
    hurried_ = true;
    tries_ = 0;
  }

 private:
  void write_next();
  void submit();
  void failed(int32_t error);
  void finish(SegmentState state);

  static constexpr uint32_t kChunkPages = 64;
  static constexpr uint32_t kTriesMax = 3;
  static constexpr uint32_t kWitnessedMax = 3;
  const ShardMedia media_;
  Catalog& catalog_;
  WriteHealth& writes_;
  Sequence& sequence_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  Segment* segment_ = nullptr;
  std::optional<FooterBuilder> builder_;
  PageBuffer buffer_;
  io::Request request_;
  // Of what is being written
  uint32_t tries_ = 0;      // that failed
  uint32_t witnessed_ = 0;  // of them, though something else had landed since the one before
  uint64_t others_seen_ = 0;
  uint64_t failing_since_us_ = 0;  // 0: not
  uint64_t again_at_us_ = 0;       // 0: nothing has to be written again
  bool hurried_ = false;
};

}  // namespace halfstep::store
