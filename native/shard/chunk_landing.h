// chunk_landing.h — the payload of one put's Chunk on its way into the slots: where its bytes go, and the checksums of its
// parts as they land, while they are hot in the cache.
// Invariants: nothing lands outside the slot of an item that its request still holds open; a run that does not fit its item
// (a part twice, a part or bytes too many) lands in scratch and costs that item, never another.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "net/stream.h"
#include "wire/records.h"

namespace halfstep::shard {

class PutRequest;
class RequestHost;
struct PutItem;

class ChunkLanding {
 public:
  // Names the landing of the Chunk's payload. Throttled: it has more than was granted; Invalid: a run names no item of its
  // request. The connection ends for either. pulled: a device writes the bytes, and does so until release().
  Status begin(RequestHost& host, PutRequest& put, const wire::RunsView& runs, net::Landing* landing, bool pulled = false);
  // Of a Chunk that no request waits for.
  void begin_unwanted(RequestHost& host) noexcept { host_ = &host; }
  void landed(ConstBytes piece, size_t skipped);
  // Nothing of this Chunk is for `put` any more. True: it was, and the rest of it is to go to scratch.
  bool divert(const PutRequest& put) noexcept;
  // The Chunk is complete, or its connection is gone.
  void forget() noexcept;
  // Of the runs that have bytes: this one's are wanted.
  bool wants(size_t run) const noexcept { return runs_[run].item != nullptr; }
  // No device writes for it any more, and what has not landed never will.
  void release();

 private:
  struct Run {
    PutItem* item = nullptr;  // null: scratch
    uint32_t part = 0;        // that is landing
    uint32_t bytes_left = 0;
    uint32_t part_left = 0;  // of `part`, in this run
    uint32_t check_at = 0;
    bool whole = false;  // it ends its last part
  };
  void absorb(Run& run, ConstBytes piece);
  void begin_run(Run& run, const wire::Run& from, uint32_t check_at, net::Landing* landing);
  void leave(Run& run);

  // What a connection keeps between Chunks: a larger Chunk pays for an allocation of its own.
  static constexpr size_t kRunsKept = 64;
  static constexpr size_t kChecksKept = 512;

  RequestHost* host_ = nullptr;
  PutRequest* put_ = nullptr;  // null: nothing of the Chunk is wanted any more
  std::vector<Run> runs_;
  std::vector<uint32_t> checks_;
  size_t at_ = 0;
  bool pulled_ = false;
};

}  // namespace halfstep::shard
