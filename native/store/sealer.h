// sealer.h — writes the footers of full segments, one segment at a time, at low priority. Then their rolls leave memory.
// Invariants: a footer is written only when every frame of its segment is on media; a segment whose footer failed stays
// readable and is walked frame by frame after a restart.
// Thread: the shard's.
#pragma once

#include <optional>

#include "store/core.h"
#include "store/footer.h"
#include "store/page.h"

namespace halfstep::store {

class Streams;

class Sealer {
 public:
  explicit Sealer(Core& core);

  void turn(Streams& streams);
  bool idle() const noexcept { return segment_ == nullptr; }

 private:
  void write_next();
  void finish(SegmentState state);

  static constexpr uint32_t kChunkPages = 64;
  Core& core_;
  Segment* segment_ = nullptr;
  std::optional<FooterBuilder> builder_;
  PageBuffer buffer_;
  io::Request request_;
};

}  // namespace halfstep::store
